"""Scores of several checkpoints after fine-tuning: results, tables and figures over the steps of pre-training."""

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..tables import markdown_table
from ..tasks.spec import TaskSpec
from .figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SPREAD = "Mean and standard deviation of several seeds"  # what stands in a table as ±, in a figure as a bar

# Fields of a result that are those of a task and a seed, not of a model, and their lines in the figure. (A bag of
# words has the tokens of the first model.)
BASELINES = {"majority": "-.", "chance": ":", "bag_of_words": (0, (1, 4))}


@dataclass(frozen=True)
class Checkpoint:
    """
    A model to fine-tune or to probe.

    Args:
        series (`str`): name of the pre-training run, a line in the figure and a column in the table.
        path (`str`): folder, or name on the Hub.
        step (`int`, *optional*): number of pre-training steps, `None` if unknown.
    """

    series: str
    path: str
    step: int | None


@dataclass(frozen=True)
class ComparisonRun:
    """
    The fine-tuning of one checkpoint on one task with one seed.

    Args:
        checkpoint ([`Checkpoint`]): the model.
        spec ([`TaskSpec`]): the task.
        seed (`int`): the seed.
        folder (`Path`): the run's own folder.
        arguments (`tuple[str, ...]`): the arguments of the fine-tuning script; the first is a configuration file.
        inputs (`Mapping[str, Any]`): what tells the weights and the data from others by the same names; `None` where
            that is not known.
    """

    checkpoint: Checkpoint
    spec: TaskSpec
    seed: int
    folder: Path
    arguments: tuple[str, ...]
    inputs: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        series, step = self.checkpoint.series, self.checkpoint.step
        model = series if step is None else f"{series} at step {step}"
        return f"{model} on {self.spec.full_name}, seed {self.seed}"


@dataclass(frozen=True)
class Result:
    """
    The score of one run, a row of results.csv.

    Args:
        model (`str`): the `series` of the checkpoint.
        checkpoint (`str`): the `path` of the checkpoint.
        step (`int`, *optional*): number of pre-training steps, `None` if unknown.
        task (`str`): `benchmark/name` of the task.
        split (`str`): the data that the score is from.
        metric (`str`): the `metric_to_optimize` of the task.
        seed (`int`): seed of fine-tuning.
        score (`float`): value of the metric.
        majority (`float`, *optional*): the metric if the class most frequent in training were always predicted.
        chance (`float`, *optional*): the metric of random guesses.
        bag_of_words, random_weights (`float`, *optional*):
            The metric of the same probe of a bag of words, and of the model with random weights.
        unparsed_fraction (`float`, *optional*): fraction of the predictions that are no label.
        folder (`str`): folder of the run.
    """

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
    bag_of_words: float | None = None
    random_weights: float | None = None


def read_result(run: ComparisonRun, metrics: Mapping[str, float]) -> Result:
    """
    The score of a run by its task's `metric_to_optimize`: on the test data if they are labeled, else on the validation
    data. Of a task with several splits, the first counts.

    Args:
        run ([`ComparisonRun`]): the run.
        metrics (`Mapping[str, float]`): what the run left in all_results.json.

    Returns:
        [`Result`]

    Raises:
        `ValueError`: if the metric is in neither of them.
    """
    metric = run.spec.metric_to_optimize
    for start, kind, splits in (
        ("predict", "test", run.spec.test_splits),
        ("eval", "validation", run.spec.validation_splits),
    ):
        # Without such a split, a score by that name is of the task that this one is trained on.
        for split in ("", *splits[:1]) if splits else ():
            prefix = f"{start}_{split}_" if split else f"{start}_"
            if prefix + metric in metrics:
                return Result(
                    model=run.checkpoint.series,
                    checkpoint=run.checkpoint.path,
                    step=run.checkpoint.step,
                    task=run.spec.full_name,
                    split=split or kind,
                    metric=metric,
                    seed=run.seed,
                    score=metrics[prefix + metric],
                    majority=metrics.get(f"{prefix}majority_{metric}"),
                    chance=metrics.get(f"{prefix}chance_{metric}"),
                    unparsed_fraction=metrics.get(f"{prefix}unparsed_fraction"),
                    folder=str(run.folder),
                    bag_of_words=metrics.get(f"{prefix}bag_of_words_{metric}"),
                    random_weights=metrics.get(f"{prefix}random_weights_{metric}"),
                )
    raise ValueError(
        f"{run}: no {metric} in {run.folder / 'all_results.json'}, which has {', '.join(sorted(metrics))}. The "
        "configuration needs `do_eval: true`, and the task labeled data."
    )


