"""
Trackers (W&B, Trackio, TensorBoard): what the run is, the same run after a restart, its plots and predictions.

The callbacks are those of transformers, which log metrics, arguments and the model's configuration.
"""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback
from transformers.trainer_callback import ExportableState

from ..evaluation.figures import import_matplotlib
from ..tables import markdown_table
from .saving import ALL_RESULTS_FILE

MAX_EXAMPLES = 100  # of the predictions of each data set


@dataclass(frozen=True)
class Outputs:
    """
    What a run has left for its trackers.

    Args:
        pictures (`dict[str, Path]`): by name, such as `losses`.
        tables (`dict[str, tuple[list[str], list[list]]]`): columns and rows of predicted examples, by name.
        metrics (`dict[str, float]`): of the test data, by names such as `test/accuracy`.
    """

    pictures: dict[str, Path]
    tables: dict[str, tuple[list[str], list[list[Any]]]]
    metrics: dict[str, float]

    @classmethod
    def read(cls, folder: str | os.PathLike, since: float = 0.0) -> "Outputs":
        """
        Those in the folder of a run.

        Args:
            folder: of the run.
            since: the time of its oldest plots and predictions; those of before are of an earlier model.
        """
        folder, prefix = Path(folder), "predict_"
        results = folder / ALL_RESULTS_FILE
        metrics = json.loads(results.read_text(encoding="utf-8")) if results.is_file() else {}
        return cls(
            pictures={path.stem: path for path in _found(folder, "*.png", since)},
            tables={path.stem: _read_table(path) for path in _found(folder, "predictions*.jsonl", since)},
            metrics={f"test/{name[len(prefix) :]}": x for name, x in metrics.items() if name.startswith(prefix)},
        )


def _found(folder: Path, pattern: str, since: float) -> list[Path]:
    return sorted(path for path in folder.glob(pattern) if path.stat().st_mtime >= since)


def _read_table(path: Path) -> tuple[list[str], list[list[Any]]]:
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in islice(file, MAX_EXAMPLES)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return columns, [[_cell(row.get(name)) for name in columns] for row in rows]


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value


def run_name(description: Mapping[str, Any], output_dir: str | os.PathLike) -> str:
    """
    A name for a run by what it is, see [`describe_run`]: base model, task or objective and text, length, seed.

    >>> run_name({"model_name_or_path": "runs/depth", "tasks": ["glue/rte version 1"], "seed": 3}, "runs/mine")
    'depth on glue/rte, seed 3'
    >>> run_name({"model_type": "t5", "objective": "prefix_lm", "max_source_length": 96, "seed": 3}, "runs/mine")
    "t5 from scratch, prefix_lm on Python's documentation, 96 tokens, seed 3"
    >>> run_name({}, "runs/mine")
    'mine'
    """
    base, tasks = description.get("model_name_or_path"), description.get("tasks")
    model = Path(base).name if base else f"{description.get('model_type')} from scratch"
    if tasks:
        names = [task.split(" version ")[0] for task in tasks]
        parts = [f"{model} on {names[0] if len(names) == 1 else f'{len(names)} tasks'}"]
    elif "objective" in description:
        files = description.get("train_file")
        own = f"{len(files)} file{'s' * (len(files) > 1)}" if files else "Python's documentation"
        text = "+".join(description.get("mixture_sources") or ()) or description.get("dataset_name") or own
        parts = [model, f"{description['objective']} on {text}"]
    else:
        return Path(output_dir).name
    if "max_source_length" in description:
        parts.append(f"{description['max_source_length']} tokens")
    return ", ".join([*parts, f"seed {description['seed']}"])


