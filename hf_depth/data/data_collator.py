"""
Rows of word ids -> padded tensors, for T5 span corruption, prefix language modelling and DEPTH.

What a collator draws is a function of (seed, epoch, the example's own words). The number of workers and processes, the
batch that an example is part of and its place in it change nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from .corruption import (
    ExampleRandom,
    Ragged,
    SpecialIds,
    check_noise,
    corrupt_depth,
    corrupt_t5,
    depth_input_and_target_lengths,
    example_keys,
    split_prefix,
    t5_input_and_target_lengths,
)
from .tokenization import eosen_token_id, sentence_token_ids, sentinel_token_ids


@dataclass
class _CorruptionCollator:
    """What the collators share: arguments, the way from rows to flat arrays, and from there to tensors."""

    tokenizer: PreTrainedTokenizerBase
    mlm_probability: float = 0.15
    mean_noise_span_length: float = 3.0
    max_source_length: int | None = None
    max_target_length: int | None = None
    padding: bool | str = "longest"
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    seed: int = 42

    def __post_init__(self):
        self._check_arguments()
        # In shared memory, so that `set_epoch` reaches the workers of a data loader that are already running.
        self._epoch = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._special_ids = self._get_special_ids()
        # Which ids no word can have, as a table over the vocabulary; the last entry stands for all larger ids.
        self._is_special = np.zeros(len(self.tokenizer) + 1, dtype=bool)
        self._is_special[np.hstack([self.tokenizer.pad_token_id, *self._special_ids, -1])] = True

    def __setstate__(self, state: dict):
        self.__dict__.update(state)
        self._epoch.share_memory_()  # which a copy is not by itself

    def set_epoch(self, epoch: int):
        """Draw anew: in every epoch an example is corrupted in another way. Reaches running workers, too."""
        self._epoch.fill_(int(epoch))

    def __call__(self, examples: Sequence[Mapping]) -> dict[str, torch.Tensor]:
        """
        Args:
            examples (`Sequence[Mapping]`): rows with `input_ids`, words without special tokens, as a list or (faster,
                see `Dataset.with_format("numpy")`) an array; for DEPTH also `sentence_lengths`. `num_cut_tokens` is
                passed on if it is there, other columns are left out.

        Returns:
            `dict[str, torch.Tensor]`: `input_ids` (B, S) int64, `attention_mask` (B, S) bool, `labels` (B, T) int64
            padded with `label_pad_token_id`; `num_cut_tokens` (B,) int64 if the rows have it.

        Raises:
            `ValueError`: if a row is not as described, needs more sentinels than there are, or does not fit.
        """
        token_ids, lengths = self._get_words(examples)
        random = ExampleRandom(example_keys(token_ids, lengths, self.seed, self._epoch.item()))
        inputs, targets = self._corrupt(examples, token_ids, lengths, random)
        input_ids, attention_mask = self._pad(inputs, self.max_source_length, self.tokenizer.pad_token_id)
        labels, _ = self._pad(targets, self.max_target_length, self.label_pad_token_id)
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        if "num_cut_tokens" in examples[0]:
            batch["num_cut_tokens"] = np.array([example["num_cut_tokens"] for example in examples], dtype=np.int64)
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    def _get_special_ids(self) -> SpecialIds:
        return SpecialIds(self.tokenizer.eos_token_id, sentinel_token_ids(self.tokenizer))

    def _corrupt(
        self, examples: Sequence[Mapping], token_ids: np.ndarray, lengths: np.ndarray, random: ExampleRandom
    ) -> tuple[Ragged, Ragged]:
        """Inputs and targets of the rows."""
        raise NotImplementedError

    def _get_words(self, examples: Sequence[Mapping]) -> Ragged:
        token_ids, lengths = _flatten(examples, "input_ids")
        is_wrong = self._is_special.take(token_ids, mode="clip") | (token_ids < 0)
        if is_wrong.any():
            place = int(is_wrong.argmax())
            row = int(np.searchsorted(np.cumsum(lengths), place, side="right"))
            raise ValueError(
                f"Row {row} of the batch has {token_ids[place]} in `input_ids`, which is not the id of a word. The "
                f"vocabulary has {len(self.tokenizer)} ids; padding, `</s>`, sentinels and sentence tokens are added "
                "here. Tokenize with the collator's tokenizer, as `hf_depth.data.tokenization.TextEncoder` does."
            )
        return token_ids, lengths

    def _check_lengths(self, lengths, input_lengths, target_lengths):
        for name, needed in (("max_source_length", input_lengths), ("max_target_length", target_lengths)):
            limit = getattr(self, name)
            if limit is not None and needed.max() > limit:
                row = int(needed.argmax())
                raise ValueError(
                    f"Row {row} of the batch has {lengths[row]} words, which can take {needed[row]} tokens after "
                    f"corruption, but `{name}` is {limit}. Make windows for the lengths, `mlm_probability` and "
                    f"`mean_noise_span_length` of the collator (see hf_depth.preprocessing), or raise `{name}`."
                )

    def _pad(self, rows: Ragged, max_length: int | None, padding_value: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows -> matrix of shape `(batch_size, width)`, and a mask that is `True` where it is not padding."""
        values, lengths = rows
        width = int(max_length if self.padding == "max_length" else lengths.max())
        if self.pad_to_multiple_of is not None:
            width += -width % self.pad_to_multiple_of
        mask = np.arange(width) < lengths[:, None]
        if len(values) == mask.size:
            return values.reshape(mask.shape), mask
        padded = np.full(mask.shape, padding_value)
        padded[mask] = values
        return padded, mask

    def _check_arguments(self):
        for name in ("eos_token", "pad_token"):
            if getattr(self.tokenizer, name) is None:
                raise ValueError(f"The tokenizer has no `{name}`. Use a T5 tokenizer, or set `tokenizer.{name}`.")
        check_noise(self.mlm_probability, self.mean_noise_span_length)
        if self.padding not in (True, "longest", "max_length"):
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
                f"`label_pad_token_id` must be negative, got {self.label_pad_token_id}: the loss would count padding "
                "as if it were text. PyTorch ignores -100."
            )


