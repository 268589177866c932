"""Files of text by their names: finding, telling apart and describing them; and columns that must hold text."""

import glob
import gzip
import hashlib
import io
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from datasets import Dataset, IterableDataset, Json, Value
from datasets.utils.file_utils import xopen

from ..credentials import without_credentials
from ..errors import UserError
from ..suggestions import listed, suggestion

logger = logging.getLogger(__name__)

# One file or several, or none.
Files = str | os.PathLike | Sequence[str | os.PathLike] | None

FILE_ARGUMENTS = ("train_file", "validation_file", "test_file")

# Builders of `datasets` by the end of a file name; each may be followed by .gz.
BUILDERS = {".txt": "text", ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}

NUM_BLOCKS, BLOCK_SIZE = 8, 4096  # of a file that is described, in bytes

# A file with its number and how many there are: `c4-train.00000-of-01024.json.gz`, or, on the Hub, with a hash behind.
_SHARD = re.compile(r"(.*(?<!\d))(\d{5})-of-(\d{5})(?:-[0-9a-f]{16})?((?!\d)[^/]*)", re.DOTALL)


def file_names(files: Files) -> list[str]:
    """
    One file or several, as a list.

    >>> file_names("a.txt"), file_names([Path("b.txt"), "c.txt"]), file_names(None)
    (['a.txt'], ['b.txt', 'c.txt'], [])
    """
    if files is None:
        return []
    return [os.fspath(file) for file in ([files] if isinstance(files, (str, os.PathLike)) else files)]


def check_files_named(arguments: Mapping[str, Files]) -> None:
    """
    Check that an argument which is given names something: in place of an empty list, as of a glob that has found none,
    or of an empty text, something else would be read.

    >>> check_files_named({"train_file": [], "test_file": None})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    hf_depth.errors.UserError: `train_file` is empty: it names no file. (A glob that finds none is ...)
    """
    for name, files in arguments.items():
        if files == "" or isinstance(files, Sequence) and "" in list(files):
            raise UserError(f"`{name}` is an empty text: name what is to be read, or leave it out.")
        if files is not None and not files:
            raise UserError(
                f"`{name}` is empty: it names no file. (A glob that finds none is an empty list in Python.)"
            )


def find_files(argument: str, names: Sequence[str]) -> list[str]:
    """
    The files that names or globs stand for, in their order; those of a glob are sorted.

    Args:
        argument (`str`): what an error calls the files, such as `"train_file"`.
        names (`Sequence[str]`): files or globs, `~` being the home folder; or addresses with a protocol, which are
            returned as they are.

    Raises:
        `ValueError`: if one is a folder or a pipe, or if a file is named twice, as by two globs.
        `FileNotFoundError`: if there is no such file. The message names similar ones.
    """
    files = [file for name in names for file in ([name] if not is_local(name) else _find(argument, name))]
    counts = Counter(os.path.abspath(file) if is_local(file) else file for file in files)
    file, number = counts.most_common(1)[0]
    if number > 1:
        raise UserError(f"`{argument}` names {file} {number} times, and each time it would be read. Name it once.")
    return files


def _find(argument: str, name: str) -> list[str]:
    name = os.path.expanduser(name)
    if os.path.isfile(name):
        return [name]
    if os.path.isdir(name):
        raise UserError(f"`{argument}`: {name} is a folder. Name its files, for example '{name}/*.jsonl'.")
    if os.path.exists(name):
        raise UserError(
            f"`{argument}`: {name} is a pipe or a device, which can be read only once. Write what it gives to a file."
        )
    if os.path.islink(name):
        raise FileNotFoundError(f"`{argument}`: {name} is a link to {os.readlink(name)!r}, which is not there.")
    files = sorted(file for file in glob.glob(name, recursive=True) if os.path.isfile(file))
    if not files:
        folder = Path(name).parent
        others = [str(path) for path in folder.iterdir()] if folder.is_dir() else []
        raise FileNotFoundError(
            f"`{argument}`: there is no file {name!r} (looked in {folder.resolve()}).{suggestion(name, others)}"
        )
    return files