class RunTracker(ExportableState):
    """
    What our callbacks of trackers share: a description of the run, and an identity that each checkpoint keeps.

    `trainer_state.json` holds the identity as the state of the callback, as that of every `ExportableState`.
    """

    description: Mapping[str, Any] = {}
    identity: str | None = None

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"identity": self.identity}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.restore(state)
        super().on_train_begin(args, state, control, **kwargs)

    def restore(self, state: TrainerState) -> None:
        """Take the identity from the checkpoint that a run continues."""
        if state.global_step > 0 and self.identity is None:
            saved = state.stateful_callbacks.get(type(self).__name__, {})
            self.identity = saved.get("attributes", {}).get("identity")

    def log_outputs(self, trainer: Trainer, outputs: Outputs) -> None:
        """Log what a run has left at its end."""
        raise NotImplementedError

    def end(self) -> None:
        """End the run of the tracker."""


class DepthWandbCallback(RunTracker, WandbCallback):
    """
    A [`WandbCallback`] that continues the W&B run of a checkpoint, unless the environment names one by WANDB_RUN_ID,
    and whose configuration says what the run is.
    """

    _is_own = False  # whether the W&B run was begun here

    def setup(self, args: TrainingArguments, state: TrainerState, model: Any, **kwargs: Any) -> None:
        wandb = self._wandb
        self.restore(state)
        if state.is_world_process_zero and wandb.run is None and state.trial_name is None:
            project = os.getenv("WANDB_PROJECT", "huggingface")
            wandb.init(project=project, **self._init_arguments(args))
            self._is_own = True
        super().setup(args, state, model, **kwargs)
        if state.is_world_process_zero:
            self.identity = wandb.run.id
            wandb.config.update(dict(self.description), allow_val_change=True)

    def _init_arguments(self, args: TrainingArguments) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        if args.run_name is not None:
            arguments["name"] = args.run_name
        elif not os.environ.keys() & {"WANDB_NAME", "WANDB_SWEEP_ID"}:
            arguments["name"] = run_name(self.description, args.output_dir)
        if self.identity is not None and "WANDB_RUN_ID" not in os.environ:
            arguments["id"] = self.identity
            if "WANDB_RESUME" not in os.environ:
                arguments["resume"] = "allow"
        return arguments

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        # Otherwise they would stand under `train/`.
        metrics = {name.replace("predict_", "test_", 1): value for name, value in metrics.items()}
        super().on_predict(args, state, control, metrics, **kwargs)

    def log_outputs(self, trainer: Trainer, outputs: Outputs) -> None:
        wandb = self._wandb
        if wandb.run is None:
            return
        media: dict[str, Any] = {name: wandb.Image(str(path)) for name, path in outputs.pictures.items()}
        for name, (columns, rows) in outputs.tables.items():
            media[name] = wandb.Table(columns=columns, data=rows, allow_mixed_types=True)
        if media:
            wandb.log(media | {"train/global_step": trainer.state.global_step})
        wandb.run.summary.update(outputs.metrics)

    def end(self) -> None:
        if self._is_own:
            self._wandb.finish()
        self._is_own = self._initialized = False


class DepthTrackioCallback(RunTracker, TrackioCallback):
    """
    A [`TrackioCallback`] whose run has a name of its own, by which Trackio continues it: after a restart, and for the
    evaluations after training.
    """

    def setup(self, args: TrainingArguments, state: TrainerState, model: Any, **kwargs: Any) -> None:
        self.restore(state)
        if self.identity is None:
            self.identity = args.run_name or f"{run_name(self.description, args.output_dir)} {secrets.token_hex(3)}"
        given, args.run_name = args.run_name, self.identity
        try:
            super().setup(args, state, model, **kwargs)
        finally:
            args.run_name = given
        if state.is_world_process_zero:
            self._trackio.config.update(dict(self.description), allow_val_change=True)

    def log_outputs(self, trainer: Trainer, outputs: Outputs) -> None:
        if not self._initialized:
            self.setup(trainer.args, trainer.state, trainer.model)
        media: dict[str, Any] = {name: self._trackio.Image(str(path)) for name, path in outputs.pictures.items()}
        for name, (columns, rows) in outputs.tables.items():
            media[name] = self._trackio.Table(data=[dict(zip(columns, row, strict=True)) for row in rows])
        if media or outputs.metrics:
            self._trackio.log(media | outputs.metrics | {"train/global_step": trainer.state.global_step})

    def end(self) -> None:
        if self._initialized:
            self._trackio.finish()
        self._initialized = False


