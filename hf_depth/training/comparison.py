"""Fine-tuning of several checkpoints on several tasks: finding them, planning and executing the runs, collecting."""

import hashlib
import json
import logging
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from ..arguments.compare_args import CompareArguments
from ..arguments.model_args import FineTuningModelArguments
from ..arguments.parser import parse_arguments
from ..arguments.task_args import TaskArguments
from ..data.files import FILE_ARGUMENTS, describe_all_files
from ..evaluation.comparison import (
    Checkpoint,
    ComparisonRun,
    Result,
    random_weight_results,
    read_result,
    report,
)
from ..manifests import replace_text
from ..tasks.registry import get_task, load_task_file
from ..tasks.sources import TaskFiles
from ..tasks.spec import TaskSpec
from ..tasks.splits import TaskSplits, check_own_files
from .checkpoints import describe_weights
from .saving import ALL_RESULTS_FILE
from .training_args import TaskTrainingArguments

logger = logging.getLogger(__name__)

FINE_TUNING_ARGUMENTS = (FineTuningModelArguments, TaskArguments, TaskTrainingArguments)
RUN_ARGUMENTS = ("benchmark", "dataset_name", "model_name_or_path", "output_dir", "seed")  # set for each run
RECORD_FILE = "comparison.json"  # in the folder of each run: its arguments and, once it has finished, its metrics


class Comparison:
    """
    Fine-tunes checkpoints on tasks, each run in a process of its own, and collects the scores.

    All arguments of all runs are checked before the first run starts. The folder of a run records its arguments and
    metrics, so that a comparison that was interrupted, or is shared by several jobs, continues with the runs that are
    missing.

    Args:
        arguments ([`CompareArguments`]): the checkpoints, the tasks, and how the runs are started.
        script (`str` or `Path`): the fine-tuning script, examples/fine_tune_t5.py.
        recipes (`str` or `Path`): folder of the configuration files that are used if `arguments` names none:
            `{task}.yaml` or `{benchmark}.yaml`.
        flags (`Sequence[str]`, *optional*): arguments of the fine-tuning script for all runs. In them and in
            `arguments.config`, `{benchmark}` and `{task}` stand for those of the task.

    Raises:
        `SystemExit`: if the fine-tuning script does not take the flags or the configuration file.
        `ValueError`: if there is no such checkpoint, task or recipe, if two checkpoints cannot be told apart, or if
            the runs would have no score.
    """

    def __init__(
        self, arguments: CompareArguments, script: str | Path, recipes: str | Path, flags: Sequence[str] = ()
    ):
        self.arguments = arguments
        self.script = script
        if arguments.prediction_mode is not None:
            flags = [*flags, "--prediction_mode", arguments.prediction_mode]
        self.runs = plan_runs(arguments, recipes, flags)

    def pending_runs(self) -> list[ComparisonRun]:
        """
        The runs of this job's shard that have not finished.

        Raises:
            `ValueError`: if a folder holds a run with other arguments.
        """
        shard = self.runs[self.arguments.shard_index :: self.arguments.num_shards]
        return [run for run in shard if saved_metrics(run) is None]

    def command(self, run: ComparisonRun) -> list[str]:
        """The command line of a run."""
        return [*shlex.split(self.arguments.launcher), str(self.script), *run.arguments]

    def execute(self, runs: Sequence[ComparisonRun]) -> list[ComparisonRun]:
        """
        Execute runs one after the other; the reports in `output_dir` are updated after each. A failure does not stop
        the others.

        Args:
            runs (`Sequence[ComparisonRun]`): such as [`Comparison.pending_runs`].

        Returns:
            `list[ComparisonRun]`: the runs that failed.
        """
        failed = []
        for number, run in enumerate(runs, 1):
            start = time.monotonic()
            logger.info(f"[{number}/{len(runs)}] {run}")
            if execute_run(run, self.command(run), self.arguments.keep_models):
                for result in self.collect():
                    if result.folder == str(run.folder):
                        logger.info(f"{result.metric} {result.score:.4f} after {time.monotonic() - start:.0f} s")
                        break
            else:
                failed.append(run)
        return failed

    def collect(self) -> list[Result]:
        """
        The results of all runs that have finished, also in other jobs, and those of probes of random weights as step
        0; writes the reports to `output_dir`.
        """
        results = []
        for run in self.runs:
            metrics = saved_metrics(run)
            if metrics is None:
                continue
            try:
                results.append(read_result(run, metrics))
            except ValueError as error:  # must not keep the others from being run and reported
                logger.error(f"{error} It is left out.")
        results += random_weight_results(results)
        if results:
            report(results, self.arguments.output_dir)
        return results


