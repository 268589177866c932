"""
Products of float32 matrices by oneDNN, on CPUs on which that is faster than MKL and as precise.

torch (2.11 to 2.13) leaves them to MKL, which runs code for AVX2 on AMD's processors: half of what those from Zen 5
on can do. oneDNN, which is a part of torch, too, has code for AVX-512 on all of them. torch takes it where products
may be rounded to bfloat16, and on a processor without AMX none are.

For each size of matrices, oneDNN compiles code of half a megabyte in a millisecond. So rows are multiplied in blocks
of few sizes, and whoever multiplies something else by [`onednn`] takes care that it has few sizes.

Imports only torch and the files beside it: the Hub ships it with the model's code.
"""

import contextlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from .operators_depth import is_traced, is_transformed, operator_name

BLOCKS = (2048, 1024, 512)  # rows that are multiplied at a time; of what is left, all multiples of the next number
MULTIPLE = 32
# Below so many multiplications, a call of oneDNN takes longer than MKL does.
MIN_MULTIPLICATIONS = 2**21


@lru_cache
def is_onednn_faster() -> bool:
    """Whether oneDNN is known to be faster on this processor than what torch multiplies by, and as precise."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return False
    capabilities = torch.cpu.get_capabilities()
    # AMD's processors before Zen 5, the first with this instruction, do no more in a cycle by AVX-512 than by AVX2.
    is_zen_5 = "AMD" in capabilities.get("cpu_name", "") and capabilities.get("avx512_vp2intersect", False)
    return is_zen_5 and _is_precise()


def _is_precise() -> bool:
    """Whether what may be rounded is not."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 128, 128, generator=generator, dtype=torch.float64, device="cpu")
    with torch.no_grad(), torch.autocast("cpu", enabled=False), onednn():
        error = torch.mm(left.float(), right.float()) - left @ right
    return (error.norm() / (left @ right).norm()).item() < 1e-5  # 3e-7; of bfloat16, 2e-3


@contextlib.contextmanager
def onednn(is_chosen: bool = True) -> Iterator[None]:
    """
    Within it, float32 matrices are multiplied by oneDNN, unless the user has set what torch may round, or may not.

    Args:
        is_chosen (`bool`, *optional*, defaults to `True`): whether it changes anything.
    """
    settings = torch.backends.mkldnn.matmul
    before = settings.fp32_precision
    if not is_chosen or before != "none":
        yield
        return
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


is_onednn_faster()  # now: a model may be built within a mode of torch in which nothing is multiplied


def suits_onednn(device: torch.device, dtype: torch.dtype, *sizes: int) -> bool:
    """
    Whether oneDNN is the faster one for products of matrices.

    Args:
        device (`torch.device`): where the matrices are.
        dtype (`torch.dtype`): of the matrices.
        sizes (`int`): the three lengths of a product; only multiples of `MULTIPLE` are few enough.
    """
    is_large = sizes[0] * sizes[1] * sizes[2] >= MIN_MULTIPLICATIONS
    is_common = not any(size % MULTIPLE for size in sizes)
    return is_large and is_common and device.type == "cpu" and dtype == torch.float32 and is_onednn_faster()


def linear(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """
    What `torch.nn.functional.linear` computes: large float32 matrices on a CPU by oneDNN, else by that.

    Args:
        states (`torch.Tensor` of shape `(..., in_features)`)
        weight (`torch.Tensor` of shape `(out_features, in_features)`)

    Returns:
        `torch.Tensor` of shape `(..., out_features)`.
    """
    return _Linear.apply(states, weight) if _is_by_blocks(states, weight) else nn.functional.linear(states, weight)


def _is_by_blocks(states, weight):
    if torch.compiler.is_exporting() or torch.jit.is_tracing() or is_transformed():
        return False
    if states.device.type != "cpu" or not states.dtype == weight.dtype == torch.float32:
        return False
    if torch.is_autocast_enabled("cpu"):
        return False
    if type(weight) not in (nn.Parameter, torch.Tensor) or hasattr(
        weight, "ds_id"
    ):  # which multiply in their own ways
        return False
    return states.numel() >= MULTIPLE * states.shape[-1] and states.numel() * len(weight) >= MIN_MULTIPLICATIONS


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(states, weight)
        return _product(_rows(states), weight.t()).view(*states.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        states, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is asked for
            return gradient @ weight, _rows(gradient).t() @ _rows(states)
        needs_states, needs_weight = ctx.needs_input_grad
        return (
            _product(_rows(gradient), weight).view(states.shape) if needs_states else None,
            _sum_of_products(_rows(gradient), _rows(states)) if needs_weight else None,
        )


def _rows(tensor):
    return tensor.reshape(-1, tensor.shape[-1])


def _product(left, right):
    """(N, K), (K, M): `left @ right`."""
    return (_product_operator if is_traced(left) else _product_by_blocks)(left, right)


def _sum_of_products(left, right):
    """(N, K), (N, M): `left.t() @ right`."""
    return (_sum_operator if is_traced(left) else _sum_by_blocks)(left, right)


def _product_by_blocks(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    output = left.new_empty(len(left), right.shape[1])
    for rows, is_by_onednn in _blocks(len(left)):
        with onednn(is_by_onednn):
            torch.mm(left[rows], right, out=output[rows])
    return output


def _sum_by_blocks(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    output = left.new_empty(left.shape[1], right.shape[1])
    for rows, is_by_onednn in _blocks(len(left)):
        with onednn(is_by_onednn):
            torch.addmm(output, left[rows].t(), right[rows], beta=1 if rows.start else 0, out=output)
    return output


def _blocks(number: int) -> Iterator[tuple[slice, bool]]:
    """The rows from 0 to `number` in blocks, and whether oneDNN multiplies them."""
    start = 0
    for size in BLOCKS:
        while start + size <= number:
            yield slice(start, start + size), True
            start += size
    if rest := (number - start) // MULTIPLE * MULTIPLE:
        yield slice(start, start + rest), True
        start += rest
    if start < number:
        yield slice(start, number), False


# In compiled graphs.
_product_operator = torch.library.custom_op(operator_name("product", __name__), _product_by_blocks, mutates_args=())
_sum_operator = torch.library.custom_op(operator_name("sum_of_products", __name__), _sum_by_blocks, mutates_args=())


@_product_operator.register_fake
def _(left, right):
    return left.new_empty(len(left), right.shape[1])


@_sum_operator.register_fake
def _(left, right):
    return left.new_empty(left.shape[1], right.shape[1])
