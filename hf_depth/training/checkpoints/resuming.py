"""The lock of a run's folder, the checkpoint that the run continues, and whether its training is finished."""

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from accelerate.utils import gather_object
from transformers import TrainerState, TrainingArguments

from ...disk import LOCK_FILE, alone_in
from ...errors import UserError
from ..callbacks import evaluations_without_improvement
from .manifest import STATE_FILE, checkpoint_steps, damage, read_manifest

logger = logging.getLogger(__name__)

# `Trainer` warns of intervals that are given as a share of all steps, as our logs are. `check_same_run` compares more.
logging.getLogger("transformers.trainer_utils").addFilter(lambda record: STATE_FILE not in record.getMessage())

LOCK_TIMEOUT = 120.0  # seconds: a run that was told to stop saves first; a file server frees locks of dead nodes late


@contextlib.contextmanager
def run_alone(training_args: TrainingArguments) -> Iterator[None]:
    """Lock `output_dir` for all processes of a run while the block runs, which may be nested; or `UserError`."""
    folder, problem = training_args.output_dir, None
    with contextlib.ExitStack() as stack:
        if training_args.should_save:
            try:
                stack.enter_context(alone_in(folder, "another run", LOCK_TIMEOUT))
            except TimeoutError:
                advice = "Wait for its end, stop it, or choose another `--output_dir`. If its machine is gone, delete"
                what = f"Another run trains in {folder}: the two would mix their checkpoints"
                problem = f"{what}. {advice} {Path(folder, LOCK_FILE)}."
        if any(problems := gather_object([problem])):
            raise UserError(next(filter(None, problems)))
        yield


def checkpoint_to_resume(training_args: TrainingArguments) -> str | None:
    """The checkpoint of `--resume_from_checkpoint`, by default the last whole one; `None` to start anew."""
    asked = training_args.resume_from_checkpoint
    if not training_args.do_train or str(asked).lower() == "false":
        return None
    if asked is None or str(asked).lower() == "true":
        last = last_complete_checkpoint(training_args, is_needed=asked is not None)
        if last is not None:
            logger.info(f"Resuming from {last}. To start a new run, choose another `--output_dir`.")
        return last
    problem = _damage_on_any_node(asked, training_args)
    if problem is not None:
        advice = "Without `--resume_from_checkpoint`, the run continues from its last complete one."
        raise UserError(f"{asked} is no complete checkpoint: {problem}. {advice}")
    _warn_of_a_model_alone(asked)
    return asked


def last_complete_checkpoint(training_args: TrainingArguments, is_needed: bool = False) -> str | None:
    """The newest whole checkpoint in `output_dir`; `None` if there is none at all, `UserError` if all are damaged."""
    output_dir, passed_over = training_args.output_dir, []
    steps = gather_object([list(checkpoint_steps(output_dir).values())])  # of all nodes: a new one may have none
    for step in sorted(set().union(*steps), reverse=True):
        folder = os.path.join(output_dir, name := f"checkpoint-{step}")
        problem = _damage_on_any_node(folder, training_args)
        if problem is None:
            _warn_of_a_model_alone(folder)
            return folder
        logger.warning(f"Skipping {folder}: {problem}.")
        passed_over.append(f"{name} ({problem})")
    if passed_over:
        advice = "Restore the changed files, or give `--resume_from_checkpoint false` to start anew in this folder"
        problems = f"{', '.join(passed_over)}. A new run would replace them"
        raise UserError(f"No checkpoint in {output_dir} is complete: {problems}. {advice}.")
    if is_needed:
        raise UserError(f"`--resume_from_checkpoint true`, but no checkpoint is in {output_dir}: leave it out.")
    return None


def _damage_on_any_node(folder: str | os.PathLike, training_args: TrainingArguments) -> str | None:
    """What is wrong with a checkpoint on any node, see [`damage`]. All processes get the same answer."""
    found = damage(folder) if training_args.should_save else None
    return next(filter(None, gather_object([found])), None)


def _warn_of_a_model_alone(folder: str | os.PathLike) -> None:
    if not any(name.startswith(("optimizer", "global_step")) for name in os.listdir(folder)):
        logger.warning(f"{folder} has the model only (`--save_only_model`): optimizer and schedule begin anew.")


def best_checkpoint(checkpoint: str | os.PathLike, training_args: TrainingArguments) -> str:
    """The best checkpoint of the run with `load_best_model_at_end`; otherwise `checkpoint` itself."""
    recorded = _state(checkpoint).best_model_checkpoint
    if recorded is None or not training_args.load_best_model_at_end:
        return str(checkpoint)
    # Beside the checkpoint first: the run may have been moved, and another run may be in its old folder.
    beside = Path(checkpoint).parent / Path(recorded).name
    best = str(beside) if beside.is_dir() else recorded
    problem = _damage_on_any_node(best, training_args)
    if problem is not None:  # `Trainer` would go on without it
        what = f"{best}, the best checkpoint of the run of {checkpoint}, cannot be used: {problem}"
        advice = "give `--load_best_model_at_end false` without `--early_stopping_patience`"
        raise UserError(f"{what}. Put it back beside {checkpoint}, or {advice}.")
    return best


def is_finished(checkpoint: str | os.PathLike, training_args: TrainingArguments) -> bool:
    """Whether training is over at this checkpoint. `Trainer.train` would take one more step."""
    state = _state(checkpoint)
    patience = getattr(training_args, "early_stopping_patience", None)
    if patience is not None and evaluations_without_improvement(state) >= patience:
        return True
    if training_args.max_steps > 0:
        return state.global_step >= training_args.max_steps
    return (state.epoch or 0) >= training_args.num_train_epochs


def model_is_complete(checkpoint: str | os.PathLike, training_args: TrainingArguments) -> bool:
    """Whether `output_dir` has the complete final model of the run that ended with this checkpoint."""
    folder, is_complete = training_args.output_dir, True
    if training_args.should_save:
        manifest = read_manifest(folder) if damage(folder) is None else None
        is_complete = manifest is not None and manifest.get("step") == _state(checkpoint).global_step
    return all(gather_object([is_complete]))


def _state(checkpoint: str | os.PathLike) -> TrainerState:
    return TrainerState.load_from_json(os.path.join(checkpoint, STATE_FILE))
