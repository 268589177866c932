"""The columns of documents: which hold texts, which metadata, and how rows are read from them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from datasets import Dataset, IterableDataset

from ..errors import UserError, suggestion

TEXT_TYPES = ("string", "large_string", "string_view", "null")
# A stream without types shows its columns by so many of its first documents, any of which may lack some.
CHECKED_DOCUMENTS = 1000


def without_format(dataset: Dataset | IterableDataset) -> Dataset | IterableDataset:
    """A data set that gives plain Python values, whatever format it has; a transform (`with_transform`) stays."""
    if isinstance(dataset, IterableDataset):
        has_format = dataset._formatting is not None and dataset._formatting.format_type is not None
    else:
        kind, columns = dataset.format["type"], dataset.format["columns"]
        has_format = kind != "custom" and (kind is not None or columns != dataset.column_names)
    return dataset.with_format(None) if has_format else dataset  # which would have another fingerprint


def readable_documents(
    documents: Dataset | IterableDataset, text_column: str, metadata_columns: Sequence[str] = ()
) -> tuple[Dataset | IterableDataset, list[str]]:
    """
    Documents as plain values, and the names of their columns. `ValueError` if there is no document, no such column, or
    something else than text in the column of the texts. A stream without types shows this by its first element.

    >>> readable_documents(Dataset.from_dict({"text": ["It rains."], "title": ["Rain"]}), "text", ["name"])
    Traceback (most recent call last):
    hf_depth.errors.UserError: There is no column 'name' (`metadata_columns`). The columns are: 'text', 'title'.
    """
    documents = without_format(documents)
    first = next(iter(documents), None)
    if first is None:
        raise UserError("There are no documents, hence no text.")
    if text_column in metadata_columns:
        raise UserError(
            f"`metadata_columns` names {text_column!r}, which holds the text: a model that reads it has nothing to "
            "restore. Leave it out."
        )
    found = documents.column_names or (next(documents.iter(CHECKED_DOCUMENTS)) if metadata_columns else first)
    for column in (text_column, *metadata_columns):
        if column not in found:
            argument = "text_column" if column == text_column else "metadata_columns"
            raise UserError(
                f"There is no column {column!r} (`{argument}`). The columns are: {', '.join(map(repr, found))}."
                f"{suggestion(column, found)}"
            )
    if documents.features is None:
        column_texts({text_column: [first.get(text_column)]}, text_column)
    elif getattr(documents.features[text_column], "dtype", None) not in TEXT_TYPES:
        raise UserError(
            f"The column {text_column!r} must hold text, but holds values such as {first[text_column]!r:.80} "
            f"({documents.features[text_column]}). Name the column that holds the text by `text_column`."
        )
    return documents, list(first)


def column_texts(batch: Mapping[str, Sequence[Any]], text_column: str) -> list[str]:
    """The documents in a batch of `datasets.map`; a missing text is an empty one. `ValueError` if one is no text."""
    for index, text in enumerate(batch[text_column]):
        if text is not None and not isinstance(text, str):
            raise UserError(
                f"The column {text_column!r} must hold text, but its row {index} holds {text!r:.80} "
                f"({type(text).__name__}). Name the column that holds the text by `text_column`."
            )
    return [text or "" for text in batch[text_column]]


def column_values(batch: Mapping[str, Sequence[Any]], columns: Sequence[str]) -> Iterator[tuple]:
    """What each document of a batch has in some columns, of which records of JSON may lack all but the first."""
    first, *others = columns
    missing = [None] * len(batch[first])
    return zip(batch[first], *(batch.get(column, missing) for column in others), strict=True)