# ---- Planning -------------------------------------------------------------------------------------------------------


def find_checkpoints(entry: str, steps: Sequence[int] | None = None) -> list[Checkpoint]:
    """
    The checkpoints that an entry of `--checkpoints` stands for.

    Args:
        entry (`str`): `NAME=PATH`, where the path is the folder of a pre-training run (all its checkpoints), of one
            checkpoint, or a name on the Hub.
        steps (`Sequence[int]`, *optional*): of a folder with checkpoints, only those of these steps.

    Returns:
        `list[Checkpoint]`: in the order of their steps.

    Raises:
        `ValueError`: if the entry has another form, or if there are no such checkpoints.
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
    found: dict[int | None, Checkpoint] = {}
    for candidate in [*folder.glob("checkpoint-*"), folder]:
        if (candidate / "config.json").is_file():
            # The model in the folder of the run itself is often that of the last checkpoint: count it once.
            step = _pretraining_steps(candidate)
            found.setdefault(step, Checkpoint(series, str(candidate), step))
    if None in found and _has_weights_of_another(found):
        del found[None]
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
    return sorted(found.values(), key=_by_step)


def _has_weights_of_another(found: Mapping[int | None, Checkpoint]) -> bool:
    """Whether the model without a number of steps, as `Trainer.save_model` leaves it, is that of a checkpoint."""
    weights = {step: describe_weights(checkpoint.path) for step, checkpoint in found.items()}
    own = weights.pop(None)
    return own is not None and own in weights.values()


def _by_step(checkpoint: Checkpoint) -> tuple[bool, int]:
    return checkpoint.step is None, checkpoint.step or 0


def _pretraining_steps(folder: Path) -> int | None:
    state = folder / "trainer_state.json"
    if state.is_file():
        return json.loads(state.read_text(encoding="utf-8"))["global_step"]
    number = folder.name.removeprefix("checkpoint-")
    return int(number) if number.isdigit() and number != folder.name else None


def plan_runs(arguments: CompareArguments, recipes: str | Path, flags: Sequence[str] = ()) -> list[ComparisonRun]:
    """
    A run for each checkpoint, task and seed, in the order of the steps of pre-training, so that the first results
    compare all models. See [`Comparison`] for the arguments and errors.
    """
    for flag in flags:
        name = flag.partition("=")[0].lstrip("-").replace("-", "_")
        if flag.startswith("--") and name in RUN_ARGUMENTS:
            raise ValueError(f"`--{name}` is set for each run: leave it out behind `--`.")
    checkpoints = [found for entry in arguments.checkpoints for found in find_checkpoints(entry, arguments.steps)]
    _check_distinct(checkpoints)
    checkpoints.sort(key=_by_step)
    tasks = [_read_task(name, arguments.config, flags, Path(recipes), checkpoints[0]) for name in arguments.tasks]
    _check_data_of_tasks({spec: task_args for spec, _, task_args in tasks})
    weights = {checkpoint: {"weights": describe_weights(checkpoint.path)} for checkpoint in checkpoints}
    described = [(spec, script_arguments, _describe_data(spec, given)) for spec, script_arguments, given in tasks]
    return [
        _plan_run(checkpoint, spec, seed, script_arguments, arguments.output_dir, weights[checkpoint] | data)
        for checkpoint in checkpoints
        for spec, script_arguments, data in described
        for seed in arguments.seeds
    ]


def _check_data_of_tasks(tasks: Mapping[TaskSpec, TaskArguments]) -> None:
    """Stop where `{task}` was left out of the name of a file or folder that has the data of a single task."""
    for name in (*FILE_ARGUMENTS, "dataset_dir"):
        groups: dict[str, list[TaskSpec]] = {}
        for spec, given in tasks.items():
            groups.setdefault(repr(getattr(given, name)), []).append(spec)
        for specs in groups.values():
            if len(specs) > 1:
                splits = [(spec.train_split, *spec.validation_splits, *spec.test_splits) for spec in specs]
                files = TaskFiles(**{name: getattr(tasks[specs[0]], name)})
                check_own_files(list(zip(specs, splits, strict=True)), files)


def _describe_data(spec: TaskSpec, arguments: TaskArguments) -> dict[str, Any]:
    """The files of a task, and the version of what is made of them."""
    files = {name: getattr(arguments, name) or [] for name in ("task_file", *FILE_ARGUMENTS)}
    if arguments.dataset_dir is not None:
        paths = sorted(Path(arguments.dataset_dir).rglob("*"))
        files["dataset_dir"] = [str(path) for path in paths if path.is_file() and not _is_hidden(path, arguments)]
    described = {name: json.dumps(describe_all_files(name, files[name])) for name in files if files[name]}
    hashes = {name: hashlib.sha256(content.encode()).hexdigest()[:12] for name, content in described.items()}
    return {"task_version": spec.version, "files": hashes}


def _is_hidden(path: Path, arguments: TaskArguments) -> bool:
    """Whether a file is not of the data, such as those that `hf download` keeps in `.cache`."""
    return any(part.startswith(".") for part in path.relative_to(arguments.dataset_dir).parts)


def _check_distinct(checkpoints: Sequence[Checkpoint]) -> None:
    found: dict[tuple[str, int | None], Checkpoint] = {}
    for checkpoint in checkpoints:
        other = found.setdefault((checkpoint.series, checkpoint.step), checkpoint)
        if other is not checkpoint:
            raise ValueError(
                f"{other.path} and {checkpoint.path} are both step {checkpoint.step} of {checkpoint.series!r}: give "
                "them different names in `--checkpoints`."
            )


def _plan_run(
    checkpoint: Checkpoint,
    spec: TaskSpec,
    seed: int,
    script_arguments: Sequence[str],
    output_dir: str,
    inputs: Mapping[str, Any],
) -> ComparisonRun:
    model = checkpoint.series, "model" if checkpoint.step is None else f"step-{checkpoint.step}"
    folder = Path(output_dir, *model, spec.benchmark, spec.name, f"seed-{seed}")
    values = (spec.benchmark, spec.name, checkpoint.path, str(folder), str(seed))
    own = [part for name, value in zip(RUN_ARGUMENTS, values, strict=True) for part in (f"--{name}", value)]
    return ComparisonRun(checkpoint, spec, seed, folder, (*script_arguments, *own), inputs)


def _read_task(
    name: str, config: str | None, flags: Sequence[str], recipes: Path, checkpoint: Checkpoint
) -> tuple[TaskSpec, list[str], TaskArguments]:
    """
    A task, the arguments of its runs but for `RUN_ARGUMENTS`, and those of them that are of the task; exits if the
    script does not take them.
    """
    benchmark, slash, task = name.partition("/")
    if not (benchmark and slash and task):
        raise ValueError(f"`--tasks` takes BENCHMARK/TASK, such as glue/rte, got {name!r}.")

    def fill(text: str) -> str:
        return text.replace("{benchmark}", benchmark).replace("{task}", task)

    config = find_recipe(benchmark, task, recipes) if config is None else fill(config)
    script_arguments = [config, *map(fill, flags)]
    own = ["--benchmark", benchmark, "--dataset_name", task, "--model_name_or_path", checkpoint.path]
    model_args, task_args, training_args = parse_arguments(
        FINE_TUNING_ARGUMENTS, [*script_arguments, *own, "--output_dir", "unused"]
    )
    if not training_args.do_eval:
        raise ValueError(f"{config}: without `do_eval: true` there is no score to compare.")
    for path in task_args.task_file or ():
        load_task_file(path)
    spec = get_task(task, benchmark)
    _check_labels(spec, task_args, training_args, model_args.cache_dir)
    return spec, script_arguments, task_args


def _check_labels(
    spec: TaskSpec, task_args: TaskArguments, training_args: TaskTrainingArguments, cache_dir: str | None
) -> None:
    """Stop if a task without validation data, such as GLUE's `ax`, has no labeled test data that is predicted."""
    if spec.validation_splits:
        return
    tested = None
    if training_args.do_predict and spec.test_splits:
        loading = task_args.for_loading([spec], cache_dir)
        (part,) = TaskSplits.load(**loading, do_train=False, do_eval=False).parts
        tested = part.examples.get(spec.test_splits[0])
    if tested is None or not any(map(spec.targets, tested.select_columns(spec.label_column_name))):
        lack = "test data that is predicted (`do_predict: true`)" if tested is None else "labels of its test data"
        raise ValueError(
            f"`--tasks {spec.full_name}`: there is no score to compare: the task has neither validation data of its "
            f"own nor {lack}. Leave it out, or give labeled data by `--test_file`."
        )


