"""
Products of float32 matrices by oneDNN, on CPUs on which that is faster than MKL and as precise.

torch (2.11 to 2.15) leaves them to MKL, which runs code for AVX2 on AMD's processors: half of what those from Zen 5
on can do, and nine tenths of what a Zen 4 can. oneDNN, which is a part of torch, too, has code for AVX-512 on all of
them. torch takes it where products may be rounded to bfloat16, and on a processor without AMX none are.

For each size of matrices, oneDNN compiles code of half a megabyte in a millisecond. So rows are multiplied in blocks
of few sizes, and whoever multiplies something else by [`onednn`] takes care that it has few sizes.

Imports only torch and the files beside it: the Hub ships it with the model's code.
"""

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._python_dispatch import _disable_current_modes

from .operators_depth import counts_flops, is_traced, is_transformed, operator_name

MULTIPLE = 32  # of the lengths that oneDNN gets, so that they are few
BLOCKS = (2048, 1024, 512)  # rows that are multiplied at a time, and at last the largest multiple that is left
# Below so many multiplications, a call of oneDNN takes longer than MKL does. Zen 4 does little more by AVX-512 than by
# AVX2, and two of its threads take much longer for small products by oneDNN.
MIN_ON_ZEN_5, MIN_ON_ZEN_4 = 2**21, 2**27

_lock = threading.Lock()
_users = 0  # of the setting of torch, in all threads


@contextlib.contextmanager
def onednn(is_chosen: bool = True) -> Iterator[None]:
    """
    Within it, float32 matrices are multiplied by oneDNN, unless the user has set what torch may round, or may not. The
    setting is that of the process: other threads multiply by oneDNN meanwhile, too.

    Args:
        is_chosen (`bool`, *optional*, defaults to `True`): whether it changes anything.
    """
    global _users
    settings = torch.backends.mkldnn.matmul
    with _lock:
        is_chosen = is_chosen and (_users > 0 or settings.fp32_precision == "none")
        if is_chosen:
            settings.fp32_precision = "bf16"
            _users += 1
    try:
        yield
    finally:
        if is_chosen:
            with _lock:
                _users -= 1
                if _users == 0:
                    settings.fp32_precision = "none"


def _least_multiplications() -> float:
    """
    From how many multiplications on oneDNN is known to be faster on this processor than what torch multiplies by, and
    as precise; infinity if from none.
    """
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return math.inf
    capabilities = torch.cpu.get_capabilities()
    # AMD's processors have AVX-512 from Zen 4 on, and this instruction from Zen 5 on. Intel's get AVX-512 from MKL.
    if "AMD" not in capabilities.get("cpu_name", "") or not capabilities.get("avx512_f", False) or not _is_precise():
        return math.inf
    return MIN_ON_ZEN_5 if capabilities.get("avx512_vp2intersect", False) else MIN_ON_ZEN_4


def _is_precise() -> bool:
    """Whether oneDNN keeps the precision of float32 where torch lets it round to bfloat16."""
    generator = torch.Generator().manual_seed(0)
    # This file may be imported within modes in which nothing is multiplied.
    with torch.no_grad(), torch.autocast("cpu", enabled=False), _disable_current_modes(), onednn():
        left, right = torch.randn(2, 128, 128, generator=generator, dtype=torch.float64, device="cpu")
        error = torch.mm(left.float(), right.float()) - left @ right
        return (error.norm() / (left @ right).norm()).item() < 1e-5  # 3e-7; of bfloat16, 2e-3


MIN_MULTIPLICATIONS = _least_multiplications()
ONEDNN_IS_FASTER = MIN_MULTIPLICATIONS < math.inf


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
    return is_large and is_common and device.type == "cpu" and dtype == torch.float32 and ONEDNN_IS_FASTER


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
    # A model that another machine has pickled comes with layers of that.
    if not ONEDNN_IS_FASTER or torch.compiler.is_exporting() or torch.jit.is_tracing() or is_transformed():
        return False
    if states.device.type != "cpu" or not states.dtype == weight.dtype == torch.float32:
        return False
    if torch.is_autocast_enabled("cpu") or _has_setting():
        return False
    if type(weight) not in (nn.Parameter, torch.Tensor) or hasattr(weight, "ds_id"):  # sharded, quantized, ...
        return False
    is_large = states.numel() * len(weight) >= MIN_MULTIPLICATIONS
    if torch.compiler.is_compiling() and MIN_MULTIPLICATIONS > MIN_ON_ZEN_5:
        # A limit amid common lengths would make several graphs of a model with changing ones, which is left to MKL.
        is_large = statically_known_true(is_large)
    return states.numel() >= MULTIPLE * states.shape[-1] and is_large


def _has_setting():
    """Whether the user has chosen, not a product in another thread; a compiled graph does not ask."""
    if torch.compiler.is_compiling():
        return False
    with _lock:
        return _users == 0 and torch.backends.mkldnn.matmul.fp32_precision != "none"


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        needs_states, needs_weight = ctx.needs_input_grad
        ctx.save_for_backward(states if needs_weight else None, weight if needs_states else None)
        ctx.shape = states.shape
        return _product(_rows(states), weight.t()).view(*states.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        states, weight = ctx.saved_tensors
        needs_states, needs_weight = ctx.needs_input_grad
        if torch.is_grad_enabled():  # a second derivative is asked for
            return (
                gradient @ weight if needs_states else None,
                _rows(gradient).t() @ _rows(states) if needs_weight else None,
            )
        return (
            _product(_rows(gradient), weight).view(ctx.shape) if needs_states else None,
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
    for rows, is_by_onednn in _blocks(*left.shape, right.shape[1]):
        with onednn(is_by_onednn and ONEDNN_IS_FASTER):
            torch.mm(left[rows], right, out=output[rows])
    return output


def _sum_by_blocks(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    output = left.new_empty(left.shape[1], right.shape[1])
    for rows, is_by_onednn in _blocks(*left.shape, right.shape[1]):
        with onednn(is_by_onednn and ONEDNN_IS_FASTER):
            torch.addmm(output, left[rows].t(), right[rows], beta=1 if rows.start else 0, out=output)
    return output


def _blocks(number: int, *sizes: int) -> Iterator[tuple[slice, bool]]:
    """
    The rows from 0 to `number` in blocks, and whether oneDNN multiplies them. `sizes` are the product's other two.
    """
    start, of_a_row = 0, math.prod(sizes)
    for size in BLOCKS:
        while start + size <= number and size * of_a_row >= MIN_MULTIPLICATIONS:
            yield slice(start, start + size), True
            start += size
    rest = (number - start) // MULTIPLE * MULTIPLE
    if 0 < rest < BLOCKS[-1] and rest * of_a_row >= MIN_MULTIPLICATIONS:
        yield slice(start, start + rest), True
        start += rest
    if start < number:
        yield slice(start, number), False


# In compiled graphs.
_product_operator = torch.library.custom_op(operator_name("product", __name__), _product_by_blocks, mutates_args=())
_sum_operator = torch.library.custom_op(operator_name("sum_of_products", __name__), _sum_by_blocks, mutates_args=())


@_product_operator.register_fake
def _(left, right):
    return left.new_empty(left.shape[0], right.shape[1])  # `len` would fix the size of a graph


@_sum_operator.register_fake
def _(left, right):
    return left.new_empty(left.shape[1], right.shape[1])


@counts_flops(operator_name("product", __name__))
@counts_flops(operator_name("sum_of_products", __name__))
def _flops(left, right, **kwargs):
    return 2 * left[0] * left[1] * right[1]
