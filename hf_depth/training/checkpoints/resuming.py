"""Resuming: finding the checkpoint that a run continues, checking its model, and whether training is finished."""

import contextlib
import logging
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from accelerate.utils import gather_object
from transformers import AutoConfig, PreTrainedModel, Trainer, TrainerState, TrainingArguments

from ...disk import read_manifest
from ...errors import UserError
from ...models.loading import SENTENCE_SETTINGS, SIZE_FIELDS, config_values
from ..callbacks import evaluations_without_improvement
from .manifest import STATE_FILE, damage

logger = logging.getLogger(__name__)

MAX_NAMED = 3  # the most checkpoints that a message names


# ---- Which checkpoint -----------------------------------------------------------------------------------------------


def checkpoint_to_resume(training_args: TrainingArguments) -> str | None:
    """
    Return the checkpoint of `--resume_from_checkpoint`, or the last one in `output_dir`; `None` to start anew.

    Raises:
        `ValueError`: on all processes, if the named checkpoint is missing or damaged, or all in `output_dir` are
            damaged. A new run would replace these.
    """
    asked = training_args.resume_from_checkpoint
    if not training_args.do_train or str(asked).lower() == "false":
        return None
    if asked is None or str(asked).lower() in ("true", "last", "auto"):
        last = last_complete_checkpoint(training_args.output_dir, training_args)
        if asked is not None and last is None:
            raise UserError(
                f"`--resume_from_checkpoint {asked}`: there is no checkpoint in {training_args.output_dir}. "
                "Name a checkpoint folder, or leave the argument out to start anew."
            )
        if last is not None:
            logger.info(f"Resuming from {last}. To start a new run, choose another `--output_dir`.")
        return last
    problem = _damage_on_any_node(asked, training_args)
    if problem is not None:
        raise UserError(
            f"{asked} is no complete checkpoint: {problem}. Name another one by `--resume_from_checkpoint`, or leave "
            "the argument out to continue from the last complete one in `--output_dir`."
        )
    _warn_of_a_model_alone(asked)
    return asked


def last_complete_checkpoint(
    output_dir: str | os.PathLike, training_args: TrainingArguments | None = None
) -> str | None:
    """
    Return the newest complete checkpoint, see [`damage`]; `None` if there is no checkpoint.

    Args:
        output_dir: the folder of the run.
        training_args: the arguments of the run. If it has several processes, all call this and get the same answer.

    Raises:
        `ValueError`: if there are checkpoints and none is complete. A killed run leaves no incomplete checkpoint.
    """
    passed_over = []
    for name in checkpoint_names(output_dir):
        folder = Path(output_dir, name)
        problem = _damage_on_any_node(folder, training_args)
        if problem is None:
            _warn_of_a_model_alone(folder)
            return str(folder)
        logger.warning(f"Skipping {folder}: {problem}.")
        passed_over.append(f"{name} ({problem})")
    if passed_over:
        more = f" and {len(passed_over) - MAX_NAMED} more" * (len(passed_over) > MAX_NAMED)
        raise UserError(
            f"No checkpoint in {output_dir} is complete: {', '.join(passed_over[:MAX_NAMED])}{more}. A new run "
            "would replace them. Restore the changed files, name a complete checkpoint by "
            "`--resume_from_checkpoint`, choose another `--output_dir`, or give `--resume_from_checkpoint false` to "
            "start anew in this folder."
        )
    return None


def checkpoint_names(output_dir: str | os.PathLike) -> list[str]:
    """Return the checkpoints that any process sees, the newest first. A replaced node may have none."""
    names = [path.name for path in Path(output_dir).glob("checkpoint-*") if path.is_dir()]
    steps = {name: name.removeprefix("checkpoint-") for found in gather_object([names]) for name in found}
    return sorted((name for name in steps if steps[name].isdigit()), key=lambda name: int(steps[name]), reverse=True)


def _damage_on_any_node(folder: str | os.PathLike, training_args: TrainingArguments | None) -> str | None:
    """Return what is wrong with a checkpoint on any node, see [`damage`]. All processes get the same answer."""
    found = damage(folder) if training_args is None or training_args.should_save else None
    if found is not None and training_args is not None and training_args.save_on_each_node:
        found += f" on {socket.gethostname()}"
    return next((problem for problem in gather_object([found]) if problem is not None), None)


