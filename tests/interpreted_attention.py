"""
The Triton kernels in a process of their own, which runs them by Triton's interpreter on the CPU.

Whether a kernel is interpreted is decided when Triton is imported, by a variable of the environment; the process of
the tests has perhaps imported it before. The functions here run in the other process.
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

import numpy as np
import torch

from helpers import load_script
from hf_depth.kernels import triton as triton_kernels
from hf_depth.kernels.attention import expand_bias
from hf_depth.kernels.masks import compact_mask, expand_mask
from hf_depth.models.modeling_depth import MaskRule
from tiny_models import gradients, random_batch, tiny_model

HEADS = 2
NAMES = ("output", "query", "key", "value", "bias")


def start_interpreter() -> ProcessPoolExecutor:
    """A process to which the functions below can be submitted."""
    executor = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_mend_bfloat16)
    with mock.patch.dict(os.environ, {"TRITON_INTERPRET": "1"}):
        executor.submit(os.getpid).result()  # starts it
    return executor


def _mend_bfloat16():
    """The interpreter rounds to bfloat16 towards 0, and its `tl.dot` multiplies the bits of bfloat16 numbers."""
    from triton.runtime import interpreter

    tl = interpreter.tl
    convert, multiply = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot

    def convert_float(data, dtype, output_dtype, rounding_mode):
        if (dtype, output_dtype) != (tl.float32, tl.bfloat16):
            return convert(data, dtype, output_dtype, rounding_mode)
        return torch.from_numpy(np.array(data)).bfloat16().view(torch.uint16).numpy()

    def readable(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self, a, b, *arguments):
        return multiply(self, readable(a), readable(b), *arguments)

    interpreter._convert_float, interpreter.InterpreterBuilder.create_dot = convert_float, create_dot


def masks(kind: str, batch_size: int, queries: int, keys: int) -> torch.Tensor:
    """A compact mask."""
    query_places, key_places = (torch.arange(length).expand(batch_size, length) for length in (queries, keys))
    rule = MaskRule(is_causal="causal" in kind)
    if kind not in ("plain", "causal"):
        rule.padding = key_places < keys - 3 * torch.arange(batch_size)[:, None]
    if "packed" in kind:
        third, half = queries // 3, queries // 2
        segments = [1 + (places >= third).long() + (places >= half).long() for places in (query_places, key_places)]
        rule.segments = (torch.where(query_places < queries - 2, segments[0], 0), segments[1])
    if "sentences" in kind:
        rule.groups = (torch.where(query_places % 5 == 0, query_places // 10, -1), key_places // 10)
    if "nothing" in kind:  # the queries of the first row attend to padding alone, one of the second to a missing group
        rule.padding[0] = False
        rule.groups = (torch.where(query_places == 4, 9, -1), key_places * 0)
    return compact_mask(rule, (batch_size, queries), keys, "cpu")


def inputs(queries: int, keys: int, head_dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Query, key, value and bias, and a gradient of the output."""
    generator = torch.Generator().manual_seed(queries + keys)
    shapes = [(2, length, HEADS, head_dim) for length in (queries, keys, keys, queries)]
    query, key, value, gradient = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    bias = torch.randn(HEADS, queries + keys - 1, generator=generator)
    return [
        *(tensor.transpose(1, 2) for tensor in (query * head_dim**-0.5, key, value)),
        bias,
        gradient.transpose(1, 2),
    ]


def results(function, query, key, value, bias, gradient, mask) -> list[torch.Tensor]:
    """The output of an attention function and its gradients to query, key, value and bias."""
    leaves = [tensor.detach().requires_grad_() for tensor in (query, key, value, bias)]
    output = function(*leaves, mask)
    return [output.detach(), *torch.autograd.grad(output, leaves, gradient)]


def eager(query, key, value, bias, mask):
    """The formula, in the dtype of its arguments; 0 for a query without keys."""
    allowed = expand_mask(mask, query.shape[2])
    scores = query @ key.mT + expand_bias(bias, key.shape[2])
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    return (scores.softmax(dim=-1).to(value.dtype) * allowed.any(dim=-1, keepdim=True)) @ value


