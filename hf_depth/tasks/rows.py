"""Checks of examples: [`check_rows`] renames their columns as the task does and checks each text and label once."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, Features, List, Value

from ..data.files import check_one_kind, without_format
from ..errors import UserError
from ..suggestions import listed, suggestion
from .spec import UNLABELED, UNPARSED, TaskSpec, is_unlabeled, whole_number

logger = logging.getLogger(__name__)

# Part of the cache key of checked rows. Raise it when the same data may give other rows.
ROWS_VERSION = 2

INDEX = "idx"  # the number by which a benchmark's server knows an example


def check_rows(
    dataset: Dataset, spec: TaskSpec, place: str, needs_labels: bool = True, allow_empty_texts: bool = False
) -> Dataset:
    """
    Return examples with the columns of their task, each text and label checked.

    Args:
        dataset: examples with the columns of the task or its `column_aliases`. A list of texts is joined. A
            `ClassLabel` is read by its names if these are the task's labels or their numbers.
        spec: the task.
        place: where the examples come from, for errors.
        needs_labels: raise if an example is unlabeled. Otherwise, the label column may be missing.
        allow_empty_texts: report empty texts instead of raising, for data that the user cannot repair.

    Returns:
        The examples with the text columns of the task, its label column and `idx`. A label is the number of a class
        (int64), a number to predict (float64), or a list of references (text). An unlabeled example has -1, -1.0 or
        no reference. `idx` is the column of the data or, without one, the place of the example.

    Raises:
        `ValueError`: if a text or label is wrong, there are no rows, or a `ClassLabel` fits only in part. The message
            names the place, the row and the column.
    """
    dataset = _rename(without_format(dataset), spec)
    _check_columns(dataset, spec, place, needs_labels)
    if not len(dataset):
        raise UserError(f"{place} has no rows.")
    for column in (*spec.text_column_name, *([spec.label_column_name] if spec.labels is None else [])):
        try:
            check_one_kind(dataset, column)
        except ValueError as error:
            raise UserError(f"{place}: {error}") from None
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
    Raise an error unless `splits` maps names of the task's splits to data sets.

    Args:
        name: the name of the argument, for errors.
        splits: what to check.
        spec: the task.

    Raises:
        `TypeError`: if `splits` is not a mapping, or a value is not a `datasets.Dataset`.
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
            raise UserError(f"`{name}`: the task {spec.full_name!r} has no split {split!r}.{near}")


def check_class_order(dataset: Dataset, spec: TaskSpec) -> None:
    """
    Raise `ValueError` if the label column is a `ClassLabel` that numbers the classes differently from the task.

    [`check_rows`] reads such columns by their names; this check is for data that it has not read.
    """
    feature = dataset.features.get(spec.label_column_name)
    for number, name in enumerate(getattr(feature, "names", None) or ()):
        if spec.parse(name) not in (number, UNPARSED):
            raise UserError(
                f"The column {spec.label_column_name!r} is a ClassLabel in which {number} is {name!r}, but in the "
                f"task {spec.name!r} it is {spec.labels.get(number)!r}. `TaskSplits.from_datasets` reads the names."
            )


@dataclass
class _RowChecker:
    """Checks batches of examples, for `datasets.map`."""

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
            raise self._error(index, f"the column {self.spec.label_column_name!r} holds {label!r}, which is no label.")
        return value

    def _error(self, index: int, message: str) -> UserError:
        return UserError(f"{self.place}, row {index} (the first is row 0): {message}")


def _rename(dataset: Dataset, spec: TaskSpec) -> Dataset:
    """Rename columns by the task's aliases. A column that already has the task's name wins over an alias."""
    names = {}
    for alias, column in spec.column_aliases.items():
        # GLUE's MNLI files call the premise "sentence1". This is an alias only if there is no column "premise".
        if alias in dataset.column_names and column not in (*dataset.column_names, *names.values()):
            names[alias] = column
    return dataset.rename_columns(names)


def _check_columns(dataset: Dataset, spec: TaskSpec, place: str, needs_labels: bool) -> None:
    needed = [*spec.text_column_name, *([spec.label_column_name] if needs_labels else [])]
    for column in needed:
        if column not in dataset.column_names:
            raise UserError(
                f"{place}: the task {spec.name!r} needs a column {column!r}."
                f"{suggestion(column, dataset.column_names, 'columns')} Rename one, or name it in the task's "
                "`text_column_name`, `label_column_name` or `column_aliases`."
            )


def _class_names(dataset: Dataset, spec: TaskSpec, place: str) -> list[str] | None:
    """
    Return the names by which to read a `ClassLabel`, as its numbers may differ from the task's.

    `None` means that the labels are read as they are: the column is no `ClassLabel`, or its names say nothing.
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
        raise UserError(
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
    """Return whether the column `idx` gives each row a number of its own."""
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
