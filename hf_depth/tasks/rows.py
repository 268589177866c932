"""Checks of examples: [`check_rows`] renames their columns as the task does and checks each text and label once."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import ClassLabel, Dataset, Features, List, Value

from ..data.files import without_format
from ..errors import UserError, listed, suggestion
from .sources import READERS, ROWS_VERSION, RowReader, file_argument, read_files
from .spec import UNLABELED, UNPARSED, TaskSpec, is_unlabeled, whole_number

logger = logging.getLogger(__name__)

INDEX = "idx"  # the number by which a benchmark's server knows an example
INSTANCE_COLUMN = "instance"  # holds the end of a text; if the text is too long, it loses this end last


def read_splits(
    spec: TaskSpec,
    files: Mapping[str, Sequence[str]],
    cache_dir: str | None = None,
    readers: Mapping[str, RowReader] = READERS,
    allow_empty_texts: bool = False,
) -> dict[str, Dataset]:
    """Read the files of each split by [`read_files`] and check their examples by [`check_rows`]."""
    splits = {}
    for split, names in files.items():
        rows = read_files(file_argument(spec, split), names, spec, cache_dir, readers)
        allows_empty = allow_empty_texts or "empty_texts" in spec.file_defects
        splits[split] = check_rows(rows, spec, ", ".join(names), split not in spec.test_splits, allows_empty)
    return splits


def check_rows(
    dataset: Dataset, spec: TaskSpec, place: str, needs_labels: bool = True, allow_empty_texts: bool = False
) -> Dataset:
    """
    Return examples with the columns of their task, each text and label checked.

    Args:
        dataset: examples with the columns of the task or its `column_aliases`. A list of texts is joined. A
            `ClassLabel` is read by its names if these are the task's labels or their numbers.
        place: where the examples come from, for errors.
        needs_labels: raise if an example is unlabeled. Otherwise, the label column may be missing.
        allow_empty_texts: keep empty texts instead of raising, for data that the user cannot repair.

    Returns:
        The text columns of the task, its label column and `idx`. A label is the number of a class (int64), a number
        to predict (float64), or a list of references; -1, -1.0 or no reference if the example is unlabeled. `idx` is
        the column of the data or, without one, the place of the example.

    Raises `ValueError` if something is wrong; the message names the place, the row and the column.
    """
    dataset = _rename(without_format(dataset), spec)
    for column in (*spec.text_column_name, *([spec.label_column_name] if needs_labels else ())):
        if column not in dataset.column_names:
            raise UserError(
                f"{place}: the task {spec.name!r} needs a column {column!r}."
                f"{suggestion(column, dataset.column_names, 'columns')} Rename one, or name it in the task's "
                "`text_column_name`, `label_column_name` or `column_aliases`."
            )
    if not len(dataset):
        raise UserError(f"{place} has no rows.")
    label = List(Value("string")) if spec.labels is None else Value("float64" if spec.is_regression else "int64")
    texts = {column: Value("string") for column in spec.text_column_name}
    return dataset.map(
        _checked,
        batched=True,
        with_indices=True,
        fn_kwargs={
            **{"spec": spec, "place": place, "needs_labels": needs_labels, "allow_empty_texts": allow_empty_texts},
            "class_names": _class_names(dataset, spec, place),
            "is_numbered": _has_row_numbers(dataset),
            "version": ROWS_VERSION,
        },
        remove_columns=dataset.column_names,
        features=Features({**texts, spec.label_column_name: label, INDEX: Value("int64")}),
        desc=f"Checking {place}",
    )


def _checked(
    batch: Mapping[str, list],
    indices: Sequence[int],
    spec: TaskSpec,
    place: str,
    needs_labels: bool,
    allow_empty_texts: bool,
    class_names: list[str] | None,
    is_numbered: bool,
    version: int,
) -> dict[str, list]:
    """Return a batch of rows with the columns of the task; raises if a text or a label is wrong."""
    rows = {column: [joined(text) for text in batch[column]] for column in spec.text_column_name}
    rows[spec.label_column_name] = labels = []
    for row, index in enumerate(indices):
        try:
            for column in spec.text_column_name:
                rows[column][row] = _text(rows[column][row], column, allow_empty_texts)
            label = batch[spec.label_column_name][row] if spec.label_column_name in batch else None
            if class_names is not None and not is_unlabeled(label):
                label = class_names[label]
            labels.append(spec.read_label(label))
            if needs_labels and labels[-1] in ([], UNLABELED):
                raise UserError(f"the column {spec.label_column_name!r} holds {label!r}, which is no label.")
        except ValueError as error:
            raise UserError(f"{place}, row {index} (the first is row 0): {error}") from None
    rows[INDEX] = [whole_number(number) for number in batch[INDEX]] if is_numbered else list(indices)
    return rows


def joined(text: Any) -> Any:
    """Return a list of texts as one text; anything else as it is."""
    is_list = isinstance(text, list | tuple) and all(isinstance(part, str) for part in text)
    return " ".join(text) if is_list else text


def _text(text: Any, column: str, allow_empty: bool) -> str:
    if not isinstance(text, str | None):
        raise UserError(f"the column {column!r} must hold text, but holds {text!r:.80}.")
    if not (text and text.strip()) and not allow_empty:
        raise UserError(f"the column {column!r} is empty. Fill in its text, or remove the row.")
    return text or ""


def check_class_order(dataset: Dataset, spec: TaskSpec) -> None:
    """Raise `ValueError` on a `ClassLabel` that [`check_rows`] has not read, with other numbers than the task's."""
    feature = dataset.features.get(spec.label_column_name)
    for number, name in enumerate(getattr(feature, "names", None) or ()):
        if spec.parse(name) not in (number, UNPARSED):
            raise UserError(
                f"The column {spec.label_column_name!r} is a ClassLabel in which {number} is {name!r}, but in the "
                f"task {spec.name!r} it is {spec.labels.get(number)!r}. `TaskSplits.from_datasets` reads the names."
            )


