"""
Text in files and columns: finding and checking local files, reading them by the builders of `datasets`, and checking
that a column holds text.

Where the encoding, the JSON or the column is wrong, `datasets` reads something else, or fails with a message that has
neither the file nor the line. The checks here name both, and the remedy.
"""

import codecs
import csv
import glob
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, DownloadConfig, DownloadManager, Features, IterableDataset, Value, load_dataset

from ..suggestions import suggestion

# One file or several, or none.
Files = str | os.PathLike | Sequence[str | os.PathLike] | None

# Builders of `datasets` by the end of a file name; each may be followed by .gz.
READERS = {".txt": "text", ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}

# A file that is streamed is checked this far before training starts (bytes of text); otherwise to its end.
STREAM_CHECK_SIZE = 64 << 20

# A text file is searched this far for a blank line (characters).
BLANK_LINE_SEARCH_SIZE = 1 << 20


def file_names(files: Files) -> list[str]:
    """
    One file or several, as a list.

    >>> file_names("a.txt"), file_names([Path("b.txt"), "c.txt"]), file_names(None)
    (['a.txt'], ['b.txt', 'c.txt'], [])
    """
    if files is None:
        return []
    return [os.fspath(file) for file in ([files] if isinstance(files, (str, os.PathLike)) else files)]


def load_files(
    argument: str,
    names: list[str],
    streaming: bool = False,
    cache_dir: str | None = None,
    check_encoding: bool = True,
) -> Dataset | IterableDataset:
    """
    Read files of documents, all of one kind, see [`corpus.load_corpus`].

    Args:
        argument (`str`): what an error calls the files, such as `"train_file"`.
        names (`list[str]`): files or globs; with a protocol (`https://…`) they are left to `datasets`.
        streaming (`bool`, defaults to `False`): as for `datasets.load_dataset`. Of each file only the first
            `STREAM_CHECK_SIZE` bytes are checked.
        cache_dir (`str`, *optional*): as for `datasets.load_dataset`.
        check_encoding (`bool`, defaults to `True`): check that they are UTF-8.

    Returns:
        `Dataset` or, if `streaming`, `IterableDataset`: the documents of all files, in their order.

    Raises:
        `ValueError`: naming file, line and remedy, if files cannot be read.
        `FileNotFoundError`: if there is no file of a name.
    """
    files = [file for name in names for file in find_files(argument, name)]
    reader = _reader(argument, files)
    local_files = [file for file in files if "://" not in file]
    if reader != "parquet" and check_encoding:
        for file in local_files:
            check_utf8(argument, file, STREAM_CHECK_SIZE if streaming else None)
    try:
        options = _reader_options(reader, local_files)
        if reader == "parquet":  # the only reader that does not unpack by itself
            manager = DownloadManager(download_config=DownloadConfig(cache_dir=cache_dir))
            files = [manager.extract(file) if file.endswith(".gz") else file for file in files]
        return load_dataset(
            reader, data_files=files, split="train", streaming=streaming, cache_dir=cache_dir, **options
        )
    except Exception as error:  # each reader raises exceptions of its own
        place = _first_bad_json_line(local_files) if reader == "json" else None
        is_empty = "corresponds to no data" in str(error)
        reason = "it has no rows" if is_empty else error.__cause__ or error
        raise ValueError(f"`{argument}`: cannot read {place or ', '.join(names)} as {reader}: {reason}") from error


def find_files(argument: str, name: str) -> list[str]:
    """
    The files that a name or glob stands for, sorted.

    Args:
        argument (`str`): what an error calls the files, such as `"train_file"`.
        name (`str`): a file or a glob, or an address with a protocol, which is returned as it is.

    Raises:
        `ValueError`: if it is a folder.
        `FileNotFoundError`: if there is no such file. The message names similar ones.
    """
    if "://" in name or Path(name).is_file():
        return [name]
    if Path(name).is_dir():
        raise ValueError(f"`{argument}`: {name} is a folder. Name its files, for example '{name}/*.jsonl'.")
    files = sorted(file for file in glob.glob(name, recursive=True) if Path(file).is_file())
    if not files:
        folder = Path(name).parent
        others = [str(path) for path in folder.iterdir()] if folder.is_dir() else []
        raise FileNotFoundError(
            f"`{argument}`: there is no file {name!r} (looked in {folder.resolve()}).{suggestion(name, others)}"
        )
    return files


def _reader(argument: str, files: list[str]) -> str:
    readers = {}
    for file in files:
        suffix = Path(file.removesuffix(".gz")).suffix.lower()
        if suffix not in READERS:
            raise ValueError(
                f"`{argument}`: {file} has an unknown extension. Known are {', '.join(READERS)}, and each of them "
                "with .gz."
            )
        readers[READERS[suffix]] = file
    if len(readers) > 1:
        raise ValueError(
            f"`{argument}` mixes kinds of files, such as {' and '.join(readers.values())}. Convert them to one kind."
        )
    return next(iter(readers))


