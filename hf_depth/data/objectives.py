"""
What a model is pre-trained on. An objective is given its noise, lengths and sentence settings once; it prepares
documents and makes the collator that fits them.

A new objective is a subclass of [`Objective`] with its settings as fields, a `preprocessor` and a `collator_class`. If
it stands in `OBJECTIVES`, the flags of the pre-training script reach it by the names of its fields.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..errors import UserError
from .base_objective import Objective
from .data_collator import DataCollatorForDepth, DataCollatorForT5SpanCorruption
from .denoisers import UL2_DENOISERS, Denoiser, denoiser_input_and_target_lengths, most_spans, parse_denoisers
from .mixture import Statistics
from .noise_lengths import (
    check_enough_sentinels,
    depth_input_and_target_lengths,
    largest_raw_length,
    noise_counts,
    prefix_lengths,
    t5_input_and_target_lengths,
)
from .packing import LengthBounds
from .preprocessing import DepthPreprocessor, SpanCorruptionPreprocessor
from .tokenization import sentence_token_ids, sentinel_token_ids

logger = logging.getLogger(__name__)


@dataclass
class _T5Objective(Objective):
    """What the objectives of T5 share: windows of tokens that are as long as both maximum lengths allow."""

    model_type = "t5"
    collator_class = DataCollatorForT5SpanCorruption

    pack_examples: bool = field(default=False, kw_only=True)

    def complete(self) -> None:
        if self.max_target_length is None:
            self.max_target_length = int(self.length_bounds()(self._raw_length())[1])

    def _raw_length(self) -> int:
        return largest_raw_length(self.length_bounds(), self.max_text_length, self.max_target_length)

    def preprocessor(self, text_column: str = "text") -> SpanCorruptionPreprocessor:
        raw_length = self._raw_length()
        self._check_sentinels(raw_length)
        settings = {"pack_examples": self.pack_examples, "units": self.units, "metadata": self.metadata_encoder}
        return SpanCorruptionPreprocessor(self.tokenizer, raw_length, text_column, **settings)

    def _check_sentinels(self, raw_length: int) -> None:
        """Stop if a window of so many tokens can have more masked spans than there are sentinels."""


@dataclass(kw_only=True)
class _DepthObjective(Objective):
    """What the objectives of DEPTH share: windows of whole sentences, which are shuffled."""

    model_type = "depth"
    collator_class = DataCollatorForDepth

    sentence_shuffling_probability: float = 0.5
    max_sentences: int | None = None
    min_sentences: int = 1
    sentence_language: str = "en"

    def complete(self) -> None:
        super().complete()
        available = len(sentence_token_ids(self.tokenizer))
        if self.max_sentences is None:
            self.max_sentences = available
        if not 2 <= self.max_sentences <= available:
            raise UserError(
                f"`max_sentences` must lie between 2 and {available}, the number of sentence tokens, got "
                f"{self.max_sentences}. For more, raise `num_sentence_tokens`."
            )
        if not 1 <= self.min_sentences <= self.max_sentences:
            raise UserError(
                f"`min_sentences` must lie between 1 and `max_sentences`={self.max_sentences}, got "
                f"{self.min_sentences}."
            )

    def preprocessor(self, text_column: str = "text") -> DepthPreprocessor:
        return DepthPreprocessor(
            self.tokenizer,
            max_source_length=self.max_text_length,
            max_target_length=self.max_target_length,
            mlm_probability=self.mlm_probability,
            mean_noise_span_length=self.mean_noise_span_length,
            max_sentences=self.max_sentences,
            text_column=text_column,
            language=self.sentence_language,
            min_sentences=self.min_sentences,
            units=self.units,
            metadata=self.metadata_encoder,
        )

    def report(self, statistics: Statistics, split: str) -> None:
        """As [`Objective.report`]; training examples of one sentence each are an error, others a warning."""
        super().report(statistics, split)
        if statistics["one_sentence_examples"] < statistics["examples"]:
            return
        message = (
            f"No example of the {split} data has more than one sentence, so there is nothing to un-shuffle. DEPTH "
            "needs documents of several sentences: check `text_column` (one document per row, not one sentence) and "
            "`sentence_language`, raise `max_source_length`, or train a T5 (`model_type` t5)."
        )
        if split == "train":
            raise UserError(message)
        logger.warning(message)


@dataclass
class DepthObjective(_DepthObjective):
    """
    DEPTH's objective (arXiv 2405.07788): span corruption and sentence un-shuffling.

    Args:
        tokenizer: with sentence tokens, see [`add_sentence_tokens`].
        max_source_length, max_target_length (`int`): longest encoder input (512) and target (by default as long) in
            tokens, special tokens included. A longer document becomes several examples, cut between sentences.
        mlm_probability (`float`, defaults to 0.3): share of the tokens to mask.
        mean_noise_span_length (`float`, defaults to 3.0): mean length of a masked span in tokens.
        pmi_vocab_file (`str`, *optional*): collocations that are masked as a whole, see [`read_pmi_vocabulary`].
        sentence_shuffling_probability (`float`, defaults to 0.5): share of the examples whose sentences are shuffled.
        max_sentences (`int`, *optional*): most sentences of an example; by default the number of sentence tokens.
        min_sentences (`int`, defaults to 1): leave out examples with fewer sentences. One sentence has no order.
        sentence_language (`str`, defaults to `"en"`): of the documents, see [`get_sentence_splitter`].
        more: packing and metadata, see [`Objective`].

    >>> from datasets import Dataset
    >>> from hf_depth import DepthObjective, add_sentence_tokens, train_tokenizer
    >>> documents = Dataset.from_dict({"text": ["The dog barked. The cat slept.", "It rained. We stayed in."]})
    >>> tokenizer = add_sentence_tokens(train_tokenizer(documents["text"], vocab_size=300, allow_fewer=True))
    >>> objective = DepthObjective(tokenizer, max_source_length=64, sentence_shuffling_probability=1.0)
    >>> batch = objective.collator(seed=0)(list(objective.prepare(documents)))
    >>> tokenizer.decode(batch["input_ids"][0])
    '<eosen><sent_5> The dog barked<extra_id_74><eosen><sent_6><extra_id_73>The c<extra_id_85>t<extra_id_7><eosen></s>'
    """

    name = "span_corruption"
    packed_examples = 2

    mlm_probability: float = 0.3
    mean_noise_span_length: float = 3.0
    pmi_vocab_file: str | None = None

    def length_bounds(self) -> LengthBounds:
        return partial(depth_input_and_target_lengths, **self._noise)


@dataclass
class DepthPrefixLMObjective(_DepthObjective):
    """
    Prefix language modelling for DEPTH: a text is cut at a random place between two sentences. The model reads those
    before, in some examples shuffled; it names them in their true order, and writes those that follow. Nothing is
    masked. An example has two sentences or more: one to read, and one to write.

    >>> from datasets import Dataset
    >>> from hf_depth import add_sentence_tokens, train_tokenizer
    >>> documents = Dataset.from_dict({"text": ["The dog barked. The cat slept. It rained."]})
    >>> tokenizer = add_sentence_tokens(train_tokenizer(documents["text"], vocab_size=300, allow_fewer=True))
    >>> objective = DepthPrefixLMObjective(tokenizer, max_source_length=64, sentence_shuffling_probability=1.0)
    >>> batch = objective.collator(seed=0)(list(objective.prepare(documents)))
    >>> tokenizer.decode(batch["input_ids"][0])
    '<eosen><sent_7> The cat slept.<eosen><sent_4> The dog barked.<eosen></s>'
    >>> tokenizer.decode(batch["labels"][0])
    '<sent_4><eosen><sent_7><eosen><sent_0> It rained.<eosen></s>'
    """

    name = "prefix_lm"
    mlm_probability = mean_noise_span_length = None

    def complete(self) -> None:
        self.min_sentences = max(self.min_sentences, 2)
        super().complete()


@dataclass
class SpanCorruptionObjective(_T5Objective):
    """
    T5's span corruption (Raffel et al. 2020, section 3.1.4), the baseline of [`DepthObjective`].

    Args:
        tokenizer: any T5 tokenizer.
        max_source_length, max_target_length (`int`): longest encoder input (512) and target in tokens; the target by
            default as long as the longest input needs.
        mlm_probability (`float`, defaults to 0.15): share of the tokens to mask.
        pack_examples (`bool`, defaults to `False`): join documents, so that all inputs have `max_source_length`
            tokens.
        more: `mean_noise_span_length` and `pmi_vocab_file` of [`DepthObjective`], packing and metadata of
            [`Objective`].

    >>> from hf_depth import SpanCorruptionObjective, train_tokenizer
    >>> tokenizer = train_tokenizer(["The dog barked at the cat."], vocab_size=300, allow_fewer=True)
    >>> SpanCorruptionObjective(tokenizer, max_source_length=512).max_target_length  # as for T5
    114
    """

    name = "span_corruption"

    mlm_probability: float = 0.15
    mean_noise_span_length: float = 3.0
    pmi_vocab_file: str | None = None

    def _check_sentinels(self, raw_length: int) -> None:
        num_spans = noise_counts(raw_length, self.mlm_probability, self.mean_noise_span_length)[1]
        check_enough_sentinels(int(num_spans), len(sentinel_token_ids(self.tokenizer)))

    def length_bounds(self) -> LengthBounds:
        return partial(t5_input_and_target_lengths, **self._noise)


@dataclass
class PrefixLMObjective(_T5Objective):
    """
    Prefix language modelling (Raffel et al. 2020, section 3.1.2): a text is cut at a random place; the model reads
    what is before it and writes what follows. Its arguments are those of [`SpanCorruptionObjective`], but for the
    noise; the target is by default as long as the input.

    >>> from datasets import Dataset
    >>> from hf_depth import PrefixLMObjective, train_tokenizer
    >>> documents = Dataset.from_dict({"text": ["The dog barked at the cat."]})
    >>> tokenizer = train_tokenizer(documents["text"], vocab_size=300, allow_fewer=True)
    >>> objective = PrefixLMObjective(tokenizer, max_source_length=64)
    >>> batch = objective.collator()(list(objective.prepare(documents)))
    >>> tokenizer.decode(batch["input_ids"][0]), tokenizer.decode(batch["labels"][0])
    ('The dog barked at the </s>', 'cat.</s>')
    """

    name = "prefix_lm"

    def complete(self) -> None:
        Objective.complete(self)  # the target is as long as the input, also where that begins with metadata

    def length_bounds(self) -> LengthBounds:
        return prefix_lengths


@dataclass
class MixtureOfDenoisersObjective(_T5Objective):
    """
    UL2's mixture of denoisers (Tay et al. 2022, arXiv 2205.05131). At each visit an example draws a denoiser, which
    says how much is masked and in what spans. Its input begins with the mode token of this denoiser.

    Args:
        tokenizer: any T5 tokenizer, with the mode tokens, see [`add_mode_tokens`].
        denoisers (`Sequence[Denoiser]`): the mixture, by default that of UL2. Each is a [`Denoiser`], or a mapping or
            YAML text with its arguments.
        mode_tokens (`bool`, defaults to `True`): whether inputs begin with a mode token.
        more: as for [`SpanCorruptionObjective`], but for the noise. Windows fit whatever denoiser is drawn.

    >>> from datasets import Dataset
    >>> from hf_depth import MixtureOfDenoisersObjective, train_tokenizer
    >>> from hf_depth.data.tokenization import add_mode_tokens
    >>> documents = Dataset.from_dict({"text": ["The dog barked at the cat."]})
    >>> tokenizer = train_tokenizer(documents["text"], vocab_size=300, allow_fewer=True)
    >>> objective = MixtureOfDenoisersObjective(add_mode_tokens(tokenizer, ["[R]", "[S]", "[X]"]))
    >>> batch = objective.collator()(list(objective.prepare(documents)))
    >>> tokenizer.decode(batch["input_ids"][0]), tokenizer.decode(batch["labels"][0])
    ('[R] The dog barked at the<extra_id_0></s>', '<extra_id_0> cat.</s>')
    """

    name = "mixture_of_denoisers"

    denoisers: Sequence[Denoiser] = UL2_DENOISERS
    mode_tokens: bool = True

    def __post_init__(self):
        self.denoisers = parse_denoisers(self.denoisers)
        super().__post_init__()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by their names, without the tokenizer; denoisers as text."""
        return super().settings | {"denoisers": list(map(str, self.denoisers))}

    def _check_sentinels(self, raw_length: int) -> None:
        num_spans, num_sentinels = most_spans(raw_length, self.denoisers), len(sentinel_token_ids(self.tokenizer))
        remedy = "Raise the `mean_length` of `denoisers`, lower their `density`"
        check_enough_sentinels(num_spans, num_sentinels, remedy=remedy)

    def length_bounds(self) -> LengthBounds:
        return partial(denoiser_input_and_target_lengths, denoisers=self.denoisers, mode_tokens=self.mode_tokens)


OBJECTIVES: dict[tuple[str, str], type[Objective]] = {
    (objective.model_type, objective.name): objective
    for objective in (
        DepthObjective,
        DepthPrefixLMObjective,
        SpanCorruptionObjective,
        PrefixLMObjective,
        MixtureOfDenoisersObjective,
    )
}