@dataclass
class DataCollatorForT5SpanCorruption(_CorruptionCollator):
    """
    T5's objective: in the input a sentinel stands for every hidden span, the target lists sentinels and spans. Or,
    with `objective="prefix_lm"`: the input is the beginning of the text, the target is the rest.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]): with `<extra_id_0>`, `<extra_id_1>`, …
        mlm_probability (`float`, defaults to 0.15): share of the words to hide.
        mean_noise_span_length (`float`, defaults to 3.0): words per hidden span, at least 1.
        max_source_length, max_target_length (`int`, *optional*): a row that takes more tokens is an error; nothing is
            truncated.
        padding (`bool` or `str`, defaults to `"longest"`): `True` or `"longest"` for the longest row of the batch,
            `"max_length"` for the two maximal lengths.
        pad_to_multiple_of (`int`, *optional*): makes both widths a multiple of this number.
        label_pad_token_id (`int`, defaults to -100): negative; the loss ignores it.
        seed (`int`, defaults to 42): together with the epoch and an example's words it decides what is drawn for it.
        objective (`str`, defaults to `"span_corruption"`): or `"prefix_lm"`, which needs neither `mlm_probability` nor
            `mean_noise_span_length`; all places to cut the text are equally likely.

    Rows need at least two words. If all have [`t5_raw_length`] words, nothing is padded.
    """

    objective: str = "span_corruption"

    def _corrupt(self, examples, token_ids, lengths, random):
        if lengths.min() < 2:
            raise ValueError(
                f"Row {int(lengths.argmin())} of the batch has a single word in `input_ids`, but one to show and one "
                "to hide are needed. Join it to another row, or leave it out."
            )
        if self.objective == "prefix_lm":
            self._check_lengths(lengths, lengths, lengths)  # the longest part lacks one word and has `</s>`
            return split_prefix(token_ids, lengths, self._special_ids, random)
        noise = (self.mlm_probability, self.mean_noise_span_length)
        self._check_lengths(lengths, *t5_input_and_target_lengths(lengths, *noise))
        return corrupt_t5(token_ids, lengths, *noise, self._special_ids, random)

    def _check_arguments(self):
        super()._check_arguments()
        if self.objective not in ("span_corruption", "prefix_lm"):
            raise ValueError(f'`objective` must be "span_corruption" or "prefix_lm", got {self.objective!r}.')