def random_weight_results(results: Iterable[Result]) -> list[Result]:
    """
    Step 0 of each model, task and seed that was probed: its score with random weights, which is the same for all
    checkpoints of a model. A checkpoint of step 0 takes precedence.
    """
    results = list(results)
    found = {(result.model, result.task, result.seed): None for result in results if result.step == 0}
    added = {}
    for result in results:
        key = (result.model, result.task, result.seed)
        if result.random_weights is not None and key not in found:
            random = {"checkpoint": "random weights", "step": 0, "score": result.random_weights}
            added.setdefault(key, replace(result, **random))
    return list(added.values())


def report(results: Sequence[Result], folder: str | Path) -> None:
    """
    Write results.csv, results.md and scores.png.

    Args:
        results (`Sequence[Result]`): at least one.
        folder (`str` or `Path`): must exist.
    """
    folder = Path(folder)
    with (folder / "results.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([entry.name for entry in fields(Result)])
        writer.writerows(astuple(result) for result in results)
    (folder / "results.md").write_text(markdown(results), encoding="utf-8")
    score_figure(results).savefig(folder / "scores.png", dpi=150)


def grouped(results: Iterable[Result]) -> dict[str, dict[str, dict[int | None, list[Result]]]]:
    """The results by task, model and step: a list with one result per seed for each."""
    groups: dict[str, dict[str, dict[int | None, list[Result]]]] = {}
    for result in results:
        groups.setdefault(result.task, {}).setdefault(result.model, {}).setdefault(result.step, []).append(result)
    return groups


def markdown(results: Sequence[Result]) -> str:
    """A Markdown table with a row for each number of steps and a column for each task and model."""
    groups = grouped(results)
    models = dict.fromkeys(result.model for result in results)
    columns = [(task, model) for task in groups for model in models]
    table = [["steps", *(f"{task}<br>{model}" for task, model in columns)]]
    for step in sorted({result.step for result in results}, key=lambda step: (step is None, step)):
        found = [groups[task].get(model, {}).get(step, ()) for task, model in columns]
        cells = [_shown([result.score for result in of_seeds]) for of_seeds in found]
        table.append(["" if step is None else f"{step:,}", *cells])
    firsts = {task: next(result for result in results if result.task == task) for task in groups}
    for name in BASELINES:
        values = {task: _baseline(results, task, name) for task in groups}
        if any(values.values()):
            table.append([name.replace("_", " "), *(_shown(values[task]) for task, _ in columns)])
    lines = [markdown_table(table, num_text_columns=0), ""]
    lines += [f"- {task}: {first.metric} on {first.split}" for task, first in firsts.items()]
    if len({result.seed for result in results}) > 1:
        lines.append(f"- {SPREAD}.")
    is_probe = any(result.random_weights is not None for result in results)
    kind = "Scores of probes, step 0 with random weights," if is_probe else "Scores after fine-tuning,"
    return "\n".join([f"{kind} by steps of pre-training.", "", *lines, ""])


def _baseline(results: Sequence[Result], task: str, name: str) -> list[float]:
    """A baseline of a task with each seed; once if it is the same with all of them, none if it is not known."""
    by_seed = {result.seed: getattr(result, name) for result in reversed(results) if result.task == task}
    values = [value for value in by_seed.values() if value is not None]
    return values if len(set(values)) > 1 else values[:1]


def _shown(scores: Sequence[float]) -> str:
    if not scores:
        return ""
    spread = f" ± {_spread(scores):.4f}" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.4f}{spread}"


