"""Schedules of the learning rate that transformers does not have, and defaults for one that it has."""

import logging
import math
from functools import partial

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import SchedulerType, TrainingArguments, get_scheduler
from transformers.utils import ExplicitEnum

from ..errors import UserError

logger = logging.getLogger(__name__)

T5_WARMUP_STEPS = 10_000  # for which the learning rate of T5 is constant (Raffel et al. 2020, section 3.1.2)
UNKNOWN_LENGTH = 1_000_000  # steps for which a schedule is tried where it is not known how long training takes
TRIED_STEPS = 20  # at which its learning rates are computed


class ScheduleName(ExplicitEnum):
    """Values of `--lr_scheduler_type` besides those of transformers' `SchedulerType`, which cannot be extended."""

    T5_INVERSE_SQRT = "t5_inverse_sqrt"


def t5_inverse_sqrt(step: int, *, num_warmup_steps: int, num_training_steps: int, num_decay_steps: int) -> float:
    """
    T5's inverse square root, with a linear decay to 0 at the end: the learning rate as a share of its peak.

    It is 1 for `num_warmup_steps`, and `sqrt(num_warmup_steps / step)` from there on. In the last `num_decay_steps` it
    falls to 0. With 10,000 steps of warm-up and a peak of 0.01 the learning rate is `min(1e-2, 1 / sqrt(step))`, as T5
    was pre-trained with.

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


def make_schedule(
    args: TrainingArguments, optimizer: Optimizer, num_training_steps: int, is_trial: bool = False
) -> LRScheduler:
    """
    The schedule of training arguments. `UserError` if a learning rate is not finite or above its peak, as far as a few
    steps show. It warns of a warm-up that is longer than the run, unless this is a trial.

    The decay of `t5_inverse_sqrt` and `warmup_stable_decay` takes a tenth of all steps, unless
    `lr_scheduler_kwargs` has `num_decay_steps`. `reduce_lr_on_plateau` and `greedy` heed `greater_is_better`.
    """
    warmup_steps = args.get_warmup_steps(num_training_steps)
    if warmup_steps > num_training_steps and not is_trial:
        logger.warning(
            f"The warm-up of {warmup_steps} steps is longer than the run of {num_training_steps}: the learning rate "
            "does not come to its peak. Give fewer `--warmup_steps`."
        )
    kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    try:
        schedule = _schedule(kind, args, optimizer, warmup_steps, num_training_steps)
        for share in getattr(schedule, "lr_lambdas", ())[:1]:  # of all parameters alike; none if it follows a metric
            for step in range(0, num_training_steps + 1, max(1, num_training_steps // TRIED_STEPS)):
                if not 0 <= share(step) <= 1 + 1e-6:
                    raise UserError(f"the learning rate of step {step} would be {share(step):g} times its peak.")
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        given = f"`lr_scheduler_type` {kind} with `lr_scheduler_kwargs` {args.lr_scheduler_kwargs}"
        raise UserError(f"{given}: {error}") from error
    return schedule


def check_schedule(args: TrainingArguments, peak: float) -> None:
    """`UserError` if the schedule cannot be made for a run of the same length with this peak."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    make_schedule(args, optimizer, args.max_steps if args.max_steps > 0 else UNKNOWN_LENGTH, is_trial=True)


def _schedule(
    kind: str, args: TrainingArguments, optimizer: Optimizer, warmup_steps: int, num_training_steps: int
) -> LRScheduler:
    options = dict(args.lr_scheduler_kwargs or {})
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):  # of some, the learning rate would be 0
            raise UserError(f"{name} must be finite, got {value}.")
    before_decay = None
    if kind == ScheduleName.T5_INVERSE_SQRT:
        options, before_decay = {"num_decay_steps": num_training_steps // 10} | options, 0
    elif kind == SchedulerType.WARMUP_STABLE_DECAY:
        decay = num_training_steps // 10
        if options.get("num_stable_steps") is not None:
            decay = num_training_steps - warmup_steps - options["num_stable_steps"]
        options, before_decay = {"num_decay_steps": max(1, decay)} | options, warmup_steps
    elif kind in (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY):
        # Their own default takes every metric for a loss: a score that rises would lower the learning rate.
        options = {"mode": "max" if args.greater_is_better else "min"} | options
    if before_decay is not None and before_decay + options["num_decay_steps"] > num_training_steps:
        raise UserError(
            f"warmup_steps {before_decay} and num_decay_steps {options['num_decay_steps']} are more than the "
            f"{num_training_steps} steps of the run."
        )
    if kind == ScheduleName.T5_INVERSE_SQRT:
        run = {"num_warmup_steps": warmup_steps or T5_WARMUP_STEPS, "num_training_steps": num_training_steps}
        return LambdaLR(optimizer, partial(t5_inverse_sqrt, **run, **options))
    return get_scheduler(kind, optimizer, warmup_steps, num_training_steps, scheduler_specific_kwargs=options)