def find_recipe(benchmark: str, task: str, recipes: str | Path) -> str:
    """
    The recipe of a task or, if it has none, of its benchmark.

    Args:
        benchmark (`str`), task (`str`): names of the benchmark and of the task.
        recipes (`str` or `Path`): folder of the recipes.

    Returns:
        `str`: the path of the recipe.

    Raises:
        `ValueError`: if neither has one.
    """
    for name in (task, benchmark):
        path = Path(recipes, f"{name}.yaml")
        if path.is_file():
            return str(path)
    try:
        get_task(task, benchmark)
        hint = ""
    except ValueError as error:  # names near matches
        hint = f" (If no `--task_file` behind `--` describes the task: {error})"
    raise ValueError(f"There is no recipe for {benchmark}/{task} in {recipes}: give a `--config`.{hint}")


# ---- Execution ------------------------------------------------------------------------------------------------------


def saved_metrics(run: ComparisonRun) -> Mapping[str, float] | None:
    """
    The metrics that a run left behind.

    Args:
        run ([`ComparisonRun`]): the run.

    Returns:
        `Mapping[str, float]`, *optional*: the contents of all_results.json, `None` if the run has not finished.

    Raises:
        `ValueError`: if its folder holds results or checkpoints of a run with other arguments, weights or data. Such
            scores would not be comparable, and such a training would be continued.
    """
    record = run.folder / RECORD_FILE
    if not record.is_file():
        return None
    saved = json.loads(record.read_text(encoding="utf-8"))
    changed = _changes(saved["run"], _description(run))
    if changed and (saved["results"] is not None or any(run.folder.glob("checkpoint-*"))):
        raise ValueError(
            f"{run.folder} holds a run with {changed}. Choose another `--output_dir`, or delete that folder."
        )
    return None if changed else saved["results"]


