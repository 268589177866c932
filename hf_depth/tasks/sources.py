"""Finding and reading the files of a task: [`TaskFiles`], folders, tab-separated tables, data sets on the Hub."""

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, Features, Value, concatenate_datasets, load_dataset
from datasets.exceptions import DatasetGenerationError

from ..data.files import (
    BUILDERS,
    FILE_ARGUMENTS,
    Files,
    check_files_named,
    check_literal_name,
    file_kind,
    file_names,
    find_files,
)
from ..data.reading import check_header, load_files, load_lines
from ..errors import UserError
from ..suggestions import listed
from .spec import TaskSpec

logger = logging.getLogger(__name__)

# The kinds of tables by file extension: those of `BUILDERS` without plain text, and .tsv.
TABLES = {suffix: kind for suffix, kind in BUILDERS.items() if kind != "text"} | {".tsv": "tsv"}
TABLE_SUFFIXES = tuple(TABLES)

# The names that files use for the first word of a split.
_SPLIT_WORDS = {"train": ("train",), "validation": ("validation", "valid", "dev", "val"), "test": ("test",)}
_SHARD = re.compile(r"-\d{5}-of-\d{5}(-[0-9a-f]{16})?")  # as in Parquet files of the Hub, some with a hash


@dataclass(frozen=True)
class TaskFiles:
    """
    The files of a task. Without files, the task's data set on the Hub is read, or the default of its loader.

    Args:
        train_file, validation_file, test_file (`str` or `Sequence[str]`, *optional*):
            Files or globs: json, jsonl, csv, tsv, parquet, or one of these as .gz. They have the columns of the task
            or its `column_aliases`. DiscoEval's published files are read, too. For discourse tasks, the files hold
            documents. If a task has several validation or test splits, the file is the first of them.
        dataset_dir (`str` or `os.PathLike`, *optional*):
            A folder with files called `train`, `validation` (or `valid`, `dev`, `val`), `test`, `validation_matched`
            and so on, or with a folder for each task. The folders of GLUE (`RTE/dev.tsv`), DiscoEval
            (`SP/arxiv/valid.txt`) and the Hub (`rte/train-00000-of-00001.parquet`) are known.
        cache_dir (`str`, *optional*): as for `datasets.load_dataset`.

    Raises:
        `ValueError`: if an argument is an empty list or an empty text.

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
        """Whether a file or a folder is named."""
        return bool(self.train_file or self.validation_file or self.test_file or self.dataset_dir)

    @property
    def names(self) -> dict[str, str]:
        """The names of the files without their folders, which may be published."""
        named = {}
        for argument in (*FILE_ARGUMENTS, "dataset_dir"):
            value = getattr(self, argument)
            if value:
                paths = [value] if isinstance(value, str | os.PathLike) else value
                named[argument] = ", ".join(Path(path).name for path in paths)
        return named


def collect_files(files: TaskFiles | None, arguments: Mapping[str, Any]) -> TaskFiles:
    """
    Return `files` with the fields in `arguments` replaced.

    Raises:
        `TypeError`: if `TaskFiles` has no such field, or `files` is not a `TaskFiles`.
    """
    if not isinstance(files, TaskFiles | None):
        raise TypeError(
            f"`files` must be TaskFiles, got {type(files).__name__}. Name files by `train_file`, `validation_file`, "
            "`test_file` or `dataset_dir`."
        )
    return replace(files or TaskFiles(), **arguments)


def split_files(
    spec: TaskSpec, files: TaskFiles, suffixes: Sequence[str] = TABLE_SUFFIXES, folders: Sequence[str] = ()
) -> dict[str, list[str]]:
    """
    Return the files of each split. A named file is the first split of its kind and replaces a file of the folder.

    Args:
        spec: the task.
        files: the named files, or their folder.
        suffixes: the extensions of files that can be read.
        folders: further folders in `dataset_dir` in which to look.

    Raises:
        `ValueError`: if the folder has no files of the task, several files for a split, or lacks shards. Also if a
            file is named for a split that the task does not have.
    """
    named = {}
    for argument, splits in (
        ("train_file", (spec.train_split,)),
        ("validation_file", spec.validation_splits),
        ("test_file", spec.test_splits),
    ):
        names = getattr(files, argument)
        if names and not any(splits):
            advice = f" It is trained and validated on the task {spec.train_on!r}." if spec.train_on else ""
            raise UserError(f"`{argument}`: the task {spec.name!r} has no such split.{advice}")
        if names:
            named[splits[0]] = file_names(names)
    if not files.dataset_dir:
        return named
    in_folder = _files_in_folder(spec, Path(files.dataset_dir), suffixes, folders)
    for split in in_folder.keys() - named.keys():
        _check_files_of_folder(split, file_argument(spec, split), in_folder[split])
    return in_folder | named


def _files_in_folder(
    spec: TaskSpec, root: Path, suffixes: Sequence[str], folders: Sequence[str]
) -> dict[str, list[str]]:
    if not root.is_dir():
        raise UserError(f"`dataset_dir`: there is no folder {str(root)!r}.")
    names = {_plain(spec.name), _plain(spec.config_name or spec.name)}
    own = [folder for folder in sorted(root.iterdir()) if folder.is_dir() and _plain(folder.name) in names]
    for folder in [*(root / name for name in folders), *own, root]:
        files = _split_files_of(spec, folder, suffixes) if folder.is_dir() else {}
        if files:
            return files
    there = sorted(path.name + ("/" if path.is_dir() else "") for path in root.iterdir())
    raise UserError(
        f"`dataset_dir`: {root} has neither files of the task {spec.name!r}, such as train{suffixes[0]}, "
        f"nor a folder {spec.name!r} with them (known extensions: {', '.join(suffixes)}, and each with "
        f".gz). It holds: {listed(there[:20])}."
    )


def _split_files_of(spec: TaskSpec, folder: Path, suffixes: Sequence[str]) -> dict[str, list[str]]:
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


def _check_files_of_folder(split: str, argument: str, files: Sequence[str]) -> None:
    """Raise unless a split is one file or all shards of one."""
    names = [Path(file).name for file in files]
    if len({_SHARD.sub("", name) for name in names}) > 1 or (len(names) > 1 and not all(map(_SHARD.search, names))):
        raise UserError(
            f"`dataset_dir`, split {split!r}: {Path(files[0]).parent} has several files: {listed(names)}. Copy the "
            f"folder again, without older files in it, or name the files to take by `{argument}`."
        )


def file_argument(spec: TaskSpec, split: str) -> str:
    """Return the argument that names the files of a split, for errors."""
    if split == spec.train_split:
        return "train_file"
    return "validation_file" if split in spec.validation_splits else "test_file"


def _plain(name: str) -> str:
    """Return a name in lower case without punctuation: `"STS-B"` becomes `"stsb"`."""
    return re.sub(r"[\W_]", "", name).lower()


def _names(split: str) -> list[str]:
    """Return the names that files of a split may have: `validation_matched`, `dev_matched`, …"""
    word, _, rest = split.partition("_")
    return ["_".join(filter(None, (other, rest))).lower() for other in _SPLIT_WORDS.get(word, (word,))]


def read_tables(argument: str, names: Sequence[str], spec: TaskSpec, cache_dir: str | None = None) -> Dataset:
    """
    Read files with one example per row: the kinds of [`data.reading.load_files`], and tab-separated files (.tsv).

    In .tsv files, quotation marks are plain characters, as in GLUE's own files.

    Args:
        argument: the name of the argument, for errors.
        names: files or globs.
        spec: the task. Its `file_columns` are the columns of .tsv files without a header line.
        cache_dir: as for `datasets.load_dataset`.

    Raises:
        `ValueError`: if a file cannot be read; names the file and the line.
        `FileNotFoundError`: if a file does not exist.
    """
    files = find_files(argument, names)
    if file_kind(argument, files, TABLES) != "tsv":
        return load_files(argument, files, cache_dir=cache_dir)
    tables = [_read_tsv(argument, file, spec, cache_dir) for file in files]
    return concatenate_datasets(tables) if len(tables) > 1 else tables[0]


def _read_tsv(argument: str, file: str, spec: TaskSpec, cache_dir: str | None) -> Dataset:
    lines = load_lines(argument, file, cache_dir)
    start = next(number for number, text in enumerate(lines["text"]) if text.strip())
    header = lines[start]["text"].removeprefix("\ufeff").split("\t")
    if spec.file_columns and not {*spec.text_column_name, *spec.column_aliases, spec.label_column_name} & set(header):
        header, start = list(spec.file_columns), start - 1
    try:
        check_header(file, header)
        rows = lines.map(
            _cells,
            fn_kwargs={"file": file, "header": header, "start": start, "skips": "broken_lines" in spec.file_defects},
            batched=True,
            with_indices=True,
            remove_columns=["text"],
            features=Features(dict.fromkeys(header, Value("string"))),
            desc=f"Reading {Path(file).name}",
        )
    except ValueError as error:
        raise UserError(f"`{argument}`: {error}") from error
    num_broken = sum(bool(text.strip()) for text in lines["text"][start + 1 :]) - len(rows)
    if num_broken:
        logger.warning(
            f"{file}: {num_broken:,} lines do not have {len(header)} cells between tabs. They are left out, as by the "
            f"other readers of {spec.benchmark}."
        )
    return rows


def _cells(
    batch: Mapping[str, list[str]], indices: Sequence[int], file: str, header: Sequence[str], start: int, skips: bool
) -> dict[str, list[str]]:
    """Split the lines after line `start`, the header, into cells. Leave broken lines out if `skips`, else raise."""
    rows = []
    for number, line in zip(indices, batch["text"], strict=True):
        cells = line.split("\t")
        if number <= start or not line.strip() or (skips and len(cells) != len(header)):
            continue
        if len(cells) != len(header):
            raise UserError(
                f"{file}, line {number + 1}: it has {len(cells)} cells between tabs, but the columns are "
                f"{len(header)}: {listed(header)}. Repair or remove the line."
            )
        rows.append(cells)
    return {name: [cells[place] for cells in rows] for place, name in enumerate(header)}


def keep_rows(
    rows: Callable[..., Iterator[Mapping]],
    arguments: Mapping[str, Any],
    features: Features | None = None,
    cache_dir: str | None = None,
) -> Dataset:
    """
    Return the rows of a generator as a data set in the cache. Equal arguments find the cached data set again.

    Args:
        rows: a function that yields dictionaries.
        arguments: the arguments of `rows`, without lists. They must include the [`file_version`] of each file that is
            read, as they are the key of the cache.
        features: the columns of the rows.
        cache_dir: as for `datasets.load_dataset`.

    Raises:
        `ValueError`: if `rows` raises an error, with its message.
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


