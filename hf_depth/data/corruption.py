"""
Noise functions for pre-training: pure numpy, a whole batch per call, no Python loop over tokens or examples.

Sequences of different lengths are a ragged batch, a pair `(values, lengths)`: `values` of shape `(lengths.sum(),)`
holds the sequences one after the other without padding, `lengths` of shape `(batch_size,)` says how long each is. Ids
and lengths are int64. "Tokens" are those of the text; special tokens are called by their names, and are never masked.

Randomness comes in as an [`ExampleRandom`], which draws for every example from a key of its own. What happens to an
example depends neither on the other examples of the batch nor on their number.
"""

import math
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

# A ragged batch: the values of all sequences one after the other, and the length of each sequence.
Ragged = tuple[np.ndarray, np.ndarray]
# Lengths and counts: one number, or one per example.
Count = int | np.ndarray

# SplitMix64: the step of its counter, and its output function (variant 13 of Stafford).
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
# Any odd number other than the step keeps the streams of one example apart. This one is the factor of Knuth's MMIX
# generator (TAOCP 2, 3.3.4); it is also the base of the polynomials in `example_keys`.
_KNUTH = 6364136223846793005
_LARGEST_DRAW = np.uint32(2**32 - 1)
_LONG_RUN = 6  # elements on average, see `_copy_runs`
# The length of a unit within its key, see `_unit_keys`.
_SIZE_SHIFT, _LARGEST_SIZE = np.uint64(24), np.uint64(255)

# Beyond these, hardly any token would be masked, or hardly any left to go by.
MIN_NOISE_DENSITY, MAX_NOISE_DENSITY = 0.001, 0.999
# Most tokens of a unit that is masked as a whole. Windows leave room for one of them.
MAX_UNIT_LENGTH = 12


class SpecialIds(NamedTuple):
    """Ids of the special tokens that corruption adds to a text; the last two are for DEPTH alone."""

    eos: int  # `</s>`
    sentinels: np.ndarray  # (num_sentinels,): `<extra_id_0>`, `<extra_id_1>`, …
    sentences: np.ndarray = np.array([], np.int64)  # (num_sentence_tokens,): `<sent_0>`, …
    eosen: int = -1  # `<eosen>`


class Draw(IntEnum):
    """What random bits are for. Each purpose has a stream of its own, so that no draw shifts another."""

    KEPT_SPANS = 1
    NOISE_SPANS = 2
    SENTINELS = 3
    SENTENCE_TOKENS = 4
    IS_SHUFFLED = 5
    SENTENCE_ORDER = 6
    PREFIX = 7
    NOISE_ORDER = 8
    METADATA = 16
    DENOISER = 21
    SUFFIX = 22
    UNIT_STARTS = 23
    UNIT_SPEEDS = 24
    UNIT_ORDER = 25
    LAST_UNIT = 26


