"""Where the examples of a task come from: [`TaskFiles`], a folder, tab-separated tables, the Hub."""

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, Features, concatenate_datasets, load_dataset
from datasets.exceptions import DatasetGenerationError

from ..data.files import (
    FILE_ARGUMENTS,
    READERS,
    Files,
    check_files_named,
    check_folder_name,
    check_held_out,
    check_utf8,
    file_names,
    find_all_files,
    load_files,
    shard_problem,
)
from ..data.readers import check_header, file_version, open_file, plain_copy
from ..suggestions import listed, suggestion
from .json_rows import TYPE_FEATURES, json_cells, json_features, json_types
from .rows import ROWS_VERSION
from .spec import TaskSpec

logger = logging.getLogger(__name__)

TABLE_SUFFIXES = (*(suffix for suffix in READERS if suffix != ".txt"), ".tsv")

# What the first word of a split is called in file names.
_SPLIT_WORDS = {"train": ("train",), "validation": ("validation", "valid", "dev", "val"), "test": ("test",)}
_SHARD = re.compile(r"-\d{5}-of-\d{5}(-[0-9a-f]{16})?")  # of a Parquet file of the Hub, perhaps with a hash


@dataclass(frozen=True)
class TaskFiles:
    """
    The files that a task is read from. Without any, its data set on the Hub is read, or what its loader says.

    Args:
        train_file, validation_file, test_file (`str` or `Sequence[str]`, *optional*):
            Files or globs: json, jsonl, csv, tsv, parquet or the .gz of one of these, with the columns of the task (or
            its `column_aliases`); DiscoEval's also as they are published; documents for discourse tasks. If a task has
            several validation or test splits, the file is the first of them.
        dataset_dir (`str` or `os.PathLike`, *optional*):
            A folder with files called `train`, `validation` (`valid`, `dev`, `val`), `test`, `validation_matched` and
            so on, or with a folder for each task: those of GLUE (`RTE/dev.tsv`), of DiscoEval (`SP/arxiv/valid.txt`)
            and of the Hub (`rte/train-00000-of-00001.parquet`) are known.
        cache_dir (`str`, *optional*): as for `datasets.load_dataset`.

    Raises:
        `ValueError`: if an argument is an empty list, or an empty text.

    >>> files = TaskFiles(train_file="train.jsonl", dataset_dir="glue")
    >>> files.are_named, TaskFiles(cache_dir="cache").are_named
    (True, False)
    >>> files.names
    {'train_file': 'train.jsonl', 'dataset_dir': 'glue'}
    """

    train_file: Files = None
    validation_file: Files = None
    test_file: Files = None
    dataset_dir: str | os.PathLike | None = None
    cache_dir: str | None = None

    def __post_init__(self):
        check_files_named({argument: getattr(self, argument) for argument in (*FILE_ARGUMENTS, "dataset_dir")})

    @property
    def are_named(self) -> bool:
        """Whether there are files or a folder to read."""
        return bool(self.train_file or self.validation_file or self.test_file or self.dataset_dir)

    @property
    def names(self) -> dict[str, str]:
        """What to read, without the way to it: what may be published."""
        named = {}
        for argument in (*FILE_ARGUMENTS, "dataset_dir"):
            value = getattr(self, argument)
            if value:
                paths = [value] if isinstance(value, str | os.PathLike) else value
                named[argument] = ", ".join(Path(path).name for path in paths)
        return named


def collect_files(files: TaskFiles | None, arguments: Mapping[str, Any], others: Sequence[str] = ()) -> TaskFiles:
    """
    Files that are given as keyword arguments, added to those that are given as `TaskFiles`.

    Args:
        files: to add to.
        arguments: fields of `TaskFiles`.
        others: the other arguments that there are, for the suggestion.

    Raises:
        `TypeError`: for an argument that there is not, with near matches, or if `files` is something else.
    """
    if not isinstance(files, TaskFiles | None):
        raise TypeError(
            f"`files` must be TaskFiles, got {type(files).__name__}. Name files by `train_file`, `validation_file`, "
            "`test_file` or `dataset_dir`."
        )
    names = [item.name for item in fields(TaskFiles)]
    for name in arguments:
        if name not in names:
            raise TypeError(f"There is no argument `{name}`.{suggestion(name, [*names, *others], 'arguments')}")
    return replace(files or TaskFiles(), **arguments)


