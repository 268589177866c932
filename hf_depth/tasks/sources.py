"""Finding and reading the files of a task: [`TaskFiles`], folders, tab-separated tables, data sets on the Hub."""

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, concatenate_datasets, load_dataset
from datasets.exceptions import DatasetGenerationError

from ..data.files import (
    BUILDERS,
    FILE_ARGUMENTS,
    Files,
    check_files_named,
    check_literal_name,
    file_kind,
    file_names,
    file_version,
    find_files,
    is_local,
    open_file,
)
from ..data.reading import load_files
from ..errors import UserError, listed
from .spec import TaskSpec

logger = logging.getLogger(__name__)

# Part of the cache key of rows that are read, checked or prepared. Raise it when the same data may give others.
ROWS_VERSION = 2

# Yields the rows of a file, called as `read(file, spec)`.
RowReader = Callable[[str, TaskSpec], Iterator[dict[str, Any]]]

# The names that files use for the first word of a split.
_SPLIT_WORDS = {"train": ("train",), "validation": ("validation", "valid", "dev", "val"), "test": ("test",)}
_SHARD = re.compile(r"-\d{5}-of-\d{5}(-[0-9a-f]{16})?")  # as in Parquet files of the Hub, some with a hash


@dataclass(frozen=True)
class TaskFiles:
    """
    The files of a task. Without files, the task's data set on the Hub is read, or the default of its loader.

    Args:
        train_file, validation_file, test_file (`str` or `Sequence[str]`, *optional*):
            Files or globs: json, jsonl, csv, tsv, parquet, or text as .gz. They have the columns of the task or its
            `column_aliases`; for discourse tasks, they hold documents. If a task has several validation or test
            splits, the file is the first of them.
        dataset_dir (`str` or `os.PathLike`, *optional*):
            A folder with files called `train`, `validation` (or `valid`, `dev`, `val`), `test`, `validation_matched`
            and so on, or with a folder for each task. The folders of GLUE (`RTE/dev.tsv`), DiscoEval
            (`SP/arxiv/valid.txt`) and the Hub (`rte/train-00000-of-00001.parquet`) are known.
        cache_dir (`str`, *optional*): as for `datasets.load_dataset`.
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
        """Whether a file or a folder is named."""
        return bool(self.names)

    @property
    def names(self) -> dict[str, str]:
        """The names of the files without their folders, which may be published."""
        named = {name: file_names(getattr(self, name)) for name in (*FILE_ARGUMENTS, "dataset_dir")}
        return {name: ", ".join(Path(path).name for path in paths) for name, paths in named.items() if paths}


# ---- Find -----------------------------------------------------------------------------------------------------------


def split_files(
    spec: TaskSpec, files: TaskFiles, suffixes: Sequence[str] | None = None, folders: Sequence[str] = ()
) -> dict[str, list[str]]:
    """
    Return the files of each split. A named file is the first split of its kind and replaces a file of the folder.

    `suffixes` are the extensions to look for, by default those of tables; `folders` are further folders in
    `dataset_dir`. Raises `ValueError` if files are missing or ambiguous.
    """
    splits = ((spec.train_split,) if spec.train_split else (), spec.validation_splits, spec.test_splits)
    named = {}
    for argument, names_of_splits in zip(FILE_ARGUMENTS, splits, strict=True):
        names = file_names(getattr(files, argument))
        if names and not names_of_splits:
            advice = f" It is trained and validated on the task {spec.train_on!r}." if spec.train_on else ""
            raise UserError(f"`{argument}`: the task {spec.name!r} has no such split.{advice}")
        if names:
            named[names_of_splits[0]] = names
    if not files.dataset_dir:
        return named
    in_folder = _files_in_folder(spec, Path(files.dataset_dir), suffixes or tuple(TABLES), folders)
    for split, paths in in_folder.items():
        names = [Path(path).name for path in paths]
        are_shards = all(map(_SHARD.search, names)) and len({_SHARD.sub("", name) for name in names}) == 1
        if split not in named and len(names) > 1 and not are_shards:
            raise UserError(
                f"`dataset_dir`, split {split!r}: {Path(paths[0]).parent} has several files: {listed(names)}. Name "
                f"those to take by `{file_argument(spec, split)}`."
            )
    return in_folder | named


def file_argument(spec: TaskSpec, split: str) -> str:
    """Return the argument that names the files of a split, for errors."""
    if split == spec.train_split:
        return "train_file"
    return "validation_file" if split in spec.validation_splits else "test_file"


def _files_in_folder(
    spec: TaskSpec, root: Path, suffixes: Sequence[str], folders: Sequence[str]
) -> dict[str, list[str]]:
    """Return the files of each split in `root`, in one of the folders, or in a folder with the name of the task."""
    if not root.is_dir():
        raise UserError(f"`dataset_dir`: there is no folder {str(root)!r}.")
    names = {_plain(spec.name), _plain(spec.config_name or spec.name)}
    own = [folder for folder in sorted(root.iterdir()) if folder.is_dir() and _plain(folder.name) in names]
    for folder in [*(root / name for name in folders), *own, root]:
        files = _files_of_splits(spec, folder, suffixes) if folder.is_dir() else {}
        if files:
            return files
    there = sorted(path.name + ("/" if path.is_dir() else "") for path in root.iterdir())
    raise UserError(
        f"`dataset_dir`: {root} has neither files of the task {spec.name!r}, such as train{suffixes[0]}, nor a folder "
        f"{spec.name!r} with them (extensions: {', '.join(suffixes)}, each also with .gz). It holds: "
        f"{listed(there[:20])}."
    )


def _files_of_splits(spec: TaskSpec, folder: Path, suffixes: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(folder.iterdir()):
        suffix = Path(path.name.removesuffix(".gz")).suffix
        if path.is_file() and suffix.lower() in suffixes:
            stem = path.name.removesuffix(".gz").removesuffix(suffix).lower()
            found.setdefault(_SHARD.sub("", stem).removeprefix(f"{spec.name}_".lower()), []).append(str(path))
    files, kinds = {}, set()
    for split in spec.splits:
        kind = file_argument(spec, split).removesuffix("_file")
        names = [*_names(split), *(() if kind in kinds else _names(kind))]  # `dev` is the first validation split
        names += [spec.name.lower()] if len(spec.splits) == 1 else []  # such as AX.tsv
        kinds.add(kind)
        here = [file for name in dict.fromkeys(names) for file in found.get(name, ())]
        if here:
            files[split] = here
    return files


def _plain(name: str) -> str:
    """Return a name in lower case without punctuation: `"STS-B"` becomes `"stsb"`."""
    return re.sub(r"[\W_]", "", name).lower()


def _names(split: str) -> list[str]:
    """Return the names that files of a split may have: `validation_matched`, `dev_matched`, …"""
    word, _, rest = split.partition("_")
    return ["_".join(filter(None, (other, rest))).lower() for other in _SPLIT_WORDS.get(word, (word,))]


# ---- Read -----------------------------------------------------------------------------------------------------------


def tab_separated(file: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the cells of each line that is not blank. Only line feeds end a line."""
    with open_file(file) as content:
        for number, line in enumerate(content, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(f"{file}, line {number}: it is not UTF-8 text: {error.reason}.") from error
            if text.strip():
                yield f"{file}, line {number}", text.split("\t")


def tsv_rows(file: str, spec: TaskSpec) -> Iterator[dict[str, Any]]:
    """
    Yield the rows of a tab-separated table. Quotation marks are plain characters, as in GLUE's own files.

    A line with too many or too few cells is an error, unless the task's `file_defects` name such lines.
    """
    lines = list(tab_separated(file))
    columns = lines[0][1] if lines else []
    if spec.file_columns and not {*spec.text_column_name, *spec.column_aliases, spec.label_column_name} & {*columns}:
        columns = list(spec.file_columns)
    else:
        del lines[:1]
    num_broken = 0
    for place, cells in lines:
        if len(cells) == len(columns):
            yield dict(zip(columns, cells, strict=True))
        elif "broken_lines" in spec.file_defects:
            num_broken += 1
        else:
            raise UserError(
                f"{place}: it has {len(cells)} cells between tabs, but the columns are {len(columns)}: "
                f"{listed(columns)}. Repair or remove the line."
            )
    if num_broken:
        logger.warning(f"{file}: {num_broken:,} lines do not have {len(columns)} cells between tabs and are left out.")


READERS: dict[str, RowReader] = {".tsv": tsv_rows}  # by extension; `load_files` reads the other tables
TABLES = {suffix: kind for suffix, kind in BUILDERS.items() if kind != "text"} | {".tsv": ".tsv"}


def read_files(
    argument: str,
    names: Sequence[str],
    spec: TaskSpec,
    cache_dir: str | None = None,
    readers: Mapping[str, RowReader] = READERS,
) -> Dataset:
    """Read files of one kind; `readers` are for those that `datasets` cannot read. An error names file and line."""
    files = find_files(argument, names)
    kind = file_kind(argument, files, TABLES | {suffix: suffix for suffix in readers})
    if kind not in readers:
        return load_files(argument, files, cache_dir=cache_dir)
    tables = []
    for file in files:
        version = (ROWS_VERSION, *(file_version(file) if is_local(file) else ()))
        arguments = {"read": readers[kind], "file": file, "spec": spec, "version": version}
        try:
            tables.append(keep_rows(_rows_of_file, arguments, cache_dir=cache_dir))
        except ValueError as error:
            raise UserError(f"`{argument}`: {error}") from error
    return concatenate_datasets(tables) if len(tables) > 1 else tables[0]


def _rows_of_file(read: RowReader, file: str, spec: TaskSpec, version: tuple) -> Iterator[dict[str, Any]]:
    row = None
    for row in read(file, spec):
        yield row
    if row is None:
        raise UserError(f"{file} has no rows.")


def load_hub_splits(spec: TaskSpec, cache_dir: str | None = None) -> dict[str, Dataset]:
    """Return the splits of the task's data set on the Hub. Only test splits may be missing."""
    files = "`train_file`, `validation_file`, `test_file` or `dataset_dir`"
    if not spec.path:
        raise UserError(f"The task {spec.name!r} names no data set on the Hub (`path`). Give its data by {files}.")
    check_literal_name("path", spec.path)
    source = f"{spec.path!r}" + (f", configuration {spec.config_name!r}," if spec.config_name else "")
    try:
        loaded = load_dataset(spec.path, spec.config_name, cache_dir=cache_dir)
    except Exception as error:  # no network, no such data set, a loading script, …
        raise UserError(
            f"The data set {source} of the task {spec.name!r} cannot be loaded from the Hub: {error} Without a "
            f"network, give its data by {files}."
        ) from error
    for split in filter(None, (spec.train_split, *spec.validation_splits)):
        if split not in loaded:
            raise UserError(
                f"The data set {source} has no split {split!r}, but: {listed(loaded)}. Name its splits in the fields "
                f"`train_split`, `validation_splits` and `test_splits` of the task {spec.name!r}, `[]` for none."
            )
    return {split: loaded[split] for split in spec.splits if split in loaded}


# ---- Make -----------------------------------------------------------------------------------------------------------


def keep_rows(
    rows: Callable[..., Iterator[Mapping]],
    arguments: Mapping[str, Any],
    features: Features | None = None,
    cache_dir: str | None = None,
) -> Dataset:
    """
    Return the rows of a generator as a data set in the cache. Equal arguments find the cached data set again.

    `arguments` of the generator must not be lists, and must include the [`file_version`] of each file that is read.
    """
    try:
        return Dataset.from_generator(rows, gen_kwargs=dict(arguments), features=features, cache_dir=cache_dir)
    except DatasetGenerationError as error:
        cause = error.__cause__ or error
        raise UserError(str(cause)) from cause


def kept_splits(rows: Dataset) -> dict[str, Dataset]:
    """Return the rows of each split. The column `split` names them; the rows of a split stand together."""
    names = rows["split"][:]
    splits = {}
    for name in dict.fromkeys(names):
        start = names.index(name)
        # `select` of a range keeps the memory-mapped rows, and so a stable cache key.
        splits[name] = rows.select(range(start, start + names.count(name))).remove_columns("split")
    return splits


def named_generator(seed: int, *names: str) -> np.random.Generator:
    """Return a random generator that depends only on the seed and the names, the same in every process."""
    digest = hashlib.blake2b(" ".join((str(seed), *names)).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest))
