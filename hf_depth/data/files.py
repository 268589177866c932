"""
Text in files and columns: finding and checking local files, reading them by the builders of `datasets`, and checking
that a column holds text.

Where the encoding, the JSON or the column is wrong, `datasets` reads something else, or fails with a message that has
neither the file nor the line. The checks here name both, and the remedy.
"""

import codecs
import glob
import gzip
import hashlib
import json
import logging
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.parquet as pq
from datasets import Dataset, IterableDataset, Value, load_dataset
from datasets.table import CastError

from ..manifests import is_full_disk
from ..suggestions import listed, suggestion
from .readers import ROW_READERS, open_file, plain_copy, read_documents, separator_advice

logger = logging.getLogger(__name__)

# One file or several, or none.
Files = str | os.PathLike | Sequence[str | os.PathLike] | None

FILE_ARGUMENTS = ("train_file", "validation_file", "test_file")

# Builders of `datasets` by the end of a file name; each may be followed by .gz.
READERS = {".txt": "text", ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}

# A file that is checked while it is read is checked this far before (bytes of text); otherwise to its end.
STREAM_CHECK_SIZE = 2 << 20

MIXED_COLUMNS = (
    ". If a column beside the text is of another type in some rows, or is not in all files: read them as a stream "
    "(`streaming`), or leave it out."
)

NUM_BLOCKS, BLOCK_SIZE = 8, 4096  # of a file that is described, in bytes

# A file with its number and how many there are: `c4-train.00000-of-01024.json.gz`, or, on the Hub, with a hash behind.
_SHARD = re.compile(r"(.*(?<!\d))(\d{5})-of-(\d{5})(?:-[0-9a-f]{16})?((?!\d)[^/]*)", re.DOTALL)

# Escaped surrogates in JSON, in pairs or alone; a backslash may itself be escaped.
_SURROGATES = re.compile(rb"(?<!\\)(?:\\\\)*(?:\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>\\u[dD][89a-fA-F]..))")


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

    Args:
        arguments (`Mapping[str, Files]`): by their names; a folder or a data set of the Hub is checked likewise.

    >>> check_files_named({"train_file": [], "test_file": None})
    Traceback (most recent call last):
    ValueError: `train_file` is empty: it names no file. (A glob that finds none is an empty list in Python.)
    >>> check_files_named({"dataset_name": ""})
    Traceback (most recent call last):
    ValueError: `dataset_name` is an empty text: name what is to be read, or leave it out.
    """
    for name, files in arguments.items():
        if files == "" or isinstance(files, Sequence) and "" in list(files):
            raise ValueError(f"`{name}` is an empty text: name what is to be read, or leave it out.")
        if files is not None and not files:
            raise ValueError(
                f"`{name}` is empty: it names no file. (A glob that finds none is an empty list in Python.)"
            )


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
            `STREAM_CHECK_SIZE` bytes are checked before it is read.
        cache_dir (`str`, *optional*): as for `datasets.load_dataset`.
        check_encoding (`bool`, defaults to `True`): check that they are UTF-8.

    Returns:
        `Dataset` or, if `streaming`, `IterableDataset`: the documents of all files, in their order.

    Raises:
        `ValueError`: naming file, line and remedy, if files cannot be read.
        `FileNotFoundError`: if there is no file of a name.
    """
    files = find_all_files(argument, names)
    reader = _reader(argument, files)
    local_files = [file for file in files if "://" not in file]
    if reader != "parquet" and check_encoding:
        for file in local_files:
            is_checked_later = streaming or reader in ROW_READERS
            check_utf8(argument, file, STREAM_CHECK_SIZE if is_checked_later else None)
    if reader == "json":
        for file in local_files:
            _check_json_list(argument, file)
    if reader in ROW_READERS:
        return _read_documents(argument, reader, files, streaming, cache_dir)
    try:
        # Parquet's builder does not unpack by itself, and a name with a bracket is no address within an archive.
        packed = {file for file in files if file.endswith(".gz") and (reader == "parquet" or "[" in file)}
        files = [plain_copy(file, cache_dir) if file in packed else file for file in files]
        # By itself, the builder takes a byte order mark away from the first file only.
        options = {"encoding": "utf-8-sig"} if reader == "json" and any(map(_has_mark, local_files)) else {}
        files = list(map(literal_pattern, files))
        return load_dataset(
            reader, data_files=files, split="train", streaming=streaming, cache_dir=cache_dir, **options
        )
    except Exception as error:  # each reader raises exceptions of its own
        _check_cache(argument, error, local_files, cache_dir)
        place = _first_bad_json_line(local_files) if reader == "json" else None
        is_empty = has_no_rows(error)
        reason = "it has no rows" if is_empty else error.__cause__ or error
        if is_empty and reader == "parquet":
            plain = (file for file in local_files if not file.endswith(".gz"))
            place = next((file for file in plain if not pq.read_metadata(file).num_rows), None)
        elif not (place or is_empty) and _may_be_mixed(reader, reason):
            reason = f"{reason}{MIXED_COLUMNS}"
        raise ValueError(f"`{argument}`: cannot read {place or ', '.join(names)} as {reader}: {reason}") from error


