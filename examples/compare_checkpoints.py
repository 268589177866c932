"""
Fine-tune a list of checkpoints on a list of tasks, and show how the scores grow with pre-training, T5 beside DEPTH.

    python examples/compare_checkpoints.py --checkpoints depth=runs/depth t5=runs/t5 \
        --tasks disco_eval/SParxiv glue/rte --output_dir runs/comparison -- --dataset_dir data/{task} --max_steps 500

A folder of a run stands for all its checkpoints. What follows `--` goes to examples/fine_tune_t5.py; there and in
`--config`, {benchmark} and {task} stand for those of the task. Writes results.csv, results.md and scores.png to
`--output_dir` after each run. Started again, it goes on where it stopped.
"""

import csv
import json
import logging
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

from transformers import AutoConfig

from hf_depth.arguments.model_args import FineTuningModelArguments
from hf_depth.arguments.parser import parse_arguments
from hf_depth.arguments.task_args import TaskArguments
from hf_depth.tasks.registry import get_task, load_task_file
from hf_depth.tasks.spec import TaskSpec
from hf_depth.training.training_args import TaskTrainingArguments

logger = logging.getLogger(__name__)

SCRIPT = Path(__file__).resolve().with_name("fine_tune_t5.py")
SCRIPT_ARGUMENTS = (FineTuningModelArguments, TaskArguments, TaskTrainingArguments)
RECIPES = Path(__file__).resolve().with_name("configs") / "recipes"
RECORD = "comparison.json"  # in the folder of each run: what was run and, once it has ended, what came out
OURS = ("benchmark", "dataset_name", "model_name_or_path", "output_dir", "seed")


@dataclass
class CompareArguments:
    """Which checkpoints, on which tasks."""

    checkpoints: list[str] = field(
        metadata={"help": "NAME=PATH: a run's folder (all its checkpoints), one checkpoint, or a model of the Hub."}
    )
    tasks: list[str] = field(metadata={"help": "BENCHMARK/TASK, such as glue/rte."})
    output_dir: str = field(metadata={"help": "Folder of the results, and of a folder for each run."})
    config: str | None = field(
        default=None,
        metadata={
            "help": "Configuration of the runs. Default: recipes/{task}.yaml or {benchmark}.yaml beside this file."
        },
    )
    steps: list[int] | None = field(
        default=None, metadata={"help": "Of the folders of runs, only the checkpoints of these steps."}
    )
    seeds: list[int] = field(default_factory=lambda: [42], metadata={"help": "Fine-tune once with each."})
    launcher: str = field(
        default=sys.executable, metadata={"help": "What starts a run, such as 'accelerate launch --num_processes 4'."}
    )
    shard: str = field(
        default="0/1", metadata={"help": "I/N: of the runs, only every N-th from the I-th, for N jobs at a time."}
    )
    keep_models: bool = field(default=False, metadata={"help": "Keep the fine-tuned models, not only their scores."})
    dry_run: bool = field(default=False, metadata={"help": "Print the commands, and run nothing."})

    def __post_init__(self):
        match = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if match is None or int(match[1]) >= int(match[2]):
            raise ValueError(f"`--shard` must be I/N with I below N, got {self.shard!r}.")
        self.shard_index, self.num_shards = int(match[1]), int(match[2])


@dataclass(frozen=True)
class Checkpoint:
    """A model, the line of the plot that it belongs to, and how long it was pre-trained (`None` if nobody knows)."""

    series: str
    path: str
    step: int | None


@dataclass(frozen=True)
class Run:
    """One checkpoint, fine-tuned on one task with one seed, in a folder of its own."""

    checkpoint: Checkpoint
    spec: TaskSpec
    seed: int
    folder: Path
    arguments: tuple[str, ...]

    def __str__(self):
        checkpoint, step = self.checkpoint, self.checkpoint.step
        at = checkpoint.series if step is None else f"{checkpoint.series} at step {step}"
        return f"{at} on {task_name(self.spec)}, seed {self.seed}"


