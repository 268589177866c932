"""Data loader workers that ignore signals, so that the training process can handle them."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any

from torch.utils.data import DataLoader

from .checkpoints.stopping import STOP_SIGNALS

WORKER_SIGNALS = {signal.SIGINT, *STOP_SIGNALS}


def without_signals(dataloader: DataLoader) -> DataLoader:
    """Make the workers of a data loader ignore signals, see [`WorkerWithoutSignals`]. Returns the data loader."""
    loader = getattr(dataloader, "base_dataloader", dataloader)  # without the wrapper of accelerate
    if not loader.num_workers or isinstance(loader.worker_init_fn, WorkerWithoutSignals):
        return dataloader
    loader.worker_init_fn = WorkerWithoutSignals(loader.worker_init_fn)
    if hasattr(signal, "pthread_sigmask"):
        start_workers = loader._get_iterator

        def start_without_signals() -> Any:
            # A worker that is not forked runs for seconds before `worker_init_fn` is called.
            if (loader.multiprocessing_context or multiprocessing).get_start_method() != "fork":
                with _blocked_signals():  # signals would end the tracker; start it first, as starting unblocks them
                    resource_tracker.ensure_running()
            with _blocked_signals():
                return start_workers()

        loader._get_iterator = start_without_signals
    return dataloader


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WORKER_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerWithoutSignals:
    """
    A `worker_init_fn` that makes a data loader worker ignore signals.

    Launchers, clusters and Ctrl-C signal whole groups of processes. A worker that ended would stop the run before its
    checkpoint is saved.

    Args:
        worker_init_fn (`Callable`, *optional*): a function to call as well.
    """

    def __init__(self, worker_init_fn: Callable[[int], None] | None):
        self.worker_init_fn = worker_init_fn

    def __call__(self, worker_id: int) -> None:
        for signum in WORKER_SIGNALS - {signal.SIGTERM}:
            signal.signal(signum, signal.SIG_IGN)
        if hasattr(signal, "sigwaitinfo"):
            # Block SIGTERM, too, except the one by which the training process ends a worker.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            threading.Thread(target=_end_with_parent, daemon=True).start()
        elif hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker_id)


def _end_with_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
