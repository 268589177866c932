"""[`TaskSpec`]: example -> prompt, targets, label id; predicted text -> label id."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from numbers import Integral
from typing import Any

import numpy as np
from datasets import Dataset

from ..suggestions import listed, suggestion
from .checks import METRIC_ALIASES, UNLABELED_TEXTS, check_task

Example = Mapping[str, Any]

UNLABELED = -1  # the label id of an example whose label is not published
UNPARSED = -1  # the label id of a predicted text that is none of the labels


@dataclass(frozen=True)
class TaskSpec:
    """
    One task: how an example becomes a prompt and a target, how predictions are scored, and where the examples are.

    Args:
        benchmark, name (`str`): the keys of the task in `DATASET_VALS`.
        text_column_name (`tuple[str, ...]`):
            The columns with text, in the order of the prompt. One name is taken for one column.
        prefix (`tuple[str, ...]`): what stands before the text of each column, one per column.
        labels (`Mapping[int, str]` or `Sequence[str]`, *optional*):
            The text of each class by its number from 0, or a sequence in the order of the numbers; `None` for a
            free-form task. A class `-1`, which earlier registries had for unlabeled examples, is left out.
        label_column_name (`str`, *optional*, defaults to `"label"`):
            The column with the class (its number or its text), or with the reference or references of a free-form
            task. `-1`, `None` or an empty text stand for a label that is not published.
        metric_names (`tuple[str, ...]`, *optional*):
            Among `tasks.checks.METRIC_KINDS`. By default accuracy for classes, ROUGE-L and exact match for free-form
            tasks, the two correlations for numbers.
        metric_to_optimize (`str`, *optional*):
            The one of them by which the best model is chosen; by default the first.
        greater_is_better (`bool`, *optional*, defaults to `True`): whether more of it is better.
        label_step (`float`, *optional*):
            For a number to predict, the distance between two neighbouring `labels`, which are then texts of equally
            spaced numbers; an example's number is rounded to the nearest (ties to the even multiple).
        path, config_name (`str`, *optional*): the data set on the Hub.
        train_split (`str`), validation_splits, test_splits (`tuple[str, ...]`):
            The names of its splits. An empty `train_split` is for a task that is only tested.
        train_on (`str`, *optional*): the task of the same benchmark whose training and validation data it uses.
        submission_names (`tuple[str, ...]`, *optional*):
            The file of each test split for the benchmark's server; none if it has no server.
        submission_labels (`str`, *optional*, defaults to `"text"`):
            What such a file holds: the `"text"` or the `"id"` of a class, or a `"number"`.
        submission_rows (`tuple[int, ...]`, *optional*):
            How many rows the server expects for each test split; empty if unknown.
        loader (`str`, *optional*, defaults to `"table"`): what reads the examples, a key of `tasks.loading.LOADERS`.
        column_aliases (`Mapping[str, str]`, *optional*):
            Other names that files have for the columns, and the names used here.
        file_columns (`tuple[str, ...]`, *optional*): the columns of .tsv files without a header line.
        file_defects (`tuple[str, ...]`, *optional*):
            What is known to be wrong in the published files, and hence reported instead of refused:
            `"broken_lines"` (in .tsv files, lines with another number of cells than there are columns; they are left
            out) and `"empty_texts"` (they are kept).
        max_source_length, max_target_length (`int`): tokens at most.
        probe_features (`str`, *optional*):
            What a probe reads of the sentence embeddings x1, x2, … of the text columns, one of
            `evaluation.probe_features.FEATURES`; by default `"product"` for two columns, else `"concatenation"`.
        probe_hidden_units (`int`, *optional*, defaults to 0):
            Units of the probe's hidden layer; 0 is for a linear probe, which adds up what each text of a
            `"concatenation"` says by itself, hence cannot tell whether texts are alike.
        version (`int`, *optional*, defaults to 1): raised when a score may change.

    Raises:
        `ValueError`: naming the task, the field, its value and what is accepted.

    >>> task = TaskSpec("mine", "tone", "review", "tone review:", labels=("sad", "glad"))
    >>> task.prompt({"review": "A fine film.", "label": 1}), task.targets({"label": 1})
    ('tone review: A fine film.', ['glad'])
    >>> task.parse(" glad"), task.parse("rather glad")
    (1, -1)
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
    file_defects: tuple[str, ...] = ()
    max_source_length: int = 512
    max_target_length: int = 16
    probe_features: str = ""
    probe_hidden_units: int = 0
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
                self._set("labels", {number: labels[number] for number in sorted(labels) if number != UNLABELED})
        # As text, for what is given may be anything until `check_task` has seen it.
        metrics = tuple(METRIC_ALIASES.get(str(name), name) for name in self.metric_names)
        optimized = METRIC_ALIASES.get(str(self.metric_to_optimize), self.metric_to_optimize)
        is_named = optimized and isinstance(optimized, str)
        self._set("metric_names", metrics or ((optimized,) if is_named else self._usual_metrics()))
        self._set("metric_to_optimize", optimized or self.metric_names[0])
        usual_features = "product" if len(self.text_column_name) == 2 else "concatenation"
        self._set("probe_features", self.probe_features or usual_features)
        check_task(self)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # the way to complete a frozen dataclass

    def _usual_metrics(self) -> tuple[str, ...]:
        if self.labels is None:
            return ("rougeL", "exact_match")
        return ("accuracy",) if self.label_step is None else ("pearson", "spearman")

    @property
    def full_name(self) -> str:
        """Benchmark and name, such as `"glue/rte"`, by which `get_task` finds the task."""
        return f"{self.benchmark}/{self.name}"

    @property
    def splits(self) -> list[str]:
        """The names of its splits for training, validation and tests, those that there are."""
        return [split for split in (self.train_split, *self.validation_splits, *self.test_splits) if split]

    @property
    def num_labels(self) -> int:
        return len(self.labels or ())

    @property
    def is_regression(self) -> bool:
        return self.label_step is not None

    @property
    def is_classification(self) -> bool:
        return self.labels is not None and not self.is_regression

    def input_texts(self, example: Example) -> list[str]:
        """The parts of the prompt, one per text column: its prefix and its text."""
        parts = []
        for column, prefix in zip(self.text_column_name, self.prefix, strict=True):
            text = example.get(column)
            if not isinstance(text, str):
                raise ValueError(
                    f"Task {self.name!r}: the column {column!r} must hold text, but holds {text!r:.80}"
                    + (f". The columns are: {listed(example)}." if column not in example else ".")
                )
            parts.append(f"{prefix.strip()} {text.lstrip()}" if prefix.strip() else text)
        return parts

    def prompt(self, example: Example) -> str:
        """What the model reads."""
        return " ".join(self.input_texts(example))

    def targets(self, example: Example) -> list[str]:
        """What the model should write: all references, of which there are none if the example is unlabeled."""
        if self.labels is None:
            references = example.get(self.label_column_name) or []
            return [references] if isinstance(references, str) else list(references)
        label_id = self.label_id(example)
        return [] if label_id == UNLABELED else [self.labels[label_id]]

    def read_label(self, label: Any) -> int | float | list[str]:
        """
        What a label of the data means: the only place where one is read. What comes out is what the label column of
        examples holds from then on, see [`tasks.rows.check_rows`].

        Args:
            label: the number of a class, its text, or its number as text; a truth value means a class of its name
                ("True" or "true"). Where texts of the task are numbers, such as "1" to "5" for 0 to 4, a number in the
                data is such a text. (This is why a label is read once only: the class 1 is not the text "1".) For a
                task on numbers, a number or its text. For a free-form task, a text or a list of texts.

        Returns:
            The class, the number, or the list of references; -1, -1.0 or no reference if the label stands for none.

        Raises:
            `ValueError`: if the label is none of the task's.
        """
        if self.labels is None:
            return self._references(label)
        if self.is_regression:
            return self.label_value({self.label_column_name: label})
        if is_unlabeled(label):
            return UNLABELED
        number = None if isinstance(label, bool) else whole_number(label)  # 1 for Python, but "no" need not be class 0
        texts = [str(label)] if number is None else [str(label), str(number)]
        if str(label).strip().lower() in ("true", "false"):  # as Python, JSON or a CSV file spells it
            texts += [str(label).strip().lower(), str(label).strip().capitalize()]
        for text in texts:
            if (label_id := self.parse(text)) != UNPARSED:
                return label_id
        texts_are_numbers = any(whole_number(text) is not None for text in self.labels.values())
        if number in self.labels and not texts_are_numbers:
            return number
        raise self.bad_label(label)

    def _references(self, label: Any) -> list[str]:
        if label is None or label == UNLABELED or (isinstance(label, str) and not label.strip()):
            return []
        texts = [label] if isinstance(label, str) else label
        if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
            raise ValueError(
                f"the column {self.label_column_name!r} must hold a text or a list of texts that are not empty, but "
                f"holds {label!r:.80}."
            )
        return texts

    def label_id(self, example: Example) -> int:
        """
        The class of an example whose label [`~TaskSpec.read_label`] has read, or the class nearest to its number; `-1`
        if it is unlabeled. (The text of a class stands for it, too.)

        Raises:
            `ValueError`: if the label is none of the task's.
        """
        label = example.get(self.label_column_name)
        if self.labels is None:
            raise ValueError(f"Task {self.name!r} is free-form, hence has no classes.")
        if is_unlabeled(label):
            return UNLABELED
        if self.is_regression:
            return self._nearest(self.label_value(example))
        label_id = self.parse(label) if isinstance(label, str) else label
        if isinstance(label, bool) or label_id not in range(self.num_labels):
            raise self.bad_label(label)
        return int(label_id)

    def label_ids(self, examples: Dataset) -> list[int]:
        """The classes of all examples of a data set, see [`~TaskSpec.label_id`]; only the label column is read."""
        column = self.label_column_name
        return [self.label_id({column: label}) for label in examples[column][:]]

    def label_value(self, example: Example) -> float:
        """The number of an example as it is in the data, not rounded; `-1.0` if it is unlabeled."""
        label = example.get(self.label_column_name)
        if is_unlabeled(label):
            return float(UNLABELED)
        try:
            value = float(label)
        except (TypeError, ValueError):
            raise self.bad_label(label) from None
        if isinstance(label, bool) or not self._is_on_scale(value):
            raise self.bad_label(label)
        return value

    def parse(self, text: str) -> int:
        """
        The class that a predicted text names, white space at its ends aside; `-1` if it is none of the labels. If the
        task predicts a number, each number on the scale of the labels names the nearest of them: T5 takes `"5"` for
        `"5.0"`, too.
        """
        text = text.strip()
        label_id = next((label_id for label_id, label in (self.labels or {}).items() if label == text), UNPARSED)
        return self._parse_number(text) if label_id == UNPARSED and self.is_regression else label_id

    def _parse_number(self, text: str) -> int:
        try:
            value = float(text)
        except ValueError:
            return UNPARSED
        return self._nearest(value) if self._is_on_scale(value) else UNPARSED

    def parse_all(self, texts: Sequence[str]) -> np.ndarray:
        """The class of each predicted text, see [`~TaskSpec.parse`]: int64, `(number of texts,)`."""
        return np.array([self.parse(text) for text in texts], dtype=np.int64)

    def label_values(self, label_ids: Sequence[int]) -> np.ndarray:
        """
        The numbers that classes stand for, -1 for `UNPARSED`: those of the labels' texts if the task predicts a
        number, else the ids themselves; float64, `(number of classes,)`.
        """
        ids = np.asarray(label_ids, dtype=np.int64)
        if not self.is_regression:
            return ids.astype(np.float64)
        value_of = {label_id: float(text) for label_id, text in self.labels.items()} | {UNPARSED: float(UNPARSED)}
        return np.array([value_of[label_id] for label_id in ids.tolist()], dtype=np.float64)

    def _is_on_scale(self, value: float) -> bool:
        grid = [float(text) for text in self.labels.values()]
        return min(grid) <= value <= max(grid)  # not so of NaN

    def _nearest(self, value: float) -> int:
        """The class whose number is nearest."""
        # Four decimals, since a float32 of the Hub turns 0.7, halfway between two steps, into 0.69999999.
        steps = (Fraction(str(round(value, 4))) - Fraction(self.labels[0])) / Fraction(str(self.label_step))
        return round(steps)

    def bad_label(self, label: Any) -> ValueError:
        """The error for a label that is none of the task's."""
        labels = list(self.labels.items())
        shown, near = f"numbers from {labels[0][1]} to {labels[-1][1]}", ""
        if not self.is_regression:
            shown = ", ".join(f"{number} ({text})" for number, text in labels[:12]) + (", …" if labels[12:] else "")
            near = suggestion(str(label), self.labels.values())
        return ValueError(
            f"Task {self.name!r}: the column {self.label_column_name!r} holds {label!r:.80}, which is none of its "
            f"labels: {shown}; -1 stands for an unlabeled example.{near}"
        )


def is_unlabeled(label: Any) -> bool:
    """Whether a value of the label column stands for a label that is not published."""
    return label is None or label == -1 or (isinstance(label, str) and label.strip() in UNLABELED_TEXTS)


def whole_number(label: Any) -> int | None:
    """The whole number that a label is, perhaps as text or as a float; `None` if it is none."""
    if isinstance(label, Integral):
        return int(label)
    try:
        if isinstance(label, str) and label.strip().lstrip("+-").isdecimal():
            return int(label)  # a float would change numbers above 2**53
        number = float(label)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else None
