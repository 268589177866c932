"""Resuming: which checkpoint a run continues, and whether it fits."""

import logging
import os
from pathlib import Path

from transformers import AutoConfig, PreTrainedModel, TrainerState, TrainingArguments

from ..models.loading import DEPTH_FIELDS, SIZE_FIELDS, config_values
from .callbacks import evaluations_without_improvement

logger = logging.getLogger(__name__)


def checkpoint_to_resume(training_args: TrainingArguments) -> str | None:
    """
    The checkpoint that `--resume_from_checkpoint` names, or the last one in `output_dir`; `None` to start anew.

    Raises:
        `ValueError`: if the checkpoint asked for is missing or incomplete.
    """
    asked = training_args.resume_from_checkpoint
    if not training_args.do_train or str(asked).lower() == "false":
        return None
    last = last_complete_checkpoint(training_args.output_dir)
    if asked is None or str(asked).lower() in ("true", "last", "auto"):
        if asked is not None and last is None:
            raise ValueError(
                f"`--resume_from_checkpoint {asked}`: there is no checkpoint in {training_args.output_dir}. "
                "Name a checkpoint folder, or leave the argument out to start anew."
            )
        if last is not None:
            logger.info(f"Resuming from {last}. To start anew, choose another `--output_dir`.")
        asked = last
    if asked is not None and not Path(asked, "trainer_state.json").is_file():
        raise ValueError(
            f"{asked} is no complete checkpoint: it has no trainer_state.json. Delete the folder, or name another one "
            "by `--resume_from_checkpoint`."
        )
    return asked


def last_complete_checkpoint(output_dir: str | os.PathLike) -> str | None:
    """The newest checkpoint with a `trainer_state.json`, which is written last; `None` if there is none."""
    folders = [
        path for path in Path(output_dir).glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()
    ]
    for folder in sorted(folders, key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True):
        if (folder / "trainer_state.json").is_file():
            return str(folder)
        logger.warning(f"Passing over {folder}, which has no trainer_state.json: it was not written to its end.")
    return None


def check_same_model(checkpoint: str | os.PathLike, model: PreTrainedModel) -> None:
    """
    Check that a checkpoint is of a model of the same kind, size and masks.

    Raises:
        `ValueError`: naming the fields that differ.
    """
    saved = config_values(AutoConfig.from_pretrained(checkpoint))
    asked = config_values(model.config)
    different = [name for name in ("model_type", *SIZE_FIELDS, *DEPTH_FIELDS) if saved.get(name) != asked.get(name)]
    if different:
        differences = ", ".join(f"{name} {saved.get(name)} (now {asked.get(name)})" for name in different)
        raise ValueError(
            f"The arguments describe another model than {checkpoint}, which has {differences}. Choose another "
            "`--output_dir`, or go back to the arguments of that run."
        )


def is_finished(checkpoint: str | os.PathLike, training_args: TrainingArguments) -> bool:
    """Whether training is over at this checkpoint. (`Trainer.train` would take one more step.)"""
    state = TrainerState.load_from_json(Path(checkpoint, "trainer_state.json"))
    patience = getattr(training_args, "early_stopping_patience", None)
    if patience is not None and evaluations_without_improvement(state) >= patience:
        return True
    if training_args.max_steps > 0:
        return state.global_step >= training_args.max_steps
    return state.epoch is not None and state.epoch >= training_args.num_train_epochs


def best_checkpoint(checkpoint: str | os.PathLike, training_args: TrainingArguments) -> str:
    """
    The checkpoint with the best score of the run, with `load_best_model_at_end`; otherwise `checkpoint` itself.

    Raises:
        `ValueError`: if it does not exist any more. (`Trainer` would silently go on without it.)
    """
    recorded = TrainerState.load_from_json(Path(checkpoint, "trainer_state.json")).best_model_checkpoint
    if recorded is None or not training_args.load_best_model_at_end:
        return str(checkpoint)
    # First beside the checkpoint: where the folder of this run was, there may be another run by now.
    for folder in (Path(checkpoint).parent / Path(recorded).name, Path(recorded)):
        if folder.is_dir():
            return str(folder)
    raise ValueError(
        f"{recorded}, the best checkpoint of the run of {checkpoint}, is gone. Put it back beside {checkpoint}, or go "
        "on without it by `--load_best_model_at_end false` (and without `--early_stopping_patience`)."
    )
