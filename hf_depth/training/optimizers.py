"""Optimizers of T5 that neither torch nor the Trainer has, and how `--optim` and `--optim_args` choose them."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from transformers import Adafactor as HFAdafactor
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.training_args import OptimizerNames
from transformers.utils import ExplicitEnum, strtobool

from ..ranges import NOT_NEGATIVE, Range, check_ranges
from ..suggestions import suggestion
from .partitions import Partition
from .schedules import RELATIVE_STEP_PEAK


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

    The learning rate is relative: 0.01 changes a matrix by about 1 % of its size in each step. There is no
    synchronization with the device but for the transfer of step counts, and all parameters of a group are updated by
    `torch._foreach_*` operations. Moments have the dtype of their parameter, as in torch.

    Args:
        params (`Iterable`): parameters, or groups of them.
        lr (`float`, *optional*, defaults to 2e-2): learning rate, relative to the root mean square.
        betas (`tuple[float, float]`, *optional*, defaults to `(0.9, 0.999)`): decay of the moments.
        eps (`float`, *optional*, defaults to 1e-6): added to the square root of the second moment.
        weight_decay (`float`, *optional*, defaults to 0.0): decoupled, and not scaled by the root mean square.
        min_rms (`float`, *optional*, defaults to 1e-3): a parameter is taken to be at least so large.

    Raises:
        `ValueError`: for a number out of its range.
        `RuntimeError`: in a step, for sparse gradients and complex parameters.

    Source: https://github.com/PiotrNawrot/nanoT5, whose scaling is that of Shazeer and Stern (2018), section 8.

    >>> import torch
    >>> from hf_depth import AdamWScale
    >>> matrix = torch.nn.Parameter(torch.full((2, 2), 0.5))
    >>> optimizer = AdamWScale([matrix], lr=0.01)
    >>> matrix.sum().backward()
    >>> optimizer.step()
    >>> round(matrix[0, 0].item(), 4)  # 0.5 - 0.01 * 0.5
    0.495
    """

    partitions: Mapping[Tensor, Partition] = MappingProxyType({})  # see `set_partitions`

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        min_rms: float = 1e-3,
    ):
        for name, value in {"lr": lr, "eps": eps, "weight_decay": weight_decay, "min_rms": min_rms}.items():
            if not value >= 0:
                raise ValueError(f"`{name}` must be at least 0, got {value}.")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"`betas` must be at least 0 and below 1, got {betas}.")
        options = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "min_rms": min_rms}
        super().__init__(params, options)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _count_on_cpu(self.state)

    def set_partitions(self, partitions: Mapping[Tensor, Partition]) -> None:
        """Say which parameters are in the flat tensors that DeepSpeed has put in their places."""
        self.partitions = partitions

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients; returns what `closure` does."""
        loss = _loss_of(closure)
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._update(params, group)
        return loss

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        states = [self._next_state(p) for p in params]
        counts = [state["step"].item() for state in states]  # on the CPU
        rates = [group["lr"] * math.sqrt(1 - beta2**count) / (1 - beta1**count) for count in counts]
        grads = [p.grad for p in params]
        means, squares = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
        if self.partitions:
            parts = [self.partitions[p] for p in params]
            sizes = [rms for part, p in zip(parts, params, strict=True) for rms in _partitioned_rms(part, p)]
            rates = [rate for part, rate in zip(parts, rates, strict=True) for _ in part.fragments]
            params, grads, means, squares = (
                [view for part, flat in zip(parts, tensors, strict=True) for view in part.views(flat)]
                for tensors in (params, grads, means, squares)
            )
            if not params:  # all of these parameters are in other processes
                return
        else:
            sizes = _rms(params)

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

    def _next_state(self, p: Tensor) -> dict[str, Tensor]:
        if p.grad.is_sparse or torch.is_complex(p):
            raise RuntimeError("AdamWScale takes neither sparse gradients nor complex parameters.")
        state = self.state[p]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        state["step"] += 1
        return state


def setting_names(optimizer: Optimizer) -> set[str]:
    """
    What the groups of an optimizer may have that it is told: the arguments of its class and of those it inherits from.

    Other entries are its own, as in optimizers that count their steps or estimate their learning rate there. Of a
    class that takes any arguments (`**options`), all that its groups begin with is taken for told.

    Args:
        optimizer (`Optimizer`): also wrapped, as Accelerate and DeepSpeed do.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    >>> optimizer.param_groups[0]["steps"] = 3
    >>> "momentum" in setting_names(optimizer), "steps" in setting_names(optimizer)
    (True, False)
    """
    while hasattr(inner := getattr(optimizer, "optimizer", None), "param_groups"):
        optimizer = inner
    inits = [inspect.signature(kind.__init__) for kind in type(optimizer).__mro__[:-1] if "__init__" in vars(kind)]
    names = {name for init in inits for name in init.parameters} | {"lr", "initial_lr", "weight_decay"}
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in inits[0].parameters.values())
    return names | set(getattr(optimizer, "defaults", ())) if takes_any else names


def _loss_of(closure: Callable[[], Any] | None) -> Any:
    """What a step returns: the loss that `closure` computes, with its gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _count_on_cpu(state: Mapping[Tensor, dict[str, Any]]) -> None:
    """Have the numbers of steps where they are read: among several processes, the Trainer loads them to the GPU."""
    for each in state.values():
        if "step" in each:
            each["step"] = each["step"].cpu()


