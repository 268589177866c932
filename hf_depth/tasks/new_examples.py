"""[`read_new_examples`]: examples to predict, which have the texts of a task but need no label."""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Any

from datasets import Dataset

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
    The texts of examples in the columns of their task, as in training; all other columns are left out.

    Args:
        examples (`Iterable[Mapping]`, `Iterable[str]`, `Dataset`, `pandas.DataFrame`, `str` or `os.PathLike`):
            With the text columns of the task, or its `column_aliases`; a list of texts is joined. For a task with one
            text column an example may be the text itself. A path names a file (json, jsonl, csv, tsv, parquet, or the
            .gz of one; of DiscoEval's also as they are published) or a glob. For Natural Instructions also `input` and
            the fields of its task file, such as `Definition`.
        spec (`TaskSpec`): the task.
        options (`Mapping` or a dataclass, *optional*): of the task's loader, see [`load_task`].
        length (`Callable[[str], int]`, *optional*):
            How many tokens a text takes, for prompts that leave out what does not fit.
        cache_dir (`str`, *optional*): as for `datasets.load_dataset`.

    Returns:
        `dict[str, list[str]]`: the texts of each text column, and `instance`, where there is one.

    Raises:
        `ValueError`: naming the example and the column, if one is missing or holds no text; if `examples` is one
            example, or a set, which has no order.
        `FileNotFoundError`: if there is no such file.

    >>> from hf_depth import get_task
    >>> read_new_examples([{"sentence1": "It rains.", "sentence2": "It is wet.", "label": "?"}], get_task("glue/rte"))
    {'sentence1': ['It rains.'], 'sentence2': ['It is wet.']}
    """
    _check_kind(examples)
    file = None
    if isinstance(examples, str | os.PathLike):
        file = os.fspath(examples)
        examples = _read_file(file, spec, cache_dir)
    rows = _rows(examples, spec)
    complete = get_loader(spec).complete
    if complete is not None:
        options = build_options(spec, options)
        rows = [complete(row, spec, options, length) if isinstance(row, Mapping) else row for row in rows]
    texts = {name: [] for name in spec.text_column_name}
    for number, row in enumerate(rows):
        for name, text in _texts(row, spec, _place(number, file)).items():
            texts[name].append(text)
    _report_empty_texts(texts, file)
    if INSTANCE_COLUMN in get_loader(spec).completed_from and any(INSTANCE_COLUMN in row for row in rows):
        texts[INSTANCE_COLUMN] = [row.get(INSTANCE_COLUMN) for row in rows]
    return texts


def _check_kind(examples: Any) -> None:
    """Stop on one example, and on what gives examples in no order, or none."""
    is_path_or_list = isinstance(examples, Iterable | os.PathLike)
    if is_path_or_list and not isinstance(examples, Mapping | Set | bytes):
        return
    advice = " For one example, write `predictor([example])`." if isinstance(examples, Mapping) else ""
    advice = " A set has no order, in which predictions could be given." if isinstance(examples, Set) else advice
    raise ValueError(
        f"`examples` must be a list of examples, a Dataset, a DataFrame or a file, got {type(examples).__name__}."
        f"{advice}"
    )


def _place(number: int, file: str | None) -> str:
    return f"Example {number}" if file is None else f"{file}, row {number} (the first is row 0)"


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
    if hasattr(examples, "columns") and hasattr(examples, "to_dict"):  # of pandas
        return examples.to_dict("records")
    if not isinstance(examples, Dataset) or examples.format["type"] == "custom":  # a transform of the user's
        (column, *others) = spec.text_column_name
        return [{column: row} if isinstance(row, str) and not others else row for row in examples]
    names = examples.column_names
    used = {_source(column, names, spec) for column in spec.text_column_name}
    used |= {name for name in get_loader(spec).completed_from if name in names}
    if used == {None} or (None in used and get_loader(spec).complete is None):
        return [dict.fromkeys(names, "")][: len(examples)]  # for the error, which names the columns that there are
    return examples.select_columns([name for name in names if name in used]).with_format(None).to_list()


def _source(column: str, names: Collection[str], spec: TaskSpec) -> str | None:
    """The name by which a column is given: its own, or else an alias."""
    if column in names:
        return column
    return next((alias for alias, own in spec.column_aliases.items() if own == column and alias in names), None)


def _texts(row: Any, spec: TaskSpec, place: str) -> dict[str, str]:
    """The text of each column of an example."""
    if not isinstance(row, Mapping):
        raise ValueError(f"{place} must be {_kind_of_example(spec)}, got {row!r:.80}.")
    texts = {}
    for column in spec.text_column_name:
        name = _source(column, row, spec)
        if name is None:
            raise ValueError(f"{place} has no column {column!r}. The columns are: {listed(row)}.")
        text = row[name]
        if isinstance(text, Sequence) and not isinstance(text, str) and all(isinstance(part, str) for part in text):
            text = " ".join(text)
        if not isinstance(text, str):
            raise ValueError(f"{place}: the column {name!r} must hold text, but holds {text!r:.80}.")
        texts[column] = text
    return texts


def _report_empty_texts(texts: Mapping[str, Sequence[str]], file: str | None) -> None:
    for column, values in texts.items():
        empty = [number for number, text in enumerate(values) if not text.strip()]
        if empty:
            place = _place(empty[0], file)
            logger.warning(f"{len(empty):,} texts in the column {column!r} are empty, the first in {place}.")
