"""Workers of a `DataLoader` leave signals to the process that reads from them."""

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
    """The same loader with workers that leave signals to this process, see [`WorkerWithoutSignals`]."""
    loader = getattr(dataloader, "base_dataloader", dataloader)  # inside that of accelerate
    if not loader.num_workers or isinstance(loader.worker_init_fn, WorkerWithoutSignals):
        return dataloader
    loader.worker_init_fn = WorkerWithoutSignals(loader.worker_init_fn)
    if hasattr(signal, "pthread_sigmask"):
        start_workers = loader._get_iterator

        def start_without_signals() -> Any:
            # A worker that is not forked imports for seconds before `worker_init_fn` is called.
            if (loader.multiprocessing_context or multiprocessing).get_start_method() != "fork":
                with _blocked_signals():  # a process that would die of them; started later, it would unblock them
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
    What a worker of a `DataLoader` does first: leave signals to the process that reads from it.

    Launchers, clusters and Ctrl-C signal whole groups of processes. A worker that ends takes the run with it before
    the checkpoint is saved, and prints a traceback of its own.

    Args:
        worker_init_fn (`Callable`, *optional*): what it does besides.
    """

    def __init__(self, worker_init_fn: Callable[[int], None] | None):
        self.worker_init_fn = worker_init_fn

    def __call__(self, worker_id: int) -> None:
        for signum in WORKER_SIGNALS - {signal.SIGTERM}:
            signal.signal(signum, signal.SIG_IGN)
        if hasattr(signal, "sigwaitinfo"):
            # By SIGTERM the process that reads from it ends the worker, so that one is obeyed.
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
