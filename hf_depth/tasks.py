"""The registry of tasks: `DATASET_VALS`, and what one entry says about its rows."""

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from fractions import Fraction
from typing import Any

from .task_checks import FieldError, check_fields, check_task, listed, suggestion
from .task_entries import BENCHMARK_ALIASES, BENCHMARKS, METRIC_ALIASES, TASK_ALIASES
from .task_files import read_task_file

Row = Mapping[str, Any]

HIDDEN = -1  # the class of a row whose label is not published


@dataclass(frozen=True)
class TaskSpec:
    """
    One task: how a row becomes a prompt and an answer, how answers are scored, and where the rows come from.

    Args:
        benchmark, name: the keys of the task in `DATASET_VALS`.
        text_column_name: the columns with text, in the order of the prompt. One name is taken for one column.
        prefix: what stands before the text of each column, one per column.
        labels: the text of each class by its number from 0, or a sequence in the order of the numbers; `None` for open
            text. A class `-1`, which earlier registries had for hidden labels, is left out.
        label_column_name: the column with the class (its number or its text), or with the answer or answers if the
            text is open. `-1`, `None` or an empty text stand for a label that is not published.
        metric_names: among `task_checks.METRIC_NAMES`. By default accuracy for classes, ROUGE-L and exact match for
            open text, the two correlations for numbers.
        metric_to_optimize: the one of them by which the best model is chosen; by default the first.
        greater_is_better: whether more of it is better.
        label_step: for a number to predict, the distance between two neighbouring `labels`, which are then texts of
            equally spaced numbers; a row's number is rounded to the nearest (ties to the even multiple).
        path, config_name: the data set on the Hub.
        train_split, validation_splits, test_splits: the names of its splits. An empty `train_split` is for a task that
            is only tested.
        train_on: the task of the same benchmark whose training and validation data it uses.
        submission_names: the file of each test split for the benchmark's server; none if it has no server.
        submission_labels: what such a file holds: the `"text"` or the `"id"` of a class, or a `"number"`.
        submission_rows: how many rows the server expects for each test split; empty if unknown.
        loader: what reads the rows, a key of `task_data.LOADERS`.
        column_aliases: other names that files have for the columns, and the names used here.
        file_columns: the columns of .tsv files without a header line.
        max_source_length, max_target_length: tokens at most.
        version: raised when a score may change.

    Raises:
        `ValueError`: naming the task, the field, its value and what is accepted.

    >>> task = TaskSpec("mine", "tone", "review", "tone review:", labels=("sad", "glad"))
    >>> task.prompt({"review": "A fine film.", "label": 1}), task.targets({"label": 1})
    ('tone review: A fine film.', ['glad'])
    """

    benchmark: str
    name: str
    text_column_name: tuple[str, ...]
    prefix: tuple[str, ...]
    labels: Mapping[int, str] | None = field(default=None, hash=False)
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
    column_aliases: Mapping[str, str] = field(default_factory=dict, hash=False)
    file_columns: tuple[str, ...] = ()
    max_source_length: int = 512
    max_target_length: int = 16
    version: int = 1

    def __post_init__(self):
        for item in fields(self):
            if item.type == tuple[str, ...] or item.type == tuple[int, ...]:
                value = getattr(self, item.name)
                self._set(item.name, tuple(value) if isinstance(value, list | tuple) else (value,))
        if isinstance(self.labels, list | tuple):
            self._set("labels", dict(enumerate(self.labels)))
        elif isinstance(self.labels, Mapping):
            labels = {whole_number(key): text for key, text in self.labels.items()}
            if None not in labels:  # else `check_task` says what is wrong
                self._set("labels", {number: labels[number] for number in sorted(labels) if number != HIDDEN})
        # As text, for what is given may be anything until `check_task` has seen it.
        metrics = tuple(METRIC_ALIASES.get(str(name), name) for name in self.metric_names)
        optimized = METRIC_ALIASES.get(str(self.metric_to_optimize), self.metric_to_optimize)
        is_named = optimized and isinstance(optimized, str)
        self._set("metric_names", metrics or ((optimized,) if is_named else self._usual_metrics()))
        self._set("metric_to_optimize", optimized or self.metric_names[0])
        check_task(self)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # the way to complete a frozen dataclass

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
                    + (f". The columns are: {listed(row)}." if column not in row else ".")
                )
            parts.append(f"{prefix.strip()} {text.lstrip()}" if prefix.strip() else text)
        return parts

    def prompt(self, row: Row) -> str:
        """What the model reads."""
        return " ".join(self.input_texts(row))

    def targets(self, row: Row) -> list[str]:
        """What the model should write: all right answers; none if they are hidden."""
        if self.labels is None:
            answers = row.get(self.label_column_name) or []
            return [answers] if isinstance(answers, str) else list(answers)
        label_id = self.label_id(row)
        return [] if label_id == HIDDEN else [self.labels[label_id]]

    def label_id(self, row: Row) -> int:
        """
        The class of a row by its number or its text, or by the number to predict; `-1` if it is hidden. In rows that
        [`task_rows.check_rows`] has read, it is the number.

        Raises:
            `ValueError`: if the label is none of the task's.
        """
        label = row.get(self.label_column_name)
        if self.labels is None:
            raise ValueError(f"Task {self.name!r} has open answers, hence no classes.")
        if is_hidden(label):
            return HIDDEN
        if self.is_regression:
            return self._nearest(self.label_value(row))
        label_id = self.parse(label) if isinstance(label, str) else label
        if label_id not in range(self.num_labels):
            raise self.bad_label(label)
        return int(label_id)

    def label_value(self, row: Row) -> float:
        """The number of a row as it is in the data, not rounded; `-1.0` if it is hidden."""
        label = row.get(self.label_column_name)
        if is_hidden(label):
            return float(HIDDEN)
        try:
            value = float(label)
        except (TypeError, ValueError):
            raise self.bad_label(label) from None
        grid = [float(text) for text in self.labels.values()]
        if not min(grid) <= value <= max(grid):
            raise self.bad_label(label)
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

    def bad_label(self, label: Any) -> ValueError:
        """The error for a label that is none of the task's."""
        labels = list(self.labels.items())
        shown = f"numbers from {labels[0][1]} to {labels[-1][1]}"
        if not self.is_regression:
            shown = ", ".join(f"{number} ({text})" for number, text in labels[:12]) + (", …" if labels[12:] else "")
        return ValueError(
            f"Task {self.name!r}: the column {self.label_column_name!r} holds {label!r:.80}, which is none of its "
            f"labels: {shown}; -1 stands for a hidden one."
        )


