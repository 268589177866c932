"""Checks of the fields of a task, made before any data is read."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..errors import UserError
from ..suggestions import listed, suggestion

# What each metric compares: class "ids", "values" or "texts". `register_metric` adds to it.
METRIC_KINDS: dict[str, str] = {
    **dict.fromkeys(("accuracy", "f1", "f1_macro", "precision", "recall", "matthews_correlation"), "ids"),
    **dict.fromkeys(("pearson", "spearman"), "values"),
    **dict.fromkeys(("rougeL", "rouge1", "rouge2", "exact_match", "squad_exact_match", "squad_f1"), "texts"),
    **dict.fromkeys(("bleu", "chrf"), "texts"),
}

PREDICTION_MODES = ("generate", "score_labels")
EVALUATION_MODES = (*PREDICTION_MODES, "probe")  # a probe predicts by itself, not by the model's decoder

# How a probe combines sentence embeddings, and how many text columns that needs (`None`: any number).
PROBE_FEATURES = {"concatenation": None, "first_differences": None, "difference": 2, "product": 2}

# Texts in the label column that mark an unlabeled example.
UNLABELED_TEXTS = ("", "-1", "-1.0")

# The values that these fields accept.
_CHOICES = {
    "submission_labels": ("text", "id", "number"),
    "file_defects": ("broken_lines", "empty_texts"),
    "probe_features": tuple(PROBE_FEATURES),
}
_NAME = re.compile(r"[\w][\w.\-]*")  # names become part of file names and metric names

Problems = Iterator[tuple[str, str]]  # a field, and what is wrong with it


class FieldError(UserError):
    """Raised if a field of a task has a wrong value."""

    def __init__(self, task: str, field: str, message: str):
        super().__init__(f"Task {task!r}, field `{field}`: {message}")


def check_task(task: Any) -> None:
    """Raise [`FieldError`] if a field of a task is wrong or contradicts another one."""
    for check in (_wrong_values, _wrong_columns, _wrong_labels, _wrong_metrics, _wrong_splits):
        for field, message in check(task):  # each check relies on those before it
            raise FieldError(task.name, field, message)


def check_prediction_mode(tasks: Iterable[Any], prediction_mode: str, modes: Sequence[str] = PREDICTION_MODES) -> None:
    """Raise `ValueError` if a mode of prediction is none of `modes`, or does not suit one of the tasks."""
    if prediction_mode not in modes:
        raise UserError(f"`prediction_mode` must be one of {', '.join(modes)}, got {prediction_mode!r}.")
    for task in tasks:
        if task.labels is None and prediction_mode != "generate":
            raise UserError(
                f"`prediction_mode` {prediction_mode} is for tasks with labels, but {task.name!r} is free-form. Use "
                "`prediction_mode` generate."
            )
        if task.is_regression and prediction_mode == "probe":
            raise UserError(f"`prediction_mode` probe predicts classes, but {task.name!r} predicts numbers.")


def _wrong_values(task: Any) -> Problems:
    for item in fields(task):
        name, value = item.name, getattr(task, item.name)
        if item.type in (str, bool, int) and type(value) is not item.type:
            yield name, f"must be of type `{item.type.__name__}`, got {value!r}."
        if item.type == str | None and not isinstance(value, str | None):
            yield name, f"must be text or nothing, got {value!r}."
        if item.type == tuple[str, ...] and not all(isinstance(part, str) for part in value):
            yield name, f"must hold texts, got {value!r}."
    for name, choices in _CHOICES.items():
        value = getattr(task, name)
        for choice in [value] if isinstance(value, str) else value:
            if choice not in choices:
                yield name, f"got {choice!r}.{suggestion(choice, choices, 'choices')}"
    for name in ("benchmark", "name"):
        if not _NAME.fullmatch(getattr(task, name)):
            yield name, f"must be letters, digits, `_`, `-` and `.`, got {getattr(task, name)!r}."


def _wrong_columns(task: Any) -> Problems:
    columns = task.text_column_name
    if len(set(columns)) < max(1, len(columns)):
        yield "text_column_name", f"must name one or several different columns, got {columns!r}."
    if len(task.prefix) != len(columns):
        yield (
            "prefix",
            f"there must be one for each of the {len(columns)} text columns ({listed(columns)}), got "
            f"{len(task.prefix)}: {task.prefix!r}. Use an empty text for a column without prefix.",
        )
    for column in (*columns, task.label_column_name):
        if any(f"{{{column}}}" in prefix for prefix in task.prefix):
            yield (
                "prefix",
                f"'{{{column}}}' would stay in the prompt as it is. A prefix is no template: the text of its column "
                "follows it. For several columns give a list of prefixes, one for each of `text_column_name`.",
            )
    if not task.label_column_name or task.label_column_name in columns:
        yield "label_column_name", f"must name another column, got {task.label_column_name!r}."
    needed = PROBE_FEATURES[task.probe_features]
    if needed not in (None, len(columns)):
        yield "probe_features", f"{task.probe_features!r} is for {needed} text columns, there are {len(columns)}."


def _wrong_labels(task: Any) -> Problems:
    labels, step = task.labels, task.label_step
    if labels is None:
        if step is not None:
            yield "labels", f"must be the numbers to predict, in steps of {step}, as texts."
        return
    if not isinstance(labels, Mapping) or list(labels) != list(range(len(labels))) or len(labels) < 2:
        yield (
            "labels",
            f"must be the texts of two or more classes: a list, or a mapping from 0, 1, 2, … to them, got {labels!r}.",
        )
    texts = list(labels.values())
    for number, text in labels.items():
        if not isinstance(text, str) or not text or text != text.strip():
            advice = " YAML reads yes, no, true and false as truth values:" if isinstance(text, bool) else ""
            yield (
                "labels",
                f"class {number} must be text, with no space at its ends, got {text!r}.{advice} Put quotes.",
            )
        if text in UNLABELED_TEXTS:
            yield "labels", f"{text!r} marks an unlabeled example, so no label can have this text."
        if texts.count(text) > 1:
            yield "labels", f"several classes have the text {text!r}."
    if step is None:
        return
    try:
        grid = [float(text) for text in texts]
    except ValueError as error:
        yield "labels", f"with a `label_step`, they must be numbers: {error}."
    if any(not math.isclose(b - a, step, rel_tol=1e-6) for a, b in zip(grid, grid[1:], strict=False)):
        yield "label_step", f"the labels must be numbers in steps of {step}, got {listed(grid[:5])}, …."
    if min(grid) <= -1:
        yield "labels", f"they must be above -1, which stands for an unlabeled example, got {min(grid)}."


def _wrong_metrics(task: Any) -> Problems:
    kind, predicted = ("texts", "free-form text (no `labels`)") if task.labels is None else ("ids", "a class")
    if task.label_step is not None:
        kind, predicted = "values", "a number"
    suitable = [name for name, of in METRIC_KINDS.items() if of == kind]
    # A class is right or wrong, so no metric that measures similar texts suits it.
    suitable += ["exact_match"] if kind == "ids" else []
    for name in task.metric_names:
        if name not in METRIC_KINDS:
            near = suggestion(name, METRIC_KINDS, "metrics")
            yield "metric_names", f"there is no metric {name!r}.{near} (`register_metric` adds one of your own.)"
        if name not in suitable:
            yield "metric_names", f"{name!r} does not suit predictions that are {predicted}, but: {listed(suitable)}."
    if task.metric_to_optimize not in task.metric_names:
        yield "metric_to_optimize", f"must be one of `metric_names`, {listed(task.metric_names)}."


def _wrong_splits(task: Any) -> Problems:
    if not task.splits or len(set(task.splits)) < len(task.splits):
        yield "train_split", f"the splits must have different names, got {listed(task.splits)}."
    if not task.train_split and not task.train_on:
        yield "train_on", "a task without `train_split` needs another task to train on."
