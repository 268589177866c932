"""What a run needs of each task: load, limit, prepare, mix."""

from collections.abc import Sequence

from datasets import Dataset, interleave_datasets


def mix_tasks(parts: Sequence[Dataset], seed: int, maximum: int = 65_536, temperature: float = 1.0) -> Dataset:
    """
    The training rows of several tasks as one data set, each row drawn from a task at random, see [`mixing_rates`].

    It ends when each row of each task has occurred once; rows of the tasks that end before occur again.

    Args:
        parts: prepared rows of each task.
        seed: of the draws.
    """
    if len(parts) == 1:
        return parts[0]
    rates = mixing_rates([len(rows) for rows in parts], maximum, temperature)
    return interleave_datasets(list(parts), probabilities=rates, seed=seed, stopping_strategy="all_exhausted")


def mixing_rates(sizes: Sequence[int], maximum: int = 65_536, temperature: float = 1.0) -> list[float]:
    """
    How often each task is drawn: in proportion to `min(size, maximum) ** (1 / temperature)`.

    Args:
        sizes: the number of rows of each task.
        maximum: a larger task counts as if it had so many rows.
        temperature: 1.0 is in proportion to the rows, a large one draws all tasks equally often.

    Source: Raffel et al. (2020), section 3.5.2.

    >>> mixing_rates([10, 20, 1000], maximum=30)
    [0.16666666666666666, 0.3333333333333333, 0.5]
    """
    for name, value, least in (("mixing_maximum", maximum, 1), ("mixing_temperature", temperature, 1.0)):
        if value < least:
            raise ValueError(f"`{name}` must be at least {least}, got {value}.")
    weights = [min(size, maximum) ** (1 / temperature) for size in sizes]
    return [weight / sum(weights) for weight in weights]
