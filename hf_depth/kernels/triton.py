"""
Attention with T5's relative position bias as Triton kernels: no tensor of (batch, heads, queries, keys) in memory.

An experiment: right on an H100, but not timed there. Nothing chooses it by itself.

Each tile reads the vector of relative biases, and makes its mask from three integers per token (see `masks`). The
forward pass is FlashAttention's (arXiv 2205.14135, 2307.08691). The backward pass has three kernels: for the queries,
for keys and values, and for the bias. The last one sums over the batch in registers, into (heads, queries, keys)
float32 numbers. No kernel adds atomically: equal inputs give equal bits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from ..errors import UserError

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

MAX_HEAD_DIM = 128
MAX_LENGTH = 2**15 - 1  # a token's segment and group share 32 bits: see `_key_codes`
# Programs that fill a large GPU twice: the gradient of a small bias is summed over parts of the batch until there are.
BIAS_GRADIENT_PROGRAMS = 512

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


# Queries and keys of a tile, warps, stages. The first are for half precision with heads of up to 64 numbers, the
# second for all else. Larger tiles would not stay in registers and shared memory. None was measured.
TILES = {
    "forward": ((128, 64, 8, 3), (32, 32, 8, 1)),
    "query_gradient": ((64, 64, 4, 3), (32, 32, 8, 1)),
    "key_value_gradient": ((64, 64, 4, 2), (32, 32, 8, 1)),
    "score_gradient": ((64, 64, 4, 2), (32, 32, 8, 1)),
}


# ---- Parts of the kernels -------------------------------------------------------------------------------------------
# `queries` and `keys` are the indices of a tile's rows and columns, of shapes that broadcast. Functions return at
# their ends only: Triton also compiles what is behind an `if` of constants that returns.


@jit
def _offset(example, head, length, num_heads, HEAD_DIM: tl.constexpr):
    """Where the vectors of a head begin in (batch, length, heads, head size)."""
    return (tl.cast(example, tl.int64) * length * num_heads + head) * HEAD_DIM


@jit
def _load_rows(
    pointer,
    start,
    length,
    num_heads,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    EVEN: tl.constexpr,
):
    """ROWS vectors of a head from the one at `start` on, (ROWS, BLOCK_D), 0 behind `length` and HEAD_DIM."""
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK_D)[None, :]
    stride = num_heads * HEAD_DIM
    pointers = pointer + tl.cast(start, tl.int64) * stride + rows * stride + columns
    if EVEN and HEAD_DIM == BLOCK_D:
        values = tl.load(pointers)
    else:
        values = tl.load(pointers, mask=(rows < length - start) & (columns < HEAD_DIM), other=0.0)
    return values


@jit
def _store_rows(
    pointer, values, start, length, num_heads, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK_D: tl.constexpr
):
    rows = tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK_D)[None, :]
    stride = num_heads * HEAD_DIM
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
def _query_codes(mask, queries, query_length, key_length):
    """
    For each query its segment and group in one number, which bits of it a key must share, and its position. `mask`
    (3, Q + K) belongs to one example. Queries behind the end, where nothing is stored, are as the last one.
    """
    queries = tl.minimum(queries, query_length - 1)
    tokens = query_length + key_length
    segment = tl.load(mask + queries)
    group = tl.load(mask + tokens + queries)
    position = tl.load(mask + 2 * tokens + queries)
    code = (segment << 16) | tl.maximum(group, 0)
    bits = tl.where(segment > 0, 0x7FFF0000, 0) | tl.where(group >= 0, 0xFFFF, 0) | PADDING_BIT
    return code, bits, position


@jit
def _key_codes(mask, keys, query_length, key_length):
    """For each key 16 bits of group, 15 of segment, one that says that no query attends to it; and its position."""
    inside = keys < key_length
    tokens = query_length + key_length
    segment = tl.load(mask + query_length + keys, mask=inside, other=-1)
    group = tl.load(mask + tokens + query_length + keys, mask=inside, other=0)
    position = tl.load(mask + 2 * tokens + query_length + keys, mask=inside, other=0)
    code = tl.where(segment < 0, PADDING_BIT, (segment << 16) | group)
    return code, position


@jit
def _exclude(scores, query_codes, key_codes):
    """The scores of a tile, -inf where a query does not attend to a key: two instructions a score."""
    shared = ((query_codes[0] ^ key_codes[0]) & query_codes[1]) == 0
    return tl.where(shared & (key_codes[1] <= query_codes[2]), scores, float("-inf"))


@jit
def _scores(
    rows,
    columns,
    bias,
    queries,
    keys,
    query_codes,
    key_codes,
    query_length,
    key_length,
    has_tokens,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
):
    """
    The scores of a tile: products of vectors, added to biases. `has_tokens` is always true, but the compiler does not
    know. It copies vectors to shared memory some iterations ahead, but not what is loaded in a branch. For biases that
    copy would be slow and large, since a tile has few different ones.
    """
    scores = tl.zeros([rows.shape[0], columns.shape[0]], tl.float32)
    if has_tokens:
        scores = _load_bias(bias, queries, keys, query_length, key_length, EVEN)
    return _exclude(tl.dot(rows, tl.trans(columns), scores, input_precision=PRECISION), query_codes, key_codes)


@jit
def _key_range(mask, start, query_length, key_length, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """
    Where the tiles of the ROWS queries from `start` on begin and end. Segments (padding, other examples of the row)
    and positions bound the keys that they attend to.
    """
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
    return first // COLUMNS * COLUMNS, last


@jit
def _query_range(mask, start, query_length, key_length, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The same for the ROWS keys from `start` on, whose tiles are COLUMNS queries wide."""
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
    return first // COLUMNS * COLUMNS, last


