"""Evaluation in half precision, after which a model has the weights of before."""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@contextlib.contextmanager
def weights_kept_on_cpu(model: nn.Module) -> Iterator[None]:
    """
    While `Trainer` evaluates by `bf16_full_eval` or `fp16_full_eval`, keep the weights on the CPU; then restore them.

    `Trainer` casts the whole model, and leaves it so: what is trained or saved later would be rounded. Meanwhile a
    device holds half as many bytes of weights as in float32. (On a CPU both stay in its memory, one and a half times
    as many; there autocast, `bf16`, is the better choice.)

    Args:
        model (`nn.Module`): its weights may be of several dtypes; afterwards all have the widest.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 0.1)
    >>> with weights_kept_on_cpu(model):
    ...     rounded = model.bfloat16().weight.item()
    >>> rounded, round(model.weight.item(), 4), model.weight.dtype
    (0.10009765625, 0.1, torch.float32)
    """
    weights = [_local(parameter).cpu() for parameter in model.parameters()]
    try:
        yield
    finally:
        model.to(max((weight.dtype for weight in weights), key=lambda dtype: dtype.itemsize))
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            _local(parameter).copy_(weight)


def _local(parameter: nn.Parameter) -> Tensor:
    """The parameter, or what this process has of it under FSDP2, without its gradient."""
    data = parameter.detach()
    return data.to_local() if isinstance(data, DTensor) else data
