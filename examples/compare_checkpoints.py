r"""
Fine-tune or probe checkpoints on a list of tasks, and show how the scores grow with pre-training, T5 beside DEPTH.

    python examples/compare_checkpoints.py --checkpoints depth=runs/depth t5=runs/t5 \
        --tasks disco_eval/SParxiv glue/rte --output_dir runs/comparison -- --dataset_dir data/{task} --max_steps 500
    python examples/compare_checkpoints.py --prediction_mode probe --checkpoints depth=runs/depth t5=runs/t5 \
        --tasks disco_eval/SParxiv --output_dir runs/probes -- --dataset_dir data/{task}

The folder of a pre-training run stands for all its checkpoints. What follows `--` is passed to
examples/fine_tune_t5.py; there and in `--config`, {benchmark} and {task} stand for those of the task. Writes
results.csv, results.md and scores.png to `--output_dir` after each run. Started again, it continues with the runs that
are missing.
"""

import csv
import glob
import hashlib
import json
import logging
import math
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.hf_argparser import HfArg

from hf_depth import TaskSpec, TaskTrainingArguments, get_task
from hf_depth.arguments import (
    FineTuningModelArguments,
    TaskArguments,
    parse_arguments,
    parse_task_arguments,
    run_script,
)
from hf_depth.errors import UserError
from hf_depth.tables import markdown_table
from hf_depth.tasks.checks import EVALUATION_MODES

logger = logging.getLogger("compare_checkpoints")


@dataclass
class CompareArguments:
    """
    The checkpoints, the tasks, and how the fine-tuning runs are started.

    Raises:
        `ValueError`: if `shard` is not `I/N` with `I` below `N`.
    """

    _argument_group_name = "comparison"

    checkpoints: list[str] = HfArg(
        help="NAME=PATH: the folder of a run (all its checkpoints), one checkpoint, or a Hub model."
    )
    tasks: list[str] = HfArg(help="BENCHMARK/TASK, such as glue/rte.")
    output_dir: str = HfArg(help="Folder of the results, with a folder for each run.")
    config: str | None = HfArg(default=None, help="Of the runs (default: the recipe of task or benchmark).")
    steps: list[int] | None = HfArg(default=None, help="Use only the checkpoints of these steps.")
    prediction_mode: str | None = HfArg(
        default=None,
        help="Of all runs (default: that of the configuration); probe: frozen embeddings, without fine-tuning.",
        metadata={"choices": list(EVALUATION_MODES)},
    )
    seeds: list[int] = HfArg(default_factory=lambda: [42], help="Fine-tune once with each seed.")
    launcher: str = HfArg(default=sys.executable, help="Starts a run, such as 'accelerate launch' (this Python).")
    shard: str = HfArg(default="0/1", help="I/N: execute only every N-th run from the I-th, for N jobs in parallel.")
    keep_models: bool = HfArg(default=False, help="Keep the fine-tuned models, not only their scores.")
    dry_run: bool = HfArg(default=False, help="Print the commands and execute nothing.")
    shard_index: int = field(init=False, repr=False)
    num_shards: int = field(init=False, repr=False)

    def __post_init__(self):
        match = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if match is None or int(match[1]) >= int(match[2]):
            raise UserError(f"`--shard` must be I/N with I below N, got {self.shard!r}.")
        self.shard_index, self.num_shards = int(match[1]), int(match[2])


ARGUMENTS = (CompareArguments,)

SCRIPT = Path(__file__).resolve().with_name("fine_tune_t5.py")
RECIPES = Path(__file__).resolve().with_name("configs") / "recipes"
FINE_TUNING_ARGUMENTS = (FineTuningModelArguments, TaskArguments, TaskTrainingArguments)
OWN_FLAGS = ("benchmark", "dataset_name", "model_name_or_path", "output_dir", "seed")  # set for each run
RECORD = "comparison.json"  # in the folder of each run: what it is and, once it has finished, its metrics
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
BASELINES = {"majority": "-.", "chance": ":", "bag_of_words": (0, (1, 4))}  # of a task, not of a model: lines across
SPREAD = "Mean and standard deviation of several seeds"  # what stands in the table as ±, in the figure as a bar
BLOCK = 2**16