# ---- The kernels ----------------------------------------------------------------------------------------------------
# One program has a block of queries (or of keys) of one head of one example. Vectors are (batch, length, heads, head
# size) in memory, as the layers around attention have them.


@jit
def _forward_kernel(
    query,
    key,
    value,
    bias,
    mask,
    out,
    logsumexp,
    num_heads,
    query_length,
    key_length,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
):
    EVEN: tl.constexpr = EVEN_QUERIES and EVEN_KEYS
    num_blocks = tl.cdiv(query_length, BLOCK_Q)
    start = tl.program_id(0) % num_blocks * BLOCK_Q
    index = tl.cast(tl.program_id(0) // num_blocks, tl.int64)
    example, head = index // num_heads, index % num_heads
    query += _offset(example, head, query_length, num_heads, HEAD_DIM)
    key += _offset(example, head, key_length, num_heads, HEAD_DIM)
    value += _offset(example, head, key_length, num_heads, HEAD_DIM)
    out += _offset(example, head, query_length, num_heads, HEAD_DIM)
    mask += example * 3 * (query_length + key_length)
    bias += head * (query_length + key_length - 1)
    logsumexp += index * query_length

    row = start + tl.arange(0, BLOCK_Q)
    queries = row[:, None]
    q = _load_rows(query, start, query_length, num_heads, HEAD_DIM, BLOCK_Q, BLOCK_D, EVEN_QUERIES)
    query_codes = _query_codes(mask, queries, query_length, key_length)
    largest = tl.full([BLOCK_Q], float("-inf"), tl.float32)  # in units of log 2, as is what exp2 wants
    total = tl.zeros([BLOCK_Q], tl.float32)
    values = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)

    first, last = _key_range(mask, start, query_length, key_length, BLOCK_Q, BLOCK_K)
    for key_start in range(first, last, BLOCK_K):
        keys = (key_start + tl.arange(0, BLOCK_K))[None, :]
        k = _load_rows(key, key_start, key_length, num_heads, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS)
        v = _load_rows(value, key_start, key_length, num_heads, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS)
        key_codes = _key_codes(mask, keys, query_length, key_length)
        scores = _scores(
            q,
            k,
            bias,
            queries,
            keys,
            query_codes,
            key_codes,
            query_length,
            key_length,
            key_start < key_length,
            PRECISION,
            EVEN,
        )

        new_largest = tl.maximum(largest, tl.max(scores, 1) * LOG2_E)
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # no key yet: exp2(-inf - 0) is 0
        weights = tl.exp2(tl.fma(scores, LOG2_E, -shift[:, None]))
        correction = tl.exp2(largest - shift)
        total = total * correction + tl.sum(weights, 1)
        values = tl.dot(weights.to(v.dtype), v, values * correction[:, None], input_precision=PRECISION)
        largest = new_largest

    values = values / tl.where(total == 0, 1.0, total)[:, None]
    _store_rows(out, values, start, query_length, num_heads, HEAD_DIM, BLOCK_Q, BLOCK_D)
    # +inf for a query without any key: the weights of the backward pass, exp2(score - logsumexp), are 0.
    tl.store(logsumexp + row, tl.where(total == 0, float("inf"), largest + tl.log2(total)), mask=row < query_length)


