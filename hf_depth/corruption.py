"""
Noise functions for pre-training: pure numpy, a whole batch per call, no Python loop over tokens or examples.

A batch of rows of different lengths is a pair `(values, lengths)`: `values` of shape `(lengths.sum(),)` holds the rows
    one after
the other, without padding, and `lengths` of shape `(batch_size,)` says where each ends. All ids and lengths are int64.

Randomness comes in as an [`ExampleRandom`], which draws for every example from its own key. What happens to an example
therefore depends neither on the other examples of the batch nor on their number.
"""

from enum import IntEnum

import numpy as np

# Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators", figure 1 (finalizer: variant 13 of
# Stafford).
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
# Any other odd number keeps the streams of one example apart; this one is the multiplier of Knuth's MMIX generator.
_STREAM_GAMMA = 6364136223846793005
_LARGEST_KEY = np.uint32(0xFFFFFFFF)


class Draw(IntEnum):
    """What a random draw is for. Each purpose has a stream of its own, so that one draw never shifts another."""

    NOISE_SPANS = 1
    KEPT_SPANS = 2
    SENTINELS = 3
    SENTENCE_IDS = 4
    IS_SHUFFLED = 5
    SENTENCE_ORDER = 6
    PREFIX = 7


class ExampleRandom:
    """
    Counter-based random numbers: the i-th number of an example is a hash of (its key, the purpose, i).

    Args:
        keys (`np.ndarray` of shape `(batch_size,)`, uint64): from [`example_keys`].

    Source: SplitMix64 of Steele, Lea and Flood (2014), started at a hash of key and purpose.
    """

    def __init__(self, keys):
        self.keys = keys

    def bits(self, purpose, width):
        """uint32 numbers of shape `(batch_size, width)`; a larger `width` appends columns and changes none."""
        streams = _mix(self.keys + np.uint64(purpose * _STREAM_GAMMA % 2**64))  # (batch_size,)
        steps = np.arange(1, (width + 1) // 2 + 1, dtype=np.uint64) * _GOLDEN_GAMMA  # two 32-bit numbers per step
        return _mix(streams[:, None] + steps).view(np.uint32)[:, :width]

    def uniform(self, purpose):
        """float64 numbers of shape `(batch_size,)` in [0, 1)."""
        return self.bits(purpose, 1)[:, 0] * 2.0**-32

    def permutations(self, purpose, size):
        """Uniformly random permutations of `range(size)`: int64 of shape `(batch_size, size)`."""
        index_bits = np.uint32(max(size - 1, 1).bit_length())
        columns = np.arange(size, dtype=np.uint32)
        # Sorting (random high bits | column) is faster than argsort, and no two keys are equal.
        keys = (self.bits(purpose, size) >> index_bits << index_bits) | columns
        return (np.sort(keys, axis=1) & ((np.uint32(1) << index_bits) - np.uint32(1))).astype(np.int64)


def example_keys(token_ids, lengths, seed, epoch):
    """
    One key per example, a hash of (seed, epoch, the example's own token ids).

    An example is known by its content, so that maps, streams, shards and workers agree on it without an index column.
    Two examples with the same words get the same noise within an epoch and another one in the next.

    Args:
        token_ids (`np.ndarray` of shape `(lengths.sum(),)`): the rows, one after the other.
        lengths (`np.ndarray` of shape `(batch_size,)`): tokens per row, each at least 1.
        seed (`int`): of the run.
        epoch (`int`): visit of the data set.

    Returns:
        `np.ndarray` of shape `(batch_size,)`, uint64.

    Source: multilinear hashing, Lemire and Kaser (2014), "Strongly universal string hashing is fast".
    """
    multipliers = _mix(np.arange(1, lengths.max() + 1, dtype=np.uint64) * _GOLDEN_GAMMA)
    products = token_ids.astype(np.uint64) * multipliers[_positions(lengths)]
    sums = np.add.reduceat(products, _starts(lengths)) + lengths.astype(np.uint64) * _GOLDEN_GAMMA
    run = _mix(np.array([seed % 2**64], np.uint64)) + np.array([epoch % 2**64], np.uint64) * _GOLDEN_GAMMA  # (1,)
    return _mix(_mix(sums) ^ _mix(run))


def noise_counts(num_tokens, noise_density, mean_noise_span_length):
    """
    How many tokens are hidden, and in how many spans.

    Args:
        num_tokens (`int` or `np.ndarray` of any shape): words of an example, at least 1 (1 word is never hidden).
        noise_density (`float`): share of the words to hide, in (0, 1).
        mean_noise_span_length (`float`): words per span, at least 1.

    Returns:
        Two integer arrays shaped like `num_tokens`: hidden tokens, spans.

    Source: Raffel et al. (2020), section 3.1.4; `random_spans_noise_mask` of the T5 code base. Where more than half of
    the words are hidden, there are never more spans than kept words to set them apart.
    """
    num_tokens = np.asarray(num_tokens)
    num_noise = np.rint(num_tokens * noise_density).astype(np.int64)
    num_noise = np.minimum(np.maximum(num_noise, 1), num_tokens - 1)
    return num_noise, _clip_spans(num_noise / mean_noise_span_length, num_tokens, num_noise)


def depth_noise_counts(num_tokens, num_sentences, noise_density, mean_noise_span_length):
    """
    How many words of a DEPTH example are hidden, in how many spans, and how often a span can meet the end of a
    sentence.

    A span that would run into the next sentence is cut in two there. Of the `num_tokens - 1` places between two words,
    `num_noise - num_spans` lie inside a span, so that on average `(num_sentences - 1) * (num_noise - num_spans) /
    (num_tokens - 1)` spans are cut. `num_spans` is lowered such that both together give the mean span length that was
    asked for.

    Args:
        num_tokens (`int` or `np.ndarray`): words of an example, at least 1.
        num_sentences (`int` or `np.ndarray`): of the example, from 1 to `num_tokens`.
        noise_density, mean_noise_span_length: see [`noise_counts`].

    Returns:
        Three integer arrays: hidden tokens, spans before cutting, most cuts that can happen.
    """
    num_tokens, num_sentences = np.asarray(num_tokens), np.asarray(num_sentences)
    num_noise, _ = noise_counts(num_tokens, noise_density, mean_noise_span_length)
    spans = num_noise * ((num_tokens - 1) / mean_noise_span_length - (num_sentences - 1))
    num_spans = _clip_spans(spans / np.maximum(num_tokens - num_sentences, 1), num_tokens, num_noise)
    return num_noise, num_spans, np.minimum(num_sentences - 1, np.maximum(num_noise - num_spans, 0))


def t5_input_and_target_lengths(num_tokens, noise_density, mean_noise_span_length):
    """
    Exact lengths of a T5 example after corruption, `</s>` included in both.

    Args:
        num_tokens (`int` or `np.ndarray`): raw words, at least 2.
        noise_density, mean_noise_span_length: see [`noise_counts`].

    Returns:
        `(input_length, target_length)`, integers shaped like `num_tokens`.

    >>> [int(length) for length in t5_input_and_target_lengths(568, 0.15, 3.0)]
    [512, 114]
    """
    num_noise, num_spans = noise_counts(num_tokens, noise_density, mean_noise_span_length)
    return num_tokens - num_noise + num_spans + 1, num_noise + num_spans + 1


def t5_raw_length(max_source_length, noise_density, mean_noise_span_length, max_target_length=None):
    """
    The largest number of raw words whose corrupted input (and target, if a maximum is given) fits.

    Args:
        max_source_length (`int`): tokens of the corrupted input, `</s>` included, at least 3.
        noise_density, mean_noise_span_length: see [`noise_counts`].
        max_target_length (`int`, *optional*): tokens of the target, `</s>` included, at least 3.

    Returns:
        `int`

    Raises:
        `ValueError`: if not even two words fit.

    >>> t5_raw_length(512, 0.15, 3.0), t5_raw_length(512, 0.3, 3.0)
    (568, 639)
    """
    candidates = np.arange(2, int(max_source_length / (1 - noise_density)) + 3)  # the input keeps (1 - density) of the words
    input_lengths, target_lengths = t5_input_and_target_lengths(candidates, noise_density, mean_noise_span_length)
    fits = input_lengths <= max_source_length
    if max_target_length is not None:
        fits &= target_lengths <= max_target_length
    if not fits.any():
        raise ValueError(
            f"No text fits into `max_source_length`={max_source_length} and `max_target_length`={max_target_length}: "
            "two words need 3 tokens in each. Raise them."
        )
    return int(candidates[fits][-1])


def depth_input_and_target_lengths(num_tokens, num_sentences, noise_density, mean_noise_span_length):
    """
    Upper bounds of the lengths of a DEPTH example after corruption. The draw decides how many spans are cut at the end
    of a sentence; the bounds hold for every draw.

    Args:
        num_tokens (`int` or `np.ndarray`): words of the example, at least 1.
        num_sentences (`int` or `np.ndarray`): of the example, from 1 to `num_tokens`.
        noise_density, mean_noise_span_length: see [`noise_counts`].

    Returns:
        `(input_length, target_length)`, integers. An input is `<eosen>`, a sentence token and `<eosen>` per sentence,
        the kept words, one sentinel per span, `</s>`; a target the same without the first `<eosen>` and with the
        hidden words.
    """
    num_noise, num_spans, most_cuts = depth_noise_counts(
        num_tokens, num_sentences, noise_density, mean_noise_span_length
    )
    special = 2 * num_sentences + np.where(num_noise > 0, num_spans, 0) + most_cuts + 1
    return 1 + special + num_tokens - num_noise, special + num_noise


def random_noise_mask(lengths, num_noise, num_spans, random):
    """
    Hide random spans of words. Kept and hidden spans take turns, beginning with a kept one; subject to the given
    numbers, all such masks are equally likely.

    Args:
        lengths (`np.ndarray` of shape `(batch_size,)`): words per row.
        num_noise (`np.ndarray` of shape `(batch_size,)`): hidden words per row.
        num_spans (`np.ndarray` of shape `(batch_size,)`): hidden spans per row, at least 1.
        random ([`ExampleRandom`]): of these rows.

    Returns:
        `np.ndarray` of shape `(lengths.sum(),)`, bool: `True` = hidden.

    Source: Raffel et al. (2020), section 3.1.4; `random_spans_noise_mask` of the T5 code base.
    """
    kept = _random_segmentation(lengths - num_noise, num_spans, random, Draw.KEPT_SPANS)
    hidden = _random_segmentation(num_noise, num_spans, random, Draw.NOISE_SPANS)
    span_lengths = np.stack([kept, hidden], axis=1).ravel()  # (2 * num_spans.sum(),)
    return np.repeat(np.tile([False, True], len(kept)), span_lengths)


def corrupt_t5(token_ids, lengths, num_noise, num_spans, sentinel_ids, eos_token_id, random):
    """
    T5 span corruption: each hidden span becomes one sentinel in the input; the target lists sentinels and hidden
    words.

    Args:
        token_ids (`np.ndarray` of shape `(lengths.sum(),)`): words of the rows, one row after the other.
        lengths (`np.ndarray` of shape `(batch_size,)`): words per row, at least 2.
        num_noise, num_spans (`np.ndarray` of shape `(batch_size,)`): from [`noise_counts`].
        sentinel_ids (`np.ndarray` of shape `(num_sentinels,)`): handed out in order in every row.
        eos_token_id (`int`): closes inputs and targets.
        random ([`ExampleRandom`]): of these rows.

    Returns:
        `((input_ids, input_lengths), (target_ids, target_lengths))`, each pair as described at the top of this module.

    Raises:
        `ValueError`: if a row has more spans than there are sentinels.
    """
    check_enough_sentinels(num_spans, sentinel_ids)
    is_hidden = random_noise_mask(lengths, num_noise, num_spans, random)  # (num_tokens,)
    is_start = _span_starts(is_hidden)
    sentinels = sentinel_ids[_positions(num_spans)]  # (num_spans.sum(),)
    kept, hidden = _replace_spans(token_ids, is_hidden, is_start, sentinels)
    return (
        _append_eos(kept, lengths - num_noise + num_spans, eos_token_id),
        _append_eos(hidden, num_noise + num_spans, eos_token_id),
    )


def split_prefix(token_ids, lengths, eos_token_id, random):
    """
    Prefix language modelling: cut every row at a place drawn uniformly from its inner places.

    Args:
        token_ids (`np.ndarray` of shape `(lengths.sum(),)`): words of the rows, one row after the other.
        lengths (`np.ndarray` of shape `(batch_size,)`): words per row, at least 2.
        eos_token_id (`int`): closes inputs and targets.
        random ([`ExampleRandom`]): of these rows.

    Returns:
        `((input_ids, input_lengths), (target_ids, target_lengths))`, each pair as described at the top of this module.
    """
    prefix_lengths = 1 + (random.uniform(Draw.PREFIX) * (lengths - 1)).astype(np.int64)  # from 1 to length - 1
    is_prefix = _positions(lengths) < np.repeat(prefix_lengths, lengths)
    return (
        _append_eos(token_ids[is_prefix], prefix_lengths, eos_token_id),
        _append_eos(token_ids[~is_prefix], lengths - prefix_lengths, eos_token_id),
    )


def corrupt_depth(
    token_ids,
    sentence_lengths,
    num_sentences,
    num_noise,
    num_spans,
    sentinel_ids,
    sentence_token_ids,
    eosen_token_id,
    eos_token_id,
    shuffling_probability,
    random,
):
    """
    DEPTH corruption: spans of words are hidden, and some examples show their sentences to the encoder in a random
    order.

    Args:
        token_ids (`np.ndarray` of shape `(num_tokens,)`): words of the rows, one row after the other.
        sentence_lengths (`np.ndarray` of shape `(num_sentences.sum(),)`): words per sentence, at least 1.
        num_sentences (`np.ndarray` of shape `(batch_size,)`): sentences per row, at least 1.
        num_noise, num_spans (`np.ndarray` of shape `(batch_size,)`): from [`depth_noise_counts`].
        sentinel_ids, sentence_token_ids (`np.ndarray`): per row, a random draw without replacement is used of each.
        eosen_token_id, eos_token_id (`int`): end of a sentence, end of inputs and targets.
        shuffling_probability (`float`): share of the rows whose sentences are permuted in the input.
        random ([`ExampleRandom`]): of these rows.

    Returns:
        `((input_ids, input_lengths), (target_ids, target_lengths))`, each pair as described at the top of this module.

    Source: DEPTH (arXiv 2405.07788). Special tokens are never hidden; a shuffled example differs from the same example
    left in order in nothing but the order of the sentences in its input.
    """
    first_sentences = _starts(num_sentences)  # (batch_size,): index of the first sentence of each row
    lengths = np.add.reduceat(sentence_lengths, first_sentences)  # (batch_size,)
    first_words = _starts(sentence_lengths)  # (total_sentences,)

    is_hidden = random_noise_mask(lengths, num_noise, num_spans, random)  # (num_tokens,)
    is_start = _span_starts(is_hidden, first_words)
    hidden_counts = np.add.reduceat(is_hidden, first_words, dtype=np.int64)  # (total_sentences,)
    span_counts = np.add.reduceat(is_start, first_words, dtype=np.int64)  # (total_sentences,)

    num_spans = np.add.reduceat(span_counts, first_sentences)  # (batch_size,): after cutting at the ends of sentences
    check_enough_sentinels(num_spans, sentinel_ids)
    sentinels = _draw_ids(sentinel_ids, num_spans, random, Draw.SENTINELS)  # (num_spans.sum(),)
    marks = _draw_ids(sentence_token_ids, num_sentences, random, Draw.SENTENCE_IDS)  # (total_sentences,)
    kept, hidden = _replace_spans(token_ids, is_hidden, is_start, sentinels)

    order = first_sentences.repeat(num_sentences) + _sentence_order(
        num_sentences, len(sentence_token_ids), shuffling_probability, random
    )
    kept_counts = sentence_lengths - hidden_counts + span_counts  # (total_sentences,)
    kept = _reorder(kept, kept_counts, order)
    row_specials = 2 * num_sentences
    inputs = _mark_sentences(kept, kept_counts[order], marks[order], eosen_token_id)
    input_lengths = lengths - num_noise + num_spans + row_specials
    inputs = np.insert(inputs, _starts(input_lengths), eosen_token_id)
    targets = _mark_sentences(hidden, hidden_counts + span_counts, marks, eosen_token_id)
    return (
        _append_eos(inputs, input_lengths + 1, eos_token_id),
        _append_eos(targets, num_noise + num_spans + row_specials, eos_token_id),
    )


def check_enough_sentinels(num_spans, sentinel_ids):
    """Raise a `ValueError` if one of the rows has more spans than there are sentinels."""
    if num_spans.max() > len(sentinel_ids):
        raise ValueError(
            f"An example can have {num_spans.max()} hidden spans, but the tokenizer has {len(sentinel_ids)} sentinels "
            "(`<extra_id_0>`, …), and no two spans may share one. Raise `mean_noise_span_length`, lower "
            "`mlm_probability`, use shorter windows, or a tokenizer with more sentinels."
        )


def _mix(numbers):
    """The finalizer of SplitMix64, in place on a fresh uint64 array: every input bit changes every output bit."""
    numbers ^= numbers >> _SHIFT_1
    numbers *= _MIX_1
    numbers ^= numbers >> _SHIFT_2
    numbers *= _MIX_2
    numbers ^= numbers >> _SHIFT_3
    return numbers


def _starts(lengths):
    """Index of the first element of every row."""
    return np.cumsum(lengths) - lengths


def _positions(lengths):
    """Index of every element within its row: `[2, 3]` -> `[0, 1, 0, 1, 2]`."""
    return np.arange(lengths.sum()) - np.repeat(_starts(lengths), lengths)


def _clip_spans(num_spans, num_tokens, num_noise):
    """Round to whole spans: at least one, each with a hidden word and a kept word before it."""
    most_spans = np.minimum(num_noise, num_tokens - num_noise)
    return np.maximum(np.minimum(np.rint(num_spans).astype(np.int64), most_spans), 1)


def _random_segmentation(num_items, num_segments, random, purpose):
    """
    Cut each row's `num_items` items into `num_segments` non-empty segments, all segmentations equally likely.

    Returns the lengths of the segments, shape `(num_segments.sum(),)`. A row without items has one segment of length
    0.
    """
    rows = np.arange(len(num_items))
    columns = np.arange(num_items.max() + 1)  # column j = the place after item j
    is_inner = (columns > 0) & (columns < num_items[:, None])  # (batch_size, columns): places between two items
    keys = np.where(is_inner, random.bits(purpose, len(columns)), _LARGEST_KEY)

    # The places with the `num_segments - 1` smallest keys are cut.
    thresholds = np.sort(keys, axis=1)[rows, num_segments - 1]
    is_end = keys < thresholds[:, None]
    if np.count_nonzero(is_end) != num_segments.sum() - len(rows):  # two equal keys at a threshold: one row in 10^7
        is_end = np.argsort(np.argsort(keys, axis=1, kind="stable"), axis=1) < num_segments[:, None] - 1
    is_end[rows, num_items] = True

    ends = np.nonzero(is_end)[1]  # (num_segments.sum(),)
    lengths = np.diff(ends, prepend=0)
    first_segments = _starts(num_segments)
    lengths[first_segments] = ends[first_segments]
    return lengths


def _span_starts(is_hidden, first_words=None):
    """`True` at the first word of every hidden span; a span is cut in two before each of `first_words`."""
    is_start = is_hidden.copy()
    is_start[1:] &= ~is_hidden[:-1]  # rows begin with a kept word, so that no span runs on from the row before
    if first_words is not None:
        is_start[first_words] = is_hidden[first_words]
    return is_start


def _replace_spans(token_ids, is_hidden, is_start, sentinels):
    """Kept words with a sentinel for every hidden span, and hidden words with their sentinel before every span."""
    with_sentinels = token_ids.copy()
    with_sentinels[is_start] = sentinels
    kept = with_sentinels[~is_hidden | is_start]
    hidden = np.insert(token_ids[is_hidden], np.flatnonzero(is_start[is_hidden]), sentinels)
    return kept, hidden


def _append_eos(values, lengths, eos_token_id):
    """Close every row with `</s>`; returns `(values, lengths)` of the closed rows."""
    return np.insert(values, np.cumsum(lengths), eos_token_id), lengths + 1


def _draw_ids(ids, counts, random, purpose):
    """Per row, `counts` of the `ids` in random order, without replacement; shape `(counts.sum(),)`."""
    is_used = np.arange(len(ids)) < counts[:, None]  # (batch_size, len(ids))
    return ids[random.permutations(purpose, len(ids))[is_used]]


def _sentence_order(num_sentences, max_sentences, shuffling_probability, random):
    """Encoder order of every row's sentences, counted from 0 within the row; shape `(num_sentences.sum(),)`."""
    columns = np.arange(max_sentences)
    order = random.permutations(Draw.SENTENCE_ORDER, max_sentences)  # (batch_size, max_sentences)
    is_used = order < num_sentences[:, None]  # leaving out the larger numbers leaves a uniform permutation of the others
    shuffled = order[is_used]
    is_shuffled = random.uniform(Draw.IS_SHUFFLED) < shuffling_probability  # (batch_size,)
    in_order = np.broadcast_to(columns, order.shape)[columns < num_sentences[:, None]]
    return np.where(np.repeat(is_shuffled, num_sentences), shuffled, in_order)


def _reorder(values, lengths, order):
    """Put segments of the given lengths in another order."""
    new_lengths = lengths[order]
    shifts = _starts(lengths)[order] - _starts(new_lengths)  # (num_segments,)
    return values[np.arange(len(values)) + np.repeat(shifts, new_lengths)]


def _mark_sentences(words, lengths, sentence_tokens, eosen_token_id):
    """Put every sentence between its sentence token and `<eosen>`."""
    ends = np.cumsum(lengths)
    places = np.stack([ends - lengths, ends], axis=1).ravel()  # (2 * num_sentences,)
    marks = np.stack([sentence_tokens, np.full_like(sentence_tokens, eosen_token_id)], axis=1).ravel()
    return np.insert(words, places, marks)