def score_figure(results: Sequence[Result]) -> "Figure":
    """
    A panel for each task with the score over the steps of pre-training (logarithmic axis): a line for each model, with
    bars of one standard deviation to both sides, as in the table. A model at step 0 or with an unknown step is a
    horizontal dashed line, with a band for the bars.

    Returns:
        `matplotlib.figure.Figure`
    """
    groups = grouped(results)
    steps = sorted({result.step for result in results if result.step})
    colors = {model: f"C{index}" for index, model in enumerate(dict.fromkeys(result.model for result in results))}
    width = min(3, len(groups))
    height = -(-len(groups) // width)
    figure = new_figure(4.2 * width, 3.4 * height + 0.4)
    panels = list(figure.subplots(height, width, squeeze=False).flat)
    handles = {}
    for panel, (task, models) in zip(panels, groups.items(), strict=False):
        for model, results_by_step in models.items():
            _plot_model(panel, results_by_step, color=colors[model], label=model)
        first = next(result for result in results if result.task == task)
        _plot_baselines(panel, results, task)
        panel.set(title=task, xlabel="steps of pre-training", ylabel=f"{first.metric} ({first.split})")
        _format_steps(panel, steps)
        handles |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    for panel in panels[len(groups) :]:
        panel.remove()
    notes = [SPREAD] if len({result.seed for result in results}) > 1 else []
    if any(not result.step for result in results):
        is_probe = any(result.random_weights is not None for result in results)
        notes.append(f"Dashed: {'random weights (step 0)' if is_probe else 'step 0'}, or an unknown step")
    if notes:
        figure.suptitle("\n".join(notes), fontsize="small")
    labels = [label for label in (*colors, *(name.replace("_", " ") for name in BASELINES)) if label in handles]
    figure.legend(
        [handles[label] for label in labels], labels, loc="outside lower center", ncols=min(len(labels), 3 * width)
    )
    return figure


def _plot_model(panel: "Axes", results_by_step: Mapping[int | None, Sequence[Result]], **style: Any) -> None:
    scores = {step: [result.score for result in results] for step, results in results_by_step.items()}
    steps = sorted(step for step in scores if step)
    if steps:
        means = [statistics.fmean(scores[step]) for step in steps]
        panel.errorbar(steps, means, yerr=[_spread(scores[step]) for step in steps], marker="o", capsize=3, **style)
    for step in (0, None):  # a logarithmic axis has no place for them
        if step in scores:
            _plot_across(panel, scores[step], linestyle="--", **style)


def _plot_across(panel: "Axes", scores: Sequence[float], **style: Any) -> None:
    mean, spread = statistics.fmean(scores), _spread(scores)
    panel.axhline(mean, **style)
    panel.axhspan(mean - spread, mean + spread, color=style["color"], alpha=0.15, linewidth=0)


def _spread(scores: Sequence[float]) -> float:
    """The standard deviation over seeds, 0 for a single one; NaN, at which `stdev` stops, if a score is not finite."""
    if not all(map(math.isfinite, scores)):
        return math.nan
    return statistics.stdev(scores) if len(scores) > 1 else 0.0


def _plot_baselines(panel: "Axes", results: Sequence[Result], task: str) -> None:
    for name, linestyle in BASELINES.items():
        values = _baseline(results, task, name)
        if values:
            _plot_across(panel, values, color="grey", linestyle=linestyle, label=name.replace("_", " "))


def _format_steps(panel: "Axes", steps: Sequence[int]) -> None:
    from matplotlib.ticker import EngFormatter, NullLocator

    panel.set_xscale("log")
    panel.set_xticks(steps[:: -(-len(steps) // 8) or 1])  # at most 8, which fit beside each other
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))  # 256k
    panel.xaxis.set_minor_locator(NullLocator())
    panel.grid(alpha=0.3)
