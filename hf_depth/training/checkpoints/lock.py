"""[`alone_in_output_dir`]: no two runs train in one folder at the same time."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from accelerate.utils import gather_object
from filelock import BaseFileLock, FileLock, Timeout
from transformers import TrainingArguments

logger = logging.getLogger(__name__)

LOCK_FILE = "_lock"  # in `output_dir`; uploads to the Hub leave out `_*`
LOCK_TIMEOUT = 120.0  # seconds: a run that was told to end saves first, and a file server keeps locks of a dead node
OWNER = "process "  # how the text of a lock begins


@contextlib.contextmanager
def alone_in_output_dir(training_args: TrainingArguments) -> Iterator[None]:
    """
    No other run is in such a block for `output_dir` meanwhile. All processes of a run enter it; blocks may be nested.

    Where files cannot be locked, as on some network file systems, that is only warned of.

    Raises:
        `ValueError`: on all processes, if another run does not leave it within `LOCK_TIMEOUT` seconds.
    """
    folder, problem = Path(training_args.output_dir), None
    with contextlib.ExitStack() as locks:
        try:
            if training_args.should_save:
                folder.mkdir(parents=True, exist_ok=True)
                # One for all blocks of this process. The system releases it when the process ends, in whatever way:
                # workers of a data loader, which outlive a process that is killed, close what they inherit of it.
                lock = FileLock(folder.resolve() / LOCK_FILE, is_singleton=True)
                _acquire(lock)
                locks.callback(_release, lock)
        except ValueError as error:
            problem = str(error)
        except (OSError, NotImplementedError) as error:
            logger.warning(f"{folder} cannot be locked ({error}): see that no other run uses it at the same time.")
        problem = next((one for one in gather_object([problem]) if one is not None), None)
        if problem is not None:
            hint = " Nodes that share a disk need no `--save_on_each_node`." * training_args.save_on_each_node
            raise ValueError(problem + hint)
        yield


def _acquire(lock: BaseFileLock) -> None:
    """Wait for the lock, and write into its file whose it is."""
    path = Path(lock.lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        owner = _owner(path)
        logger.warning(f"Waiting for another run{owner} to leave {path.parent}.")
        try:
            lock.acquire(timeout=LOCK_TIMEOUT, poll_interval=0.5)
        except Timeout:
            raise ValueError(
                f"Another run{owner} trains in {path.parent}: the two would mix their checkpoints. Wait for its end, "
                f"stop it, or choose another `--output_dir`. If that process is gone with its machine, delete {path}."
            ) from None
    text = path.read_text(encoding="utf-8")
    if not text or text.startswith(OWNER):  # where files cannot be locked, it is what filelock goes by instead
        path.write_text(f"{OWNER}{os.getpid()} on {socket.gethostname()}", encoding="utf-8")


def _owner(path: Path) -> str:
    """Which process holds the lock, in brackets; empty if it is not known."""
    with contextlib.suppress(OSError):
        if text := " ".join(path.read_text(encoding="utf-8").split()):
            return f" ({text})"
    return ""


def _release(lock: BaseFileLock) -> None:
    if lock.lock_counter == 1:  # before the release: afterwards the file may be that of another run
        Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
