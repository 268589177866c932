"""[`load_files`]: files of documents or of examples, by the builders of `datasets`, for corpora and for tasks."""

import codecs
import csv
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import (
    Dataset,
    DownloadConfig,
    DownloadManager,
    Features,
    IterableDataset,
    Value,
    concatenate_datasets,
    load_dataset,
)
from datasets.table import CastError
from filelock import FileLock

from ..credentials import without_credentials
from ..errors import UserError
from ..suggestions import listed
from .files import (
    column_texts,
    file_kind,
    file_version,
    find_files,
    is_local,
    literal_pattern,
    open_file,
    separator_advice,
)

# The builders read some files otherwise than they are meant, without a word. What is done about it here:
#
# | trap | what a builder makes of it | what happens here |
# |---|---|---|
# | a byte order mark | a character of the first text; of JSON, an error in the second file | it is left out |
# | CRLF, lines of white space | they part no documents | lines end in "\n", blank lines part documents |
# | a text file without blank lines | one document (`sample_by="paragraph"`) | each line is a document |
# | "NA", numbers, dates in a column of a CSV file | nothing, or no text | all cells are text |
# | a row of a CSV file that is longer than the header | all columns move by one, if it is the first row | an error |
# | an empty file among others, a table without rows | nothing | an error |
# | columns that differ between files | `None` in some rows, or an error about a cast | an error; `None` is reported |
# | text in some rows of JSON, other values in others | the text "5" is a number, "null" nothing | an error |
# | a JSON list of lists | a column of lists, which tasks join to texts, labels among them | an error |
# | a row that is no text | documents of numbers, lists or times | an error ([`check_text_column`]) |
# | a file that is not UTF-8 | an error without the name of the file and the line | an error with both |
# | .parquet.gz | no Parquet file | it is unpacked |
# | a name with `[` or `*` | another file, or none | the file of that name |
# | an empty list of files | other data, or the default | an error ([`check_files_named`]) |

READING_VERSION = 1  # raised when the same file gives other rows
_START = 1 << 20  # bytes that show whether there is text in a file, and in what encoding
_LISTS = re.compile(rb"(\xef\xbb\xbf)?\s*\[\s*\[")  # JSON
_MARK = codecs.BOM_UTF8.decode()
_LOOKED_AT = 1 << 26  # characters in which blank lines are looked for


def load_files(
    argument: str,
    names: Sequence[str],
    streaming: bool = False,
    cache_dir: str | None = None,
    text_column: str = "text",
) -> Dataset | IterableDataset:
    """
    Read files of one kind, see the table of this module.

    Args:
        argument (`str`): what an error calls the files, such as `"train_file"`.
        names (`Sequence[str]`): files or globs, or addresses with a protocol (`https://…`), which are downloaded.
        streaming (`bool`, defaults to `False`): read while iterating; each file is a shard.
        cache_dir (`str`, *optional*): as for `datasets.load_dataset`.
        text_column (`str`, defaults to `"text"`): the column that each row of a stream must have, with text in it.

    Returns:
        `Dataset` or, if `streaming`, `IterableDataset`: the rows of all files, in their order. A text file has one
        document in each row, in the column `text`; the cells of a CSV file are text.

    Raises:
        `ValueError`: naming the file and what is wrong with it (of a stream: when it is read).
        `FileNotFoundError`: if there is no file of a name.
    """
    files = find_files(argument, names)
    kind = file_kind(argument, files)
    for file in filter(is_local, files):
        _check_start(argument, kind, file)
    if streaming:
        arguments = {"file": files, "kind": kind, "argument": argument, "text_column": text_column}
        return IterableDataset.from_generator(_stream, gen_kwargs=arguments | {"cache_dir": cache_dir})
    try:
        options = {file: _options(kind, file) for file in files}
        groups = itertools.groupby(files, key=lambda file: options[file])
        parts = [_load(kind, list(group), kept, cache_dir) for kept, group in groups]
        return concatenate_datasets(parts) if len(parts) > 1 else parts[0]
    except Exception as error:  # each builder raises exceptions of its own
        raise UserError(f"`{argument}`: {_explanation(kind, files, error)}") from error


