"""
Ragged batches: sequences of different lengths without padding, a pair `(values, lengths)`.

`values` of shape `(lengths.sum(),)` holds the sequences one after the other, `lengths` of shape `(batch_size,)` says
how long each is. Ids and lengths are int64.
"""

import numpy as np

# The values of all sequences one after the other, and the length of each sequence.
Ragged = tuple[np.ndarray, np.ndarray]


def run_starts(lengths: np.ndarray) -> np.ndarray:
    """
    Place of the first element of every run, for runs of these lengths one after the other: int64, `(num_runs,)`.

    >>> run_starts(np.array([2, 3])).tolist()
    [0, 2]
    """
    return np.cumsum(lengths) - lengths


def run_positions(lengths: np.ndarray) -> np.ndarray:
    """
    Place of every element within its run, for runs of these lengths: int64, `(lengths.sum(),)`.

    >>> run_positions(np.array([2, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    return np.arange(lengths.sum()) - np.repeat(run_starts(lengths), lengths)


def copy_runs(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """
    `values[start : start + length]` of all runs, one after the other.

    The places to copy from are the running sum of steps: a jump to the start of a run, then ones. For runs as short as
    those of masked tokens this is faster than `np.repeat`, in which a processor cannot predict where a run ends.

    Args:
        values (`np.ndarray` of shape `(num_values,)`): what to copy from.
        starts, lengths (`np.ndarray` of shape `(num_runs,)`, int64): first places, and elements of each run, at least
            1. A run may reach beyond `values` on either side, for places that the caller fills.

    >>> copy_runs(np.array([10, 11, 12, 13]), starts=np.array([2, 0]), lengths=np.array([2, 3])).tolist()
    [12, 13, 10, 11, 12]
    """
    if len(values) == 0:
        return np.empty(lengths.sum(), values.dtype)
    begins = run_starts(lengths)
    steps = np.ones(lengths.sum(), np.int64)
    steps[begins[:1]] = starts[:1]
    steps[begins[1:]] = starts[1:] - (starts + lengths)[:-1] + 1
    places = np.cumsum(steps, out=steps)
    return values.take(places, mode="clip")