_REQUIRED = [item.name for item in fields(TaskSpec) if item.default is MISSING and item.default_factory is MISSING]
_NUMBERED = re.compile(r"(prefix|text_column_name)_(\d+)")

DATASET_VALS: dict[str, dict[str, TaskSpec | dict[str, Any]]] = {}


def get_task(name: str, benchmark: str | None = None) -> TaskSpec:
    """
    Find a task of `DATASET_VALS`.

    Args:
        name: of the task, such as `"rte"` or, with its benchmark, `"glue/rte"`.
        benchmark: needed if several benchmarks have a task of that name. `"nyu-mll/glue"` and `"OfekGlick/DiscoEval"`,
            their names on the Hub, stand for `"glue"` and `"disco_eval"`.

    Raises:
        `ValueError`: if there is none; it names the nearest ones.
    """
    if benchmark is None and "/" in name:
        benchmark, name = name.rsplit("/", 1)
    if benchmark is None:
        found = [b for b, tasks in DATASET_VALS.items() if TASK_ALIASES.get(b, {}).get(name, name) in tasks]
        if len(found) > 1:
            raise ValueError(f"Several benchmarks have a task {name!r}: {listed(found)}. Give the `benchmark`, too.")
        if not found:
            everything = [task for tasks in DATASET_VALS.values() for task in tasks]
            raise ValueError(f"There is no task {name!r}.{suggestion(name, everything, 'tasks')}")
        benchmark = found[0]
    benchmark = _benchmark(benchmark)
    tasks = DATASET_VALS[benchmark]
    name = TASK_ALIASES.get(benchmark, {}).get(name, name)
    if name not in tasks:
        raise ValueError(f"The benchmark {benchmark!r} has no task {name!r}.{suggestion(name, tasks, 'tasks')}")
    return as_task(tasks[name], benchmark, name)