def _may_be_mixed(reader: str, reason: Exception) -> bool:
    """Whether files are perhaps not read for their other columns. (An address that is not there is an `OSError`.)"""
    return isinstance(reason, CastError) or reader == "json" and not isinstance(reason, OSError)


def _check_cache(argument: str, error: Exception, local_files: list[str], cache_dir: str | None) -> None:
    """Tell a cache that cannot be written from files that cannot be read."""
    cause = error.__cause__ or error
    cache = os.path.abspath(cache_dir or datasets.config.HF_DATASETS_CACHE)
    name = os.path.abspath(cause.filename) if isinstance(getattr(cause, "filename", None), str) else None
    is_there = name is not None and os.path.commonpath([name, cache]) in (name, cache)  # or a folder that it is in
    if is_full_disk(cause) or (is_there and name not in map(os.path.abspath, local_files)):
        raise ValueError(
            f"`{argument}`: what is read cannot be kept in the cache of `datasets`: {cause}. Name a folder that can "
            "be written, and has room, by `cache_dir` or the environment variable HF_HOME."
        ) from error


def has_no_rows(error: Exception) -> bool:
    """Whether a reader of `datasets` has failed since there is nothing to read."""
    message = f"{error} {error.__cause__}"
    of_readers = ("corresponds to no data", "at least one example", "BatchSize must be greater than 0, got 0")
    return any(part in message for part in of_readers)  # the last one of parquet


def _read_documents(
    argument: str, reader: str, files: list[str], streaming: bool, cache_dir: str | None
) -> Dataset | IterableDataset:
    try:
        return read_documents(reader, files, streaming, cache_dir)
    except ValueError as error:
        raise ValueError(f"`{argument}`: {error}") from error


def find_all_files(argument: str, names: Sequence[str]) -> list[str]:
    """
    The files that names or globs stand for, in their order.

    Args:
        argument (`str`): what an error calls the files, such as `"train_file"`.
        names (`Sequence[str]`): as for [`find_files`].

    Raises:
        `ValueError`, `FileNotFoundError`: as [`find_files`], or if a file is named twice, as by two globs.
    """
    files = [file for name in names for file in find_files(argument, name)]
    counts = Counter(file if "://" in file else os.path.abspath(file) for file in files)
    file, number = counts.most_common(1)[0]
    if number > 1:
        raise ValueError(f"`{argument}` names {file} {number} times, and each time it would be read. Name it once.")
    return files


def literal_pattern(file: str) -> str:
    """
    A file as `data_files` of `load_dataset`, which takes all names for globs: also a name, or a folder above it, that
    holds `[`, `*` or `?`.

    >>> literal_pattern("/data/texts[12].jsonl")
    '/data/texts[[]12].jsonl'
    """
    return file if "://" in file else glob.escape(os.path.abspath(file))


