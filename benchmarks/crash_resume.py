"""
How many runs that are killed go on as if nothing had happened.

    python benchmarks/crash_resume.py --kills 300

The example scripts pre-train (map-style and from a stream, of one source and of a mixture, from text and from shards,
and from packed rows) and fine-tune a tiny model, in 1 and 2 processes, with 0 and 2 workers, with and without
gradient accumulation, over several epochs. Saves fall between logs, which fine-tuning writes at the end of each epoch.
Runs are killed (SIGKILL to the whole process group) up to three times each, half of the kills inside a save, and
started again by the same command until they end. A run is restored if it ends with exit status 0, and if its final
parameters, its evaluations and its counts of sources equal those of an uninterrupted run, bit for bit. (Losses between
two logs are means since the last log or the last start, whichever came later.)

Each start is a fork of one process that has imported everything, so that it costs a second, and calls `main()` of the
script.
"""

import argparse
import contextlib
import importlib
import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing.context import ForkProcess
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

import numpy as np  # noqa: E402 - the environment must be set before
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

from hf_depth import DepthObjective, add_sentence_tokens, load_corpus, load_model, train_tokenizer  # noqa: E402
from hf_depth.data.shards import prepare_shards  # noqa: E402
from hf_depth.disk import UNFINISHED_FOLDER  # noqa: E402
from hf_depth.training.trainer import DepthTrainer  # noqa: E402

MAP_KINDS = ("map", "map_mixture", "shards", "shard_mixture")
STREAMED_KINDS = ("stream", "packed", "mixture", "packed_mixture")
PRETRAINED_KINDS = MAP_KINDS + STREAMED_KINDS
KINDS = dict.fromkeys(PRETRAINED_KINDS, "pretrain_t5") | {"tasks": "fine_tune_t5"}
MIXTURE = (
    "{{name: texts, weight: 0.6, train_file: {0}/texts.txt}}",
    "{{name: more, weight: 0.4, train_file: {0}/more.txt}}",
)
FORK = multiprocessing.get_context("fork")
SCRIPTS: dict[str, ModuleType] = {}  # imported once, before the forks
KILLS_PER_RUN = 3
TIME_LIMIT = 600.0  # seconds, of one start
WORDS = (
    "rain dog river green walks because house every small sings night under bread and slowly the a of to it".split()
)
ARGUMENTS = {
    "do_train": True,
    "use_cpu": True,
    "per_device_train_batch_size": 2,
    "max_steps": 12,
    "save_steps": 2,
    "save_total_limit": 2,
    "logging_steps": 5,
    "learning_rate": 0.01,
    "dataloader_pin_memory": False,
    "disable_tqdm": True,
}


