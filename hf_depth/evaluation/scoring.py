"""
Scores of a task: what a model answered against what the rows say, beside the most frequent class and guessing. How
answers that are no label count is told in `evaluation.metrics`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np

from ..tasks.dataset import TaskDataset
from ..tasks.spec import HIDDEN, Row, TaskSpec
from .metrics import METRICS, UNPARSED

GROUP_COLUMNS = ("category", "task")


def compute_task_metrics(
    spec: TaskSpec,
    rows: Sequence[Row],
    answers: Sequence[str] | None = None,
    predicted_ids: Sequence[int] | None = None,
    *,
    train_label_ids: Iterable[int] | None = None,
    group_columns: Sequence[str] = GROUP_COLUMNS,
) -> dict[str, float]:
    """
    Score answers by the metrics of their task. Rows whose label is hidden are left out.

    Args:
        spec: the task.
        rows: a data set or a list, with the task's label column.
        answers: the generated texts, one per row.
        predicted_ids: instead of answers the class of each row, as from scores of the labels.
        train_label_ids: classes of the training rows, in which the majority class is counted; by default it is counted
            in the rows.
        group_columns: for open text, the columns that name groups of rows which are also scored apart.

    Returns:
        `dict[str, float]`: each of the task's metrics, in 0..1 but for correlations (-1..1) and `rougeL` (0..100), and

        - `unparsed_fraction`: of the answers, those that are none of the labels; for all rows, hidden labels included.
        - `majority_<metric>` and `chance_<metric>`: what always answering the most frequent class gives, and what
          choosing among the labels at random is expected to give (the score of the expected confusion matrix). For
          numbers, both are 0.
        - for open text `<metric>_<group>`, such as `rougeL_question_answering`.

        Without any label (GLUE's test sets) there is nothing but `unparsed_fraction`.

    Raises:
        `ValueError`: if there is not one answer or class for each row.
    """
    _check_predictions(spec, len(rows), answers, predicted_ids)
    if spec.labels is None:
        return _open_text_metrics(spec, rows, answers, group_columns)

    metrics = {}
    if answers is not None:
        predicted_ids = parse_answers(spec, answers)
        if len(rows):
            metrics["unparsed_fraction"] = float(np.mean(predicted_ids == UNPARSED))
    predicted_ids = np.asarray(predicted_ids, dtype=np.int64)
    reference_ids, reference_values = _references(spec, rows)
    known = reference_ids != HIDDEN
    if not known.any():
        return metrics
    predicted_ids, reference_ids, reference_values = (
        array[known] for array in (predicted_ids, reference_ids, reference_values)
    )
    for name in spec.metric_names:
        metrics[name] = _score(spec, name, predicted_ids, reference_ids, reference_values)
    return metrics | _baselines(spec, reference_ids, train_label_ids)


def parse_answers(spec: TaskSpec, answers: Sequence[str]) -> np.ndarray:
    """The class of each generated answer, `UNPARSED` if it is none of the labels; int64, `(number of answers,)`."""
    return np.array([spec.parse(answer) for answer in answers], dtype=np.int64)


def label_values(spec: TaskSpec, label_ids: Sequence[int]) -> np.ndarray:
    """
    The numbers of classes, -1 for `UNPARSED`: those of the labels' texts if the task predicts a number, else the ids
    themselves; float64, `(number of classes,)`.
    """
    ids = np.asarray(label_ids, dtype=np.int64)
    if not spec.is_regression:
        return ids.astype(np.float64)
    value_of = {label_id: float(text) for label_id, text in spec.labels.items()} | {UNPARSED: float(UNPARSED)}
    return np.array([value_of[label_id] for label_id in ids.tolist()], dtype=np.float64)


def majority_class(label_ids: Iterable[int]) -> int:
    """The most frequent class, the smallest of several; hidden labels do not count."""
    labels = np.asarray([label_id for label_id in label_ids if label_id != HIDDEN], dtype=np.int64)
    if not len(labels):
        raise ValueError("There is no label that is not hidden, hence no majority class.")
    classes, counts = np.unique(labels, return_counts=True)
    return int(classes[counts.argmax()])


def optimized_score(spec: TaskSpec, metrics: Mapping[str, float]) -> float:
    """The task's `metric_to_optimize`, with 1 for the best score whatever its scale, for means over several tasks."""
    return metrics[spec.metric_to_optimize] / METRICS[spec.metric_to_optimize].scale


def _check_predictions(spec, number, answers, predicted_ids) -> None:
    if (answers is None) == (predicted_ids is None):
        raise ValueError("Give either `answers` or `predicted_ids`, not both or none.")
    name, given = ("answers", answers) if predicted_ids is None else ("predicted_ids", predicted_ids)
    if len(given) != number:
        raise ValueError(f"Task {spec.name!r} has {number} rows, but {len(given)} `{name}`: give one for each row.")
    if spec.labels is None and answers is None:
        raise ValueError(f"Task {spec.name!r} has open answers: give `answers`, not `predicted_ids`.")


def _references(spec: TaskSpec, rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
    """The class of each row, and for a task that predicts a number the number, not rounded."""
    rows = _columns(rows, [spec.label_column_name])
    ids = np.array([spec.label_id(row) for row in rows], dtype=np.int64)
    if spec.is_regression:
        return ids, np.array([spec.label_value(row) for row in rows], dtype=np.float64)
    return ids, ids.astype(np.float64)


def _score(spec: TaskSpec, name: str, predicted_ids, reference_ids, reference_values) -> float:
    metric = METRICS[name]
    if metric.kind == "ids":
        predictions, references, kwargs = predicted_ids, reference_ids, {"num_labels": spec.num_labels}
    elif metric.kind == "values":
        predictions, references, kwargs = label_values(spec, predicted_ids), reference_values, {}
    else:
        predictions = [spec.labels.get(label_id, "") for label_id in predicted_ids.tolist()]
        references, kwargs = [[spec.labels[label_id]] for label_id in reference_ids.tolist()], {}
    return metric().compute(predictions=predictions, references=references, **kwargs)[name]


def _baselines(spec: TaskSpec, reference_ids: np.ndarray, train_label_ids: Iterable[int] | None) -> dict[str, float]:
    """The scores of the most frequent class and of guessing, of metrics that compare classes or numbers."""
    train_label_ids = reference_ids if train_label_ids is None else list(train_label_ids)
    majority = majority_class(train_label_ids)
    classes, counts = np.unique(reference_ids, return_counts=True)
    # One row for each class and guess, weighted by how often they are expected to meet.
    guesses = np.tile(list(spec.labels), len(classes))
    guessed_classes = np.repeat(classes, spec.num_labels)
    weights = np.repeat(counts / spec.num_labels, spec.num_labels)
    baselines = {}
    for name in spec.metric_names:
        metric = METRICS[name]
        if metric.kind == "values":
            baselines |= {f"majority_{name}": 0.0, f"chance_{name}": 0.0}
        elif metric.kind == "ids":
            size = {"num_labels": spec.num_labels}
            constant = np.full(len(classes), majority)
            baselines[f"majority_{name}"] = float(metric.score(constant, classes, sample_weight=counts, **size))
            baselines[f"chance_{name}"] = float(metric.score(guesses, guessed_classes, sample_weight=weights, **size))
    return baselines


def _open_text_metrics(spec: TaskSpec, rows, answers, group_columns) -> dict[str, float]:
    """Scores over all rows and over the rows of each group."""
    groups = [name for name in group_columns if len(rows) and name in rows[0]]
    rows = list(_columns(rows, [spec.label_column_name, *groups]))
    known = [
        (row, targets, answer) for row, answer in zip(rows, answers, strict=True) if (targets := spec.targets(row))
    ]
    if not known:
        return {}
    rows, references, answers = zip(*known, strict=True)
    members = {"": range(len(rows))}
    for column in groups:
        for index, row in enumerate(rows):
            if row[column]:
                members.setdefault("_" + _key(row[column]), []).append(index)
    scores = {
        name: METRICS[name].scale * np.array(METRICS[name].row_scores(answers, references))
        for name in spec.metric_names
    }
    return {
        name + suffix: float(scores[name][chosen].mean())
        for suffix, chosen in members.items()
        for name in spec.metric_names
    }


def _columns(rows: Any, names: Sequence[str]) -> Any:
    """The rows with no more columns than needed, if they are a data set: to decode all of them takes long."""
    is_dataset = isinstance(rows, datasets.Dataset)
    return rows.select_columns([name for name in names if name in rows.column_names]) if is_dataset else rows


def _key(group: str) -> str:
    return "_".join(str(group).lower().split())


@dataclass(frozen=True)
class TaskResult:
    """
    The scores of one task on one split.

    Args:
        metrics: what `compute_task_metrics` returned.
    """

    spec: TaskSpec
    split: str
    metrics: Mapping[str, float]


@dataclass
class TaskPredictions:
    """
    Attributes:
        answers (`list[str]`, *optional*): what the model wrote, one per row.
        label_ids (`np.ndarray` of shape `(num_rows,)`, *optional*): the classes; -1 for an answer that is no label;
            `None` for open text.
        scores (`np.ndarray` of shape `(num_rows, num_labels)`, *optional*): what each label scored.
    """

    answers: list[str] | None = None
    label_ids: np.ndarray | None = None
    scores: np.ndarray | None = None


@dataclass
class TaskEvaluation:
    """What an evaluation of a data set found: what was predicted for it, and how well (names without a prefix)."""

    dataset: TaskDataset
    predictions: TaskPredictions
    metrics: dict[str, float]

    @property
    def result(self) -> TaskResult:
        return TaskResult(self.dataset.spec, self.dataset.split, self.metrics)
