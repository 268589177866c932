"""Documents to rows of word ids: functions for `datasets.map` that split, encode and cut into windows."""

import logging
from collections.abc import Iterator
from dataclasses import InitVar, dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, IterableDataset, List, Value
from transformers import PreTrainedTokenizerBase

from .corruption import depth_input_and_target_lengths, depth_noise_counts
from .files import _check_texts, check_text_column
from .sentences import get_sentence_splitter
from .tokenization import TextEncoder, encode_sentences, sentinel_token_ids

logger = logging.getLogger(__name__)

# Part of the fingerprint of prepared data: raise it when the same text may give other rows.
ROWS_VERSION = 1


@dataclass
class SpanCorruptionPreprocessor:
    """
    Cuts documents into windows of raw words for [`DataCollatorForT5SpanCorruption`].

    Args:
        tokenizer: any T5 tokenizer.
        raw_length: words of a window at most, see `corruption.t5_raw_length`; at least 3.
        text_column: the column that holds the documents.
        pack_examples: put the documents of a batch behind each other, with nothing between them, before they are cut.
            All windows but the last of a batch are then full. The windows depend on `batch_size` and `num_proc` of the
            map; without packing they do not.

    Called with a batch of rows, it returns the columns `input_ids` (1-D int32 arrays of 2 to `raw_length` words, no
    special tokens) and `num_cut_tokens` (always 0: no sentence is known). No word is lost, but a text of fewer than
    two words gives a row without words, which [`prepare_dataset`] counts and drops.
    """

    tokenizer: InitVar[PreTrainedTokenizerBase]
    raw_length: int
    text_column: str = "text"
    pack_examples: bool = False
    version: int = field(default=ROWS_VERSION, init=False)

    def __post_init__(self, tokenizer: PreTrainedTokenizerBase):
        if self.raw_length < 3:
            raise ValueError(f"`raw_length` must be at least 3, got {self.raw_length}: raise the maximum lengths.")
        self.encoder = TextEncoder(tokenizer)

    @property
    def features(self) -> Features:
        return Features({"input_ids": List(Value("int32")), "num_cut_tokens": Value("int32")})

    def __call__(self, batch: dict[str, list]) -> dict[str, list]:
        documents = self.encoder(_texts(batch, self.text_column))
        if self.pack_examples:
            documents = [list(chain.from_iterable(documents))]
        windows = [window for document in documents for window in self._windows(np.array(document, dtype=np.int32))]
        return {"input_ids": windows, "num_cut_tokens": [0] * len(windows)}

    def _windows(self, words: np.ndarray) -> list[np.ndarray]:
        if len(words) < 2:
            return [words[:0]]
        cuts = np.arange(self.raw_length, len(words), self.raw_length)
        if len(words) % self.raw_length == 1:
            cuts[-1] -= 1  # a window of one word could not be corrupted
        return np.split(words, cuts)