@dataclass(frozen=True)
class Result:
    """A row of results.csv."""

    model: str
    checkpoint: str
    step: int | None
    task: str
    split: str
    metric: str
    seed: int
    score: float
    majority: float | None
    chance: float | None
    unparsed_fraction: float | None
    folder: str


# ---- What to run ----------------------------------------------------------------------------------------------------


def find_checkpoints(entry: str, steps: Sequence[int] | None = None) -> list[Checkpoint]:
    """
    The checkpoints that `NAME=PATH` stands for, in the order of their steps.

    Raises:
        `ValueError`: if there are none, or the entry has no name.
    """
    series, equals, path = entry.partition("=")
    if not (series and equals and path) or "/" in series:
        raise ValueError(f"`--checkpoints` takes NAME=PATH, such as depth=runs/depth, got {entry!r}.")
    folder = Path(path)
    if not folder.is_dir():
        try:
            AutoConfig.from_pretrained(path)
        except (OSError, ValueError) as error:
            raise ValueError(f"`--checkpoints {entry}`: {path} is neither a folder nor a model of the Hub.") from error
        return [Checkpoint(series, path, None)]
    found = {}
    for candidate in [*folder.glob("checkpoint-*"), folder]:
        if (candidate / "config.json").is_file():
            # The model in the folder of the run itself is often that of the last checkpoint: it does not count twice.
            found.setdefault(_step(candidate), Checkpoint(series, str(candidate), _step(candidate)))
    if not found:
        raise ValueError(
            f"`--checkpoints {entry}`: neither {path} nor a checkpoint-N in it has a config.json. Pre-train with "
            "`--save_steps` to keep checkpoints."
        )
    if steps is not None and set(found) - {None}:
        missing = sorted(set(steps) - set(found))
        if missing:
            there = ", ".join(str(step) for step in sorted(set(found) - {None}))
            raise ValueError(f"`--steps {missing[0]}`: {path} has no such checkpoint, but {there}.")
        found = {step: checkpoint for step, checkpoint in found.items() if step in steps}
    return sorted(found.values(), key=lambda checkpoint: (checkpoint.step is None, checkpoint.step))


def _step(folder: Path) -> int | None:
    """How many steps a model was trained for."""
    state = folder / "trainer_state.json"
    if state.is_file():
        return json.loads(state.read_text(encoding="utf-8"))["global_step"]
    number = folder.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() and number != folder.name else None


def plan(arguments: CompareArguments, flags: Sequence[str]) -> list[Run]:
    """All runs, the longest pre-trained checkpoints last, with arguments that the script takes."""
    for flag in flags:
        name = flag.partition("=")[0].lstrip("-").replace("-", "_")
        if flag.startswith("--") and name in OURS:
            raise ValueError(f"`--{name}` is set for each run: leave it out behind `--`.")
    checkpoints = [found for entry in arguments.checkpoints for found in find_checkpoints(entry, arguments.steps)]
    for checkpoint in checkpoints:
        same = [other for other in checkpoints if (other.series, other.step) == (checkpoint.series, checkpoint.step)]
        if len(same) > 1:
            raise ValueError(
                f"{same[0].path} and {same[1].path} are both step {checkpoint.step} of {checkpoint.series!r}: give "
                "them different names in `--checkpoints`."
            )
    checkpoints.sort(key=lambda checkpoint: (checkpoint.step is None, checkpoint.step or 0))
    tasks = [read_task(name, arguments.config, flags, checkpoints[0]) for name in arguments.tasks]
    runs = []
    for checkpoint in checkpoints:
        for spec, given in tasks:
            for seed in arguments.seeds:
                place = checkpoint.series, "model" if checkpoint.step is None else f"step-{checkpoint.step}"
                folder = Path(arguments.output_dir, *place, spec.benchmark, spec.name, f"seed-{seed}")
                values = (spec.benchmark, spec.name, checkpoint.path, str(folder), str(seed))
                ours = [part for pair in zip(OURS, values, strict=True) for part in (f"--{pair[0]}", pair[1])]
                runs.append(Run(checkpoint, spec, seed, folder, (*given, *ours)))
    return runs


