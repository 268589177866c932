"""Checks of the fields of a task, made before any data is read."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..errors import UserError
from ..suggestions import listed, suggestion

METRIC_ALIASES = {"mcc": "matthews_correlation", "pearsonr": "pearson", "spearmanr": "spearman"}
METRIC_ALIASES |= {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL", "sacrebleu": "bleu", "chrF": "chrf"}

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
    """
    Raise [`FieldError`] if a field of a task is wrong or contradicts another one.

    Args:
        task (`TaskSpec`): the task.

    Raises:
        [`FieldError`]: names the task and the field.
    """
    checks = (_wrong_types, _wrong_columns, _wrong_labels, _wrong_grid, _wrong_metrics, _wrong_splits)
    for check in checks:  # each relies on those before it
        for field, message in check(task):
            raise FieldError(task.name, field, message)


def check_prediction_mode(tasks: Iterable[Any], prediction_mode: str, modes: Sequence[str] = PREDICTION_MODES) -> None:
    """
    Raise `ValueError` if the mode is unknown or does not suit the tasks.

    Args:
        tasks (`Iterable[TaskSpec]`): the tasks to evaluate.
        prediction_mode: `"generate"`, `"score_labels"` or, where `modes` has it, `"probe"`.
        modes: the modes to accept.

    Raises:
        `ValueError`: names the mode, or the free-form tasks.
    """
    if prediction_mode not in modes:
        raise UserError(
            f"`prediction_mode` must be one of {', '.join(modes)}, got {prediction_mode!r}."
            f"{suggestion(str(prediction_mode), modes)}"
        )
    tasks = list(tasks)
    numbers = [task.name for task in tasks if task.is_regression]
    if numbers and prediction_mode == "probe":
        raise UserError(f"`prediction_mode` probe predicts classes, but {listed(numbers)} predicts numbers.")
    free_form = [task.name for task in tasks if task.labels is None]
    if free_form and prediction_mode != "generate":
        raise UserError(
            f"`prediction_mode` {prediction_mode} is for tasks with labels, but {listed(free_form)} is free-form. Use "
            "`prediction_mode` generate."
        )


def _wrong_types(task: Any) -> Problems:
    for item in fields(task):
        name, value = item.name, getattr(task, item.name)
        if item.type in (str, bool, int) and type(value) is not item.type:
            yield name, f"must be of type `{item.type.__name__}`, got {value!r}."
        if item.type == str | None and not isinstance(value, str | None):
            yield name, f"must be text or nothing, got {value!r}."
        if item.type == tuple[str, ...]:
            for part in value:
                if not isinstance(part, str):
                    yield name, f"must hold texts, but holds {part!r}."
                if part == "" and name != "prefix":
                    yield name, f"must hold names, got {value!r}. Give `[]` if there are none."
    for name, choices in _CHOICES.items():
        value = getattr(task, name)
        for choice in [value] if isinstance(value, str) else value:
            if choice not in choices:
                yield name, f"got {choice!r}.{suggestion(choice, choices, 'choices')}"
    for number in task.submission_rows:
        if type(number) is not int or number < 0:
            yield "submission_rows", f"must be numbers of rows (0: unknown), but holds {number!r}."
    aliases = task.column_aliases
    if not isinstance(aliases, Mapping) or not all(isinstance(column, str) for column in aliases.values()):
        yield "column_aliases", f"must map names to names, got {aliases!r}."
    for name in ("benchmark", "name"):
        if not _NAME.fullmatch(getattr(task, name)):
            yield name, f"must be letters, digits, `_`, `-` and `.`, got {getattr(task, name)!r}."
    for name, least in {"max_source_length": 1, "max_target_length": 1, "version": 1, "probe_hidden_units": 0}.items():
        if getattr(task, name) < least:
            yield name, f"must be at least {least}, got {getattr(task, name)}."


def _wrong_columns(task: Any) -> Problems:
    columns = task.text_column_name
    if not columns or len(set(columns)) < len(columns):
        yield "text_column_name", f"must name one or several different columns, got {columns!r}."
    if len(task.prefix) != len(columns):
        yield (
            "prefix",
            f"there must be one for each of the {len(columns)} text columns ({listed(columns)}), got "
            f"{len(task.prefix)}: {task.prefix!r}. Use an empty text for a column without prefix.",
        )
    if not task.label_column_name or task.label_column_name in columns:
        yield "label_column_name", f"must name another column, got {task.label_column_name!r}."
    needed = PROBE_FEATURES[task.probe_features]
    if needed not in (None, len(columns)):
        yield (
            "probe_features",
            f"{task.probe_features!r} is for {needed} text columns, but there are {len(columns)}.",
        )
    known = {*columns, task.label_column_name, "idx"}
    for alias, column in task.column_aliases.items():
        if column not in known:
            yield "column_aliases", f"{alias!r} stands for {column!r}.{suggestion(column, known, 'columns')}"


def _wrong_labels(task: Any) -> Problems:
    labels = task.labels
    if labels is None:
        return
    if not isinstance(labels, Mapping) or not all(isinstance(number, int) for number in labels):
        yield "labels", f"must map class numbers to texts or list the texts, got {labels!r}."
    for number, text in labels.items():
        if isinstance(text, bool):
            word = "yes" if text else "no"
            yield (
                "labels",
                f"class {number!r} must be text, got {text!r}. YAML reads {word}, {str(text).lower()} and the like as "
                f"truth values: put quotes, as in '{word}'.",
            )
        if not isinstance(text, str) or not text.strip() or text != text.strip():
            quotes = f" Put quotes, as in '{text}'." if isinstance(text, int | float) else ""
            yield "labels", f"class {number!r} must be text, with no space at its ends, got {text!r}.{quotes}"
    if list(labels) != list(range(len(labels))) or len(labels) < 2:
        yield (
            "labels",
            f"there must be two classes or more, numbered 0, 1, 2, …, got {listed(labels)}. (A list is "
            "numbered by itself; the data may hold the texts instead of the numbers.)",
        )
    texts = list(labels.values())
    for text in texts:
        if text in UNLABELED_TEXTS:
            yield "labels", f"{text!r} marks an unlabeled example, so no label can have this text."
        if texts.count(text) > 1:
            yield "labels", f"several classes have the text {text!r}."


def _wrong_grid(task: Any) -> Problems:
    step = task.label_step
    if step is None:
        return
    if isinstance(step, bool) or not isinstance(step, int | float) or not (math.isfinite(step) and step > 0):
        yield "label_step", f"must be a positive number, got {step!r}."
    try:
        grid = [float(text) for text in (task.labels or {}).values()]
    except ValueError as error:
        yield "labels", f"with a `label_step`, they must be numbers: {error}."
    if not grid or any(not math.isclose(b - a, step, rel_tol=1e-6) for a, b in zip(grid, grid[1:], strict=False)):
        yield "label_step", f"the labels must be numbers in steps of {step}, got {listed(grid[:5])}, …."
    if min(grid) <= -1:
        yield "labels", f"they must be above -1, which stands for an unlabeled example, got {min(grid)}."


def _wrong_metrics(task: Any) -> Problems:
    if task.label_step is not None:
        kinds, predicted = ("values",), "a number"
    elif task.labels is not None:
        kinds, predicted = ("ids",), "a class"
    else:
        kinds, predicted = ("texts",), "free-form text (no `labels`)"
    suitable = [name for name, kind in METRIC_KINDS.items() if kind in kinds]
    # A class is right or wrong, so no metric that measures similar texts suits it.
    suitable += ["exact_match"] if kinds == ("ids",) else []
    for name in task.metric_names:
        if name not in METRIC_KINDS:
            near = suggestion(name, METRIC_KINDS, "metrics")
            yield "metric_names", f"there is no metric {name!r}.{near} (`register_metric` adds one of your own.)"
        if name not in suitable:
            yield (
                "metric_names",
                f"{name!r} does not suit predictions that are {predicted}. Choose from {listed(suitable)}.",
            )
    if task.metric_to_optimize not in task.metric_names:
        yield (
            "metric_to_optimize",
            f"{task.metric_to_optimize!r} is not one of `metric_names`: {listed(task.metric_names)}.",
        )


def _wrong_splits(task: Any) -> Problems:
    if not task.splits or len(set(task.splits)) < len(task.splits):
        yield "train_split", f"the splits must have different names, got {listed(task.splits)}."
    if not task.train_split and not task.train_on:
        yield "train_on", "a task without `train_split` needs another task to train on."
    for name in ("submission_names", "submission_rows"):
        if len(getattr(task, name)) not in (0, len(task.test_splits)):
            yield name, f"there must be one for each test split ({listed(task.test_splits)}), or none."