@dataclass
class DepthPreprocessor:
    """
    Cuts documents into windows of whole consecutive sentences for [`DataCollatorForDepth`].

    A window takes sentences for as long as every corruption of it fits into both maximum lengths and there are enough
    sentence tokens. A sentence that does not fit into a window by itself is cut between words, and each part is
    an example of its own. Nothing is lost.

    Args:
        tokenizer: any T5 tokenizer.
        max_source_length: tokens of a corrupted input at most, special tokens included.
        max_target_length: tokens of a target at most, special tokens included.
        mlm_probability: share of the words that will be hidden.
        mean_noise_span_length: words per hidden span.
        max_sentences: the number of sentence tokens.
        text_column: the column that holds the documents.
        language: of the documents, see [`get_sentence_splitter`].

    Called with a batch of rows, it returns the columns `input_ids` (1-D int32 arrays: the words of all sentences, no
    special tokens), `sentence_lengths` (1-D int32 arrays: words of each sentence, at least 1) and `num_cut_tokens`
    (how many of the words belong to a sentence that was cut). A document without words gives a row without words,
    which [`prepare_dataset`] counts and drops.
    """

    tokenizer: InitVar[PreTrainedTokenizerBase]
    max_source_length: int
    max_target_length: int
    mlm_probability: float
    mean_noise_span_length: float
    max_sentences: int = 20
    text_column: str = "text"
    language: str = "en"
    version: int = field(default=ROWS_VERSION, init=False)

    def __post_init__(self, tokenizer: PreTrainedTokenizerBase):
        self.encoder = TextEncoder(tokenizer)
        self.splitter = get_sentence_splitter(self.language)
        self.capacities = depth_capacities(
            self.max_source_length,
            self.max_target_length,
            self.mlm_probability,
            self.mean_noise_span_length,
            self.max_sentences,
        )
        num_sentences = np.arange(1, len(self.capacities) + 1)
        noise = (self.mlm_probability, self.mean_noise_span_length)
        num_noise, num_spans, most_cuts = depth_noise_counts(np.array(self.capacities), num_sentences, *noise)
        check_enough_sentinels(int(np.minimum(num_spans + most_cuts, num_noise).max()), tokenizer)

    @property
    def features(self) -> Features:
        ids = List(Value("int32"))
        return Features({"input_ids": ids, "sentence_lengths": ids, "num_cut_tokens": Value("int32")})

    def __call__(self, batch: dict[str, list]) -> dict[str, list]:
        rows = {"input_ids": [], "sentence_lengths": [], "num_cut_tokens": []}
        for sentences in encode_sentences(_texts(batch, self.text_column), self.encoder, self.splitter):
            for window, num_cut_tokens in self._windows(sentences):
                rows["input_ids"].append(np.fromiter(chain.from_iterable(window), dtype=np.int32))
                rows["sentence_lengths"].append(np.fromiter(map(len, window), dtype=np.int32, count=len(window)))
                rows["num_cut_tokens"].append(num_cut_tokens)
        return rows

    def _windows(self, sentences: list[list[int]]) -> Iterator[tuple[list[list[int]], int]]:
        """Yield the sentences of each window and how many words in it belong to cut sentences."""
        window, num_words = [], 0
        for sentence, is_cut in self._parts(sentences):
            # The window as it would be with this sentence; `capacities[n - 1]` is for n sentences.
            is_full = len(window) == len(self.capacities) or num_words + len(sentence) > self.capacities[len(window)]
            if window and (is_full or is_cut):
                yield window, 0
                window, num_words = [], 0
            if is_cut:
                # By itself: in front of whole sentences, a rest without a beginning would show that it comes first.
                yield [sentence], len(sentence)
            else:
                window.append(sentence)
                num_words += len(sentence)
        if window or not sentences:
            yield window, 0

    def _parts(self, sentences: list[list[int]]) -> Iterator[tuple[list[int], bool]]:
        """Yield each sentence and False, or, if it is longer than a window, its parts and True."""
        longest = self.capacities[0]
        for sentence in sentences:
            if len(sentence) <= longest:
                yield sentence, False
            else:
                for start in range(0, len(sentence), longest):
                    yield sentence[start : start + longest], True


def check_enough_sentinels(num_spans: int, tokenizer: PreTrainedTokenizerBase) -> None:
    """
    Check before any text is prepared that no window has more hidden spans than the tokenizer has sentinels.

    Args:
        num_spans: the most hidden spans that a window can have.

    Raises:
        `ValueError`: if there are more.
    """
    available = len(sentinel_token_ids(tokenizer))
    if num_spans > available:
        raise ValueError(
            f"Windows of these lengths can have {num_spans} hidden spans, but the tokenizer has {available} sentinels "
            "(`<extra_id_0>`, …), and no two spans may share one. Raise `mean_noise_span_length`, lower "
            "`mlm_probability` or `max_source_length`, or use a tokenizer with more sentinels."
        )


def depth_capacities(
    max_source_length: int,
    max_target_length: int,
    mlm_probability: float,
    mean_noise_span_length: float,
    max_sentences: int,
) -> list[int]:
    """
    How many words fit into an example, by its number of sentences: item `n - 1` is the largest number such that each
    example of `n` sentences with at most that many words fits into both maximum lengths, however it is corrupted.

    The list ends at `max_sentences`, or before, where not even one word per sentence fits.

    Raises:
        `ValueError`: if not even one sentence of one word fits.
    """
    num_sentences = np.arange(1, max_sentences + 1)[:, None]
    num_words = np.arange(1, int(max_source_length / (1 - mlm_probability)) + 3)  # the input keeps this many and more
    source_lengths, target_lengths = depth_input_and_target_lengths(
        np.maximum(num_words, num_sentences), num_sentences, mlm_probability, mean_noise_span_length
    )
    fits = (source_lengths <= max_source_length) & (target_lengths <= max_target_length)
    capacities = np.logical_and.accumulate(fits, axis=1).sum(axis=1)
    enough = np.logical_and.accumulate(capacities >= num_sentences[:, 0])
    if not enough.any():
        raise ValueError(
            f"No sentence fits into `max_source_length`={max_source_length} and `max_target_length`="
            f"{max_target_length}: raise them."
        )
    return capacities[enough].tolist()


