"""An evaluation reads the longest examples first, so that batches hold little padding; results are in their order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler
from transformers import EvalPrediction
from transformers.trainer_utils import EvalLoopOutput

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


def places_of_examples(dataloader: DataLoader) -> np.ndarray | None:
    """The place in the evaluation of each example of a data set, if a [`LongestFirstSampler`] has ordered them."""
    batches = getattr(dataloader, "batch_sampler", None)
    sampler = getattr(getattr(batches, "batch_sampler", batches), "sampler", None)
    return np.argsort(sampler.order) if isinstance(sampler, LongestFirstSampler) else None


def outputs_in_order(output: EvalLoopOutput, places: np.ndarray) -> EvalLoopOutput:
    """
    The predictions and labels of an evaluation in the order of the data set.

    Args:
        output (`EvalLoopOutput`): of a loop over the examples in another order.
        places (`np.ndarray`): see [`places_of_examples`].
    """
    return output._replace(
        predictions=_reordered(output.predictions, places), label_ids=_reordered(output.label_ids, places)
    )


def metrics_in_order(compute_metrics: Callable, places: np.ndarray) -> Callable:
    """
    A user's `compute_metrics` that is given predictions, labels and inputs in the order of the data set.

    Args:
        compute_metrics (`Callable`): what the user has given.
        places (`np.ndarray`): see [`places_of_examples`].
    """

    def compute(evaluated: EvalPrediction) -> dict[str, Any]:
        elements = (evaluated.predictions, evaluated.label_ids, evaluated.inputs, evaluated.losses)
        predictions, label_ids, inputs, losses = (_reordered(element, places) for element in elements)
        return compute_metrics(EvalPrediction(predictions, label_ids, inputs=inputs, losses=losses))

    return compute


def _reordered(values: Any, places: np.ndarray) -> Any:
    if isinstance(values, list | tuple):
        return type(values)(_reordered(each, places) for each in values)
    if isinstance(values, Mapping):
        return {name: _reordered(each, places) for name, each in values.items()}
    return values[places] if isinstance(values, np.ndarray) and len(values) == len(places) else values
