"""[`StepMonitor`]: the loss and the gradient norm of every step. Spikes are reported, bad batches can be skipped."""

import json
import logging
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch.utils.data import RandomSampler
from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from .data_loading import innermost_sampler, set_epoch_of_sampler

if TYPE_CHECKING:
    from .trainer import DepthTrainer

logger = logging.getLogger(__name__)

SPIKES_FILE = "spikes.jsonl"
WINDOW = 128  # recent steps; a step is judged as soon as half of them are known
# A spike is so many standard deviations above the median of the logarithms. 1.4826 median absolute deviations are one,
# which spikes hardly change: Leys et al. (2013), Detecting outliers, J. Exp. Soc. Psychol. 49(4).
FACTOR = 6.0
MAD_TO_SIGMA = 1.4826
LEAST_RATIO = {"loss": 1.5, "grad_norm": 3.0}  # to the median; the norm of healthy training doubles now and then
QUIET_SHARE = 0.1  # of all steps, at the beginning, where loss and norm change quickly


class SpikeDetector:
    """Tells values at least `least_ratio` times the median of the recent ones, and far above their deviation."""

    def __init__(self, least_ratio: float, recent: Iterable[float] = ()):
        self.least_ratio = least_ratio
        self.recent = deque(recent, maxlen=WINDOW)

    def is_spike(self, value: float) -> bool:
        """Judge a value, and keep it; one that is not finite is a spike."""
        if not math.isfinite(value):
            return True
        limit = math.inf
        if len(self.recent) >= WINDOW // 2:
            values = np.log(np.maximum(self.recent, 1e-30))
            median = np.median(values)
            sigma = MAD_TO_SIGMA * np.median(abs(values - median))
            limit = np.exp(median + max(FACTOR * sigma, math.log(self.least_ratio)))
        self.recent.append(value)
        return bool(value > limit)


