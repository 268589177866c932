"""
Attention with T5's relative position bias as Triton kernels: no tensor of (batch, heads, queries, keys) in memory.

The bias is read as the vector of relative biases and the masks are made of three integers per token (see
`masks`), tile by tile. The forward pass is FlashAttention's (arXiv 2205.14135, 2307.08691). The backward pass
has a kernel for the gradient of the queries, one for that of keys and values, and one for that of the bias, which sums
over the batch in registers, into (heads, queries, keys) float32 numbers: of as many heads at a time as 1 GiB has room
for, or of one. No kernel adds atomically: equal inputs give equal bits.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..errors import UserError
from .attention import expand_bias
from .masks import compact_mask, expand_mask

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

MAX_HEAD_DIM = 128
MIN_CAPABILITY = (8, 0)  # bfloat16 matrix products and asynchronous copies
MAX_MASKED_LENGTH = 2**15 - 1  # a token's segment and group share 32 bits: see `_key_codes`
# Programs that fill a large GPU twice: the gradient of a small bias is summed over parts of the batch until there are.
BIAS_GRADIENT_PROGRAMS = 512
MAX_SCORE_GRADIENTS = 2**28  # float32 numbers, the most that the gradient of a bias takes at a time for several heads
# Of kernels in float32: queries, keys, warps, stages. It takes twice the registers, which more warps have together.
FLOAT32_CONFIGS = ((64, 32, 8, 2), (32, 32, 8, 2))
WIDE_FLOAT32_CONFIG = (32, 32, 8, 1)  # for heads of more than 64 numbers
# Of so few scores (of a batch and its heads), all configurations take some microseconds: not worth measuring any.
MAX_UNTUNED_SCORES = 2**18

_launch_lock = threading.Lock()
_checked_config: int | None = None  # of the configurations of each kernel, the one that is being checked

if triton is not None:
    INTERPRETED = triton.knobs.runtime.interpret
    LOG2_E = tl.constexpr(1.4426950408889634)
    PADDING_BIT = tl.constexpr(-(2**31))
    RANGE_CHUNK = tl.constexpr(32 if INTERPRETED else 512)  # tokens whose masks a program looks at at a time
    jit = triton.jit
else:
    INTERPRETED = False

    def jit(function):
        return function


def tuned(*configs: tuple[int, int, int, int]) -> Callable[[Callable], Callable]:
    """
    A decorator of kernels over blocks of queries and keys: at the first call of each size it is measured which of
    `configs` (queries, keys, warps, stages) is the fastest. The result is kept on disk, beside the compiled kernels:
    later runs on the machine choose the same, and round alike. (In the first run of several processes each measures
    for itself, and the last one to write is kept.) The last one is for small GPUs and small inputs.
    """

    def decorate(function):
        if triton is None:
            return function
        # The interpreter runs a tile after the other in Python: small ones, so that there are several in small tests.
        choices = [(16, 32, 4, 1)] if INTERPRETED else configs
        kernel = triton.heuristics(
            {
                "EVEN_QUERIES": lambda args: args["query_length"] % args["BLOCK_Q"] == 0,
                "EVEN_KEYS": lambda args: args["key_length"] % args["BLOCK_K"] == 0,
            }
        )(jit(function))
        return triton.autotune(
            configs=[_config(*choice) for choice in choices],
            key=["rows_class", "query_class", "key_class", "BLOCK_D", "HAS_BIAS", "HAS_MASK", "IS_CAUSAL"],
            prune_configs_by={"early_config_prune": _fitting_configs},
            cache_results=True,
        )(kernel)

    return decorate


def _config(queries: int, keys: int, warps: int, stages: int):
    return triton.Config({"BLOCK_Q": queries, "BLOCK_K": keys}, num_warps=warps, num_stages=stages)


def _fitting_configs(configs, named_args, **kwargs):
    """Small tiles for wide heads or float32: large ones would not stay in registers and shared memory."""
    element_size = named_args["query"].element_size()
    if element_size == 4 and not INTERPRETED:
        configs = [_config(*choice) for choice in FLOAT32_CONFIGS]
    row_bytes = kwargs["BLOCK_D"] * element_size
    sizes = [(config.kwargs["BLOCK_Q"] + config.kwargs["BLOCK_K"]) * row_bytes for config in configs]
    limit = (128 + 64) * 64 * 2  # 128 queries and 64 keys, or the reverse, of 64 bfloat16 numbers
    fitting = [config for config, size in zip(configs, sizes, strict=True) if size <= limit]
    return fitting or [_config(*WIDE_FLOAT32_CONFIG)]


# Helpers of the kernels. `queries` and `keys` are the indices of a tile's rows and columns, of shapes that broadcast.
# They return at their ends only: Triton also compiles what is behind an `if` of constants that returns.


@jit
def _load_rows(
    pointer,
    start,
    length,
    stride,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    EVEN: tl.constexpr,
):
    """ROWS vectors from the one at `start` on, (ROWS, BLOCK_D), 0 behind `length` and HEAD_DIM."""
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK_D)[None, :]
    pointers = pointer + tl.cast(start, tl.int64) * stride + rows * stride + columns
    if EVEN and HEAD_DIM == BLOCK_D:
        values = tl.load(pointers)
    else:
        values = tl.load(pointers, mask=(rows < length - start) & (columns < HEAD_DIM), other=0.0)
    return values


@jit
def _store_rows(
    pointer, values, start, length, stride, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr
):
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK_D)[None, :]
    pointers = pointer + tl.cast(start, tl.int64) * stride + rows * stride + columns
    inside = (rows < length - start) & (columns < HEAD_DIM)
    tl.store(pointers, values.to(pointer.dtype.element_ty), mask=inside)


@jit
def _load_bias(bias, queries, keys, query_length, key_length, EVEN: tl.constexpr):
    """The biases of a tile; behind the ends, where nothing is stored, those of the last query and key."""
    if not EVEN:
        queries = tl.minimum(queries, query_length - 1)
        keys = tl.minimum(keys, key_length - 1)
    return tl.load(bias + (keys - queries + (query_length - 1)))


@jit
def _scores(
    rows,
    columns,
    bias,
    queries,
    keys,
    query_length,
    key_length,
    has_tokens,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
):
    """
    The scores of a tile: products of vectors, added to biases. `has_tokens` is always true, and the compiler does not
    know. What is loaded in a branch it does not copy to shared memory some iterations ahead, as it does with the
    vectors: of biases, of which a tile has few different ones, that would be slow and take more memory than all else.
    """
    scores = tl.zeros([rows.shape[0], columns.shape[0]], tl.float32)
    if HAS_BIAS:
        if has_tokens:
            scores = _load_bias(bias, queries, keys, query_length, key_length, EVEN)
    return tl.dot(rows, tl.trans(columns), scores, input_precision=PRECISION)


@jit
def _query_codes(mask, queries, query_length, key_length, HAS_MASK: tl.constexpr):
    """
    For each query its segment and group in one number, which bits of that a key must share, and its position. The
    mask is that of one example, (3, Q + K). Queries behind the end, where nothing is stored, are as the last one.
    """
    code, bits, position = queries, queries, queries  # not looked at without a mask
    if HAS_MASK:
        queries = tl.minimum(queries, query_length - 1)
        tokens = query_length + key_length
        segment = tl.load(mask + queries)
        group = tl.load(mask + tokens + queries)
        position = tl.load(mask + 2 * tokens + queries)
        code = (segment << 16) | tl.maximum(group, 0)
        bits = tl.where(segment > 0, 0x7FFF0000, 0) | tl.where(group >= 0, 0xFFFF, 0) | PADDING_BIT
    return code, bits, position


@jit
def _key_codes(mask, keys, query_length, key_length, HAS_MASK: tl.constexpr):
    """For each key 16 bits of group, 15 of segment, one that says that no query attends to it; and its position."""
    code, position = keys, keys  # not looked at without a mask
    if HAS_MASK:
        inside = keys < key_length
        tokens = query_length + key_length
        segment = tl.load(mask + query_length + keys, mask=inside, other=-1)
        group = tl.load(mask + tokens + query_length + keys, mask=inside, other=0)
        position = tl.load(mask + 2 * tokens + query_length + keys, mask=inside, other=0)
        code = tl.where(segment < 0, PADDING_BIT, (segment << 16) | group)
    return code, position


@jit
def _exclude(
    scores,
    queries,
    keys,
    query_codes,
    key_codes,
    key_length,
    HAS_MASK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
):
    """The scores of a tile, -inf where a query does not attend to a key: two instructions a score with a mask."""
    if HAS_MASK:
        shared = ((query_codes[0] ^ key_codes[0]) & query_codes[1]) == 0
        scores = tl.where(shared & (key_codes[1] <= query_codes[2]), scores, float("-inf"))
    elif not EVEN_KEYS:
        scores = tl.where(keys < key_length, scores, float("-inf"))
    if IS_CAUSAL:
        scores = tl.where(keys <= queries, scores, float("-inf"))
    return scores


@jit
def _key_range(
    mask,
    start,
    query_length,
    key_length,
    HAS_MASK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """
    Where the tiles of the ROWS queries from `start` on begin and end: a bound on the keys that they attend to, from
    the segments (padding behind the end, other examples of the row) and the positions.
    """
    first, last = 0, key_length
    if HAS_MASK:
        queries = tl.minimum(start + tl.arange(0, ROWS), query_length - 1)
        tokens = query_length + key_length
        segments = tl.load(mask + queries)
        lowest, highest = tl.min(segments, 0), tl.max(segments, 0)  # a query 0 attends to all segments
        latest = tl.max(tl.load(mask + 2 * tokens + queries), 0)
        first, last = key_length, 0
        for chunk in range(0, key_length, RANGE_CHUNK):
            keys = chunk + tl.arange(0, RANGE_CHUNK)
            inside = keys < key_length
            segment = tl.load(mask + query_length + keys, mask=inside, other=-1)
            position = tl.load(mask + 2 * tokens + query_length + keys, mask=inside, other=0)
            possible = (segment >= lowest) & ((segment <= highest) | (lowest == 0)) & (position <= latest)
            first = tl.minimum(first, tl.min(tl.where(possible, keys, key_length), 0))
            last = tl.maximum(last, tl.max(tl.where(possible, keys + 1, 0), 0))
    if IS_CAUSAL:
        last = tl.minimum(last, start + ROWS)
    return first // COLUMNS * COLUMNS, last


@jit
def _query_range(
    mask,
    start,
    query_length,
    key_length,
    HAS_MASK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The same for the ROWS keys from `start` on, whose tiles are COLUMNS queries wide."""
    first, last = 0, query_length
    if HAS_MASK:
        keys = start + tl.arange(0, ROWS)
        tokens = query_length + key_length
        segments = tl.load(mask + query_length + keys, mask=keys < key_length, other=-1)
        positions = tl.load(mask + 2 * tokens + query_length + keys, mask=keys < key_length, other=0)
        lowest = tl.min(tl.where(segments < 0, 0x7FFFFFFF, segments), 0)
        highest = tl.max(segments, 0)  # -1: nothing but padding
        earliest = tl.min(tl.where(segments < 0, 0x7FFFFFFF, positions), 0)
        first, last = query_length, 0
        for chunk in range(0, query_length, RANGE_CHUNK):
            queries = chunk + tl.arange(0, RANGE_CHUNK)
            inside = queries < query_length
            segment = tl.load(mask + queries, mask=inside, other=0)
            position = tl.load(mask + 2 * tokens + queries, mask=inside, other=0)
            possible = (segment == 0) | ((segment >= lowest) & (segment <= highest))
            possible = possible & inside & (position >= earliest) & (highest >= 0)
            first = tl.minimum(first, tl.min(tl.where(possible, queries, query_length), 0))
            last = tl.maximum(last, tl.max(tl.where(possible, queries + 1, 0), 0))
    if IS_CAUSAL:
        first = tl.maximum(first, start)
    return first // COLUMNS * COLUMNS, last