def load_hub_splits(spec: TaskSpec, cache_dir: str | None = None) -> dict[str, Dataset]:
    """
    Return the splits of the task's data set on the Hub.

    Raises:
        `ValueError`: if the task has no `path`, the data set cannot be loaded, or it lacks a training or validation
            split.
    """
    if not spec.path:
        raise UserError(
            f"The task {spec.name!r} names no data set on the Hub (`path`). Give its data by `train_file`, "
            "`validation_file`, `test_file` or `dataset_dir`."
        )
    check_literal_name("path", spec.path)
    source = f"{spec.path!r}" + (f", configuration {spec.config_name!r}," if spec.config_name else "")
    try:
        loaded: DatasetDict = load_dataset(spec.path, spec.config_name, cache_dir=cache_dir)
    except Exception as error:  # no network, no such data set, a loading script, …
        raise UserError(
            f"The data set {source} of the task {spec.name!r} cannot be loaded from the Hub: {error} Without a "
            "network, give its data by `train_file`, `validation_file`, `test_file` or `dataset_dir`."
        ) from error
    for split in filter(None, (spec.train_split, *spec.validation_splits)):
        if split not in loaded:
            raise UserError(
                f"The data set {source} has no split {split!r}, but: {listed(loaded)}. Name its splits in the fields "
                f"`train_split`, `validation_splits` and `test_splits` of the task {spec.name!r}, `[]` for none."
            )
    return {split: loaded[split] for split in spec.splits if split in loaded}
