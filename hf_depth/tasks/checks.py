"""Checks of tasks, so that a mistake is found before any data is read."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ..suggestions import listed, suggestion

METRIC_ALIASES = {"mcc": "matthews_correlation", "pearsonr": "pearson", "spearmanr": "spearman"}
METRIC_ALIASES |= {"rouge_1": "rouge1", "rouge_2": "rouge2", "rouge_l": "rougeL", "sacrebleu": "bleu", "chrF": "chrf"}

# What each metric of `evaluation.metrics` compares: class "ids", "values" or "texts"; `register_metric` adds to it.
METRIC_KINDS: dict[str, str] = {
    **dict.fromkeys(("accuracy", "f1", "f1_macro", "precision", "recall", "matthews_correlation"), "ids"),
    **dict.fromkeys(("pearson", "spearman"), "values"),
    **dict.fromkeys(("rougeL", "rouge1", "rouge2", "exact_match", "squad_exact_match", "squad_f1"), "texts"),
    **dict.fromkeys(("bleu", "chrf"), "texts"),
}

SUBMISSION_LABELS = ("text", "id", "number")

PREDICTION_MODES = ("generate", "score_labels")
EVALUATION_MODES = (*PREDICTION_MODES, "probe")  # a probe predicts by itself, not by the model's decoder

# What a probe reads of sentence embeddings, by the number of text columns that it needs (`None`: any).
PROBE_FEATURES = {"concatenation": None, "first_differences": None, "difference": 2, "product": 2}

_NAME = re.compile(r"[\w][\w.\-]*")  # it becomes part of file names and of metric names


class FieldError(ValueError):
    """A field of a task has a value that it must not have."""

    def __init__(self, task: str, field: str, message: str):
        super().__init__(f"Task {task!r}, field `{field}`: {message}")
        self.field = field


def check_fields(task: str, entry: Mapping[str, Any], names: Iterable[str], required: Iterable[str]) -> None:
    """Check that an entry has no unknown field and lacks no required one."""
    for field in entry:
        if field not in names:
            raise FieldError(task, field, f"there is no such field.{suggestion(field, names, 'fields')}")
    for field in required:
        if field not in entry:
            raise FieldError(task, field, "it is missing.")


def check_task(task: Any) -> None:
    """
    Check the fields of a task and how they fit together.

    Args:
        task (`TaskSpec`): the task, whose module imports this one.

    Raises:
        [`FieldError`]: naming the task and the field.
    """
    _check_types(task)
    _check_columns(task)
    if task.labels is not None:
        _check_labels(task)
    if task.label_step is not None:
        _check_grid(task)
    _check_metrics(task)
    _check_splits(task)


def check_prefixes(task: Any) -> None:
    """
    Check that no prefix is meant as a template. (Not of a task that a fine-tuned model brings, which has read it so.)

    Args:
        task (`TaskSpec`): the task.

    Raises:
        [`FieldError`]: naming the task and the column.
    """
    for column in (*task.text_column_name, task.label_column_name):
        if any(f"{{{column}}}" in prefix for prefix in task.prefix):
            raise _error(
                task,
                "prefix",
                f"'{{{column}}}' would stay in the prompt as it is. A prefix is no template: the text of its column "
                "follows it. For several columns give a list of prefixes, one for each of `text_column_name`.",
            )


def check_prediction_mode(tasks: Iterable[Any], prediction_mode: str, modes: Sequence[str] = PREDICTION_MODES) -> None:
    """
    Check that there is such a mode, and that labels are scored only where there are labels.

    Args:
        tasks (`Iterable[TaskSpec]`): what is evaluated.
        prediction_mode: `"generate"`, `"score_labels"` or, where `modes` has it, `"probe"`.
        modes: those that there are.

    Raises:
        `ValueError`: naming the mode, or the free-form tasks.
    """
    if prediction_mode not in modes:
        raise ValueError(
            f"`prediction_mode` must be one of {', '.join(modes)}, got {prediction_mode!r}."
            f"{suggestion(str(prediction_mode), modes)}"
        )
    tasks = list(tasks)
    numbers = [task.name for task in tasks if task.is_regression]
    if numbers and prediction_mode == "probe":
        raise ValueError(f"`prediction_mode` probe predicts classes, but {listed(numbers)} predicts numbers.")
    free_form = [task.name for task in tasks if task.labels is None]
    if free_form and prediction_mode != "generate":
        raise ValueError(
            f"`prediction_mode` {prediction_mode} is for tasks with labels, but {listed(free_form)} is free-form. Use "
            "`prediction_mode` generate."
        )


# Texts of the label column that stand for a label which is not published.
UNLABELED_TEXTS = ("", "-1", "-1.0")

# What may be wrong in published files, see `TaskSpec.file_defects`.
FILE_DEFECTS = ("broken_lines", "empty_texts")


def _check_types(task: Any) -> None:
    for item in fields(task):
        value = getattr(task, item.name)
        if item.type in (str, bool, int) and type(value) is not item.type:
            raise _error(task, item.name, f"must be of type `{item.type.__name__}`, got {value!r}.")
        if item.type == str | None and not isinstance(value, str | None):
            raise _error(task, item.name, f"must be text or nothing, got {value!r}.")
        bad = [part for part in value if not isinstance(part, str)] if item.type == tuple[str, ...] else []
        if bad:
            raise _error(task, item.name, f"must hold texts, but holds {bad[0]!r}.")
    for defect in task.file_defects:
        if defect not in FILE_DEFECTS:
            raise _error(task, "file_defects", f"must be among {listed(FILE_DEFECTS)}, but holds {defect!r}.")
    for number in task.submission_rows:
        if type(number) is not int or number < 0:
            raise _error(task, "submission_rows", f"must be numbers of rows (0: unknown), but holds {number!r}.")
    aliases = task.column_aliases
    if not isinstance(aliases, Mapping) or not all(isinstance(column, str) for column in aliases.values()):
        raise _error(task, "column_aliases", f"must map names to names, got {task.column_aliases!r}.")
    for name in ("benchmark", "name"):
        if not _NAME.fullmatch(getattr(task, name)):
            raise _error(task, name, f"must be letters, digits, `_`, `-` and `.`, got {getattr(task, name)!r}.")
    if not task.loader:
        raise _error(task, "loader", "must name a loader, such as 'table', got ''.")
    for name in ("validation_splits", "test_splits", "submission_names"):
        if "" in getattr(task, name):
            raise _error(task, name, f"must hold names, got {getattr(task, name)!r}. Give `[]` if there are none.")
    for name in ("max_source_length", "max_target_length", "version"):
        if getattr(task, name) < 1:
            raise _error(task, name, f"must be at least 1, got {getattr(task, name)}.")
    if task.probe_hidden_units < 0:
        raise _error(task, "probe_hidden_units", f"must be at least 0, got {task.probe_hidden_units}.")


def _check_columns(task: Any) -> None:
    columns = task.text_column_name
    if not columns or "" in columns or len(set(columns)) < len(columns):
        raise _error(task, "text_column_name", f"must name one or several different columns, got {columns!r}.")
    if len(task.prefix) != len(columns):
        raise _error(
            task,
            "prefix",
            f"there must be one for each of the {len(columns)} text columns ({listed(columns)}), got "
            f"{len(task.prefix)}: {task.prefix!r}. Use an empty one where there is nothing to say.",
        )
    if not task.label_column_name or task.label_column_name in columns:
        raise _error(task, "label_column_name", f"must name another column, got {task.label_column_name!r}.")
    if task.probe_features not in PROBE_FEATURES:
        raise _error(
            task,
            "probe_features",
            f"got {task.probe_features!r}.{suggestion(task.probe_features, PROBE_FEATURES, 'choices')}",
        )
    needed = PROBE_FEATURES[task.probe_features]
    if needed not in (None, len(columns)):
        raise _error(
            task,
            "probe_features",
            f"{task.probe_features!r} is for {needed} text columns, but there are {len(columns)}.",
        )
    known = {*columns, task.label_column_name, "idx"}
    for alias, column in task.column_aliases.items():
        if column not in known:
            raise _error(
                task, "column_aliases", f"{alias!r} stands for {column!r}.{suggestion(column, known, 'columns')}"
            )


def _check_labels(task: Any) -> None:
    labels = task.labels
    if not isinstance(labels, Mapping) or not all(isinstance(number, int) for number in labels):
        raise _error(task, "labels", f"must map class numbers to texts or list the texts, got {labels!r}.")
    for number, text in labels.items():
        if isinstance(text, bool):
            word = "yes" if text else "no"
            raise _error(
                task,
                "labels",
                f"class {number!r} must be text, got {text!r}. YAML reads {word}, {str(text).lower()} and the like as "
                f"truth values: put quotes, as in '{word}'.",
            )
        if not isinstance(text, str) or not text.strip() or text != text.strip():
            quotes = f" Put quotes, as in '{text}'." if isinstance(text, int | float) else ""
            raise _error(
                task, "labels", f"class {number!r} must be text, with no space at its ends, got {text!r}.{quotes}"
            )
    if list(labels) != list(range(len(labels))) or len(labels) < 2:
        raise _error(
            task,
            "labels",
            f"there must be two classes or more, numbered 0, 1, 2, …, got {listed(labels)}. (A list numbers by "
            "itself; the data may hold the texts instead of the numbers.)",
        )
    texts = list(labels.values())
    for text in texts:
        if text in UNLABELED_TEXTS:
            raise _error(task, "labels", f"{text!r} stands for an unlabeled example, so no label can be called so.")
        if texts.count(text) > 1:
            raise _error(task, "labels", f"several classes have the text {text!r}.")


def _check_grid(task: Any) -> None:
    step = task.label_step
    if isinstance(step, bool) or not isinstance(step, int | float) or not (math.isfinite(step) and step > 0):
        raise _error(task, "label_step", f"must be a positive number, got {step!r}.")
    try:
        grid = [float(text) for text in (task.labels or {}).values()]
    except ValueError as error:
        raise _error(task, "labels", f"with a `label_step`, they must be numbers: {error}.") from None
    if not grid or any(not math.isclose(b - a, step, rel_tol=1e-6) for a, b in zip(grid, grid[1:], strict=False)):
        raise _error(task, "label_step", f"the labels must be numbers in steps of {step}, got {listed(grid[:5])}, ….")
    if min(grid) <= -1:
        raise _error(task, "labels", f"they must be above -1, which stands for an unlabeled example, got {min(grid)}.")


def _check_metrics(task: Any) -> None:
    if task.label_step is not None:
        suitable, kind = _metrics_of("values"), "a number"
    elif task.labels is not None:
        # A class is right or wrong, however alike the texts of two of them are.
        suitable, kind = [*_metrics_of("ids"), "exact_match"], "a class"
    else:
        suitable, kind = _metrics_of("texts"), "free-form text (no `labels`)"
    for name in task.metric_names:
        if name not in METRIC_KINDS:
            raise _error(
                task,
                "metric_names",
                f"there is no metric {name!r}.{suggestion(name, METRIC_KINDS, 'metrics')} (`register_metric` adds one "
                "of your own.)",
            )
        if name not in suitable:
            raise _error(
                task,
                "metric_names",
                f"{name!r} does not suit predictions that are {kind}. Choose of {listed(suitable)}.",
            )
    if task.metric_to_optimize not in task.metric_names:
        raise _error(
            task,
            "metric_to_optimize",
            f"{task.metric_to_optimize!r} is none of `metric_names`: {listed(task.metric_names)}.",
        )


def _metrics_of(*kinds: str) -> list[str]:
    return [name for name, kind in METRIC_KINDS.items() if kind in kinds]


def _check_splits(task: Any) -> None:
    splits = [split for split in (task.train_split, *task.validation_splits, *task.test_splits) if split]
    if not splits or len(set(splits)) < len(splits):
        raise _error(task, "train_split", f"the splits must have different names, got {listed(splits)}.")
    if not task.train_split and not task.train_on:
        raise _error(task, "train_on", "a task without `train_split` needs another task to train on.")
    for name in ("submission_names", "submission_rows"):
        if len(getattr(task, name)) not in (0, len(task.test_splits)):
            raise _error(task, name, f"there must be one for each test split ({listed(task.test_splits)}), or none.")
    if task.submission_labels not in SUBMISSION_LABELS:
        raise _error(
            task,
            "submission_labels",
            f"got {task.submission_labels!r}.{suggestion(task.submission_labels, SUBMISSION_LABELS, 'choices')}",
        )


def _error(task: Any, field: str, message: str) -> FieldError:
    return FieldError(task.name, field, message)