def split_files(
    spec: TaskSpec, files: TaskFiles, suffixes: Sequence[str] = TABLE_SUFFIXES, folders: Sequence[str] = ()
) -> dict[str, list[str]]:
    """
    The files of each split. A file that is named counts as the first split of its kind, before those of the folder.

    Args:
        spec: the task.
        files: named one by one, or by their folder.
        suffixes: of the files that can be read.
        folders: further folders for the task that there may be in `dataset_dir`.

    Raises:
        `ValueError`: if the folder has no file for any split, or several for one, or not all the shards of one; if a
            task that is only tested is given a file to train on; or if that file is held out too.
    """
    in_folder = _files_in_folder(spec, Path(files.dataset_dir), suffixes, folders) if files.dataset_dir else {}
    named = {}
    firsts = {
        "train_file": (files.train_file, (spec.train_split,)),
        "validation_file": (files.validation_file, spec.validation_splits),
        "test_file": (files.test_file, spec.test_splits),
    }
    for argument, (names, splits) in firsts.items():
        if not names:
            continue
        if not splits or not splits[0]:
            advice = f" It is trained and validated on the task {spec.train_on!r}." if spec.train_on else ""
            raise ValueError(f"`{argument}`: the task {spec.name!r} has no such split.{advice}")
        named[splits[0]] = file_names(names)
    found = in_folder | named
    for split, paths in in_folder.items():
        if split not in named:
            _check_files_of_folder(split, file_argument(spec, split), paths)
    held_out = [(file_argument(spec, split), found[split]) for split in found if split != spec.train_split]
    check_held_out(found.get(spec.train_split, ()), held_out)
    return found


def _files_in_folder(
    spec: TaskSpec, root: Path, suffixes: Sequence[str], folders: Sequence[str]
) -> dict[str, list[str]]:
    if not root.is_dir():
        raise ValueError(f"`dataset_dir`: there is no folder {str(root)!r}.")
    names = {_plain(spec.name), _plain(spec.config_name or spec.name)}
    own = [folder for folder in sorted(root.iterdir()) if folder.is_dir() and _plain(folder.name) in names]
    for folder in [*(root / name for name in folders), *own, root]:
        files = _split_files_of(spec, folder, suffixes) if folder.is_dir() else {}
        if files:
            return files
    there = sorted(path.name + ("/" if path.is_dir() else "") for path in root.iterdir())
    raise ValueError(
        f"`dataset_dir`: {root} has neither files of the task {spec.name!r}, such as train{suffixes[0]}, "
        f"nor a folder {spec.name!r} with them (known extensions: {', '.join(suffixes)}, and each with "
        f".gz). It holds: {listed(there[:20])}."
    )


