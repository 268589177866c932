"""
Metadata of documents (address, time, title, …) as a text that the encoder reads before some of the examples. So a
model learns to make use of them and to do without.

The text is `url: https://example.org/a | title: A day in May |||`, as that of BigScience's working group on metadata
(https://github.com/bigscience-workshop/metadata).
"""

import contextlib
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from datetime import UTC, date, datetime
from itertools import repeat
from typing import Any

import numpy as np
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from ..errors import UserError
from .noise import Draw, ExampleRandom, Ragged, run_starts
from .tokenization import TextEncoder

logger = logging.getLogger(__name__)

NAME_END = ": "
SEPARATOR = " | "
PREFIX_END = " |||"

# The columns of examples.
METADATA_IDS = "metadata_ids"
NUM_CUT = "num_cut_metadata_tokens"

# What readers of JSON take for a time if they read a whole file, but not if they read line by line.
_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d(?::?\d\d)?)?)?")


def metadata_prefix(values: Mapping[str, Any]) -> str:
    """
    What stands before the text of a document with these metadata. They are texts, numbers, dates and times, or lists
    of these, by columns, in their order. What is `None`, NaN or blank is left out. White space becomes single spaces;
    times are in UTC, and dates where they are midnight. `ValueError` for a value of another type.

    >>> from datetime import datetime
    >>> metadata_prefix({"title": "A day in May", "timestamp": datetime(2019, 5, 1, 9, 30), "url": None})
    'title: A day in May | timestamp: 2019-05-01 09:30:00 |||'
    """
    texts = {column: _text(column, value) for column, value in values.items()}
    parts = [f"{column}{NAME_END}{text}" for column, text in texts.items() if text]
    return SEPARATOR.join(parts) + PREFIX_END if parts else ""


def _text(column: str, value: Any) -> str:
    """A value as it stands in a prefix; empty if there is none."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, (_text(column, item) for item in value)))
    if isinstance(value, float):
        return f"{value:.15g}"  # 3.0 is 3: a column of whole numbers, some of them missing, may be read as either
    if isinstance(value, date):
        return _time_text(value)
    if not isinstance(value, str | int):
        raise UserError(
            f"The metadata column {column!r} holds {value!r:.80} ({type(value).__name__}), but must hold texts, "
            "numbers, dates or lists of these. From a mapping, make each value a column (`documents.flatten()`)."
        )
    text = " ".join(str(value).split())
    if _TIME.fullmatch(text):
        with contextlib.suppress(ValueError):  # such as the 30th of February
            return _time_text(datetime.fromisoformat(text))
    return text


def _time_text(time: date) -> str:
    if not isinstance(time, datetime):
        return time.isoformat()
    if time.tzinfo is not None:
        time = time.astimezone(UTC).replace(tzinfo=None)
    return time.isoformat(sep=" ").removesuffix(" 00:00:00")


def has_metadata(examples: Any) -> bool:
    """Whether prepared examples have metadata."""
    if isinstance(examples, Dataset):
        return METADATA_IDS in examples.column_names
    first = next(iter(examples or ()), None)
    return isinstance(first, Mapping) and METADATA_IDS in first


@dataclass
class MetadataEncoder:
    """
    Makes the metadata columns of examples, for a preprocessor of documents, of the `columns` in their order. What is
    longer than `max_length` tokens loses tokens before its end mark; how many is counted, and told once. The tokenizer
    is not kept. `ValueError` if `max_length` leaves no room for any text.
    """

    tokenizer: InitVar[PreTrainedTokenizerBase]
    columns: Sequence[str]
    max_length: int = 64

    def __post_init__(self, tokenizer: PreTrainedTokenizerBase):
        self.encoder = TextEncoder(tokenizer)
        text, whole = self.encoder([NAME_END, NAME_END + PREFIX_END])
        self.end_ids = whole[len(text) :]  # as they are behind a text
        if self.max_length <= len(self.end_ids):
            raise UserError(
                f"`max_metadata_length` must be above {len(self.end_ids)}, the tokens of {PREFIX_END!r}, got "
                f"{self.max_length}."
            )

    @property
    def features(self) -> Features:
        """The columns that it makes."""
        return Features({METADATA_IDS: List(Value("int32")), NUM_CUT: Value("int32")})

    def __call__(self, batch: Mapping[str, Sequence[Any]], num_examples: Sequence[int]) -> dict[str, list]:
        """
        `metadata_ids` (int32 arrays) and `num_cut_metadata_tokens`, for each example. `num_examples` are those that
        each document of the batch gives; all of them have its metadata.
        """
        values = [batch.get(column, repeat(None, len(num_examples))) for column in self.columns]
        prefixes = [metadata_prefix(dict(zip(self.columns, row, strict=True))) for row in zip(*values, strict=True)]
        columns = {METADATA_IDS: [], NUM_CUT: []}
        for ids, number in zip(self.encoder(prefixes), num_examples, strict=True):
            num_cut = max(0, len(ids) - self.max_length)
            if num_cut:
                ids = ids[: self.max_length - len(self.end_ids)] + self.end_ids
                logger.warning_once(
                    f"Metadata of more than {self.max_length} tokens are cut (`max_metadata_length`). Raise it, or "
                    "name the columns that matter most first in `metadata_columns`."
                )
            columns[METADATA_IDS] += [np.array(ids, dtype=np.int32)] * number
            columns[NUM_CUT] += [num_cut] * number
        return columns


def prepend_metadata(inputs: Ragged, metadata: Ragged, probability: float, random: ExampleRandom) -> Ragged:
    """
    Put metadata before the inputs of some examples, with this probability. Both are ragged batches; metadata may have
    the length 0.
    """
    (values, lengths), (metadata_ids, metadata_lengths) = inputs, metadata
    is_chosen = random.uniform(Draw.METADATA) < probability  # (batch_size,)
    metadata_ids = metadata_ids[np.repeat(is_chosen, metadata_lengths)]
    metadata_lengths = metadata_lengths * is_chosen
    places = np.repeat(run_starts(lengths), metadata_lengths)  # (metadata_lengths.sum(),)
    return np.insert(values, places, metadata_ids), lengths + metadata_lengths
