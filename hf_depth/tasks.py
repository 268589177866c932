"""The registry of tasks: `DATASET_VALS`, and what one entry says about its rows."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from .task_entries import BENCHMARK_ALIASES, BENCHMARKS, METRIC_ALIASES, TASK_ALIASES

Row = Mapping[str, Any]

METRIC_NAMES = (
    "accuracy",
    "f1",
    "f1_macro",
    "precision",
    "recall",
    "matthews_correlation",
    "pearson",
    "spearman",
    "rougeL",
    "exact_match",
)
SUBMISSION_LABELS = ("text", "id", "number")

HIDDEN = -1  # the class of a row whose label is not published


@dataclass(frozen=True)
class TaskSpec:
    """
    One task: how a row becomes a prompt and an answer, how answers are scored, and where the rows come from.

    Args:
        benchmark, name: the keys of the task in `DATASET_VALS`.
        text_column_name: the columns with text, in the order of the prompt. One name is taken for one column.
        prefix: what stands before the text of each column, one per column.
        labels: the text of each class by its number, or a sequence in the order of the numbers; `None` for open text.
        label_column_name: the column with the class (its number or its text), or with the answer or answers if the
            text is open. `-1`, `None` or an empty text stand for a label that is not published.
        metric_names: among `METRIC_NAMES`. By default accuracy for classes, ROUGE-L and exact match for open text,
            the two correlations for numbers.
        metric_to_optimize: the one of them by which the best model is chosen; by default the first.
        greater_is_better: whether more of it is better.
        label_step: for a number to predict, the distance between two neighbouring `labels`, which are then texts of
            equally spaced numbers; a row's number is rounded to the nearest (ties to the even one).
        path, config_name: the data set on the Hub.
        train_split, validation_splits, test_splits: the names of its splits. An empty `train_split` is for a task that
            is only tested.
        train_on: the task of the same benchmark whose training and validation data it uses.
        submission_names: the file of each test split for the benchmark's server.
        submission_labels: what such a file holds: `"text"` or `"id"` of the class, or a `"number"`.
        submission_rows: how many rows the server expects for each test split; empty if unknown.
        loader: what reads the rows, a key of `task_data.LOADERS`.
        max_source_length, max_target_length: tokens at most.
        version: raised when a score may change.

    Raises:
        `ValueError`: naming the task, the field, its value and what is accepted.
    """

    benchmark: str
    name: str
    text_column_name: tuple[str, ...]
    prefix: tuple[str, ...]
    labels: Mapping[int, str] | None = None
    label_column_name: str = "label"
    metric_names: tuple[str, ...] = ()
    metric_to_optimize: str = ""
    greater_is_better: bool = True
    label_step: float | None = None
    path: str | None = None
    config_name: str | None = None
    train_split: str = "train"
    validation_splits: tuple[str, ...] = ("validation",)
    test_splits: tuple[str, ...] = ("test",)
    train_on: str | None = None
    submission_names: tuple[str, ...] = ()
    submission_labels: str = "text"
    submission_rows: tuple[int, ...] = ()
    loader: str = "table"
    max_source_length: int = 512
    max_target_length: int = 16
    version: int = 1

    def __post_init__(self):
        for name in (
            "text_column_name",
            "prefix",
            "metric_names",
            "validation_splits",
            "test_splits",
            "submission_names",
            "submission_rows",
        ):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str | int) else tuple(value or ()))
        if self.labels is not None and not isinstance(self.labels, Mapping):
            object.__setattr__(self, "labels", dict(enumerate(self.labels)))
        metrics = tuple(METRIC_ALIASES.get(name, name) for name in self.metric_names)
        optimized = METRIC_ALIASES.get(self.metric_to_optimize, self.metric_to_optimize)
        metrics = metrics or ((optimized,) if optimized else self._usual_metrics())
        object.__setattr__(self, "metric_names", metrics)
        object.__setattr__(self, "metric_to_optimize", optimized or metrics[0])

    def _usual_metrics(self) -> tuple[str, ...]:
        if self.labels is None:
            return ("rougeL", "exact_match")
        return ("accuracy",) if self.label_step is None else ("pearson", "spearman")

    @property
    def num_labels(self) -> int:
        return len(self.labels or ())

    @property
    def is_regression(self) -> bool:
        return self.label_step is not None

    @property
    def is_classification(self) -> bool:
        return self.labels is not None and not self.is_regression

    def input_texts(self, row: Row) -> list[str]:
        """The parts of the prompt, one per text column: its prefix and its text."""
        parts = []
        for column, prefix in zip(self.text_column_name, self.prefix, strict=True):
            text = row.get(column)
            if not isinstance(text, str):
                raise ValueError(
                    f"Task {self.name!r}: the column {column!r} must hold text, but holds {text!r:.80}"
                    + (f". The columns are: {_listed(row)}." if column not in row else ".")
                )
            parts.append(f"{prefix.strip()} {text.lstrip()}" if prefix.strip() else text)
        return parts

    def prompt(self, row: Row) -> str:
        """What the model reads."""
        return " ".join(self.input_texts(row))

    def targets(self, row: Row) -> list[str]:
        """What the model should write: all right answers; none if they are hidden."""
        if self.labels is None:
            answers = row.get(self.label_column_name)
            return [answers] if isinstance(answers, str) else list(answers or ())
        label_id = self.label_id(row)
        return [] if label_id == HIDDEN else [self.labels[label_id]]

    def label_id(self, row: Row) -> int:
        """
        The class of a row by its number, text or number as text; `-1` if it is hidden.

        Raises:
            `ValueError`: if the label is none of the task's.
        """
        label = row.get(self.label_column_name)
        if self.labels is None:
            raise ValueError(f"Task {self.name!r} has open answers, hence no classes.")
        if _is_hidden(label):
            return HIDDEN
        if self.is_regression:
            return self._nearest(self.label_value(row))
        if isinstance(label, str):
            label_id = self.parse(label)
            if label_id != HIDDEN:
                return label_id
        label_id = _as_whole_number(label)
        if label_id not in self.labels:
            raise self._bad_label(label)
        return label_id

    def label_value(self, row: Row) -> float:
        """The number of a row as it is in the data, not rounded; `-1.0` if it is hidden."""
        label = row.get(self.label_column_name)
        if _is_hidden(label):
            return float(HIDDEN)
        try:
            value = float(label)
        except (TypeError, ValueError):
            raise self._bad_label(label) from None
        grid = [float(text) for text in self.labels.values()]
        if not min(grid) <= value <= max(grid):
            raise self._bad_label(label)
        return value

    def parse(self, answer: str) -> int:
        """The class whose text an answer is, white space at its ends aside; `-1` if it is none."""
        answer = answer.strip()
        return next((label_id for label_id, text in (self.labels or {}).items() if text == answer), HIDDEN)

    def _nearest(self, value: float) -> int:
        """The class whose number is nearest."""
        # Four decimals, since a float32 of the Hub turns 0.7, halfway between two steps, into 0.69999999.
        steps = (Fraction(str(round(value, 4))) - Fraction(self.labels[0])) / Fraction(str(self.label_step))
        return round(steps)

    def _bad_label(self, label: Any) -> ValueError:
        labels = list(self.labels.items())
        shown = f"numbers from {labels[0][1]} to {labels[-1][1]}"
        if not self.is_regression:
            shown = ", ".join(f"{number} ({text})" for number, text in labels[:12]) + (", …" if labels[12:] else "")
        return ValueError(
            f"Task {self.name!r}: the column {self.label_column_name!r} holds {label!r:.80}, which is none of its "
            f"labels: {shown}; -1 stands for a hidden one."
        )


FIELDS = {field.name for field in fields(TaskSpec)}

DATASET_VALS: dict[str, dict[str, TaskSpec | dict[str, Any]]] = {}


def get_task(name: str, benchmark: str | None = None) -> TaskSpec:
    """
    Find a task of `DATASET_VALS`.

    Args:
        name: of the task, such as `"rte"`.
        benchmark: needed if several benchmarks have a task of that name.

    Raises:
        `ValueError`: if there is none; it names the nearest ones.
    """
    if benchmark is None:
        found = [b for b, tasks in DATASET_VALS.items() if TASK_ALIASES.get(b, {}).get(name, name) in tasks]
        if len(found) > 1:
            raise ValueError(f"Several benchmarks have a task {name!r}: {_listed(found)}. Give the `benchmark`, too.")
        if not found:
            everything = [task for tasks in DATASET_VALS.values() for task in tasks]
            raise ValueError(f"There is no task {name!r}.{_suggestion(name, everything, 'tasks')}")
        benchmark = found[0]
    benchmark = _benchmark(benchmark)
    tasks = DATASET_VALS[benchmark]
    name = TASK_ALIASES.get(benchmark, {}).get(name, name)
    if name not in tasks:
        raise ValueError(f"The benchmark {benchmark!r} has no task {name!r}.{_suggestion(name, tasks, 'tasks')}")
    return as_task(tasks[name], benchmark, name)


def task_names(benchmark: str) -> list[str]:
    """The tasks of a benchmark."""
    return list(DATASET_VALS[_benchmark(benchmark)])


def as_task(entry: TaskSpec | Mapping[str, Any], benchmark: str, name: str) -> TaskSpec:
    """Turn a plain entry into a task: `prefix_1`, `prefix_2`, … and `text_column_name_1`, … are taken together."""
    if isinstance(entry, TaskSpec):
        return entry
    return TaskSpec(**({"benchmark": benchmark, "name": name} | dict(entry)))


def register_task(
    task: TaskSpec | Mapping[str, Any],
    benchmark: str | None = None,
    name: str | None = None,
    overwrite: bool = False,
) -> TaskSpec:
    """
    Add a task to `DATASET_VALS`.

    Args:
        task: a task, or a plain entry.
        benchmark, name: where the entry does not give them.
        overwrite: replace another task of that name.

    Raises:
        `ValueError`: if the entry is not valid, or if there is another task of that name.
    """
    task = as_task(task, benchmark, name)
    tasks = DATASET_VALS.setdefault(task.benchmark, {})
    if not overwrite and task.name in tasks and as_task(tasks[task.name], task.benchmark, task.name) != task:
        raise ValueError(
            f"The benchmark {task.benchmark!r} already has another task {task.name!r}. Choose another `name`, or "
            "replace it by `register_task(…, overwrite=True)`."
        )
    tasks[task.name] = task
    return task


def _benchmark(name: str) -> str:
    benchmark = BENCHMARK_ALIASES.get(name, name)
    if benchmark not in DATASET_VALS:
        raise ValueError(f"There is no benchmark {name!r}.{_suggestion(name, DATASET_VALS, 'benchmarks')}")
    return benchmark


def _suggestion(name: str, names: Iterable[str], kind: str) -> str:
    names = list(names)
    by_lower = {other.lower(): other for other in names}
    near = [by_lower[key] for key in difflib.get_close_matches(name.lower(), by_lower, n=3)]
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else f" The {kind} are: {_listed(names)}."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _is_hidden(label: Any) -> bool:
    return label is None or label == -1 or (isinstance(label, str) and label.strip() in ("", "-1", "-1.0"))


def _as_whole_number(label: Any) -> int | None:
    """The whole number that a label is, perhaps as text or as a float; `None` if it is none."""
    try:
        number = float(label)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else None


def _register_entries(benchmarks: Mapping[str, Mapping[str, Mapping[str, Any]]], names: Sequence[str]) -> None:
    for benchmark in names:
        for name, entry in benchmarks[benchmark].items():
            register_task(entry, benchmark, name)


_register_entries(BENCHMARKS, list(BENCHMARKS))
