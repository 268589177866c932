"""
[`read_documents`]: the documents of text files and the rows of CSV files.

The builders of `datasets` decide for all text files at once what a document is, split it at two line feeds only, and
let a stray quotation mark swallow rows of a CSV file. These readers lose nothing, or name the file and the line.
"""

import csv
import functools
import gzip
import hashlib
import io
import logging
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets import Dataset, DownloadConfig, DownloadManager, Features, IterableDataset, Value
from datasets.builder import Key
from datasets.exceptions import DatasetGenerationError
from datasets.utils.file_utils import xopen
from filelock import FileLock

from ..suggestions import listed

logger = logging.getLogger(__name__)

READERS_VERSION = 1  # raised when the same file gives other rows, so that nothing older is found in the cache
TABLE_SIZE = 4 << 20  # characters that are held in memory before they are written

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def read_documents(
    kind: str, files: Sequence[str], streaming: bool = False, cache_dir: str | None = None
) -> Dataset | IterableDataset:
    """
    Read files into a data set; all columns are text. What was read before is found in the cache while neither the
    files nor `READERS_VERSION` change.

    Args:
        kind (`str`): a key of `ROW_READERS`: `"text"` or `"csv"`.
        files (`Sequence[str]`): paths, or addresses with a protocol.
        streaming (`bool`, defaults to `False`): read while iterating. Each file is a shard.
        cache_dir (`str`, *optional*): as for `datasets.load_dataset`.

    Raises:
        `ValueError`: naming the file and the line that cannot be read (of a stream: when it is read).
    """
    if not streaming:
        files = [plain_copy(file, cache_dir) if "://" in file else file for file in files]
    columns = ROW_READERS[kind].columns(files[0])
    versions = [None if "://" in file else file_version(file) for file in files]
    builder = FileRows(
        cache_dir=cache_dir,
        dataset_name=kind,
        kind=kind,
        columns=tuple(columns),
        files=tuple(files),
        versions=(READERS_VERSION, *versions),
    )
    if streaming:
        return builder.as_streaming_dataset(split="train")
    try:
        builder.download_and_prepare()
    except DatasetGenerationError as error:
        raise ValueError(str(error.__cause__ or error)) from error
    return builder.as_dataset(split="train")


def plain_copy(file: str, cache_dir: str | None = None) -> str:
    """
    The path of a file that needs no unpacking: an address is downloaded, and what ends in .gz is unpacked into the
    cache of `datasets`. (`DownloadManager.extract` would know a file by its path alone, however it has changed, and
    take for whole what a killed run has left.)

    Args:
        file (`str`): a path, or an address with a protocol.
        cache_dir (`str`, *optional*): as for `datasets.load_dataset`.
    """
    is_packed = file.endswith(".gz")
    if "://" in file:
        file = DownloadManager(download_config=DownloadConfig(cache_dir=cache_dir)).download(file)
    if not is_packed:
        return file
    config = datasets.config
    folder = Path(cache_dir, config.EXTRACTED_DATASETS_DIR) if cache_dir else Path(config.EXTRACTED_DATASETS_PATH)
    version = repr((os.path.abspath(file), *file_version(file)))
    path = folder / hashlib.sha256(version.encode()).hexdigest()
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock"):  # all processes of a run come here at once
            if not path.is_file():
                _unpack(file, path)
    return str(path)


def _unpack(file: str, path: Path) -> None:
    aside = path.with_suffix(".incomplete")
    with gzip.open(file) as packed, aside.open("wb") as plain:
        shutil.copyfileobj(packed, plain, 1 << 20)
    os.replace(aside, path)


@dataclass
class FileRowsConfig(datasets.BuilderConfig):
    kind: str = ""
    columns: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    versions: tuple = ()


