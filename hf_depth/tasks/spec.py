"""TaskSpec: example -> prompt, targets, label id."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

from ..suggestions import listed
from .checks import METRIC_ALIASES, check_task

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
        metric_names: among `tasks.checks.METRIC_NAMES`. By default accuracy for classes, ROUGE-L and exact match for
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
        loader: what reads the rows, a key of `tasks.loading.LOADERS`.
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
        [`tasks.rows.check_rows`] has read, it is the number.

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