@jit
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
    num_heads,
    query_length,
    key_length,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
):
    """
    Also stores `delta`, the product of each output with its gradient, for the next kernels. It is summed from weights
    and their gradients, which are not rounded. Rounded outputs have the same error for all keys of a query, so they
    would double the error of the bias gradient. This kernel knows the sum only at its end. Until then it subtracts the
    product with rounded outputs; in half precision, it adds the difference times the mean key at the end.
    """
    EVEN: tl.constexpr = EVEN_QUERIES and EVEN_KEYS
    IS_ROUNDED: tl.constexpr = out.dtype.element_ty != tl.float32
    num_blocks = tl.cdiv(query_length, BLOCK_Q)
    start = tl.program_id(0) % num_blocks * BLOCK_Q
    index = tl.cast(tl.program_id(0) // num_blocks, tl.int64)
    example, head = index // num_heads, index % num_heads
    offset = _offset(example, head, query_length, num_heads, HEAD_DIM)
    query += offset
    out += offset
    out_gradient += offset
    query_gradient += offset
    key += _offset(example, head, key_length, num_heads, HEAD_DIM)
    value += _offset(example, head, key_length, num_heads, HEAD_DIM)
    mask += example * 3 * (query_length + key_length)
    bias += head * (query_length + key_length - 1)
    logsumexp += index * query_length
    delta += index * query_length

    row = start + tl.arange(0, BLOCK_Q)
    queries = row[:, None]
    q = _load_rows(query, start, query_length, num_heads, HEAD_DIM, BLOCK_Q, BLOCK_D, EVEN_QUERIES)
    o = _load_rows(out, start, query_length, num_heads, HEAD_DIM, BLOCK_Q, BLOCK_D, EVEN_QUERIES)
    do = _load_rows(out_gradient, start, query_length, num_heads, HEAD_DIM, BLOCK_Q, BLOCK_D, EVEN_QUERIES)
    deltas = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    exact_deltas = tl.zeros([BLOCK_Q], tl.float32)
    log_total = tl.load(logsumexp + row, mask=row < query_length, other=float("inf"))
    query_codes = _query_codes(mask, queries, query_length, key_length)
    dq = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    mean_key = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)

    first, last = _key_range(mask, start, query_length, key_length, BLOCK_Q, BLOCK_K)
    for key_start in range(first, last, BLOCK_K):
        keys = (key_start + tl.arange(0, BLOCK_K))[None, :]
        k = _load_rows(key, key_start, key_length, num_heads, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS)
        v = _load_rows(value, key_start, key_length, num_heads, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS)
        key_codes = _key_codes(mask, keys, query_length, key_length)
        scores = _scores(
            q,
            k,
            bias,
            queries,
            keys,
            query_codes,
            key_codes,
            query_length,
            key_length,
            key_start < key_length,
            PRECISION,
            EVEN,
        )
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
    _store_rows(query_gradient, dq, start, query_length, num_heads, HEAD_DIM, BLOCK_Q, BLOCK_D)


