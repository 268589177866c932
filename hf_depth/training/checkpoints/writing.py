"""
Writing checkpoints and models: all processes write to a temporary folder, which is renamed when it is complete.

Training waits only until the files are written. A thread then flushes them to the disk (`fsync`), adds their hashes to
the manifest, and deletes surplus checkpoints. If the run is killed before that, the checkpoint is complete, but its
manifest has only sizes.
"""

import atexit
import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from accelerate.utils import gather_object
from transformers import Trainer

from ...disk import (
    UNFINISHED_FOLDER,
    file_entries,
    full_disk_error,
    is_full_disk,
    list_files,
    sync_folder,
    write_manifest,
)
from .manifest import add_hashes, write_sizes

logger = logging.getLogger(__name__)

_completions: list[tuple[Path, Future]] = []  # the last checkpoint of this process, until somebody waits for it


# ---- Checkpoints ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def written_aside(trainer: Trainer, folder: Path) -> Iterator[Path]:
    """
    Yield a temporary folder to write to. It becomes `folder` when all processes have left the block.

    Surplus checkpoints are deleted later, see [`rotate`] and [`wait_until_on_disk`]. All processes enter this block.
    If one fails, all fail.

    Args:
        trainer: the trainer that writes a checkpoint.
        folder: the folder of the checkpoint.

    Raises:
        `OSError`: in one line, if the disk is full. Unfinished files are removed.
    """
    aside, saves = folder.parent / UNFINISHED_FOLDER / folder.name, trainer.args.should_save
    with _failing_together(trainer):
        _join(raises=True)
        if saves:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
    # If the model is sharded, the others may wait for this process to gather weights. So a process that fails ends
    # alone, and the launcher ends the others. Their files are removed at the next start.
    with _failing_together(trainer, alone=trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled):
        yield aside
    with _failing_together(trainer):
        if saves:
            write_sizes(aside, trainer.state.global_step)
            publish_folder(aside, folder)
            thread = ThreadPoolExecutor(1, f"completing {folder.name}")  # the interpreter waits for it before it ends
            surplus = (trainer.save_total_limit, trainer.state.best_model_checkpoint)
            _completions.append((folder, thread.submit(_complete, folder, *surplus)))
            thread.shutdown(wait=False)


def _complete(folder: Path, save_total_limit: int | None, best: str | None) -> None:
    """Flush a new checkpoint to the disk, add its hashes and delete surplus checkpoints, while training goes on."""
    try:
        add_hashes(folder)
    except OSError:
        if folder.is_dir():  # it may have been deleted meanwhile
            shutil.rmtree(folder, ignore_errors=True)
            raise
    else:
        rotate(folder, save_total_limit, best)


def wait_until_on_disk(trainer: Trainer) -> None:
    """
    Wait until the last checkpoint is on the disk and surplus ones are deleted. All processes call this.

    Raises:
        `OSError`: on all processes, if the checkpoint could not be written to the disk. It is removed; earlier ones
            stay.
    """
    with _failing_together(trainer):
        _join(raises=True)


@contextlib.contextmanager
def completed_checkpoints(trainer: Trainer) -> Iterator[None]:
    """Wait, at the end of the block, until the last checkpoint is on the disk, also after an error."""
    try:
        yield
    except BaseException:
        _join()
        raise
    wait_until_on_disk(trainer)


@atexit.register  # also for a process that ends by `os._exit`, see `stopping`
def _join(raises: bool = False) -> None:
    while _completions:
        folder, completion = _completions[0]
        failure = completion.exception()
        _completions.pop(0)
        if failure is not None and raises:
            raise failure
        if failure is not None:
            logger.error(f"{folder} is lost: it could not be written to the disk ({failure}).")


def rotate(folder: Path, save_total_limit: int | None, best: str | None) -> None:
    """
    Delete surplus checkpoints, the earliest steps first, but never `folder` and `best`.

    Checkpoints with later steps than `folder` belong to an earlier run and are deleted before all others.

    Args:
        folder: the newest checkpoint, which has just been written.
        save_total_limit: how many to keep; all if it is `None` or not positive.
        best: the checkpoint with the best score, if there is one. With a limit of 1, it is kept beside the newest.
    """
    if save_total_limit is None or save_total_limit <= 0:
        return
    steps = {path: path.name.removeprefix("checkpoint-") for path in folder.parent.glob("checkpoint-*")}
    steps = {path: int(step) for path, step in steps.items() if step.isdigit() and path.is_dir()}
    kept = {folder.name} if best is None else {folder.name, Path(best).name}
    surplus = [path for path in steps if path.name not in kept]
    surplus.sort(key=lambda path: (steps[path] < steps[folder], steps[path]))
    for path in surplus[: max(0, len(steps) - max(save_total_limit, len(kept)))]:
        shutil.rmtree(path, ignore_errors=True)


