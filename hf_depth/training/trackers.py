"""Trackers (`report_to`): transformers' callbacks log. What is here lets a continued run go on in the same curves."""

import os
import secrets
from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState


class TrackedRun(TrainerCallback, ExportableState):
    """
    Begins a run of W&B before W&B's own callback would, and names one of Trackio. `trainer_state.json` keeps its
    identity: training that is continued goes on in the same run. What the user says comes first, by the environment
    (`WANDB_RUN_ID`, …), by `run_name`, or by a run that `wandb.init` has begun.
    """

    def __init__(self):
        self.identity: str | None = None
        self.description: Mapping[str, Any] = {}  # what the run is, for the configuration that W&B shows
        self._begun = self._owns_wandb_run = False

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"args": {}, "attributes": {"identity": self.identity}}

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Begin the run, whatever comes first: training, an evaluation or predictions."""
        if self._begun or not state.is_world_process_zero or state.is_hyper_param_search:
            return
        self._begun = True
        if self.identity is None and state.global_step > 0:
            saved = state.stateful_callbacks.get(type(self).__name__, {})
            self.identity = saved.get("attributes", {}).get("identity")
        self.identity = self.identity or secrets.token_hex(4)
        if "wandb" in args.report_to:
            self._begin_wandb(args)
        if "trackio" in args.report_to and args.run_name is None:
            args.run_name = f"{args.output_dir} {self.identity}"  # by which Trackio knows a run

    on_train_begin = on_predict = on_log

    def _begin_wandb(self, args: TrainingArguments) -> None:
        import wandb

        if wandb.run is None:
            is_named = bool(os.environ.keys() & {"WANDB_NAME", "WANDB_SWEEP_ID"})
            wandb.init(
                project=os.getenv("WANDB_PROJECT", "huggingface"),
                name=args.run_name or (None if is_named else args.output_dir),
                id=os.getenv("WANDB_RUN_ID", self.identity),
                resume=os.getenv("WANDB_RESUME", "allow"),
            )
            self._owns_wandb_run = True
        self.identity = wandb.run.id
        wandb.config.update(dict(self.description), allow_val_change=True)

    def end(self, args: TrainingArguments) -> None:
        """End the run that was begun here: the next trainer of this process has one of its own."""
        if self._owns_wandb_run:
            import wandb

            wandb.finish()
        self._begun = self._owns_wandb_run = False
