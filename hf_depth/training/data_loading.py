"""How the trainers make data loaders: the order of an epoch by its seed, evaluations by their own settings."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler
from transformers import TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from .evaluation_order import LongestFirstSampler, input_lengths

if TYPE_CHECKING:
    from .trainer import DepthTrainer


@contextlib.contextmanager
def loading(trainer: "DepthTrainer", data_collator: Callable[..., Any], **settings: bool) -> Iterator[None]:
    """
    Another collator, and other values of arguments, while a trainer makes a data loader.

    Args:
        trainer (`DepthTrainer`): gets its own collator and arguments back.
        data_collator (`Callable`): of the data loader.
        settings: of the arguments `dataloader_…`, without that prefix.
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
    What draws the order of an evaluation: the longest examples first where their lengths are known.

    Args:
        sampler_fn (`Callable`): what does so otherwise.
    """

    def sampler(dataset: Dataset) -> Sampler | None:
        lengths = input_lengths(dataset)
        return sampler_fn(dataset) if lengths is None else LongestFirstSampler(lengths)

    return sampler


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


def set_epoch_of_sampler(loader: DataLoader, epoch: int, args: TrainingArguments) -> None:
    """
    Let the order of an epoch be a function of the seed and its number, so that a resumed run goes on in it.

    `Trainer` does not find the sampler of each loader in the first epoch of a resumed run, and that of
    `group_by_length` draws from the generator of the process.
    """
    sampler = innermost_sampler(loader)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    elif isinstance(sampler, LengthGroupedSampler):
        seed = args.seed if args.data_seed is None else args.data_seed
        sampler.generator = torch.Generator().manual_seed(seed + epoch)