class FileRows(datasets.ArrowBasedBuilder):
    """A builder of `datasets` for the readers in `ROW_READERS`."""

    BUILDER_CONFIG_CLASS = FileRowsConfig

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(features=Features({column: Value("string") for column in self.config.columns}))

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        # A list is what `datasets` takes for shards.
        return [datasets.SplitGenerator(name="train", gen_kwargs={"files": list(self.config.files)})]

    def _generate_shards(self, files: list[str]) -> Iterator[str]:
        yield from files

    def _generate_tables(self, files: list[str]) -> Iterator[tuple[Key, pa.Table]]:
        schema = self.info.features.arrow_schema
        read = ROW_READERS[self.config.kind].rows
        for shard, file in enumerate(files):
            for number, rows in enumerate(_batches(read(file, self.config.columns))):
                columns = [list(cells) for cells in zip(*rows, strict=True)]
                yield Key(shard, number), pa.Table.from_arrays(columns, schema=schema)


def _batches(rows: Iterable[Sequence[str]]) -> Iterator[list[Sequence[str]]]:
    """Rows together, up to `TABLE_SIZE` characters."""
    batch, size = [], 0
    for row in rows:
        batch.append(row)
        size += sum(map(len, row)) + 1
        if size >= TABLE_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def open_file(file: str) -> io.BufferedIOBase:
    """Open a file, or an address with a protocol, for reading bytes, unpacking it if its name ends in .gz."""
    if "://" in file:
        content = xopen(file, "rb")
        return gzip.open(content) if file.endswith(".gz") else content
    return gzip.open(file, "rb") if file.endswith(".gz") else open(file, "rb")


def file_version(file: str | os.PathLike) -> tuple[int, int]:
    """Size and time of a file: a changed file is read anew."""
    status = Path(file).stat()
    return status.st_size, status.st_mtime_ns


