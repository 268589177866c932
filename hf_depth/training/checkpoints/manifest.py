"""
Checks that a checkpoint is complete and unchanged, by a manifest of its files.

The manifest of a new checkpoint has only sizes. Hashes are added when its files are on the disk, see `writing`.
"""

import json
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ...disk import MANIFEST_FILE, damaged_file, file_entry, list_files, read_manifest, sync_folder, write_manifest

STATE_FILE = "trainer_state.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors")  # each may be an index instead
SHARDED = ("global_step", "pytorch_model_fsdp", "optimizer_0", "optimizer.bin")  # prefixes of DeepSpeed and FSDP files


def write_sizes(folder: Path, step: int) -> None:
    """
    Write the manifest of a new checkpoint, with the sizes of its files.

    Args:
        folder: the folder of the checkpoint. All processes have written to it.
        step: the training step, for the manifest.

    Raises:
        `OSError`: if a part of the checkpoint is missing.
    """
    names = list_files(folder)
    missing = missing_part(names)
    if missing is not None:
        raise OSError(
            f"{missing} of {folder.name} is missing after everything was written: does something else remove files "
            f"in {folder.parent.parent}? Earlier checkpoints are intact."
        )
    write_manifest(folder, {name: {"size": _size(folder / name)} for name in names}, sync=False, step=step)


def _size(path: Path) -> int:
    with path.open("rb") as file:  # opening updates the size on network file systems
        return file.seek(0, os.SEEK_END)


def add_hashes(folder: Path) -> None:
    """
    Flush the files of a checkpoint to the disk, and write their hashes into its manifest.

    Raises:
        `OSError`: if a file cannot be written, or its size has changed.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise FileNotFoundError(f"{folder} has no {MANIFEST_FILE}")
    files = {name: file_entry(folder / name, sync=True) for name in manifest["files"]}
    changed = [name for name, entry in files.items() if entry["size"] != manifest["files"][name]["size"]]
    if changed:
        raise OSError(f"{changed[0]} of {folder} has another size on the disk than when it was written")
    write_manifest(folder, **manifest | {"files": files})
    sync_folder(folder.parent)


def damage(folder: str | os.PathLike) -> str | None:
    """
    Return what is wrong with a checkpoint or a final model; `None` if nothing is.

    Weights and optimizer must exist, and each file must have the size and hash of the manifest. A file without a hash
    must be readable. Files have no hash if the run was killed right after it had saved, or `Trainer` wrote the
    checkpoint.

    Args:
        folder: the folder of the checkpoint.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return "there is no such folder"
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        return str(error)
    if manifest is None and not (folder / STATE_FILE).is_file():
        return f"it has no {STATE_FILE}: it is incomplete"
    files = {name: {} for name in list_files(folder)} if manifest is None else manifest["files"]
    missing = missing_part(files)
    if missing is not None:
        return f"{missing} is missing"
    problem = None if manifest is None else damaged_file(folder, files)
    if problem is not None:
        return problem
    unhashed = (name for name, entry in files.items() if "sha256" not in entry)
    problems = ((name, _unreadable(folder / name)) for name in unhashed)
    return next((f"{name} {problem}" for name, problem in problems if problem is not None), None)


def missing_part(names: Iterable[str]) -> str | None:
    """
    Return a file that a checkpoint must have but lacks; `None` if it lacks none or the files are not a checkpoint.

    Args:
        names: the files of the checkpoint, relative to its folder.
    """
    paths = [Path(name) for name in names]
    tops = [path.parts[0] for path in paths]
    if STATE_FILE not in tops or any(top.startswith(SHARDED) for top in tops):
        return None
    if not any(path.name.removesuffix(".index.json") in WEIGHTS for path in paths):
        return WEIGHTS[0]
    parts = ("optimizer.pt", "rng_state", "scheduler.pt")
    found = [part for part in parts if any(top.startswith(part) for top in tops)]
    return next((part for part in parts if found and part not in found), None)  # `save_only_model` writes no parts


def _unreadable(path: Path) -> str | None:
    """Return why a file cannot be read; `None` if it seems intact."""
    if path.stat().st_size == 0:
        return "is empty"
    try:
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".safetensors":
            with safe_open(path, "numpy"):  # compares the header with the size of the file
                pass
        elif path.suffix in (".pt", ".pth"):
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    return "is damaged (CRC)"
    except (ValueError, zipfile.BadZipFile, SafetensorError) as error:
        return f"cannot be read ({error})"
    return None
