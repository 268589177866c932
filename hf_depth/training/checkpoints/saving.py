"""Saving checkpoints, and the checks that loss and weights are finite."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from accelerate.utils import gather_object
from transformers import TrainerState
from transformers.trainer import TRAINING_ARGS_NAME

from .manifest import STATE_FILE
from .run_description import RUN_FILE
from .writing import wait_until_on_disk, written_aside

if TYPE_CHECKING:
    from ..trainer import DepthTrainer


def save_checkpoint(trainer: "DepthTrainer", folder: Path, write: Callable[[], None]) -> None:
    """
    Save a checkpoint. It appears only when it is complete. All processes call this at the same time.

    Args:
        trainer (`DepthTrainer`): the trainer.
        folder (`Path`): the folder of the checkpoint.
        write (`Callable`): writes the checkpoint of `Trainer` to its `output_dir`.

    Raises:
        `FloatingPointError`: if the loss or a weight is not finite. Nothing is saved then.
        `OSError`: in one line, if the disk is full. Earlier checkpoints stay.
    """
    trainer.totals.loss = trainer._total_loss_scalar + check_losses(trainer)
    trainer.monitor.judge()
    trainer.totals.monitor = trainer.monitor.state()
    trainer.running.gather_sources()
    args, state = trainer.args, trainer.state
    before, best_step = (args.output_dir, args.push_to_hub), state.best_global_step
    with written_aside(trainer, folder) as aside:
        # Without a best step, `Trainer` does not wait for other processes, which may have failed, and does not record
        # the temporary folder as the best model.
        state.best_global_step = None
        args.output_dir, args.push_to_hub = str(aside.parent), False
        try:
            write()
        finally:
            state.best_global_step = best_step
            args.output_dir, args.push_to_hub = before
        record_best_checkpoint(state, folder)
        if args.should_save:
            state.save_to_json(aside / STATE_FILE)
            if trainer.run_description is not None:
                (aside / RUN_FILE).write_text(json.dumps(trainer.run_description, indent=2), encoding="utf-8")
        trainer.reading.save(aside)
    trainer.last_checkpoint = str(folder)
    if args.push_to_hub:
        wait_until_on_disk(trainer)  # no file may change during the upload
    if args.push_to_hub and trainer.is_world_process_zero():  # `Trainer` copies only files that it knows
        for path in (*folder.glob("*.py"), *folder.glob("task_config.json")):
            shutil.copy(path, args.output_dir)
        # `Trainer` writes a pickle of all settings there. `.gitignore` keeps it from the upload.
        not_uploaded = Path(args.output_dir, ".gitignore")
        if not not_uploaded.exists():
            not_uploaded.write_text(f"{TRAINING_ARGS_NAME}\n", encoding="utf-8")


def record_best_checkpoint(state: TrainerState, folder: Path) -> None:
    """Record that the best checkpoint is beside `folder`, as the run may have been moved."""
    best = folder.with_name(f"checkpoint-{state.best_global_step}")
    if state.best_global_step and (best == folder or best.is_dir()):
        state.best_model_checkpoint = str(best)


# ---- Finite numbers -------------------------------------------------------------------------------------------------


def check_loss(trainer: "DepthTrainer", loss: float) -> None:
    """Raise `FloatingPointError`, which says what to do, if the loss is not finite."""
    if not math.isfinite(loss):
        raise FloatingPointError(not_finite(trainer, f"The training loss is {loss}"))
    trainer.last_good_step = trainer.state.global_step


def check_losses(trainer: "DepthTrainer") -> float:
    """Return the mean loss since the last log over all processes. All raise if it is not finite on one of them."""
    losses = gather_object([trainer._tr_loss.item()])
    mean = sum(losses) / len(losses)
    check_loss(trainer, next((loss for loss in losses if not math.isfinite(loss)), mean))
    return mean


def check_parameters(trainer: "DepthTrainer") -> None:
    """Raise `FloatingPointError` on all processes if a weight is not finite. Names the first such weight."""
    parts = {name: _local_part(parameter) for name, parameter in trainer.model.named_parameters()}
    finite = torch.stack([part.isfinite().all() for part in parts.values()]).tolist()
    bad = [name for name, is_finite in zip(parts, finite, strict=True) if not is_finite]
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        bad = gather_object(bad)
    if bad:
        raise FloatingPointError(not_finite(trainer, f"{bad[0]} is not finite"))


def not_finite(trainer: "DepthTrainer", what: str) -> str:
    """Return the error message for a number that is not finite at the current step."""
    return (
        f"{what} at step {trainer.state.global_step}. T5 overflows in float16: use `--bf16` or float32; otherwise "
        "lower `--learning_rate`, lengthen `--warmup_steps` or clip by `--max_grad_norm`. The loss was finite until "
        f"step {trainer.last_good_step}; nothing was saved after that."
    )


def _local_part(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Return the parameter, or this process's part of it under DeepSpeed ZeRO-3 or FSDP2."""
    part = getattr(parameter, "ds_tensor", parameter).detach()
    return part.to_local() if hasattr(part, "to_local") else part
