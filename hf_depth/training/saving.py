"""[`SavingTrainer`]: checkpoints that are complete or invisible, never of NaN, and resumed with the same logs."""

import contextlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.utils import gather_object
from transformers import Seq2SeqTrainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import (
    EvalLoopOutput,
    HubStrategy,
    SaveStrategy,
    TrainOutput,
    compare_trainer_and_checkpoint_args,
    rotate_checkpoints,
)

from ..manifests import (
    UNFINISHED_FOLDER,
    file_entries,
    is_full_disk,
    list_files,
    missing_part,
    publish_files,
    publish_folder,
    remove_aside,
    replace_text,
    write_manifest,
)
from .callbacks import RUN_FILE
from .checkpoints import last_complete_checkpoint
from .fsdp import prepare_evaluation
from .locks import alone_in_output_dir

logger = logging.getLogger(__name__)

ALL_RESULTS_FILE = "all_results.json"

Result = TypeVar("Result")


class SavingTrainer(Seq2SeqTrainer):
    """
    A [`Seq2SeqTrainer`] whose checkpoints are complete or invisible.

    - A checkpoint is written to `output_dir/_unfinished`, with a manifest (`manifest.json`: sizes and hashes of all
      files of all processes), and renamed when it is on the disk. The model in `output_dir` is replaced likewise.
    - Weights or a loss that are not finite are never saved: training stops with an error, on all processes.
    - What was added up since the last log is part of a checkpoint: a resumed run logs the same values.
    - The checkpoint of the last step of an epoch is written after the log and the evaluation at the end of the epoch.
    """

    # What identifies the run, see `describe_run`: `run.json` of each checkpoint.
    run_description: dict[str, Any] | None = None

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._staging_folder: Path | None = None  # instead of `output_dir`, while a checkpoint is written
        self._model_files: dict[str, dict[str, Any]] = {}  # of the last `save_model`, for the manifest
        self._last_good_step = 0
        self._resumed_from: str | None = None
        self.last_checkpoint: str | None = None  # that this run wrote or was resumed from
        self._first_step_of_loss = 0  # after which the mean loss of the run begins
        self._epoch_is_over = False
        self.add_callback(_ResumeCallback(self))

    # ---- Checkpoints ------------------------------------------------------------------------------------------------

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """
        As `Trainer` does after a step and at the end of an epoch, but not after the last step of an epoch.

        What is due then is done with what is due at the end of the epoch, and saved when all of it is done: a run that
        is killed after a checkpoint of that step goes on with the next epoch, and would be without the log and the
        evaluation at the end of this one.

        The last step of all is saved whenever anything is, also with `save_strategy="best"` and when training ends
        early: or the run would be trained again from an earlier checkpoint on, by the same command.
        """
        is_last_step = self.control.should_training_stop or self.control.should_epoch_stop or self.state.epoch % 1 == 0
        if self._epoch_is_over or not is_last_step:
            super()._maybe_log_save_evaluate(*args, **kwargs)
        is_end = self._epoch_is_over and self.control.should_training_stop and self.state.global_step > 0
        last = None if self.last_checkpoint is None else Path(self.last_checkpoint).name
        is_saved = last == f"checkpoint-{self.state.global_step}"
        if is_end and not is_saved and self.args.save_strategy != SaveStrategy.NO:
            self.control.should_save = True
            super()._maybe_log_save_evaluate(*args, **kwargs)  # all else is done

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """As `Trainer` does; saves the best model also between `save_steps`, or it could not be loaded at the end."""
        is_due = self.control.should_save  # after a signal; `save_strategy="best"` saves for a new best score only
        is_new_best = super()._determine_best_metric(metrics, trial)
        if is_new_best and self.args.load_best_model_at_end:
            self.control.should_save = True
        return is_new_best or is_due

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        self._check_training_loss()
        folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
        with self._written_aside(folder) as aside:
            # Without a best step, `Trainer` neither waits for the other processes, which would hang if one of them
            # fails, nor records the temporary folder as that of the best model.
            best_step, self.state.best_global_step = self.state.best_global_step, None
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self.state.best_global_step = best_step
            self._record_best_checkpoint(folder)
            if self.args.should_save:
                self.state.save_to_json(aside / "trainer_state.json")
                if self.run_description is not None:
                    (aside / RUN_FILE).write_text(json.dumps(self.run_description, indent=2), encoding="utf-8")
            self._save_rank_files(aside)
        self.last_checkpoint = str(folder)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(folder))
        if self.args.should_save:
            # `Trainer` did so as well, but in the temporary folder.
            limit, best = self.args.save_total_limit, self.state.best_model_checkpoint
            _make_newest(folder)
            rotate_checkpoints(str(folder.parent), save_total_limit=limit, best_model_checkpoint=best, use_mtime=True)

    def _save_rank_files(self, folder: Path) -> None:
        """
        Write what else of this process belongs into a checkpoint; called on each process before the manifest is made.

        Args:
            folder: of the checkpoint; it exists on each process that saves.
        """
        if not self.args.save_only_model:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / self._rank_file("log_state")).write_text(json.dumps(self._log_state()), encoding="utf-8")

    def _rank_file(self, name: str) -> str:
        """The name of a file of this process, in the manner of `rng_state_0.pth`."""
        return f"{name}_{self.args.process_index}.json" if self.args.world_size > 1 else f"{name}.json"

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._staging_folder is None else str(self._staging_folder)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """As `Trainer` does, with the code of the model, without which it is not loaded."""
        if self._staging_folder is not None:  # it is not complete yet
            return
        if self.is_world_process_zero() and self.args.hub_strategy != HubStrategy.END:
            for path in Path(checkpoint_folder).glob("*.py"):
                shutil.copy(path, self.args.output_dir)
        super()._push_from_checkpoint(checkpoint_folder)

    def _record_best_checkpoint(self, folder: Path) -> None:
        best_step = self.state.best_global_step
        best = folder.with_name(f"checkpoint-{best_step}")
        if best_step and (best == folder or best.is_dir()):
            self.state.best_model_checkpoint = str(best)

    @contextlib.contextmanager
    def _written_aside(self, folder: Path) -> Iterator[Path]:
        """A temporary folder to write to, which takes the place of `folder` when all processes have written theirs."""
        aside = folder.parent / UNFINISHED_FOLDER / folder.name
        self._on_all(lambda: self._make_anew(aside))
        failure = None
        self._staging_folder = aside.parent
        try:
            yield aside
        except Exception as error:
            failure = error
        finally:
            self._staging_folder = None

        def report() -> None:
            if failure is not None:
                raise failure

        if failure is not None and (self.is_deepspeed_enabled or self.is_fsdp_enabled):
            # The others may wait for this process to gather weights with them: it ends, and the launcher ends them.
            # What they write is removed at the next start.
            free = shutil.disk_usage(self.args.output_dir).free
            raise self._full_disk(str(failure), free) if is_full_disk(failure) else failure
        self._on_all(report)
        described = self._on_all(lambda: self._describe_share(aside))
        self._on_all(lambda: self._publish(aside, folder, described))
        if not self.args.should_save and aside.is_dir() and not folder.exists():
            with contextlib.suppress(FileNotFoundError):  # on a node whose disk is its own, once
                os.replace(aside, folder)

    def _make_anew(self, aside: Path) -> None:
        if self.args.should_save:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)

    def _describe_share(self, aside: Path) -> dict[str, dict[str, Any]]:
        """Sizes and hashes of the files that this process takes on."""
        if not aside.is_dir():
            return {}
        index, number = self.args.process_index, self.args.world_size
        if self.args.save_on_each_node:
            index, number = self.args.local_process_index, int(os.environ.get("LOCAL_WORLD_SIZE", number))
        return file_entries(aside, list_files(aside)[index::number], sync=True)

    def _publish(self, aside: Path, folder: Path, described: list[dict[str, dict[str, Any]]]) -> None:
        if not self.args.should_save:
            return
        if self.args.save_on_each_node:  # then each node has files of its own
            first = self.args.process_index - self.args.local_process_index
            described = described[first : first + int(os.environ.get("LOCAL_WORLD_SIZE", len(described)))]
        found = {name: entry for entries in described for name, entry in entries.items()}
        names = list_files(aside)
        missing = missing_part(names)
        if missing is not None:
            raise RuntimeError(
                f"{missing} of {folder.name} is not there after all of it was written: does something else remove "
                f"files in {self.args.output_dir}? Earlier checkpoints are intact."
            )
        files = {name: found[name] for name in names if name in found}
        # Of a process that saw other files, on a disk that is not shared.
        files |= file_entries(aside, [name for name in names if name not in found], sync=True)
        write_manifest(aside, files, step=self.state.global_step)
        publish_folder(aside, folder)

    def _on_all(self, action: Callable[[], Result]) -> list[Result]:
        """
        The results of `action` on each process. If it fails on one, all stop: none is left waiting for another.

        Raises:
            `OSError`: in one line, if the disk is full. The unfinished folder is removed.
        """
        result, failure = None, None
        try:
            result = action()
        except Exception as error:
            failure = error
        problem = None if failure is None else (str(failure), is_full_disk(failure))
        outcomes = gather_object([(result, problem)])
        failures = [outcome[1] for outcome in outcomes if outcome[1] is not None]
        if not failures:
            return [outcome[0] for outcome in outcomes]
        free = self._remove_unfinished()
        full_disk = next((message for message, is_full in failures if is_full), None)
        if full_disk is not None:
            raise self._full_disk(full_disk, free)
        raise failure or RuntimeError(f"Another process could not save its part: {failures[0][0]}")

    def _full_disk(self, message: str, free: int) -> OSError:
        return OSError(
            f"The disk of {self.args.output_dir} is full ({free / 1e6:,.1f} MB free): step {self.state.global_step} "
            f"could not be saved ({message.splitlines()[0]}). Earlier checkpoints are intact: make room, or keep "
            "fewer by `--save_total_limit`, and run the same command again."
        )

    # ---- The final model --------------------------------------------------------------------------------------------

    def save_model(self, output_dir: str | os.PathLike | None = None, _internal_call: bool = False) -> None:
        """As `Trainer.save_model`; each file in `args.output_dir` is replaced as a whole, when all are on the disk."""
        self._check_parameters()
        if output_dir is not None and Path(output_dir) != Path(self.args.output_dir):
            super().save_model(output_dir, _internal_call)
            return
        aside = Path(self.args.output_dir, UNFINISHED_FOLDER, "model")
        if self.args.should_save:
            shutil.rmtree(aside, ignore_errors=True)
        try:
            super().save_model(str(aside), _internal_call=True)
            if self.is_deepspeed_enabled or self.is_fsdp_enabled:
                self.accelerator.wait_for_everyone()  # all may write a part
            if self.args.should_save:
                files = list_files(aside)
                if not any(name.endswith(".safetensors") for name in files):
                    raise RuntimeError(
                        f"`Trainer` wrote no weights to {self.args.output_dir}, but {', '.join(files) or 'nothing'}. "
                        "The last checkpoint has what was trained."
                    )
                self._model_files = file_entries(aside, files, sync=True)
                publish_files(aside, Path(self.args.output_dir))
        except Exception as error:
            if not is_full_disk(error):
                remove_aside(aside)
                raise
            free = shutil.disk_usage(self.args.output_dir).free
            remove_aside(aside)
            raise self._full_disk(str(error), free) from None
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """As `Trainer._save`; with `save_on_each_node` on each node indeed."""
        is_whole = bool(state_dict) or not (self.is_deepspeed_enabled or self.is_fsdp_enabled)
        if not (self.args.save_on_each_node and self.args.should_save and is_whole):
            super()._save(output_dir, state_dict)
            return
        # `save_pretrained` of transformers 5.23 writes no weights but on the first of all processes.
        model = self.accelerator.unwrap_model(self.model)
        model.should_save_on_this_rank = lambda is_main_process: is_main_process
        try:
            super()._save(output_dir, state_dict)
        finally:
            del model.should_save_on_this_rank

    def write_model_manifest(self) -> None:
        """Mark the folder of the run as complete, after everything else: see [`model_is_complete`]."""
        if self.args.should_save:
            write_manifest(self.args.output_dir, self._model_files, step=self.state.global_step)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """
        As `Trainer.evaluation_loop`; what is trained or saved later has the weights of before. After training,
        `Trainer` casts the model for `bf16_full_eval` and `fp16_full_eval`, and leaves it so.
        """
        prepare_evaluation(self.accelerator, self.model)
        if self.is_in_train or not (self.args.bf16_full_eval or self.args.fp16_full_eval):
            return super().evaluation_loop(*args, **kwargs)
        weights = [(parameter, parameter.data) for parameter in self.model.parameters()]
        try:
            return super().evaluation_loop(*args, **kwargs)
        finally:
            self.model.to(max((data.dtype for _, data in weights), key=lambda dtype: dtype.itemsize))
            with torch.no_grad():
                for parameter, data in weights:
                    parameter.copy_(data)  # to assign the data of a `DTensor` would change its outer type only

    def _remove_unfinished(self) -> int:
        """Remove what was not written to its end; the free space of the disk before, in bytes."""
        unfinished = Path(self.args.output_dir, UNFINISHED_FOLDER)
        free = shutil.disk_usage(self.args.output_dir).free if unfinished.is_dir() else 0
        shutil.rmtree(unfinished, ignore_errors=True)
        return free

    # ---- Results ----------------------------------------------------------------------------------------------------

    def save_metrics(self, split: str, metrics: Mapping[str, float], combined: bool = True) -> None:
        """
        As `Trainer.save_metrics`; each file is replaced as a whole, and a combined one that cannot be read, as after
        a full disk, is made anew.
        """
        if not self.is_world_process_zero():
            return
        folder = Path(self.args.output_dir)
        replace_text(folder / f"{split}_results.json", json.dumps(metrics, indent=4, sort_keys=True))
        if combined:
            path = folder / ALL_RESULTS_FILE
            replace_text(path, json.dumps({**_read_results(path), **metrics}, indent=4, sort_keys=True))

    # ---- Values that are not finite ---------------------------------------------------------------------------------

    def _check_training_loss(self) -> None:
        """Stop all processes if the loss since the last log is not finite on one of them."""
        losses = gather_object([self._tr_loss.item()])
        self._stop_on_bad_loss(next((loss for loss in losses if not math.isfinite(loss)), 0.0))
        self._last_good_step = self.state.global_step

    def _stop_on_bad_loss(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise FloatingPointError(self._not_finite(f"The training loss is {loss}"))

    def _check_parameters(self) -> None:
        """Stop if parameters are not finite: on all processes, also where each has a part of them."""
        parts = {name: _local_part(parameter) for name, parameter in self.model.named_parameters()}
        finite = torch.stack([part.isfinite().all() for part in parts.values()]).tolist()
        bad = [name for name, is_finite in zip(parts, finite, strict=True) if not is_finite]
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            bad = gather_object(bad)
        if bad:
            raise FloatingPointError(self._not_finite(f"{bad[0]} is not finite"))

    def _not_finite(self, what: str, step: int | None = None) -> str:
        step = self.state.global_step if step is None else step
        return (
            f"{what} at step {step}. T5 overflows in float16: use `--bf16` or float32; otherwise "
            "lower `--learning_rate`, lengthen `--warmup_steps` or clip by `--max_grad_norm`. The loss was finite "
            f"until step {self._last_good_step}; nothing was saved after that."
        )

    def _finalize_training(self, *args: Any, **kwargs: Any) -> TrainOutput:
        self._check_training_loss()
        self._check_parameters()
        # `Trainer` adds that of this process to those of the logs, which are means over all.
        self._tr_loss = self.accelerator.reduce(self._tr_loss, "mean")
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            # With a limit of 1, `Trainer` would delete the last checkpoint if it is not the best one: a run that a
            # signal stopped would go back to that one, and a finished run would be trained again from there.
            output = super()._finalize_training(*args, **kwargs)
        finally:
            self.args.save_total_limit = limit
        return output._replace(training_loss=output.metrics["train_loss"])

    # ---- Resuming ---------------------------------------------------------------------------------------------------

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """
        As `Trainer.train`; what a process that was killed left unfinished is removed first. With
        `resume_from_checkpoint=True` the last complete checkpoint is taken.

        Raises:
            `ValueError`: if another run trains in `output_dir`, or if there is no complete checkpoint to resume from.
        """
        # Trials of a search, of which several may run at the same time, have folders of their own.
        with alone_in_output_dir(self.args) if trial is None else contextlib.nullcontext():
            if self.args.should_save and Path(self.args.output_dir, UNFINISHED_FOLDER).is_dir():
                logger.info(f"Removing {self.args.output_dir}/{UNFINISHED_FOLDER}, which was not written to its end.")
                self._remove_unfinished()
            return self._train(resume_from_checkpoint, trial, *args, **kwargs)

    def _train(self, resume_from_checkpoint: str | bool | None, *args: Any, **kwargs: Any) -> TrainOutput:
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_complete_checkpoint(self.args.output_dir, self.args)
            if resume_from_checkpoint is None:
                raise ValueError(f"There is no complete checkpoint in {self.args.output_dir} to resume from.")
        self._resumed_from = self.last_checkpoint = resume_from_checkpoint or None
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """
        As `Trainer` does, but a run that is continued has the intervals of its arguments, not those of the checkpoint,
        and may have callbacks whose states the checkpoint lacks; `Trainer` could not save them.
        """
        self.last_checkpoint = self._resumed_from  # also in another try, of smaller batches
        # Of other intervals, which may change, and of another batch size, which is told by [`SamplingTrainer`] and by
        # `check_same_run`.
        differences = logging.getLogger(compare_trainer_and_checkpoint_args.__module__)
        differences.disabled, was_disabled = True, differences.disabled
        try:
            progress = super()._init_training_state(max_steps, *args, **kwargs)
        finally:
            differences.disabled = was_disabled
        self.state.compute_steps(self.args, max_steps)
        self._last_good_step = self._first_step_of_loss = self.state.global_step
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                self.state.stateful_callbacks.setdefault(type(callback).__name__, callback.state())
        return progress

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """As `Trainer` does, but not about second names of loaded weights, which no checkpoint holds."""
        tied = getattr(self.model, "all_tied_weights_keys", {})
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """As `Trainer` does; no epoch begins if the checkpoint that the run goes on from is of the last step."""
        if not self.control.should_training_stop:
            super()._run_epoch(*args, **kwargs)

    def _evaluate(self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False) -> dict:
        if skip_scheduler and self._resumed_from is not None:
            return {}  # `eval_on_start`, which the run has in its logs already
        return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)

    def _log_state(self) -> dict[str, Any]:
        """What was added up on this process since the last log, as JSON; and since the first step."""
        return {
            "loss_since_log": self._tr_loss.item(),
            "last_logged_step": self._globalstep_last_logged,
            "loss_until_log": self._total_loss_scalar,
            "first_step": self._first_step_of_loss,
            "num_processes": self.args.world_size,
        }

    def _saved_log_state(self, checkpoint: Path) -> dict[str, Any] | None:
        """What this process goes on from: its own file, or if there were more or fewer processes, a part of all."""
        files = sorted(checkpoint.glob("log_state*.json"))
        if not files:
            return None
        own = checkpoint / self._rank_file("log_state")
        if own in files:
            saved = json.loads(own.read_text(encoding="utf-8"))
            if saved.get("num_processes", len(files)) == self.args.world_size:
                return saved
        return self._merged_log_state([json.loads(path.read_text(encoding="utf-8")) for path in files])

    def _merged_log_state(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """One for each process of now; losses are means over the processes."""
        losses = ("loss_since_log", "loss_until_log")
        return states[0] | {name: sum(state[name] for state in states) / len(states) for name in losses}

    def _restore_log_state(self, saved: dict[str, Any]) -> None:
        self._tr_loss.fill_(saved["loss_since_log"])
        self._globalstep_last_logged = saved["last_logged_step"]
        self._total_loss_scalar = saved["loss_until_log"]
        self._first_step_of_loss = saved["first_step"]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As `Trainer.log`; stops on a loss that is not finite, and `train_loss` is that of all steps of the run."""
        if "loss" in logs:
            self._stop_on_bad_loss(logs["loss"])
            self._last_good_step = self.state.global_step
        if "train_loss" in logs:
            logs["train_loss"] = self._total_loss_scalar / max(
                self.state.global_step - self._first_step_of_loss, 0.001
            )
        super().log(logs, start_time)


def _read_results(path: Path) -> dict[str, float]:
    """What `all_results.json` holds so far."""
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        logger.warning(f"{path} cannot be read ({error}) and is replaced: it was not written to its end.")
        return {}


def _make_newest(folder: Path) -> None:
    """
    Let a checkpoint have the latest time of all: `rotate_checkpoints` goes by it and keeps the latest one, which is
    another one if the clock of a machine goes ahead, or after a copy. (Steps count anew if a run starts anew.)
    """
    others = [path for path in folder.parent.glob("checkpoint-*") if path.is_dir() and path != folder]
    latest = max((path.stat().st_mtime for path in others), default=0)
    if latest >= folder.stat().st_mtime:
        with contextlib.suppress(OSError):  # not every file system can
            os.utime(folder, (latest + 2, latest + 2))  # below 1 second `rotate_checkpoints` takes them for equal


class _ResumeCallback(TrainerCallback):
    """
    Restores what was added up since the last log, and where the best checkpoint is; ends training at once if no steps
    are left. Tells the trainer whether an epoch is over.
    """

    def __init__(self, trainer: SavingTrainer):
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        trainer = self.trainer
        if trainer._resumed_from is not None:
            saved = trainer._saved_log_state(Path(trainer._resumed_from))
            if saved is not None:
                trainer._restore_log_state(saved)
            trainer._record_best_checkpoint(Path(trainer._resumed_from))
        if state.global_step >= state.max_steps:
            control.should_training_stop = True

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer._epoch_is_over = False

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer._epoch_is_over = True


def _local_part(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The parameter, or what this process has of it under DeepSpeed ZeRO-3 or FSDP2."""
    part = getattr(parameter, "ds_tensor", parameter).detach()
    return part.to_local() if hasattr(part, "to_local") else part