def file_kind(argument: str, files: Sequence[str], builders: Mapping[str, str] = BUILDERS) -> str:
    """
    The builder that reads files, by the ends of their names.

    Raises:
        `ValueError`: if there is none in `builders`, or if there are several.

    >>> file_kind("train_file", ["a.JSONL.gz", "https://host/b.jsonl?token=1"])
    'json'
    """
    kinds = {builders.get(suffix_of(file)): file for file in files}
    if None in kinds:
        file, known = without_credentials(kinds[None]), ", ".join(builders)
        raise UserError(f"`{argument}`: {file} has an unknown extension. Known are {known}, and each with .gz.")
    if len(kinds) > 1:
        raise UserError(
            f"`{argument}` mixes kinds of files, such as {' and '.join(kinds.values())}. Convert them to one kind."
        )
    return next(iter(kinds))


def suffix_of(file: str) -> str:
    """The end of the name of a file, in lower case and without .gz."""
    path = file if is_local(file) else urlsplit(file).path
    return Path(path.lower().removesuffix(".gz")).suffix


def is_local(file: str) -> bool:
    """Whether a file is a path, and no address."""
    return "://" not in file


def open_file(file: str) -> io.BufferedIOBase:
    """Open a file, or an address, for reading bytes, unpacking it if its name ends in .gz."""
    content = open(file, "rb") if is_local(file) else xopen(file, "rb")
    is_packed = (file if is_local(file) else urlsplit(file).path).endswith(".gz")
    return gzip.open(content) if is_packed else content


def file_version(file: str | os.PathLike) -> tuple[int, int]:
    """Size and time of a file: a changed file is read anew."""
    status = Path(file).stat()
    return status.st_size, status.st_mtime_ns


def literal_pattern(file: str) -> str:
    """
    A file as `data_files` of `load_dataset`, which takes all names for globs, also a name or folder with `[` in it.

    >>> literal_pattern("/data/texts[12].jsonl")
    '/data/texts[[]12].jsonl'
    """
    return glob.escape(os.path.abspath(file)) if is_local(file) else file


def check_folder_name(argument: str, name: str | None) -> None:
    """
    Check that `load_dataset` reads a local folder, and not another one: it takes the path for a glob.

    Raises:
        `ValueError`: if the path of a folder holds `[`, `*` or `?`.
    """
    path = os.path.realpath(name or "")
    if name and os.path.isdir(name) and glob.escape(path) != path:
        raise UserError(
            f"`{argument}`: the path of the folder {path} holds one of the characters [ * ?, so that `datasets` "
            "would read other folders. Rename it, or name its files by `train_file`."
        )


def check_held_out(train_files: Sequence[str], held_out: Iterable[tuple[str, Sequence[str]]]) -> None:
    """
    Check that no file which is held out is trained on too, also under another name. To train and evaluate on just the
    same text is deliberate, as in a first test, and only reported.

    Args:
        train_files (`Sequence[str]`): as for [`find_files`].
        held_out (`Iterable`): for each other split the argument that names its files, and these.

    Raises:
        `ValueError`: naming the files.
    """
    trained = set(describe_all_files("train_file", train_files)) if train_files else set()
    for argument, names in held_out if trained else ():
        files = find_files(argument, names)
        contents = describe_all_files(argument, files)
        both = [file for file, content in zip(files, contents, strict=True) if content in trained]
        if both and trained == set(contents):
            logger.warning(
                f"`train_file` and `{argument}` name the same text, {_some(both)}: the scores will say how well it is "
                "remembered, not how well others are read."
            )
        elif both:
            raise UserError(
                f"`train_file` and `{argument}` both name {_some(both)}, or a copy, and what is held out must not be "
                "trained on. Take it out of one of them. (For scores on all that is trained on, name the same files "
                "twice.)"
            )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if names[3:] else "")


def shard_problem(files: Iterable[str]) -> str | None:
    """
    What is wrong with files that are numbered as `train-00000-of-00004.parquet`, in words; `None` if nothing is.

    >>> shard_problem(["a/train-00000-of-00002.parquet", "a/train-00001-of-00002.parquet", "a/test.parquet"])
    >>> shard_problem(["train-00000-of-00002.parquet"])
    'train-00001-of-00002.parquet is missing'
    """
    shards: dict[tuple[str, str], dict[int, set[int]]] = {}
    for start, number, total, end in (match.groups() for match in map(_SHARD.fullmatch, files) if match):
        shards.setdefault((start, end), {}).setdefault(int(total), set()).add(int(number))
    for (start, end), totals in shards.items():
        (total, there), *others = totals.items()
        if others:
            return (
                f"{start}*{end} are shards of several sets, {listed(f'-of-{number:05d}' for number in sorted(totals))}"
            )
        first = int(total in there)  # some count from 1
        missing = sorted(set(range(first, total + first)) - there)
        if missing:
            missing = [f"{start}{number:05d}-of-{total:05d}{end}" for number in missing]
            return f"{_some(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    return None


