"""Folders that are complete or invisible: written aside, with sizes and hashes of all files, then renamed."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MANIFEST_FILE = "manifest.json"
# In `output_dir`. Neither the `checkpoint-*` of `Trainer` nor its uploads to the Hub (all but `_*`) find it.
UNFINISHED_FOLDER = "_unfinished"
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "adapter_model.safetensors",  # of PEFT, perhaps in a folder with the name of the adapter
)
SHARDED = ("global_step", "pytorch_model_fsdp", "optimizer_0", "optimizer.bin")  # how files of DeepSpeed, FSDP begin
FULL_DISK = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))  # numbers of system errors


# ---- Writing --------------------------------------------------------------------------------------------------------


def list_files(folder: str | os.PathLike) -> list[str]:
    """The files in a folder and below it, but no manifest, as sorted relative paths with `/`."""
    paths = (path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())
    return sorted(path for path in paths if path != MANIFEST_FILE)


def file_entries(folder: str | os.PathLike, paths: Iterable[str], sync: bool = False) -> dict[str, dict[str, Any]]:
    """
    Size and SHA-256 of files, as a manifest holds them.

    Args:
        folder: that the paths are relative to.
        paths: of the files.
        sync: whether to have them written to the disk as well.
    """

    def describe(path: str) -> dict[str, Any]:
        with Path(folder, path).open("rb+" if sync else "rb") as file:
            if sync:
                os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return {"size": file.tell(), "sha256": digest}

    paths = list(paths)
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashing releases the GIL
        return dict(zip(paths, pool.map(describe, paths), strict=True))


def write_manifest(folder: str | os.PathLike, files: Mapping[str, Mapping[str, Any]], **more: Any) -> None:
    """
    Write the manifest of a folder, and have the names in the folder written to the disk.

    Args:
        folder: gets `manifest.json`.
        files: see [`file_entries`].
        more: other fields, such as the step.
    """
    content = {**more, "files": dict(sorted(files.items()))}
    replace_text(Path(folder, MANIFEST_FILE), json.dumps(content, indent=2))
    for below in {Path(folder, file).parent for file in files} | {Path(folder)}:
        sync_folder(below)


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


def publish_folder(folder: Path, target: Path) -> None:
    """Rename a folder that is complete. What stood in its place, such as a damaged checkpoint, is removed."""
    replaced = folder.with_name(f"replaced-{target.name}")
    if target.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        os.replace(target, replaced)
    os.replace(folder, target)
    sync_folder(target.parent)
    remove_aside(replaced)


def remove_aside(folder: Path) -> None:
    """Remove what was written aside, and the folder around it if nothing else is in there."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty, or gone
        folder.parent.rmdir()