def open_file(file: str) -> io.BufferedIOBase:
    """Open a file for reading bytes, unpacking it if its name ends in .gz."""
    return gzip.open(file, "rb") if file.endswith(".gz") else open(file, "rb")


def check_utf8(argument: str, file: str, size: int | None) -> None:
    """
    Check that a file holds text in UTF-8. (`datasets` would not say in which line it does not.)

    Args:
        argument (`str`): what an error calls the file, such as `"train_file"`.
        file (`str`): its path; if it ends in .gz, the file is unpacked.
        size (`int`, *optional*): check that many bytes from the beginning; by default all.

    Raises:
        `ValueError`: if it is not UTF-8 (naming the line), not a complete gzip file, or empty.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, is_empty, read = 1, True, 0
    try:
        with open_file(file) as content:
            while size is None or read < size:
                chunk = content.read(1 << 20)
                is_empty &= not decoder.decode(chunk, final=not chunk).strip()
                if not chunk:
                    break
                line += chunk.count(b"\n")
                read += len(chunk)
    except UnicodeDecodeError as error:
        line += error.object[: error.start].count(b"\n")
        raise ValueError(
            f"`{argument}`: {file}, line {line}, is not UTF-8 text: byte 0x{error.object[error.start]:02x} "
            f"({error.reason}). Repair the line, or convert the file, for example by `iconv -f latin1 -t utf-8`."
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"`{argument}`: {file} is not a complete gzip file: {error}.") from error
    if is_empty:
        raise ValueError(f"`{argument}`: {file} is empty.")


def _reader_options(reader: str, files: list[str]) -> dict[str, Any]:
    if reader == "text":
        is_blocks = not files or any(map(_has_blank_line, files))
        return {"sample_by": "paragraph" if is_blocks else "line"}
    if reader == "csv" and files:
        with io.TextIOWrapper(open_file(files[0]), encoding="utf-8-sig", newline="") as content:
            columns = next(csv.reader(content))
        # All columns are text: else the word "None" would be read as no text, and a column of years as numbers.
        features = Features({column: Value("string") for column in columns})
        return {"na_filter": False, "features": features}
    return {}


def _has_blank_line(file: str) -> bool:
    with open_file(file) as content:
        start = content.read(BLANK_LINE_SEARCH_SIZE).strip()
    return re.search(rb"\n\r?\n", start) is not None


def _first_bad_json_line(files: list[str]) -> str | None:
    for file in files:
        with open_file(file) as content:
            is_list = content.read(1) == b"["
            content.seek(0)
            for number, part in enumerate([content.read()] if is_list else content):
                try:
                    json.loads(part if part.strip() else "{}")
                except json.JSONDecodeError as error:
                    return f"{file}, line {number + error.lineno},"
    return None


def check_text_column(dataset: Dataset | IterableDataset, text_column: str) -> list[str]:
    """
    Check that a column holds text, by its type or, in a stream without types, by the first element.

    Args:
        dataset (`Dataset` or `IterableDataset`): documents.
        text_column (`str`): the column that should hold them.

    Returns:
        `list[str]`: the names of all columns.

    Raises:
        `ValueError`: if there is no document, no such column, or something else than text in it.
    """
    first = next(iter(dataset), None)
    if first is None:
        raise ValueError("There are no documents, hence no text.")
    if text_column not in first:
        raise ValueError(
            f"There is no column {text_column!r}. The columns are: {', '.join(map(repr, first))}. Name the one that "
            "holds the text by `text_column`."
        )
    if dataset.features is not None and not _is_text(dataset.features[text_column]):
        _check_texts((row[text_column] for row in dataset), text_column)
    return list(first)


def column_texts(batch: Mapping[str, Sequence[Any]], text_column: str) -> list[str]:
    """
    The documents in a batch of `datasets.map`. A missing text (`None`) is an empty one.

    Args:
        batch (`Mapping[str, Sequence]`): columns by their names.
        text_column (`str`): the column that holds the documents.

    Raises:
        `ValueError`: if one of them is not a text.

    >>> column_texts({"text": ["A document.", None]}, "text")
    ['A document.', '']
    """
    texts = batch[text_column]
    _check_texts(texts, text_column)
    return [text or "" for text in texts]


def _is_text(feature: Any) -> bool:
    return isinstance(feature, Value) and feature.dtype in ("string", "large_string")


def _check_texts(texts: Iterable[Any], text_column: str):
    for index, text in enumerate(texts):
        if text is not None and not isinstance(text, str):
            raise ValueError(
                f"The column {text_column!r} must hold text, but its row {index} holds {text!r:.80} "
                f"({type(text).__name__}). Name the column that holds the text by `text_column`."
            )
