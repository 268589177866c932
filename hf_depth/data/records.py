"""
Local files of records that are read while training: what is wrong with a record is told with its file and line, or it
is left out and counted.

Readers of `datasets` end at the first record that they cannot read, wherever in the stream it is, and name neither.
"""

import functools
import gzip
import json
import logging
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import IterableDataset

from .files import STREAM_CHECK_SIZE, check_utf8, find_all_files, has_no_rows, load_files, open_file

logger = logging.getLogger(__name__)

ON_BAD_RECORD = ("error", "skip")

# A warning names so many of the records that were left out of a file.
_NAMED = 5


def load_streamed_files(
    argument: str,
    names: list[str],
    text_column: str = "text",
    on_bad_record: str = "error",
    cache_dir: str | None = None,
) -> IterableDataset:
    """
    As [`load_files`] with `streaming`, with one shard for each file, and bad records told or left out.

    A record is bad if its line is no JSON object, no UTF-8, or if it has no text in `text_column`. Text files hold
    nothing but text, and files with a protocol (`https://…`) are left to `datasets`. A csv or parquet file, or a list
    in JSON, that is broken cannot be read on: that is an error in any case.

    Args:
        argument (`str`): what an error calls the files, such as `"train_file"`.
        names (`list[str]`): files or globs.
        text_column (`str`, defaults to `"text"`): the column that must hold text.
        on_bad_record (`str`, defaults to `"error"`): or `"skip"`, to leave such records out; how many of which file is
            logged when its end is reached.
        cache_dir (`str`, *optional*): as for `datasets.load_dataset`.

    Raises:
        `ValueError`: as [`load_files`], if `"skip"` would be without effect, and while it is read, naming file and
            line of a bad record.
    """
    files = find_all_files(argument, names)
    others = [file for file in files if "://" in file or Path(file.removesuffix(".gz")).suffix.lower() == ".txt"]
    if others and on_bad_record == "skip":
        raise ValueError(
            f"`on_bad_record` skip would be without effect: `{argument}` names {others[0]}, but bad records are found "
            "in local json, jsonl, csv and parquet files only. Leave it out."
        )
    if others:
        return load_files(argument, names, streaming=True, cache_dir=cache_dir)
    is_checked = on_bad_record == "error"
    if not all(map(_has_json_lines, files)):
        load_files(argument, names, streaming=True, cache_dir=cache_dir, check_encoding=is_checked)  # for its errors
    elif is_checked:
        for file in files:
            check_utf8(argument, file, STREAM_CHECK_SIZE)
    more = {"argument": argument, "text_column": text_column, "on_bad_record": on_bad_record, "cache_dir": cache_dir}
    return IterableDataset.from_generator(_read, gen_kwargs={"file": files, **more})


def check_on_bad_record(on_bad_record: str, is_streamed_file: bool) -> None:
    """
    Check what to do about bad records.

    Raises:
        `ValueError`: for a value that there is not, or one that would be without effect.

    >>> check_on_bad_record("skip", is_streamed_file=True)
    """
    if on_bad_record not in ON_BAD_RECORD:
        raise ValueError(f"`on_bad_record` must be {' or '.join(ON_BAD_RECORD)}, got {on_bad_record!r}.")
    if on_bad_record == "skip" and not is_streamed_file:
        raise ValueError(
            "`on_bad_record` skip is for files that are streamed (`streaming`). All others are read before training, "
            "which stops at the first bad record: repair it, or stream the files."
        )


def _read(
    file: Sequence[str], argument: str, text_column: str, on_bad_record: str, cache_dir: str | None
) -> Iterator[dict[str, Any]]:
    (file,) = file  # as `datasets` divides the arguments of generators
    num_skipped, named = 0, []
    records = _json_lines(file) if _has_json_lines(file) else _rows(argument, file, cache_dir)
    for place, record in records:
        problem = record if isinstance(record, _Broken) else _problem(record, text_column)
        if problem is None:
            yield record
        elif on_bad_record == "skip":
            num_skipped += 1
            named += [f"{place} ({problem})"] if num_skipped <= _NAMED else []
            if num_skipped == 1 and _is_first_reader():
                _report_first(file, named[0])
        else:
            raise ValueError(
                f"`{argument}`: {file}, {place}: {problem}. Repair the record, or leave out such records by "
                "`on_bad_record` skip."
            )
    if num_skipped and _is_first_reader():
        _report(file, num_skipped, tuple(named))


def _has_json_lines(file: str) -> bool:
    suffix = Path(file.removesuffix(".gz")).suffix.lower()
    if suffix != ".json":
        return suffix == ".jsonl"
    _, first = next(_json_lines(file), (None, None))  # of a list or an object in several lines it is none by itself
    return isinstance(first, dict)


class _Broken(str):
    """What is wrong with a line, in the place of its record, which may itself be a text."""


def _json_lines(file: str) -> Iterator[tuple[str, Any]]:
    """Each line with its record, or, [`_Broken`], with what is wrong with it."""
    number = 0
    try:
        with open_file(file) as content:
            for number, line in enumerate(content, start=1):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                    if text:
                        yield f"line {number}", json.loads(text)
                except UnicodeDecodeError as error:
                    yield f"line {number}", _Broken(f"it is not UTF-8 text (byte 0x{error.object[error.start]:02x})")
                except (ValueError, RecursionError) as error:  # also numbers too long and lists too deep for Python
                    yield f"line {number}", _Broken(f"it is not JSON ({error})")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        yield f"line {number + 1}", _Broken(f"the gzip file is broken from here on ({error})")


def _rows(argument: str, file: str, cache_dir: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    number = 0
    # `iter(documents)` would divide them among the workers of a data loader.
    batches = load_files(argument, [file], streaming=True, cache_dir=cache_dir, check_encoding=False).iter(1000)
    try:
        for batch in batches:
            for values in zip(*batch.values(), strict=True):
                number += 1
                yield f"row {number}", dict(zip(batch, values, strict=True))
    except Exception as error:  # each reader raises exceptions of its own
        is_named = isinstance(error, ValueError) and file in str(error)
        reason = error if is_named else f"cannot read {file} after row {number}: {error.__cause__ or error}"
        if has_no_rows(error):
            reason = f"{file} has no rows"
        raise ValueError(f"`{argument}`: {reason}") from error


def _problem(record: Any, text_column: str) -> str | None:
    if not isinstance(record, dict):
        return f"it is no JSON object, but {type(record).__name__}"
    if text_column not in record:
        columns = ", ".join(map(repr, record)) or "none"
        return f"there is no column {text_column!r} (`text_column`), its columns are: {columns}"
    text = record[text_column]
    if not isinstance(text, str):
        return f"the column {text_column!r} holds {text!r:.80}, which is no text"
    try:
        text.encode()
    except UnicodeEncodeError as error:  # of JSON only, which can spell what is no character
        half = text[error.start].encode("unicode_escape").decode()
        return f"the column {text_column!r} holds half of a surrogate pair ({half} alone), which is no character"
    return None


def _is_first_reader() -> bool:
    """Whether this is the first worker of the first process: each of them reads all files."""
    worker = torch.utils.data.get_worker_info()
    return os.environ.get("RANK", "0") == "0" and (worker is None or worker.id == 0)


@functools.cache  # told once, not at each pass
def _report_first(file: str, named: str) -> None:
    logger.warning(f"{file}: skipping a bad record: {named}. How many there are is told at the end of the file.")


@functools.cache
def _report(file: str, number: int, named: tuple[str, ...]) -> None:
    more = ", …" if number > len(named) else ""
    logger.warning(f"{file}: skipped {number:,} bad records: {', '.join(named)}{more}")