def _split_files_of(spec: TaskSpec, folder: Path, suffixes: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        suffix = Path(path.name.removesuffix(".gz")).suffix
        if path.is_file() and suffix.lower() in suffixes:
            stem = path.name.removesuffix(".gz").removesuffix(suffix).lower()
            stem = _SHARD.sub("", stem).removeprefix(f"{spec.name}_".lower())
            found.setdefault(stem, []).append(path)
    files = {}
    is_alone = not spec.train_split and len(spec.validation_splits + spec.test_splits) == 1  # such as AX.tsv
    for kind, splits in (
        ("train", (spec.train_split,)),
        ("validation", spec.validation_splits),
        ("test", spec.test_splits),
    ):
        for number, split in enumerate(filter(None, splits)):
            names = _names(split) + (_names(kind) if number == 0 else []) + ([spec.name.lower()] if is_alone else [])
            here = [path for name in dict.fromkeys(names) for path in found.get(name, [])]
            if here:
                files[split] = [str(path) for path in here]
    return files


def _check_files_of_folder(split: str, argument: str, files: Sequence[str]) -> None:
    """Check that a split is one file, or all the shards of one."""
    folder, names = Path(files[0]).parent, [Path(file).name for file in files]
    if len({_SHARD.sub("", name) for name in names}) > 1 or (len(names) > 1 and not all(map(_SHARD.search, names))):
        raise ValueError(
            f"`dataset_dir`: {folder} has several files for the split {split!r}: {listed(names)}. Name the one to "
            f"take by `{argument}`."
        )
    problem = shard_problem(files)
    if problem:
        raise ValueError(
            f"`dataset_dir`, split {split!r}: {problem}. Copy the folder again, without older files in it, or name "
            f"the files to take by `{argument}`."
        )


def file_argument(spec: TaskSpec, split: str) -> str:
    """The argument that names the files of a split, for errors."""
    if split == spec.train_split:
        return "train_file"
    return "validation_file" if split in spec.validation_splits else "test_file"


def _plain(name: str) -> str:
    """`"STS-B"` as `"stsb"`."""
    return re.sub(r"[\W_]", "", name).lower()


def _names(split: str) -> list[str]:
    """What files of a split may be called: `validation_matched`, `dev_matched`, …"""
    word, _, rest = split.partition("_")
    return ["_".join(filter(None, (other, rest))).lower() for other in _SPLIT_WORDS.get(word, (word,))]


def read_tables(argument: str, names: Sequence[str], spec: TaskSpec, cache_dir: str | None = None) -> Dataset:
    """
    Read files with one row per example: those that [`data.files.load_files`] reads (JSON with the values as they are
    written there, see [`tasks.json_rows`]), and tab-separated ones (.tsv), in which quotation marks are plain
    characters, as in GLUE's own files.

    Args:
        argument: what an error calls the files.
        names: files or globs.
        spec: the task; its `file_columns` are the columns of .tsv files without a header line.
        cache_dir: as for `datasets.load_dataset`.

    Raises:
        `ValueError`: naming file, line and remedy.
        `FileNotFoundError`: if there is no file of a name.
    """
    files = find_all_files(argument, names)
    tables = [file for file in files if file.removesuffix(".gz").lower().endswith(".tsv")]
    text = [file for file in files if file.removesuffix(".gz").lower().endswith(".txt")]
    if text:
        raise ValueError(
            f"`{argument}`: {text[0]} is plain text, but the task {spec.name!r} needs columns "
            f"{listed(spec.text_column_name)} and {spec.label_column_name!r}. Give a file with columns: "
            f"{', '.join(TABLE_SUFFIXES)}."
        )
    in_json = [file for file in files if file.removesuffix(".gz").lower().endswith((".json", ".jsonl"))]
    datasets = [read_rows(argument, table_rows, file, spec, cache_dir) for file in tables]
    datasets += _read_json(argument, in_json, spec, cache_dir)
    others = [file for file in files if file not in (*tables, *in_json)]
    if others:
        datasets.append(load_files(argument, others, cache_dir=cache_dir))
    if len(datasets) == 1:
        return datasets[0]
    try:
        return concatenate_datasets(datasets)
    except ValueError as error:  # columns of different kinds: the cells of .tsv files are text
        raise ValueError(
            f"`{argument}`: the columns of {listed(tables + in_json + others)} are of different kinds: {error} Give "
            "files of one kind, such as .jsonl."
        ) from error


def _read_json(argument: str, files: Sequence[str], spec: TaskSpec, cache_dir: str | None) -> list[Dataset]:
    """The rows of each file; all have the same columns."""
    local = [_local_copy(argument, file, cache_dir) if "://" in file else file for file in files]
    try:
        types = [
            one for file in local for one in read_rows(argument, json_types, file, spec, cache_dir, TYPE_FEATURES)
        ]
        features = json_features(types)
        cells = partial(json_cells, features=features)
        return [_keep_file(argument, cells, file, spec, cache_dir, features) for file in local]
    except ValueError as error:  # names the copy of an address
        message = str(error)
        for name, copy in zip(files, local, strict=True):
            message = message.replace(copy, name)
        raise ValueError(message) from error


def _local_copy(argument: str, address: str, cache_dir: str | None) -> str:
    try:
        return plain_copy(address, cache_dir)
    except Exception as error:  # of the network, or of the archive
        raise ValueError(f"`{argument}`: cannot read {address}: {error}") from error


def read_rows(
    argument: str,
    rows: Callable[..., Iterator[Mapping]],
    file: str,
    spec: TaskSpec,
    cache_dir: str | None = None,
    features: Features | None = None,
) -> Dataset:
    """
    Keep the rows that a function reads from a file as a data set on disk, which is found again next time.

    Args:
        argument: what an error calls the file.
        rows: called with `file` and `spec`; yields dictionaries.
        features: of the rows; all text if not given, then `rows` yields the same columns throughout.
    """
    if "://" in file:
        raise ValueError(f"`{argument}`: {file} is an address. Download the file, and name it here.")
    if not file.removesuffix(".gz").endswith(".pkl"):
        check_utf8(argument, file, None)
    return _keep_file(argument, rows, file, spec, cache_dir, features)


def _keep_file(
    argument: str,
    rows: Callable[..., Iterator[Mapping]],
    file: str,
    spec: TaskSpec,
    cache_dir: str | None,
    features: Features | None,
) -> Dataset:
    arguments = {"rows": rows, "file": file, "spec": spec, "version": (ROWS_VERSION, *file_version(file))}
    try:
        return keep_rows(_generate, arguments, features, cache_dir)
    except ValueError as error:
        raise ValueError(f"`{argument}`: {error}") from error


def keep_rows(
    rows: Callable[..., Iterator[Mapping]],
    arguments: Mapping[str, Any],
    features: Features | None = None,
    cache_dir: str | None = None,
) -> Dataset:
    """
    Keep rows as a data set on disk. The same arguments find it again, and with it what `datasets.map` made of it.

    Args:
        rows: a function that yields dictionaries.
        arguments: of `rows`; none of them is a list. They must tell of everything that the rows depend on, hence of
            the [`file_version`] of each file that is read.
        features: of the rows.
        cache_dir: as for `datasets.load_dataset`.

    Raises:
        `ValueError`: with the message of what `rows` raises.
    """
    try:
        return Dataset.from_generator(rows, gen_kwargs=dict(arguments), features=features, cache_dir=cache_dir)
    except DatasetGenerationError as error:
        cause = error.__cause__ or error
        raise ValueError(str(cause)) from cause


def kept_splits(rows: Dataset) -> dict[str, Dataset]:
    """The rows of each split, by the column `split`, in which equal names stand together."""
    names = rows["split"][:]
    splits = {}
    for name in dict.fromkeys(names):
        start = names.index(name)
        # A range keeps the rows where they are on disk, and so the cache of what is made of them.
        splits[name] = rows.select(range(start, start + names.count(name))).remove_columns("split")
    return splits


def named_generator(seed: int, *names: str) -> np.random.Generator:
    """A generator of random numbers that depends on the seed and the names alone, in every process."""
    digest = hashlib.blake2b(" ".join((str(seed), *names)).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest))


