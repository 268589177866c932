"""The rows of a task, split by split, wherever they come from."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from datasets import Dataset

from ..data.files import Files
from ..suggestions import suggestion
from .loaders import disco_eval, natural_instructions
from .loaders import discourse as discourse_tasks
from .rows import check_rows
from .sources import file_argument, load_hub_splits, read_tables, split_files
from .spec import TaskSpec

DOCUMENT_SUFFIXES = (".txt", ".json", ".jsonl", ".csv", ".parquet")


def load_task(
    spec: TaskSpec,
    *,
    train_file: Files = None,
    validation_file: Files = None,
    test_file: Files = None,
    dataset_dir: str | os.PathLike | None = None,
    cache_dir: str | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 42,
) -> dict[str, Dataset]:
    """
    Load the rows of a task, checked, in the columns of the task.

    Args:
        spec: the task; its `loader` is a key of `LOADERS`.
        train_file, validation_file, test_file: files or globs: json, jsonl, csv, tsv, parquet or the .gz of one of
            these, with the columns of the task (or its `column_aliases`); DiscoEval's also as they are published. If a
            task has several validation or test splits, the file is the first of them.
        dataset_dir: a folder with files called `train`, `validation` (`valid`, `dev`, `val`), `test`,
            `validation_matched` and so on, or with a folder for each task: those of GLUE (`RTE/dev.tsv`), of DiscoEval
            (`SP/arxiv/valid.txt`) and of the Hub (`rte/train-00000-of-00001.parquet`) are known.
        cache_dir: as for `datasets.load_dataset`.
        options: for the loader: of Natural Instructions and of the discourse tasks, see there.
        seed: of what the loader draws.

    Without any files, the data set that the task names on the Hub; discourse tasks are made of Python's documentation.

    Returns:
        The rows of each split that there is, by the names that the task gives the splits: text columns, label column
        and `idx`, see [`tasks.rows.check_rows`]; or what the loader returns.

    Raises:
        `ValueError`: if files cannot be read, columns are missing, texts are empty, or labels are none of the task's.
            The message names the file and the line or row.
        `FileNotFoundError`: if there is no such file.
    """
    if spec.loader not in LOADERS:
        raise ValueError(
            f"Task {spec.name!r}, field `loader`: there is no loader {spec.loader!r}."
            f"{suggestion(spec.loader, LOADERS, 'loaders')}"
        )
    return LOADERS[spec.loader](
        spec,
        train_file=train_file,
        validation_file=validation_file,
        test_file=test_file,
        dataset_dir=dataset_dir,
        cache_dir=cache_dir,
        options=options,
        seed=seed,
    )


def load_table(
    spec: TaskSpec,
    *,
    train_file: Files = None,
    validation_file: Files = None,
    test_file: Files = None,
    dataset_dir: str | os.PathLike | None = None,
    cache_dir: str | None = None,
    **_,
) -> dict[str, Dataset]:
    """Rows of files with one column for each text and one for the label, or of such a data set on the Hub."""
    files = split_files(spec, train_file, validation_file, test_file, dataset_dir)
    if not files:
        splits = load_hub_splits(spec, cache_dir)
        return {
            split: check_rows(rows, spec, f"{spec.path}, split {split!r}", split not in spec.test_splits, True)
            for split, rows in splits.items()
        }
    splits = {}
    for split, names in files.items():
        rows = read_tables(file_argument(spec, split), names, spec, cache_dir)
        splits[split] = check_rows(rows, spec, ", ".join(names), split not in spec.test_splits)
    return splits


def load_discourse(
    spec: TaskSpec,
    *,
    train_file: Files = None,
    validation_file: Files = None,
    test_file: Files = None,
    dataset_dir: str | os.PathLike | None = None,
    **other: Any,
) -> dict[str, Dataset]:
    """Discourse tasks made of documents: see [`discourse_tasks.load`]."""
    files = split_files(spec, train_file, validation_file, test_file, dataset_dir, DOCUMENT_SUFFIXES)
    return discourse_tasks.load(
        spec,
        train_file=files.get(spec.train_split),
        validation_file=files.get(next(iter(spec.validation_splits), None)),
        test_file=files.get(next(iter(spec.test_splits), None)),
        **other,
    )


# How the rows of a task are read, by `TaskSpec.loader`. All are called with the arguments of `load_task`.
LOADERS: dict[str, Callable[..., dict[str, Dataset]]] = {
    "table": load_table,
    "disco_eval": disco_eval.load,
    "disco_eval_pairs": disco_eval.load_pairs,
    "natural_instructions": natural_instructions.load,
    "discourse": load_discourse,
}
