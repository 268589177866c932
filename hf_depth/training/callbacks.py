"""Callbacks: the epoch of the collator, early stopping across resumes, the last evaluation."""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import has_length

logger = logging.getLogger(__name__)

RUN_FILE = "run.json"  # in each checkpoint: what identifies its run


class EarlyStopping(EarlyStoppingCallback):
    """
    Stops after evaluations without a better score; a resumed run also counts those before its checkpoint.

    `restore_callback_states_from_checkpoint` of `Trainer` would restore the old patience and threshold as well,
    although the arguments may ask for others.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        # The state of a training that begins anew has the counter of the one before it, in the same trainer.
        is_resumed = state.global_step > 0
        self.early_stopping_patience_counter = evaluations_without_improvement(state) if is_resumed else 0
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True  # the checkpoint is that of the end

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> None:
        is_over = control.should_training_stop  # already, for another reason
        super().on_evaluate(args, state, control, metrics, **kwargs)
        if control.should_training_stop and not is_over:
            logger.info(
                f"Stopping early at step {state.global_step}: no better {args.metric_for_best_model} in "
                f"{self.early_stopping_patience_counter} evaluations. The best is {state.best_metric:.4f} of step "
                f"{state.best_global_step}."
            )


def evaluations_without_improvement(state: TrainerState) -> int:
    """How many evaluations in a row, up to the last one, had no better score; 0 without early stopping."""
    saved = state.stateful_callbacks.get(EarlyStopping.__name__, {})
    return saved.get("attributes", {}).get("early_stopping_patience_counter", 0)


class LastEvaluation(TrainerCallback):
    """Keeps the metrics of the last evaluation, of all data sets, and the step that it was at."""

    def __init__(self):
        self.step: int | None = None
        self.metrics: dict[str, float] = {}

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> None:
        if state.global_step != self.step:
            self.step, self.metrics = state.global_step, {}
        self.metrics |= metrics  # several data sets are evaluated one by one

    def is_of_final_model(self, args: TrainingArguments, state: TrainerState) -> bool:
        """Whether the model has not changed since: no step was trained, no better model was loaded."""
        is_best = not args.load_best_model_at_end or state.best_global_step == state.global_step
        return self.step == state.global_step and is_best


class CollatorEpochCallback(TrainerCallback):
    """
    Tells the collator, and the data where these ask for it, which epoch begins: an example is corrupted anew at each
    visit, also after resuming.

    Args:
        listeners (`Callable`): returns those that there are, with `set_epoch(epoch)`.
    """

    def __init__(self, listeners: Callable[[], Iterable[Any]]):
        self.listeners = listeners

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # Not 0 when a run is resumed, but for streams of unknown length: the Trainer reads them from their beginning,
        # and calls it the end of an epoch when `max_steps` are over.
        is_sized = has_length(kwargs.get("train_dataloader"))
        self.epoch = int(state.epoch or 0) if is_sized else 0

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        # Counted here, since `state.epoch` stays below 1 for as long as a stream of unknown length is read anew.
        for listener in self.listeners():
            listener.set_epoch(self.epoch)
        self.epoch += 1


class EvaluatedBatchCallback(TrainerCallback):
    """
    Tells that a batch is evaluated, also by a `prediction_step` of a subclass.

    Args:
        listener (`Callable`): called without arguments.
    """

    def __init__(self, listener: Callable[[], None]):
        self.listener = listener

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.listener()
