"""Examples in the columns of their task, each of them checked once, so that all later steps may rely on them."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, Features, List, Value

from ..data.files import check_one_kind, separator_advice, without_format
from ..suggestions import listed, suggestion
from .spec import UNLABELED, UNPARSED, TaskSpec, is_unlabeled, whole_number

logger = logging.getLogger(__name__)

# Part of the fingerprint of checked rows: raise it when the same data may give other rows.
ROWS_VERSION = 2

INDEX = "idx"  # the number of an example, by which a benchmark's server knows it


def check_rows(
    dataset: Dataset, spec: TaskSpec, place: str, needs_labels: bool = True, allow_empty_texts: bool = False
) -> Dataset:
    """
    Bring examples into the columns of their task and check each of them.

    Args:
        dataset: examples with the columns of the task, or the `column_aliases` of these. A list of texts is joined. A
            label column that is a `ClassLabel` is read by its names, if these are the task's labels or their numbers.
        spec: the task.
        place: where the examples come from, for errors.
        needs_labels: whether an unlabeled example is an error. Else the column may be missing; then all are unlabeled.
        allow_empty_texts: report empty texts instead of raising, for data that the user cannot repair.

    Returns:
        The examples with the text columns of the task, its label column and `idx`. A label is the number of the class
        (int64; `-1`: unlabeled), for a task on numbers the number (float64; `-1.0`: unlabeled), for a free-form task
        the list of references. `idx` is the one of the data, or else the place of the example.

    Raises:
        `ValueError`: naming the place, the row and the column, and what is accepted; or if there are no rows, or only
            some of the names of a `ClassLabel` are labels of the task.
    """
    dataset = _rename(without_format(dataset), spec)
    _check_columns(dataset, spec, place, needs_labels)
    if not len(dataset):
        raise ValueError(f"{place} has no rows.")
    for column in (*spec.text_column_name, *([spec.label_column_name] if spec.labels is None else [])):
        try:
            check_one_kind(dataset, column)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
    label = List(Value("string")) if spec.labels is None else Value("float64" if spec.is_regression else "int64")
    texts = {column: Value("string") for column in spec.text_column_name}
    names, is_numbered = _class_names(dataset, spec, place), _has_row_numbers(dataset)
    checker = _RowChecker(spec, place, needs_labels, allow_empty_texts, is_numbered, names, ROWS_VERSION)
    rows = dataset.map(
        checker,
        batched=True,
        with_indices=True,
        remove_columns=dataset.column_names,
        features=Features({**texts, spec.label_column_name: label, INDEX: Value("int64")}),
        desc=f"Checking {place}",
    )
    if allow_empty_texts:
        _report_empty_texts(rows, spec, place)
    return rows


def check_splits(name: str, splits: Any, spec: TaskSpec) -> None:
    """
    Check that there is nothing but data sets by the names that a task gives its splits.

    Args:
        name: what an error calls them.
        splits: to check.
        spec: the task.

    Raises:
        `TypeError`: if it is no mapping, or one of them is no `datasets.Dataset`.
        `ValueError`: if the task has no such split.
    """
    if not isinstance(splits, Mapping):
        raise TypeError(
            f"`{name}` must map the names of splits to data sets, got {type(splits).__name__}: write "
            "`{'train': dataset}`."
        )
    for split, dataset in splits.items():
        if not isinstance(dataset, Dataset):
            raise TypeError(
                f"`{name}[{split!r}]` must be a `datasets.Dataset`, got {type(dataset).__name__}. "
                "`Dataset.from_list` makes one of a list of examples, `Dataset.from_generator` of a stream."
            )
        if split not in spec.splits:
            near = suggestion(split, spec.splits, "splits")
            raise ValueError(f"`{name}`: the task {spec.full_name!r} has no split {split!r}.{near}")


def check_class_order(dataset: Dataset, spec: TaskSpec) -> None:
    """
    Check that a label column which is a `ClassLabel`, and which [`check_rows`] has not read, has the task's numbers.

    Args:
        dataset: examples in the columns of the task.
        spec: the task.

    Raises:
        `ValueError`: if a number of it is that of another class of the task.
    """
    feature = dataset.features.get(spec.label_column_name)
    for number, name in enumerate(getattr(feature, "names", None) or ()):
        if spec.parse(name) not in (number, UNPARSED):
            raise ValueError(
                f"The column {spec.label_column_name!r} is a ClassLabel in which {number} is {name!r}, but in the "
                f"task {spec.name!r} it is {spec.labels.get(number)!r}. `TaskSplits.from_datasets` reads the names."
            )


@dataclass
class _RowChecker:
    """A function for `datasets.map`."""

    spec: TaskSpec
    place: str
    needs_labels: bool
    allow_empty_texts: bool
    is_numbered: bool
    class_names: list[str] | None
    version: int

    def __call__(self, batch: Mapping[str, list], indices: Sequence[int]) -> dict[str, list]:
        spec = self.spec
        rows = {
            column: [self._text(text, column, index) for text, index in zip(batch[column], indices, strict=True)]
            for column in spec.text_column_name
        }
        labels = batch.get(spec.label_column_name) or [None] * len(indices)
        rows[spec.label_column_name] = list(map(self._label, labels, indices))
        rows[INDEX] = [whole_number(number) for number in batch[INDEX]] if self.is_numbered else list(indices)
        return rows

    def _text(self, text: Any, column: str, index: int) -> str:
        if isinstance(text, list) and all(isinstance(part, str) for part in text):
            text = " ".join(text)
        if not isinstance(text, str | None):
            raise self._error(index, f"the column {column!r} must hold text, but holds {text!r:.80}.")
        if not (text and text.strip()) and not self.allow_empty_texts:
            raise self._error(index, f"the column {column!r} is empty. Fill in its text, or remove the row.")
        return text or ""

    def _label(self, label: Any, index: int) -> int | float | list[str]:
        if self.class_names is not None and not is_unlabeled(label):
            label = self.class_names[label]
        try:
            value = self.spec.read_label(label)
        except ValueError as error:
            raise self._error(index, str(error)) from None
        if value in ([], UNLABELED) and self.needs_labels:
            raise self._error(index, f"the column {self.spec.label_column_name!r} holds {label!r}, hence no label.")
        return value

    def _error(self, index: int, message: str) -> ValueError:
        return ValueError(f"{self.place}, row {index} (the first is row 0): {message}")


def _rename(dataset: Dataset, spec: TaskSpec) -> Dataset:
    """Give the columns the names of the task; a column that has its own name already wins over an alias."""
    names = {}
    for alias, column in spec.column_aliases.items():
        # GLUE's files of MNLI call the premise "sentence1": only where there is no column "premise".
        if alias in dataset.column_names and column not in (*dataset.column_names, *names.values()):
            names[alias] = column
    return dataset.rename_columns(names)


def _check_columns(dataset: Dataset, spec: TaskSpec, place: str, needs_labels: bool) -> None:
    needed = [*spec.text_column_name, *([spec.label_column_name] if needs_labels else [])]
    for column in needed:
        if column not in dataset.column_names:
            raise ValueError(
                f"{place}: the task {spec.name!r} needs a column {column!r}."
                f"{separator_advice(dataset.column_names, or_tsv=True)}"
                f"{suggestion(column, dataset.column_names, 'columns')} Rename one, or say in the task's "
                "`text_column_name`, `label_column_name` or `column_aliases` how it is called."
            )


def _class_names(dataset: Dataset, spec: TaskSpec, place: str) -> list[str] | None:
    """
    The names by which to read a label column that is a `ClassLabel`, whose numbers may be in another order than those
    of the task; `None` for any other column, and where the names say nothing about the task's labels.
    """
    column = spec.label_column_name
    feature = dataset.features.get(column)
    if not isinstance(feature, ClassLabel) or feature.names is None:
        return None
    names = [name for name in feature.names if not is_unlabeled(name)]
    foreign = [name for name in names if spec.parse(name) == UNPARSED]
    if not spec.is_classification or not foreign:
        return feature.names
    if len(foreign) < len(names):
        raise ValueError(
            f"{place}: the column {column!r} is a ClassLabel with the names {listed(feature.names)}, of which "
            f"{listed(foreign)} are no labels of the task {spec.name!r}. These are: {listed(spec.labels.values())}. "
            "Rename the classes, or change the task's `labels`."
        )
    if all(whole_number(name) in spec.labels for name in names):
        return feature.names
    logger.warning(
        f"{place}: the column {column!r} is a ClassLabel with the names {listed(feature.names)}, which are no labels "
        f"of the task {spec.name!r}. Its numbers are taken for those of the task, whose labels are "
        f"{listed(spec.labels.values())}. If this is wrong, rename the classes."
    )
    return None


def _has_row_numbers(dataset: Dataset) -> bool:
    """Whether the column `idx` numbers the rows."""
    if INDEX not in dataset.column_names:
        return False
    numbers = set(map(whole_number, dataset[INDEX][:]))  # the slice reads the column at once, not row by row
    return None not in numbers and len(numbers) == len(dataset)


def _report_empty_texts(rows: Dataset, spec: TaskSpec, place: str) -> None:
    table = rows.with_format("arrow")[:]
    for column in spec.text_column_name:
        empty = pc.equal(pc.utf8_trim_whitespace(table[column]), "").to_pylist()
        if any(empty):
            first = empty.index(True)
            logger.warning(f"{place}: {sum(empty):,} texts in {column!r} are empty, the first in row {first}.")
