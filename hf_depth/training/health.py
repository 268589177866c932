"""[`HealthTrainer`]: the loss and the gradient norm of every step: spikes are reported, bad batches can be skipped."""

import logging
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch.utils.data import DataLoader
from transformers.trainer_utils import has_length

from .sampling import innermost_sampler
from .streaming import StreamTrainer

logger = logging.getLogger(__name__)

# The number of steps and the factor are those of OLMo-core's `SkipStepOptimizer` (`rolling_interval_length`,
# `sigma_factor`), which judges once half of the steps are there. It takes mean and standard deviation, which a few
# spikes inflate; the median, and the median absolute deviation (MAD) from it, they do not: Leys et al. (2013),
# Detecting outliers, J. Exp. Soc. Psychol. 49(4). 1.4826 MAD are one standard deviation of normal values.
WINDOW = 128
FACTOR = 6.0
MAD_TO_SIGMA = 1.4826
LEAST_SIGMA = 0.02  # of the median: where a loss hardly varies, not every small rise is a spike
MOST_WAITING = 1000  # steps to be judged that are kept; each keeps two numbers on the device
MOST_INDICES = 64  # of the examples of a batch, in a message


class SpikeDetector:
    """
    Tells values that are far above the recent ones: above `median + 6 * 1.4826 * MAD` of the last 128, as soon as
    there are 64. Values that are not finite are always told, and are not among the recent ones.

    Args:
        recent (`Iterable[float]`, *optional*): values that came before.

    >>> detector = SpikeDetector(2.0 + 0.01 * (step % 7) for step in range(100))
    >>> detector.limit_passed(2.1), round(detector.limit_passed(3.5), 2), detector.limit_passed(float("nan"))
    (None, 2.27, inf)
    """

    def __init__(self, recent: Iterable[float] = ()):
        self.recent = deque(recent, maxlen=WINDOW)

    def limit_passed(self, value: float) -> float | None:
        """
        The limit that a value is above of, or `None`; then the value is one of the recent ones.

        Returns:
            `float`, *optional*: infinite for a value that is not finite.
        """
        if not math.isfinite(value):
            return math.inf
        limit = self._limit()
        self.recent.append(value)
        return limit if value > limit else None

    def _limit(self) -> float:
        if len(self.recent) < WINDOW // 2:
            return math.inf
        values = np.array(self.recent)
        median = np.median(values)
        sigma = max(MAD_TO_SIGMA * np.median(abs(values - median)), LEAST_SIGMA * abs(median))
        return float(median + FACTOR * sigma)


@dataclass
class Step:
    """
    A step of the optimizer, as the device left it: to read its numbers would make the CPU wait.

    Args:
        number (`int`): from 1.
        before (`Mapping`): what there was before it, to go back to; empty where no batch may be skipped.
        loss (`torch.Tensor` of shape `()`, *optional*): of the batches of this process so far.
        grad_norm (`torch.Tensor` of shape `()` or `float`, *optional*): before clipping.
        positions (`dict[int, Any]`): how far each consumer of a stream has read, of this process.
        sources (`list[torch.Tensor]`): of each batch, the numbers of the data sources of its examples.
    """

    number: int
    before: Mapping[str, Any]
    loss: torch.Tensor | None = None
    grad_norm: torch.Tensor | float | None = None
    positions: dict[int, Any] = field(default_factory=dict)
    sources: list[torch.Tensor] = field(default_factory=list)

    def numbers(self, device: torch.device) -> torch.Tensor:
        """Loss and gradient norm; the norm is that of all processes already."""
        norm = 0.0 if self.grad_norm is None else self.grad_norm
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of FSDP2
        return torch.stack([self.loss.float(), torch.as_tensor(norm, dtype=torch.float32, device=device)])


@dataclass
class Spike:
    """
    A step that has one.

    Args:
        step ([`Step`]): which one.
        values (`dict[str, tuple[float, float]]`): what is too high, with the limit.
    """

    step: Step
    values: dict[str, tuple[float, float]]

    @property
    def excess(self) -> float:
        """How many times the limit, by which different kinds of values compare."""
        return max(value / limit if math.isfinite(limit) else math.inf for value, limit in self.values.values())

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {value:.4g}" + (f" (limit {limit:.4g})" if math.isfinite(limit) else "")
            for name, (value, limit) in self.values.items()
        )


