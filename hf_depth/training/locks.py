"""[`alone_in_output_dir`]: no two runs train in one folder at the same time."""

import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from accelerate.utils import gather_object
from transformers import TrainingArguments

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

logger = logging.getLogger(__name__)

LOCK_FILE = "_lock"  # in `output_dir`; uploads to the Hub leave out `_*`
LOCK_TIMEOUT = 120.0  # seconds: a run that was told to end saves first, and a file server keeps locks of a dead node
IS_HELD = frozenset((errno.EACCES, errno.EAGAIN))  # what `lockf` answers then; anything else is that it cannot lock

_held: set[str] = set()  # by this process


@contextlib.contextmanager
def alone_in_output_dir(training_args: TrainingArguments) -> Iterator[None]:
    """
    No other run is in such a block for `output_dir` meanwhile. All processes of a run enter it; blocks may be nested.

    Where files cannot be locked, as on some network file systems, that is only warned of.

    Raises:
        `ValueError`: on all processes, if another run does not leave it within `LOCK_TIMEOUT` seconds.
    """
    with contextlib.ExitStack() as locks:
        problem = None
        if training_args.should_save:
            try:
                locks.enter_context(_alone_in(Path(training_args.output_dir)))
            except ValueError as error:
                problem = str(error)
        problem = next((one for one in gather_object([problem]) if one is not None), None)
        if problem is not None:
            hint = " Nodes that share a disk need no `--save_on_each_node`." * training_args.save_on_each_node
            raise ValueError(problem + hint)
        yield


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    key = os.path.realpath(folder)
    if key in _held:
        yield
        return
    path, descriptor = folder / LOCK_FILE, None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path)
    except OSError as error:
        logger.warning(f"{folder} cannot be locked ({error}): see that no other run uses it at the same time.")
    _held.add(key)
    try:
        yield
    finally:
        _held.discard(key)
        if descriptor is not None:
            with contextlib.suppress(OSError):
                path.unlink()  # before the release: afterwards it may be that of another run
            os.close(descriptor)


def _acquire(path: Path) -> int:
    """Wait for a descriptor that holds the lock."""
    deadline, owner = time.monotonic() + LOCK_TIMEOUT, None
    while (descriptor := _try_to_acquire(path)) is None:
        if owner is None:
            owner = _owner(path)
            logger.warning(f"Waiting for another run{owner} to leave {path.parent}.")
        if time.monotonic() >= deadline:
            raise ValueError(
                f"Another run{owner} trains in {path.parent}: the two would mix their checkpoints. Wait for its end, "
                f"stop it, or choose another `--output_dir`. If that process is gone with its machine, delete {path}."
            )
        time.sleep(min(0.5, LOCK_TIMEOUT))
    return descriptor


def _try_to_acquire(path: Path) -> int | None:
    """
    A descriptor that holds the lock, `None` if another process does.

    The system releases it when this process ends, in whatever way. Workers of a data loader, which outlive a process
    that is killed, do not inherit it, unlike one of `flock`, which `filelock` takes.
    """
    if fcntl is None:
        raise OSError(errno.ENOSYS, "no fcntl")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink == 0:  # removed by its owner since it was opened
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
    except OSError as error:
        os.close(descriptor)
        if error.errno in IS_HELD:
            return None
        raise
    return descriptor


def _owner(path: Path) -> str:
    """Which process holds the lock, in brackets; empty if it is not known."""
    try:
        owner = path.read_text(encoding="utf-8")
    except OSError:
        owner = ""
    return f" ({owner})" if owner else ""