def lines_of(file: str) -> Iterator[str]:
    """
    The lines of a file in UTF-8 with their ends (a line feed, a carriage return, or both), without a byte order mark.

    Raises:
        `ValueError`: naming the file and the line that is not UTF-8, or a gzip file that is not complete.
    """
    try:
        with open_file(file) as content:
            for number, line in enumerate(content, start=1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                yield from _LINE.findall(text) if "\r" in text else [text]
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(
            f"{file}, line {number}, is not UTF-8 text: byte 0x{byte:02x} ({error.reason}). Repair the line, or "
            "convert the file, for example by `iconv -f latin1 -t utf-8`."
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{file} is not a complete gzip file: {error}.") from error


def text_rows(file: str, columns: Sequence[str] = ("text",)) -> Iterator[tuple[str]]:
    """
    The documents of a text file: what stands between blank lines, or, if there are none between its first and its
    last line of text, each line. A line of white space only, such as a form feed, is blank. All ends of lines become
    `"\\n"`.

    Raises:
        `ValueError`: naming the file and the line that is not UTF-8.
    """
    has_blank_lines = _has_blank_lines(file)
    document: list[str] = []
    for line in lines_of(file):
        if line.strip():
            document.append(line.rstrip("\r\n"))
        if document and not (has_blank_lines and line.strip()):
            yield ("\n".join(document),)
            document = []
    if document:
        yield ("\n".join(document),)


def _has_blank_lines(file: str) -> bool:
    """Whether blank lines stand between lines of text; the file is read as far as that takes."""
    has_text, is_after_blank = False, False
    for line in lines_of(file):
        if not line.strip():
            is_after_blank = has_text
        elif is_after_blank:
            return True
        else:
            has_text = True
    return False


def csv_columns(file: str) -> list[str]:
    """
    The names of the columns of a CSV file.

    Raises:
        `ValueError`: if two columns have the same name.
    """
    columns = next(filter(None, _csv_reader(lines_of(file))), [])
    check_header(file, columns)
    return columns


def check_header(file: str, columns: Sequence[str]) -> None:
    """
    Check the names of the columns of a table.

    Raises:
        `ValueError`: if two of them are the same.
    """
    double = [column for index, column in enumerate(columns) if column in columns[:index]]
    if double:
        raise ValueError(f"{file} has several columns {double[0]!r}: {listed(columns)}. Rename all but one of them.")


def separator_advice(columns: Iterable[str], or_tsv: bool = False) -> str:
    """
    The remedy for a table whose columns were not told apart, to append to an error; empty if they seem to be.

    Args:
        columns (`Iterable[str]`): their names.
        or_tsv (`bool`, defaults to `False`): whether the table may be a .tsv file, as those of tasks may.

    >>> separator_advice(["review;label"])
    " Its only column is 'review;label': separate columns by commas in a .csv file."
    """
    columns = list(columns)
    if len(columns) != 1 or not {";", "\t", "|", ","} & set(columns[0]):
        return ""
    tabs = ", by tabs in a .tsv file" if or_tsv else ""
    return f" Its only column is {columns[0]!r}: separate columns by commas in a .csv file{tabs}."


def csv_rows(file: str, columns: Sequence[str]) -> Iterator[Sequence[str]]:
    """
    The rows of a CSV file (RFC 4180), in the order of `columns`. A quotation mark opens a cell only where it begins
    it, and what is quoted may hold line breaks; an empty cell is an empty text.

    Raises:
        `ValueError`: naming the file and the line where a row begins that has too many or too few cells, or a quoted
            cell that is not closed, or that is followed by more text; or if the columns are others, or there are no
            rows.
    """
    reader = _csv_reader(lines_of(file))
    header, start, num_rows, has_warned = None, 1, 0, False
    while True:
        place = f"{file}, line {start}"
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise ValueError(
                _stray_quote(place, f"a quoted cell that is wrong in line {reader.line_num}", error)
            ) from error
        if row is None:
            break
        if header is None and row:
            header = csv_columns(file)
            order = _order(file, header, columns)
        elif row:
            if len(row) != len(header):
                raise ValueError(_wrong_number_of_cells(place, row, header, reader.line_num - start + 1))
            if not has_warned and (has_warned := _holds_rows(row)):
                _warn_of_rows_in_a_cell(place, reader.line_num)
            yield [row[index] for index in order]
            num_rows += 1
        start = reader.line_num + 1
    if not num_rows:
        raise ValueError(f"{file} has no rows.")


def _csv_reader(lines: Iterable[str]) -> Any:
    csv.field_size_limit(2**31 - 1)  # a cell is a document; the module's own limit is 128 KiB
    return csv.reader(lines, strict=True)


def _order(file: str, header: Sequence[str], columns: Sequence[str]) -> list[int]:
    if sorted(header) != sorted(columns):
        raise ValueError(
            f"{file} has the columns {listed(header)}, but the first file has {listed(columns)}. Give files of the "
            "same columns."
        )
    return [header.index(column) for column in columns]


def _stray_quote(place: str, what: str, reason: Any) -> str:
    return (
        f"{place}: the row that begins here has {what} ({reason}). A quotation mark at the beginning of a cell opens "
        "a quoted cell, which ends at the next single one. If it is part of the text, double it, and enclose the "
        'whole cell in quotation marks: """Yes"", he said."'
    )


def _wrong_number_of_cells(place: str, row: Sequence[str], header: Sequence[str], num_lines: int) -> str:
    counts = f"{len(row)} cells, but there are {len(header)} columns: {listed(header)}"
    if num_lines > 1:
        return _stray_quote(place, f"a quoted cell that reaches over {num_lines} lines", counts)
    remedy = separator_advice(header) or " Enclose a cell that holds a comma in quotation marks, or repair the row."
    return f"{place}: the row has {counts}.{remedy}"


def _holds_rows(row: Sequence[str]) -> bool:
    """Whether some cell of a row holds several lines, each of them like a row with as many cells."""
    if len(row) == 1:
        return False
    for cell in row:
        inner = cell.splitlines()[1:-1]
        if inner and all(len(cells) == len(row) for cells in csv.reader(inner)):
            return True
    return False


@functools.cache  # told once, not at each pass over a stream
def _warn_of_rows_in_a_cell(place: str, last_line: int) -> None:
    logger.warning(
        f"{place}: a quoted cell reaches to line {last_line}, and each line within it looks like a row. If they are "
        "rows, a stray quotation mark opens the cell: remove it, or double it and quote its cell."
    )


@dataclass(frozen=True)
class RowReader:
    """
    Attributes:
        columns: the names of the columns of a file.
        rows: yields the cells of each row of a file, given the columns.
    """

    columns: Callable[[str], Sequence[str]]
    rows: Callable[[str, Sequence[str]], Iterator[Sequence[str]]]


ROW_READERS = {"text": RowReader(lambda file: ("text",), text_rows), "csv": RowReader(csv_columns, csv_rows)}
