"""
How much noise there is, and how long examples become by it: numbers of masked tokens and of masked spans, and bounds.
Bounds are the largest lengths of input and target, and the most masked spans, whatever is drawn.

The functions take one number each, or arrays of one shape, and return arrays of int64 of that shape:

- `num_tokens`: tokens of an example before corruption, special tokens not included, at least 1 (T5: at least 2);
- `num_sentences`: for DEPTH, from 1 to `num_tokens`;
- `noise_density`, `mean_noise_span_length`: share of the tokens to mask, and the mean length of a masked span in
  tokens, see `ranges.NOISE`;
- `max_unit_length`: most tokens of a unit that is masked as a whole, see [`unit_spans`]; 1 for single tokens.

Lengths are those of the encoder input and of the target, special tokens included.
"""

import math
from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from ..errors import UserError

# Lengths and counts: one number, or one per example.
Count = int | np.ndarray
# The largest lengths of input and target, and the most masked spans, whatever is drawn.
Bounds = tuple[np.ndarray, np.ndarray, np.ndarray]

# Most tokens of a unit that is masked as a whole. Windows leave room for one of them.
MAX_UNIT_LENGTH = 12


def check_enough_sentinels(
    num_spans: int,
    num_sentinels: int,
    where: str = "Windows of these lengths",
    remedy: str = "Raise `mean_noise_span_length`, lower `mlm_probability`",
) -> None:
    """Stop on more masked spans than there are sentinels."""
    if num_spans > num_sentinels:
        raise UserError(
            f"{where} can have {num_spans} masked spans, but the tokenizer has {num_sentinels} sentinels "
            f"(`<extra_id_0>`, …), and no two spans may share one. {remedy} or `max_source_length`, or use a "
            "tokenizer with more sentinels."
        )


