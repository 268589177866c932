"""Schedules of the learning rate that transformers does not have, and defaults for one that it has."""

import logging
import math
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import SchedulerType, TrainingArguments, get_scheduler
from transformers.utils import ExplicitEnum

from ..errors import UserError

logger = logging.getLogger(__name__)

T5_WARMUP_STEPS = 10_000  # for which the learning rate of T5 is constant (Raffel et al. 2020, section 3.1.2)
UNKNOWN_LENGTH = 1_000_000  # steps for which a schedule is tried where it is not known how long training takes
TRIED_STEPS = 20  # at which its learning rates are computed, at equal distances


class ScheduleName(ExplicitEnum):
    """Values of `--lr_scheduler_type` besides those of transformers' `SchedulerType`, which cannot be extended."""

    T5_INVERSE_SQRT = "t5_inverse_sqrt"


def t5_inverse_sqrt(step: int, *, num_warmup_steps: int, num_training_steps: int, num_decay_steps: int) -> float:
    """
    T5's inverse square root, with a linear decay to 0 at the end: the learning rate as a share of its peak.

    It is 1 for `num_warmup_steps`, and `sqrt(num_warmup_steps / step)` from there on; in the last `num_decay_steps` it
    falls from what it was at their beginning to 0. With 10,000 steps of warm-up and a peak of 0.01 the learning rate
    is `min(1e-2, 1 / sqrt(step))`, as T5 was pre-trained with.

    Args:
        step (`int`): from 0.
        num_warmup_steps (`int`): for which the learning rate is constant.
        num_training_steps (`int`): of the whole run.
        num_decay_steps (`int`): the last of them; 0 for none.

    Source: Raffel et al. (2020), section 3.1.2; the decay is that of the schedule "legacy" of nanoT5.

    >>> run = {"num_warmup_steps": 10_000, "num_training_steps": 100_000, "num_decay_steps": 10_000}
    >>> [0.01 * t5_inverse_sqrt(step, **run) for step in (1, 40_000, 100_000)]
    [0.01, 0.005, 0.0]
    """
    start = num_training_steps - num_decay_steps
    share = math.sqrt(num_warmup_steps / max(num_warmup_steps, min(step, start) if num_decay_steps else step))
    if num_decay_steps and step > start:
        share *= max(0, num_training_steps - step) / num_decay_steps
    return share


def make_schedule(args: TrainingArguments, optimizer: Optimizer, num_training_steps: int) -> LRScheduler:
    """
    The schedule of training arguments, with a warning if its warm-up is longer than the run.

    Args:
        args (`TrainingArguments`): with `lr_scheduler_type`, `lr_scheduler_kwargs` and `warmup_steps`, and with
            `greater_is_better`, for which `reduce_lr_on_plateau` and `greedy` follow a metric. The kwargs of
            `t5_inverse_sqrt` are `num_decay_steps`; of it and of `warmup_stable_decay` they are a tenth of all steps
            unless given.
        optimizer (`Optimizer`): whose learning rates follow it.
        num_training_steps (`int`): of the whole run.

    Raises:
        `TypeError`, `ValueError`: for kwargs that the schedule does not have, for more steps than there are, and for
            learning rates that are not finite, below 0 or above the peak.
    """
    schedule = _schedule(args, optimizer, num_training_steps)
    warmup_steps = args.get_warmup_steps(num_training_steps)
    shares = _checked_rates(schedule, warmup_steps, num_training_steps)
    if warmup_steps > num_training_steps and shares and max(shares) < 1:
        logger.warning(
            f"The warm-up of {warmup_steps} steps is longer than the run of {num_training_steps}, whose learning rate "
            f"comes to {max(shares):.0%} of its peak. Give fewer `--warmup_steps`."
        )
    return schedule