def read_task(name, config, flags, checkpoint) -> tuple[TaskSpec, list[str]]:
    """A task, and the arguments of its runs but for `OURS`; stops on arguments that the script does not take."""
    benchmark, slash, task = name.partition("/")
    if not (benchmark and slash and task):
        raise ValueError(f"`--tasks` takes BENCHMARK/TASK, such as glue/rte, got {name!r}.")

    def fill(text):
        return text.replace("{benchmark}", benchmark).replace("{task}", task)

    given = [fill(flag) for flag in flags]
    config = recipe(benchmark, task) if config is None else fill(config)
    given = [config, *given]
    ours = ["--benchmark", benchmark, "--dataset_name", task, "--model_name_or_path", checkpoint.path]
    _, task_args, training_args = parse_arguments(SCRIPT_ARGUMENTS, [*given, *ours, "--output_dir", "unused"])
    if not training_args.do_eval:
        raise ValueError(f"{config}: without `do_eval: true` there is no score to compare.")
    for path in task_args.task_file or ():
        load_task_file(path)
    return get_task(task, benchmark), given


def recipe(benchmark: str, task: str) -> str:
    """The recipe of a task or, if it has none, of its benchmark."""
    for name in (task, benchmark):
        if (RECIPES / f"{name}.yaml").is_file():
            return str(RECIPES / f"{name}.yaml")
    try:
        get_task(task, benchmark)
        hint = ""
    except ValueError as error:  # names near matches
        hint = f" {error}"
    raise ValueError(f"There is no recipe for {benchmark}/{task} in {RECIPES}: give a `--config`.{hint}")


# ---- Running --------------------------------------------------------------------------------------------------------


def results_of(run: Run) -> Mapping[str, float] | None:
    """
    What a run has left, `None` if it has not been run to its end.

    Raises:
        `ValueError`: if its folder holds results or checkpoints of a run with other arguments: such scores would not
            compare, and such training would be gone on with.
    """
    record = run.folder / RECORD
    if not record.is_file():
        return None
    saved = json.loads(record.read_text(encoding="utf-8"))
    is_other = saved["run"] != _description(run)
    if is_other and (saved["results"] is not None or any(run.folder.glob("checkpoint-*"))):
        raise ValueError(
            f"{run.folder} holds a run with other arguments: {shlex.join(saved['run']['arguments'])}. Choose another "
            "`--output_dir`, or delete that folder."
        )
    return None if is_other else saved["results"]


def _description(run: Run) -> dict:
    return {"arguments": list(run.arguments), "config": Path(run.arguments[0]).read_text(encoding="utf-8")}


def execute(run: Run, launcher: Sequence[str], keep_models: bool = False) -> bool:
    """Fine-tune and evaluate in a process of its own, and keep what came out; whether it ended well."""
    run.folder.mkdir(parents=True, exist_ok=True)
    record = run.folder / RECORD
    record.write_text(json.dumps({"run": _description(run), "results": None}, indent=2), encoding="utf-8")
    log = run.folder / "log.txt"
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(
            [*launcher, str(SCRIPT), *run.arguments], stdout=file, stderr=subprocess.STDOUT
        ).returncode
    if code:
        end = "".join(f"  {line}\n" for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-10:])
        logger.error(f"{run}: ended with code {code}. The end of {log}:\n{end}")
        return False
    results = json.loads((run.folder / "all_results.json").read_text(encoding="utf-8"))
    record.write_text(json.dumps({"run": _description(run), "results": results}, indent=2), encoding="utf-8")
    for folder in run.folder.glob("checkpoint-*"):  # were there for going on with this run
        shutil.rmtree(folder)
    if not keep_models:
        for path in run.folder.glob("*.safetensors"):
            path.unlink()
    return True


