"""
Several short examples in one row, so that little of a batch is padding.

A row has the columns of its examples, one after the other. For each column of lists another one says how many items
belong to each example (`input_ids_per_example`, ...). So rows can be stored, streamed, mixed and resumed as examples
are. The collators corrupt a batch in this form, each example as if it stood alone. The models keep examples apart by
`encoder_segment_ids` and `decoder_segment_ids`.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Features, List, Value

from .metadata import METADATA_IDS
from .noise_lengths import Bounds

PER_EXAMPLE = "_per_example"
# How many rows with room for the source of an example are looked at for room for its target, the fullest ones first.
MOST_CANDIDATES = 64


@dataclass
class PackedPreprocessor:
    """
    Makes rows of several examples from those that another preprocessor makes of documents.

    The examples of a batch of documents are put together by the lengths that they can have after corruption. So all of
    a row fit into both maximum lengths, however they are corrupted. Examples and rows are in the order of the
    documents. The rows depend on `batch_size` and `num_proc` of the map.
    """

    preprocessor: Callable[[dict[str, list]], dict[str, list]]
    length_bounds: Callable[..., Bounds]
    max_source_length: int
    max_target_length: int
    # The examples of a batch of documents are put together: large batches leave little padding.
    joins_documents = True

    def __post_init__(self):
        for name in ("text_column", "input_columns", "min_sentences", "pack_examples", "versions"):
            setattr(self, name, getattr(self.preprocessor, name))

    @property
    def features(self) -> Features:
        features = self.preprocessor.features
        lists = [name for name, feature in features.items() if isinstance(feature, List)]
        return Features({**features, **{name + PER_EXAMPLE: List(Value("int32")) for name in lists}})

    def __call__(self, batch: dict[str, list]) -> dict[str, list]:
        columns = self.preprocessor(batch)
        counted = [columns[name] for name in ("input_ids", "sentence_lengths") if name in columns]
        source, target, _ = self.length_bounds(*map(_lengths, counted))
        if METADATA_IDS in columns:
            source = source + _lengths(columns[METADATA_IDS])
        return self._joined(columns, pack(source, target, self.max_source_length, self.max_target_length))

    def _joined(self, columns: dict[str, list], rows: list[np.ndarray]) -> dict[str, list]:
        joined = {}
        for name, feature in self.preprocessor.features.items():
            values = columns[name]
            if isinstance(feature, List):
                joined[name] = [np.concatenate([values[i] for i in row]) for row in rows]
                lengths = _lengths(values).astype(np.int32)
                joined[name + PER_EXAMPLE] = [lengths[row] for row in rows]
            else:
                joined[name] = [sum(values[i] for i in row) for row in rows]
        return joined


def pack(
    source_lengths: np.ndarray, target_lengths: np.ndarray, max_source_length: int, max_target_length: int
) -> list[np.ndarray]:
    """
    Put examples into rows: best fit decreasing, the longest example first, each into the row that it fills best. No
    example exceeds a row. Returns the indices of the examples of each row, ascending, int64; rows are in the order of
    their first examples.

    Source: Johnson (1973), "Near-optimal bin packing algorithms", for one length.

    >>> [row.tolist() for row in pack(np.array([6, 5, 4, 3]), np.array([1, 1, 1, 1]), 10, 10)]
    [[0, 2], [1, 3]]
    """
    lengths = np.stack([source_lengths, target_lengths], axis=1).astype(np.int64)  # (num_examples, 2)
    limits = np.array([max_source_length, max_target_length])
    if lengths[:, 1].sum() * limits[0] > lengths[:, 0].sum() * limits[1]:  # the targets fill the rows first
        lengths, limits = lengths[:, ::-1], limits[::-1]
    order = np.lexsort((np.arange(len(lengths)), -lengths[:, 1], -lengths[:, 0]))
    rows: list[list[int]] = []
    room: list[tuple[int, int, int]] = []  # of each row that is not full: what is left of both lengths, its number
    for index, (first, second) in zip(order.tolist(), lengths[order].tolist(), strict=True):
        place = bisect_left(room, (first,))
        candidates = range(place, min(place + MOST_CANDIDATES, len(room)))
        fitting = next((candidate for candidate in candidates if room[candidate][1] >= second), None)
        if fitting is None:
            left, other, row = *limits.tolist(), len(rows)
            rows.append([])
        else:
            left, other, row = room.pop(fitting)
        rows[row].append(index)
        insort(room, (left - first, other - second, row))
    return sorted((np.sort(np.array(row, dtype=np.int64)) for row in rows), key=lambda row: row[0])


def examples_per_row(rows: Sequence[Mapping[str, Any]]) -> np.ndarray | None:
    """How many examples each row of a batch holds: int64, `(num_rows,)`; `None` if the rows are not packed."""
    name = "input_ids" + PER_EXAMPLE
    return _lengths([row[name] for row in rows]) if name in rows[0] else None


def lengths_per_example(rows: Sequence[Mapping[str, Any]], column: str) -> np.ndarray:
    """How many items each example has in a column of lists, also of packed rows: int64, `(num_examples,)`."""
    if column + PER_EXAMPLE not in rows[0]:
        return _lengths([row[column] for row in rows])
    return np.concatenate([row[column + PER_EXAMPLE] for row in rows]).astype(np.int64, copy=False)


def unpack_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The examples of packed rows, to look at; each with the numbers of its row. Others come back as they are."""
    if examples_per_row(rows) is None:
        return list(rows)
    examples = []
    for row in rows:
        names = [name.removesuffix(PER_EXAMPLE) for name in row if name.endswith(PER_EXAMPLE)]
        rest = {name: value for name, value in row.items() if name.removesuffix(PER_EXAMPLE) not in names}
        parts = [np.split(np.asarray(row[name]), np.cumsum(row[name + PER_EXAMPLE])[:-1]) for name in names]
        examples += [rest | dict(zip(names, values, strict=True)) for values in zip(*parts, strict=True)]
    return examples


def _lengths(sequences: Sequence[Sequence]) -> np.ndarray:
    return np.fromiter(map(len, sequences), np.int64, len(sequences))
