"""
Files that stand on a disk as a whole: texts that replace others at once, manifests of folders, what a full disk is.

A manifest (`manifest.json`) lists the files of a folder with their sizes and SHA-256. Folders of shards and
checkpoints have one.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MANIFEST_FILE = "manifest.json"
# What is not finished stands in there. Neither the `checkpoint-*` of `Trainer` nor its uploads (all but `_*`) find it.
UNFINISHED_FOLDER = "_unfinished"
FULL_DISK = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))  # numbers of system errors
PROBE_SIZE = 1 << 20  # bytes that a disk which is not full takes


def replace_text(path: Path, text: str) -> None:
    """Write a file that is there as a whole, as it was before or as it is now, whenever the process ends."""
    # A name that uploads to the Hub leave out, and that no other process takes at the same time.
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
    """Have the names in a folder written to the disk."""
    with contextlib.suppress(OSError):  # not every file system can
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# ---- Manifests ------------------------------------------------------------------------------------------------------


def list_files(folder: str | os.PathLike) -> list[str]:
    """The files in a folder and below it, but no manifest, as sorted relative paths with `/`."""
    paths = (path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())
    return sorted(path for path in paths if path != MANIFEST_FILE)


def file_entry(path: Path, sync: bool = False) -> dict[str, Any]:
    """
    Size and SHA-256 of a file, as a manifest holds them.

    Args:
        path: of the file.
        sync: whether to have it written to the disk as well.
    """
    with path.open("rb+" if sync else "rb") as file:
        if sync:
            os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"size": file.tell(), "sha256": digest}


def file_entries(folder: str | os.PathLike, paths: Iterable[str], sync: bool = False) -> dict[str, dict[str, Any]]:
    """
    [`file_entry`] of several files, by several threads.

    Args:
        folder: that the paths are relative to.
        paths: of the files.
        sync: whether to have them written to the disk as well.
    """
    paths = list(paths)
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashing releases the GIL
        entries = pool.map(lambda path: file_entry(Path(folder, path), sync), paths)
        return dict(zip(paths, entries, strict=True))


def write_manifest(
    folder: str | os.PathLike, files: Mapping[str, Mapping[str, Any]], sync: bool = True, **more: Any
) -> None:
    """
    Write the manifest of a folder.

    Args:
        folder: gets `manifest.json`.
        files: see [`file_entries`].
        sync: whether to have it and the names in the folder written to the disk.
        more: other fields, such as the step.
    """
    text = json.dumps({**more, "files": dict(sorted(files.items()))}, indent=2)
    if not sync:
        Path(folder, MANIFEST_FILE).write_text(text, encoding="utf-8")
        return
    replace_text(Path(folder, MANIFEST_FILE), text)
    for below in {Path(folder, file).parent for file in files} | {Path(folder)}:
        sync_folder(below)


def read_manifest(folder: str | os.PathLike) -> dict[str, Any] | None:
    """
    The manifest of a folder, `None` if it has none.

    Raises:
        `ValueError`: if it cannot be read.
    """
    path = Path(folder, MANIFEST_FILE)
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        files = {name: {**entry, "size": entry["size"]} for name, entry in manifest["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{MANIFEST_FILE} cannot be read ({error})") from error
    return manifest | {"files": files}


def damaged_file(
    folder: str | os.PathLike, files: Mapping[str, Mapping[str, Any]], check_hashes: bool = True
) -> str | None:
    """
    Which file of a manifest is missing or has changed, and how; `None` if none has.

    Args:
        folder: that the names of the files are relative to.
        files: of the manifest. Those without a hash are compared by their sizes.
        check_hashes: read the files to their ends; otherwise only their sizes are compared.
    """
    for name, entry in files.items():
        path = Path(folder, name)
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["size"]:
            return f"{name} has {path.stat().st_size:,} bytes instead of {entry['size']:,}"
    hashed = [name for name, entry in files.items() if check_hashes and "sha256" in entry]
    for name, found in file_entries(folder, hashed).items():
        if found["sha256"] != files[name]["sha256"]:
            return f"{name} has another content (SHA-256) than when it was written"
    return None


# ---- Full disks -----------------------------------------------------------------------------------------------------


def is_full_disk(error: BaseException, folder: str | os.PathLike | None = None) -> bool:
    """
    Whether writing failed for want of space.

    Args:
        error: of the system, of safetensors, which quotes that, or of torch, whose errors do not tell their reason.
        folder: that was written to. After an error of torch it is tried whether a file can be written there.
    """
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        return True
    if any(sign in str(error) for sign in ("No space left", "quota exceeded", "File too large")):
        return True
    is_of_torch = any(sign in str(error) for sign in ("PytorchStreamWriter", "inline_container"))
    return is_of_torch and folder is not None and not _has_room(folder)


def _has_room(folder: str | os.PathLike) -> bool:
    """Whether a small file can be written to a folder. (The free space of the disk does not tell of a quota.)"""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_SIZE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno not in FULL_DISK
    return True


def full_disk_error(folder: str | os.PathLike, problem: str, advice: str) -> OSError:
    """The error of one line that tells of a full disk: what could not be written, and what to do."""
    free = shutil.disk_usage(folder).free
    return OSError(f"The disk of {folder} is full ({free / 1e6:,.1f} MB free): {problem}. {advice}")


@contextlib.contextmanager
def one_error_for_a_full_disk(output_dir: str | os.PathLike) -> Iterator[None]:
    """
    For what a run writes beside its models (metrics, predictions, plots): what is missing is written by the next run.

    Raises:
        `OSError`: in one line, in the place of that of the system.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK:  # the error of a checkpoint, which has no number, says what to do
            raise
        advice = "Make room, and run the same command again: it goes on from its last checkpoint."
        raise full_disk_error(output_dir, f"results could not be written ({error})", advice) from None
