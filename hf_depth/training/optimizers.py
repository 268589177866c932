"""Optimizers and schedules of T5 that neither torch nor the Trainer has, and how the arguments choose them."""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import parse_flag_from_env
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import Adafactor, SchedulerType, TrainingArguments, get_scheduler
from transformers.training_args import OptimizerNames
from transformers.utils import ExplicitEnum, strtobool

from ..errors import UserError, suggestion

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

# Their updates are relative to the size of a matrix, have factors for its rows and columns, or make it orthogonal.
NEED_WHOLE_MATRICES = ("adamw_scale", "adafactor", "muon")
SETTINGS = ("weight_decay", "betas", "eps")  # that a resumed run takes of its arguments, not of its checkpoint
T5_WARMUP_STEPS = 10_000  # for which the learning rate of T5 is constant (Raffel et al. 2020, section 3.1.2)
TRIED_STEPS = 20  # at which its learning rates are computed


class OptimizerName(ExplicitEnum):
    """Values of `--optim` besides those of transformers' `OptimizerNames`, which cannot be extended."""

    ADAMW_SCALE = "adamw_scale"
    MUON = "muon"


class AdamWScale(Optimizer):
    r"""
    AdamW whose updates are scaled by the root mean square of the parameter, as Adafactor does: nanoT5's optimizer.

    In step `t`, from the first and second moments `m` and `v` of the gradient, and with `RMS(p) = |p| / sqrt(n)`:

        p = p - lr * max(min_rms, RMS(p)) * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps)
        p = p - lr * weight_decay * p

    The learning rate is relative: 0.01 changes a matrix by about 1 % of its size in each step. A parameter is taken to
    be at least as large as `min_rms`. The other arguments are those of [`torch.optim.AdamW`].

    Source: https://github.com/PiotrNawrot/nanoT5, whose scaling is that of Shazeer and Stern (2018), section 8.

    >>> matrix = torch.nn.Parameter(torch.full((2, 2), 0.5))
    >>> optimizer = AdamWScale([matrix], lr=0.01)
    >>> matrix.sum().backward()
    >>> optimizer.step()
    >>> round(matrix[0, 0].item(), 4)  # 0.5 - 0.01 * 0.5
    0.495
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        min_rms: float = 1e-3,
    ):
        AdamW([nn.Parameter(torch.zeros(1))], lr, betas, eps, weight_decay)  # checks their ranges
        if not min_rms >= 0:
            raise UserError(f"`min_rms` must be at least 0, got {min_rms}.")
        options = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "min_rms": min_rms}
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients; returns what `closure` does."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            self._update([p for p in group["params"] if p.grad is not None], group)
        return loss

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        if not params:
            return
        beta1, beta2 = group["betas"]
        states = [self.state[p] for p in params]
        for p, state in zip(params, states, strict=True):
            if not state:
                state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["step"] = int(state.get("step", 0)) + 1
        counts = [state["step"] for state in states]
        rates = [group["lr"] * math.sqrt(1 - beta2**count) / (1 - beta1**count) for count in counts]
        grads = [p.grad for p in params]
        means, squares = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
        # Root mean squares of the parameters, of half precision in float32.
        is_half = any(p.dtype in (torch.float16, torch.bfloat16) for p in params)
        sizes = list(torch._foreach_norm(params, 2, dtype=torch.float32 if is_half else None))
        torch._foreach_div_(sizes, [math.sqrt(max(1, p.numel())) for p in params])

        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        torch._foreach_clamp_min_(sizes, group["min_rms"])
        torch._foreach_mul_(sizes, [-rate for rate in rates])
        # Dividing the denominators takes one pass less over the parameters than scaling the quotients.
        denominators = torch._foreach_sqrt(squares)
        torch._foreach_add_(denominators, group["eps"])
        torch._foreach_div_(denominators, sizes)
        torch._foreach_addcdiv_(params, means, denominators)
        if group["weight_decay"] != 0:
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])


class MuonWithAdamW(Optimizer):
    """
    `torch.optim.Muon` for matrices and `torch.optim.AdamW` for everything else, as one optimizer.

    Groups with `use_muon` are matrices for Muon ([`muon_groups`]). By `adjust_lr_fn="match_rms_adamw"`, one learning
    rate suits both kinds; `adamw_lr` is another one for AdamW. The other arguments are those of torch.

    >>> matrix, vector = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    >>> optimizer = MuonWithAdamW([{"params": [matrix], "use_muon": True}, {"params": [vector]}], lr=0.1)
    >>> (matrix.sum() + vector.sum()).backward()
    >>> optimizer.step()
    >>> sorted(optimizer.state[matrix]), sorted(optimizer.state[vector])
    (['momentum_buffer'], ['exp_avg', 'exp_avg_sq', 'step'])
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        adamw_lr: float | None = None,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        groups = [{"use_muon": False, **group, "params": list(group["params"])} for group in params]
        shared = {"lr": lr, "weight_decay": weight_decay}
        muon = {"momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn}
        adamw = {"betas": betas, "eps": eps, "lr": lr if adamw_lr is None else adamw_lr}
        # Both check their options, and are kept for their `step`; groups and states are those of this optimizer.
        self._parts = {
            True: Muon(self._of_kind(groups, True) or [nn.Parameter(torch.zeros(1, 1))], **shared | muon),
            False: AdamW(self._of_kind(groups, False) or [nn.Parameter(torch.zeros(1))], **shared | adamw),
        }
        made = {kind: iter(part.param_groups) for kind, part in self._parts.items()}
        super().__init__([next(made[group["use_muon"]]) for group in groups], shared)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for each in self.state.values():  # among several processes, the Trainer loads all to the GPU
            if "step" in each:
                each["step"] = each["step"].cpu()

    @staticmethod
    def _of_kind(groups: list[dict[str, Any]], use_muon: bool) -> list[dict[str, Any]]:
        return [group for group in groups if group["use_muon"] == use_muon]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients; returns what `closure` does."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for use_muon, part in self._parts.items():
            part.param_groups, part.state = self._of_kind(self.param_groups, use_muon), self.state
            part.step()
        return loss


def muon_groups(model: nn.Module, decayed: Iterable[str], weight_decay: float) -> list[dict[str, Any]]:
    """The groups of [`MuonWithAdamW`]: Muon for linear layers of blocks, AdamW for all else. `decayed` are names."""
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    layers = [name for name in linear if ".block." in name or ".layers." in name]  # T5's and those of other families
    matrices, decayed = {f"{name}.weight" for name in layers}, set(decayed)
    groups = {key: [] for key in ((True, True), (True, False), (False, True), (False, False))}
    for name, p in model.named_parameters():
        if p.requires_grad:
            groups[name in matrices and p.ndim == 2, name in decayed].append(p)
    return [
        {"params": params, "use_muon": use_muon, "weight_decay": weight_decay if decays else 0.0}
        for (use_muon, decays), params in groups.items()
        if params
    ]


# What `optim_args` may say, and how its value is read; `strtobool` gives 0 or 1.
_OPTIONS: dict[str, dict[str, Callable[[str], Any]]] = {
    "adamw_scale": {"min_rms": float},
    "muon": {"momentum": float, "nesterov": strtobool, "ns_steps": int, "adjust_lr_fn": str, "adamw_lr": float},
    "adafactor": {"scale_parameter": strtobool, "clip_threshold": float, "decay_rate": float}
    | {"beta1": float, "eps1": float, "eps2": float},
}


def get_optimizer_class_and_options(
    args: TrainingArguments, model: "PreTrainedModel | None" = None
) -> tuple[Any, dict[str, Any]]:
    """As [`Trainer.get_optimizer_cls_and_kwargs`], also for our optimizers and all options of Adafactor."""
    from transformers import Trainer  # takes seconds to import, for which `--help` does not wait

    name = getattr(args.optim, "value", args.optim)
    if name not in _OPTIONS:
        return Trainer.get_optimizer_cls_and_kwargs(args, model)
    options = read_options(args)
    if name == OptimizerNames.ADAFACTOR:
        eps = (options.pop("eps1", 1e-30), options.pop("eps2", 1e-3))
        settings = {"lr": args.learning_rate, "eps": eps, "scale_parameter": False, "relative_step": False}
        return Adafactor, settings | options
    options |= {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
    if name == OptimizerName.ADAMW_SCALE:
        return AdamWScale, options
    if model is not None:
        decayed = Trainer.get_decay_parameter_names(None, model)  # which reads nothing of a trainer
        options["params"] = muon_groups(model, decayed, args.weight_decay)
    return MuonWithAdamW, options


def dividing_engine(args: TrainingArguments) -> str | None:
    """`"DeepSpeed"` or `"FSDP"` if that will divide the parameters, by the arguments or by `accelerate launch`."""
    if args.deepspeed or parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        return "DeepSpeed"
    return "FSDP" if args.fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP") else None


def check_optimizer(args: TrainingArguments) -> None:
    """`UserError` if an optimizer lacks a package, does not take its options, or needs whole matrices."""
    name, engine = getattr(args.optim, "value", args.optim), dividing_engine(args)
    if engine is not None and name in NEED_WHOLE_MATRICES:
        what = f"`optim` {name} needs whole matrices, of which each process has only a part under {engine}"
        advice = "Use `--optim adamw_torch`, or data parallelism without sharding (`accelerate launch --multi_gpu`)"
        raise UserError(f"{what}. {advice}.")
    try:
        kind, options = get_optimizer_class_and_options(args)
        if name in _OPTIONS:
            kind([{"params": [nn.Parameter(torch.zeros(1))]}], **options)
    except (ImportError, ValueError) as error:
        settings = f"`optim` {name}" + (f" with `optim_args` {args.optim_args!r}" if args.optim_args else "")
        raise UserError(f"{settings}: {error}") from error
    except AttributeError:
        pass  # one that is made for the layers of a model


def read_options(args: TrainingArguments) -> dict[str, Any]:
    """What `--optim_args` says, NAME=VALUE with commas between them, of an optimizer whose options are read here."""
    name, options = getattr(args.optim, "value", args.optim), {}
    known = _OPTIONS.get(name, {})
    for part in filter(None, (args.optim_args or "").replace(" ", "").split(",") if known else ()):
        option, _, value = part.partition("=")
        if option not in known:
            raise UserError(f"`optim_args`: {option!r} is no option of {name}.{suggestion(option, known, 'options')}")
        try:
            options[option] = known[option](value)
        except ValueError as error:
            raise UserError(f"`optim_args`: {option} is {value!r}: {error}") from error
    return options


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
    The schedule of training arguments. `UserError` if a learning rate is not finite or above its peak, at a few steps.
    Warns of a warm-up longer than the run, unless `is_trial`. The decay of `t5_inverse_sqrt` and `warmup_stable_decay`
    takes a tenth of all steps by default. `reduce_lr_on_plateau` and `greedy` heed `greater_is_better`.
    """
    warmup_steps = args.get_warmup_steps(num_training_steps)
    if warmup_steps > num_training_steps and not is_trial:
        what = f"The warm-up of {warmup_steps} steps is longer than the run of {num_training_steps}"
        logger.warning(f"{what}: the learning rate does not come to its peak. Give fewer `--warmup_steps`.")
    kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    try:
        options = _schedule_options(kind, args, warmup_steps, num_training_steps)
        if kind == ScheduleName.T5_INVERSE_SQRT:
            run = {"num_warmup_steps": warmup_steps or T5_WARMUP_STEPS, "num_training_steps": num_training_steps}
            schedule = LambdaLR(optimizer, partial(t5_inverse_sqrt, **run, **options))
        else:
            lengths = (warmup_steps, num_training_steps)
            schedule = get_scheduler(kind, optimizer, *lengths, scheduler_specific_kwargs=options)
        for share in getattr(schedule, "lr_lambdas", ())[:1]:  # of all parameters alike; none if it follows a metric
            for step in range(0, num_training_steps + 1, max(1, num_training_steps // TRIED_STEPS)):
                if not 0 <= share(step) <= 1 + 1e-6:
                    raise UserError(f"the learning rate of step {step} would be {share(step):g} times its peak.")
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        given = f"`lr_scheduler_type` {kind} with `lr_scheduler_kwargs` {args.lr_scheduler_kwargs}"
        raise UserError(f"{given}: {error}") from error
    return schedule


def _schedule_options(kind: str, args: TrainingArguments, warmup_steps: int, num_steps: int) -> dict[str, Any]:
    options, before_decay = dict(args.lr_scheduler_kwargs or {}), 0
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):  # of some, the learning rate would be 0
            raise UserError(f"{name} must be finite, got {value}.")
    if kind in (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY):
        # Their own default takes every metric for a loss: a score that rises would lower the learning rate.
        return {"mode": "max" if args.greater_is_better else "min"} | options
    if kind not in (ScheduleName.T5_INVERSE_SQRT, SchedulerType.WARMUP_STABLE_DECAY):
        return options
    decay = num_steps // 10
    if kind == SchedulerType.WARMUP_STABLE_DECAY:
        before_decay, stable = warmup_steps, options.get("num_stable_steps")
        decay = max(1, decay if stable is None else num_steps - warmup_steps - stable)
    options = {"num_decay_steps": decay} | options
    if before_decay + options["num_decay_steps"] > num_steps:
        steps = f"warmup_steps {before_decay} and num_decay_steps {options['num_decay_steps']}"
        raise UserError(f"{steps} are more than the {num_steps} steps of the run.")
    return options


def optimizer_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """What each group of an optimizer was told, before a checkpoint is loaded, with the peak of its learning rate."""
    return [
        {name: group[name] for name in SETTINGS if name in group} | {"lr": group.get("initial_lr", group["lr"])}
        for group in getattr(optimizer, "param_groups", [])  # none in the dummy for an optimizer of DeepSpeed
    ]


def restore_settings(optimizer: Optimizer, scheduler: LRScheduler, settings: Sequence[dict[str, Any]]) -> None:
    """Give a loaded optimizer the arguments of this run back; not if its schedule has a state, or is DeepSpeed's."""
    if not settings or not isinstance(scheduler, LambdaLR):
        return
    scheduler.base_lrs = [own["lr"] for own in settings]
    factors = [factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
    scheduler._last_lr = [rate * factor for rate, factor in zip(scheduler.base_lrs, factors, strict=True)]
    for group, own, rate in zip(optimizer.param_groups, settings, scheduler._last_lr, strict=True):
        group.update(own, initial_lr=own["lr"], lr=rate)