# The kernels. One program has a block of queries (or of keys) of one head of one example.


@tuned((128, 64, 8, 3), (64, 64, 4, 3), (64, 64, 4, 2), (64, 32, 4, 2))
def _forward_kernel(
    query,
    key,
    value,
    bias,
    mask,
    out,
    logsumexp,
    query_batch_stride,
    query_head_stride,
    query_stride,
    key_batch_stride,
    key_head_stride,
    key_stride,
    value_batch_stride,
    value_head_stride,
    value_stride,
    mask_batch_stride,
    out_batch_stride,
    out_head_stride,
    out_stride,
    num_heads,
    query_length,
    key_length,
    rows_class,
    query_class,
    key_class,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
):
    num_blocks = tl.cdiv(query_length, BLOCK_Q)
    start = tl.program_id(0) % num_blocks * BLOCK_Q
    example = tl.cast(tl.program_id(0) // num_blocks // num_heads, tl.int64)
    head = tl.cast(tl.program_id(0) // num_blocks % num_heads, tl.int64)
    query += example * query_batch_stride + head * query_head_stride
    key += example * key_batch_stride + head * key_head_stride
    value += example * value_batch_stride + head * value_head_stride
    out += example * out_batch_stride + head * out_head_stride
    mask += example * mask_batch_stride
    bias += head * (query_length + key_length - 1)
    logsumexp += (example * num_heads + head) * query_length

    row = start + tl.arange(0, BLOCK_Q)
    queries = row[:, None]
    q = _load_rows(query, start, query_length, query_stride, HEAD_DIM, BLOCK_Q, BLOCK_D, EVEN_QUERIES)
    query_codes = _query_codes(mask, queries, query_length, key_length, HAS_MASK)
    largest = tl.full([BLOCK_Q], float("-inf"), tl.float32)  # in units of log 2, as is what exp2 wants
    total = tl.zeros([BLOCK_Q], tl.float32)
    values = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)

    first, last = _key_range(mask, start, query_length, key_length, HAS_MASK, IS_CAUSAL, BLOCK_Q, BLOCK_K)
    for key_start in range(first, last, BLOCK_K):
        keys = (key_start + tl.arange(0, BLOCK_K))[None, :]
        k = _load_rows(key, key_start, key_length, key_stride, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS)
        v = _load_rows(value, key_start, key_length, value_stride, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS)
        key_codes = _key_codes(mask, keys, query_length, key_length, HAS_MASK)
        scores = _scores(
            q,
            k,
            bias,
            queries,
            keys,
            query_length,
            key_length,
            key_start < key_length,
            HAS_BIAS,
            PRECISION,
            EVEN_QUERIES and EVEN_KEYS,
        )
        scores = _exclude(scores, queries, keys, query_codes, key_codes, key_length, HAS_MASK, IS_CAUSAL, EVEN_KEYS)

        new_largest = tl.maximum(largest, tl.max(scores, 1) * LOG2_E)
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # no key yet: exp2(-inf - 0) is 0
        weights = tl.exp2(tl.fma(scores, LOG2_E, -shift[:, None]))
        correction = tl.exp2(largest - shift)
        total = total * correction + tl.sum(weights, 1)
        values = tl.dot(weights.to(v.dtype), v, values * correction[:, None], input_precision=PRECISION)
        largest = new_largest

    values = values / tl.where(total == 0, 1.0, total)[:, None]
    _store_rows(out, values, start, query_length, out_stride, HEAD_DIM, BLOCK_Q, BLOCK_D)
    # +inf for a query without any key: the weights of the backward pass, exp2(score - logsumexp), are 0.
    tl.store(logsumexp + row, tl.where(total == 0, float("inf"), largest + tl.log2(total)), mask=row < query_length)


@tuned((128, 64, 8, 2), (128, 32, 8, 3), (64, 64, 4, 3), (64, 32, 4, 2))
def _query_gradient_kernel(
    query,
    key,
    value,
    bias,
    mask,
    out,
    logsumexp,
    out_gradient,
    query_gradient,
    delta,
    query_batch_stride,
    query_head_stride,
    query_stride,
    key_batch_stride,
    key_head_stride,
    key_stride,
    value_batch_stride,
    value_head_stride,
    value_stride,
    mask_batch_stride,
    out_batch_stride,
    out_head_stride,
    out_stride,
    out_gradient_batch_stride,
    out_gradient_head_stride,
    out_gradient_stride,
    query_gradient_batch_stride,
    query_gradient_head_stride,
    query_gradient_stride,
    num_heads,
    query_length,
    key_length,
    rows_class,
    query_class,
    key_class,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
):
    """
    Also stores `delta`, the product of each output with its gradient, for the kernels that run after it: as the sum of
    the products of weights and their gradients, which are not rounded. The error of rounded outputs is the same for
    all keys of a query: it would double the error of the gradient of the bias. This kernel has that sum at its end
    only. What it subtracts is the product with rounded outputs; in half precision, the difference times the mean key
    is added at the end.
    """
    IS_ROUNDED: tl.constexpr = out.dtype.element_ty != tl.float32
    num_blocks = tl.cdiv(query_length, BLOCK_Q)
    start = tl.program_id(0) % num_blocks * BLOCK_Q
    example = tl.cast(tl.program_id(0) // num_blocks // num_heads, tl.int64)
    head = tl.cast(tl.program_id(0) // num_blocks % num_heads, tl.int64)
    query += example * query_batch_stride + head * query_head_stride
    key += example * key_batch_stride + head * key_head_stride
    value += example * value_batch_stride + head * value_head_stride
    out += example * out_batch_stride + head * out_head_stride
    out_gradient += example * out_gradient_batch_stride + head * out_gradient_head_stride
    query_gradient += example * query_gradient_batch_stride + head * query_gradient_head_stride
    mask += example * mask_batch_stride
    bias += head * (query_length + key_length - 1)
    logsumexp += (example * num_heads + head) * query_length
    delta += (example * num_heads + head) * query_length

    row = start + tl.arange(0, BLOCK_Q)
    queries = row[:, None]
    o = _load_rows(out, start, query_length, out_stride, HEAD_DIM, BLOCK_Q, BLOCK_D, EVEN_QUERIES)
    do = _load_rows(out_gradient, start, query_length, out_gradient_stride, HEAD_DIM, BLOCK_Q, BLOCK_D, EVEN_QUERIES)
    deltas = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    exact_deltas = tl.zeros([BLOCK_Q], tl.float32)
    log_total = tl.load(logsumexp + row, mask=row < query_length, other=float("inf"))
    q = _load_rows(query, start, query_length, query_stride, HEAD_DIM, BLOCK_Q, BLOCK_D, EVEN_QUERIES)
    query_codes = _query_codes(mask, queries, query_length, key_length, HAS_MASK)
    dq = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    mean_key = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)

    first, last = _key_range(mask, start, query_length, key_length, HAS_MASK, IS_CAUSAL, BLOCK_Q, BLOCK_K)
    for key_start in range(first, last, BLOCK_K):
        keys = (key_start + tl.arange(0, BLOCK_K))[None, :]
        k = _load_rows(key, key_start, key_length, key_stride, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS)
        v = _load_rows(value, key_start, key_length, value_stride, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS)
        key_codes = _key_codes(mask, keys, query_length, key_length, HAS_MASK)
        scores = _scores(
            q,
            k,
            bias,
            queries,
            keys,
            query_length,
            key_length,
            key_start < key_length,
            HAS_BIAS,
            PRECISION,
            EVEN_QUERIES and EVEN_KEYS,
        )
        scores = _exclude(scores, queries, keys, query_codes, key_codes, key_length, HAS_MASK, IS_CAUSAL, EVEN_KEYS)
        weights = tl.exp2(tl.fma(scores, LOG2_E, -log_total[:, None]))
        weight_gradient = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        exact_deltas += tl.sum(weights * weight_gradient, 1)
        score_gradient = weights * (weight_gradient - deltas[:, None])
        dq = tl.dot(score_gradient.to(k.dtype), k, dq, input_precision=PRECISION)
        if IS_ROUNDED:
            mean_key = tl.dot(weights.to(k.dtype), k, mean_key, input_precision=PRECISION)

    if IS_ROUNDED:
        dq += (deltas - exact_deltas)[:, None] * mean_key
    tl.store(delta + row, exact_deltas, mask=row < query_length)
    _store_rows(query_gradient, dq, start, query_length, query_gradient_stride, HEAD_DIM, BLOCK_Q, BLOCK_D)


@tuned((64, 128, 8, 2), (64, 64, 4, 2), (32, 64, 4, 3), (32, 64, 4, 2))
def _key_value_gradient_kernel(
    query,
    key,
    value,
    bias,
    mask,
    logsumexp,
    out_gradient,
    delta,
    key_gradient,
    value_gradient,
    query_batch_stride,
    query_head_stride,
    query_stride,
    key_batch_stride,
    key_head_stride,
    key_stride,
    value_batch_stride,
    value_head_stride,
    value_stride,
    mask_batch_stride,
    out_gradient_batch_stride,
    out_gradient_head_stride,
    out_gradient_stride,
    key_gradient_batch_stride,
    key_gradient_head_stride,
    key_gradient_stride,
    num_heads,
    query_length,
    key_length,
    rows_class,
    query_class,
    key_class,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
):
    """Tiles are of (keys, queries): the weights are transposed as the products with them want it."""
    num_blocks = tl.cdiv(key_length, BLOCK_K)
    start = tl.program_id(0) % num_blocks * BLOCK_K
    example = tl.cast(tl.program_id(0) // num_blocks // num_heads, tl.int64)
    head = tl.cast(tl.program_id(0) // num_blocks % num_heads, tl.int64)
    query += example * query_batch_stride + head * query_head_stride
    key += example * key_batch_stride + head * key_head_stride
    value += example * value_batch_stride + head * value_head_stride
    out_gradient += example * out_gradient_batch_stride + head * out_gradient_head_stride
    key_gradient += example * key_gradient_batch_stride + head * key_gradient_head_stride
    value_gradient += example * key_gradient_batch_stride + head * key_gradient_head_stride
    mask += example * mask_batch_stride
    bias += head * (query_length + key_length - 1)
    logsumexp += (example * num_heads + head) * query_length
    delta += (example * num_heads + head) * query_length

    keys = (start + tl.arange(0, BLOCK_K))[:, None]
    k = _load_rows(key, start, key_length, key_stride, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS)
    v = _load_rows(value, start, key_length, value_stride, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS)
    key_codes = _key_codes(mask, keys, query_length, key_length, HAS_MASK)
    dk = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)

    first, last = _query_range(mask, start, query_length, key_length, HAS_MASK, IS_CAUSAL, BLOCK_K, BLOCK_Q)
    for query_start in range(first, last, BLOCK_Q):
        row = query_start + tl.arange(0, BLOCK_Q)
        queries = row[None, :]
        q = _load_rows(query, query_start, query_length, query_stride, HEAD_DIM, BLOCK_Q, BLOCK_D, EVEN_QUERIES)
        do = _load_rows(
            out_gradient, query_start, query_length, out_gradient_stride, HEAD_DIM, BLOCK_Q, BLOCK_D, EVEN_QUERIES
        )
        log_total = tl.load(logsumexp + row, mask=row < query_length, other=float("inf"))
        deltas = tl.load(delta + row, mask=row < query_length, other=0.0)
        query_codes = _query_codes(mask, queries, query_length, key_length, HAS_MASK)
        scores = _scores(
            k,
            q,
            bias,
            queries,
            keys,
            query_length,
            key_length,
            query_start < query_length,
            HAS_BIAS,
            PRECISION,
            EVEN_QUERIES and EVEN_KEYS,
        )
        scores = _exclude(scores, queries, keys, query_codes, key_codes, key_length, HAS_MASK, IS_CAUSAL, EVEN_KEYS)
        weights = tl.exp2(tl.fma(scores, LOG2_E, -log_total[None, :]))
        dv = tl.dot(weights.to(do.dtype), do, dv, input_precision=PRECISION)
        weight_gradient = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        score_gradient = weights * (weight_gradient - deltas[None, :])
        dk = tl.dot(score_gradient.to(q.dtype), q, dk, input_precision=PRECISION)

    _store_rows(key_gradient, dk, start, key_length, key_gradient_stride, HEAD_DIM, BLOCK_K, BLOCK_D)
    _store_rows(value_gradient, dv, start, key_length, key_gradient_stride, HEAD_DIM, BLOCK_K, BLOCK_D)


@tuned((128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 3), (64, 32, 4, 2))
def _score_gradient_kernel(
    query,
    key,
    value,
    bias,
    mask,
    logsumexp,
    out_gradient,
    delta,
    score_gradient,
    query_batch_stride,
    query_head_stride,
    query_stride,
    key_batch_stride,
    key_head_stride,
    key_stride,
    value_batch_stride,
    value_head_stride,
    value_stride,
    mask_batch_stride,
    out_gradient_batch_stride,
    out_gradient_head_stride,
    out_gradient_stride,
    batch_size,
    part_size,
    num_heads,
    query_length,
    key_length,
    rows_class,
    query_class,
    key_class,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
):
    """
    The gradient of a tile's scores, summed over `part_size` examples of the batch, into (parts, heads, queries, keys).
    """
    key_blocks = tl.cdiv(key_length, BLOCK_K)
    query_blocks = tl.cdiv(query_length, BLOCK_Q)
    program = tl.program_id(0)
    key_start = program % key_blocks * BLOCK_K
    query_start = program // key_blocks % query_blocks * BLOCK_Q
    head = tl.cast(program // (key_blocks * query_blocks) % num_heads, tl.int64)
    part = program // (key_blocks * query_blocks) // num_heads
    query += head * query_head_stride
    key += head * key_head_stride
    value += head * value_head_stride
    out_gradient += head * out_gradient_head_stride
    bias += head * (query_length + key_length - 1)

    row = query_start + tl.arange(0, BLOCK_Q)
    queries = row[:, None]
    keys = (key_start + tl.arange(0, BLOCK_K))[None, :]
    biases = _load_bias(bias, queries, keys, query_length, key_length, EVEN_QUERIES and EVEN_KEYS)
    sums = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)

    first = part * part_size
    last = tl.minimum(first + part_size, batch_size)
    if IS_CAUSAL and key_start >= query_start + BLOCK_Q:
        last = first  # above the diagonal: zeros
    for index in range(first, last):
        example = tl.cast(index, tl.int64)
        rows = (example * num_heads + head) * query_length + row
        log_total = tl.load(logsumexp + rows, mask=row < query_length, other=float("inf"))
        deltas = tl.load(delta + rows, mask=row < query_length, other=0.0)
        q = _load_rows(
            query + example * query_batch_stride,
            query_start,
            query_length,
            query_stride,
            HEAD_DIM,
            BLOCK_Q,
            BLOCK_D,
            EVEN_QUERIES,
        )
        do = _load_rows(
            out_gradient + example * out_gradient_batch_stride,
            query_start,
            query_length,
            out_gradient_stride,
            HEAD_DIM,
            BLOCK_Q,
            BLOCK_D,
            EVEN_QUERIES,
        )
        k = _load_rows(
            key + example * key_batch_stride, key_start, key_length, key_stride, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS
        )
        v = _load_rows(
            value + example * value_batch_stride,
            key_start,
            key_length,
            value_stride,
            HEAD_DIM,
            BLOCK_K,
            BLOCK_D,
            EVEN_KEYS,
        )
        query_codes = _query_codes(mask + example * mask_batch_stride, queries, query_length, key_length, HAS_MASK)
        key_codes = _key_codes(mask + example * mask_batch_stride, keys, query_length, key_length, HAS_MASK)
        scores = tl.dot(q, tl.trans(k), biases, input_precision=PRECISION)
        scores = _exclude(scores, queries, keys, query_codes, key_codes, key_length, HAS_MASK, IS_CAUSAL, EVEN_KEYS)
        weights = tl.exp2(tl.fma(scores, LOG2_E, -log_total[:, None]))
        weight_gradient = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        sums += weights * (weight_gradient - deltas[:, None])

    score_gradient += (part * num_heads + head) * query_length * key_length
    inside = (queries < query_length) & (keys < key_length)
    tl.store(score_gradient + tl.cast(queries, tl.int64) * key_length + keys, sums, mask=inside)


@jit
def _diagonal_sum_kernel(
    score_gradient,
    bias_gradient,
    parts,
    num_heads,
    query_length,
    key_length,
    ROWS: tl.constexpr,
    DIAGONALS: tl.constexpr,
):
    """The gradient of the bias: (parts, heads, queries, keys) summed over the parts and along the diagonals."""
    num_diagonals = query_length + key_length - 1
    num_blocks = tl.cdiv(num_diagonals, DIAGONALS)
    head = tl.cast(tl.program_id(0) // num_blocks, tl.int64)
    diagonal = tl.program_id(0) % num_blocks * DIAGONALS + tl.arange(0, DIAGONALS)
    sums = tl.zeros([ROWS, DIAGONALS], tl.float32)
    for start in range(0, parts * query_length, ROWS):
        row = start + tl.arange(0, ROWS)
        part = tl.cast(row // query_length, tl.int64)
        queries = row % query_length
        keys = diagonal[None, :] + queries[:, None] - (query_length - 1)
        pointers = score_gradient + ((part * num_heads + head) * query_length + queries)[:, None] * key_length + keys
        inside = (row < parts * query_length)[:, None] & (keys >= 0) & (keys < key_length)
        sums += tl.load(pointers, mask=inside, other=0.0)
    tl.store(bias_gradient + head * num_diagonals + diagonal, tl.sum(sums, 0), mask=diagonal < num_diagonals)


# The operators. Python sees tensors of shape (batch, heads, length, head size) of any strides but 1 along the last.


def _forward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, mask: Tensor | None, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """The output, and the logarithm to base 2 of the sum of the exponentials of the scores, (B, H, Q) float32."""
    query, key, value, mask = _prepare(query, key, value, mask)
    bias = bias.float().contiguous()
    out = _like_transposed(query)
    logsumexp = query.new_empty(query.shape[:3], dtype=torch.float32)
    batch_size, num_heads, query_length = query.shape[:3]
    if out.numel() > 0:
        _launch(
            _forward_kernel,
            lambda meta: batch_size * num_heads * triton.cdiv(query_length, meta["BLOCK_Q"]),
            query,
            key,
            value,
            bias,
            mask,
            out,
            logsumexp,
            *_strides(query, key, value),
            _mask_stride(mask),
            *_strides(out),
            **_common_arguments(query, key, bias, mask, is_causal),
        )
    return out, logsumexp


def _backward(
    out_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    needs_bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key, value, mask = _prepare(query, key, value, mask)
    out_gradient = _unit_stride(out_gradient)
    bias_dtype, bias = bias.dtype, bias.float().contiguous()
    batch_size, num_heads, query_length, _ = query.shape
    key_length = key.shape[2]
    query_gradient, key_gradient, value_gradient = map(_like_transposed, (query, key, value))
    bias_gradient = torch.zeros_like(bias)
    if out_gradient.numel() == 0:
        return query_gradient, key_gradient.zero_(), value_gradient.zero_(), bias_gradient.to(bias_dtype)
    delta = torch.empty_like(logsumexp)
    common = _common_arguments(query, key, bias, mask, is_causal)
    inputs = (query, key, value, bias, mask)
    strides = (*_strides(query, key, value), _mask_stride(mask))

    _launch(
        _query_gradient_kernel,
        lambda meta: batch_size * num_heads * triton.cdiv(query_length, meta["BLOCK_Q"]),
        *inputs,
        out,
        logsumexp,
        out_gradient,
        query_gradient,
        delta,
        *strides,
        *_strides(out, out_gradient, query_gradient),
        **common,
    )
    _launch(
        _key_value_gradient_kernel,
        lambda meta: batch_size * num_heads * triton.cdiv(key_length, meta["BLOCK_K"]),
        *inputs,
        logsumexp,
        out_gradient,
        delta,
        key_gradient,
        value_gradient,
        *strides,
        *_strides(out_gradient, key_gradient),
        **common,
    )
    if needs_bias_gradient and bias.numel() > 0:
        _add_bias_gradient(bias_gradient, (*inputs, logsumexp, out_gradient, delta), strides, out_gradient, common)
    return query_gradient, key_gradient, value_gradient, bias_gradient.to(bias_dtype)


def _add_bias_gradient(bias_gradient, tensors, strides, out_gradient, common):
    """Fill the gradient of the bias, of as many heads at a time as there is room for."""
    batch_size, num_heads, query_length = out_gradient.shape[:3]
    key_length = common["key_length"]
    tiles = num_heads * triton.cdiv(query_length, 64) * triton.cdiv(key_length, 64)
    part_size = triton.cdiv(batch_size, triton.cdiv(BIAS_GRADIENT_PROGRAMS, tiles))
    parts = triton.cdiv(batch_size, part_size)
    most_heads = max(1, MAX_SCORE_GRADIENTS // (parts * query_length * key_length))
    score_gradient = bias_gradient.new_empty(parts, min(num_heads, most_heads), query_length, key_length)
    query, key, value, bias, mask, logsumexp, out_gradient, delta = tensors
    for first in range(0, num_heads, most_heads):
        heads = slice(first, first + most_heads)
        part_of_heads = query[:, heads], key[:, heads], value[:, heads], bias[heads], mask
        rows = logsumexp[:, heads].contiguous(), out_gradient[:, heads], delta[:, heads].contiguous()
        _add_bias_gradient_of_heads(
            bias_gradient[heads], (*part_of_heads, *rows), strides, score_gradient, part_size, common
        )


def _add_bias_gradient_of_heads(bias_gradient, tensors, strides, score_gradient, part_size, common):
    query, *_, out_gradient, _ = tensors
    batch_size, num_heads, query_length = query.shape[:3]
    key_length, parts = common["key_length"], score_gradient.shape[0]
    _launch(
        _score_gradient_kernel,
        lambda meta: (
            parts * num_heads * triton.cdiv(query_length, meta["BLOCK_Q"]) * triton.cdiv(key_length, meta["BLOCK_K"])
        ),
        *tensors,
        score_gradient,
        *strides,
        *_strides(out_gradient),
        batch_size,
        part_size,
        **common | {"num_heads": num_heads},
    )
    blocks = triton.cdiv(query_length + key_length - 1, 64)
    _launch(
        _diagonal_sum_kernel,
        lambda meta: num_heads * blocks,
        score_gradient,
        bias_gradient,
        parts,
        num_heads,
        query_length,
        key_length,
        ROWS=64,
        DIAGONALS=64,
    )


def _launch(kernel, num_programs, *arguments, **options):
    options = {"enable_fp_fusion": True} | options  # the default, which Triton 3.10 is to change
    if isinstance(kernel, triton.runtime.Autotuner):
        config = _config_without_measuring(kernel, arguments[0], options)
        if config is not None:
            kernel, options = kernel.fn, options | config.all_kwargs()
    # One thread at a time: the autotuner keeps the arguments of the call in an attribute. Triton launches on the
    # current device.
    with _launch_lock, torch.cuda.device_of(arguments[0]):
        kernel[lambda meta: (num_programs(meta),)](*arguments, **options)


def _config_without_measuring(kernel, query, options):
    """The configuration that is being checked, or the one for so few scores; `None`: the autotuner's."""
    fitting = _fitting_configs(kernel.configs, {"query": query}, **options)
    if _checked_config is not None:
        return fitting[min(_checked_config, len(fitting) - 1)]
    is_small = query.shape[:3].numel() * options["key_length"] <= MAX_UNTUNED_SCORES
    return fitting[-1] if is_small else None


def _prepare(query, key, value, mask):
    """The tensors as the kernels take them: no copy of a (batch, length, heads, head size) seen transposed."""
    return *map(_unit_stride, (query, key, value)), query if mask is None else mask.contiguous()


def _unit_stride(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _like_transposed(tensor: Tensor) -> Tensor:
    """An empty tensor of the same shape whose heads lie beside each other, as the layers around attention want it."""
    batch_size, num_heads, length, head_dim = tensor.shape
    return tensor.new_empty(batch_size, length, num_heads, head_dim).transpose(1, 2)


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])


def _mask_stride(mask: Tensor) -> int:
    return mask.stride(0) if mask.dtype == torch.int32 and mask.shape[0] > 1 else 0


def _common_arguments(query, key, bias, mask, is_causal):
    query_length, key_length, head_dim = query.shape[2], key.shape[2], query.shape[3]
    return {
        "num_heads": query.shape[1],
        "query_length": query_length,
        "key_length": key_length,
        # One measurement of the configurations for all numbers of heads, queries and keys up to the same power of two.
        "rows_class": triton.next_power_of_2(query.shape[0] * query.shape[1]),
        "query_class": triton.next_power_of_2(query_length),
        "key_class": triton.next_power_of_2(key_length),
        "HEAD_DIM": head_dim,
        "BLOCK_D": max(16, triton.next_power_of_2(head_dim)),
        "HAS_BIAS": bias.numel() > 0,
        "HAS_MASK": mask.dtype == torch.int32,
        "IS_CAUSAL": is_causal,
        "PRECISION": "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee",
    }


def _fake_forward(query, key, value, bias, mask, is_causal):
    return _like_transposed(query), query.new_empty(query.shape[:3], dtype=torch.float32)


def _fake_backward(out_gradient, query, key, value, bias, *rest):
    return *map(_like_transposed, (query, key, value)), torch.empty_like(bias)


def _save_for_backward(ctx, inputs, output):
    *tensors, ctx.is_causal = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx, out_gradient, _):
    gradients = _attend_backward(out_gradient, *ctx.saved_tensors, ctx.is_causal, ctx.needs_input_grad[3])
    return *gradients, None, None


_attend = torch.library.custom_op("hf_depth::triton", _forward, mutates_args=())
_attend_backward = torch.library.custom_op("hf_depth::triton_backward", _backward, mutates_args=())
_attend.register_fake(_fake_forward)
_attend_backward.register_fake(_fake_backward)
_attend.register_autograd(_gradients, setup_context=_save_for_backward)


@register_flop_formula(torch.ops.hf_depth.triton)
def _flops(query, key, *_, products: int = 2, **kwargs) -> int:
    """The operations of all pairs of queries and keys, as in torch's own formulas: the scores, and the output."""
    batch_size, heads, queries, head_size = query
    return products * 2 * batch_size * heads * queries * key[2] * head_size


@register_flop_formula(torch.ops.hf_depth.triton_backward)
def _backward_flops(gradient, query, key, *_, **kwargs) -> int:
    """The backward pass computes the scores again: five products."""
    return _flops(query, key, products=5)


def depth_triton(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    mask: Tensor | None,
    is_causal: bool,
) -> Tensor:
    """
    Attention with a compact position bias and a compact mask; see [`register_attention`].

    Args:
        query (`torch.Tensor` of shape `(batch_size, num_heads, query_length, head_dim)`):
            float32, bfloat16 or float16. In float32, products are in TF32 if
            `torch.backends.cuda.matmul.fp32_precision` is "tf32".
        key (`torch.Tensor` of shape `(batch_size, num_heads, key_length, head_dim)`), of the query's dtype.
        value (`torch.Tensor` of shape `(batch_size, num_heads, key_length, head_dim)`), of the query's dtype.
        bias (`torch.Tensor` of shape `(num_heads, query_length + key_length - 1)` or `(0,)`):
            Added to the score of query `q` and key `k` is `bias[head, k - q + query_length - 1]`; nothing, if empty.
        mask (`torch.IntTensor` of shape `(batch_size or 1, 1, 3, query_length + key_length)`, *optional*):
            Of [`compact_mask`]. A query without any key gets 0.
        is_causal (`bool`): a query attends to keys up to its own index only.

    Returns:
        `torch.Tensor` of shape `(batch_size, num_heads, query_length, head_dim)`.

    Raises:
        `ValueError`: naming the argument that the kernels cannot take.
    """
    _check(query, key, value, bias, mask)
    return _attend(query, key, value, bias, mask, is_causal)[0]


def _check(query, key, value, bias, mask):
    if triton is None:
        raise ImportError('"depth_triton" needs Triton: `pip install triton`, or use another attn_implementation.')
    batch_size, num_heads, query_length, head_dim = query.shape
    key_length = key.shape[2]
    if reason := unsupported(head_dim, query.dtype):
        raise UserError(f"`query`: {reason}")
    for name, tensor in (("key", key), ("value", value)):
        if tensor.shape != (batch_size, num_heads, key_length, head_dim) or tensor.dtype != query.dtype:
            raise UserError(
                f"`{name}` must be of the batch size, heads, head size and dtype of `query`, {tuple(query.shape)} in "
                f"{query.dtype}, and as long as `key`, got {tuple(tensor.shape)} in {tensor.dtype}."
            )
    relative_positions = (num_heads, query_length + key_length - 1)
    if bias.numel() > 0 and bias.shape != relative_positions:
        raise UserError(f"`bias` must be of shape {relative_positions} or empty, got {tuple(bias.shape)}.")
    if mask is not None:
        batch_sizes, shape = (1, batch_size), (1, 3, query_length + key_length)
        if mask.shape[0] not in batch_sizes or mask.shape[1:] != shape or mask.dtype != torch.int32:
            raise UserError(
                f"`mask` must be int32 of shape {(batch_size, *shape)}, got {mask.dtype} {tuple(mask.shape)}."
            )
        if max(query_length, key_length) > MAX_MASKED_LENGTH:
            raise UserError(
                f"The Triton kernels take a `mask` of up to {MAX_MASKED_LENGTH:,} tokens, got {query_length:,} and "
                f'{key_length:,}: use attn_implementation="sdpa" for longer rows.'
            )


def unsupported(head_dim: int, dtype: torch.dtype) -> str | None:
    """Why there are no kernels for heads of this size and dtype, or `None`."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"the Triton kernels are for float32, bfloat16 and float16, not for {dtype}."
    if head_dim > MAX_HEAD_DIM:
        return f"the Triton kernels are for heads of up to {MAX_HEAD_DIM} numbers, not of {head_dim}."
    return None


@lru_cache
def check_triton_attention(device: torch.device, head_dim: int, dtype: torch.dtype) -> str | None:
    """
    Whether the Triton kernels work on a device: they are run on a few tokens, with and without mask, bias and
    causality, and compared with the formula; with mask and bias in each of their configurations. They are compiled for
    it, unless Triton has kept them on disk.

    Args:
        device (`torch.device`): where the model is.
        head_dim (`int`): size of its heads.
        dtype (`torch.dtype`): of its queries, keys and values, under autocast that of autocast.

    Returns:
        `str` or `None`: the reason why the kernels cannot be used, `None` if they can.

    Raises:
        `RuntimeError`: if a kernel broke what this process has of the device, such as by a read of foreign memory.
    """
    if triton is None:
        return "Triton is not installed."
    if not INTERPRETED:
        if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
            return f"the Triton kernels need an NVIDIA GPU, not {device}."
        if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
            return f"the Triton kernels need a GPU of capability {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]} or above."
    if reason := unsupported(head_dim, dtype):
        return reason
    try:
        return _compare_with_formula(device, head_dim, dtype)
    except Exception as error:  # whatever a compiler or driver may raise: the model runs without the kernels
        _check_device_is_usable(device, error)
        return f"the Triton kernels failed: {type(error).__name__}: {str(error)[:500]}"


def _check_device_is_usable(device, error):
    """Stop if all that this process would do on the device from now on raised the same error."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except Exception:
        raise RuntimeError(
            f"A check of the Triton kernels made {device} unusable for this process. Start it again with another "
            '`attn_implementation` than "auto" and "depth_triton", such as "sdpa".'
        ) from error


def _compare_with_formula(device, head_dim, dtype):
    inputs = *vectors, biases, mask, out_gradient = _example(head_dim, dtype, 20 if INTERPRETED else 200)
    # Each is compiled by itself: layers with a mask, causal ones without (T5's decoder), and those without a bias.
    cases = (
        (inputs, False),
        ((*vectors, biases, None, out_gradient), True),
        ((*vectors, biases.new_zeros(0), None, out_gradient), False),
    )
    problems = (_case_problem(device, *case) for case in cases)  # as they are asked for
    return next(filter(None, problems), None) or _configs_problem(device, head_dim, dtype)


def _configs_problem(device, head_dim, dtype):
    """
    What is wrong with the configurations for large inputs, on whole tiles: those that training measures, compiled in
    advance.
    """
    inputs = _example(head_dim, dtype, 64 if INTERPRETED else 256)
    kernels = [kernel for kernel in globals().values() if isinstance(kernel, triton.runtime.Autotuner)]
    for index in range(max(len(kernel.configs) for kernel in kernels) - 1):  # the last one is for small inputs
        with _configuration(index):
            problem = _case_problem(device, inputs, False)
        if problem is not None:
            return problem
    return None


@contextlib.contextmanager
def _configuration(index: int) -> Iterator[None]:
    """Kernels run in their configuration of this number, also those of the backward pass in autograd's threads."""
    global _checked_config
    _checked_config = index
    try:
        yield
    finally:
        _checked_config = None


def _case_problem(device, inputs, is_causal):
    *vectors, bias, mask, out_gradient = inputs
    tensors = (*vectors, bias, out_gradient)
    on_device = [tensor.to(device) for tensor in tensors]
    expected = _with_gradients(_formula, *(tensor.float() for tensor in tensors), mask, is_causal)
    result = _with_gradients(depth_triton, *on_device, mask if mask is None else mask.to(device), is_causal)
    return _difference(result, expected, 1e-2 if vectors[0].dtype == torch.float32 else 5e-2)


def _with_gradients(function, query, key, value, bias, out_gradient, mask, is_causal):
    """The output, and its gradients to query, key, value and, if there is one, bias."""
    leaves = [tensor.detach().requires_grad_() for tensor in (query, key, value, bias)]
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        output = function(*leaves, mask, is_causal)
        return output, *torch.autograd.grad(output, [leaf for leaf in leaves if leaf.numel() > 0], out_gradient)


def _difference(result, expected, tolerance):
    """What is off by more than the error of TF32 or bfloat16, relative to its largest number: a wrong tile is."""
    names = ("output", "gradient of query", "gradient of key", "gradient of value", "gradient of bias")
    for name, tensor, right in zip(names, result, expected, strict=False):
        difference = ((tensor.detach().cpu().float() - right).abs().max() / right.abs().max()).item()
        if not difference <= tolerance:
            return f"the Triton kernels are off the formula: {name} by {difference:.1e} of its largest number."
    return None


def _example(head_dim, dtype, length):
    """
    Query, key, value, bias, mask, and a gradient of the output, of two rows of two short examples each, the second row
    with padding behind; of several tiles.
    """
    generator = torch.Generator().manual_seed(0)
    batch_size, num_heads = 2, 2

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")

    vectors = [random(batch_size, length, num_heads, head_dim).to(dtype).transpose(1, 2) for _ in range(4)]
    vectors[0] /= head_dim**0.5
    places = torch.arange(length, device="cpu").expand(batch_size, length)
    segments = torch.where(places < length // 3, 1, 2)
    groups = (torch.where(places % 3 == 0, -1, places % 3), places % 3)
    padding_mask = torch.ones_like(places, dtype=torch.bool)
    padding_mask[1, -8:] = False
    mask = compact_mask((batch_size, length), length, "cpu", padding_mask, True, (segments, segments), groups)
    return *vectors[:3], random(num_heads, 2 * length - 1), mask, vectors[3]


def _formula(query, key, value, bias, mask, is_causal):
    scores, position_bias = query @ key.mT, expand_bias(bias, query.shape[2], key.shape[2])
    if position_bias is not None:
        scores = scores + position_bias
    allowed = torch.ones_like(scores, dtype=torch.bool) if mask is None else expand_mask(mask, query.shape[2])
    allowed = allowed.tril() if is_causal else allowed
    return scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1) @ value
