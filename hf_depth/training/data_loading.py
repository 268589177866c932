"""Helpers that make the data loaders of the trainers and set the order of their examples."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler
from transformers import TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from .evaluation import longest_first

if TYPE_CHECKING:
    from .trainer import DepthTrainer


@contextlib.contextmanager
def loading(trainer: "DepthTrainer", data_collator: Callable[..., Any], **settings: bool) -> Iterator[None]:
    """
    Use another collator and other settings while a trainer makes a data loader in this block.

    Args:
        trainer (`DepthTrainer`): the trainer. Its own collator and arguments are restored at the end.
        data_collator (`Callable`): the collator of the data loader.
        settings: values of the arguments `dataloader_…`, by their names without that prefix.
    """
    args, collator, trainer.data_collator = trainer.args, trainer.data_collator, data_collator
    before = {f"dataloader_{name}": getattr(args, f"dataloader_{name}") for name in settings}
    try:
        for name, value in settings.items():
            setattr(args, f"dataloader_{name}", value)
        yield
    finally:
        trainer.data_collator = collator
        for name, value in before.items():
            setattr(args, name, value)


def evaluation_sampler(sampler_fn: Callable[[Dataset], Sampler | None]) -> Callable[[Dataset], Sampler | None]:
    """
    Return a function that makes the sampler of an evaluation: the longest examples first, if lengths are known.

    Args:
        sampler_fn (`Callable`): makes the sampler if lengths are unknown.
    """

    def sampler(dataset: Dataset) -> Sampler | None:
        order = longest_first(dataset)
        return sampler_fn(dataset) if order is None else order

    return sampler


def innermost_sampler(loader: DataLoader) -> Any:
    """
    Return the sampler that draws the order of a data loader, without the wrappers of accelerate.

    >>> type(innermost_sampler(DataLoader(["an example"]))).__name__
    'SequentialSampler'
    """
    sampler = getattr(loader, "batch_sampler", None)
    while hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    return getattr(sampler, "sampler", sampler)


def set_epoch_of_sampler(loader: DataLoader, epoch: int, args: TrainingArguments) -> None:
    """
    Make the order of an epoch depend only on its number and the seed, so that a resumed run continues it.

    `Trainer` alone fails at this in the first epoch of a resumed run and with `group_by_length`.
    """
    sampler = innermost_sampler(loader)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    elif isinstance(sampler, LengthGroupedSampler):
        seed = args.seed if args.data_seed is None else args.data_seed
        sampler.generator = torch.Generator().manual_seed(seed + epoch)
