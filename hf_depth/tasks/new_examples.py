"""[`read_new_examples`], which reads examples without labels, to predict their labels."""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

from datasets import Dataset

from ..errors import UserError
from ..suggestions import listed
from .loading import build_options, get_loader
from .preprocessing import INSTANCE_COLUMN
from .spec import TaskSpec

logger = logging.getLogger(__name__)

NewExamples = Iterable[Mapping[str, Any]] | Iterable[str] | Dataset | str | os.PathLike


def read_new_examples(
    examples: NewExamples,
    spec: TaskSpec,
    *,
    options: Mapping[str, Any] | Any | None = None,
    length: Callable[[str], int] | None = None,
    cache_dir: str | None = None,
) -> dict[str, list[str]]:
    """
    Return the texts of new examples, column by column, as they are read in training. Other columns are left out.

    Args:
        examples (`Iterable[Mapping]`, `Iterable[str]`, `Dataset`, `pandas.DataFrame`, `str` or `os.PathLike`):
            Examples with the text columns of the task or its `column_aliases`. A list of texts is joined. If the task
            has one text column, an example may be a plain text. A path is a file (json, jsonl, csv, tsv, parquet, or
            one of these as .gz) or a glob. DiscoEval's published files are read, too. For Natural Instructions, an
            example may have `input` and fields of its task file, such as `Definition`.
        spec (`TaskSpec`): the task.
        options (`Mapping` or a dataclass, *optional*): the options of the task's loader, see [`load_task`].
        length (`Callable[[str], int]`, *optional*):
            Counts the tokens of a text. Prompts of Natural Instructions leave out what does not fit.
        cache_dir (`str`, *optional*): as for `datasets.load_dataset`.

    Returns:
        `dict[str, list[str]]`: the texts of each text column, and `instance` if the examples have it.

    Raises:
        `ValueError`: if a column is missing or holds no text; names the example and the column. Also if `examples` is
            a single example, or a set, which has no order.
        `FileNotFoundError`: if a file does not exist.

    >>> from hf_depth import get_task
    >>> read_new_examples([{"sentence1": "It rains.", "sentence2": "It is wet.", "label": "?"}], get_task("glue/rte"))
    {'sentence1': ['It rains.'], 'sentence2': ['It is wet.']}
    """
    loader, place = get_loader(spec), "Example {}"
    if isinstance(examples, str | os.PathLike):
        place = os.fspath(examples).replace("{", "{{").replace("}", "}}") + ", row {} (the first is row 0)"
        examples = _read_file(os.fspath(examples), spec, cache_dir)
    rows = _rows(examples, spec)
    if loader.complete is not None:
        options = build_options(spec, options)
        rows = [loader.complete(row, spec, options, length) if isinstance(row, Mapping) else row for row in rows]
    read = [_texts(row, spec, place.format(number)) for number, row in enumerate(rows)]
    texts = {column: [row[column] for row in read] for column in spec.text_column_name}
    for column, values in texts.items():
        empty = [number for number, text in enumerate(values) if not text.strip()]
        if empty:
            first = place.format(empty[0])
            logger.warning(f"{len(empty):,} texts in the column {column!r} are empty, the first in {first}.")
    if loader.has_instances and any(INSTANCE_COLUMN in row for row in rows):
        texts[INSTANCE_COLUMN] = [row.get(INSTANCE_COLUMN) for row in rows]
    return texts


def _read_file(path: str, spec: TaskSpec, cache_dir: str | None) -> Dataset:
    try:
        return get_loader(spec).read_new("examples", [path], spec, cache_dir)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error} For texts in Python, give a list in which each example is {_kind_of_example(spec)}."
        ) from error


def _kind_of_example(spec: TaskSpec) -> str:
    text = "a text or " if len(spec.text_column_name) == 1 else ""
    return f"{text}a dictionary with the columns {listed(spec.text_column_name)}"


def _rows(examples: Any, spec: TaskSpec) -> list[Any]:
    """Return the examples as dictionaries. What is not an example is returned as it is."""
    if not isinstance(examples, Iterable) or isinstance(examples, Mapping | Set | bytes):
        advice = " For one example, write `predictor([example])`." if isinstance(examples, Mapping) else ""
        advice = " A set has no order: give a list." if isinstance(examples, Set) else advice
        raise UserError(
            f"`examples` must be a list of examples, a Dataset, a DataFrame or a file, got {type(examples).__name__}."
            f"{advice}"
        )
    if hasattr(examples, "columns") and hasattr(examples, "to_dict"):  # a pandas.DataFrame
        return examples.to_dict("records")
    if isinstance(examples, Dataset) and examples.format["type"] != "custom":  # keep the user's own transform
        return examples.with_format(None).to_list()
    (column, *others) = spec.text_column_name
    return [{column: row} if isinstance(row, str) and not others else row for row in examples]


def _texts(row: Any, spec: TaskSpec, place: str) -> dict[str, str]:
    """Return the text of each column of an example, found by its name or else by an alias."""
    if not isinstance(row, Mapping):
        raise UserError(f"{place} must be {_kind_of_example(spec)}, got {row!r:.80}.")
    texts = {}
    for column in spec.text_column_name:
        aliases = [alias for alias, own in spec.column_aliases.items() if own == column]
        name = next((name for name in (column, *aliases) if name in row), None)
        if name is None:
            raise UserError(f"{place} has no column {column!r}. The columns are: {listed(row)}.")
        text = row[name]
        if isinstance(text, Sequence) and not isinstance(text, str) and all(isinstance(part, str) for part in text):
            text = " ".join(text)
        if not isinstance(text, str):
            raise UserError(f"{place}: the column {name!r} must hold text, but holds {text!r:.80}.")
        texts[column] = text
    return texts
