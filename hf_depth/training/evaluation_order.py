"""An evaluation reads the longest examples first, so that batches hold little padding."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset
from torch.utils.data import Sampler

from ..tasks.dataset import TaskDataset


class LongestFirstSampler(Sampler[int]):
    """
    The indices of examples by their lengths: the longest first, where a batch that does not fit the memory fails at
    once. Equally long examples stay in their order.

    Args:
        lengths (`Sequence[int]`): of each example.

    >>> list(LongestFirstSampler([2, 5, 2, 9]))
    [3, 1, 0, 2]
    """

    def __init__(self, lengths: Sequence[int]):
        self.order = np.argsort(-np.asarray(lengths), kind="stable")

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[int]:
        return iter(self.order.tolist())


def input_lengths(dataset: Any) -> np.ndarray | None:
    """
    The number of `input_ids` of each example.

    Returns:
        `np.ndarray` of shape `(number of examples,)`, or `None` if the examples have no `input_ids`, or if only
        preparing them would tell.

    >>> input_lengths(Dataset.from_dict({"input_ids": [[5, 1], [5, 6, 1]]})).tolist()
    [2, 3]
    """
    if isinstance(dataset, TaskDataset):
        dataset = dataset.prepared
    if isinstance(dataset, Dataset):
        if "input_ids" not in dataset.column_names:
            return None
        ids = dataset.select_columns("input_ids").with_format("arrow")[:]["input_ids"]
        return pc.list_value_length(ids).to_numpy()
    if isinstance(dataset, list | tuple) and all(isinstance(row, Mapping) and "input_ids" in row for row in dataset):
        return np.array([len(row["input_ids"]) for row in dataset])
    return None
