"""
"depth_sdpa": attention of T5 and DEPTH in plain torch, a few examples at a time, on any device.

The forward pass is torch's own, on parts of the batch. The backward pass computes the weights anew from queries and
keys, so that nothing of (B, H, Q, K) is saved, and sums the gradient of the position bias over the batch as it goes:
torch would need a bias, and a gradient of it, for each example. On a CPU a part is as many examples as have scores
(H, Q, K) that stay in the cache; a long example is a part by itself, or each segment of it if it is a packed row, and
padding at its ends is left out; the backward pass takes some of its heads at a time.

Imports only torch and the files beside it: the Hub ships it with the model's code.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from .attention_depth import expand_bias
from .masking_depth import ANY_GROUP, ANY_SEGMENT, PADDING_SEGMENT, expand_mask
from .matmul_depth import onednn, suits_onednn
from .operators_depth import attention_flops, attention_gradient_flops, counts_flops, operator_name

# Scores (H, Q, K) of as many examples are there at once, on a device other than a CPU: 256 MiB in float32.
MAX_SCORES = 2**26
# The same on a CPU, where they should stay in the cache: 2 MiB. Longer examples come one by one, and in the backward
# pass, which has two matrices of them, as many heads at a time as have half of it for each thread.
MAX_CPU_SCORES = 2**19
# On a CPU, queries are taken segment by segment, unless there are more of them in a row.
MAX_BLOCKS = 16
# On a CPU, what follows from so many masks is kept (a step has three), of masks of so many pairs of tokens at most.
MAX_PLANS, MAX_KEPT = 4, 2**22

# By the shape of the queries and the number of keys: the mask, and what follows from it.
_plans: dict[tuple[torch.Size, int], tuple[torch.Tensor, tuple[bool, bool, tuple["_Part", ...]]]] = {}


@torch.library.custom_op(operator_name("attend", __name__), mutates_args=())
def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
) -> torch.Tensor:
    output = _empty_like(query)
    for part, added in _parts(query, key, bias, mask, is_causal):
        of_queries, of_keys = (part.examples, slice(None), part.queries), (part.examples, slice(None), part.keys)
        if added is not None and not _on_cpu(query):
            added = added.to(query.dtype)  # kernels for CPUs also take one that is not rounded
        with _fastest_products(query, part, query.dtype):
            attended = nn.functional.scaled_dot_product_attention(
                query[of_queries], key[of_keys], value[of_keys], attn_mask=added, scale=1.0
            )
        output[of_queries] = attended if part.has_no_key is None else attended.masked_fill(part.has_no_key, 0)
    return output


@_attend.register_fake
def _(query, key, value, bias, mask, is_causal):
    return _empty_like(query)


@torch.library.custom_op(operator_name("attend_backward", __name__), mutates_args=())
def _attend_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of query, key, value and bias."""
    grad_query, grad_key, grad_value, grad_bias = grads = _empty_gradients(query, key, value, bias)
    accumulated = torch.promote_types(query.dtype, torch.float32)
    # Products of bfloat16 matrices are slower than those of float32 on most CPUs, and faster elsewhere.
    operands = accumulated if _on_cpu(query) else query.dtype
    bias_scores = None
    if bias.dim() == 2:
        bias_scores = query.new_zeros(*query.shape[1:3], key.shape[2], dtype=accumulated)
    grad_key.zero_()
    grad_value.zero_()
    buffers = {}
    for part, heads, added in _parts_by_heads(query, key, bias, mask, is_causal):
        of_queries, of_keys = (part.examples, heads, part.queries), (part.examples, heads, part.keys)
        parts = [query[of_queries], key[of_keys], value[of_keys], grad[of_queries]]
        shape = (*parts[0].shape[:3], parts[1].shape[2])
        if part.has_no_key is not None:
            parts[3] = parts[3].masked_fill(part.has_no_key, 0)
        q, k, v, g = (tensor.to(operands).flatten(0, 1) for tensor in parts)
        with _fastest_products(query, part, operands):
            weights = _product("weights", q, k.mT, buffers, accumulated)
            if added is not None:
                weights.view(shape).add_(added)
            torch.softmax(weights, dim=-1, out=weights)
            # `bmm`, since `@` copies the transposed matrix of a single head for oneDNN, which takes longer than both.
            grad_value[of_keys] += torch.bmm(weights.to(operands).mT, g).view(parts[2].shape)
            scores = _product("scores", g, v.mT, buffers, accumulated)
            torch._softmax_backward_data(scores, weights, -1, accumulated, grad_input=scores)
            if bias_scores is not None:
                sums = scores if shape[0] == 1 else scores.view(shape).sum(0)
                bias_scores[heads, part.queries, part.keys].add_(sums)
            scores = scores.to(operands)
            grad_query[of_queries] = torch.bmm(scores, k).view(parts[0].shape)
            grad_key[of_keys] += torch.bmm(scores.mT, q).view(parts[1].shape)
    if bias_scores is not None:
        grad_bias.copy_(_sums_of_diagonals(bias_scores))
    return grads