class StepMonitor(TrainerCallback):
    """
    Looks at the loss and the gradient norm of every step of a trainer, on all processes at the same time.

    - A step far above the recent ones is a spike: one line, a warning if it is the loss, and its examples in
      `spikes.jsonl`. Steps are judged when something is logged or saved, so as not to wait for the device.
    - With `skip_bad_batches`, a step whose loss or gradient is not finite on any process changes neither weights nor
      moments, and is in no mean. For that the CPU waits for the device in each step.
    """

    def __init__(self, trainer: "DepthTrainer"):
        self.trainer = trainer
        self.restore({})

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        recent = {name: list(detector.recent) for name, detector in self.detectors.items()}
        return {"recent": recent, "skipped_batches": self.num_skipped}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Begin a training: with the [`~StepMonitor.state`] of a checkpoint, or anew with `{}`."""
        self.waiting: list[tuple[int, torch.Tensor]] = []  # steps, and what this process has of loss and norm, (2,)
        recent = state.get("recent", {})
        self.detectors = {name: SpikeDetector(least, recent.get(name, ())) for name, least in LEAST_RATIO.items()}
        self.num_skipped: int = state.get("skipped_batches", 0)

    def on_step_begin(self, args, state, control, **kwargs):
        # `Trainer` adds the loss of the step to this sum before it asks for the gradient norm. Copies: the memory of a
        # loss may be that of a CUDA graph, which the next forward pass writes to.
        self.loss_before, self.forget = self.trainer._tr_loss.clone(), self.trainer.running.snapshot()

    def end_step(self, grad_norm: torch.Tensor | float | None) -> torch.Tensor | float | None:
        """End the present step between backward pass and optimizer. Returns the norm; `None` if it is skipped."""
        trainer, norm = self.trainer, 0.0 if grad_norm is None else grad_norm
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of FSDP2
        own = {"dtype": torch.float32, "device": trainer.accelerator.device}
        pair = [torch.as_tensor(value, **own) for value in (trainer._tr_loss - self.loss_before, norm)]
        self.waiting.append((trainer.state.global_step + 1, torch.stack(pair)))
        if trainer.args.skip_bad_batches:
            loss, norm = self._means(self.waiting[-1:])[0]  # waits for the device
            if not (math.isfinite(loss) and math.isfinite(norm)):
                self._skip(self.waiting.pop()[0], loss, norm)
                return None
        return grad_norm

    def _means(self, steps: Sequence[tuple[int, torch.Tensor]]) -> list[list[float]]:
        """The loss and the gradient norm of steps, as means over the processes."""
        return self.trainer.accelerator.reduce(torch.stack([values for _, values in steps]), "mean").tolist()

    def on_step_end(self, args, state, control, **kwargs):
        if control.should_log or control.should_training_stop:  # and in `save_checkpoint`
            self.judge()

    on_epoch_end = on_step_end

    def judge(self) -> None:
        """Report the spikes among the steps since the last call; nothing if there are no new steps."""
        steps, self.waiting = self.waiting, []
        end_of_quiet, spikes = QUIET_SHARE * self.trainer.state.max_steps, []
        for (step, _), values in zip(steps, self._means(steps) if steps else [], strict=True):
            found = {}
            for (name, detector), value in zip(self.detectors.items(), values, strict=True):
                if detector.is_spike(value) and (step > end_of_quiet or not math.isfinite(value)):
                    found[name] = value
            spikes += [(step, found)] if found else []
        if spikes:
            step, found = spikes[0]
            what = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in found.items())
            others = f" {len(spikes) - 1} more until the next log." if len(spikes) > 1 else ""
            # A gradient is clipped; a loss tells of harm.
            level = logging.WARNING if any("loss" in found for _, found in spikes) else logging.INFO
            self._tell(spikes, f"Spike at step {step}: {what}.{others}", level)

    def _skip(self, step: int, loss: float, norm: float) -> None:
        """Leave the optimizer nothing to do, and take the step out of all means."""
        trainer, most = self.trainer, self.trainer.args.skip_bad_batches
        what = f"Step {step}: the loss is {loss:.4g}, the gradient norm {norm:.4g}"
        if self.num_skipped == most:
            raise FloatingPointError(
                f"{what}, after {most} skipped batches (`skip_bad_batches`). Lower `--learning_rate`, lengthen "
                "`--warmup_steps` or clip by `--max_grad_norm`."
            )
        self.num_skipped += 1
        message = f"{what}. Its batch is skipped, {self.num_skipped} of at most {most}."
        self._tell([(step, {"loss": loss, "grad_norm": norm, "skipped": True})], message, logging.WARNING)
        trainer.optimizer.zero_grad()
        trainer._tr_loss.copy_(self.loss_before)
        self.forget()
        # The means of the loss, of this log and of the run, are over the steps that were made.
        trainer._globalstep_last_logged += 1
        trainer.totals.first_step += 1

    def _tell(self, found: Sequence[tuple[int, dict[str, Any]]], message: str, level: int) -> None:
        """Log a message, and add a line for each step to `spikes.jsonl`, with what each process has read for it."""
        of_processes = gather_object([[self._examples(step) for step, _ in found]])
        if not self.trainer.is_world_process_zero():
            return
        path = Path(self.trainer.args.output_dir, SPIKES_FILE)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            for (step, what), examples in zip(found, zip(*of_processes, strict=True), strict=True):
                file.write(json.dumps({"step": step, **what, "examples": examples}) + "\n")
        logger.log(level, f"{message} Examples: {path}")

    def _examples(self, step: int) -> dict[str, Any]:
        """The indices in the data set of what this process has read for a step; none for a stream."""
        args, loader = self.trainer.args, self.trainer.callback_handler.train_dataloader
        sampler = innermost_sampler(loader)
        # The order of a plain sampler cannot be drawn again.
        if not has_length(loader) or (isinstance(sampler, RandomSampler) and not hasattr(sampler, "set_epoch")):
            return {}
        epoch, number = divmod(step - 1, max(1, -(-len(loader) // args.gradient_accumulation_steps)))
        set_epoch_of_sampler(loader, epoch, args)  # as the trainer does before it reads an epoch
        first = number * args.gradient_accumulation_steps
        batches = islice(loader.batch_sampler, first, first + args.gradient_accumulation_steps)
        return {"indices": [index for batch in batches for index in batch]}


# ---- Finite numbers -------------------------------------------------------------------------------------------------


def check_loss(trainer: "DepthTrainer", loss: float) -> None:
    """`FloatingPointError` if the loss is not finite."""
    if not math.isfinite(loss):
        raise FloatingPointError(_not_finite(trainer, f"The training loss is {loss}"))
    trainer.last_good_step = trainer.state.global_step


def check_losses(trainer: "DepthTrainer") -> float:
    """The mean loss since the last log over all processes. All raise if it is not finite on one of them."""
    losses = gather_object([trainer._tr_loss.item()])
    mean = sum(losses) / len(losses)
    check_loss(trainer, next((loss for loss in losses if not math.isfinite(loss)), mean))
    return mean


def check_parameters(trainer: "DepthTrainer") -> None:
    """`FloatingPointError` on all processes, which names a weight that is not finite."""
    names, finite = [], []
    for name, parameter in trainer.model.named_parameters():
        part = getattr(parameter, "ds_tensor", parameter).detach()  # of this process, under ZeRO-3
        names.append(name)
        finite.append((part.to_local() if hasattr(part, "to_local") else part).isfinite().all())  # under FSDP2
    bad = [name for name, is_finite in zip(names, torch.stack(finite).tolist(), strict=True) if not is_finite]
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        bad = gather_object(bad)
    if bad:
        raise FloatingPointError(_not_finite(trainer, f"{bad[0]} is not finite"))


def _not_finite(trainer: "DepthTrainer", what: str) -> str:
    return (
        f"{what} at step {trainer.state.global_step}. T5 overflows in float16: use `--bf16` or float32; otherwise "
        "lower `--learning_rate`, lengthen `--warmup_steps` or clip by `--max_grad_norm`. The loss was finite until "
        f"step {trainer.last_good_step}; nothing was saved after that."
    )
