"""Saving checkpoints and models in a temporary folder, which is renamed when all processes have written."""

import atexit
import contextlib
import functools
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from transformers import PreTrainedModel, Seq2SeqTrainer, Trainer, TrainerState
from transformers.trainer import TRAINING_ARGS_NAME

from ...disk import UNFINISHED_FOLDER, one_error_for_a_full_disk, sync_folder
from ..spikes import check_losses, check_parameters
from .manifest import STATE_FILE, add_hashes, checkpoint_steps, file_entries, list_files, write_manifest, write_sizes
from .run_description import RUN_FILE

_completion: list[Future] = []  # of the last checkpoint of this process, until somebody waits for it


def save_checkpoint(trainer: Trainer, folder: Path, write: Callable[[], None]) -> None:
    """Save what `write` of `Trainer` writes; nothing if a loss or weight is not finite or the disk is full."""
    trainer.totals.loss = trainer._total_loss_scalar + check_losses(trainer)
    trainer.running.gather_sources()
    args, state, wait_for_everyone = trainer.args, trainer.state, trainer.accelerator.wait_for_everyone
    aside, saves = folder.parent / UNFINISHED_FOLDER / folder.name, args.should_save
    with _one_error_for_a_full_disk(trainer):
        wait_until_on_disk()
        if saves:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
        wait_for_everyone()
        before = args.output_dir, args.push_to_hub, state.best_global_step
        # Without a best step, `Trainer` does not record the temporary folder as the best model.
        args.output_dir, args.push_to_hub, state.best_global_step = str(aside.parent), False, None
        try:
            write()
        finally:
            args.output_dir, args.push_to_hub, state.best_global_step = before
        record_best_checkpoint(state, folder)
        if saves:
            state.save_to_json(aside / STATE_FILE)
            if trainer.run_description is not None:
                (aside / RUN_FILE).write_text(json.dumps(trainer.run_description, indent=2), encoding="utf-8")
        wait_for_everyone()  # all have written
        if saves:
            write_sizes(aside, state.global_step)
            shutil.rmtree(folder, ignore_errors=True)  # a damaged checkpoint, or one of an earlier run
            os.replace(aside, folder)
            remove_unfinished(folder.parent)
            thread = ThreadPoolExecutor(1)  # the interpreter waits for it before it ends
            _completion.append(thread.submit(_complete, folder, trainer.save_total_limit, state.best_model_checkpoint))
            thread.shutdown(wait=False)
        wait_for_everyone()
    trainer.last_checkpoint = str(folder)
    if args.push_to_hub:
        wait_until_on_disk()  # no file may change during the upload
        if trainer.is_world_process_zero():
            for path in (*folder.glob("*.py"), *folder.glob("task_config.json")):  # which `Trainer` does not know
                shutil.copy(path, args.output_dir)
            not_uploaded = Path(args.output_dir, ".gitignore")
            if not not_uploaded.exists():  # the pickle of all settings stays private
                not_uploaded.write_text(f"{TRAINING_ARGS_NAME}\n", encoding="utf-8")


def record_best_checkpoint(state: TrainerState, folder: Path) -> None:
    """Record that the best checkpoint is beside `folder`, as the run may have been moved."""
    best = folder.with_name(f"checkpoint-{state.best_global_step}")
    if state.best_global_step and (best == folder or best.is_dir()):
        state.best_model_checkpoint = str(best)


def _complete(folder: Path, save_total_limit: int | None, best: str | None) -> None:
    """Flush a new checkpoint to the disk, add its hashes and delete surplus checkpoints."""
    try:
        add_hashes(folder)
    except OSError:  # only now is it known that the disk is full
        shutil.rmtree(folder, ignore_errors=True)
        raise
    rotate(folder, save_total_limit, best)


