"""[`TaskDataset`], the data set a trainer evaluates on, and [`DataCollatorForTasks`], which batches examples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq

from ..errors import UserError
from ..suggestions import listed
from .config import TaskConfig
from .rows import check_class_order
from .spec import TaskSpec

EXAMPLES_TO_CHECK = 100  # few, as a data set may prepare each example when it is read

COLLATED_COLUMNS = ("input_ids", "labels", "num_cut_tokens", "index")

HOW_TO_PREPARE = (
    "Prepare the examples first: `TaskSplits.load(task, train_file=…).prepare(tokenizer)` loads and prepares them, "
    "`prepare_task(examples, TaskPreprocessor(tokenizer, task))` only prepares them."
)


@dataclass
class DataCollatorForTasks(DataCollatorForSeq2Seq):
    """
    A [`DataCollatorForSeq2Seq`] for the columns of [`TaskPreprocessor`] and `index`, the place of an example in its
    data set.

    Args: as for [`DataCollatorForSeq2Seq`], such as `tokenizer` and `pad_to_multiple_of`.

    Returns:
        `dict[str, torch.Tensor]`: int64 tensors. `input_ids` and `attention_mask` have the shape
        `(batch_size, source_length)`, `labels` the shape `(batch_size, target_length)`, padded with -100.
        `num_cut_tokens` and `index` have the shape `(batch_size,)`. A column that the examples lack is left out.

    Raises:
        `ValueError`: if the examples have no `input_ids` because they are not prepared.

    >>> import tempfile
    >>> from hf_depth import DataCollatorForTasks
    >>> from hf_depth.data.vocabulary import train_tokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tokenizer = train_tokenizer(["It rains."], 200, folder, allow_fewer=True)
    >>> examples = [{"input_ids": [5, 6, 1], "labels": [7, 1]}, {"input_ids": [5, 1], "labels": [1]}]
    >>> for name, values in DataCollatorForTasks(tokenizer)(examples).items():
    ...     print(name, values.tolist())
    input_ids [[5, 6, 1], [5, 1, 0]]
    attention_mask [[1, 1, 1], [1, 1, 0]]
    labels [[7, 1], [1, -100]]
    """

    def __call__(self, features: Sequence[Mapping[str, Any]], return_tensors: str | None = None) -> dict:
        if "input_ids" not in features[0]:
            raise UserError(f"The examples have no column 'input_ids', but: {listed(features[0])}. {HOW_TO_PREPARE}")
        examples = [{name: _as_list(one[name]) for name in COLLATED_COLUMNS if name in one} for one in features]
        batch = super().__call__(examples, return_tensors)
        return {name: values for name, values in batch.items() if values is not None}


def _as_list(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value


@dataclass
class TaskDataset(torch.utils.data.Dataset):
    """
    One split of a task to evaluate on. An item is a prepared example and its `index` in `rows`.

    An unlabeled example has the target -100. If no example is labeled, the items have no `labels`.

    Args:
        spec (`TaskSpec`): the task.
        split (`str`): the name of the split, for reports.
        rows (`Dataset`): the examples, with the columns of the task.
        prepared (`Dataset`): the same examples from [`TaskPreprocessor`], in the same order.
        train_label_ids (`Sequence[int]`, *optional*):
            The classes of the training examples. The most frequent one is the majority class.
        config (`TaskConfig`, *optional*):
            How the examples were prepared. [`TaskTrainer`] saves it with the model.
    """

    spec: TaskSpec
    split: str
    rows: Dataset
    prepared: Dataset
    train_label_ids: Sequence[int] | None = None
    config: TaskConfig | None = None

    def __post_init__(self):
        missing = [name for name in ("input_ids", "labels") if name not in self.prepared.column_names]
        if missing or len(self.rows) != len(self.prepared):
            raise UserError(
                f"`prepared` must hold the ids of the {len(self.rows)} examples of {self.spec.full_name} "
                f"({self.split}), but has {len(self.prepared)} examples with the columns "
                f"{listed(self.prepared.column_names)}. {HOW_TO_PREPARE}"
            )
        check_class_order(self.rows, self.spec)
        has_target = pc.list_value_length(self.prepared.with_format("arrow")[:]["labels"]).to_numpy() > 0
        self.has_targets = bool(has_target.any())

    @property
    def key(self) -> tuple[str, str, str]:
        """Benchmark, task and split."""
        return self.spec.benchmark, self.spec.name, self.split

    def __len__(self) -> int:
        return len(self.prepared)

    def __getitem__(self, index: int) -> dict:
        example = self.prepared[index] | {"index": index}
        labels = example.pop("labels")
        if self.has_targets:
            example["labels"] = labels if len(labels) else [-100]
        return example


@dataclass
class TokenCounts:
    """Counts that show how examples were prepared."""

    with_text: int = 0  # examples that hold more than `</s>`
    with_token: int = 0  # how many of these contain the token
    greatest_id: int = -1  # in inputs and targets


def count_tokens(examples: Iterable[Mapping[str, Any]], token_id: int) -> TokenCounts:
    """
    Count the examples in which a token occurs, among at most `EXAMPLES_TO_CHECK`.

    A `Dataset` is sampled at equal distances. For a stream or a list, the first examples are read.

    >>> count_tokens([{"input_ids": [5, 9, 1]}, {"input_ids": [1]}, {"input_ids": [6, 1]}], token_id=9)
    TokenCounts(with_text=2, with_token=1, greatest_id=9)
    """
    if isinstance(examples, Dataset) and len(examples) > EXAMPLES_TO_CHECK:  # perhaps several data sets in one
        examples = examples.select(np.linspace(0, len(examples) - 1, EXAMPLES_TO_CHECK).astype(int))
    counts = TokenCounts()
    for example in islice(iter(examples), EXAMPLES_TO_CHECK):
        input_ids, labels = ([int(number) for number in example.get(name, ())] for name in ("input_ids", "labels"))
        counts.with_text += len(input_ids) > 1
        counts.with_token += token_id in input_ids
        counts.greatest_id = max([counts.greatest_id, *input_ids, *labels])
    return counts


def name_datasets(datasets: Sequence[TaskDataset]) -> TaskDataset | dict[str, TaskDataset]:
    """
    Name data sets as [`TaskTrainer`] takes them.

    A single data set is returned as it is. Several splits of one task are named by split. With several tasks, the
    name is the task, followed by the split if the task has several: `mnli_validation_matched`.
    """
    if len(datasets) == 1:
        return datasets[0]
    tasks = [dataset.spec.full_name for dataset in datasets]
    names = {}
    for dataset, task in zip(datasets, tasks, strict=True):
        parts = [dataset.spec.name] if len(set(tasks)) > 1 else []
        parts += [dataset.split] if tasks.count(task) > 1 else []
        name = "_".join(parts)
        names[f"{dataset.spec.benchmark}_{name}" if name in names else name] = dataset
    return names