def check_folder_name(argument: str, name: str | None) -> None:
    """
    Check that `load_dataset` reads a local folder, and not another one: it takes the path for a glob.

    Args:
        argument (`str`): what an error calls the folder, such as `"dataset_name"`.
        name (`str`, *optional*): a folder, or a data set on the Hub.

    Raises:
        `ValueError`: if the path of a folder holds `[`, `*` or `?`.
    """
    path = os.path.realpath(name or "")
    if name and os.path.isdir(name) and glob.escape(path) != path:
        raise ValueError(
            f"`{argument}`: the path of the folder {path} holds one of the characters [ * ?, so that `datasets` "
            "would read other folders. Rename it, or name its files by `train_file`."
        )


def check_held_out(train_files: Sequence[str], held_out: Iterable[tuple[str, Sequence[str]]]) -> None:
    """
    Check that no file which is held out is trained on too, as where the glob of one argument matches the other's file.
    To train and evaluate on just the same files is deliberate, as in a first test, and only reported.

    Args:
        train_files (`Sequence[str]`): as for [`find_files`].
        held_out (`Iterable`): for each other split the argument that names its files, and these.

    Raises:
        `ValueError`: naming the files.
        `FileNotFoundError`: if there is no file of a name.
    """
    trained = {_real_path(file): file for file in find_all_files("train_file", train_files)} if train_files else {}
    for argument, names in held_out if trained else ():
        found = {_real_path(file) for file in find_all_files(argument, names)}
        both = [trained[file] for file in sorted(found & trained.keys())]
        if both and found == trained.keys():
            logger.warning(
                f"`train_file` and `{argument}` name the same text, {_some(both)}: the scores will say how well it is "
                "remembered, not how well others are read."
            )
        elif both:
            raise ValueError(
                f"`train_file` and `{argument}` both name {_some(both)}, and what is held out must not be trained on. "
                "Take it out of one of them. (For scores on all that is trained on, name the same files twice.)"
            )


def _real_path(file: str) -> str:
    return file if "://" in file else os.path.realpath(file)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if names[3:] else "")