def publish_files(folder: Path, target: Path) -> None:
    """Move the files of a folder to another one, where each replaces the file of its name as a whole."""
    for path in list_files(folder):
        Path(target, path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(folder / path, target / path)
    sync_folder(target)
    remove_aside(folder)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder written to the disk."""
    with contextlib.suppress(OSError):  # not every file system can
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_full_disk(error: BaseException) -> bool:
    """Whether writing failed for want of space: torch and safetensors raise errors of their own for that."""
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        return True
    signs = ("No space left", "quota exceeded", "File too large", "PytorchStreamWriter failed", "inline_container")
    return any(sign in str(error) for sign in signs)


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
        free = shutil.disk_usage(output_dir).free
        raise OSError(
            f"The disk of {output_dir} is full ({free / 1e6:,.1f} MB free): results could not be written ({error}). "
            "Make room, and run the same command again: it goes on from its last checkpoint."
        ) from None


# ---- Reading --------------------------------------------------------------------------------------------------------


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
        files = {
            name: {**entry, "size": entry["size"], "sha256": entry["sha256"]}
            for name, entry in manifest["files"].items()
        }
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
        files: of the manifest.
        check_hashes: read the files to their ends; otherwise only their sizes are compared.
    """
    for name, entry in files.items():
        path = Path(folder, name)
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["size"]:
            return f"{name} has {path.stat().st_size:,} bytes instead of {entry['size']:,}"
    for name, found in file_entries(folder, files if check_hashes else ()).items():
        if found["sha256"] != files[name]["sha256"]:
            return f"{name} has another content (SHA-256) than when it was written"
    return None


def damage(folder: str | os.PathLike, num_processes: int = 1) -> str | None:
    """
    What is wrong with a checkpoint, `None` if nothing is.

    With a manifest, each file must be there with its size and hash, and weights and optimizer among them. Without one
    (written by `Trainer`, or by an earlier version), the files must be there that resuming takes, not be empty, and be
    readable.

    Args:
        folder: of the checkpoint.
        num_processes: how many resume it; each needs the state of its random numbers.
    """
    if not Path(folder).is_dir():
        return "there is no such folder"
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        return str(error)
    if manifest is None:
        return _damage_without_manifest(Path(folder), num_processes)
    missing = missing_part(manifest["files"])
    return damaged_file(folder, manifest["files"]) if missing is None else f"{missing} is missing"


def missing_part(names: Iterable[str]) -> str | None:
    """
    A file that a checkpoint of one of our trainers must have, but has not; `None` if it has all of them, or if these
    files are no checkpoint. Those of DeepSpeed and FSDP have parts of other names.

    Args:
        names: of its files, relative to its folder.
    """
    names = list(names)
    tops = {name.split("/")[0] for name in names}
    if "trainer_state.json" not in tops or any(top.startswith(SHARDED) for top in tops):
        return None
    if {name.rsplit("/", 1)[-1] for name in names}.isdisjoint(WEIGHTS):
        return WEIGHTS[0]
    needed = ("optimizer.pt", "rng_state", "scheduler.pt")
    found = [name for name in (*needed, "log_state") if any(top.startswith(name) for top in tops)]
    if not found:  # of a run with `save_only_model`
        return None
    return next((name for name in needed if name not in found), None)


def _damage_without_manifest(folder: Path, num_processes: int) -> str | None:
    if not (folder / "trainer_state.json").is_file():
        return "it has no trainer_state.json: it was not written to its end"
    names = list_files(folder)
    missing = _missing_files(names, num_processes)
    if missing is not None:
        return f"{missing} is missing"
    for name in names:
        problem = _unreadable(folder / name)
        if problem is not None:
            return f"{name} {problem}"
    return None


def _missing_files(names: list[str], num_processes: int) -> str | None:
    """A file of a checkpoint that resuming takes, but that is not there."""
    tops = {name.split("/")[0] for name in names}
    is_sharded = any(top.startswith(SHARDED) for top in tops)
    if "config.json" not in tops:
        return "config.json"
    if not is_sharded and tops.isdisjoint(WEIGHTS):
        return WEIGHTS[0]
    random_states = {top for top in tops if top.startswith("rng_state")}
    if not random_states and tops.isdisjoint(("optimizer.pt", "scheduler.pt")):
        return None  # of a run with `save_only_model`
    if num_processes == 1 or random_states == {"rng_state.pth"}:
        needed = {"rng_state.pth"} if len(random_states) < 2 else set()
    else:
        needed = {f"rng_state_{rank}.pth" for rank in range(max(num_processes, len(random_states)))}
    if not is_sharded:
        needed |= {"optimizer.pt", "scheduler.pt"}
    return min(needed - tops, default=None)


def _unreadable(path: Path) -> str | None:
    """Why a file cannot be read, as far as its format tells."""
    if path.stat().st_size == 0:
        return "is empty"
    try:
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".safetensors":
            _check_safetensors(path)
        elif path.suffix in (".pt", ".pth"):
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    return "is damaged (CRC)"
    except (ValueError, zipfile.BadZipFile) as error:
        return f"cannot be read ({error})"
    return None


def _check_safetensors(path: Path) -> None:
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        if header_size > path.stat().st_size:
            raise ValueError("its header is cut off")
        header = json.loads(file.read(header_size))
    end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    if path.stat().st_size != 8 + header_size + end:
        raise ValueError(f"{path.stat().st_size:,} bytes instead of {8 + header_size + end:,}")