@dataclass
class DataCollatorForDepth(_CorruptionCollator):
    """
    DEPTH's objective (arXiv 2405.07788): fill in hidden spans, and name the sentences of a text in their true order.

    An input is `<eosen> <sent_a> words <eosen> <sent_b> words <eosen> … </s>`, in some examples with its sentences in
    a random order; the target is `<sent_a> spans <eosen> <sent_b> spans <eosen> … </s>` in the true order. Sentence
    tokens and sentinels are drawn anew, without replacement, for every example and epoch. Whether an example is
    shuffled changes nothing else about it.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]): with sentence tokens, see [`add_sentence_tokens`].
        mlm_probability (`float`, defaults to 0.3): share of the words to hide.
        mean_noise_span_length (`float`, defaults to 3.0): words per hidden span, at least 1. No span reaches beyond
            the end of a sentence.
        max_source_length, max_target_length (`int`, *optional*): a row that can take more tokens (the number of spans
            is random) is an error; nothing is truncated.
        padding (`bool` or `str`, defaults to `"longest"`): `True` or `"longest"` for the longest row of the batch,
            `"max_length"` for the two maximal lengths.
        pad_to_multiple_of (`int`, *optional*): makes both widths a multiple of this number.
        label_pad_token_id (`int`, defaults to -100): negative; the loss ignores it.
        seed (`int`, defaults to 42): together with the epoch and an example's words it decides what is drawn for it.
        sentence_shuffling_probability (`float`, defaults to 0.5): share of the examples to shuffle.

    Rows have a column `sentence_lengths`, the words of each sentence; together they make up `input_ids`.
    """

    mlm_probability: float = 0.3
    sentence_shuffling_probability: float = 0.5

    def _get_special_ids(self):
        tokens = super()._get_special_ids()
        return tokens._replace(sentences=sentence_token_ids(self.tokenizer), eosen=eosen_token_id(self.tokenizer))

    def _corrupt(self, examples, token_ids, lengths, random):
        sentence_lengths, num_sentences = self._get_sentences(examples, lengths)
        noise = (self.mlm_probability, self.mean_noise_span_length)
        self._check_lengths(lengths, *depth_input_and_target_lengths(lengths, num_sentences, *noise))
        return corrupt_depth(
            token_ids,
            sentence_lengths,
            num_sentences,
            *noise,
            self.sentence_shuffling_probability,
            self._special_ids,
            random,
        )

    def _get_sentences(self, examples: Sequence[Mapping], lengths: np.ndarray) -> Ragged:
        if "sentence_lengths" not in examples[0]:
            raise ValueError(
                f"The rows have no column `sentence_lengths`, only {sorted(examples[0])}. Prepare the data set with "
                "`hf_depth.data.preprocessing.DepthPreprocessor`, and pass `remove_unused_columns=False` to the "
                "training arguments: otherwise the Trainer drops what the model's `forward` does not name."
            )
        sentence_lengths, num_sentences = _flatten(examples, "sentence_lengths")
        available = len(self._special_ids.sentences)
        if num_sentences.max() > available:
            row = int(num_sentences.argmax())
            raise ValueError(
                f"Row {row} of the batch has {num_sentences[row]} sentences, but the tokenizer has {available} "
                "sentence tokens. Make windows of fewer sentences, or add more tokens (`add_sentence_tokens`)."
            )
        totals = np.add.reduceat(sentence_lengths, np.cumsum(num_sentences) - num_sentences)
        if sentence_lengths.min() < 1 or (totals != lengths).any():
            row = int((totals != lengths).argmax())
            raise ValueError(
                "`sentence_lengths` must be at least 1 and add up to the number of words in `input_ids`. The smallest "
                f"is {sentence_lengths.min()}; those of row {row} of the batch add up to {totals[row]}, for "
                f"{lengths[row]} words. Change both columns together."
            )
        return sentence_lengths, num_sentences

    def _check_arguments(self):
        super()._check_arguments()
        if not 0 <= self.sentence_shuffling_probability <= 1:
            raise ValueError(
                "`sentence_shuffling_probability` must be a number from 0 to 1, got "
                f"{self.sentence_shuffling_probability}."
            )


def _flatten(examples: Sequence[Mapping], column: str) -> Ragged:
    """One column of the rows, as int64."""
    rows = [example[column] for example in examples]
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    if lengths.min() == 0:
        raise ValueError(f"Row {int(lengths.argmin())} of the batch has nothing in `{column}`. Leave empty rows out.")
    if isinstance(rows[0], list):
        return np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum()), lengths
    return np.concatenate(rows).astype(np.int64, copy=False), lengths
