"""Streams of documents that are numbers, whose examples are these numbers."""

import numpy as np
from datasets import Dataset, IterableDataset, concatenate_datasets

from hf_depth.data.preprocessing import Preprocessor


class Numbers(Preprocessor):
    """A preprocessor that makes an example of a document: the number that its text is."""

    input_columns = ("text",)

    def __call__(self, batch):
        numbers = [np.array([int(text)]) for text in batch["text"] if text]
        return {"input_ids": numbers, "num_cut_tokens": [0] * len(numbers)}


def documents(*sizes: int) -> IterableDataset:
    """A stream of files of so many documents, which are numbered from 0."""
    bounds = np.cumsum([0, *sizes]).tolist()
    files = [
        Dataset.from_dict({"text": [str(number) for number in range(first, last)]}).to_iterable_dataset()
        for first, last in zip(bounds, bounds[1:], strict=False)
        if last > first
    ]
    return concatenate_datasets(files)