# ---- Showing --------------------------------------------------------------------------------------------------------


def read_result(run: Run, results: Mapping[str, float]) -> Result:
    """
    The score of a run by its task's `metric_to_optimize`: of the test data if they have labels, else of the validation
    data; of a task's first split.
    """
    metric = run.spec.metric_to_optimize
    for start, kind, splits in (
        ("predict", "test", run.spec.test_splits),
        ("eval", "validation", run.spec.validation_splits),
    ):
        for split in ("", *splits[:1]):
            prefix = f"{start}_{split}_" if split else f"{start}_"
            if prefix + metric in results:
                values = [results.get(prefix + key) for key in (f"majority_{metric}", f"chance_{metric}")]
                values.append(results.get(f"{prefix}unparsed_fraction"))
                model = (run.checkpoint.series, run.checkpoint.path, run.checkpoint.step)
                where = (task_name(run.spec), split or kind, metric, run.seed)
                return Result(*model, *where, results[prefix + metric], *values, str(run.folder))
    raise ValueError(
        f"{run}: no {metric} in {run.folder / 'all_results.json'}, which has {', '.join(sorted(results))}. The "
        "configuration needs `do_eval: true`."
    )


def task_name(spec: TaskSpec) -> str:
    return f"{spec.benchmark}/{spec.name}"


def report(results: Sequence[Result], folder: Path) -> None:
    """Write results.csv, results.md and scores.png."""
    with (folder / "results.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([entry.name for entry in fields(Result)])
        writer.writerows(astuple(result) for result in results)
    (folder / "results.md").write_text(markdown(results), encoding="utf-8")
    score_figure(results).savefig(folder / "scores.png", dpi=150)


def grouped(results: Iterable[Result]) -> dict[str, dict[str, dict[int | None, list[Result]]]]:
    """Task -> model -> step -> its results, one per seed."""
    groups = {}
    for result in results:
        groups.setdefault(result.task, {}).setdefault(result.model, {}).setdefault(result.step, []).append(result)
    return groups


def markdown(results: Sequence[Result]) -> str:
    """A table with a row for each number of steps, and a column for each task and model, T5 beside DEPTH."""
    groups = grouped(results)
    models = dict.fromkeys(result.model for result in results)
    columns = [(task, model) for task in groups for model in models]
    table = [["steps", *(f"{task}<br>{model}" for task, model in columns)], ["---:"] * (1 + len(columns))]
    for step in sorted({result.step for result in results}, key=lambda step: (step is None, step)):
        cells = [_cell(groups[task].get(model, {}).get(step, ())) for task, model in columns]
        table.append(["" if step is None else f"{step:,}", *cells])
    firsts = {task: next(result for result in results if result.task == task) for task in groups}
    for name in ("majority", "chance"):
        values = [getattr(firsts[task], name) for task, _ in columns]
        if set(values) != {None}:
            table.append([name, *("" if value is None else f"{value:.4f}" for value in values)])
    lines = [f"| {' | '.join(row)} |" for row in table]
    lines += ["", *(f"- {task}: {first.metric} on {first.split}" for task, first in firsts.items())]
    if len({result.seed for result in results}) > 1:
        lines.append("- Mean and standard deviation of several seeds.")
    return "\n".join(["Scores after fine-tuning, by steps of pre-training.", "", *lines, ""])


def _cell(results: Sequence[Result]) -> str:
    scores = [result.score for result in results]
    if not scores:
        return ""
    spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.4f}{spread}"