def shard_problem(files: Iterable[str]) -> str | None:
    """
    What is wrong with files that are numbered as `train-00000-of-00004.parquet`, in words; `None` if nothing is.

    Args:
        files (`Iterable[str]`): paths. Those that differ in the numbers alone belong together.

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


def find_files(argument: str, name: str) -> list[str]:
    """
    The files that a name or glob stands for, sorted.

    Args:
        argument (`str`): what an error calls the files, such as `"train_file"`.
        name (`str`): a file or a glob, `~` being the home folder; or an address with a protocol, which is returned as
            it is.

    Raises:
        `ValueError`: if it is a folder, or a pipe.
        `FileNotFoundError`: if there is no such file. The message names similar ones.
    """
    if "://" in name:
        return [name]
    name = os.path.expanduser(name)
    if Path(name).is_file():
        return [name]
    if Path(name).is_dir():
        raise ValueError(f"`{argument}`: {name} is a folder. Name its files, for example '{name}/*.jsonl'.")
    if Path(name).exists():
        raise ValueError(
            f"`{argument}`: {name} is a pipe or a device, which can be read only once. Write what it gives to a file."
        )
    files = sorted(file for file in glob.glob(name, recursive=True) if Path(file).is_file())
    if not files:
        folder = Path(name).parent
        others = [str(path) for path in folder.iterdir()] if folder.is_dir() else []
        raise FileNotFoundError(
            f"`{argument}`: there is no file {name!r} (looked in {folder.resolve()}).{suggestion(name, others)}"
        )
    return files


def describe_file(path: str | os.PathLike) -> str:
    """
    Size and a hash of blocks at equal distances, by which a file is known wherever it is moved: a stream goes on by
    row numbers, which hold for that file only.

    Args:
        path (`str` or `os.PathLike`): of a local file.
    """
    size = os.path.getsize(path)
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for start in np.linspace(0, max(0, size - BLOCK_SIZE), NUM_BLOCKS).astype(int):
            file.seek(start)
            digest.update(file.read(BLOCK_SIZE))
    return f"{size} bytes ({digest.hexdigest()[:12]})"


def describe_all_files(argument: str, names: Sequence[str]) -> list[str]:
    """
    [`describe_file`] of the files that names or globs stand for; an address with a protocol stands for itself.

    Args:
        argument (`str`): what an error calls the files, such as `"train_file"`.
        names (`Sequence[str]`): as for [`find_files`].
    """
    files = [file for name in names for file in find_files(argument, name)]
    return [file if "://" in file else describe_file(file) for file in files]


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
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    line, is_empty, read, chunk = 1, True, 0, b""
    try:
        with open_file(file) as content:
            encoding = _other_unicode(content.read(1024))
            if encoding:
                raise ValueError(
                    f"`{argument}`: {file} is text in {encoding}, not in UTF-8. Convert it by `iconv -f {encoding} -t "
                    f"UTF-8`."
                )
            content.seek(0)
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
    if is_empty and not chunk:  # to its end
        raise ValueError(f"`{argument}`: {file} is empty.")


def _has_mark(file: str) -> bool:
    """Whether a file begins with the byte order mark of UTF-8."""
    with open_file(file) as content:
        return content.read(3) == codecs.BOM_UTF8


def _other_unicode(start: bytes) -> str | None:
    """UTF-16 or UTF-32, if a file that begins so is in one of them: by its byte order mark or its null bytes."""
    for mark, encoding in (
        (codecs.BOM_UTF32_LE, "UTF-32"),  # before that of UTF-16, with which it begins
        (codecs.BOM_UTF32_BE, "UTF-32"),
        (codecs.BOM_UTF16_LE, "UTF-16"),
        (codecs.BOM_UTF16_BE, "UTF-16"),
    ):
        if start.startswith(mark):
            return encoding
    for offset, encoding in ((0, "UTF-16BE"), (1, "UTF-16LE")):
        if len(start) > 1 and start[offset::2].count(0) > 0.9 * len(start[offset::2]):
            return encoding
    return None


def _first_bad_json_line(files: list[str]) -> str | None:
    for file in files:
        with open_file(file) as content:
            is_list = content.read(1) == b"["
            content.seek(0)
            for number, part in enumerate([content.read()] if is_list else content):
                try:
                    value = json.loads(part if part.strip() else "{}")
                    if not (is_list or isinstance(value, dict)):
                        return f'{file}, line {number + 1}, which is no object such as {{"text": "…"}},'
                except (json.JSONDecodeError, RecursionError) as error:
                    return f"{file}, line {number + getattr(error, 'lineno', 1)},"
                line = lone_surrogate_line(part)
                if line:
                    return f"{file}, line {number + line},"
    return None


def _check_json_list(argument: str, file: str) -> None:
    """
    Check a file that is one list in JSON, which the builder reads as a whole, for halves of surrogate pairs (`\\ud800`
    alone), which it would drop.
    """
    with open_file(file) as content:
        if not content.read(1024).removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
            return
        content.seek(0)
        line = lone_surrogate_line(content.read())
    if line:
        raise ValueError(
            f"`{argument}`: {file}, line {line}, holds half of a surrogate pair (such as \\ud800 alone), which is no "
            "character. Repair the text."
        )


def lone_surrogate_line(content: bytes) -> int | None:
    """The line, from 1, of the first half of a surrogate pair in JSON."""
    for match in _SURROGATES.finditer(content):
        if match["half"]:
            return 1 + content.count(b"\n", 0, match.start())
    return None


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
            f"There is no column {text_column!r}.{separator_advice(first)} The columns are: "
            f"{', '.join(map(repr, first))}. Name the one that holds the text by `text_column`."
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
    return isinstance(feature, Value) and feature.dtype in ("string", "large_string", "string_view")


def _check_texts(texts: Iterable[Any], text_column: str):
    for index, text in enumerate(texts):
        if text is not None and not isinstance(text, str):
            raise ValueError(
                f"The column {text_column!r} must hold text, but its row {index} holds {text!r:.80} "
                f"({type(text).__name__}). Name the column that holds the text by `text_column`."
            )