def task_names(benchmark: str) -> list[str]:
    """The tasks of a benchmark."""
    return list(DATASET_VALS[_benchmark(benchmark)])


def as_task(entry: TaskSpec | Mapping[str, Any], benchmark: str | None = None, name: str | None = None) -> TaskSpec:
    """
    Turn a plain entry, as in `DATASET_VALS`, into a task.

    Args:
        entry: fields of a task. `prefix_1`, `prefix_2`, … and `text_column_name_1`, … are taken together.
        benchmark, name: where the entry does not give them.

    Raises:
        `ValueError`: naming the field, if one is unknown (with near matches), missing or not valid.
    """
    if isinstance(entry, TaskSpec):
        return entry
    given = {"benchmark": benchmark, "name": name}
    entry = {key: value for key, value in given.items() if value is not None} | _together(entry)
    check_fields(str(entry.get("name", "?")), entry, [item.name for item in fields(TaskSpec)], _REQUIRED)
    return TaskSpec(**entry)


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
        raise FieldError(
            task.name,
            "name",
            f"the benchmark {task.benchmark!r} already has another task of that name. Choose another one, or replace "
            "it by `register_task(…, overwrite=True)`.",
        )
    tasks[task.name] = task
    return task


def load_task_file(path: str | os.PathLike) -> list[TaskSpec]:
    """
    Add the tasks of a YAML file to `DATASET_VALS`: one task, a list of tasks, or `benchmark: {task: entry}`.

    A task without `benchmark` belongs to `"custom"`.

    Raises:
        `ValueError`: naming the file, the line and the field.
        `FileNotFoundError`: if there is no such file.
    """
    tasks = []
    for entry in read_task_file(path):
        try:
            tasks.append(register_task(entry.fields))
        except FieldError as error:
            line = entry.lines.get(error.field) or entry.lines.get(f"{error.field}_1") or entry.lines[""]
            raise ValueError(f"{path}, line {line}: {error}") from error
    return tasks


def _together(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry with `prefix_1`, `prefix_2`, … in one field."""
    plain, numbered = {}, {}
    for key, value in entry.items():
        match = _NUMBERED.fullmatch(key)
        if match:
            numbered.setdefault(match[1], {})[int(match[2])] = value
        else:
            plain[key] = value
    for key, values in numbered.items():
        if key in plain or sorted(values) != list(range(1, len(values) + 1)):
            raise FieldError(
                str(entry.get("name", "?")),
                key,
                f"give either `{key}` or `{key}_1`, `{key}_2`, … without a gap, got "
                f"{listed(name for name in entry if name.startswith(key))}.",
            )
        plain[key] = tuple(values[number] for number in sorted(values))
    return plain


def _benchmark(name: str) -> str:
    benchmark = BENCHMARK_ALIASES.get(name, name)
    if benchmark not in DATASET_VALS:
        raise ValueError(f"There is no benchmark {name!r}.{suggestion(name, DATASET_VALS, 'benchmarks')}")
    return benchmark


def is_hidden(label: Any) -> bool:
    """Whether a label, in the data or of a row, stands for one that is not published."""
    return label is None or label == -1 or (isinstance(label, str) and label.strip() in ("", "-1", "-1.0"))


def whole_number(label: Any) -> int | None:
    """The whole number that a label is, perhaps as text or as a float; `None` if it is none."""
    try:
        number = float(label)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else None


for _benchmark_name, _entries in BENCHMARKS.items():
    for _name, _entry in _entries.items():
        register_task(_entry, _benchmark_name, _name)