def _rename(dataset: Dataset, spec: TaskSpec) -> Dataset:
    """Rename columns by the task's aliases. A column that already has the task's name wins over an alias."""
    names = {}
    for alias, column in spec.column_aliases.items():
        # GLUE's MNLI files call the premise "sentence1". This is an alias only if there is no column "premise".
        if alias in dataset.column_names and column not in (*dataset.column_names, *names.values()):
            names[alias] = column
    return dataset.rename_columns(names)


def _class_names(dataset: Dataset, spec: TaskSpec, place: str) -> list[str] | None:
    """Return the names by which to read a `ClassLabel`; `None` if there is none, or its names say nothing."""
    column = spec.label_column_name
    feature = dataset.features.get(column)
    if not isinstance(feature, ClassLabel) or feature.names is None:
        return None
    names = [name for name in feature.names if not is_unlabeled(name)]
    foreign = [name for name in names if spec.parse(name) == UNPARSED]
    if not spec.is_classification or not foreign or all(whole_number(name) in spec.labels for name in names):
        return feature.names
    message = (
        f"{place}: the column {column!r} is a ClassLabel with the names {listed(feature.names)}, of which "
        f"{listed(foreign)} are no labels of the task {spec.name!r}. These are: {listed(spec.labels.values())}."
    )
    if len(foreign) < len(names):
        raise UserError(f"{message} Rename the classes, or change the task's `labels`.")
    logger.warning(f"{message} The numbers are taken for those of the task. If this is wrong, rename the classes.")
    return None


def _has_row_numbers(dataset: Dataset) -> bool:
    """Return whether the column `idx` gives each row a number of its own."""
    if INDEX not in dataset.column_names:
        return False
    numbers = set(map(whole_number, dataset[INDEX][:]))  # the slice reads the column at once, not row by row
    return None not in numbers and len(numbers) == len(dataset)
