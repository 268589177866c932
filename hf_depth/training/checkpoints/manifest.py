"""
What makes a checkpoint whole: a manifest, all parts that its kind has, and files as they were when they were written.

The manifest of a new checkpoint has sizes only, and gets hashes when its files are on the disk: see `writing`.
"""

import json
import os
import zipfile
from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ...disk import MANIFEST_FILE, damaged_file, file_entry, list_files, read_manifest, sync_folder, write_manifest

STATE_FILE = "trainer_state.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors")  # the last of PEFT; or their index
SHARDED = ("global_step", "pytorch_model_fsdp", "optimizer_0", "optimizer.bin")  # how files of DeepSpeed, FSDP begin


def write_sizes(folder: Path, step: int) -> None:
    """
    Write the manifest of a new checkpoint, with the sizes of its files.

    Args:
        folder: of the checkpoint, to which all processes have written.
        step: that it is of, for the manifest.

    Raises:
        `RuntimeError`: if a part of it is missing.
    """
    names = list_files(folder)
    missing = missing_part(names)
    if missing is not None:
        raise RuntimeError(
            f"{missing} of {folder.name} is not there after all of it was written: does something else remove files "
            f"in {folder.parent.parent}? Earlier checkpoints are intact."
        )
    write_manifest(folder, {name: {"size": _size(folder / name)} for name in names}, sync=False, step=step)


def _size(path: Path) -> int:
    with path.open("rb") as file:  # a network file system tells the size that another node wrote once it is opened
        return file.seek(0, os.SEEK_END)


def add_hashes(folder: Path) -> None:
    """
    Have the files of a checkpoint written to the disk, and write their hashes into its manifest.

    Raises:
        `OSError`: if files cannot be written, or are not as large as they were.
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
    What is wrong with a checkpoint, or with the model at the end of a run; `None` if nothing is.

    Each file of its manifest must be there with its size and hash, and weights and optimizer among them. Files without
    a hash must be readable, as far as their formats tell: those of a run that was killed right after it had saved, and
    all of a checkpoint without a manifest, which `Trainer` wrote.

    Args:
        folder: of the checkpoint.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return "there is no such folder"
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        return str(error)
    if manifest is None and not (folder / STATE_FILE).is_file():
        return f"it has no {STATE_FILE}: it was not written to its end"
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
    A file that a checkpoint of one of our trainers must have, but has not; `None` if it has all of them, or if these
    files are no checkpoint. Those of DeepSpeed and FSDP have parts of other names.

    Args:
        names: of its files, relative to its folder.
    """
    paths = [Path(name) for name in names]
    tops = [path.parts[0] for path in paths]
    if STATE_FILE not in tops or any(top.startswith(SHARDED) for top in tops):
        return None
    if not any(path.name.removesuffix(".index.json") in WEIGHTS for path in paths):
        return WEIGHTS[0]
    parts = ("optimizer.pt", "rng_state", "scheduler.pt")
    found = [part for part in parts if any(top.startswith(part) for top in tops)]
    return next((part for part in parts if found and part not in found), None)  # none with `save_only_model`


def _unreadable(path: Path) -> str | None:
    """Why a file cannot be read, as far as its format tells."""
    if path.stat().st_size == 0:
        return "is empty"
    try:
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".safetensors":
            with safe_open(path, "numpy"):  # reads its header, and compares that with the size of the file
                pass
        elif path.suffix in (".pt", ".pth"):
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is not None:
                    return "is damaged (CRC)"
    except (ValueError, zipfile.BadZipFile, SafetensorError) as error:
        return f"cannot be read ({error})"
    return None
