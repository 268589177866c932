"""Replacing files at once, locks of folders, and errors of full disks."""

import contextlib
import errno
import logging
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock

logger = logging.getLogger(__name__)

MANIFEST_FILE = "manifest.json"
# The folder for unfinished files. The Trainer does not take it for a checkpoint, and uploads leave out `_*`.
UNFINISHED_FOLDER = "_unfinished"
LOCK_FILE = "_lock"  # in a folder that only one process may use; uploads to the Hub leave out `_*`
FULL_DISK = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
LEAST_ROOM = 1 << 20  # bytes; with less, a disk is full


def replace_text(path: Path, text: str) -> None:
    """Replace a text file at once. If the process is killed, the file has its old or its new content."""
    # Uploads to the Hub leave out `_*`, and no other process uses this name.
    aside = path.with_name(f"_{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush the names of the files in a folder to the disk."""
    with contextlib.suppress(OSError):  # not every file system supports this
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_full_disk(error: BaseException, folder: str | os.PathLike) -> bool:
    """Return whether writing to a folder failed because the disk is full. The error may be of safetensors or torch."""
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        return True
    if any(sign in str(error) for sign in ("No space left", "quota exceeded", "File too large")):
        return True
    is_of_torch = any(sign in str(error) for sign in ("PytorchStreamWriter", "inline_container"))
    return is_of_torch and shutil.disk_usage(folder).free < LEAST_ROOM  # torch gives no reason


@contextlib.contextmanager
def one_error_for_a_full_disk(
    folder: str | os.PathLike, what: str, clean_up: Callable[[], None] | None = None
) -> Iterator[None]:
    """
    Replace an error of a full disk by one line that says what could not be written, and what to do.

    After any error, `clean_up` is called. Blocks may be nested: the line of the inner one stays.
    """
    try:
        yield
    except Exception as error:
        is_line = isinstance(error, OSError) and error.errno is None  # that of an inner block
        is_full = not is_line and is_full_disk(error, folder)
        if clean_up is not None:
            clean_up()
        if not is_full:
            raise
        free = shutil.disk_usage(folder).free
        raise OSError(
            f"The disk of {folder} is full ({free / 1e6:,.1f} MB free): {what} could not be written "
            f"({str(error).splitlines()[0]}). Earlier checkpoints are intact: make room, or keep fewer by "
            "`--save_total_limit`, and run the same command again."
        ) from None


@contextlib.contextmanager
def alone_in(folder: str | os.PathLike, other: str, timeout: float = -1) -> Iterator[None]:
    """
    Lock a folder while the block runs, which may be nested. Waits for `other`; after so many seconds, `TimeoutError`.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    lock = FileLock(Path(folder).resolve() / LOCK_FILE, is_singleton=True)  # all blocks of this process share one
    try:
        with contextlib.suppress(TimeoutError):
            lock.acquire(timeout=0)
        if not lock.is_locked:
            logger.warning(f"Waiting for {other} to release {lock.lock_file}.")
            lock.acquire(timeout=timeout, poll_interval=0.5)
    except TimeoutError:
        raise
    except (OSError, NotImplementedError) as error:
        logger.warning(f"{folder} cannot be locked ({error}): make sure that no other process uses it now.")
    try:
        yield
    finally:
        if lock.is_locked:
            if lock.lock_counter == 1:  # after the release, the file may belong to another process
                Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()