def _generate(rows: Callable[..., Iterator[Mapping]], file: str, spec: TaskSpec, version: tuple) -> Iterator[Mapping]:
    row = None
    for row in rows(file, spec):
        yield row
    if row is None:
        raise ValueError(f"{file} has no rows.")


def table_rows(file: str, spec: TaskSpec) -> Iterator[dict[str, str]]:
    """The rows of a tab-separated file, by the names of its first line, or of `file_columns` if that holds data."""
    header, broken = None, []
    for number, line in text_lines(file):
        cells = line.split("\t")
        if header is None:
            known = {*spec.text_column_name, *spec.column_aliases, spec.label_column_name}
            has_header = not spec.file_columns or bool(known & set(cells))
            header = cells if has_header else list(spec.file_columns)
            check_header(file, header)
            if has_header:
                continue
        if len(cells) != len(header) and "broken_lines" in spec.file_defects:
            broken.append(number)
            continue
        if len(cells) != len(header):
            raise ValueError(
                f"{file}, line {number}: it has {len(cells)} cells between tabs, but the columns are {len(header)}: "
                f"{listed(header)}. Repair or remove the line."
            )
        yield dict(zip(header, cells, strict=True))
    if broken:
        logger.warning(
            f"{file}: {len(broken):,} lines do not have {len(header)} cells between tabs, the first is line "
            f"{broken[0]}. They are left out, as by the other readers of {spec.benchmark}."
        )


def text_lines(file: str) -> Iterator[tuple[int, str]]:
    """Number, from 1, and text of each line that is not blank; only line feeds end a line."""
    with open_file(file) as content:
        for number, line in enumerate(content, start=1):
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            if text.strip():
                yield number, text


def load_hub_splits(spec: TaskSpec, cache_dir: str | None = None) -> dict[str, Dataset]:
    """
    The splits of the data set that the task names on the Hub.

    Raises:
        `ValueError`: if the task names none, or it cannot be loaded, or lacks a split to train or validate on.
    """
    if not spec.path:
        raise ValueError(
            f"The task {spec.name!r} names no data set on the Hub (`path`). Give its data by `train_file`, "
            "`validation_file`, `test_file` or `dataset_dir`."
        )
    check_folder_name("path", spec.path)
    source = f"{spec.path!r}" + (f", configuration {spec.config_name!r}," if spec.config_name else "")
    try:
        loaded: DatasetDict = load_dataset(spec.path, spec.config_name, cache_dir=cache_dir)
    except Exception as error:  # no network, no such data set, a loading script, …
        raise ValueError(
            f"The data set {source} of the task {spec.name!r} cannot be loaded from the Hub: {error} Without a "
            "network, give its data by `train_file`, `validation_file`, `test_file` or `dataset_dir`."
        ) from error
    for split in filter(None, (spec.train_split, *spec.validation_splits)):
        if split not in loaded:
            raise ValueError(
                f"The data set {source} has no split {split!r}, but: {listed(loaded)}. Say which it has in the fields "
                f"`train_split`, `validation_splits` and `test_splits` of the task {spec.name!r}, `[]` for none."
            )
    splits = (spec.train_split, *spec.validation_splits, *spec.test_splits)
    return {split: loaded[split] for split in splits if split in loaded}
