"""What makes a checkpoint whole: `manifest.json`, with the size and later the SHA-256 of each file."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ...disk import MANIFEST_FILE, replace_text, sync_folder

STATE_FILE = "trainer_state.json"


def checkpoint_steps(output_dir: str | os.PathLike) -> dict[Path, int]:
    """The checkpoints in the folder of a run, and their steps."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in Path(output_dir).glob("checkpoint-*")}
    return {path: int(step) for path, step in steps.items() if step.isdigit()}


def list_files(folder: str | os.PathLike) -> list[str]:
    """The files in a folder and its subfolders, without manifests, as sorted relative paths with `/`."""
    paths = (path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())
    return sorted(path for path in paths if path != MANIFEST_FILE)


def file_entries(
    folder: str | os.PathLike, names: Iterable[str], sync: bool = False, threads: int = 4
) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of files of a folder by their relative paths; with `sync`, flush them to the disk as well."""

    def entry(name: str) -> dict[str, Any]:
        with Path(folder, name).open("rb+" if sync else "rb") as file:
            if sync:
                os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return {"size": file.tell(), "sha256": digest}

    names = list(names)
    with ThreadPoolExecutor(threads) as pool:  # hashing releases the GIL
        return dict(zip(names, pool.map(entry, names), strict=True))


def write_manifest(folder: str | os.PathLike, files: Mapping[str, Mapping[str, Any]], **more: Any) -> None:
    """Write the manifest of a folder: its files, see [`file_entries`], and other fields such as the step."""
    replace_text(Path(folder, MANIFEST_FILE), json.dumps({**more, "files": dict(sorted(files.items()))}, indent=2))
    for below in {Path(folder, file).parent for file in files} | {Path(folder)}:
        sync_folder(below)


def read_manifest(folder: str | os.PathLike) -> dict[str, Any] | None:
    """The manifest of a folder; `None` if it has none."""
    path = Path(folder, MANIFEST_FILE)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def write_sizes(folder: Path, step: int) -> None:
    """Write the manifest of a new checkpoint of this step, with the sizes of its files, without waiting for a disk."""
    files = {}
    for name in list_files(folder):
        with Path(folder, name).open("rb") as file:  # opening updates the size on network file systems
            files[name] = {"size": file.seek(0, os.SEEK_END)}
    text = json.dumps({"step": step, "files": files}, indent=2)
    Path(folder, MANIFEST_FILE).write_text(text, encoding="utf-8")


def add_hashes(folder: Path) -> None:
    """Flush the files of a checkpoint to the disk, and write their hashes into its manifest."""
    manifest = read_manifest(folder)
    files = file_entries(folder, manifest["files"], sync=True, threads=1)  # training goes on beside it
    write_manifest(folder, **manifest | {"files": files})
    sync_folder(folder.parent)


def damage(folder: str | os.PathLike) -> str | None:
    """What is wrong with a checkpoint or a final model, by its manifest if it has one; `None` if nothing is."""
    folder = Path(folder)
    if not folder.is_dir():
        return "there is no such folder"
    try:
        manifest = read_manifest(folder)
        files = manifest["files"] if manifest is not None else {}
        sizes = {name: entry["size"] for name, entry in files.items()}
        hashes = {name: entry["sha256"] for name, entry in files.items() if "sha256" in entry}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST_FILE} cannot be read ({error})"
    if manifest is None:
        empty = next((name for name in list_files(folder) if (folder / name).stat().st_size == 0), None)
        no_state = None if (folder / STATE_FILE).is_file() else f"it has no {STATE_FILE}"
        return no_state or (empty and f"{empty} is empty")
    for name, size in sizes.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if (found := (folder / name).stat().st_size) != size:
            return f"{name} has {found:,} bytes instead of {size:,}"
    for name, entry in file_entries(folder, hashes).items():
        if entry["sha256"] != hashes[name]:
            return f"{name} has another content (SHA-256) than when it was written"
    return None
