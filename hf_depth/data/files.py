"""Files of text by their names: finding, telling apart and describing them; and columns that must hold text."""

import glob
import gzip
import hashlib
import io
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from datasets import Dataset, IterableDataset
from datasets.utils.file_utils import xopen

from ..credentials import without_credentials
from ..errors import UserError, suggestion

logger = logging.getLogger(__name__)

# One file or several, or none.
Files = str | os.PathLike | Sequence[str | os.PathLike] | None

FILE_ARGUMENTS = ("train_file", "validation_file", "test_file")
CONTENT = "dataset_content"  # in descriptions, what is in no file; `None` if it is not known

# Builders of `datasets` by the end of a file name; all but .parquet may be followed by .gz.
BUILDERS = {".txt": "text", ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}

TEXT_TYPES = ("string", "large_string", "string_view", "null")
NUM_BLOCKS, BLOCK_SIZE = 8, 4096  # of a file that is described, in bytes


# ---- Finding --------------------------------------------------------------------------------------------------------


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
    Check that an argument which is given names something. Otherwise other data would be read in its place.

    >>> check_files_named({"train_file": [], "test_file": None})
    Traceback (most recent call last):
    hf_depth.errors.UserError: `train_file` names no file. Name one, or leave it out.
    """
    for name, files in arguments.items():
        if files is not None and not any(map(str, file_names(files))):
            raise UserError(f"`{name}` names no file. Name one, or leave it out.")


def find_files(argument: str, names: Sequence[str]) -> list[str]:
    """
    The files that names or globs stand for, in their order; those of a glob are sorted, and `~` is the home folder. An
    address with a protocol is returned as it is. `argument` is what an error calls the files: `ValueError` for a
    folder or a file that is named twice, `FileNotFoundError`, with similar names, if there is none.
    """
    files = [file for name in names for file in ([name] if not is_local(name) else _find(argument, name))]
    paths = [os.path.abspath(file) if is_local(file) else file for file in files]
    path, number = Counter(paths).most_common(1)[0]
    if number > 1:
        raise UserError(f"`{argument}` names {path} {number} times. Name it once.")
    return files


def _find(argument: str, name: str) -> list[str]:
    name = os.path.expanduser(name)
    if os.path.isdir(name):
        raise UserError(f"`{argument}`: {name} is a folder. Name its files, for example '{name}/*.jsonl'.")
    files = [name] if os.path.isfile(name) else sorted(filter(os.path.isfile, glob.glob(name, recursive=True)))
    if not files:
        folder = Path(name).parent
        others = [str(path) for path in folder.iterdir()] if folder.is_dir() else []
        raise FileNotFoundError(
            f"`{argument}`: there is no file {name!r} (looked in {folder.resolve()}).{suggestion(name, others)}"
        )
    for file in files:
        check_literal_name(argument, file)
    return files


def check_literal_name(argument: str, name: str | None) -> None:
    """Stop on a file or folder whose path `datasets` takes for a glob, so that it would read other ones."""
    path = os.path.realpath(name or "")
    if name and os.path.exists(path) and glob.escape(path) != path:
        raise UserError(
            f"`{argument}`: the path {path} holds one of the characters [ * ?, so that `datasets` would read other "
            "files. Rename it."
        )


def file_kind(argument: str, files: Sequence[str], builders: Mapping[str, str] = BUILDERS) -> str:
    """
    The builder that reads files, by the ends of their names; `ValueError` if there is none in `builders`, or several.

    >>> file_kind("train_file", ["a.JSONL.gz", "https://host/b.jsonl?token=1"])
    'json'
    """
    kinds = {builders.get(suffix_of(file)): file for file in files}
    if None in kinds:
        file, known = without_credentials(kinds[None]), ", ".join(builders)
        raise UserError(f"`{argument}`: {file} has an unknown extension. Known are {known}, most with .gz, too.")
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


# ---- Describing -----------------------------------------------------------------------------------------------------


def file_version(file: str | os.PathLike) -> tuple[int, int]:
    """Size and time of a file: a changed file is read anew."""
    status = Path(file).stat()
    return status.st_size, status.st_mtime_ns


def describe_file(path: str | os.PathLike) -> str:
    """Size and a hash of blocks at equal distances, by which a file is known wherever it is moved."""
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


def check_held_out(train_files: Sequence[str], held_out: Iterable[tuple[str, Sequence[str]]]) -> None:
    """
    Stop if a file that is held out is trained on too, also under another name. To train and evaluate on just the same
    text is deliberate, as in a first test, and only reported. `held_out` are the arguments of the other splits and
    their files.
    """
    trained = set(describe_all_files("train_file", train_files)) if train_files else set()
    for argument, names in held_out if trained else ():
        contents = dict(zip(find_files(argument, names), describe_all_files(argument, names), strict=True))
        both = [file for file, content in contents.items() if content in trained]
        if both and trained == set(contents.values()):
            logger.warning(
                f"`train_file` and `{argument}` name the same text, {both[0]}: the scores will say how well it is "
                "remembered, not how well others are read."
            )
        elif both:
            raise UserError(
                f"`train_file` and `{argument}` both name {both[0]}, or a copy, and what is held out must not be "
                "trained on. Take it out of one of them. (For scores on all that is trained on, name the same files "
                "twice.)"
            )


# ---- Columns --------------------------------------------------------------------------------------------------------


def without_format(dataset: Dataset | IterableDataset) -> Dataset | IterableDataset:
    """
    A data set that gives plain Python values, whatever format it has (`with_format("torch")`). A transform
    (`with_transform`) stays.

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
    The names of all columns of documents. `ValueError` if there is no document, no such column, or something else than
    text in it, by its type or, in a stream without types, by the first element.
    """
    first = next(iter(dataset), None)
    if first is None:
        raise UserError("There are no documents, hence no text.")
    if text_column not in first:
        raise UserError(
            f"There is no column {text_column!r}. The columns are: {', '.join(map(repr, first))}. Name the one that "
            "holds the text by `text_column`."
        )
    if dataset.features is None:
        column_texts({text_column: [first[text_column]]}, text_column)
        return list(first)
    feature = dataset.features[text_column]
    if getattr(feature, "dtype", None) not in TEXT_TYPES:
        raise UserError(
            f"The column {text_column!r} must hold text, but holds values such as {first[text_column]!r:.80} "
            f"({feature}). Name the column that holds the text by `text_column`."
        )
    return list(first)


def column_texts(batch: Mapping[str, Sequence[Any]], text_column: str) -> list[str]:
    """
    The documents in a batch of `datasets.map`; a missing text is an empty one. `ValueError` if one of them is no text.

    >>> column_texts({"text": ["A document.", None]}, "text")
    ['A document.', '']
    """
    for index, text in enumerate(batch[text_column]):
        if text is not None and not isinstance(text, str):
            raise UserError(
                f"The column {text_column!r} must hold text, but its row {index} holds {text!r:.80} "
                f"({type(text).__name__}). Name the column that holds the text by `text_column`."
            )
    return [text or "" for text in batch[text_column]]