@_attend_backward.register_fake
def _(grad, query, key, value, bias, mask, is_causal):
    return _empty_gradients(query, key, value, bias)


def _save_for_backward(ctx, inputs, output):
    *tensors, ctx.is_causal = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx, grad):
    return *_attend_backward(grad, *ctx.saved_tensors, ctx.is_causal), None, None


_attend.register_autograd(_backward, setup_context=_save_for_backward)
counts_flops(operator_name("attend", __name__))(attention_flops)
counts_flops(operator_name("attend_backward", __name__))(attention_gradient_flops)


def _fastest_products(query, part, dtype):
    """Within it, queries and keys of a part are multiplied, in `dtype`, by the fastest library."""
    lengths = (each.stop - each.start for each in (part.queries, part.keys))
    return onednn(suits_onednn(query.device, dtype, *lengths, query.shape[3]))


def _on_cpu(tensor):
    return tensor.device.type == "cpu"


def _empty_like(tensor):
    """An empty (B, H, L, D) in the order of memory that the model wants, (B, L, H, D)."""
    return tensor.new_empty(tensor.transpose(1, 2).shape).transpose(1, 2)


def _empty_gradients(query, key, value, bias):
    return *map(_empty_like, (query, key, value)), bias.new_empty(bias.shape)


def _product(name, left, right, buffers, dtype):
    """The product of batches of matrices, in a buffer that is used again: fresh memory takes its time."""
    shape = (*left.shape[:2], right.shape[2])
    size = shape[0] * shape[1] * shape[2]
    if name not in buffers or buffers[name].numel() < size:
        buffers[name] = left.new_empty(size, dtype=dtype)
    buffer = buffers[name][:size].view(shape)
    return torch.bmm(left, right, out=buffer) if left.dtype == dtype else buffer.copy_(torch.bmm(left, right))