@dataclass(frozen=True)
class Run:
    """The fine-tuning of one checkpoint on one task with one seed; `step` is `None` if it is not known."""

    model: str
    checkpoint: str
    step: int | None
    spec: TaskSpec
    seed: int
    folder: Path
    arguments: tuple[str, ...]  # of the fine-tuning script; the first is a configuration file
    files: Mapping[str, str] = field(hash=False)  # what tells weights and data from others by the same names

    def __str__(self) -> str:
        model = self.model if self.step is None else f"{self.model} at step {self.step}"
        return f"{model} on {self.spec.full_name}, seed {self.seed}"

    def described(self) -> dict[str, Any]:
        config = Path(self.arguments[0]).read_text(encoding="utf-8")
        task = {"task_version": self.spec.version}
        return {"arguments": list(self.arguments), "config": config, "files": dict(self.files)} | task

    def metrics(self) -> dict[str, float] | None:
        """What it left in all_results.json; `None` if it has not finished."""
        record = self.folder / RECORD
        saved = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {"run": None, "results": None}
        changed = [name for name, value in self.described().items() if (saved["run"] or {}).get(name) != value]
        if changed and (saved["results"] is not None or any(self.folder.glob("checkpoint-*"))):
            raise UserError(
                f"{self.folder} holds a run with other {' and '.join(changed)}. Choose another `--output_dir`, or "
                "delete that folder."
            )
        return None if changed else saved["results"]

    def record(self, metrics: Mapping[str, float] | None) -> None:
        """Write the record, which is there as a whole whenever the process ends."""
        aside = self.folder / f"_{RECORD}"
        aside.write_text(json.dumps({"run": self.described(), "results": metrics}, indent=2), encoding="utf-8")
        os.replace(aside, self.folder / RECORD)


@dataclass(frozen=True)
class Result:
    """A row of results.csv. What begins at `majority` is `None` where it is not known."""

    model: str
    checkpoint: str
    step: int | None
    task: str
    split: str
    metric: str
    seed: int
    score: float
    folder: str
    majority: float | None = None
    chance: float | None = None
    bag_of_words: float | None = None
    random_weights: float | None = None
    unparsed_fraction: float | None = None


# ---- Plan -----------------------------------------------------------------------------------------------------------


def find_checkpoints(entry: str, steps: Sequence[int] | None = None) -> list[tuple[str, str, int | None]]:
    """The name, path and step of each checkpoint that an entry NAME=PATH stands for, by their steps."""
    name, equals, path = entry.partition("=")
    if not (name and equals and path) or "/" in name:
        raise UserError(f"`--checkpoints` takes NAME=PATH, such as depth=runs/depth, got {entry!r}.")
    folder = Path(path)
    if not folder.is_dir():
        try:
            AutoConfig.from_pretrained(path)
        except (OSError, ValueError) as error:
            raise UserError(f"`--checkpoints {entry}`: {path} is neither a folder nor a model of the Hub.") from error
        return [(name, path, None)]
    found: dict[int | None, str] = {}
    for candidate in [*folder.glob("checkpoint-*"), folder]:
        if (candidate / "config.json").is_file():
            found.setdefault(steps_of(candidate), str(candidate))  # the last one is also in the folder of the run
    if None in found and describe(found[None], WEIGHTS) in [describe(found[step], WEIGHTS) for step in found if step]:
        del found[None]  # as `save_model()` leaves the last checkpoint
    if not found:
        raise UserError(f"`--checkpoints {entry}`: neither {path} nor a checkpoint-N in it has a config.json.")
    if steps is not None and set(found) - {None}:
        missing = sorted(set(steps) - set(found))
        if missing:
            there = ", ".join(str(step) for step in sorted(set(found) - {None}))
            raise UserError(f"`--steps {missing[0]}`: {path} has no such checkpoint, but {there}.")
        found = {step: found[step] for step in found if step in steps}
    return sorted(((name, path, step) for step, path in found.items()), key=by_step)


