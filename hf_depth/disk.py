"""
Replacing files at once, manifests of folders, and errors of full disks.

A manifest (`manifest.json`) lists the files of a folder with their sizes and SHA-256. Checkpoints have one.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .errors import UserError

MANIFEST_FILE = "manifest.json"
# The folder for unfinished files. The Trainer does not take it for a checkpoint, and uploads leave out `_*`.
UNFINISHED_FOLDER = "_unfinished"
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


# ---- Manifests ------------------------------------------------------------------------------------------------------


def list_files(folder: str | os.PathLike) -> list[str]:
    """Return the files in a folder and its subfolders, without manifests, as sorted relative paths with `/`."""
    paths = (path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())
    return sorted(path for path in paths if path != MANIFEST_FILE)


def file_entry(path: Path, sync: bool = False) -> dict[str, Any]:
    """Return size and SHA-256 of a file, as a manifest holds them. With `sync`, flush it to the disk as well."""
    with path.open("rb+" if sync else "rb") as file:
        if sync:
            os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"size": file.tell(), "sha256": digest}


def file_entries(folder: str | os.PathLike, paths: Iterable[str], sync: bool = False) -> dict[str, dict[str, Any]]:
    """Return [`file_entry`] for several files of a folder by their relative paths, computed by several threads."""
    paths = list(paths)
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashing releases the GIL
        entries = pool.map(lambda path: file_entry(Path(folder, path), sync), paths)
        return dict(zip(paths, entries, strict=True))


def write_manifest(
    folder: str | os.PathLike, files: Mapping[str, Mapping[str, Any]], sync: bool = True, **more: Any
) -> None:
    """Write the manifest of a folder: its files, see [`file_entries`], and other fields, such as the step."""
    text = json.dumps({**more, "files": dict(sorted(files.items()))}, indent=2)
    if not sync:
        Path(folder, MANIFEST_FILE).write_text(text, encoding="utf-8")
        return
    replace_text(Path(folder, MANIFEST_FILE), text)
    for below in {Path(folder, file).parent for file in files} | {Path(folder)}:
        sync_folder(below)


def read_manifest(folder: str | os.PathLike) -> dict[str, Any] | None:
    """Return the manifest of a folder; `None` if it has none. `ValueError` if it cannot be read."""
    path = Path(folder, MANIFEST_FILE)
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        files = {name: {**entry, "size": entry["size"]} for name, entry in manifest["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{MANIFEST_FILE} cannot be read ({error})") from error
    return manifest | {"files": files}


def damaged_file(folder: str | os.PathLike, files: Mapping[str, Mapping[str, Any]]) -> str | None:
    """
    Return which file is missing or has changed, and how; `None` if all files are as the manifest says. A file without
    a hash is compared by its size.
    """
    for name, entry in files.items():
        path = Path(folder, name)
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["size"]:
            return f"{name} has {path.stat().st_size:,} bytes instead of {entry['size']:,}"
    hashed = [name for name, entry in files.items() if "sha256" in entry]
    for name, found in file_entries(folder, hashed).items():
        if found["sha256"] != files[name]["sha256"]:
            return f"{name} has another content (SHA-256) than when it was written"
    return None


# ---- Full disks -----------------------------------------------------------------------------------------------------


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