class ExampleRandom:
    """
    Counter-based random numbers: the i-th number of an example is a hash of its key, the purpose and i.

    Args:
        keys (`np.ndarray` of shape `(batch_size,)`, uint64): from [`example_keys`].

    Source: SplitMix64 of Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators", with one
    stream per key and purpose.
    """

    def __init__(self, keys: np.ndarray):
        self.keys = keys

    def bits(self, purpose: Draw, width: int) -> np.ndarray:
        """Random bits: uint32, shape `(batch_size, width)`. A larger `width` adds columns and changes none."""
        streams = _mix(self.keys + np.uint64(purpose * _KNUTH % 2**64))  # (batch_size,)
        steps = np.arange(1, (width + 1) // 2 + 1, dtype=np.uint64) * _GOLDEN_GAMMA  # ((width + 1) // 2,)
        # Each number of 64 bits is two of 32 bits.
        return _mix(streams[:, None] + steps).view(np.uint32)[:, :width]

    def uniform(self, purpose: Draw) -> np.ndarray:
        """Uniform random numbers: float64 in [0, 1), shape `(batch_size,)`."""
        return self.bits(purpose, 1)[:, 0] * 2.0**-32

    def permutations(self, purpose: Draw, size: int) -> np.ndarray:
        """Random orders of the numbers below `size`: uint32, shape `(batch_size, size)`."""
        # Sorting (random high bits | number) is faster than argsort, and no two of the sorted numbers are equal.
        low_bits = np.uint32(2 ** (size - 1).bit_length() - 1)
        numbers = np.arange(size, dtype=np.uint32)  # (size,)
        return np.sort(self.bits(purpose, size) & ~low_bits | numbers, axis=1) & low_bits


def check_noise(mlm_probability: float, mean_noise_span_length: float) -> None:
    """
    Check the two parameters of span corruption.

    Args:
        mlm_probability (`float`): share of the tokens to mask, from 0.001 to 0.999.
        mean_noise_span_length (`float`): mean length of a masked span in tokens; finite, at least 1.

    Raises:
        `ValueError`: if one of them is out of range. The message names the argument, its value and the range.

    >>> check_noise(mlm_probability=0.15, mean_noise_span_length=3.0)
    >>> check_noise(mlm_probability=15, mean_noise_span_length=3.0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: `mlm_probability` must be between 0.001 and 0.999, got 15. It is the share of the tokens to mask: ...
    """
    if not MIN_NOISE_DENSITY <= mlm_probability <= MAX_NOISE_DENSITY:
        raise ValueError(
            f"`mlm_probability` must be between {MIN_NOISE_DENSITY} and {MAX_NOISE_DENSITY}, got {mlm_probability}. "
            "It is the share of the tokens to mask: T5 uses 0.15, DEPTH 0.3."
        )
    if not 1 <= mean_noise_span_length < math.inf:
        raise ValueError(
            f"`mean_noise_span_length` must be at least 1 and finite, got {mean_noise_span_length}. It is counted in "
            "tokens; the T5 default is 3.0."
        )


def example_keys(token_ids: np.ndarray, lengths: np.ndarray, seed: int, epoch: int | np.ndarray) -> np.ndarray:
    """
    One key per example, a hash of seed, epoch and the example's own tokens.

    An example is identified by its content, so that map-style data sets, streams, shards, workers and processes agree
    on its key without an index column. Two examples with the same tokens get the same noise within an epoch.

    Args:
        token_ids (`np.ndarray` of shape `(lengths.sum(),)`, int64): tokens of all examples.
        lengths (`np.ndarray` of shape `(batch_size,)`, int64): tokens per example, at least 1.
        seed (`int`): the seed of the run.
        epoch (`int` or `np.ndarray` of shape `(batch_size,)`, int64): how often the data set has been read before.

    Returns:
        `np.ndarray` of shape `(batch_size,)`, uint64.

    Source: polynomial hashing (Carter and Wegman, 1979), modulo 2^64 and scrambled.
    """
    # The sum of token * base^place runs over places in the batch. Dividing by base^(first place of the example), which
    # an odd base allows modulo 2^64, turns them into places in the example.
    # Rounded up to powers of two, there are few different tables to keep.
    powers, inverse_powers = _powers(2 ** len(token_ids).bit_length())  # (>= len(token_ids),) each
    starts = _starts(lengths)  # (batch_size,)
    sums = np.add.reduceat(token_ids.view(np.uint64) * powers[: len(token_ids)], starts) * inverse_powers[starts]
    epochs = np.atleast_1d(np.asarray(epoch, dtype=np.int64)).view(np.uint64)  # (1,) or (batch_size,)
    run = _mix(np.array([seed % 2**64], np.uint64)) + epochs * _GOLDEN_GAMMA  # likewise
    return _mix(_mix(sums + lengths.astype(np.uint64) * _GOLDEN_GAMMA) ^ _mix(run))


def noise_counts(
    num_tokens: Count, noise_density: float | np.ndarray, mean_noise_span_length: float | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """
    How many tokens of a T5 example are masked, and in how many spans.

    Args:
        num_tokens (`int` or `np.ndarray` of any shape): tokens of the example, at least 1. A lone token is not masked.
        noise_density (`float` or an array of that shape): share of the tokens to mask, see [`check_noise`].
        mean_noise_span_length (`float` or an array of that shape): mean length of a masked span in tokens, at least 1.

    Returns:
        Two arrays of the shape of `num_tokens`, int64: the number of masked tokens, and of masked spans (at least 1,
        which is empty for a lone token).

    Source: Raffel et al. (2020), section 3.1.4, and `random_spans_noise_mask` of their code. Unlike there, spans never
    outnumber the kept tokens that set them apart.
    """
    num_tokens = np.asarray(num_tokens)
    num_noise = np.rint(num_tokens * noise_density).astype(np.int64)
    num_noise = np.minimum(np.maximum(num_noise, 1), num_tokens - 1)
    return num_noise, _whole_spans(num_noise / mean_noise_span_length, num_tokens, num_noise)


def depth_noise_counts(
    num_tokens: Count, num_sentences: Count, noise_density: float, mean_noise_span_length: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    How many tokens of a DEPTH example are masked, in how many spans, and how many of these can be cut.

    A span that runs into the next sentence is cut in two there. `num_noise - num_spans` of the `num_tokens - 1` places
    between two tokens are inside a span, so that a random mask leads to about `(num_sentences - 1) * (num_noise -
    num_spans) / (num_tokens - 1)` cuts. `num_spans` is the number that gives the requested mean length after cutting.

    Args:
        num_tokens (`int` or `np.ndarray` of any shape): tokens of the example, at least 1. A lone token is not masked.
        num_sentences (`int` or `np.ndarray` of the same shape): from 1 to `num_tokens`.
        noise_density (`float`): share of the tokens to mask, see [`check_noise`].
        mean_noise_span_length (`float`): mean length of a masked span after cutting, at least 1.

    Returns:
        Three arrays of the same shape, int64: the number of masked tokens, of spans before cutting, and of the most
        cuts that can happen.
    """
    num_tokens, num_sentences = np.asarray(num_tokens), np.asarray(num_sentences)
    num_noise, _ = noise_counts(num_tokens, noise_density, mean_noise_span_length)
    # Solves spans + cuts(spans) = num_noise / mean_noise_span_length.
    spans = num_noise * ((num_tokens - 1) / mean_noise_span_length - (num_sentences - 1))
    num_spans = _whole_spans(spans / np.maximum(num_tokens - num_sentences, 1), num_tokens, num_noise)
    return num_noise, num_spans, np.minimum(num_sentences - 1, np.maximum(num_noise - num_spans, 0))


def t5_input_and_target_lengths(
    num_tokens: Count, noise_density: float, mean_noise_span_length: float, max_unit_length: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """
    Lengths of a T5 example after corruption, `</s>` included in both: exact ones, or, where whole units are masked,
    the largest possible.

    Args:
        num_tokens (`int` or `np.ndarray` of any shape): tokens before corruption, at least 2.
        noise_density, mean_noise_span_length (`float`): see [`noise_counts`].
        max_unit_length (`int`, defaults to 1): most tokens of a unit, see [`unit_spans`].

    Returns:
        Two arrays of the shape of `num_tokens`, int64: input length, target length.

    >>> [int(length) for length in t5_input_and_target_lengths(568, 0.15, 3.0)]
    [512, 114]
    """
    num_noise, num_spans = noise_counts(num_tokens, noise_density, mean_noise_span_length)
    return _largest_lengths(np.asarray(num_tokens), num_noise, num_spans, max_unit_length)


def _largest_lengths(num_tokens, num_noise, num_spans, max_unit_length):
    """Of input and target with `</s>`, for numbers of tokens to mask that are kept but for a part of a unit."""
    least = np.maximum(num_noise - max_unit_length + 1, np.minimum(num_noise, 1))
    most = np.where(num_noise > 0, np.minimum(num_noise + max_unit_length - 1, num_tokens), 0)
    # A span has at least one token: the fewer are masked, the longer is the input.
    return num_tokens - least + np.minimum(num_spans, least) + 1, most + np.minimum(num_spans, most) + 1


def t5_raw_length(
    max_source_length: int,
    noise_density: float,
    mean_noise_span_length: float,
    max_target_length: int | None = None,
    max_unit_length: int = 1,
) -> int:
    """
    The largest number of tokens before corruption whose input fits, and whose target fits if a maximum is given.

    Args:
        max_source_length (`int`): tokens of the input, `</s>` included.
        noise_density, mean_noise_span_length (`float`): see [`noise_counts`].
        max_target_length (`int`, *optional*): tokens of the target, `</s>` included.
        max_unit_length (`int`, defaults to 1): most tokens of a unit that is masked as a whole.

    Raises:
        `ValueError`: if not even two tokens fit.

    >>> t5_raw_length(512, 0.15, 3.0), t5_raw_length(512, 0.3, 3.0)
    (568, 639)
    """

    def bounds(num_tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return t5_input_and_target_lengths(num_tokens, noise_density, mean_noise_span_length, max_unit_length)

    # The input keeps `1 - noise_density` of the tokens.
    return largest_raw_length(bounds, max_source_length, max_target_length, max_source_length / (1 - noise_density))


def largest_raw_length(
    bounds: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    max_source_length: int,
    max_target_length: int | None = None,
    limit: float | None = None,
) -> int:
    """
    The largest number of tokens before corruption whose input and target fit.

    Args:
        bounds (`Callable`): of numbers of tokens, the largest lengths of input and target; neither falls as they rise.
        max_source_length (`int`): tokens of the input.
        max_target_length (`int`, *optional*): tokens of the target.
        limit (`float`, *optional*): no more tokens than that can fit; by default the length of the input.

    Raises:
        `ValueError`: if not even two tokens fit.
    """
    candidates = np.arange(2, int(max_source_length if limit is None else limit) + 3)
    input_lengths, target_lengths = bounds(candidates)
    fits = input_lengths <= max_source_length
    if max_target_length is not None:
        fits &= target_lengths <= max_target_length
    if not fits.any():
        raise ValueError(
            f"No text fits into `max_source_length`={max_source_length} and `max_target_length`={max_target_length}: "
            "two tokens of text need 3 in each. Raise them."
        )
    return int(candidates[fits][-1])


def depth_input_and_target_lengths(
    num_tokens: Count,
    num_sentences: Count,
    noise_density: float,
    mean_noise_span_length: float,
    max_unit_length: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """
    The largest lengths that a DEPTH example can have after corruption, special tokens included. How many spans are cut
    at the end of a sentence is random; these bounds always hold.

    An input is `<eosen>`, the kept tokens, a sentinel per span, a sentence token and `<eosen>` per sentence, `</s>`; a
    target is the same without the first `<eosen>` and with the masked tokens in place of the kept ones.

    Args:
        num_tokens (`int` or `np.ndarray` of any shape): tokens before corruption, at least 1.
        num_sentences (`int` or `np.ndarray` of the same shape): from 1 to `num_tokens`.
        noise_density, mean_noise_span_length (`float`): see [`depth_noise_counts`].
        max_unit_length (`int`, defaults to 1): most tokens of a unit that is masked as a whole, see [`unit_spans`].

    Returns:
        Two arrays of the same shape, int64: input length, target length.
    """
    num_tokens, num_sentences = np.asarray(num_tokens), np.asarray(num_sentences)
    num_noise, num_spans, _ = depth_noise_counts(num_tokens, num_sentences, noise_density, mean_noise_span_length)
    # Each sentence but the last can end within a span.
    lengths = _largest_lengths(num_tokens, num_noise, num_spans + num_sentences - 1, max_unit_length)
    return 1 + 2 * num_sentences + lengths[0], 2 * num_sentences + lengths[1]


def depth_most_spans(
    num_tokens: Count,
    num_sentences: Count,
    noise_density: float,
    mean_noise_span_length: float,
    max_unit_length: int = 1,
) -> np.ndarray:
    """
    The most masked spans that a DEPTH example can have, none of which reaches beyond the end of a sentence.

    Args:
        num_tokens (`int` or `np.ndarray` of any shape): tokens before corruption, at least 1.
        num_sentences (`int` or `np.ndarray` of the same shape): from 1 to `num_tokens`.
        noise_density, mean_noise_span_length (`float`): see [`depth_noise_counts`].
        max_unit_length (`int`, defaults to 1): most tokens of a unit that is masked as a whole, see [`unit_spans`].

    Returns:
        `np.ndarray` of the same shape, int64.
    """
    num_noise, num_spans, _ = depth_noise_counts(num_tokens, num_sentences, noise_density, mean_noise_span_length)
    most = np.where(num_noise > 0, np.minimum(num_noise + max_unit_length - 1, num_tokens), 0)
    return np.minimum(num_spans + num_sentences - 1, most)


def random_spans(
    lengths: np.ndarray, num_noise: np.ndarray, num_spans: np.ndarray, random: ExampleRandom
) -> tuple[np.ndarray, np.ndarray]:
    """
    Choose which tokens are masked: kept and masked spans alternate in every example, beginning with a kept one. All
    ways to do so with the given numbers are equally likely.

    Args:
        lengths (`np.ndarray` of shape `(batch_size,)`, int64): tokens per example.
        num_noise (`np.ndarray` of shape `(batch_size,)`, int64): masked tokens per example.
        num_spans (`np.ndarray` of shape `(batch_size,)`, int64): masked spans per example, at least 1.
        random ([`ExampleRandom`]): of these examples.

    Returns:
        Two `np.ndarray` of shape `(num_spans.sum(),)`, int64: the length of each kept span, and of the masked span
        after it.

    Source: Raffel et al. (2020), section 3.1.4, and `random_spans_noise_mask` of their code.
    """
    kept = _random_segmentation(lengths - num_noise, num_spans, random, Draw.KEPT_SPANS)
    return kept, _random_segmentation(num_noise, num_spans, random, Draw.NOISE_SPANS)


def unit_spans(
    unit_lengths: np.ndarray,
    num_units: np.ndarray,
    num_noise: np.ndarray,
    num_spans: np.ndarray,
    random: ExampleRandom,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    Choose which units (words, collocations) are masked, each as a whole.

    Spans grow from units that are drawn, no two of them neighbours and all such choices equally likely: unit by unit,
    at random speeds, until `num_noise` tokens are masked. The unit that would exceed the number is masked with the
    probability that gives it on average; so an example has less than one unit more or less than `num_noise`. A span
    begins to touch the next one only when nothing else is left, so that there are `num_spans` of them as long as there
    are enough units, and never more. With as many spans as tokens to mask, units are drawn one by one.

    Args:
        unit_lengths (`np.ndarray` of shape `(num_units.sum(),)`, int64): tokens per unit, at least 1.
        num_units (`np.ndarray` of shape `(batch_size,)`, int64): units per example, at least 1.
        num_noise (`np.ndarray` of shape `(batch_size,)`, int64): tokens to mask, fewer than the example has. At least
            one unit is masked if it is above 0, and one is kept if there are two.
        num_spans (`np.ndarray` of shape `(batch_size,)`, int64): the most masked spans per example, at least 1.
        random ([`ExampleRandom`]): of these examples.

    Returns:
        Three `np.ndarray` of int64. Two counts for each piece, which is some kept tokens followed by a masked span,
        either of them possibly none, of shape `(num_pieces.sum(),)`; and `num_pieces` of shape `(batch_size,)`.
    """
    batch, width = np.arange(len(num_units)), int(num_units.max())
    is_unit = np.arange(width) < num_units[:, None]  # (batch_size, width)
    lengths = np.zeros(is_unit.shape, np.int32)  # likewise
    lengths[is_unit] = unit_lengths

    # Of larger units, fewer reach the number of tokens to mask.
    average = num_noise * num_units / np.add.reduceat(unit_lengths, _starts(num_units))  # (batch_size,)
    num_spans = np.minimum(num_spans, np.maximum(np.rint(average).astype(np.int64), 1))
    keys = _unit_keys(is_unit, lengths, num_units, num_spans, random)
    # Each unit has a token at least: no more units than tokens to mask, and the next one, are looked at.
    order = np.sort(keys, axis=1)[:, : int(num_noise.max()) + 1]
    sizes = ((order >> _SIZE_SHIFT) & _LARGEST_SIZE).astype(np.int32)
    ends = np.cumsum(sizes, axis=1, dtype=np.int32)
    whole = np.count_nonzero(ends <= num_noise.astype(np.int32)[:, None], axis=1)  # (batch_size,): surely masked
    size = sizes[batch, whole]  # (batch_size,): of the next one
    rest = num_noise - (ends[batch, whole] - size)  # (batch_size,)
    count = whole + (random.uniform(Draw.LAST_UNIT) * size < rest)  # (batch_size,)
    count = np.clip(count, 1, np.maximum(num_units - 1, 1))
    last = np.where(num_noise > 0, order[batch, count - 1], np.uint64(0))  # (batch_size,)
    is_masked = keys <= last[:, None]
    return _unit_pieces(is_masked[is_unit], unit_lengths, num_units)


def corrupt_t5(
    token_ids: np.ndarray,
    lengths: np.ndarray,
    noise_density: float,
    mean_noise_span_length: float,
    special_ids: SpecialIds,
    random: ExampleRandom,
) -> tuple[Ragged, Ragged]:
    """
    T5 span corruption: in the input a sentinel replaces every masked span, the target lists sentinels and spans.

    An example may hold several documents with `</s>` between them, which is not masked. If a masked span reaches into
    the next document, its `</s>` stands behind the sentinel (before it, if the span is the last one): so the numbers
    of masked tokens and of spans, and both lengths, are those of any other example. A single span is the end of the
    text, as in prefix language modelling, and `</s>` stands in the target where it stands in the text.

    Args:
        token_ids (`np.ndarray` of shape `(lengths.sum(),)`, int64): tokens of all examples.
        lengths (`np.ndarray` of shape `(batch_size,)`, int64): tokens per example, `</s>` included; at least 2 others.
        noise_density, mean_noise_span_length (`float`): see [`noise_counts`].
        special_ids ([`SpecialIds`]): the sentinels are used in their order in every example.
        random ([`ExampleRandom`]): of these examples.

    Returns:
        Inputs and targets, each as a ragged batch `(values, lengths)`.

    Raises:
        `ValueError`: if an example has more spans than there are sentinels.
    """
    counts = noise_counts(lengths, noise_density, mean_noise_span_length)
    return mask_spans(token_ids, lengths, *counts, special_ids, random)


def mask_spans(
    token_ids: np.ndarray,
    lengths: np.ndarray,
    num_noise: np.ndarray,
    num_spans: np.ndarray,
    special_ids: SpecialIds,
    random: ExampleRandom,
) -> tuple[Ragged, Ragged]:
    """
    [`corrupt_t5`] with other numbers of masked tokens and spans for every example.

    Args:
        token_ids (`np.ndarray` of shape `(lengths.sum(),)`, int64): tokens of all examples.
        lengths (`np.ndarray` of shape `(batch_size,)`, int64): tokens per example, at least 2.
        num_noise, num_spans (`np.ndarray` of shape `(batch_size,)`, int64): see [`random_spans`].
        special_ids ([`SpecialIds`]): the sentinels are used in their order in every example.
        random ([`ExampleRandom`]): of these examples.

    Returns:
        Inputs and targets, each as a ragged batch `(values, lengths)`.

    Raises:
        `ValueError`: if an example has more spans than there are sentinels.
    """
    _check_enough_sentinels(num_spans, special_ids)
    # Before a single span there would be the `</s>` of all documents that it holds, and these would be one text.
    is_separator = (token_ids == special_ids.eos) & np.repeat(num_spans > 1, lengths)  # (lengths.sum(),)
    if is_separator.any():
        text_lengths = np.add.reduceat(~is_separator, _starts(lengths), dtype=np.int64)  # (batch_size,)
        num_noise = np.minimum(num_noise, text_lengths - 1)
        num_spans = np.minimum(num_spans, text_lengths - num_noise)
        kept, noise = random_spans(text_lengths, num_noise, num_spans, random)
        token_ids, kept = _place_separators(token_ids, lengths, is_separator, kept, noise, num_spans)
    else:
        kept, noise = random_spans(lengths, num_noise, num_spans, random)  # (num_spans.sum(),) each
    sentinels = special_ids.sentinels[_positions(num_spans)]  # (num_spans.sum(),)
    # The last span of an example has room for `</s>` behind it.
    is_last = np.zeros(len(kept), bool)  # (num_spans.sum(),)
    is_last[np.cumsum(num_spans) - 1] = True
    inputs, targets = _replace_noise(token_ids, kept, noise, sentinels, rooms=(is_last, is_last))
    input_lengths, target_lengths = lengths - num_noise + num_spans + 1, num_noise + num_spans + 1
    inputs[np.cumsum(input_lengths) - 1] = special_ids.eos
    targets[np.cumsum(target_lengths) - 1] = special_ids.eos
    return (inputs, input_lengths), (targets, target_lengths)


def mask_units(
    token_ids: np.ndarray,
    lengths: np.ndarray,
    units: Ragged,
    noise_density: float,
    mean_noise_span_length: float,
    special_ids: SpecialIds,
    random: ExampleRandom,
) -> tuple[Ragged, Ragged]:
    """
    [`corrupt_t5`] that masks whole units, see [`unit_spans`].

    Args:
        token_ids (`np.ndarray` of shape `(lengths.sum(),)`, int64): tokens of all examples.
        lengths (`np.ndarray` of shape `(batch_size,)`, int64): tokens per example, at least 2.
        units (`Ragged`): tokens per unit, and units per example.
        noise_density, mean_noise_span_length (`float`): see [`noise_counts`].
        special_ids ([`SpecialIds`]): the sentinels are used in their order in every example.
        random ([`ExampleRandom`]): of these examples.

    Returns:
        Inputs and targets, each as a ragged batch `(values, lengths)`.

    Raises:
        `ValueError`: if an example can have more spans than there are sentinels.
    """
    num_noise, num_spans = noise_counts(lengths, noise_density, mean_noise_span_length)
    _check_enough_sentinels(num_spans, special_ids)
    kept, noise, num_pieces = unit_spans(*units, num_noise, num_spans, random)
    first_pieces = _starts(num_pieces)  # (batch_size,)
    spans = np.flatnonzero(noise)  # (num_spans.sum(),)
    num_spans = np.add.reduceat(noise > 0, first_pieces, dtype=np.int64)  # (batch_size,)
    num_noise = np.add.reduceat(noise, first_pieces)  # (batch_size,)
    # Room for `</s>` behind the last piece of the input, and behind the last span of the target.
    rooms = np.zeros((2, len(noise)), bool)
    rooms[0, np.cumsum(num_pieces) - 1] = True
    rooms[1, spans[np.cumsum(num_spans) - 1]] = True
    inputs, targets = _replace_noise(token_ids, kept, noise, special_ids.sentinels[_positions(num_spans)], rooms)
    input_lengths, target_lengths = lengths - num_noise + num_spans + 1, num_noise + num_spans + 1
    inputs[np.cumsum(input_lengths) - 1] = special_ids.eos
    targets[np.cumsum(target_lengths) - 1] = special_ids.eos
    return (inputs, input_lengths), (targets, target_lengths)


def split_prefix(
    token_ids: np.ndarray, lengths: np.ndarray, special_ids: SpecialIds, random: ExampleRandom
) -> tuple[Ragged, Ragged]:
    """
    Prefix language modelling: cut every example between two tokens, all places being equally likely. The input is the
    part before, the target the part after.

    Args:
        token_ids (`np.ndarray` of shape `(lengths.sum(),)`, int64): tokens of all examples.
        lengths (`np.ndarray` of shape `(batch_size,)`, int64): tokens per example, at least 2.
        special_ids ([`SpecialIds`]): `</s>` ends inputs and targets.
        random ([`ExampleRandom`]): of these examples.

    Returns:
        Inputs and targets, each as a ragged batch `(values, lengths)`.
    """
    # From 1 to length - 1.
    prefix_lengths = 1 + (random.uniform(Draw.PREFIX) * (lengths - 1)).astype(np.int64)  # (batch_size,)
    rest_lengths = lengths - prefix_lengths  # (batch_size,)
    is_prefix = _positions(lengths) < np.repeat(prefix_lengths, lengths)  # (lengths.sum(),)
    inputs = np.insert(token_ids[is_prefix], np.cumsum(prefix_lengths), special_ids.eos)
    targets = np.insert(token_ids[~is_prefix], np.cumsum(rest_lengths), special_ids.eos)
    return (inputs, prefix_lengths + 1), (targets, rest_lengths + 1)


def depth_prefix_lengths(num_tokens: Count, num_sentences: Count) -> tuple[np.ndarray, np.ndarray]:
    """
    The largest lengths that an example of [`split_depth_prefix`] can have, special tokens included: of an input with
    all sentences but one, and of a target that continues after the first sentence.

    Args:
        num_tokens (`int` or `np.ndarray` of any shape): tokens of the example.
        num_sentences (`int` or `np.ndarray` of the same shape): from 2 to `num_tokens`.

    Returns:
        Two arrays of the same shape, int64: input length, target length.
    """
    num_tokens, num_sentences = np.asarray(num_tokens), np.asarray(num_sentences)
    return num_tokens + 2 * num_sentences - 1, num_tokens + 2 * num_sentences


def split_depth_prefix(
    token_ids: np.ndarray,
    sentence_lengths: np.ndarray,
    num_sentences: np.ndarray,
    shuffling_probability: float,
    special_ids: SpecialIds,
    random: ExampleRandom,
) -> tuple[Ragged, Ragged]:
    """
    Prefix language modelling for DEPTH: cut every example between two sentences, all places being equally likely. The
    input has the sentences before, in some examples in a random order. The target names them in their true order, each
    by its sentence token and `<eosen>`, and then goes on with the sentences that follow, as a whole.

    So the target has the form of that of [`corrupt_depth`]: nothing of the first sentences is masked, and all of the
    others is. The order of what the model reads is to be found before the text is continued. The sentences that follow
    have the sentence tokens that the input has not, in the order of their ids: a model can know which comes next,
    whereas randomly drawn ones would be a loss from which nothing can be learnt.

    Args:
        token_ids (`np.ndarray` of shape `(sentence_lengths.sum(),)`, int64): tokens of all examples.
        sentence_lengths (`np.ndarray` of shape `(num_sentences.sum(),)`, int64): tokens per sentence, at least 1.
        num_sentences (`np.ndarray` of shape `(batch_size,)`, int64): sentences per example, at least 2.
        shuffling_probability (`float`): share of the examples whose inputs are shuffled.
        special_ids ([`SpecialIds`]): inputs use a random draw of sentence tokens, without replacement.
        random ([`ExampleRandom`]): of these examples.

    Returns:
        Inputs and targets, each as a ragged batch `(values, lengths)`.
    """
    num_given = 1 + (random.uniform(Draw.PREFIX) * (num_sentences - 1)).astype(np.int64)  # (batch_size,)
    columns = np.arange(len(special_ids.sentences))
    draws = random.permutations(Draw.SENTENCE_TOKENS, len(columns))  # (batch_size, num_sentence_tokens)
    is_given = columns < num_given[:, None]  # likewise
    rest = np.sort(np.where(is_given, len(columns), draws), axis=1)  # those that are not drawn come first
    rest = np.take_along_axis(rest, np.maximum(columns - num_given[:, None], 0), axis=1)
    is_sentence = columns < num_sentences[:, None]
    marks = special_ids.sentences[np.where(is_given, draws, rest)[is_sentence]]  # (num_sentences.sum(),)

    is_prefix = is_given[is_sentence]  # (num_sentences.sum(),)
    order = _sentence_order(num_sentences, len(columns), shuffling_probability, random)
    order = order[is_prefix[order]]  # (num_given.sum(),)
    starts = _starts(sentence_lengths)
    inputs = (token_ids, starts[order], sentence_lengths[order], marks[order])
    return (
        _mark_sentences(*inputs, num_given, special_ids, leading_eosen=True),
        _mark_sentences(
            token_ids,
            starts,
            np.where(is_prefix, 0, sentence_lengths),
            marks,
            num_sentences,
            special_ids,
            leading_eosen=False,
        ),
    )


def corrupt_depth(
    token_ids: np.ndarray,
    sentence_lengths: np.ndarray,
    num_sentences: np.ndarray,
    noise_density: float,
    mean_noise_span_length: float,
    shuffling_probability: float,
    special_ids: SpecialIds,
    random: ExampleRandom,
    unit_lengths: np.ndarray | None = None,
) -> tuple[Ragged, Ragged]:
    """
    DEPTH corruption: spans of tokens are masked, and some inputs have their sentences in a random order.

    A shuffled example differs from the same example left in order only in the order of the sentences in its input.

    The noise mask is laid over the sentences in a random order of its own. T5's mask always keeps the first token and
    masks the last, and a span that is cut at the end of a sentence continues in the next one: laid over the document
    in its true order, it would show which sentence is the last and which are neighbours.

    Args:
        token_ids (`np.ndarray` of shape `(sentence_lengths.sum(),)`, int64): tokens of all examples.
        sentence_lengths (`np.ndarray` of shape `(num_sentences.sum(),)`, int64): tokens per sentence, at least 1.
        num_sentences (`np.ndarray` of shape `(batch_size,)`, int64): sentences per example, at least 1.
        noise_density, mean_noise_span_length (`float`): see [`depth_noise_counts`].
        shuffling_probability (`float`): share of the examples to shuffle.
        special_ids ([`SpecialIds`]): every example uses a random draw of sentinels and of sentence tokens, without
            replacement.
        random ([`ExampleRandom`]): of these examples.
        unit_lengths (`np.ndarray` of shape `(num_units,)`, int64, *optional*): tokens per unit of all examples, for
            [`unit_spans`]. No unit reaches beyond the end of a sentence.

    Returns:
        Inputs and targets, each as a ragged batch `(values, lengths)`.

    Raises:
        `ValueError`: if an example can have more spans than there are sentinels. The worst draw counts, so that an
            example is accepted in every epoch or in none.

    Source: DEPTH (arXiv 2405.07788).
    """
    first_sentences = _starts(num_sentences)  # (batch_size,): index of each example's first sentence
    # From here on, sentences are in the order of the noise; `place` finds those of the document among them.
    noise_order = _random_order(num_sentences, len(special_ids.sentences), random, Draw.NOISE_ORDER)
    place = np.argsort(noise_order)  # (num_sentences.sum(),)
    token_ids = _copy_runs(token_ids, _starts(sentence_lengths)[noise_order], sentence_lengths[noise_order])
    if unit_lengths is not None:
        ends = np.searchsorted(np.cumsum(unit_lengths), np.cumsum(sentence_lengths)) + 1  # (num_sentences.sum(),)
        sentence_units = np.diff(ends, prepend=0)[noise_order]  # (num_sentences.sum(),)
        starts = np.concatenate([[0], ends[:-1]])[noise_order]  # likewise
        units = _copy_runs(unit_lengths, starts, sentence_units), np.add.reduceat(sentence_units, first_sentences)
    sentence_lengths = sentence_lengths[noise_order]
    lengths = np.add.reduceat(sentence_lengths, first_sentences)  # (batch_size,)
    num_noise, num_spans, _ = depth_noise_counts(lengths, num_sentences, noise_density, mean_noise_span_length)
    max_unit_length = 1 if unit_lengths is None else MAX_UNIT_LENGTH
    noise_settings = (noise_density, mean_noise_span_length, max_unit_length)
    _check_enough_sentinels(depth_most_spans(lengths, num_sentences, *noise_settings), special_ids)
    if unit_lengths is None:
        kept, noise = random_spans(lengths, num_noise, num_spans, random)  # (num_spans.sum(),) each
    else:
        kept, noise, _ = unit_spans(*units, num_noise, num_spans, random)  # (num_pieces,) each
    # Two counts for each piece, (num_pieces,), and the index of each sentence's first piece, (num_sentences.sum(),).
    kept, noise, first_pieces = _cut_spans(kept, noise, sentence_lengths)

    span_counts = np.add.reduceat(noise > 0, first_pieces, dtype=np.int64)  # (num_sentences.sum(),)
    input_counts = np.add.reduceat(kept, first_pieces) + span_counts  # (num_sentences.sum(),)
    target_counts = np.add.reduceat(noise, first_pieces) + span_counts  # (num_sentences.sum(),)
    example_spans = np.add.reduceat(span_counts, first_sentences)  # (batch_size,)
    sentinels = _draw_ids(special_ids.sentinels, example_spans, random, Draw.SENTINELS)  # (example_spans.sum(),)
    inputs, targets = _replace_noise(token_ids, kept, noise, sentinels)

    marks = _draw_ids(special_ids.sentences, num_sentences, random, Draw.SENTENCE_TOKENS)  # (num_sentences.sum(),)
    order = place[_sentence_order(num_sentences, len(special_ids.sentences), shuffling_probability, random)]
    input_starts, target_starts = _starts(input_counts), _starts(target_counts)
    inputs = (inputs, input_starts[order], input_counts[order], marks[order])
    targets = (targets, target_starts[place], target_counts[place], marks[place])
    return (
        _mark_sentences(*inputs, num_sentences, special_ids, leading_eosen=True),
        _mark_sentences(*targets, num_sentences, special_ids, leading_eosen=False),
    )


def _check_enough_sentinels(num_spans, special_ids):
    available = len(special_ids.sentinels)
    if num_spans.max() > available:
        index = int(num_spans.argmax())
        raise ValueError(
            f"Example {index} of the batch can have {num_spans[index]} masked spans, but the tokenizer has "
            f"{available} sentinels (`<extra_id_0>`, …), and no two spans may share one. Raise "
            "`mean_noise_span_length`, lower `mlm_probability`, make shorter windows, or use a tokenizer with more "
            "sentinels."
        )


def _whole_spans(num_spans, num_tokens, num_noise):
    """Round to whole spans: at least one, and each with a masked token and a kept token before it."""
    most_spans = np.minimum(num_noise, num_tokens - num_noise)
    return np.maximum(np.minimum(np.rint(num_spans).astype(np.int64), most_spans), 1)


def _mix(numbers):
    """The output function of SplitMix64, in place: every bit of the uint64 numbers changes about half of the bits."""
    numbers ^= numbers >> _SHIFT_1
    numbers *= _MIX_1
    numbers ^= numbers >> _SHIFT_2
    numbers *= _MIX_2
    numbers ^= numbers >> _SHIFT_3
    return numbers


@lru_cache(maxsize=4)
def _powers(size):
    """The first `size` powers of `_KNUTH` and of its inverse modulo 2^64: uint64, shape `(2, size)`."""
    bases = np.array([[_KNUTH], [pow(_KNUTH, -1, 2**64)]], np.uint64)  # (2, 1)
    powers = np.multiply.accumulate(np.repeat(bases, size, axis=1), axis=1)  # (2, size)
    powers.flags.writeable = False
    return powers


def _starts(lengths):
    """Place of the first element of every run, for runs one after the other."""
    return np.cumsum(lengths) - lengths


def _positions(lengths):
    """Place of every element within its run: `[2, 3]` -> `[0, 1, 0, 1, 2]`."""
    return np.arange(lengths.sum()) - np.repeat(_starts(lengths), lengths)


def _copy_runs(values, starts, lengths):
    """
    `values[start : start + length]` of all runs, one after the other. Lengths are at least 1. A run may reach beyond
    `values`, for places that the caller fills.

    The places to copy from are those of the elements plus an offset for each run; or, for many short runs, whose
    lengths the processor cannot predict in `np.repeat`, the running sum of steps: a jump to the start of a run, then
    ones. Which is faster changes at runs of about six elements.
    """
    if len(values) == 0:
        return np.empty(lengths.sum(), values.dtype)
    begins, total = _starts(lengths), lengths.sum()
    if total >= _LONG_RUN * len(lengths):
        places = np.repeat(starts - begins, lengths)
        places += np.arange(total)
    else:
        steps = np.ones(total, np.int64)
        steps[begins[:1]] = starts[:1]
        steps[begins[1:]] = starts[1:] - (starts + lengths)[:-1] + 1
        places = np.cumsum(steps, out=steps)
    return values.take(places, mode="clip")


def _random_segmentation(num_items, num_segments, random, purpose):
    """
    Cut the items of every example into non-empty segments; all segmentations of an example are equally likely.

    Returns the lengths of the segments, shape `(num_segments.sum(),)`. An example without items has one empty segment.
    """
    batch = np.arange(len(num_items))  # (batch_size,)
    places = np.arange(num_items.max() + 1, dtype=np.int32)  # place j is behind item j, counted from 1
    is_inner = places < num_items.astype(np.int32)[:, None]  # (batch_size, len(places)): between two items
    is_inner[:, 0] = False
    draws = random.bits(purpose, len(places))  # (batch_size, len(places))
    np.copyto(draws, _LARGEST_DRAW, where=~is_inner)

    # An example is cut at those of its inner places that drew the `num_segments - 1` smallest numbers.
    is_end = draws < np.sort(draws, axis=1)[batch, num_segments - 1][:, None]
    if np.count_nonzero(is_end) != num_segments.sum() - len(batch):
        # At a threshold two places drew the same number, as in one example of ten million: the first one is taken.
        order = np.lexsort((draws, ~is_inner), axis=1)
        is_end = np.argsort(order, axis=1) < num_segments[:, None] - 1
    is_end[batch, num_items] = True

    ends = np.flatnonzero(is_end)  # (num_segments.sum(),), counted through the whole batch
    first_segments = _starts(num_segments)  # (batch_size,)
    lengths = ends.copy()
    lengths[1:] -= ends[:-1]
    lengths[first_segments] = ends[first_segments] - batch * len(places)
    return lengths


def _unit_keys(is_unit, lengths, num_units, num_spans, random):
    """
    A number for each unit that rises along the order in which spans grow, see `unit_spans`, and differs from those of
    the other units of its example. In between it holds the length of the unit. Arrays of two dimensions have the shape
    `(batch_size, width)`.
    """
    width = is_unit.shape[1]
    num_starts = np.minimum(num_spans, (num_units + 1) // 2)  # (batch_size,)
    # Of `n - k + 1` places, `k` without neighbours among them once the i-th is moved by i.
    gaps = _random_segmentation(num_units - num_starts + 2, num_starts + 1, random, Draw.UNIT_STARTS)
    is_start = np.ones(len(gaps), bool)
    is_start[np.cumsum(num_starts + 1) - 1] = False
    begins = np.arange(len(num_units)) * width  # (batch_size,), of the examples
    ends = np.cumsum(gaps) - np.repeat(_starts(num_units - num_starts + 2), num_starts + 1)
    numbers = _positions(num_starts)  # (num_starts.sum(),)
    starts = ends[is_start] - 1 + numbers + np.repeat(begins, num_starts)  # likewise, of the spans
    # From each start to the next one, for the first of an example from its beginning.
    runs = np.where(numbers > 0, starts, np.repeat(begins, num_starts))
    runs = np.diff(runs, append=is_unit.size)
    is_used = np.arange(num_starts.max()) < num_starts[:, None]
    draws = random.bits(Draw.UNIT_SPEEDS, is_used.shape[1])[is_used]  # (num_starts.sum(),)
    times = (-1 / np.log((draws + 0.5) * 2.0**-32)).astype(np.float32)  # to grow by a unit
    steps = np.arange(is_unit.size, dtype=np.int32) - np.repeat(starts.astype(np.int32), runs)
    steps = np.abs(steps, out=steps).astype(np.float32)
    steps *= np.repeat(times, runs)
    # Last the units that would join two spans, which are those before a start; first the starts in random order. (A
    # step is less than 2^50. Adding a number as large would round all of them to the same one.)
    steps[starts[numbers > 0] - 1] *= np.float32(2.0**60)
    steps[starts] = random.bits(Draw.UNIT_ORDER, is_used.shape[1])[is_used] * 2.0**-60
    steps = steps.reshape(is_unit.shape)
    steps[~is_unit] = np.inf
    # The bits of floats that are not negative are in the order of the floats.
    keys = steps.view(np.uint32).astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= lengths.astype(np.uint64) << _SIZE_SHIFT
    keys |= np.arange(width, dtype=np.uint64)
    return keys


def _unit_pieces(is_masked, unit_lengths, num_units):
    """Kept and masked tokens of every piece, and the number of pieces of every example; see `unit_spans`."""
    last_units = np.cumsum(num_units) - 1  # (batch_size,)
    begins, ends = is_masked.copy(), is_masked.copy()  # (num_units.sum(),) each
    begins[1:] &= ~is_masked[:-1]
    begins[_starts(num_units)] = is_masked[_starts(num_units)]
    ends[:-1] &= ~is_masked[1:]
    ends[last_units] = True
    begins, ends = np.flatnonzero(begins), np.flatnonzero(ends)  # of masked spans and of pieces
    places = np.cumsum(unit_lengths)  # (num_units.sum(),): where units end
    noise = np.zeros(len(ends), np.int64)
    noise[is_masked[ends]] = places[ends[is_masked[ends]]] - places[begins] + unit_lengths[begins]
    kept = np.diff(places[ends], prepend=0) - noise
    return kept, noise, np.diff(np.searchsorted(ends, last_units, side="right"), prepend=0)


def _place_separators(token_ids, lengths, is_separator, kept, noise, num_spans):
    """
    Put separators where no span is masked. `kept` and `noise` (num_spans.sum(),) count tokens of the text alone.

    Returns the tokens with each separator at its new place, and how many tokens, separators included, are kept before
    each masked span.
    """
    places = np.cumsum(~is_separator)[is_separator]  # (num_separators,): tokens of the text before each
    examples = np.repeat(np.arange(len(lengths)), lengths)[is_separator]  # (num_separators,)
    ends = np.cumsum(kept + noise)  # (num_spans.sum(),): of the masked spans, among the tokens of the text
    first, last = _starts(num_spans)[examples], np.cumsum(num_spans)[examples] - 1  # (num_separators,)
    spans = np.clip(np.searchsorted(ends, places), first, last)  # the first span that does not end before
    is_inside = places > (ends - noise)[spans]
    places = np.where(is_inside, np.where(spans == last, (ends - noise)[spans], ends[spans]), places)
    spans = spans + (is_inside & (spans < last))
    kept = kept + np.bincount(spans, minlength=len(kept))
    return np.insert(token_ids[~is_separator], places, token_ids[is_separator]), kept


def _cut_spans(kept, noise, sentence_lengths):
    """
    Cut kept and masked spans at the ends of sentences.

    A piece is some kept tokens followed by some masked tokens of the same sentence, either of them possibly none.
    Returns how many kept and how many masked tokens each piece has, both of shape `(num_pieces,)`, and the index of
    every sentence's first piece, shape `(len(sentence_lengths),)`.
    """
    span_ends, sentence_ends = np.cumsum(kept + noise), np.cumsum(sentence_lengths)
    is_span_end, is_sentence_end = np.zeros((2, sentence_ends[-1] + 1), bool)
    is_span_end[span_ends] = True
    is_sentence_end[sentence_ends] = True
    ends = np.flatnonzero(is_span_end | is_sentence_end)  # (num_pieces,)
    starts = np.concatenate([[0], ends[:-1]])  # (num_pieces,)

    spans = np.cumsum(is_span_end[ends]) - is_span_end[ends]  # (num_pieces,): the span that each piece is part of
    middles = np.clip((span_ends - noise)[spans], starts, ends)  # (num_pieces,): where the masked tokens begin
    first_pieces = np.concatenate([[0], np.flatnonzero(is_sentence_end[ends])[:-1] + 1])
    return middles - starts, ends - middles, first_pieces


def _replace_noise(token_ids, kept, noise, sentinels, rooms=(0, 0)):
    """
    Kept tokens with a sentinel for every masked span, and masked spans with their sentinel before them.

    `kept` and `noise`, both of shape `(num_pieces,)`, count tokens that follow each other: kept, masked, kept, masked,
    … There is a sentinel for each of the pieces that have masked tokens. `rooms` are the numbers of places that are
    left to the caller after each piece in the input, and after each masked span in the target.
    """
    is_span = noise > 0  # (num_pieces,)
    ends = np.cumsum(kept + noise)  # (num_pieces,)
    # In the input, the sentinel takes the place of a span's first token; in the target, of the token before the span.
    lengths = kept + is_span + rooms[0]
    inputs = _copy_runs(token_ids, ends - noise - kept, lengths)
    inputs[(_starts(lengths) + kept)[is_span]] = sentinels
    lengths = (1 + noise + rooms[1])[is_span]
    targets = _copy_runs(token_ids, (ends - noise - 1)[is_span], lengths)
    targets[_starts(lengths)] = sentinels
    return inputs, targets


def _draw_ids(ids, counts, random, purpose):
    """For every example `counts` of the `ids`, in random order without replacement; shape `(counts.sum(),)`."""
    is_used = np.arange(len(ids)) < counts[:, None]  # (batch_size, len(ids))
    return ids[random.permutations(purpose, len(ids))[is_used]]


def _sentence_order(num_sentences, max_sentences, shuffling_probability, random):
    """Index of the sentences of all examples in the order of the inputs, shape `(num_sentences.sum(),)`."""
    shuffled = _random_order(num_sentences, max_sentences, random, Draw.SENTENCE_ORDER)
    is_shuffled = random.uniform(Draw.IS_SHUFFLED) < shuffling_probability  # (batch_size,)
    return np.where(np.repeat(is_shuffled, num_sentences), shuffled, np.arange(len(shuffled)))


def _random_order(num_sentences, max_sentences, random, purpose):
    """Index of the sentences of all examples, each example's in a random order; shape `(num_sentences.sum(),)`."""
    # Of a random order of `max_sentences` numbers, those below an example's number of sentences are in random order.
    order = random.permutations(purpose, max_sentences)  # (batch_size, max_sentences)
    return np.repeat(_starts(num_sentences), num_sentences) + order[order < num_sentences[:, None]]


def _mark_sentences(token_ids, starts, counts, marks, num_sentences, special_ids, leading_eosen):
    """
    A ragged batch of the sentences `token_ids[start : start + count]`, each of them between its mark and `<eosen>`,
    with `</s>` at the end of an example. `starts`, `counts` and `marks` have the shape `(num_sentences.sum(),)`.
    """
    last_sentences = np.cumsum(num_sentences) - 1  # (batch_size,)
    first_sentences = last_sentences - num_sentences + 1
    before = np.ones_like(counts)  # (num_sentences.sum(),): special tokens before the sentence
    before[first_sentences] += leading_eosen
    lengths = before + counts + 1
    lengths[last_sentences] += 1

    begins = _starts(lengths)
    values = _copy_runs(token_ids, starts - before, lengths)
    values[begins[first_sentences]] = special_ids.eosen  # without a leading `<eosen>`, the next line replaces it
    values[begins + before - 1] = marks
    values[begins + before + counts] = special_ids.eosen
    values[(begins + lengths)[last_sentences] - 1] = special_ids.eos
    return values, np.add.reduceat(lengths, first_sentences)
