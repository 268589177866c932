"""[`alone_in_output_dir`], a lock that keeps two runs from training in one folder at the same time."""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from accelerate.utils import gather_object
from filelock import BaseFileLock, FileLock, Timeout
from transformers import TrainingArguments

from ...errors import UserError

logger = logging.getLogger(__name__)

LOCK_FILE = "_lock"  # in `output_dir`; uploads to the Hub leave out `_*`
LOCK_TIMEOUT = 120.0  # seconds: a run that was told to stop saves first; a file server frees locks of dead nodes late
OWNER = "process "  # the start of the text in a lock


@contextlib.contextmanager
def alone_in_output_dir(training_args: TrainingArguments) -> Iterator[None]:
    """
    Lock `output_dir` for this run while the block runs. All processes of a run enter the block, and it may be nested.

    On file systems without locks there is only a warning.

    Raises:
        `ValueError`: on all processes, if another run does not release the lock within `LOCK_TIMEOUT` seconds.
    """
    folder, problem = Path(training_args.output_dir), None
    with contextlib.ExitStack() as locks:
        try:
            if training_args.should_save:
                folder.mkdir(parents=True, exist_ok=True)
                # All blocks of this process share one lock. The system releases it when the process ends, even if the
                # process is killed and its data loader workers outlive it.
                lock = FileLock(folder.resolve() / LOCK_FILE, is_singleton=True)
                _acquire(lock)
                locks.callback(_release, lock)
        except ValueError as error:
            problem = str(error)
        except (OSError, NotImplementedError) as error:
            logger.warning(f"{folder} cannot be locked ({error}): make sure that no other run uses it now.")
        problem = next((one for one in gather_object([problem]) if one is not None), None)
        if problem is not None:
            hint = " Nodes that share a disk need no `--save_on_each_node`." * training_args.save_on_each_node
            raise UserError(problem + hint)
        yield


def _acquire(lock: BaseFileLock) -> None:
    """Wait for the lock, and write the name of this process into its file."""
    path = Path(lock.lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        owner = _owner(path)
        logger.warning(f"Waiting for another run{owner} to leave {path.parent}.")
        try:
            lock.acquire(timeout=LOCK_TIMEOUT, poll_interval=0.5)
        except Timeout:
            raise UserError(
                f"Another run{owner} trains in {path.parent}: the two would mix their checkpoints. Wait for its end, "
                f"stop it, or choose another `--output_dir`. If the machine of that process is gone, delete {path}."
            ) from None
    text = path.read_text(encoding="utf-8")
    if not text or text.startswith(OWNER):  # without file locks, filelock keeps its own text here
        path.write_text(f"{OWNER}{os.getpid()} on {socket.gethostname()}", encoding="utf-8")


def _owner(path: Path) -> str:
    """Return the process that holds the lock, in brackets; an empty text if it is not known."""
    with contextlib.suppress(OSError):
        if text := " ".join(path.read_text(encoding="utf-8").split()):
            return f" ({text})"
    return ""


def _release(lock: BaseFileLock) -> None:
    if lock.lock_counter == 1:  # after the release, the file may belong to another run
        Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
