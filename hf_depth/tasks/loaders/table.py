"""The loader of tables with a column for each text and one for the label, from files or from the Hub."""

from typing import Any

from datasets import Dataset

from ..rows import check_rows
from ..sources import TaskFiles, file_argument, load_hub_splits, read_tables, split_files
from ..spec import TaskSpec


def load(spec: TaskSpec, files: TaskFiles, options: Any = None, **_: Any) -> dict[str, Dataset]:
    """Return the examples of files with a column for each text and one for the label, or of a data set on the Hub."""
    paths = split_files(spec, files)
    if not paths:
        splits = load_hub_splits(spec, files.cache_dir)
        return {
            split: check_rows(rows, spec, f"{spec.path}, split {split!r}", split not in spec.test_splits, True)
            for split, rows in splits.items()
        }
    splits = {}
    allows_empty = "empty_texts" in spec.file_defects
    for split, names in paths.items():
        rows = read_tables(file_argument(spec, split), names, spec, files.cache_dir)
        splits[split] = check_rows(rows, spec, ", ".join(names), split not in spec.test_splits, allows_empty)
    return splits
