"""What a trainer takes of a task: [`TaskDataset`] to evaluate on, and the collator of prepared examples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq

from ..suggestions import listed
from .config import TaskConfig
from .rows import check_class_order
from .spec import TaskSpec

EXAMPLES_TO_CHECK = 100  # of a data set, which may prepare each example when it is read

COLLATED_COLUMNS = ("input_ids", "labels", "num_cut_tokens", "index")

HOW_TO_PREPARE = (
    "Prepare the examples first: `TaskSplits.load(task, train_file=…).prepare(tokenizer)` does all of it, "
    "`prepare_task(examples, TaskPreprocessor(tokenizer, task))` this step alone."
)


@dataclass
class DataCollatorForTasks(DataCollatorForSeq2Seq):
    """
    [`DataCollatorForSeq2Seq`] over the columns of [`TaskPreprocessor`] and, if it is there, `index`, the place of an
    example in its data set.

    Args: those of [`DataCollatorForSeq2Seq`], above all `tokenizer` and `pad_to_multiple_of`.

    Returns:
        `dict[str, torch.Tensor]`: `input_ids` of shape `(batch_size, source_length)`, `attention_mask` of the same
        shape, `labels` of shape `(batch_size, target_length)` padded with -100 (if the examples have them),
        `num_cut_tokens` and `index` of shape `(batch_size,)`: int64.

    Raises:
        `ValueError`: if the examples have no `input_ids`, as before the preprocessing.

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
            raise ValueError(f"The examples have no column 'input_ids', but: {listed(features[0])}. {HOW_TO_PREPARE}")
        examples = [{name: _as_list(one[name]) for name in COLLATED_COLUMNS if name in one} for one in features]
        batch = super().__call__(examples, return_tensors)
        return {name: values for name, values in batch.items() if values is not None}


def _as_list(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value


@dataclass
class TaskDataset(torch.utils.data.Dataset):
    """
    One split of a task to evaluate on.

    An item is a prepared example with its place in `rows` as `index`. Where it is unlabeled, its target is -100; if
    all examples are unlabeled, there are no `labels`. (A trainer reads the longest first.)

    Args:
        spec (`TaskSpec`): the task.
        split (`str`): the name of the split, for reports.
        rows (`Dataset`): the examples in the columns of the task.
        prepared (`Dataset`): the same examples from [`TaskPreprocessor`], in the same order.
        train_label_ids (`Sequence[int]`, *optional*):
            The classes of the training examples, whose most frequent one is the majority class.
        config (`TaskConfig`, *optional*):
            How the examples were prepared, which [`TaskTrainer`] saves with the model; [`TaskSplits`] gives it.

    Raises:
        `ValueError`: if `prepared` is not what `TaskPreprocessor` makes of `rows`, or their label column is a
            `ClassLabel` with other numbers than the task's.

    >>> from hf_depth import TaskDataset, get_task
    >>> rows = Dataset.from_dict({"sentence1": ["A.", "B."], "sentence2": ["C.", "D."], "label": [0, -1]})
    >>> ids = {"input_ids": [[5, 1], [6, 7, 1]], "labels": [[8, 1], []], "num_cut_tokens": [0, 0]}
    >>> dataset = TaskDataset(get_task("glue/rte"), "validation", rows, Dataset.from_dict(ids))
    >>> dataset[0]
    {'input_ids': [5, 1], 'num_cut_tokens': 0, 'index': 0, 'labels': [8, 1]}
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
            raise ValueError(
                f"`prepared` must hold the ids of the {len(self.rows)} examples of {self.spec.full_name} "
                f"({self.split}), but has {len(self.prepared)} examples with the columns "
                f"{listed(self.prepared.column_names)}. {HOW_TO_PREPARE}"
            )
        check_class_order(self.rows, self.spec)
        has_target = pc.list_value_length(self.prepared.with_format("arrow")[:]["labels"]).to_numpy() > 0
        self.has_targets = bool(has_target.any())
        self.first_labeled = int(has_target.argmax()) if self.has_targets else None

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
    """
    What the ids of prepared examples say about how they were prepared.

    Attributes:
        with_text (`int`): examples of more than `</s>`.
        with_token (`int`): those of them in which a token occurs.
        greatest_id (`int`): of inputs and targets; -1 if there is none.
    """

    with_text: int = 0
    with_token: int = 0
    greatest_id: int = -1


def count_tokens(examples: Iterable[Mapping[str, Any]], token_id: int) -> TokenCounts:
    """
    Look through `EXAMPLES_TO_CHECK` prepared examples at most: at equal distances, or the first of a stream or list.

    Args:
        examples (`Iterable[Mapping[str, Any]]`): with `input_ids` and perhaps `labels`.
        token_id (`int`): the token to look for in `input_ids`.

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
    Data sets as [`TaskTrainer`] takes them. One is itself, several splits of a task are named by the split, data sets
    of several tasks by the task, and by the split, too, where a task has several: `mnli_validation_matched`.

    Args:
        datasets (`Sequence[TaskDataset]`): one or several.
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