def describe_file(path: str | os.PathLike) -> str:
    """
    Size and a hash of blocks at equal distances, by which a file is known wherever it is moved: a stream goes on by
    row numbers, which hold for that file only.
    """
    size = os.path.getsize(path)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for start in np.linspace(0, max(0, size - BLOCK_SIZE), NUM_BLOCKS).astype(int):
            file.seek(start)
            digest.update(file.read(BLOCK_SIZE))
    return f"{size} bytes ({digest.hexdigest()[:12]})"


def describe_all_files(argument: str, names: Sequence[str]) -> list[str]:
    """[`describe_file`] of what names or globs stand for, see [`find_files`]; an address stands for itself."""
    files = find_files(argument, names)
    return [describe_file(file) if is_local(file) else file for file in files]


def without_format(dataset: Dataset | IterableDataset) -> Dataset | IterableDataset:
    """
    A data set that gives plain Python values, whatever format it has (`with_format("torch")`): numpy makes a number of
    a time, and of Arrow's tables nothing here is made. A transform (`with_transform`) stays.

    >>> without_format(Dataset.from_dict({"text": ["It rains."], "year": [1903]}).with_format("numpy", ["year"]))[0]
    {'text': 'It rains.', 'year': 1903}
    """
    if isinstance(dataset, IterableDataset):
        has_format = dataset._formatting is not None and dataset._formatting.format_type is not None
    else:
        kind, columns = dataset.format["type"], dataset.format["columns"]
        has_format = kind != "custom" and (kind is not None or columns != dataset.column_names)
    return dataset.with_format(None) if has_format else dataset  # which would have another fingerprint


def check_text_column(dataset: Dataset | IterableDataset, text_column: str) -> list[str]:
    """
    Check that a column holds text, by its type or, in a stream without types, by the first element.

    Returns:
        `list[str]`: the names of all columns.

    Raises:
        `ValueError`: if there is no document, no such column, or something else than text in it.
    """
    first = next(iter(dataset), None)
    if first is None:
        raise UserError("There are no documents, hence no text.")
    if text_column not in first:
        raise UserError(
            f"There is no column {text_column!r}.{separator_advice(first)} The columns are: "
            f"{', '.join(map(repr, first))}. Name the one that holds the text by `text_column`."
        )
    check_one_kind(dataset, text_column)
    if dataset.features is not None and not _is_text(dataset.features[text_column]):
        _check_texts((row[text_column] for row in dataset), text_column)
    return list(first)


def check_one_kind(dataset: Dataset | IterableDataset, column: str) -> None:
    """Stop if a column of JSON holds values of several kinds: `datasets` reads the text "5" as a number there."""
    if isinstance((dataset.features or {}).get(column), Json):
        raise UserError(
            f"The column {column!r} holds text in some rows, and numbers, lists or the like in others. Write all of "
            "them alike: a text as a list of one, or a number in quotes."
        )


def column_texts(batch: Mapping[str, Sequence[Any]], text_column: str) -> list[str]:
    """
    The documents in a batch of `datasets.map`. A missing text (`None`) is an empty one.

    Raises:
        `ValueError`: if one of them is not a text.

    >>> column_texts({"text": ["A document.", None]}, "text")
    ['A document.', '']
    """
    texts = batch[text_column]
    _check_texts(texts, text_column)
    return [text or "" for text in texts]


def separator_advice(columns: Sequence[str], or_tsv: bool = False) -> str:
    """
    The remedy for a table whose columns were not told apart, to append to an error; empty if they seem to be.

    >>> separator_advice(["review;label"])
    " Its only column is 'review;label': separate columns by commas in a .csv file."
    """
    columns = list(columns)
    if len(columns) != 1 or not {";", "\t", "|", ","} & set(columns[0]):
        return ""
    tabs = ", by tabs in a .tsv file" if or_tsv else ""
    return f" Its only column is {columns[0]!r}: separate columns by commas in a .csv file{tabs}."


def _is_text(feature: Any) -> bool:
    return isinstance(feature, Value) and feature.dtype in ("string", "large_string", "string_view")


def _check_texts(texts: Iterable[Any], text_column: str):
    for index, text in enumerate(texts):
        if text is not None and not isinstance(text, str):
            raise UserError(
                f"The column {text_column!r} must hold text, but its row {index} holds {text!r:.80} "
                f"({type(text).__name__}). Name the column that holds the text by `text_column`."
            )