@dataclass(frozen=True)
class Setting:
    """One way to train."""

    kind: str
    processes: int
    workers: int
    accumulation: int

    def __str__(self) -> str:
        return f"{self.kind:15}{self.processes:10}{self.workers:9}{self.accumulation:14}"

    def arguments(self, data: Path, output_dir: Path) -> dict[str, Any]:
        values = ARGUMENTS | {
            "output_dir": output_dir,
            "cache_dir": data / "cache",
            "model_name_or_path": data / "model",
            "dataloader_num_workers": self.workers,
            "gradient_accumulation_steps": self.accumulation,
        }
        if self.kind == "tasks":
            files = {"task_file": data / "task.yaml", "train_file": data / "examples.jsonl"}
            return values | files | {"logging_strategy": "epoch"}
        values |= {"max_source_length": 64, "max_target_length": 64}
        values |= {"streaming": self.kind in STREAMED_KINDS, "packing": self.kind.startswith("packed")}
        if self.kind.startswith("shard"):
            values["tokenized_dataset_dir"] = data / ("mixed" if self.kind == "shard_mixture" else "shards")
        elif self.kind.endswith("mixture"):
            values["dataset_mixture"] = [source.format(data) for source in MIXTURE]
        else:
            values["train_file"] = data / "texts.txt"
        return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at the same time")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--processes", nargs="+", type=int, choices=(1, 2), default=[1, 2])
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--accumulation", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--keep", type=Path, help="a folder for the runs that were not restored, with their output")
    args = parser.parse_args()
    settings = [Setting(*values) for values in product(args.kinds, args.processes, args.workers, args.accumulation)]
    shares = [args.kills * (i + 1) // len(settings) - args.kills * i // len(settings) for i in range(len(settings))]
    sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
    SCRIPTS.update({name: importlib.import_module(name) for name in {KINDS[kind] for kind in args.kinds}})
    print(
        f"{'data':15}{'processes':>10}{'workers':>9}{'accumulation':>14}{'kills':>7}{'in a save':>11}{'restored':>10}"
    )
    totals = Counter()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        log = data / "data.log"
        if wait(start(lambda _: write_data(data), log)) != 0:
            sys.exit(log.read_text())
        # Not daemons, unlike the processes of `multiprocessing.Pool`: workers of a data loader are their children.
        with ProcessPoolExecutor(args.jobs, mp_context=FORK) as pool:
            trials = [
                pool.submit(try_setting, setting, kills, data, random.Random(f"{args.seed} {setting}"), args.keep)
                for setting, kills in zip(settings, shares, strict=True)
                if kills
            ]
            for trial in trials:
                setting, counts, problems = trial.result()
                totals.update(counts)
                restored = f"{counts['restored']}/{counts['runs']}"
                print(f"{setting}{counts['kills']:7}{counts['saves']:11}{restored:>10}", flush=True)
                for problem in problems:
                    print(f"  {problem}", flush=True)
    kills = f"{totals['kills']} kills, {totals['saves']} of them inside a save"
    print(f"{totals['restored']} of {totals['runs']} runs restored after {kills}")
    sys.exit(totals["restored"] < totals["runs"])


def write_data(folder: Path) -> None:
    """Texts, shards of them, examples of a task, and a tiny model with its tokenizer."""
    rng = random.Random(0)

    def sentence() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(3, 7))).capitalize() + "."

    texts = [" ".join(sentence() for _ in range(rng.randint(2, 4))) for _ in range(21)]
    (folder / "texts.txt").write_text("\n\n".join(texts))
    more = [" ".join(sentence() for _ in range(rng.randint(2, 4))) for _ in range(8)]
    (folder / "more.txt").write_text("\n\n".join(more))
    examples = [{"text": sentence(), "label": rng.randint(0, 1)} for _ in range(21)]
    (folder / "examples.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    task = {"benchmark": "mine", "name": "tone", "labels": ["sad", "glad"]}
    task |= {"text_column_name": "text", "prefix": "tone text:"}
    (folder / "task.yaml").write_text(json.dumps(task))  # JSON is YAML
    tokenizer = add_sentence_tokens(train_tokenizer(texts, vocab_size=300, allow_fewer=True))
    model = load_model(None, tokenizer, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    objective = DepthObjective(tokenizer, max_source_length=64, max_target_length=64)
    prepare_shards({"train": Dataset.from_dict({"text": texts})}, objective, folder / "shards", shard_size=600)
    sources = [source.format(folder) for source in MIXTURE]
    mixture = load_corpus(dataset_mixture=sources, validation_split_percentage=0, cache_dir=folder / "cache")
    prepare_shards(mixture, objective, folder / "mixed", shard_size=600)


# ---- Trials ---------------------------------------------------------------------------------------------------------


def try_setting(
    setting: Setting, kills: int, data: Path, rng: random.Random, keep: Path | None
) -> tuple[Setting, Counter, list[str]]:
    """Kill runs of one setting until there were that many kills; counts, and what went wrong."""
    folder = data / "-".join(str(setting).split())
    expected = folder / "uninterrupted"
    began = time.monotonic()
    if wait(launch(setting, data, expected)) != 0:
        raise RuntimeError(f"The uninterrupted run failed:\n{expected.with_suffix('.log').read_text()}")
    duration = time.monotonic() - began
    counts, problems = Counter(), []
    while counts["kills"] < kills:
        run = folder / f"run-{counts['runs']}"
        found = kill_and_restart(setting, data, run, min(KILLS_PER_RUN, kills - counts["kills"]), duration, rng)
        problem = found.pop("problem", None) or difference(run, expected)
        counts.update(found, runs=1, restored=problem is None)
        if problem is not None:
            problems.append(f"run {counts['runs'] - 1}: {problem}")
            if keep is not None:
                shutil.copytree(run, keep / folder.name / run.name, dirs_exist_ok=True)
        shutil.rmtree(run, ignore_errors=True)
    return setting, counts, problems


def kill_and_restart(
    setting: Setting, data: Path, run: Path, kills: int, duration: float, rng: random.Random
) -> dict[str, Any]:
    """Start a run until it ends by itself, and kill it up to `kills` times."""
    counts = {"kills": 0, "saves": 0}
    while True:
        processes = launch(setting, data, run)
        delay_in_save = rng.uniform(0, 0.02) if rng.random() < 0.5 else None
        last = counts["kills"] == kills
        if last or wait_for_moment(processes, run, rng.uniform(0, duration), delay_in_save):
            code = wait(processes)
            return counts if code == 0 else counts | {"problem": f"exit status {code}: {last_line(run)}"}
        kill(processes)
        counts["kills"] += 1
        counts["saves"] += (run / UNFINISHED_FOLDER).is_dir()


def wait_for_moment(processes: list[ForkProcess], run: Path, delay: float, delay_in_save: float | None) -> bool:
    """Wait until a random moment, on request one inside the next save after it; whether the run ended before."""
    unfinished = run / UNFINISHED_FOLDER
    moment = time.monotonic() + delay
    while all(process.is_alive() for process in processes):
        if time.monotonic() >= moment and delay_in_save is None:
            return False
        if time.monotonic() >= moment and unfinished.is_dir():
            time.sleep(delay_in_save)
            if unfinished.is_dir():
                return False
        time.sleep(0.0005)
    return True


def difference(run: Path, expected: Path) -> str | None:
    """What differs between two runs: a parameter, or a logged value; `None` if nothing does."""
    found, wanted = (load_file(folder / "model.safetensors") for folder in (run, expected))
    for name, values in wanted.items():
        if name not in found or not np.array_equal(found[name], values):
            return f"parameter {name} differs"
    found, wanted = logs(run), logs(expected)
    for one, other in zip(found, wanted, strict=False):
        # The mean loss of a run is added up in another order after a kill.
        is_near = math.isclose(one.pop("train_loss", 0.0), other.pop("train_loss", 0.0), rel_tol=1e-6)
        if one != other or not is_near:
            return f"logged {one} instead of {other}"
    return None if len(found) == len(wanted) else f"{len(found)} logs instead of {len(wanted)}"


def logs(run: Path) -> list[dict[str, float]]:
    """What a run logged, without speeds and without means since the last log."""
    history = json.loads((run / "trainer_state.json").read_text())["log_history"]
    left_out = ("loss", *DepthTrainer.training_metrics)

    def is_kept(name: str) -> bool:
        return name not in left_out and "per_second" not in name and "runtime" not in name

    return [{name: value for name, value in log.items() if is_kept(name)} for log in history]


# ---- Processes ------------------------------------------------------------------------------------------------------


def launch(setting: Setting, data: Path, run: Path) -> list[ForkProcess]:
    """Start a run in as many processes as the setting has, as torchrun would."""
    run.parent.mkdir(parents=True, exist_ok=True)
    file, store = run.with_suffix(".json"), run.with_suffix(".store")
    file.write_text(json.dumps(setting.arguments(data, run), default=str))
    store.unlink(missing_ok=True)  # of the start before, if that was killed

    def run_script(rank: int) -> None:
        if setting.processes > 1:
            number = str(setting.processes)
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            os.environ |= {"WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}
            # By a file: a port that is free now may not be so when the group takes it.
            place = {"rank": rank, "world_size": setting.processes}
            torch.distributed.init_process_group("gloo", init_method=f"file://{store}", **place)
        SCRIPTS[KINDS[setting.kind]].main([str(file)])

    return start(run_script, run.with_suffix(".log"), setting.processes)


def start(action: Callable[[int], Any], log: Path, number: int = 1) -> list[ForkProcess]:
    """Forks that run `action`, each in a process group of its own, and write to `log`."""
    log.write_text("")

    def act(rank: int) -> None:
        os.setpgid(0, 0)
        output = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        action(rank)

    processes = [FORK.Process(target=act, args=(rank,)) for rank in range(number)]
    for process in processes:
        process.start()
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(process.pid, process.pid)  # here as well: whichever comes first
    return processes


def wait(processes: list[ForkProcess]) -> int:
    """Wait for processes; 0 if all of them ended well. Like a launcher, kill the others if one did not."""
    limit = time.monotonic() + TIME_LIMIT
    while time.monotonic() < limit and not any(process.exitcode for process in processes):
        if all(process.exitcode == 0 for process in processes):
            return 0
        time.sleep(0.005)
    code = next((process.exitcode for process in processes if process.exitcode), signal.SIGALRM)
    kill(processes)
    return code


def kill(processes: list[ForkProcess]) -> None:
    """Kill processes, and the workers that they have started."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        process.join()


def last_line(run: Path) -> str:
    lines = run.with_suffix(".log").read_text(errors="replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "no output")


if __name__ == "__main__":
    main()