def score_figure(results: Sequence[Result]):
    """
    A panel for each task: the score over the steps of pre-training (log axis), a line for each model, bars from the
    worst to the best seed. Step 0, and a model whose steps are not known, is a dashed line across.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, NullLocator

    groups = grouped(results)
    steps = sorted({result.step for result in results if result.step})
    colors = {model: f"C{index}" for index, model in enumerate(dict.fromkeys(result.model for result in results))}
    width = min(3, len(groups))
    height = -(-len(groups) // width)
    figure = Figure(figsize=(4.2 * width, 3.4 * height + 0.4), layout="constrained")
    panels = list(figure.subplots(height, width, squeeze=False).flat)
    handles = {}
    for panel, (task, models) in zip(panels, groups.items(), strict=False):
        for model, results_by_step in models.items():
            _plot_model(panel, results_by_step, color=colors[model], label=model)
        first = next(result for result in results if result.task == task)
        for name, linestyle in (("majority", "-."), ("chance", ":")):
            if getattr(first, name) is not None:
                panel.axhline(getattr(first, name), color="grey", linestyle=linestyle, label=name)
        panel.set(xscale="log", title=task, xlabel="steps of pre-training", ylabel=f"{first.metric} ({first.split})")
        panel.set_xticks(steps[:: -(-len(steps) // 8) or 1])  # as many as there is room for
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))  # 256k
        panel.xaxis.set_minor_locator(NullLocator())
        panel.grid(alpha=0.3)
        handles |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    for panel in panels[len(groups) :]:
        panel.remove()
    labels = [label for label in (*colors, "majority", "chance") if label in handles]
    figure.legend([handles[label] for label in labels], labels, loc="outside lower center", ncols=len(labels))
    return figure


def _plot_model(panel, results_by_step: Mapping[int | None, Sequence[Result]], **style) -> None:
    scores = {step: [result.score for result in results] for step, results in results_by_step.items()}
    steps = sorted(step for step in scores if step)
    if steps:
        means = [statistics.fmean(scores[step]) for step in steps]
        below = [mean - min(scores[step]) for step, mean in zip(steps, means, strict=True)]
        above = [max(scores[step]) - mean for step, mean in zip(steps, means, strict=True)]
        panel.errorbar(steps, means, yerr=[below, above], marker="o", capsize=3, **style)
    for step in (0, None):  # have no place on a log axis
        if step in scores:
            panel.axhline(statistics.fmean(scores[step]), linestyle="--", **style)


def main(args: Sequence[str] | None = None) -> list[Result]:
    args = list(sys.argv[1:] if args is None else args)
    end = args.index("--") if "--" in args else len(args)
    (arguments,) = parse_arguments([CompareArguments], args[:end], description=__doc__)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    runs, launcher = plan(arguments, args[end + 1 :]), shlex.split(arguments.launcher)
    mine = [run for run in runs[arguments.shard_index :: arguments.num_shards] if results_of(run) is None]
    if arguments.dry_run:
        for run in mine:
            print(shlex.join([*launcher, str(SCRIPT), *run.arguments]))
        return []
    results, failed = collect(runs, arguments.output_dir), []
    for number, run in enumerate(mine, 1):
        start = time.monotonic()
        logger.info(f"[{number}/{len(mine)}] {run}")
        if execute(run, launcher, arguments.keep_models):
            results = collect(runs, arguments.output_dir)
            (result,) = (result for result in results if result.folder == str(run.folder))
            logger.info(f"{result.metric} {result.score:.4f} after {time.monotonic() - start:.0f} s")
        else:
            failed.append(run)
    print("\n" + markdown(results))
    if failed:
        raise SystemExit(f"{len(failed)} of {len(mine)} runs failed; started again, they are tried once more.")
    return results


def collect(runs: Sequence[Run], output_dir: str) -> list[Result]:
    """The results of all runs that are finished, also by other jobs, written to the files of `output_dir`."""
    found = [(run, results_of(run)) for run in runs]
    results = [read_result(run, results) for run, results in found if results is not None]
    if results:
        report(results, Path(output_dir))
    return results


if __name__ == "__main__":
    main()