def prepare_dataset(
    dataset: Dataset | IterableDataset,
    preprocessor: SpanCorruptionPreprocessor | DepthPreprocessor,
    num_proc: int | None = None,
    overwrite_cache: bool = False,
    desc: str | None = "Preparing text",
    min_sentences: int = 1,
) -> Dataset | IterableDataset:
    """
    Map documents to rows of word ids, dropping all other columns. What `datasets` has cached is used again.

    Args:
        dataset: documents, map-style or streamed.
        preprocessor: makes the rows.
        num_proc: processes, for a map-style dataset.
        overwrite_cache: prepare anew even if there is a cached result.
        desc: for the progress bar.
        min_sentences: leave out rows of a [`DepthPreprocessor`] with fewer sentences. One sentence has no order.

    Returns:
        A dataset of the same kind with the columns of the preprocessor. Documents that give no row (no text, or for T5
        fewer than two words) are dropped; for a map-style dataset their number is logged, as is that of the rows with
        too few sentences.

    Raises:
        `ValueError`: if the text column is missing or holds something else than text, or if no row is left.
    """
    columns = check_text_column(dataset, preprocessor.text_column)
    if isinstance(dataset, IterableDataset):
        rows = dataset.map(preprocessor, batched=True, remove_columns=columns, features=preprocessor.features)
        rows = rows.filter(_has_words)
        return rows.filter(partial(_has_sentences, number=min_sentences)) if min_sentences > 1 else rows
    rows = dataset.map(
        preprocessor,
        batched=True,
        remove_columns=columns,
        features=preprocessor.features,
        num_proc=num_proc,
        load_from_cache_file=not overwrite_cache,
        desc=desc,
    )
    rows = _drop_empty(rows, num_documents=len(dataset))
    return _drop_few_sentences(rows, min_sentences) if min_sentences > 1 else rows


def dataset_statistics(dataset: Dataset, unk_token_id: int | None = None) -> dict[str, int]:
    """
    Count what prepared rows hold, at the speed of Arrow.

    Args:
        dataset: from [`prepare_dataset`], map-style.
        unk_token_id: if given, `unknown_tokens` is counted, too.

    Returns:
        `dict`: `examples`, `tokens` (words before corruption, no special tokens), `tokens_cut` (words of sentences
        longer than a window); for DEPTH also `sentences` and `one_sentence_examples` (they have no order to learn).
    """
    counts = {"examples": len(dataset), "tokens": 0, "tokens_cut": 0}
    if "sentence_lengths" in dataset.column_names:
        counts.update(sentences=0, one_sentence_examples=0)
    if unk_token_id is not None:
        counts["unknown_tokens"] = 0
    for batch in dataset.with_format("arrow").iter(batch_size=10_000):
        if unk_token_id is not None:
            counts["unknown_tokens"] += _sum(pc.equal(pc.list_flatten(batch["input_ids"]), unk_token_id))
        counts["tokens"] += _sum(pc.list_value_length(batch["input_ids"]))
        counts["tokens_cut"] += _sum(batch["num_cut_tokens"])
        if "sentences" in counts:
            num_sentences = pc.list_value_length(batch["sentence_lengths"])
            counts["sentences"] += _sum(num_sentences)
            counts["one_sentence_examples"] += _sum(pc.equal(num_sentences, 1))
    return counts


def _sum(values) -> int:
    return pc.sum(values, min_count=0).as_py()


def _has_words(row: dict[str, Any]) -> bool:
    return len(row["input_ids"]) > 0


def _has_sentences(row: dict[str, Any], number: int) -> bool:
    return len(row["sentence_lengths"]) >= number


def _drop_empty(rows: Dataset, num_documents: int) -> Dataset:
    """Drop the rows without words, each of which stands for a document that gave no example."""
    kept = _at_least(rows, "input_ids", 1)
    num_dropped = len(rows) - len(kept)
    if not len(kept):
        raise ValueError(f"None of the {num_documents:,} documents holds enough text for an example.")
    if num_dropped:
        logger.warning(f"Dropped {num_dropped:,} of {num_documents:,} documents with too little text for an example.")
        rows = rows.select(kept)
    return rows


def _drop_few_sentences(rows: Dataset, min_sentences: int) -> Dataset:
    kept = _at_least(rows, "sentence_lengths", min_sentences)
    if not len(kept):
        raise ValueError(
            f"None of the {len(rows):,} examples has `min_sentences` {min_sentences} sentences: lower it, or raise "
            "`max_source_length`."
        )
    if len(kept) < len(rows):
        num_dropped = len(rows) - len(kept)
        logger.warning(f"Left out {num_dropped:,} of {len(rows):,} examples: fewer than {min_sentences} sentences.")
        rows = rows.select(kept)
    return rows


def _at_least(rows: Dataset, column: str, length: int) -> np.ndarray:
    """The numbers of the rows whose lists in `column` have at least `length` items."""
    flags = [
        flag
        for batch in rows.with_format("arrow").iter(batch_size=10_000)
        for flag in pc.greater_equal(pc.list_value_length(batch[column]), length).to_pylist()
    ]
    return np.flatnonzero(flags)


def _texts(batch: dict[str, list], text_column: str) -> list[str]:
    """The documents of a batch, checked; a missing text is an empty one."""
    _check_texts(batch[text_column], text_column)
    return [text or "" for text in batch[text_column]]