def _sums_of_diagonals(scores):
    """Of scores (H, Q, K), the sums of what has one distance of query and key: (H, Q + K - 1)."""
    heads, queries, keys = scores.shape
    distances = queries + keys - 1
    sums = scores.new_zeros(heads, distances)
    if scores.numel() == 0:
        return sums
    size = min(heads, max(1, MAX_CPU_SCORES // (queries * distances))) if _on_cpu(scores) else heads
    skewed = scores.new_zeros(size, queries, distances)  # has one distance in each column, of some heads after others
    diagonals = skewed.as_strided((size, queries, keys), (queries * distances, distances - 1, 1), queries - 1)
    for some_sums, some_scores in zip(sums.split(size), scores.split(size), strict=True):
        diagonals[: len(some_scores)] = some_scores
        torch.sum(skewed[: len(some_scores)], dim=1, out=some_sums)
    return sums


@dataclass(frozen=True)
class _Part:
    """
    Of which examples, queries and keys the scores are computed at a time. `restricted` are those of the queries that
    may not attend to all of the keys, `None` for all queries; `penalty` (examples, 1, restricted, keys) is -inf where
    they may not, and else 0, `None` if there are none; `has_no_key` (examples, 1, queries, 1) says which queries have
    no key at all, `None` if each is known to have one. The penalty of a query without keys is 0: its weights are
    finite, and its output does not count.
    """

    examples: slice
    queries: slice
    keys: slice
    restricted: torch.Tensor | None = None
    penalty: torch.Tensor | None = None
    has_no_key: torch.Tensor | None = None


def _parts_by_heads(query, key, bias, mask, is_causal) -> Iterator[tuple[_Part, slice, torch.Tensor | None]]:
    """
    Yields the parts, of long examples on a CPU several times: with some of the heads each time, and what is added to
    the scores of these, which may be overwritten for the next part.
    """
    heads = query.shape[1]
    for part, added in _parts(query, key, bias, mask, is_causal):
        scores = (part.queries.stop - part.queries.start) * (part.keys.stop - part.keys.start)
        is_long = _on_cpu(query) and heads * scores > MAX_CPU_SCORES
        size = max(1, MAX_CPU_SCORES // 2 * torch.get_num_threads() // scores if is_long else heads)
        for start in range(0, heads, size):
            of_heads = slice(start, start + size)
            yield part, of_heads, added if added is None or added.shape[1] == 1 else added[:, of_heads]


def _parts(query, key, bias, mask, is_causal) -> Iterator[tuple[_Part, torch.Tensor | None]]:
    """
    Yields the parts of the scores, and what is added to each: (examples or 1, heads or 1, queries, keys), which may be
    overwritten for the next part.
    """
    queries, keys = query.shape[2], key.shape[2]
    added = expand_bias(bias, queries, keys)
    mask = None if query.numel() == 0 else mask
    is_causal, is_masked, parts = _planned(mask, query.shape[:3], keys, is_causal, _on_cpu(query))
    if added is None and (is_causal or is_masked):
        added = query.new_zeros(1, 1, queries, keys)
    if added is not None:  # always new memory, which may be changed: `expand_bias` copies
        added = added.to(torch.promote_types(query.dtype, torch.float32))
    if is_causal:
        behind = torch.ones(queries, keys, dtype=torch.bool, device=query.device).triu_(1)
        added = added.masked_fill(behind, -torch.inf)
    for part in parts:
        block = added if added is None else added[..., part.queries, part.keys]
        if part.penalty is None:
            yield part, block
        elif part.restricted is None:
            # A mask of one head, added to the biases of all: to fill those takes much longer.
            yield part, _without_infinities(block + part.penalty, part)
        else:
            before = block.index_select(2, part.restricted)
            block.index_copy_(2, part.restricted, _without_infinities(before + part.penalty, part))
            yield part, block
            block.index_copy_(2, part.restricted, before)


def _without_infinities(added, part):
    """`added`, 0 for queries without a key, which causality may have kept from all of them."""
    if part.has_no_key is None:
        return added
    has_no_key = part.has_no_key if part.restricted is None else part.has_no_key.index_select(2, part.restricted)
    return added.masked_fill_(has_no_key, 0)


def _planned(mask, shape, keys, is_causal, on_cpu):
    """
    Whether attention is causal, whether more is forbidden, and the parts. All layers have the same mask: on a CPU,
    what follows from it is kept until there are other ones. (Compiled graphs write several masks into one memory.)
    """
    if mask is None or not on_cpu:
        return _plan(mask, shape, keys, is_causal, on_cpu)
    name = (shape, keys)
    kept = _plans.get(name)
    if kept is not None and torch.equal(kept[0], mask):
        return kept[1]
    is_causal, is_masked, parts = _plan(mask, shape, keys, is_causal, on_cpu)
    if shape[0] * shape[2] * keys > MAX_KEPT:
        return is_causal, is_masked, parts
    plan = is_causal, is_masked, tuple(parts)
    if len(_plans) >= MAX_PLANS:
        _plans.clear()
    _plans[name] = mask.clone(), plan
    return plan


def _plan(mask, shape, keys, is_causal, on_cpu) -> tuple[bool, bool, Iterable[_Part]]:
    batch_size, heads, queries = shape
    if mask is not None and on_cpu:  # to look at values is free there
        places = torch.arange(queries + keys, dtype=mask.dtype)
        places[queries:] -= queries
        is_causal = torch.equal(mask[:, 0, 2], places.expand(batch_size, -1))
    channels = () if mask is None else _channels(mask, queries)
    if is_causal and channels == (2,):
        channels = ()  # what is added has causality
    size = (MAX_CPU_SCORES if on_cpu else MAX_SCORES) // max(1, heads * queries * keys)
    if on_cpu and channels and size < 2:
        return is_causal, True, _parts_of_examples(mask, queries, channels, is_causal)
    starts = range(0, batch_size, max(1, size))
    examples = [slice(start, start + starts.step) for start in starts]
    everything = slice(0, queries), slice(0, keys)
    if not channels:
        return is_causal, False, [_Part(each, *everything) for each in examples]
    parts = (_Part(each, *everything, None, *_penalty(mask[each], queries, channels)) for each in examples)
    return is_causal, True, parts


def _channels(mask, queries):
    """The channels of a compact mask that keep any query from a key; all of them where values are not looked at."""
    if not _on_cpu(mask):
        return (0, 1, 2)
    of_queries, of_keys = mask[:, 0, :, :queries], mask[:, 0, :, queries:]
    forbids = (
        (of_queries[:, 0] != ANY_SEGMENT).any() or (of_keys[:, 0] == PADDING_SEGMENT).any(),
        (of_queries[:, 1] != ANY_GROUP).any(),
        of_queries[:, 2].amin() < of_keys[:, 2].amax(),
    )
    return tuple(channel for channel, does_forbid in enumerate(forbids) if does_forbid)


def _penalty(mask, queries, channels):
    """-inf where a compact mask forbids, else 0; and which queries have no key, `None` if each is known to."""
    allowed = expand_mask(mask, queries, channels)
    has_no_key = ~allowed.any(dim=-1, keepdim=True)
    if _on_cpu(mask) and not has_no_key.any():
        has_no_key = None
    else:
        allowed = allowed | has_no_key
    penalty = torch.zeros_like(allowed, dtype=torch.float32).masked_fill_(~allowed, -torch.inf)
    return penalty, has_no_key


def _parts_of_examples(mask, queries, channels, is_causal) -> Iterator[_Part]:
    """
    The parts of long examples on a CPU: the queries of one segment, and its keys. Padding at either end is left out,
    and only the queries that are restricted further than by causality have a penalty.
    """
    for index in range(len(mask)):
        example, of_queries, of_keys = (
            slice(index, index + 1),
            mask[index, 0, :, :queries],
            mask[index, 0, :, queries:],
        )
        for rows, columns, is_restricted in _blocks(of_queries, of_keys, is_causal):
            restricted, of_rows = is_restricted.nonzero()[:, 0], of_queries[:, rows]
            if len(restricted) == 0:
                yield _Part(example, rows, columns)
                continue
            is_few = 2 * len(restricted) < len(is_restricted)
            if is_few:
                of_rows = of_rows[:, restricted]
            block_mask = torch.cat((of_rows, of_keys[:, columns]), dim=1)[None, None]
            penalty, has_no_key = _penalty(block_mask, of_rows.shape[1], channels)
            if is_few and has_no_key is not None:
                everywhere = has_no_key.new_zeros(1, 1, len(is_restricted), 1)
                has_no_key = everywhere.index_copy_(2, restricted, has_no_key)
            yield _Part(example, rows, columns, restricted if is_few else None, penalty, has_no_key)


def _blocks(of_queries, of_keys, is_causal):
    """Yields queries, keys, and which of the queries may not attend to all of the keys, causality aside."""
    segments, lengths = torch.unique_consecutive(of_queries[0], return_counts=True)
    if len(segments) > MAX_BLOCKS:
        segments, lengths = segments.new_tensor([ANY_SEGMENT]), [of_queries.shape[1]]
    start = 0
    for segment, length in zip(segments.tolist(), map(int, lengths), strict=True):
        rows = slice(start, start + length)
        start += length
        is_key = of_keys[0] != PADDING_SEGMENT if segment == ANY_SEGMENT else of_keys[0] == segment
        places = is_key.nonzero()[:, 0].tolist() or [0]
        columns = slice(places[0], places[-1] + 1)
        is_restricted = (of_queries[0, rows] != segment) | (of_queries[1, rows] != ANY_GROUP)
        if is_causal:
            is_restricted |= columns.start > rows.start  # else each query has a key, the first one at least
        else:
            is_restricted |= of_queries[2, rows] < of_keys[2, columns].max()
        yield rows, columns, is_restricted | ~is_key[columns].all()


def depth_sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.IntTensor | None,
    is_causal: bool,
) -> torch.Tensor:
    """
    Attention with a compact position bias and a compact mask; see [`register_attention`].

    Args:
        query (`torch.Tensor` of shape `(batch_size, heads, queries, head_size)`)
        key, value (`torch.Tensor` of shape `(batch_size, heads, keys, head_size)`)
        bias (`torch.Tensor` of shape `(heads, queries + keys - 1)` or `(0,)`)
        mask (`torch.IntTensor` of shape `(batch_size or 1, 1, 3, queries + keys)`, *optional*)
        is_causal (`bool`): only without a mask.

    Returns:
        `torch.Tensor` of shape `(batch_size, heads, queries, head_size)`, of the dtype of `query`.
    """
    if mask is not None:
        mask = mask.expand(query.shape[0], -1, -1, -1)  # `len` would fix the batch size of an exported graph
    return _attend(query, key, value, bias, mask, is_causal)