@jit
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
    num_heads,
    query_length,
    key_length,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
):
    """Tiles are (keys, queries): the weights are transposed as the products want them."""
    EVEN: tl.constexpr = EVEN_QUERIES and EVEN_KEYS
    num_blocks = tl.cdiv(key_length, BLOCK_K)
    start = tl.program_id(0) % num_blocks * BLOCK_K
    index = tl.cast(tl.program_id(0) // num_blocks, tl.int64)
    example, head = index // num_heads, index % num_heads
    query += _offset(example, head, query_length, num_heads, HEAD_DIM)
    out_gradient += _offset(example, head, query_length, num_heads, HEAD_DIM)
    offset = _offset(example, head, key_length, num_heads, HEAD_DIM)
    key += offset
    value += offset
    key_gradient += offset
    value_gradient += offset
    mask += example * 3 * (query_length + key_length)
    bias += head * (query_length + key_length - 1)
    logsumexp += index * query_length
    delta += index * query_length

    keys = (start + tl.arange(0, BLOCK_K))[:, None]
    k = _load_rows(key, start, key_length, num_heads, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS)
    v = _load_rows(value, start, key_length, num_heads, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS)
    key_codes = _key_codes(mask, keys, query_length, key_length)
    dk = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)

    first, last = _query_range(mask, start, query_length, key_length, BLOCK_K, BLOCK_Q)
    for query_start in range(first, last, BLOCK_Q):
        row = query_start + tl.arange(0, BLOCK_Q)
        queries = row[None, :]
        q = _load_rows(query, query_start, query_length, num_heads, HEAD_DIM, BLOCK_Q, BLOCK_D, EVEN_QUERIES)
        do = _load_rows(out_gradient, query_start, query_length, num_heads, HEAD_DIM, BLOCK_Q, BLOCK_D, EVEN_QUERIES)
        log_total = tl.load(logsumexp + row, mask=row < query_length, other=float("inf"))
        deltas = tl.load(delta + row, mask=row < query_length, other=0.0)
        query_codes = _query_codes(mask, queries, query_length, key_length)
        scores = _scores(
            k,
            q,
            bias,
            queries,
            keys,
            query_codes,
            key_codes,
            query_length,
            key_length,
            query_start < query_length,
            PRECISION,
            EVEN,
        )
        weights = tl.exp2(tl.fma(scores, LOG2_E, -log_total[None, :]))
        dv = tl.dot(weights.to(do.dtype), do, dv, input_precision=PRECISION)
        weight_gradient = tl.dot(v, tl.trans(do), input_precision=PRECISION)
        score_gradient = weights * (weight_gradient - deltas[None, :])
        dk = tl.dot(score_gradient.to(q.dtype), q, dk, input_precision=PRECISION)

    _store_rows(key_gradient, dk, start, key_length, num_heads, HEAD_DIM, BLOCK_K, BLOCK_D)
    _store_rows(value_gradient, dv, start, key_length, num_heads, HEAD_DIM, BLOCK_K, BLOCK_D)


@jit
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
    batch_size,
    part_size,
    num_heads,
    query_length,
    key_length,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
):
    """
    The gradient of a tile's scores, summed over `part_size` examples of the batch, into (parts, heads, queries, keys).
    """
    EVEN: tl.constexpr = EVEN_QUERIES and EVEN_KEYS
    key_blocks = tl.cdiv(key_length, BLOCK_K)
    query_blocks = tl.cdiv(query_length, BLOCK_Q)
    program = tl.program_id(0)
    key_start = program % key_blocks * BLOCK_K
    query_start = program // key_blocks % query_blocks * BLOCK_Q
    index = tl.cast(program // (key_blocks * query_blocks), tl.int64)
    part, head = index // num_heads, index % num_heads
    bias += head * (query_length + key_length - 1)

    row = query_start + tl.arange(0, BLOCK_Q)
    queries = row[:, None]
    keys = (key_start + tl.arange(0, BLOCK_K))[None, :]
    biases = _load_bias(bias, queries, keys, query_length, key_length, EVEN)
    sums = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)

    first = part * part_size
    for example in range(first, tl.minimum(first + part_size, batch_size)):
        query_offset = _offset(example, head, query_length, num_heads, HEAD_DIM)
        key_offset = _offset(example, head, key_length, num_heads, HEAD_DIM)
        q = _load_rows(
            query + query_offset, query_start, query_length, num_heads, HEAD_DIM, BLOCK_Q, BLOCK_D, EVEN_QUERIES
        )
        do = _load_rows(
            out_gradient + query_offset, query_start, query_length, num_heads, HEAD_DIM, BLOCK_Q, BLOCK_D, EVEN_QUERIES
        )
        k = _load_rows(key + key_offset, key_start, key_length, num_heads, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS)
        v = _load_rows(value + key_offset, key_start, key_length, num_heads, HEAD_DIM, BLOCK_K, BLOCK_D, EVEN_KEYS)
        rows = (example * num_heads + head) * query_length + row
        log_total = tl.load(logsumexp + rows, mask=row < query_length, other=float("inf"))
        deltas = tl.load(delta + rows, mask=row < query_length, other=0.0)
        own_mask = mask + example * 3 * (query_length + key_length)
        query_codes = _query_codes(own_mask, queries, query_length, key_length)
        key_codes = _key_codes(own_mask, keys, query_length, key_length)
        scores = _exclude(tl.dot(q, tl.trans(k), biases, input_precision=PRECISION), query_codes, key_codes)
        weights = tl.exp2(tl.fma(scores, LOG2_E, -log_total[:, None]))
        weight_gradient = tl.dot(do, tl.trans(v), input_precision=PRECISION)
        sums += weights * (weight_gradient - deltas[:, None])

    score_gradient += index * query_length * key_length
    inside = (queries < query_length) & (keys < key_length)
    tl.store(score_gradient + tl.cast(queries, tl.int64) * key_length + keys, sums, mask=inside)