def noise_counts(
    num_tokens: Count, noise_density: float | np.ndarray, mean_noise_span_length: float | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """
    The number of masked tokens of a T5 example, and of masked spans: at least one, which is empty for a lone token.

    Source: Raffel et al. (2020), section 3.1.4, and `random_spans_noise_mask` of their code. Unlike there, spans never
    outnumber the kept tokens that set them apart.
    """
    num_tokens = np.asarray(num_tokens)
    num_noise = np.rint(num_tokens * noise_density).astype(np.int64)
    num_noise = np.minimum(np.maximum(num_noise, 1), num_tokens - 1)
    return num_noise, _whole_spans(num_noise / mean_noise_span_length, num_tokens, num_noise)


def depth_noise_counts(
    num_tokens: Count, num_sentences: Count, noise_density: float, mean_noise_span_length: float
) -> tuple[np.ndarray, np.ndarray]:
    """
    How many tokens of a DEPTH example are masked, and in how many spans before cutting.

    A span that runs into the next sentence is cut in two there. `num_noise - num_spans` of the `num_tokens - 1` places
    between two tokens are inside a span, so that a random mask leads to about `(num_sentences - 1) * (num_noise -
    num_spans) / (num_tokens - 1)` cuts. `num_spans` is the number that gives the requested mean length after cutting.
    """
    num_tokens, num_sentences = np.asarray(num_tokens), np.asarray(num_sentences)
    num_noise, _ = noise_counts(num_tokens, noise_density, mean_noise_span_length)
    # Solves spans + cuts(spans) = num_noise / mean_noise_span_length.
    spans = num_noise * ((num_tokens - 1) / mean_noise_span_length - (num_sentences - 1))
    return num_noise, _whole_spans(spans / np.maximum(num_tokens - num_sentences, 1), num_tokens, num_noise)


def t5_bounds(
    num_tokens: Count, noise_density: float, mean_noise_span_length: float, max_unit_length: int = 1
) -> Bounds:
    """The bounds of T5 examples. Where single tokens are masked, they are the exact numbers."""
    num_noise, num_spans = noise_counts(num_tokens, noise_density, mean_noise_span_length)
    return _bounds(np.asarray(num_tokens), num_noise, num_spans, max_unit_length)


def _bounds(num_tokens, num_noise, num_spans, max_unit_length):
    """Bounds, with `</s>`, for numbers of tokens to mask that hold but for a part of a unit."""
    least = np.maximum(num_noise - max_unit_length + 1, np.minimum(num_noise, 1))
    most = np.where(num_noise > 0, np.minimum(num_noise + max_unit_length - 1, num_tokens), 0)
    # A span has at least one token: the fewer are masked, the longer is the input.
    most_spans = np.minimum(num_spans, most)
    return num_tokens - least + np.minimum(num_spans, least) + 1, most + most_spans + 1, most_spans


def prefix_bounds(num_tokens: Count) -> Bounds:
    """The bounds of both parts of a text that is cut: all of its tokens but one, and `</s>`."""
    num_tokens = np.asarray(num_tokens)
    return num_tokens, num_tokens, np.zeros_like(num_tokens)


def largest_raw_length(
    bounds: Callable[[Count], Bounds], max_source_length: int, max_target_length: int | None = None
) -> int:
    """
    The largest number of tokens before corruption whose input and target fit. `bounds` do not fall as it rises.
    `ValueError` if not even two tokens fit.

    >>> largest_raw_length(lambda num_tokens: t5_bounds(num_tokens, 0.15, 3.0), 512)  # as for T5
    568
    """

    def is_too_long(num_tokens: int) -> bool:
        input_length, target_length, _ = bounds(num_tokens)
        return bool(input_length > max_source_length or target_length > (max_target_length or math.inf))

    limit = 2
    while not is_too_long(limit):
        limit *= 2
    first_too_long = bisect_left(range(limit), True, lo=2, key=is_too_long)
    if first_too_long == 2:
        raise UserError(
            f"No text fits into `max_source_length`={max_source_length} and `max_target_length`={max_target_length}: "
            "two tokens of text need 3 in each. Raise them."
        )
    return first_too_long - 1


def depth_bounds(
    num_tokens: Count,
    num_sentences: Count,
    noise_density: float,
    mean_noise_span_length: float,
    max_unit_length: int = 1,
) -> Bounds:
    """
    The bounds of DEPTH examples, of which it is random how many spans are cut at the end of a sentence.

    An input is `<eosen>`, the kept tokens, a sentinel per span, a sentence token and `<eosen>` per sentence, `</s>`. A
    target is the same without the first `<eosen>`, and with the masked tokens in place of the kept ones.
    """
    num_tokens, num_sentences = np.asarray(num_tokens), np.asarray(num_sentences)
    num_noise, num_spans = depth_noise_counts(num_tokens, num_sentences, noise_density, mean_noise_span_length)
    # Each sentence but the last can end within a span.
    source, target, spans = _bounds(num_tokens, num_noise, num_spans + num_sentences - 1, max_unit_length)
    return 1 + 2 * num_sentences + source, 2 * num_sentences + target, spans


def depth_prefix_bounds(num_tokens: Count, num_sentences: Count) -> Bounds:
    """
    The bounds of examples of [`split_depth_prefix`]. The longest input has all sentences but one, the longest target
    continues after the first sentence.
    """
    target = np.asarray(num_tokens) + 2 * np.asarray(num_sentences)
    return target - 1, target, np.zeros_like(target)


def depth_capacities(
    bounds: Callable[[Count, Count], Bounds], max_source_length: int, max_target_length: int, max_sentences: int
) -> list[int]:
    """
    How many tokens fit into a DEPTH example, by its number of sentences. With item `n - 1` tokens, an example of `n`
    sentences fits into both maximum lengths, however it is corrupted. The list ends at `max_sentences`, or before it,
    where not even one token per sentence fits; `ValueError` if that is at once.
    """
    num_sentences = np.arange(1, max_sentences + 1)[:, None]  # (max_sentences, 1)
    num_tokens = np.arange(1, max_source_length + max_target_length + 1)  # each is in the input or in the target
    source_lengths, target_lengths, _ = bounds(np.maximum(num_tokens, num_sentences), num_sentences)
    # (max_sentences, most_tokens)
    fits = (source_lengths <= max_source_length) & (target_lengths <= max_target_length)
    capacities = np.logical_and.accumulate(fits, axis=1).sum(axis=1)  # (max_sentences,)
    enough = np.logical_and.accumulate(capacities >= num_sentences[:, 0])  # (max_sentences,)
    if not enough.any():
        raise UserError(
            f"No sentence fits into `max_source_length`={max_source_length} and `max_target_length`="
            f"{max_target_length}: raise them."
        )
    return capacities[enough].tolist()


def _whole_spans(num_spans, num_tokens, num_noise):
    """Round to whole spans: at least one, and each with a masked token and a kept token before it."""
    most_spans = np.minimum(num_noise, num_tokens - num_noise)
    return np.maximum(np.minimum(np.rint(num_spans).astype(np.int64), most_spans), 1)