def by_step(checkpoint: tuple[str, str, int | None]) -> tuple[bool, int]:
    return checkpoint[2] is None, checkpoint[2] or 0


def steps_of(folder: Path) -> int | None:
    state = folder / "trainer_state.json"
    if state.is_file():
        return json.loads(state.read_text(encoding="utf-8"))["global_step"]
    number = folder.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() and number != folder.name else None


def describe(pattern: str, names: Sequence[str] = ("**/*",)) -> str:
    """Sizes and samples of the files that a path or pattern stands for; empty if there are none, as on the Hub."""
    digest, files = hashlib.sha256(), []
    for path in map(Path, sorted(glob.glob(pattern))):
        inside = [file for name in names for file in path.glob(name) if path.is_dir()]
        hidden = [file for file in inside if any(part.startswith(".") for part in file.relative_to(path).parts)]
        files += sorted(set(inside) - set(hidden)) if path.is_dir() else [path]
    files = [file for file in files if file.is_file()]
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as content:
            for start in range(0, size, max(BLOCK, size // 32)):
                content.seek(start)
                digest.update(content.read(BLOCK))
    return digest.hexdigest()[:12] if files else ""


def plan(arguments: CompareArguments, flags: Sequence[str]) -> list[Run]:
    """
    A run for each checkpoint, task and seed, in the order of the steps of pre-training, so that the first results
    compare all models. All arguments of all runs are checked here.
    """
    for flag in flags:
        if flag.startswith("--") and flag.partition("=")[0].lstrip("-").replace("-", "_") in OWN_FLAGS:
            raise UserError(f"`{flag.partition('=')[0]}` is set for each run: leave it out behind `--`.")
    checkpoints = [found for entry in arguments.checkpoints for found in find_checkpoints(entry, arguments.steps)]
    places = [(name, step) for name, _, step in checkpoints]
    for name, path, step in checkpoints:
        if places.count((name, step)) > 1:
            raise UserError(
                f"`--checkpoints`: {path} is not the only one of step {step} of {name!r}: give them different names."
            )
    checkpoints.sort(key=by_step)
    tasks = [read_task(name, arguments.config, flags, checkpoints[0][1]) for name in arguments.tasks]
    check_own_files(tasks)
    data = [described_data(task_args) for _, _, task_args in tasks]
    weights = {path: {path: describe(path, WEIGHTS)} for _, path, _ in checkpoints}
    runs = []
    for name, path, step in checkpoints:
        for (spec, given, _), files in zip(tasks, data, strict=True):
            for seed in arguments.seeds:
                model = "model" if step is None else f"step-{step}"
                folder = Path(arguments.output_dir, name, model, spec.benchmark, spec.name, f"seed-{seed}")
                values = (spec.benchmark, spec.name, path, str(folder), str(seed))
                own = [part for flag, value in zip(OWN_FLAGS, values, strict=True) for part in (f"--{flag}", value)]
                runs.append(Run(name, path, step, spec, seed, folder, (*given, *own), weights[path] | files))
    return runs


def read_task(
    name: str, config: str | None, flags: Sequence[str], checkpoint: str
) -> tuple[TaskSpec, list[str], TaskArguments]:
    """A task, the arguments of its runs but for those of each run, and its data; exits if they are wrong."""
    benchmark, slash, task = name.partition("/")
    if not (benchmark and slash and task):
        raise UserError(f"`--tasks` takes BENCHMARK/TASK, such as glue/rte, got {name!r}.")
    given = [text.replace("{benchmark}", benchmark).replace("{task}", task) for text in (config or "", *flags)]
    given[0] = given[0] or find_recipe(benchmark, task, flags)
    own = ["--benchmark", benchmark, "--dataset_name", task, "--model_name_or_path", checkpoint]
    _, task_args, training_args, (spec,) = parse_task_arguments(
        FINE_TUNING_ARGUMENTS, [*given, *own, "--output_dir", "unused"]
    )
    if not training_args.do_eval:
        raise UserError(f"{given[0]}: without `do_eval: true` there is no score to compare.")
    if not spec.validation_splits and not training_args.do_predict:
        raise UserError(
            f"`--tasks {name}`: there is no score to compare: the task has no validation data. Give labeled data by "
            "`--test_file`, with `--do_predict true`."
        )
    return spec, given, task_args


def find_recipe(benchmark: str, task: str, flags: Sequence[str]) -> str:
    """The recipe of a task or, if it has none, of its benchmark."""
    for name in (task, benchmark):
        if (RECIPES / f"{name}.yaml").is_file():
            return str(RECIPES / f"{name}.yaml")
    if "--task_file" not in flags:
        get_task(task, benchmark)  # an error that says which names are near
    raise UserError(f"There is no recipe for {benchmark}/{task} in {RECIPES}: give a `--config`.")


def check_own_files(tasks: Sequence[tuple[TaskSpec, Any, TaskArguments]]) -> None:
    """Stop where `{task}` was left out of the name of a file, so that tasks would have the examples of each other."""
    for name in ("train_file", "validation_file", "test_file"):
        readers: dict[Any, str] = {}
        for spec, _, task_args in tasks:
            file = getattr(task_args, name)
            if file and spec.loader != "discourse":  # which makes examples of several tasks from the same documents
                key = str(file), spec.label_column_name
                if readers.setdefault(key, spec.full_name) != spec.full_name:
                    raise UserError(
                        f"`--{name}`: {readers[key]} and {spec.full_name} would both have the examples of {key[0]}. "
                        "Give each its own by {task} in the name."
                    )


def described_data(task_args: TaskArguments) -> dict[str, str]:
    """What tells the files that the arguments name from others by the same names."""
    values = [value if isinstance(value, list) else [value] for value in vars(task_args).values()]
    texts = [text for texts in values for text in texts if isinstance(text, str)]
    return {text: described for text in texts if (described := describe(text))}


# ---- Execution ------------------------------------------------------------------------------------------------------


def execute(run: Run, arguments: CompareArguments) -> bool:
    """Fine-tune and evaluate in a process of its own, whose output goes to log.txt; whether it succeeded."""
    run.folder.mkdir(parents=True, exist_ok=True)
    results, log = run.folder / "all_results.json", run.folder / "log.txt"
    results.unlink(missing_ok=True)  # the metrics of a run are added to those that are there
    run.record(None)
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(command(run, arguments), stdout=file, stderr=subprocess.STDOUT).returncode
    if code:
        end = "".join(f"  {line}\n" for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-10:])
        logger.error(f"{run}: ended with code {code}. The end of {log}:\n{end}")
        return False
    run.record(json.loads(results.read_text(encoding="utf-8")))
    for folder in run.folder.glob("checkpoint-*"):  # of use only for resuming this run
        shutil.rmtree(folder)
    for path in () if arguments.keep_models else run.folder.glob("*.safetensors"):
        path.unlink()
    return True


def command(run: Run, arguments: CompareArguments) -> list[str]:
    return [*shlex.split(arguments.launcher), str(SCRIPT), *run.arguments]


def collect(runs: Iterable[Run], output_dir: str) -> list[Result]:
    """The results of all runs that have finished, also in other jobs, and the files made of them."""
    results = []
    for run in runs:
        metrics = run.metrics()
        if metrics is not None:
            try:
                results.append(read_result(run, metrics))
            except ValueError as error:  # must not keep the others from being run and reported
                logger.error(f"{error} It is left out.")
    results += random_weights(results)
    if results:
        with Path(output_dir, "results.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([entry.name for entry in fields(Result)])
            writer.writerows(astuple(result) for result in results)
        Path(output_dir, "results.md").write_text(markdown(results), encoding="utf-8")
        score_figure(results).savefig(Path(output_dir, "scores.png"), dpi=150)
    return results


def read_result(run: Run, metrics: Mapping[str, float]) -> Result:
    """The task's `metric_to_optimize` on its first test data if they are labeled, else on its validation data."""
    metric = run.spec.metric_to_optimize
    kinds = (("predict", "test", run.spec.test_splits), ("eval", "validation", run.spec.validation_splits))
    for start, kind, splits in kinds:
        # Without such a split, a score by that name is of the task that this one is trained on.
        for split in ("", *splits[:1]) if splits else ():
            prefix = f"{start}_{split}_" if split else f"{start}_"
            if prefix + metric in metrics:
                others = ("majority", "chance", "bag_of_words", "random_weights")
                found = {name: metrics.get(f"{prefix}{name}_{metric}") for name in others}
                return Result(
                    *(run.model, run.checkpoint, run.step, run.spec.full_name, split or kind, metric, run.seed),
                    score=metrics[prefix + metric],
                    folder=str(run.folder),
                    unparsed_fraction=metrics.get(f"{prefix}unparsed_fraction"),
                    **found,
                )
    raise UserError(
        f"{run}: no {metric} in {run.folder / 'all_results.json'}, which has {', '.join(sorted(metrics))}. The "
        "configuration needs `do_eval: true`, and the task labeled data."
    )


def random_weights(results: Sequence[Result]) -> list[Result]:
    """Step 0 of each model, task and seed that was probed, the same for all checkpoints, unless there is a step 0."""
    known = {(result.model, result.task, result.seed) for result in results if result.step == 0}
    added = {}
    for result in results:
        key = (result.model, result.task, result.seed)
        if result.random_weights is not None and key not in known:
            changes = {"checkpoint": "random weights", "step": 0, "score": result.random_weights}
            added.setdefault(key, replace(result, **changes))
    return list(added.values())


# ---- Table and figure -----------------------------------------------------------------------------------------------


def grouped(results: Iterable[Result]) -> dict[str, dict[str, dict[int | None, list[float]]]]:
    """The scores of all seeds by task, model and step."""
    groups: dict[str, dict[str, dict[int | None, list[float]]]] = {}
    for result in results:
        steps = groups.setdefault(result.task, {}).setdefault(result.model, {})
        steps.setdefault(result.step, []).append(result.score)
    return groups


def spread(scores: Sequence[float]) -> float:
    """The standard deviation over seeds, 0 for a single one; NaN if a score is not finite."""
    if not all(map(math.isfinite, scores)):
        return math.nan
    return statistics.stdev(scores) if len(scores) > 1 else 0.0


def shown(scores: Sequence[float]) -> str:
    deviation = f" ± {spread(scores):.4f}" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.4f}{deviation}" if scores else ""


def baseline(results: Sequence[Result], task: str, name: str) -> list[float]:
    """A baseline of a task with each seed; once if it is the same with all of them, none if it is not known."""
    by_seed = {result.seed: getattr(result, name) for result in reversed(results) if result.task == task}
    values = [value for value in by_seed.values() if value is not None]
    return values if len(set(values)) > 1 else values[:1]


def markdown(results: Sequence[Result]) -> str:
    """A Markdown table with a row for each number of steps and a column for each task and model."""
    groups = grouped(results)
    models = dict.fromkeys(result.model for result in results)
    columns = [(task, model) for task in groups for model in models]
    table = [["steps", *(f"{task}<br>{model}" for task, model in columns)]]
    for step in sorted({result.step for result in results}, key=lambda step: (step is None, step)):
        cells = [shown(groups[task].get(model, {}).get(step, ())) for task, model in columns]
        table.append(["" if step is None else f"{step:,}", *cells])
    for name in BASELINES:
        cells = [shown(baseline(results, task, name)) for task, _ in columns]
        table += [[name.replace("_", " "), *cells]] if any(cells) else []
    kinds = dict.fromkeys(f"- {result.task}: {result.metric} on {result.split}" for result in results)
    is_probe = any(result.random_weights is not None for result in results)
    kind = "Scores of probes, step 0 with random weights," if is_probe else "Scores after fine-tuning,"
    notes = [f"- {SPREAD}."] if len({result.seed for result in results}) > 1 else []
    head = f"{kind} by steps of pre-training."
    return "\n".join([head, "", markdown_table(table, num_text_columns=0), "", *kinds, *notes, ""])


def score_figure(results: Sequence[Result]) -> Any:
    """
    A panel for each task with the score over the steps of pre-training: a line for each model, with bars of one
    standard deviation to both sides. A model at step 0 or with an unknown step is a horizontal dashed line.
    """
    from matplotlib.figure import Figure

    groups = grouped(results)
    models = list(dict.fromkeys(result.model for result in results))
    width = min(3, len(groups))
    height = -(-len(groups) // width)
    figure = Figure(figsize=(4.2 * width, 3.4 * height + 0.4), layout="constrained")
    panels = list(figure.subplots(height, width, squeeze=False).flat)
    handles = {}
    for panel, (task, by_model) in zip(panels, groups.items(), strict=False):
        for model, scores in by_model.items():
            plot_model(panel, scores, color=f"C{models.index(model)}", label=model)
        for name, linestyle in BASELINES.items():
            values = baseline(results, task, name)
            if values:
                plot_across(panel, values, color="grey", linestyle=linestyle, label=name.replace("_", " "))
        first = next(result for result in results if result.task == task)
        panel.set(title=task, xlabel="steps of pre-training", ylabel=f"{first.metric} ({first.split})")
        format_steps(panel, sorted({result.step for result in results if result.step}))
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    for panel in panels[len(groups) :]:
        panel.remove()
    notes = [SPREAD] if len({result.seed for result in results}) > 1 else []
    notes += ["Dashed: step 0, or an unknown step"] if any(not result.step for result in results) else []
    if notes:
        figure.suptitle("\n".join(notes), fontsize="small")
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=min(len(handles), 3 * width))
    return figure


def plot_model(panel: Any, scores: Mapping[int | None, Sequence[float]], **style: Any) -> None:
    steps = sorted(step for step in scores if step)
    if steps:
        means, bars = ([function(scores[step]) for step in steps] for function in (statistics.fmean, spread))
        panel.errorbar(steps, means, yerr=bars, marker="o", capsize=3, **style)
    for step in {0, None} & set(scores):  # a logarithmic axis has no place for them
        plot_across(panel, scores[step], linestyle="--", **style)


def plot_across(panel: Any, scores: Sequence[float], **style: Any) -> None:
    mean, deviation = statistics.fmean(scores), spread(scores)
    panel.axhline(mean, **style)
    panel.axhspan(mean - deviation, mean + deviation, color=style["color"], alpha=0.15, linewidth=0)


def format_steps(panel: Any, steps: Sequence[int]) -> None:
    from matplotlib.ticker import EngFormatter, NullLocator

    panel.set_xscale("log")
    panel.set_xticks(steps[:: -(-len(steps) // 8) or 1])  # at most 8, which fit beside each other
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))  # 256k
    panel.xaxis.set_minor_locator(NullLocator())
    panel.grid(alpha=0.3)


def main(args: Sequence[str] | None = None) -> list:
    # ---- Arguments ----
    args = list(sys.argv[1:] if args is None else args)
    end = args.index("--") if "--" in args else len(args)
    (arguments,) = parse_arguments(ARGUMENTS, args[:end], description=__doc__)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)

    # ---- Plan ----
    flags = args[end + 1 :]
    if arguments.prediction_mode is not None:
        flags += ["--prediction_mode", arguments.prediction_mode]
    runs = plan(arguments, flags)
    pending = [run for run in runs[arguments.shard_index :: arguments.num_shards] if run.metrics() is None]
    if arguments.dry_run:
        for run in pending:
            print(shlex.join(command(run, arguments)))
        return []

    # ---- Fine-tuning and results ----
    failed = 0
    for number, run in enumerate(pending, 1):
        logger.info(f"[{number}/{len(pending)}] {run}")
        failed += not execute(run, arguments)
        collect(runs, arguments.output_dir)
    results = collect(runs, arguments.output_dir)
    print("\n" + markdown(results))
    if failed:
        raise SystemExit(f"{failed} of {len(pending)} runs failed; started again, they are tried once more.")
    return results


if __name__ == "__main__":
    run_script(main)
