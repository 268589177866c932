"""
From rows of word ids to padded tensors: T5 span corruption, prefix language modelling, and DEPTH.

What a collator draws is a function of (seed, epoch, the example's own words). The number of workers and processes, the
batch that an example lands in, and its place in it change nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from .corruption import (
    ExampleRandom,
    check_enough_sentinels,
    corrupt_depth,
    corrupt_t5,
    depth_input_and_target_lengths,
    depth_noise_counts,
    example_keys,
    noise_counts,
    split_prefix,
    t5_input_and_target_lengths,
)
from .tokenization import eosen_token_id, sentence_token_ids, sentinel_token_ids


@dataclass
class _CorruptionCollator:
    """What both collators share: arguments, the way from rows to flat arrays, and the way from there to tensors."""

    tokenizer: PreTrainedTokenizerBase
    mlm_probability: float = 0.15
    mean_noise_span_length: float = 3.0
    max_source_length: int | None = None
    max_target_length: int | None = None
    padding: bool | str = "longest"
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    seed: int = 42

    # Shared memory, so that `set_epoch` reaches data loader workers that are already running.
    _epoch: torch.Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._check_arguments()
        self._sentinel_ids = sentinel_token_ids(self.tokenizer)
        # Ids that no word may have, as a table over the vocabulary.
        self._is_special = np.zeros(len(self.tokenizer), dtype=bool)
        self._is_special[[self.tokenizer.eos_token_id, self.tokenizer.pad_token_id]] = True
        self._is_special[self._sentinel_ids] = True

    def set_epoch(self, epoch: int):
        """Draw anew: the same example gets another corruption in every epoch. Also reaches running workers."""
        self._epoch.fill_(int(epoch))

    def __call__(self, examples: Sequence[Mapping]) -> dict[str, torch.Tensor]:
        """
        Args:
            examples (`list` of `dict`): rows with `input_ids`, the words' ids without any special token, as a list or
                an array (faster: `dataset.with_format("numpy")`); with `sentence_lengths` for DEPTH; with
                    `num_cut_tokens` if the
                number of cut tokens is to be counted. Other columns are ignored.

        Returns:
            `dict`: `input_ids` (B, S) int64, `attention_mask` (B, S) bool, `labels` (B, T) int64 padded with
            `label_pad_token_id`, and `num_cut_tokens` (B,) int64 if the rows have it.

        Raises:
            `ValueError`: if a row breaks this contract, or does not fit into the maximal lengths.
        """
        token_ids, lengths = self._words(examples)
        random = ExampleRandom(example_keys(token_ids, lengths, self.seed, self._epoch.item()))
        (input_ids, input_lengths), (labels, label_lengths) = self._corrupt(examples, token_ids, lengths, random)

        width = self._width(input_lengths, self.max_source_length)
        label_width = self._width(label_lengths, self.max_target_length)
        batch = {
            "input_ids": _pad(input_ids, input_lengths, width, self.tokenizer.pad_token_id),
            "attention_mask": np.arange(width) < input_lengths[:, None],
            "labels": _pad(labels, label_lengths, label_width, self.label_pad_token_id),
        }
        if "num_cut_tokens" in examples[0]:
            batch["num_cut_tokens"] = np.array([example["num_cut_tokens"] for example in examples], dtype=np.int64)
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    def _corrupt(self, examples, token_ids, lengths, random):
        """Returns `((input_ids, input_lengths), (labels, label_lengths))`, rows one after the other."""
        raise NotImplementedError

    def _words(self, examples):
        """The rows' words, one row after the other, and their number per row."""
        token_ids, lengths = _flatten(examples, "input_ids")
        # As unsigned numbers, negative ids are too large as well.
        is_wrong = token_ids.view(np.uint64) >= len(self._is_special)
        if is_wrong.any() or self._is_special[token_ids].any():
            row = np.repeat(np.arange(len(lengths)), lengths)
            place = np.argmax(is_wrong) if is_wrong.any() else np.argmax(self._is_special[token_ids])
            raise ValueError(
                f"Row {row[place]} of the batch has the id {token_ids[place]} in `input_ids`, which is not a word's: "
                f"words have ids from 0 to {len(self._is_special) - 1} other than those of padding, `</s>` and "
                "sentinels (and, for DEPTH, sentence tokens). Tokenize with the collator's tokenizer and without "
                "special tokens, as `hf_depth.tokenization.encode_texts` does."
            )
        return token_ids, lengths

    def _check_lengths(self, lengths, input_lengths, label_lengths):
        """Nothing is ever truncated: rows that do not fit are an error."""
        limits = (("max_source_length", input_lengths), ("max_target_length", label_lengths))
        for name, needed in limits:
            limit = getattr(self, name)
            if limit is not None and needed.max() > limit:
                row = int(needed.argmax())
                raise ValueError(
                    f"Row {row} of the batch, {lengths[row]} words, can need {needed[row]} tokens after corruption, "
                    f"more than `{name}`={limit}. Cut the documents into windows for the same lengths, "
                    f"`mlm_probability` and `mean_noise_span_length` as the collator's (see hf_depth.preprocessing), "
                    f"or raise `{name}`."
                )

    def _width(self, lengths, max_length):
        width = max_length if self.padding == "max_length" else lengths.max()
        multiple = self.pad_to_multiple_of or 1
        return int(-(-width // multiple) * multiple)

    def _check_arguments(self):
        for name in ("eos_token", "pad_token"):
            if getattr(self.tokenizer, f"{name}_id") is None:
                raise ValueError(f"The tokenizer has no `{name}`, which a T5 tokenizer has. Use a T5 tokenizer, or set one.")
        if not 0 < self.mlm_probability < 1:
            raise ValueError(
                f"`mlm_probability` must lie between 0 and 1 (both excluded), got {self.mlm_probability}. "
                "It is the share of the words to hide; T5 uses 0.15, DEPTH 0.3."
            )
        if self.mean_noise_span_length < 1:
            raise ValueError(
                f"`mean_noise_span_length` must be at least 1, got {self.mean_noise_span_length}. "
                "It is counted in tokens; the T5 default is 3.0."
            )
        self.padding = {True: "longest"}.get(self.padding, self.padding)
        if self.padding not in ("longest", "max_length"):
            raise ValueError(f'`padding` must be "longest" or "max_length", got {self.padding!r}.')
        if self.padding == "max_length" and None in (self.max_source_length, self.max_target_length):
            raise ValueError(
                '`padding="max_length"` needs `max_source_length` and `max_target_length`, got '
                f"{self.max_source_length} and {self.max_target_length}."
            )
        if self.pad_to_multiple_of is not None and self.pad_to_multiple_of < 1:
            raise ValueError(f"`pad_to_multiple_of` must be at least 1, got {self.pad_to_multiple_of}.")
        if self.label_pad_token_id >= 0:
            raise ValueError(
                f"`label_pad_token_id` must be negative, got {self.label_pad_token_id}: an id of the vocabulary would "
                "count padding in the loss. PyTorch ignores -100."
            )


@dataclass
class DataCollatorForT5SpanCorruption(_CorruptionCollator):
    """
    T5's pre-training objectives: spans of words are replaced by sentinels, and the target lists what they hide; or
    (`objective="prefix_lm"`) the target is the rest of the text.

    Args:
        tokenizer: a T5 tokenizer.
        mlm_probability (`float`, defaults to 0.15): share of the words to hide.
        mean_noise_span_length (`float`, defaults to 3.0): words per hidden span, at least 1.
        max_source_length, max_target_length (`int`, *optional*): a row that needs more is an error, never truncated.
        padding (`bool` or `str`, defaults to `"longest"`): `True` or `"longest"` pads to the longest row of the batch,
            `"max_length"` to the two maximal lengths.
        pad_to_multiple_of (`int`, *optional*): round both widths up.
        label_pad_token_id (`int`, defaults to -100): negative; ignored by the loss.
        seed (`int`, defaults to 42): with the epoch and an example's words, decides what is drawn for the example.
        objective (`str`, defaults to `"span_corruption"`): or `"prefix_lm"`, where `mlm_probability` and
            `mean_noise_span_length` have no effect and every place to cut a row is equally likely.

    Rows have at least 2 words. With `t5_raw_length` words per row nothing but the last row of a document is padded.
    """

    objective: str = "span_corruption"

    def __post_init__(self):
        super().__post_init__()
        if self.objective not in ("span_corruption", "prefix_lm"):
            raise ValueError(f'`objective` must be "span_corruption" or "prefix_lm", got {self.objective!r}.')

    def _corrupt(self, examples, token_ids, lengths, random):
        if lengths.min() < 2:
            raise ValueError(
                f"Row {int(lengths.argmin())} of the batch has a single word in `input_ids`; at least 2 are needed, "
                "one to show and one to hide. Join it to its neighbour or leave it out."
            )
        eos_token_id = self.tokenizer.eos_token_id
        if self.objective == "prefix_lm":
            self._check_lengths(lengths, lengths, lengths)  # the longest prefix or rest is one word short, and gets </s>
            return split_prefix(token_ids, lengths, eos_token_id, random)
        noise = (self.mlm_probability, self.mean_noise_span_length)
        self._check_lengths(lengths, *t5_input_and_target_lengths(lengths, *noise))
        num_noise, num_spans = noise_counts(lengths, *noise)
        return corrupt_t5(token_ids, lengths, num_noise, num_spans, self._sentinel_ids, eos_token_id, random)


@dataclass
class DataCollatorForDepth(_CorruptionCollator):
    """
    DEPTH's pre-training objective (arXiv 2405.07788): span corruption within sentences, and sentences to be put in
    order.

    An input is `<eosen> <sent_a> words <eosen> <sent_b> words <eosen> … </s>`, its sentences in a random order in some
    examples; the target names the sentences in their true order, each with its hidden spans. Sentence tokens and
    sentinels are random draws without replacement for every (example, epoch), which do not depend on whether the
    example is shuffled.

    Args:
        tokenizer: a T5 tokenizer with sentence tokens, see [`add_sentence_tokens`].
        mlm_probability (`float`, defaults to 0.3): share of the words to hide.
        mean_noise_span_length (`float`, defaults to 3.0): words per hidden span, at least 1, after cutting the spans
            at the ends of sentences.
        max_source_length, max_target_length (`int`, *optional*): a row that can need more is an error, never
            truncated.
        padding (`bool` or `str`, defaults to `"longest"`): `True` or `"longest"` pads to the longest row of the batch,
            `"max_length"` to the two maximal lengths.
        pad_to_multiple_of (`int`, *optional*): round both widths up.
        label_pad_token_id (`int`, defaults to -100): negative; ignored by the loss.
        seed (`int`, defaults to 42): with the epoch and an example's words, decides what is drawn for the example.
        sentence_shuffling_probability (`float`, defaults to 0.5): share of the examples with permuted sentences.

    Rows have a column `sentence_lengths`: words of every sentence, which add up to the length of `input_ids`.
    """

    mlm_probability: float = 0.3
    sentence_shuffling_probability: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.sentence_shuffling_probability <= 1:
            raise ValueError(
                f"`sentence_shuffling_probability` must lie between 0 and 1, got "
                f"{self.sentence_shuffling_probability}."
            )
        self._sentence_token_ids = sentence_token_ids(self.tokenizer)
        self._eosen_token_id = eosen_token_id(self.tokenizer)
        self._is_special[self._sentence_token_ids] = True
        self._is_special[self._eosen_token_id] = True

    def _corrupt(self, examples, token_ids, lengths, random):
        sentence_lengths, num_sentences = self._sentences(examples, lengths)
        noise = (self.mlm_probability, self.mean_noise_span_length)
        self._check_lengths(lengths, *depth_input_and_target_lengths(lengths, num_sentences, *noise))
        num_noise, num_spans, most_cuts = depth_noise_counts(lengths, num_sentences, *noise)
        # The most spans, not those drawn: an example passes in every epoch or in none.
        check_enough_sentinels(num_spans + most_cuts, self._sentinel_ids)
        return corrupt_depth(
            token_ids,
            sentence_lengths,
            num_sentences,
            num_noise,
            num_spans,
            self._sentinel_ids,
            self._sentence_token_ids,
            self._eosen_token_id,
            self.tokenizer.eos_token_id,
            self.sentence_shuffling_probability,
            random,
        )

    def _sentences(self, examples, lengths):
        """Words of every sentence, one row after the other, and the number of sentences per row."""
        if "sentence_lengths" not in examples[0]:
            raise ValueError(
                f"DEPTH needs the column `sentence_lengths`, the rows have {sorted(examples[0])}. Prepare the data "
                "set with `hf_depth.preprocessing.DepthPreprocessor`, and set `remove_unused_columns=False` in the "
                "training arguments: the Trainer drops columns that the model's `forward` does not name."
            )
        sentence_lengths, num_sentences = _flatten(examples, "sentence_lengths")
        if sentence_lengths.min() < 1:
            raise ValueError("An entry of `sentence_lengths` is less than 1. Leave empty sentences out.")
        totals = np.add.reduceat(sentence_lengths, np.cumsum(num_sentences) - num_sentences)
        if (totals != lengths).any():
            row = int(np.argmax(totals != lengths))
            raise ValueError(
                f"`sentence_lengths` of row {row} of the batch add up to {totals[row]}, but its `input_ids` has "
                f"{lengths[row]} words. Change both together, or neither."
            )
        if num_sentences.max() > len(self._sentence_token_ids):
            row = int(num_sentences.argmax())
            raise ValueError(
                f"Row {row} of the batch has {num_sentences[row]} sentences, but the tokenizer has "
                f"{len(self._sentence_token_ids)} sentence tokens. Make windows of fewer sentences (`max_sentences` "
                "of the preprocessor), or add more sentence tokens."
            )
        return sentence_lengths, num_sentences


def _flatten(examples, column):
    """One column of the rows as `(values, lengths)`: int64, the rows one after the other, and their lengths."""
    rows = [example[column] for example in examples]
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    if lengths.min() == 0:
        raise ValueError(f"`{column}` of row {int(lengths.argmin())} of the batch is empty. Leave empty rows out.")
    if isinstance(rows[0], list):
        return np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum()), lengths
    return np.concatenate(rows).astype(np.int64, copy=False), lengths


def _pad(values, lengths, width, padding_value):
    """Rows one after the other -> a matrix of shape `(batch_size, width)`."""
    padded = np.full((len(lengths), width), padding_value)
    padded[np.arange(width) < lengths[:, None]] = values
    return padded