def check_schedule(args: TrainingArguments, peak: float) -> None:
    """
    Make the schedule of the arguments for a single parameter, and compute a few of its learning rates.

    Args:
        args (`TrainingArguments`): as of [`make_schedule`].
        peak (`float`): the highest learning rate that the run may have.

    Raises:
        `ValueError`: naming `lr_scheduler_type` and `lr_scheduler_kwargs`.
    """
    options = args.lr_scheduler_kwargs or {}
    if not isinstance(options, dict):
        raise UserError(f"`lr_scheduler_kwargs` must be a mapping of names to values, got {options!r}.")
    steps = args.max_steps if args.max_steps > 0 else UNKNOWN_LENGTH
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    try:
        _checked_rates(_schedule(args, optimizer, steps), args.get_warmup_steps(steps), steps)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
        given = f" {options}" if options else ""
        raise UserError(f"`lr_scheduler_type` {kind} with `lr_scheduler_kwargs`{given}: {error}") from error


def _schedule(args: TrainingArguments, optimizer: Optimizer, num_training_steps: int) -> LRScheduler:
    kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    warmup_steps = args.get_warmup_steps(num_training_steps)
    options = dict(args.lr_scheduler_kwargs or {})
    _check_numbers(options, peak=max(group.get("initial_lr", group["lr"]) for group in optimizer.param_groups))
    if kind == ScheduleName.T5_INVERSE_SQRT:
        _check_phases(options, 0, num_training_steps)
        run = {"num_warmup_steps": warmup_steps or T5_WARMUP_STEPS, "num_training_steps": num_training_steps}
        options = {"num_decay_steps": num_training_steps // 10} | options
        return LambdaLR(optimizer, partial(t5_inverse_sqrt, **run, **options))
    if kind == SchedulerType.WARMUP_STABLE_DECAY:
        options = {"num_decay_steps": _decay_steps(options, warmup_steps, num_training_steps)} | options
        _check_phases(options, warmup_steps, num_training_steps)
    if kind in (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY):
        # Their own default takes every metric for a loss: a score that rises would lower the learning rate.
        options = {"mode": "max" if args.greater_is_better else "min"} | options
    return get_scheduler(kind, optimizer, warmup_steps, num_training_steps, scheduler_specific_kwargs=options)


def _check_numbers(options: dict[str, Any], peak: float) -> None:
    """Check the kwargs of a schedule: of NaN, some would make a learning rate of 0."""
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{name} must be finite, got {value}.")
    least = options.get("min_lr")
    if isinstance(least, int | float) and least > peak:
        raise UserError(f"min_lr {least} is above the peak of the learning rate, {peak}.")


def _checked_rates(schedule: LRScheduler, warmup_steps: int, num_training_steps: int) -> list[float]:
    """Learning rates at some steps, as shares of their peak; none of a schedule that follows a metric."""
    steps = {1, warmup_steps, *(num_training_steps * part // TRIED_STEPS for part in range(TRIED_STEPS + 1))}
    shares = []
    for step in sorted(step for step in steps if step <= num_training_steps):
        shares += [share(step) for share in getattr(schedule, "lr_lambdas", ())[:1]]  # all groups have the same one
        if shares and not 0 <= shares[-1] <= 1 + 1e-6:
            raise UserError(
                f"the learning rate of step {step} would be {shares[-1]:g} times its peak. It must be at least 0, and "
                "not above the peak."
            )
    return shares


def _decay_steps(options: dict[str, Any], warmup_steps: int, num_training_steps: int) -> int:
    """The steps of the decay: what warmup and stable steps leave, or a tenth of all steps."""
    if options.get("num_stable_steps") is None:
        return max(1, num_training_steps // 10)
    return max(0, num_training_steps - warmup_steps - options["num_stable_steps"])


def _check_phases(options: dict[str, Any], warmup_steps: int, num_training_steps: int) -> None:
    """Check the numbers of steps of a schedule's phases."""
    phases = {name: options[name] for name in ("num_stable_steps", "num_decay_steps") if options.get(name) is not None}
    for name, steps in phases.items():
        if not isinstance(steps, int) or steps < 0:
            raise UserError(f"{name} must be a number of steps, got {steps!r}.")
    if warmup_steps + sum(phases.values()) > num_training_steps:
        said = " and ".join(f"{name} {steps}" for name, steps in {"warmup_steps": warmup_steps, **phases}.items())
        raise UserError(f"{said} are more than the {num_training_steps} steps of the run.")