# ---- The model at the end -------------------------------------------------------------------------------------------


def replace_model(trainer: Trainer, write: Callable[[str], None]) -> None:
    """
    Replace the model in `output_dir` when all files of the new one are on the disk.

    Sets `trainer.model_files`, for [`write_model_manifest`].

    Args:
        trainer: the trainer of the model.
        write: writes the model to a given folder. All processes call it.

    Raises:
        `OSError`: in one line, if the disk is full. The earlier model stays.
    """
    output_dir = Path(trainer.args.output_dir)
    aside = output_dir / UNFINISHED_FOLDER / "model"
    if trainer.args.should_save:
        shutil.rmtree(aside, ignore_errors=True)
    try:
        write(str(aside))
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            trainer.accelerator.wait_for_everyone()  # each process may write a part
        if trainer.args.should_save:
            trainer.model_files = file_entries(aside, list_files(aside), sync=True)
            publish_files(aside, output_dir)
    except Exception as error:
        told = _in_one_line(trainer, error)
        remove_aside(aside)
        if told is error:
            raise
        raise told from None


def write_model_manifest(trainer: Trainer) -> None:
    """Write the manifest that marks the folder of the run as complete, see [`model_is_complete`]. Call this last."""
    if trainer.args.should_save:
        write_manifest(trainer.args.output_dir, trainer.model_files, step=trainer.state.global_step)


# ---- Folders --------------------------------------------------------------------------------------------------------


def publish_folder(folder: Path, target: Path) -> None:
    """Rename a complete folder to `target`. An earlier folder there, such as a damaged checkpoint, is removed."""
    replaced = folder.with_name(f"replaced-{target.name}")
    if target.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        os.replace(target, replaced)
    os.replace(folder, target)
    remove_aside(replaced)


def publish_files(folder: Path, target: Path) -> None:
    """Move the files of a folder to `target`. Each one replaces the file of its name."""
    for path in list_files(folder):
        Path(target, path).parent.mkdir(parents=True, exist_ok=True)
        os.replace(folder / path, target / path)
    sync_folder(target)
    remove_aside(folder)


def remove_aside(folder: Path) -> None:
    """Remove a temporary folder, and the folder around it if that is empty."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty, or already removed
        folder.parent.rmdir()


def remove_unfinished(trainer: Trainer) -> None:
    """Remove unfinished files of this run or of a killed one."""
    shutil.rmtree(Path(trainer.args.output_dir, UNFINISHED_FOLDER), ignore_errors=True)


# ---- Failures -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _failing_together(trainer: Trainer, alone: bool = False) -> Iterator[None]:
    """
    Let all processes fail at the end of the block if it fails on one of them. With `alone`, only that one fails.

    Raises:
        `OSError`: in one line, if the disk is full. Unfinished files are removed.
    """
    told, problem = None, None
    try:
        yield
    except Exception as error:
        told = _in_one_line(trainer, error)
        problem = (str(told), told is not error)
        if alone:
            raise told from told.__cause__
    problems = [one for one in gather_object([problem]) if one is not None]
    if not problems:
        return
    if trainer.args.should_save:  # only one process, as a slower one would remove what others write next
        remove_unfinished(trainer)
    message, is_full = problems[0]
    other = OSError(message) if is_full else RuntimeError(f"Another process could not save its part: {message}")
    raise told or other


def _in_one_line(trainer: Trainer, error: Exception) -> Exception:
    """Return an error that says what to do about a full disk. Any other error is returned as it is."""
    if not is_full_disk(error, trainer.args.output_dir):
        return error
    reason = str(error).splitlines()[0]
    return full_disk_error(
        trainer.args.output_dir,
        f"step {trainer.state.global_step} could not be saved ({reason})",
        "Earlier checkpoints are intact: make room, or keep fewer by `--save_total_limit`, and run the same command "
        "again.",
    )
