"""TaskDataset and its collator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq

from .spec import TaskSpec

COLLATED_COLUMNS = ("input_ids", "labels", "num_cut_tokens", "index")


@dataclass
class DataCollatorForTasks(DataCollatorForSeq2Seq):
    """
    [`DataCollatorForSeq2Seq`] over the columns of [`TaskPreprocessor`] and, if it is there, `index`, a row's place.

    Returns:
        `dict[str, torch.Tensor]`: `input_ids` (B, S), `attention_mask` (B, S), `labels` (B, T) padded with -100 (if
        the rows have them), `num_cut_tokens` (B,), `index` (B,): int64.
    """

    def __call__(self, features: Sequence[Mapping[str, Any]], return_tensors: str | None = None) -> dict:
        rows = [{name: _as_list(row[name]) for name in COLLATED_COLUMNS if name in row} for row in features]
        batch = super().__call__(rows, return_tensors)
        return {name: values for name, values in batch.items() if values is not None}


def _as_list(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value


@dataclass
class TaskDataset(torch.utils.data.Dataset):
    """
    One split of a task to evaluate on. The longest rows come first, so that batches hold little padding.

    Args:
        spec: the task.
        split: the name of the split, for reports.
        rows: in the columns of the task.
        prepared: the same rows from [`TaskPreprocessor`], in the same order.
        train_label_ids: the classes of the training rows, whose most frequent one is the majority class.

    An item is a prepared row with its place in `rows` as `index`. A hidden target is -100; if all of them are hidden,
    there are no labels.
    """

    spec: TaskSpec
    split: str
    rows: Dataset
    prepared: Dataset
    train_label_ids: Sequence[int] | None = None
    order: np.ndarray = field(init=False, repr=False)

    def __post_init__(self):
        columns = self.prepared.with_format("arrow")[:]
        lengths, target_lengths = (pc.list_value_length(columns[name]).to_numpy() for name in ("input_ids", "labels"))
        self.order = np.argsort(-lengths, kind="stable")
        self.has_targets = bool((target_lengths > 0).any())

    @property
    def key(self) -> tuple[str, str, str]:
        """Benchmark, task and split."""
        return self.spec.benchmark, self.spec.name, self.split

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> dict:
        index = int(self.order[number])
        row = self.prepared[index] | {"index": index}
        labels = row.pop("labels")
        if self.has_targets:
            row["labels"] = labels if len(labels) else [-100]
        return row


def name_datasets(datasets: Sequence[TaskDataset]) -> TaskDataset | dict[str, TaskDataset]:
    """
    Data sets as [`TaskTrainer`] takes them. One is itself, several splits of a task are named by the split, data sets
    of several tasks by the task, and by the split, too, where a task has several: `mnli_validation_matched`.
    """
    if len(datasets) == 1:
        return datasets[0]
    tasks = [dataset.key[:2] for dataset in datasets]
    names = {}
    for dataset, task in zip(datasets, tasks, strict=True):
        parts = [dataset.spec.name] if len(set(tasks)) > 1 else []
        parts += [dataset.split] if tasks.count(task) > 1 else []
        name = "_".join(parts)
        names[f"{dataset.spec.benchmark}_{name}" if name in names else name] = dataset
    return names