def rotate(folder: Path, save_total_limit: int | None, best: str | None) -> None:
    """Delete surplus checkpoints, later steps first, then the earliest; neither `folder`, the newest, nor `best`."""
    if save_total_limit is None:
        return
    steps = checkpoint_steps(folder.parent)
    kept = {folder.name} if best is None else {folder.name, Path(best).name}
    surplus = [path for path in steps if path.name not in kept]
    surplus.sort(key=lambda path: (steps[path] < steps[folder], steps[path]))
    for path in surplus[: max(0, len(steps) - max(save_total_limit, len(kept)))]:
        shutil.rmtree(path, ignore_errors=True)


@atexit.register  # also for a process that ends by `os._exit`, see `stopping`
def wait_until_on_disk() -> None:
    """Wait until the last checkpoint of this process is on the disk. `OSError` if it is not; earlier ones stay."""
    while _completion:
        _completion.pop().result()


def save_model(trainer: Trainer, output_dir: str | os.PathLike | None, of_checkpoint: bool) -> None:
    """
    Save the model of a trainer, by default to `args.output_dir`, where files are replaced when all new ones are on the
    disk. The earlier model stays after an error (a weight that is not finite, a full disk). The pickle
    `training_args.bin`, which holds `hub_token`, is in checkpoints only.
    """
    check_parameters(trainer)
    final, saves = Path(trainer.args.output_dir), trainer.args.should_save
    if output_dir is not None and Path(output_dir) != final:
        _write_model(trainer, Path(output_dir), of_checkpoint)
        return
    aside = final / UNFINISHED_FOLDER / "model"
    with _one_error_for_a_full_disk(trainer):
        if saves:
            shutil.rmtree(aside, ignore_errors=True)
        _write_model(trainer, aside)
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            trainer.accelerator.wait_for_everyone()  # each process may write a part
        if saves:
            trainer.model_files = file_entries(aside, list_files(aside), sync=True)
            for name in trainer.model_files:
                Path(final, name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(aside / name, final / name)
            sync_folder(final)
            remove_unfinished(final)


def _write_model(trainer: Trainer, folder: Path, with_arguments: bool = False) -> None:
    """As `Trainer.save_model`, with `task_config.json`, on each process that saves."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if trainer.args.save_on_each_node:  # `save_pretrained` of transformers 5.24 writes on the first process only
        model.should_save_on_this_rank = lambda is_main_process: is_main_process
    try:
        Seq2SeqTrainer.save_model(trainer, str(folder), _internal_call=True)
    finally:
        vars(model).pop("should_save_on_this_rank", None)
    if not trainer.args.should_save:
        return
    if hasattr(model, "peft_config"):
        model.config.save_pretrained(folder)  # what kind of model the adapter is of
        Path(folder, "README.md").unlink(missing_ok=True)  # PEFT's, instead of which a run writes its card
    if getattr(trainer, "task_config", None) is not None:
        trainer.task_config.save_pretrained(folder)
    if not with_arguments:
        Path(folder, TRAINING_ARGS_NAME).unlink(missing_ok=True)


def tied_weights(model: PreTrainedModel) -> set[str]:
    """The weights that are another one of the model, unlike a head that was given its own."""
    weights = dict(model.named_parameters(remove_duplicate=False))
    tied = getattr(model, "all_tied_weights_keys", {})
    return {name for name, source in tied.items() if weights.get(name) is weights.get(source)}


def write_model_manifest(trainer: Trainer) -> None:
    """Mark the folder of the run as complete, as the last thing, see [`model_is_complete`]."""
    if trainer.args.should_save:
        write_manifest(trainer.args.output_dir, trainer.model_files, step=trainer.state.global_step)


def remove_unfinished(output_dir: str | os.PathLike) -> None:
    """Remove what this run or a killed one has not finished."""
    shutil.rmtree(Path(output_dir, UNFINISHED_FOLDER), ignore_errors=True)


def _one_error_for_a_full_disk(trainer: Trainer) -> contextlib.AbstractContextManager:
    """Remove unfinished files after an error; see [`one_error_for_a_full_disk`]."""
    folder = trainer.args.output_dir
    clean_up = functools.partial(remove_unfinished, folder) if trainer.args.should_save else None
    return one_error_for_a_full_disk(folder, f"step {trainer.state.global_step}", clean_up)