def _warn_of_a_model_alone(folder: str | os.PathLike) -> None:
    if not any(name.startswith(("optimizer", "global_step")) for name in os.listdir(folder)):
        logger.warning(
            f"{folder} has the model only (`--save_only_model`): training goes on with a new optimizer and schedule. "
            "The result differs from a run without the interruption."
        )


def best_checkpoint(checkpoint: str | os.PathLike, training_args: TrainingArguments) -> str:
    """
    Return the best checkpoint of the run with `load_best_model_at_end`; otherwise `checkpoint` itself.

    Raises:
        `ValueError`: if the best checkpoint is missing or damaged. `Trainer` would silently go on without it.
    """
    recorded = _state(checkpoint).best_model_checkpoint
    if recorded is None or not training_args.load_best_model_at_end:
        return str(checkpoint)
    # Look beside the checkpoint first: the run may have been moved, and another run may be in its old folder.
    beside = Path(checkpoint).parent / Path(recorded).name
    best = str(beside) if beside.is_dir() else recorded
    problem = _damage_on_any_node(best, training_args)
    if problem is not None:
        raise UserError(
            f"{best}, the best checkpoint of the run of {checkpoint}, cannot be used: {problem}. Put it back beside "
            f"{checkpoint}, or go on without it by `--load_best_model_at_end false` (and without "
            "`--early_stopping_patience`)."
        )
    return best


# ---- Is training finished -------------------------------------------------------------------------------------------


def is_finished(checkpoint: str | os.PathLike, training_args: TrainingArguments) -> bool:
    """Return whether training is over at this checkpoint. `Trainer.train` would take one more step."""
    state = _state(checkpoint)
    patience = getattr(training_args, "early_stopping_patience", None)
    if patience is not None and evaluations_without_improvement(state) >= patience:
        return True
    if training_args.max_steps > 0:
        return state.global_step >= training_args.max_steps
    return state.epoch is not None and state.epoch >= training_args.num_train_epochs


def model_is_complete(checkpoint: str | os.PathLike, training_args: TrainingArguments) -> bool:
    """Return whether `output_dir` has the complete final model of the run that ended with this checkpoint."""
    is_complete = True
    if training_args.should_save:
        try:
            manifest = read_manifest(training_args.output_dir) or {}
        except ValueError:
            manifest = {}
        is_complete = manifest.get("step") == _state(checkpoint).global_step
        is_complete = is_complete and damage(training_args.output_dir) is None
    return all(gather_object([is_complete]))


def check_same_model(checkpoint: str | os.PathLike, model: PreTrainedModel) -> None:
    """Raise `ValueError` if the model of a checkpoint has another type, size or masks. Names what differs."""
    saved, asked = config_values(AutoConfig.from_pretrained(checkpoint)), config_values(model.config)
    names = ("model_type", *SIZE_FIELDS, *SENTENCE_SETTINGS)
    different = [
        f"{name} {saved.get(name)} (now {asked.get(name)})" for name in names if saved.get(name) != asked.get(name)
    ]
    if different:
        raise UserError(
            f"The arguments describe another model than {checkpoint}, which has {', '.join(different)}. Choose "
            "another `--output_dir`, or go back to the arguments of that run."
        )


def _state(checkpoint: str | os.PathLike) -> TrainerState:
    return TrainerState.load_from_json(Path(checkpoint, STATE_FILE))


@contextlib.contextmanager
def without_messages_of_resuming(trainer: Trainer) -> Iterator[None]:
    """
    Hide two misleading warnings of transformers while a trainer resumes.

    They are about intervals given as a share of all steps, and about tied weights that a checkpoint holds once.
    """

    def says_something(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if "missing keys in the checkpoint" in message:
            tied = getattr(trainer.model, "all_tied_weights_keys", None) or {}
            return not tied.keys() >= set(re.findall(r"'([^']+)'", message))
        return "do not match the ones in the `trainer_state.json`" not in message

    loggers = [logging.getLogger(name) for name in ("transformers.trainer", "transformers.trainer_utils")]
    for one in loggers:
        one.addFilter(says_something)
    try:
        yield
    finally:
        for one in loggers:
            one.removeFilter(says_something)
