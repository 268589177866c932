"""The order of the training data: of each epoch another one, which a resumed run draws again."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers.trainer_pt_utils import LengthGroupedSampler


class SeededLengthGroupedSampler(LengthGroupedSampler):
    """
    A [`LengthGroupedSampler`] whose order is a function of the seed and the epoch. That of transformers draws from the
    generator of the process: a run that is resumed in the middle of an epoch goes on in another order.

    Args:
        seed (`int`): of the order of the first epoch.
        args, kwargs: those of [`LengthGroupedSampler`].

    >>> sampler = SeededLengthGroupedSampler(42, batch_size=2, lengths=[3, 1, 2, 4, 2, 1])
    >>> sampler.set_epoch(1)
    >>> list(sampler) == list(sampler)
    True
    """

    def __init__(self, seed: int, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        """The epoch whose order is drawn next."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return super().__iter__()


def innermost_sampler(loader: DataLoader) -> Any:
    """
    What draws the order of a data loader, inside of what accelerate puts around it. (A `BatchRebalanceSampler` draws
    whole batches.)

    >>> type(innermost_sampler(DataLoader(["an example"]))).__name__
    'SequentialSampler'
    """
    sampler = getattr(loader, "batch_sampler", None)
    while hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    return getattr(sampler, "sampler", sampler)