# ---- The operators --------------------------------------------------------------------------------------------------
# Python sees tensors of shape (batch, heads, length, head size), with the memory of (batch, length, heads, head size).


def _forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the logarithm to base 2 of the sum of the exponentials of the scores, (B, H, Q) float32."""
    query, key, value = map(_in_order, (query, key, value))
    out, logsumexp = _empty_outputs(query, key, value, bias, mask)
    batch_size, num_heads, query_length, _ = query.shape
    constants, warps = _constants("forward", query, key)
    programs = batch_size * num_heads * triton.cdiv(query_length, constants["BLOCK_Q"])
    inputs = query, key, value, bias.float().contiguous(), mask.contiguous()
    _launch(_forward_kernel, programs, *inputs, out, logsumexp, *_sizes(query, key), **constants, **warps)
    return out, logsumexp


def _backward(
    out_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    mask: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    needs_bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out_gradient, query, key, value, out = map(_in_order, (out_gradient, query, key, value, out))
    query_gradient, key_gradient, value_gradient = map(_empty_in_order, (query, key, value))
    bias_gradient, delta = torch.zeros_like(bias, dtype=torch.float32), torch.empty_like(logsumexp)
    batch_size, num_heads, query_length, _ = query.shape
    key_length = key.shape[2]
    inputs, sizes = (query, key, value, bias.float().contiguous(), mask.contiguous()), _sizes(query, key)

    constants, warps = _constants("query_gradient", query, key)
    programs = batch_size * num_heads * triton.cdiv(query_length, constants["BLOCK_Q"])
    tensors = *inputs, out, logsumexp, out_gradient, query_gradient, delta
    _launch(_query_gradient_kernel, programs, *tensors, *sizes, **constants, **warps)

    constants, warps = _constants("key_value_gradient", query, key)
    programs = batch_size * num_heads * triton.cdiv(key_length, constants["BLOCK_K"])
    tensors = *inputs, logsumexp, out_gradient, delta, key_gradient, value_gradient
    _launch(_key_value_gradient_kernel, programs, *tensors, *sizes, **constants, **warps)

    if needs_bias_gradient:
        constants, warps = _constants("score_gradient", query, key)
        tiles = triton.cdiv(query_length, constants["BLOCK_Q"]) * triton.cdiv(key_length, constants["BLOCK_K"])
        part_size = triton.cdiv(batch_size, triton.cdiv(BIAS_GRADIENT_PROGRAMS, num_heads * tiles))
        parts = triton.cdiv(batch_size, part_size)
        score_gradient = bias_gradient.new_empty(parts, num_heads, query_length, key_length)
        tensors = *inputs, logsumexp, out_gradient, delta, score_gradient
        programs = parts * num_heads * tiles
        _launch(_score_gradient_kernel, programs, *tensors, batch_size, part_size, *sizes, **constants, **warps)
        bias_gradient = _diagonal_sums(score_gradient.sum(0))
    return query_gradient, key_gradient, value_gradient, bias_gradient.to(bias.dtype)


def _diagonal_sums(gradient: Tensor) -> Tensor:
    """The gradient of the bias (H, Q + K - 1) from that of the scores (H, Q, K)."""
    num_heads, query_length, key_length = gradient.shape
    # Seen as one shorter, each row stands one further to the right than the row before it.
    padded = torch.nn.functional.pad(gradient.flip(1), (0, query_length)).flatten(1)
    return padded[:, :-query_length].reshape(num_heads, query_length, -1).sum(1)


def _launch(kernel, programs: int, query: Tensor, *arguments, **options) -> None:
    if programs > 0:
        with torch.cuda.device_of(query):  # Triton launches on the current device
            kernel[(programs,)](query, *arguments, enable_fp_fusion=True, **options)


def _constants(kernel: str, query: Tensor, key: Tensor) -> tuple[dict, dict[str, int]]:
    """The constants of a kernel, and its number of warps and stages."""
    block_d = max(16, triton.next_power_of_2(query.shape[3]))
    queries, keys, num_warps, num_stages = TILES[kernel][query.element_size() > 2 or block_d > 64]
    if INTERPRETED:  # which runs a tile after the other in Python: small ones, so that there are several in tests
        queries, keys = 16, 32
    constants = {
        "HEAD_DIM": query.shape[3],
        "BLOCK_D": block_d,
        "PRECISION": "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee",
        "BLOCK_Q": queries,
        "BLOCK_K": keys,
        "EVEN_QUERIES": query.shape[2] % queries == 0,
        "EVEN_KEYS": key.shape[2] % keys == 0,
    }
    return constants, {"num_warps": num_warps, "num_stages": num_stages}


def _sizes(query: Tensor, key: Tensor) -> tuple[int, int, int]:
    return query.shape[1], query.shape[2], key.shape[2]


def _in_order(tensor: Tensor) -> Tensor:
    """The same in the memory order of the kernels. A transposed (batch, length, heads, head size) is not copied."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _empty_in_order(tensor: Tensor) -> Tensor:
    batch_size, num_heads, length, head_dim = tensor.shape
    return tensor.new_empty(batch_size, length, num_heads, head_dim).transpose(1, 2)