class DepthTensorBoardCallback(RunTracker, TensorBoardCallback):
    """A [`TensorBoardCallback`] that goes on in the folder of logs that the run had before a restart."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.restore(state)
        if self.logging_dir is None and self.identity is not None:
            self.logging_dir = str(Path(args.output_dir, self.identity))
        super().on_train_begin(args, state, control, **kwargs)
        if state.is_world_process_zero and self.logging_dir is not None:
            self.identity = os.path.relpath(self.logging_dir, args.output_dir)
            state.stateful_callbacks[type(self).__name__] = self.state()
        if self.tb_writer is not None:
            rows = [("setting", "value"), *self.description.items()]
            self.tb_writer.add_text("run", markdown_table(rows, num_text_columns=2))

    def log_outputs(self, trainer: Trainer, outputs: Outputs) -> None:
        import_matplotlib()
        from matplotlib.image import imread

        if self.tb_writer is None:  # closed at the end of training
            self._init_summary_writer(trainer.args)
        step = trainer.state.global_step
        for name, path in outputs.pictures.items():
            self.tb_writer.add_image(name, imread(path), step, dataformats="HWC")
        for name, (columns, rows) in outputs.tables.items():
            self.tb_writer.add_text(name, markdown_table([columns, *rows], num_text_columns=len(columns)), step)
        for name, value in outputs.metrics.items():
            self.tb_writer.add_scalar(name, value, step)
        self.tb_writer.flush()


TRACKERS: dict[type[TrainerCallback], type[RunTracker]] = {
    WandbCallback: DepthWandbCallback,
    TrackioCallback: DepthTrackioCallback,
    TensorBoardCallback: DepthTensorBoardCallback,
}


def install_trackers(trainer: Trainer) -> None:
    """
    Replace the callbacks of trackers that `Trainer` has made for `report_to`. Subclasses of a user stay.

    Args:
        trainer (`Trainer`): whose callbacks are made.
    """
    for chosen, own in TRACKERS.items():
        if any(type(callback) is chosen for callback in trainer.callback_handler.callbacks):
            trainer.remove_callback(chosen)
            trainer.add_callback(own)


def check_wandb_key(args: TrainingArguments) -> None:
    """
    Check that W&B has a key, where it could neither ask for one nor do without. It is looked for as `wandb.init` does,
    without a network.

    Args:
        args (`TrainingArguments`): with `report_to`; only the first of all processes logs.

    Raises:
        `ValueError`: if `wandb.init` would find none, when text and model are ready.
    """
    if "wandb" not in args.report_to or args.process_index != 0:
        return
    import wandb

    try:
        from wandb.errors.term import can_use_terminput
        from wandb.sdk.lib.wbauth import authenticate_session
        from wandb.sdk.wandb_setup import singleton

        settings = singleton().settings
        if wandb.run is not None or settings.mode in ("disabled", "dryrun", "offline") or can_use_terminput():
            return
        key = authenticate_session(host=settings.base_url, source="", prompt=False, update_session=False)
    except (ImportError, TypeError):  # an earlier wandb has no such functions; it complains by itself, but later
        return
    except ValueError as error:  # of pydantic, which lists what is wrong with the settings
        listed = getattr(error, "errors", list)()
        wrong = [f"WANDB_{one['loc'][0]}".upper() + f" is {one['input']!r}. {one['msg']}" for one in listed]
        raise ValueError(f"`--report_to wandb`: {'; '.join(wrong) or error}.") from error
    if key is None:
        raise ValueError(
            f"`--report_to wandb`: there is no API key for {settings.base_url}. Log in once by `wandb login`, or set "
            "WANDB_API_KEY; WANDB_MODE=offline logs to files that `wandb sync` uploads later."
        )


def run_trackers(trainer: Trainer) -> list[RunTracker]:
    """The trackers of a trainer that know what its run is."""
    return [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, RunTracker)]