def _changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs, in the words of an error; what one of them does not know is not compared."""
    saved = {"task_version": 1} | saved  # as it was before it was recorded
    names = [name for name in now if saved.get(name) != now[name] and None not in (saved.get(name), now[name])]
    if {"arguments", "config"} & set(names):
        return f"other arguments: {shlex.join(saved['arguments'])}"
    return " and ".join(f"other {name} {saved[name]} (now {now[name]})" for name in names)


def _description(run: ComparisonRun) -> dict[str, Any]:
    config = Path(run.arguments[0]).read_text(encoding="utf-8")
    return {"arguments": list(run.arguments), "config": config} | run.inputs


def _record(run: ComparisonRun, metrics: Mapping[str, float] | None) -> None:
    content = json.dumps({"run": _description(run), "results": metrics}, indent=2)
    replace_text(run.folder / RECORD_FILE, content)


def execute_run(run: ComparisonRun, command: Sequence[str], keep_models: bool = False) -> bool:
    """
    Fine-tune and evaluate in a process of its own, and record the metrics. Its output goes to log.txt in the folder of
    the run; checkpoints are deleted when it has finished.

    Args:
        run ([`ComparisonRun`]): the run.
        command (`Sequence[str]`): its command line.
        keep_models (`bool`, *optional*, defaults to `False`): keep the weights of the fine-tuned model.

    Returns:
        `bool`: whether the process succeeded. If not, the end of its output is logged.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / ALL_RESULTS_FILE).unlink(missing_ok=True)  # the metrics of a run are added to those that are there
    _record(run, None)
    log = run.folder / "log.txt"
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
    if code:
        end = "".join(f"  {line}\n" for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-10:])
        logger.error(f"{run}: ended with code {code}. The end of {log}:\n{end}")
        return False
    _record(run, json.loads((run.folder / ALL_RESULTS_FILE).read_text(encoding="utf-8")))
    for folder in run.folder.glob("checkpoint-*"):  # of use only for resuming this run
        shutil.rmtree(folder)
    if not keep_models:
        for path in run.folder.glob("*.safetensors"):
            path.unlink()
    return True