def _empty_outputs(query, key, value, bias, mask):
    return _empty_in_order(query), query.new_empty(query.shape[:3], dtype=torch.float32)


def _empty_gradients(out_gradient, query, key, value, bias, *rest):
    return *map(_empty_in_order, (query, key, value)), torch.empty_like(bias)


def _save_for_backward(ctx, inputs, output):
    ctx.save_for_backward(*inputs, *output)


def _gradients(ctx, out_gradient, _):
    return *_attend_backward(out_gradient, *ctx.saved_tensors, ctx.needs_input_grad[3]), None


_attend = torch.library.custom_op("hf_depth::triton", _forward, mutates_args=())
_attend_backward = torch.library.custom_op("hf_depth::triton_backward", _backward, mutates_args=())
_attend.register_fake(_empty_outputs)
_attend_backward.register_fake(_empty_gradients)
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


def depth_triton(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """
    Attention with a compact position bias and a compact mask; see [`register_attention`] for the arguments. A query
    without any key gets 0. In float32, products are in TF32 if `torch.backends.cuda.matmul.fp32_precision` is "tf32".

    Raises:
        `ValueError`: for other dtypes than float32, bfloat16 and float16, large heads, and long rows.
    """
    if triton is None:
        raise ImportError('"depth_triton" needs Triton: `pip install triton`, or use another attn_implementation.')
    head_dim, length = query.shape[3], max(query.shape[2], key.shape[2])
    is_known = query.dtype in (torch.float32, torch.bfloat16, torch.float16)
    if not is_known or head_dim > MAX_HEAD_DIM or length > MAX_LENGTH:
        raise UserError(
            f'"depth_triton" is for float32, bfloat16 and float16, heads of up to {MAX_HEAD_DIM} numbers and rows of '
            f'up to {MAX_LENGTH:,} tokens. It got {query.dtype}, {head_dim} and {length:,}: use "sdpa".'
        )
    return _attend(query, key, value, bias, mask)[0]
