"""
Random numbers of examples: [`ExampleRandom`] draws for every example from a key of its own, a hash of its tokens.

What happens to an example depends neither on the other examples of the batch nor on their number, and is the same on
every machine and in every process.
"""

from enum import IntEnum
from functools import lru_cache

import numpy as np

from .ragged import run_starts

# SplitMix64: the step of its counter, and its output function (variant 13 of Stafford).
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
# Any odd number other than the step keeps the streams of one example apart. This one is the factor of Knuth's MMIX
# generator (TAOCP 2, 3.3.4); it is also the base of the polynomials in `example_keys`.
_KNUTH = 6364136223846793005


class Draw(IntEnum):
    """
    What random bits are for. Each purpose has a stream of its own, so that no draw shifts another. Numbers from 1000
    on are left to noise from outside of this package.
    """

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
    FIRST_UNIT = 27


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

    def bits(self, purpose: Draw | int, width: int) -> np.ndarray:
        """Random bits: uint32, shape `(batch_size, width)`. A larger `width` adds columns and changes none."""
        streams = _mix(self.keys + np.uint64(purpose * _KNUTH % 2**64))  # (batch_size,)
        steps = np.arange(1, (width + 1) // 2 + 1, dtype=np.uint64) * _GOLDEN_GAMMA  # ((width + 1) // 2,)
        # Each number of 64 bits is two of 32 bits.
        return _mix(streams[:, None] + steps).view(np.uint32)[:, :width]

    def uniform(self, purpose: Draw | int) -> np.ndarray:
        """Uniform random numbers: float64 in [0, 1), shape `(batch_size,)`."""
        return self.bits(purpose, 1)[:, 0] * 2.0**-32

    def permutations(self, purpose: Draw | int, size: int) -> np.ndarray:
        """Random orders of the numbers below `size`: uint32, shape `(batch_size, size)`."""
        # Sorting (random high bits | number) is faster than argsort, and no two of the sorted numbers are equal.
        low_bits = np.uint32(2 ** (size - 1).bit_length() - 1)
        numbers = np.arange(size, dtype=np.uint32)  # (size,)
        return np.sort(self.bits(purpose, size) & ~low_bits | numbers, axis=1) & low_bits


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
    starts = run_starts(lengths)  # (batch_size,)
    sums = np.add.reduceat(token_ids.view(np.uint64) * powers[: len(token_ids)], starts) * inverse_powers[starts]
    epochs = np.atleast_1d(np.asarray(epoch, dtype=np.int64)).view(np.uint64)  # (1,) or (batch_size,)
    run = _mix(np.array([seed % 2**64], np.uint64)) + epochs * _GOLDEN_GAMMA  # likewise
    return _mix(_mix(sums + lengths.astype(np.uint64) * _GOLDEN_GAMMA) ^ _mix(run))


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