def load_lines(argument: str, file: str, cache_dir: str | None = None) -> Dataset:
    """The lines of a text file without their ends, blank ones too, in the column `text`; see [`load_files`]."""
    if is_local(file):
        _check_start(argument, "text", file)
    try:
        return load_dataset("text", data_files=[literal_pattern(file)], split="train", cache_dir=cache_dir)
    except Exception as error:
        raise UserError(f"`{argument}`: {_explanation('text', [file], error)}") from error


def plain_copy(file: str, cache_dir: str | None = None) -> str:
    """
    The path of a file that needs no unpacking: an address is downloaded, and what ends in .gz is unpacked into the
    cache of `datasets`. (`DownloadManager.extract` would know a file by its path alone, however it has changed.)
    """
    name = file
    if not is_local(file):
        file = DownloadManager(download_config=DownloadConfig(cache_dir=cache_dir)).download(file)
    if not name.endswith(".gz"):
        return file
    folder = Path(cache_dir or datasets.config.HF_DATASETS_CACHE, "unpacked")
    version = repr((os.path.abspath(file), *file_version(file)))
    path = folder / hashlib.sha256(version.encode()).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):  # all processes of a run come here at once
        if not path.is_file():
            aside = path.with_suffix(".incomplete")
            with gzip.open(file) as packed, aside.open("wb") as plain:
                shutil.copyfileobj(packed, plain, 1 << 20)
            os.replace(aside, path)
    return str(path)


def _load(
    kind: str, files: Sequence[str], options: Mapping[str, Any], cache_dir: str | None, streaming: bool = False
) -> Dataset | IterableDataset:
    """What a builder makes of files for which it has the same options."""
    # A name with a bracket is no address within an archive.
    packed = {file for file in files if file.endswith(".gz") and (kind == "parquet" or "[" in file)}
    names = [literal_pattern(plain_copy(file, cache_dir) if file in packed else file) for file in files]
    rows = load_dataset(kind, data_files=names, split="train", cache_dir=cache_dir, streaming=streaming, **options)
    return rows.map(_documents, batched=True) if kind == "text" else rows


def _options(kind: str, file: str) -> dict[str, Any]:
    """The options of a builder of `datasets`, for a file."""
    if kind == "text":
        return {"sample_by": "paragraph" if _has_blank_lines(file) else "line"}
    if kind == "csv":
        return {"keep_default_na": False, "features": Features(dict.fromkeys(_csv_columns(file), Value("string")))}
    return {"encoding": "utf-8-sig"} if kind == "json" else {}


def _has_blank_lines(file: str) -> bool:
    """Whether blank lines stand between lines of text, as far as the beginning of a file shows."""
    num_read, has_text, is_after_blank = 0, False, False
    with io.TextIOWrapper(open_file(file), encoding="utf-8-sig", errors="replace") as lines:
        for line in lines:
            num_read += len(line)
            if line.strip() and is_after_blank or num_read > _LOOKED_AT:
                break
            has_text = has_text or bool(line.strip())
            is_after_blank = has_text and not line.strip()
        else:
            return False
    return is_after_blank


def _documents(batch: dict[str, list[str]]) -> dict[str, list[str]]:
    """Divide what the builder of text files parts at two line feeds only: a line of white space is blank, too."""
    documents = []
    for text in batch["text"]:
        lines = text.removeprefix(_MARK).split("\n")  # of packed files, the builder ignores an `encoding`
        for is_blank, part in itertools.groupby(lines, key=lambda line: not line.strip()):
            documents += [] if is_blank else ["\n".join(part)]
    return {"text": documents}


def _csv_columns(file: str) -> list[str]:
    """The names of the columns of a CSV file."""
    csv.field_size_limit(2**31 - 1)  # a cell is a document
    with io.TextIOWrapper(open_file(file), encoding="utf-8-sig", errors="replace", newline="") as lines:
        rows = filter(None, csv.reader(lines))
        header, first = next(rows, []), next(rows, None)
    check_header(file, header)
    if first is None:
        raise UserError(f"{file} has no rows")
    if len(first) > len(header):
        advice = separator_advice(header) or " Enclose a cell that holds a comma in quotation marks."
        raise UserError(
            f"the first row of {file} has {len(first)} cells, but there are {len(header)} columns: {listed(header)}."
            f"{advice}"
        )
    return header