class HealthTrainer(StreamTrainer):
    """
    A [`StreamTrainer`] that looks at the loss and the gradient norm of every step.

    - A step whose loss or gradient norm is far above those of the last steps (see [`SpikeDetector`]) is logged as a
      warning with its values, and with the data sources of its examples and where they were read. Steps are judged
      when something is logged or saved, at the latest after 1,000 of them: the device is not waited for in between.
    - With `skip_bad_batches`, a step whose loss or gradients are not finite on any process is undone before the
      optimizer has made it: weights, optimizer, schedule, random numbers and logged sums are those of before, and
      training goes on with the next batch. To know it, the CPU waits for the device once in every step.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.args.fp16 or self.args.fp16_full_eval:
            logger.warning(
                "T5 and DEPTH can overflow in float16, of which 65,504 is the largest number: T5 was trained in "
                "bfloat16, and its hidden states are larger. Use `bf16` where the device has it, else float32. See "
                "https://github.com/huggingface/transformers/issues/5651."
            )
        self._forget_steps()

    def _forget_steps(self) -> None:
        self._step: Step | None = None  # that is being made
        self._waiting: list[Step] = []  # to be judged
        self._detectors = {"loss": SpikeDetector(), "gradient norm": SpikeDetector()}
        self._num_skipped = 0

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> tuple[torch.nn.Module, DataLoader]:
        self._forget_steps()
        return super()._prepare_for_training(*args, **kwargs)

    # ---- Steps ------------------------------------------------------------------------------------------------------

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """As `Trainer.training_step`; notes the loss, and where the examples come from."""
        if self._step is None:
            self._step = Step(self.state.global_step + 1, self._state_before_step())
        step = self._step
        if "source" in inputs:
            step.sources.append(inputs["source"])
        loss = super().training_step(model, inputs, *args, **kwargs)
        if "stream_position" in inputs:
            consumer, *_ = inputs["stream_position"]
            step.positions[consumer] = self._stream_positions[consumer]
        # A copy: the memory of the loss may be that of a CUDA graph, which the next forward pass writes to.
        step.loss = loss.clone() if step.loss is None else step.loss + loss
        return loss

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """As `Trainer` does, between backward pass and optimizer; `None` if the step is skipped."""
        grad_norm = super()._get_grad_norm(model, grad_norm)
        step, self._step = self._step, None
        step.grad_norm = grad_norm
        if self.args.skip_bad_batches and not self._is_finite(step):
            self._skip(step)
            return None
        self._waiting.append(step)
        if len(self._waiting) >= MOST_WAITING:
            self._judge_steps()
        return grad_norm

    def _judge_steps(self) -> None:
        """Report the worst of the steps since this was called last; all processes call it at the same time."""
        steps, self._waiting = self._waiting, []
        if not steps:
            return
        device = self.accelerator.device
        numbers = self.accelerator.reduce(torch.stack([step.numbers(device) for step in steps]), "mean").tolist()
        scales_loss = self.accelerator.scaler is not None  # float16
        spikes = []
        for step, values in zip(steps, numbers, strict=True):
            found = {}
            for (name, detector), value in zip(self._detectors.items(), values, strict=True):
                if name == "gradient norm" and scales_loss and not math.isfinite(value):
                    continue  # the scaled loss overflows now and then, and the scaler leaves such a step out
                limit = detector.limit_passed(value)
                if limit is not None:
                    found[name] = (value, limit)
            if found:
                spikes.append(Spike(step, found))
        if spikes:
            self._report_spikes(spikes)

    def _report_spikes(self, spikes: Sequence[Spike]) -> None:
        worst = max(spikes, key=lambda spike: spike.excess)  # the first of several
        others = f" So have {len(spikes) - 1} other steps since the last report." if len(spikes) > 1 else ""
        origin = self._describe_examples(worst.step)
        if self.is_world_process_zero():
            logger.warning(f"Step {worst.step.number} has a spike: {worst}. {origin}{others}")

    # ---- Batches that are not finite --------------------------------------------------------------------------------

    def _is_finite(self, step: Step) -> bool:
        """Whether loss and gradient of a step are finite on all processes; waits for the device."""
        finite = step.numbers(self.accelerator.device).isfinite().all().float()
        return self.accelerator.reduce(finite, "mean").item() == 1.0

    def _skip(self, step: Step) -> None:
        """
        Undo a step before the optimizer has made it.

        Raises:
            `FloatingPointError`: if as many batches were skipped already as may be.
        """
        loss, norm = self.accelerator.reduce(step.numbers(self.accelerator.device), "mean").tolist()
        what = f"the loss is {loss:.4g}, the gradient norm {norm:.4g}"
        most, origin = self.args.skip_bad_batches, self._describe_examples(step)
        if self._num_skipped == most:
            what = f"{what[0].upper()}{what[1:]}, after {most} skipped batches (`skip_bad_batches`),"
            raise FloatingPointError(self._not_finite(what, step.number))
        self._num_skipped += 1
        if self.is_world_process_zero():
            logger.warning(
                f"Step {step.number}: {what}. Its batch is skipped, {self._num_skipped} of at most {most}. {origin}"
            )
        # As accelerate has it in the middle of an accumulation, where the optimizer makes no step, and after an
        # overflow of float16, where the schedule makes none.
        self.accelerator.gradient_state._set_sync_gradients(False)
        self.optimizer._is_overflow = True
        self._restore_state(step.before)
        # The means of the loss, of this log and of the run, are over the steps that were made.
        self._globalstep_last_logged += 1
        self._first_step_of_loss += 1

    def _state_before_step(self) -> dict[str, Any]:
        """What a step changes besides the model; empty where no batch may be skipped."""
        if not self.args.skip_bad_batches:
            return {}
        self.optimizer._is_overflow = False
        return {"loss": self._tr_loss.clone(), "random": [module.get_rng_state() for module in self._random_modules]}

    def _restore_state(self, before: Mapping[str, Any]) -> None:
        # The trainer adds the loss to the sum before it asks for the gradient norm.
        self._tr_loss.copy_(before["loss"])
        for module, state in zip(self._random_modules, before["random"], strict=True):
            module.set_rng_state(state)

    @property
    def _random_modules(self) -> list[Any]:
        """That dropout draws from: of the CPU, and of the device of this process."""
        device = self.accelerator.device
        return [torch] if device.type == "cpu" else [torch, torch.get_device_module(device)]

    # ---- Where examples come from -----------------------------------------------------------------------------------

    def _describe_examples(self, step: Step) -> str:
        """A sentence about the examples of a step, of all processes, which all call this at the same time."""
        places = gather_object([(self._count_sources(step), self._places(step))])
        counts = sum((Counter(sources) for sources, _ in places), Counter())
        sources = ", ".join(f"{self._source_name(number)} ({count})" for number, count in counts.most_common())
        where = "; ".join(dict.fromkeys(place for _, place in places))
        return (f"Data sources of its examples: {sources}. " if sources else "") + f"Read from {where}."

    def _count_sources(self, step: Step) -> dict[int, int]:
        return dict(Counter(number for source in step.sources for number in source.tolist()))

    def _source_name(self, number: int) -> str:
        names = getattr(self.train_dataset, "source_names", ())  # of a mixture
        return names[number] if number < len(names) else f"source {number}"

    def _places(self, step: Step) -> str:
        """Where this process has read the examples of a step: positions in a stream, or indices of the data set."""
        if step.positions:
            read = step.positions.items()
            return "; ".join(f"the stream by consumer {consumer} up to {position}" for consumer, position in read)
        accumulation, loader = self.args.gradient_accumulation_steps, self.callback_handler.train_dataloader
        if not has_length(loader):
            return f"the batches from number {(step.number - 1) * accumulation} on"
        epoch, place = divmod(step.number - 1 + self._data_offset, max(1, -(-len(loader) // accumulation)))
        indices = _indices(loader, epoch, place * accumulation, accumulation)
        if indices is None:
            return f"the batches from number {place * accumulation} of epoch {epoch} on"
        more = f" and {len(indices) - MOST_INDICES} more" if len(indices) > MOST_INDICES else ""
        return f"the training data at the indices {', '.join(map(str, indices[:MOST_INDICES]))}{more}"

    # ---- Logs and checkpoints ---------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As [`StreamTrainer.log`]; judges the steps since the last log."""
        if "loss" in logs:
            self._judge_steps()
            if self._num_skipped:
                logs["skipped_batches"] = self._num_skipped
        super().log(logs, start_time)

    def _check_training_loss(self) -> None:
        self._judge_steps()
        super()._check_training_loss()

    def _log_state(self) -> dict[str, Any]:
        recent = {name: list(detector.recent) for name, detector in self._detectors.items()}
        return super()._log_state() | {"recent": recent, "skipped_batches": self._num_skipped}

    def _restore_log_state(self, saved: dict[str, Any]) -> None:
        super()._restore_log_state(saved)
        self._num_skipped = saved.get("skipped_batches", 0)
        self._detectors |= {name: SpikeDetector(values) for name, values in saved.get("recent", {}).items()}


def _indices(loader: DataLoader, epoch: int, first: int, number: int) -> list[int] | None:
    """
    The indices of the examples of some batches of an epoch, by the sampler alone; `None` if it draws them anew.

    It may be in the middle of an epoch: it has drawn the order of it already.
    """
    batches, sampler = loader.batch_sampler, innermost_sampler(loader)
    if isinstance(sampler, torch.utils.data.SequentialSampler):
        return [index for batch in islice(batches, first, first + number) for index in batch]
    if not hasattr(sampler, "set_epoch"):
        return None
    current = sampler.epoch
    sampler.set_epoch(epoch)
    try:
        return [index for batch in islice(batches, first, first + number) for index in batch]
    finally:
        sampler.set_epoch(current)