def relative_errors(right: list[torch.Tensor], tensors: list[torch.Tensor]) -> dict[str, float]:
    """Of output and gradients: the length of the difference by the length of what is right."""
    errors = {}
    for name, expected, tensor in zip(NAMES, right, tensors, strict=True):
        length = expected.norm().clamp(min=torch.finfo(torch.float64).tiny)
        errors[name] = ((tensor.double() - expected).norm() / length).item()
    return errors


def errors_of_kernels(
    kind: str, queries: int, keys: int, head_dim: int, dtype: torch.dtype
) -> tuple[dict[str, float], dict[str, float]]:
    """The errors of the kernels, and those of the formula in `dtype`, against the formula in float64."""
    assert triton_kernels.INTERPRETED
    arguments, mask = inputs(queries, keys, head_dim, dtype), masks(kind, 2, queries, keys)
    right = results(eager, *(tensor.double() for tensor in arguments), mask)
    found, formula = (results(each, *arguments, mask) for each in (triton_kernels.depth_triton, eager))
    return relative_errors(right, found), relative_errors(right, formula)


def zero_rows() -> list[bool]:
    """Whether all is finite, and 0 for queries without any key: the output, and the gradients of these queries."""
    mask = masks("sentences nothing", 2, 9, 9)
    tensors = results(triton_kernels.depth_triton, *inputs(9, 9, 16, torch.float32), mask)
    without = ~expand_mask(mask, 9).any(dim=-1).expand(-1, HEADS, -1)
    is_zero = [(tensor[without] == 0).all().item() for tensor in tensors[:2]]
    return [without.sum().item() == HEADS * 10, *is_zero, *(tensor.isfinite().all().item() for tensor in tensors)]


def strided_inputs() -> tuple[float, list[bool]]:
    """The error of vectors that lie in other orders; of output and gradients, whether heads lie beside each other."""
    (query, key, value, bias, gradient), mask = inputs(5, 7, 16, torch.float32), masks("sentences", 2, 5, 7)
    others = [query.contiguous(), key.mT.contiguous().mT, value[..., ::2].repeat_interleave(2, -1), bias, gradient]
    others[2] = torch.cat((value, value), dim=-1)[..., :16]
    expected = results(triton_kernels.depth_triton, query, key, value, bias, gradient, mask)
    tensors = results(triton_kernels.depth_triton, *others[:4], gradient.mT.contiguous().mT, mask)
    error = max(relative_errors([tensor.double() for tensor in expected], tensors).values())
    return error, [tensor.transpose(1, 2).is_contiguous() for tensor in tensors[:4]]


def operators() -> float:
    """Check the operators as torch wants them; the error of a graph in one piece against eager mode."""
    *arguments, gradient = inputs(8, 8, 16, torch.float32)
    mask = masks("causal packed", 2, 8, 8)
    leaves = [tensor.requires_grad_() for tensor in arguments]
    torch.library.opcheck(triton_kernels._attend, (*leaves, mask))
    eagerly = results(triton_kernels.depth_triton, *arguments, gradient, mask)
    compiled = torch.compile(triton_kernels.depth_triton, fullgraph=True, dynamic=False, backend="aot_eager")
    tensors = results(compiled, *arguments, gradient, mask)
    return max(relative_errors([tensor.double() for tensor in eagerly], tensors).values())


def attention_check(masked: str, factor: float = 1.0) -> tuple[bool, str]:
    """What `benchmarks/attention_check.py` says of the kernels, whose outputs are multiplied by `factor`."""
    script = load_script("benchmarks/attention_check.py")
    script.depth_triton = lambda *arguments: triton_kernels.depth_triton(*arguments) * factor
    script.NUM_HEADS = 2
    with mock.patch.dict(script.SIZE, d_kv=16):
        return script.compare_kernels(torch.device("cpu"), "fp32", 2, 40, 40, masked)


def model_differences() -> float:
    """The largest difference of a tiny DEPTH's gradients to those with eager attention, on rows with padding."""
    batch = random_batch(0, batch_size=2, source_length=9, target_length=5)
    models = [tiny_model(attn_implementation=name, num_layers=1) for name in ("eager", "depth_triton")]
    with mock.patch.object(triton_kernels, "_launch", side_effect=triton_kernels._launch) as launched:
        expected, found = (gradients(model, batch) for model in models)
    assert launched.call_count == 3 + 3 * 2 + 2, "self-attention has a bias with a gradient, cross-attention none"
    return max((found[name] - expected[name]).abs().max().item() for name in expected)
