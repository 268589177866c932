"""
What makes a checkpoint whole: a manifest (`manifest.json`) of its files.

A new checkpoint has their sizes in it; the hashes follow when the files are on the disk, see `saving`.
"""

import os
from pathlib import Path

from ...disk import damaged_file, file_entry, list_files, read_manifest, sync_folder, write_manifest

STATE_FILE = "trainer_state.json"


def checkpoint_steps(output_dir: str | os.PathLike) -> dict[Path, int]:
    """The checkpoints in the folder of a run, and their steps."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in Path(output_dir).glob("checkpoint-*")}
    return {path: int(step) for path, step in steps.items() if step.isdigit()}


def write_sizes(folder: Path, step: int) -> None:
    """Write the manifest of a new checkpoint of this step, with the sizes of its files."""
    files = {}
    for name in list_files(folder):
        with Path(folder, name).open("rb") as file:  # opening updates the size on network file systems
            files[name] = {"size": file.seek(0, os.SEEK_END)}
    write_manifest(folder, files, sync=False, step=step)


def add_hashes(folder: Path) -> None:
    """Flush the files of a checkpoint to the disk, and write their hashes into its manifest."""
    manifest = read_manifest(folder)
    files = {name: file_entry(folder / name, sync=True) for name in manifest["files"]}
    write_manifest(folder, **manifest | {"files": files})
    sync_folder(folder.parent)


def damage(folder: str | os.PathLike) -> str | None:
    """
    Return what is wrong with a checkpoint or a final model; `None` if nothing is. The files must be those of the
    manifest. Without one, as `Trainer` writes checkpoints, none may be empty.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return "there is no such folder"
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        return str(error)
    if manifest is not None:
        return damaged_file(folder, manifest["files"])
    if not (folder / STATE_FILE).is_file():
        return f"it has no {STATE_FILE}"
    empty = [name for name in list_files(folder) if (folder / name).stat().st_size == 0]
    return f"{empty[0]} is empty" if empty else None