def check_header(file: str, columns: Sequence[str]) -> None:
    """Stop if two columns of a table have the same name."""
    double = [column for index, column in enumerate(columns) if column in columns[:index]]
    if double:
        raise UserError(f"{file} has several columns {double[0]!r}: {listed(columns)}. Rename all but one of them.")


def _stream(
    file: Sequence[str], kind: str, argument: str, text_column: str, cache_dir: str | None
) -> Iterator[dict[str, Any]]:
    """The rows of a file. An error names it, wherever in the stream it is."""
    (file,) = file  # as `datasets` divides the arguments of generators
    number = 0
    try:
        # `iter(rows)` would divide them among the workers of a data loader once more.
        for batch in _load(kind, [file], _options(kind, file), cache_dir, streaming=True).iter(1000):
            if text_column not in batch:
                raise UserError(f"there is no column {text_column!r}, only {listed(batch)}")
            column_texts(batch, text_column)
            for values in zip(*batch.values(), strict=True):
                yield dict(zip(batch, values, strict=True))
                number += 1
    except Exception as error:
        after = f" (after {number:,} rows)" if number else ""
        raise UserError(f"`{argument}`: {_explanation(kind, [file], error)}{after}") from error


def _check_start(argument: str, kind: str, file: str) -> None:
    """Check that a file is not empty, which a builder passes over, and that it is no text in UTF-16 or UTF-32."""
    try:
        if kind == "parquet":
            is_empty = not file.endswith(".gz") and not pq.read_metadata(file).num_rows
        else:
            with open_file(file) as content:
                start = content.read(_START)
            is_empty = len(start) < _START and not start.removeprefix(codecs.BOM_UTF8).strip()
            if kind == "json" and _LISTS.match(start):  # of which the builder makes a column of its own
                raise UserError(
                    f"`{argument}`: {file} is a list of lists. Write each row as an object with the names of its "
                    'columns, such as {"text": "…"}.'
                )
            if b"\0" in start[:1000]:
                raise UserError(f"`{argument}`: {file} is no text in UTF-8. Convert it, as by `iconv -f UTF-16`.")
    except (OSError, EOFError, zlib.error, pa.ArrowInvalid):  # which the builder will tell
        return
    if is_empty:
        raise UserError(f"`{argument}`: {file} is empty.")


def _explanation(kind: str, files: Sequence[str], error: Exception) -> str:
    """Why a builder could not read files: which of them, the line if that shows, and what the builder says."""
    reason = error.__cause__ if str(error.__cause__ or "") else error  # as of a `DatasetGenerationError`
    for file in filter(is_local, files):
        problem = _problem(kind, file)
        if problem:
            return f"cannot read {file}{problem}"
    message = " ".join(str(reason).split()).rstrip(".") or type(reason).__name__
    if isinstance(reason, StopIteration):  # of the builder of JSON, for an address with a query as for one of no rows
        message = "there is no such file, it cannot be reached, or it has no rows"
    if isinstance(reason, CastError):
        message += " Give files of the same columns, or read them as a stream (`streaming`)"
    return without_credentials(f"cannot read {', '.join(files[:3])}{', …' if files[3:] else ''} as {kind}: {message}.")


def _problem(kind: str, file: str) -> str | None:
    """Where a local file is wrong, and how; `None` if it does not show."""
    number, has_lines = 0, False
    try:
        if kind == "parquet":
            pq.read_metadata(plain_copy(file))
            return None
        with open_file(file) as content:
            has_lines = kind == "json" and _is_json(content.readline())
            content.seek(0)
            for number, line in enumerate(content, start=1):  # noqa: B007
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if has_lines and text.strip() and not isinstance(json.loads(text), dict):
                    return f', line {number}, as json: it is no object such as {{"text": "…"}}.'
        if kind == "json" and not has_lines:
            with open_file(file) as content:
                json.load(content)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        return (
            f", line {number}: it is not UTF-8 text (byte 0x{byte:02x}). Repair the line, or convert the file, for "
            "example by `iconv -f latin1 -t utf-8`."
        )
    except json.JSONDecodeError as error:
        return f", line {number if has_lines else error.lineno}, as json: {error.msg}."
    except (OSError, EOFError, zlib.error, pa.ArrowInvalid) as error:
        return f" as {kind}: {str(error).rstrip('.')}."
    return None


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