def _rms(tensors: list[Tensor]) -> list[Tensor]:
    """Root mean squares, of half precision in float32, as tensors without dimensions."""
    is_half = any(tensor.dtype in (torch.float16, torch.bfloat16) for tensor in tensors)
    norms = list(torch._foreach_norm(tensors, 2, dtype=torch.float32 if is_half else None))
    torch._foreach_div_(norms, [math.sqrt(max(1, tensor.numel())) for tensor in tensors])
    return norms


def _partitioned_rms(partition: Partition, flat: Tensor) -> list[Tensor]:
    """Root mean squares of the whole parameters of a partition's fragments."""
    return partition.per_fragment(partition.mean_squares(flat).sqrt())


class Adafactor(HFAdafactor):
    """
    The Adafactor of transformers, with a learning rate in its groups under `relative_step` too, for the logs.

    Args:
        params (`Iterable`): parameters, or groups of them.
        lr (`float`, *optional*): learning rate; without effect under `relative_step`.
        relative_step (`bool`, *optional*, defaults to `True`): compute the learning rate from the number of steps.
        options: the others of [`transformers.Adafactor`]: `eps`, `clip_threshold`, `decay_rate`, `beta1`,
            `weight_decay`, `scale_parameter`, `warmup_init`.

    >>> optimizer = Adafactor([torch.nn.Parameter(torch.ones(2, 2))], scale_parameter=True, relative_step=True)
    >>> optimizer.param_groups[0]["lr"]
    0.01
    """

    partitions: Mapping[Tensor, Partition] = MappingProxyType({})

    def __init__(self, params: Iterable[Any], lr: float | None = None, relative_step: bool = True, **options: Any):
        super().__init__(params, lr=None if relative_step else lr, relative_step=relative_step, **options)
        for group in self.param_groups:
            if group["relative_step"]:
                group["lr"] = RELATIVE_STEP_PEAK

    def set_partitions(self, partitions: Mapping[Tensor, Partition]) -> None:
        """
        Say which parameters are in the flat tensors that DeepSpeed has put in their places. The update of each is then
        that of the whole parameter, not of the flat tensor, in which a matrix has no rows and columns.

        Raises:
            `ValueError`: for a parameter of more than two dimensions, which no T5 has.
        """
        for shape in (shape for partition in partitions.values() for shape in partition.shapes if len(shape) > 2):
            raise ValueError(f"Adafactor on the partitions of DeepSpeed takes vectors and matrices, got {shape}.")
        self.partitions = partitions

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients; returns what `closure` does."""
        loss = _loss_of(closure)  # with gradients, without which the class of transformers would call it
        if not self.partitions:
            super().step()
            return loss
        for group in self.param_groups:
            for flat in group["params"]:
                if flat.grad is not None:
                    self._update(flat, self.partitions[flat], group)
        return loss

    def _update(self, flat: Tensor, partition: Partition, group: dict[str, Any]) -> None:
        """The update of `transformers.Adafactor` for parameters of which this process has parts."""
        state, factors = self.state[flat], _FactoredSquares(partition)
        if not state:
            state["step"] = 0
            state["factors"] = flat.new_zeros(factors.size)
            state["exp_avg_sq"] = flat.new_zeros(factors.vector_size)
            if group["beta1"] is not None:
                state["exp_avg"] = torch.zeros_like(flat)
        state["step"] += 1

        sums = torch.cat([factors.sums(flat.grad, group["eps"][0]), partition.square_sums(flat)])
        partition.all_reduce(sums)
        sums, squares = sums.split([factors.size, len(partition.shapes)])
        sizes = (squares / partition.sizes(flat)).sqrt()
        decay = 1.0 - state["step"] ** group["decay_rate"]
        state["factors"].lerp_(factors.means(sums), 1 - decay)
        update = factors.normalized(flat.grad, state["factors"], state["exp_avg_sq"], decay, group["eps"][0])

        rates = self._get_lr(group | {"scale_parameter": False}, state)
        if group["scale_parameter"]:
            rates = rates * sizes.clamp(min=group["eps"][1])
        clipping = (partition.mean_squares(update).sqrt() / group["clip_threshold"]).clamp(min=1.0)
        for view, scale in zip(partition.views(update), partition.per_fragment(rates / clipping), strict=True):
            view.mul_(scale)
        if group["beta1"] is not None:
            update = state["exp_avg"].lerp_(update, 1 - group["beta1"])
        if group["weight_decay"] != 0:
            rates = rates * torch.ones_like(sizes)
            for view, rate in zip(partition.views(flat), partition.per_fragment(rates), strict=True):
                view.mul_(1 - group["weight_decay"] * rate)
        flat.sub_(update)


class _FactoredSquares:
    """
    Sums of squared gradients over the rows and columns of matrices, one matrix after the other in one tensor, from the
    parts of them that a process has; vectors keep a value for each element, only in the process that has it.
    """

    def __init__(self, partition: Partition):
        self.partition, self.size, self._slices = partition, 0, {}
        for index, shape in enumerate(partition.shapes):
            if len(shape) == 2:
                middle, end = self.size + shape[0], self.size + sum(shape)
                self._slices[index] = slice(self.size, middle), slice(middle, end)
                self.size = end
        self.vector_size = sum(f.length for f in partition.fragments if f.parameter not in self._slices)

    def sums(self, grad: Tensor, eps: float) -> Tensor:
        """What this process adds to the sums, `(size,)`."""
        sums = grad.new_zeros(self.size)
        for fragment, view in zip(self.partition.fragments, self.partition.views(grad), strict=True):
            if fragment.parameter in self._slices:
                touched, inside = self.partition.rows_of(fragment)
                rows, columns = (sums[part] for part in self._slices[fragment.parameter])
                squares = grad.new_zeros(touched.stop - touched.start, len(columns))
                squares.view(-1)[inside] = view.square() + eps
                rows[touched] += squares.sum(1)
                columns += squares.sum(0)
        return sums

    def means(self, sums: Tensor) -> Tensor:
        """Of sums over all processes the means, `(size,)`."""
        means = sums.clone()
        for rows, columns in self._slices.values():
            means[rows] /= columns.stop - columns.start
            means[columns] /= rows.stop - rows.start
        return means

    def normalized(self, grad: Tensor, factors: Tensor, squares: Tensor, decay: float, eps: float) -> Tensor:
        """The gradient divided by the root of its mean squares; those of vectors are updated here."""
        update, position = torch.zeros_like(grad), 0
        views = zip(self.partition.fragments, self.partition.views(grad), self.partition.views(update), strict=True)
        for fragment, gradient, result in views:
            if fragment.parameter in self._slices:
                touched, inside = self.partition.rows_of(fragment)
                rows, columns = (factors[part] for part in self._slices[fragment.parameter])
                scale = (rows / rows.mean())[touched].rsqrt().outer(columns.rsqrt()).view(-1)[inside]
            else:
                mean = squares[position : position + fragment.length]
                position += fragment.length
                scale = mean.lerp_(gradient.square() + eps, 1 - decay).rsqrt()
            torch.mul(gradient, scale, out=result)
        return update


class MuonWithAdamW(Optimizer):
    """
    `torch.optim.Muon` for matrices and `torch.optim.AdamW` for everything else, as one optimizer.

    Muon orthogonalizes the momentum of a matrix, by five steps of a Newton-Schulz iteration. It is meant for the
    matrices between other layers, not for embeddings, the output layer and vectors ([`muon_groups`]).

    Args:
        params (`Iterable`): groups of parameters. Those with `use_muon` are matrices for Muon.
        lr (`float`, *optional*, defaults to 1e-3): learning rate of all groups that do not have their own.
        adamw_lr (`float`, *optional*, defaults to `lr`): that of the parameters for AdamW.
        momentum, nesterov, ns_steps, adjust_lr_fn: as of `torch.optim.Muon`. `adjust_lr_fn` defaults to
            `"match_rms_adamw"`, by which one learning rate suits both kinds of parameters.
        betas, eps: as of `torch.optim.AdamW`.
        weight_decay (`float`, *optional*, defaults to 0.0): decoupled, of all groups that do not have their own.

    >>> matrix, vector = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    >>> optimizer = MuonWithAdamW([{"params": [matrix], "use_muon": True}, {"params": [vector]}], lr=0.1)
    >>> (matrix.sum() + vector.sum()).backward()
    >>> optimizer.step()
    >>> {name for p in (matrix, vector) for name in optimizer.state[p]} == {"momentum_buffer", "step"} | {
    ...     "exp_avg", "exp_avg_sq"
    ... }
    True
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
        groups = [group if isinstance(group, dict) else {"params": [group]} for group in params]
        groups = [{"use_muon": False, **group, "params": list(group["params"])} for group in groups]
        shared = {"lr": lr, "weight_decay": weight_decay}
        muon = {"momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn}
        adamw = {"betas": betas, "eps": eps, "lr": lr if adamw_lr is None else adamw_lr}
        # Both check their options, and are kept for their `step`; groups and states are those of this optimizer.
        self._parts = {
            True: Muon(self._of_kind(groups, True) or _placeholder((1, 1)), **shared | muon),
            False: AdamW(self._of_kind(groups, False) or _placeholder((1,)), **shared | adamw),
        }
        made = {kind: iter(part.param_groups) for kind, part in self._parts.items()}
        super().__init__([next(made[group["use_muon"]]) for group in groups], shared)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _count_on_cpu(self.state)

    @staticmethod
    def _of_kind(groups: list[dict[str, Any]], use_muon: bool) -> list[dict[str, Any]]:
        return [group for group in groups if group["use_muon"] == use_muon]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients; returns what `closure` does."""
        loss = _loss_of(closure)
        for use_muon, part in self._parts.items():
            part.param_groups, part.state = self._of_kind(self.param_groups, use_muon), self.state
            part.step()
        return loss


def _placeholder(shape: tuple[int, ...]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape))]


def muon_groups(model: nn.Module, decayed: Iterable[str], weight_decay: float) -> list[dict[str, Any]]:
    """
    The groups of [`MuonWithAdamW`] for a T5: Muon for the linear layers of the blocks of encoder and decoder, AdamW
    for embeddings, the output layer, layer norms and relative position biases.

    Args:
        model (`nn.Module`): the model.
        decayed (`Iterable[str]`): names of the parameters with weight decay.
        weight_decay (`float`): of these.
    """
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and ".block." in name]
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


# ---- What `--optim` and `--optim_args` say -------------------------------------------------------------------------


def _boolean(text: str) -> bool:
    return bool(strtobool(text))


_OPTIONS: dict[str, dict[str, Callable[[str], Any]]] = {
    OptimizerName.ADAMW_SCALE.value: {"min_rms": float},
    OptimizerName.MUON.value: {
        "momentum": float,
        "nesterov": _boolean,
        "ns_steps": int,
        "adjust_lr_fn": str,
        "adamw_lr": float,
    },
    OptimizerNames.ADAFACTOR.value: {
        "scale_parameter": _boolean,
        "relative_step": _boolean,
        "warmup_init": _boolean,
        "clip_threshold": float,
        "decay_rate": float,
        "beta1": float,
        "eps1": float,
        "eps2": float,
    },
}
_RANGES = {
    "min_rms": NOT_NEGATIVE,
    "momentum": Range(least=0, below=1),
    "ns_steps": Range(least=1, most=99),  # of torch
    "adamw_lr": NOT_NEGATIVE,
    "clip_threshold": Range(above=0),
    "decay_rate": Range(below=0),
    "beta1": Range(least=0, below=1),
    "eps1": NOT_NEGATIVE,
    "eps2": NOT_NEGATIVE,
}


def get_optimizer_class_and_options(
    args: TrainingArguments, model: PreTrainedModel | None = None
) -> tuple[Any, dict[str, Any]]:
    """
    As [`Trainer.get_optimizer_cls_and_kwargs`], also for the optimizers of this package and all options of Adafactor.

    Args:
        args (`TrainingArguments`): with `optim`, `optim_args`, `learning_rate`, `adam_*`, `weight_decay`.
        model (`PreTrainedModel`, *optional*): the model, for optimizers that treat its layers differently.

    Returns:
        `tuple`: the class, and its arguments but for the parameters.

    Raises:
        `ValueError`: naming an option that the optimizer does not have, or its wrong value.
    """
    name = getattr(args.optim, "value", args.optim)
    if name not in _OPTIONS:
        return Trainer.get_optimizer_cls_and_kwargs(args, model)
    options = read_options(args)
    if name == OptimizerNames.ADAFACTOR:
        eps = (options.pop("eps1", 1e-30), options.pop("eps2", 1e-3))
        return Adafactor, {"lr": args.learning_rate, "eps": eps, "scale_parameter": False, **options}
    adam = {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
    return {OptimizerName.ADAMW_SCALE: AdamWScale, OptimizerName.MUON: MuonWithAdamW}[name], {**adam, **options}


def read_options(args: TrainingArguments) -> dict[str, Any]:
    """
    What `--optim_args` says, NAME=VALUE with commas between them, of an optimizer whose options this package reads.

    Of Adafactor `relative_step` is among them in any case: the Trainer's default is false, that of the class true.

    Raises:
        `ValueError`: naming an option that the optimizer does not have, or its wrong value.

    >>> from types import SimpleNamespace
    >>> read_options(SimpleNamespace(optim="adafactor", optim_args="relative_step=True,clip_threshold=2"))
    {'relative_step': True, 'clip_threshold': 2.0}
    """
    name = getattr(args.optim, "value", args.optim)
    options = {"relative_step": False} if name == OptimizerNames.ADAFACTOR else {}
    if name not in _OPTIONS:
        return options
    try:
        for part in filter(None, (args.optim_args or "").replace(" ", "").split(",")):
            options |= _read_option(name, *part.partition("=")[::2])
        check_ranges(SimpleNamespace(**options), _RANGES)
    except ValueError as error:
        raise ValueError(f"`optim` {name} with `optim_args` {args.optim_args!r}: {error}") from error
    return options


def _read_option(name: str, option: str, value: str) -> dict[str, Any]:
    known = _OPTIONS[name]
    if option not in known:
        raise ValueError(f"{option!r} is no option of {name}.{suggestion(option, known, 'options')}")
    try:
        return {option: known[option](value)}
    except ValueError as error:
        raise ValueError(f"{option} is {value!r}: {error}") from error
