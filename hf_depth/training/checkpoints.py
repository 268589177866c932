"""The checkpoints of a run: which one it goes on from, and whether it may."""

import json
import logging
from pathlib import Path

from transformers import AutoConfig, TrainerState

from ..models.loading import SIZE_FIELDS, config_values
from .callbacks import RUN_FILE, _evaluations_without_a_better_score

logger = logging.getLogger(__name__)


def checkpoint_to_resume(training_args):
    """The checkpoint that `--resume_from_checkpoint` names, or the last one in `output_dir`; `None` to start anew."""
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


def last_complete_checkpoint(output_dir):
    """The newest checkpoint that was written to its end: `trainer_state.json` is the last file to be written."""
    folders = [
        path for path in Path(output_dir).glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()
    ]
    for folder in sorted(folders, key=lambda path: int(path.name.removeprefix("checkpoint-")), reverse=True):
        if (folder / "trainer_state.json").is_file():
            return str(folder)
        logger.warning(f"Passing over {folder}, which has no trainer_state.json: it was not written to its end.")
    return None


def check_same_model(checkpoint, model):
    """Stop if a checkpoint is of another model than the one that the arguments describe."""
    saved = config_values(AutoConfig.from_pretrained(checkpoint))
    asked = config_values(model.config)
    different = [name for name in ("model_type", *SIZE_FIELDS) if saved.get(name) != asked.get(name)]
    if different:
        differences = ", ".join(f"{name} {saved.get(name)} (now {asked.get(name)})" for name in different)
        raise ValueError(
            f"The arguments describe another model than {checkpoint}, which has {differences}. Choose another "
            "`--output_dir`, or go back to the arguments of that run."
        )


def describe_run(model_args, **more) -> dict:
    """
    What makes a run the one that it is, by the names of arguments: its base model, and what `more` says.

    How long it trains, how fast and on how many devices is no part of it: that may change when it is resumed.
    """
    base = model_args.model_name_or_path
    run = {"model_type": model_args.model_type, "model_name_or_path": base and Path(base).as_posix()}
    return run | {"model_revision": model_args.model_revision} | more


def check_same_run(checkpoint, run: dict):
    """
    Stop if a checkpoint is of another run than the one that the arguments describe, such as one on another task.

    A checkpoint that does not state its run is let through: it was not written by the scripts.
    """
    path = Path(checkpoint, RUN_FILE)
    if not path.is_file():
        return
    saved = json.loads(path.read_text(encoding="utf-8"))
    different = [name for name in saved | run if saved.get(name) != run.get(name)]
    if different:
        differences = ", ".join(f"{name} {saved.get(name)} (now {run.get(name)})" for name in different)
        raise ValueError(
            f"The arguments describe another run than that of {checkpoint}, which has {differences}. Choose another "
            "`--output_dir`, or go back to the arguments of that run."
        )


def is_finished(checkpoint, training_args):
    """Whether the run that left this checkpoint has nothing more to do; the host would train one step too many."""
    state = TrainerState.load_from_json(Path(checkpoint, "trainer_state.json"))
    patience = getattr(training_args, "early_stopping_patience", None)
    if patience is not None and _evaluations_without_a_better_score(state) >= patience:
        return True
    if training_args.max_steps > 0:
        return state.global_step >= training_args.max_steps
    return state.epoch is not None and state.epoch >= training_args.num_train_epochs


def best_checkpoint(checkpoint, training_args):
    """
    The checkpoint with the best score of the run that left `checkpoint`, if the run is to end with that one.

    Raises:
        `ValueError`: if it is gone. The host would go on without a word.
    """
    recorded = TrainerState.load_from_json(Path(checkpoint, "trainer_state.json")).best_model_checkpoint
    if recorded is None or not training_args.load_best_model_at_end:
        return checkpoint
    # First beside the checkpoint: where the folder of this run was, there may be another run by now.
    for folder in (Path(checkpoint).parent / Path(recorded).name, Path(recorded)):
        if folder.is_dir():
            return str(folder)
    raise ValueError(
        f"{recorded}, the best checkpoint of the run of {checkpoint}, is gone. Put it back beside {checkpoint}, or go "
        "on without it by `--load_best_model_at_end false` (and without `--early_stopping_patience`)."
    )
