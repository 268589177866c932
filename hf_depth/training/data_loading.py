"""Helpers that make the data loaders of the trainers, set the order of their examples, and guard their workers."""

import functools
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import TrainingArguments
from transformers.trainer_pt_utils import LengthGroupedSampler

from ..arguments.launch import STOP_SIGNALS

WORKER_SIGNALS = {signal.SIGINT, *STOP_SIGNALS}


def innermost_sampler(loader: DataLoader) -> Any:
    """The sampler that draws the order of a data loader, without the wrappers of accelerate."""
    sampler = getattr(loader, "batch_sampler", None)
    while hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    return getattr(sampler, "sampler", sampler)


def set_epoch_of_sampler(loader: DataLoader, epoch: int, args: TrainingArguments) -> None:
    """
    Make the order of an epoch depend only on its number and the seed, so that a resumed run continues it. `Trainer`
    fails at this in the first epoch of a resumed run and with `group_by_length`.
    """
    sampler = innermost_sampler(loader)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    elif isinstance(sampler, LengthGroupedSampler):
        seed = args.seed if args.data_seed is None else args.data_seed
        sampler.generator = torch.Generator().manual_seed(seed + epoch)


def without_signals(dataloader: DataLoader) -> DataLoader:
    """
    A data loader whose workers ignore signals. Launchers, clusters and Ctrl-C signal whole groups of processes: a
    worker that ended would stop the run before its checkpoint is saved.
    """
    loader = getattr(dataloader, "base_dataloader", dataloader)  # without the wrapper of accelerate
    if not loader.num_workers:
        return dataloader
    loader.worker_init_fn = functools.partial(_ignore_signals, loader.worker_init_fn)
    start_workers = loader._get_iterator

    def start_without_signals() -> Any:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, WORKER_SIGNALS)  # until `worker_init_fn` is called
        try:
            return start_workers()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    loader._get_iterator = start_without_signals
    return dataloader


def _ignore_signals(worker_init_fn: Callable[[int], None] | None, worker_id: int) -> None:
    """A `worker_init_fn`, before another one. Only the process that reads from a worker ends it by SIGTERM."""
    for signum in WORKER_SIGNALS - {signal.SIGTERM}:
        signal.signal(signum, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_parent, daemon=True).start()
    else:  # macOS, where any process can end it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


def _end_with_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
