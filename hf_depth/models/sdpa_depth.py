"""
"depth_sdpa": attention of T5 and DEPTH in plain torch, one example after the other, on any device.

Of the scores of a batch, only those of one example (H, Q, K) are there at a time, on a CPU in its cache. The backward
pass computes them anew from queries, keys and the logarithm of the sum of their exponentials (B, H, Q), as flash
attention does (Dao et al., arXiv 2205.14135), and sums the gradient of the position bias over the batch as it goes.

Imports only torch and the files beside it: the Hub ships it with the model's code.
"""

import torch

from .attention_depth import operator_name
from .masking_depth import expand_mask


@torch.library.custom_op(operator_name("attend", __name__), mutates_args=())
def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output (B, H, Q, D), and the logarithm of the sum of the exponentials of the scores, (B, H, Q) float32."""
    output, log_sums = _empty_outputs(query)
    for index in range(len(query)):
        scores = _scores(query[index], key[index], bias, _of_example(mask, index), is_causal)
        log_sum = scores.logsumexp(dim=-1)
        # A query without any key: the exponentials of all its scores, which are -inf, are then 0.
        log_sum = log_sum.masked_fill(log_sum == -torch.inf, torch.inf)
        weights = scores.sub_(log_sum[..., None]).exp_()
        output[index] = weights @ value[index].float()
        log_sums[index] = log_sum
    return output, log_sums


@_attend.register_fake
def _(query, key, value, bias, mask, is_causal):
    return _empty_outputs(query)


def _empty_outputs(query):
    batch_size, heads, queries, head_size = query.shape
    output = query.new_empty(batch_size, queries, heads, head_size).transpose(1, 2)
    return output, query.new_empty(batch_size, heads, queries, dtype=torch.float32)


@torch.library.custom_op(operator_name("attend_backward", __name__), mutates_args=())
def _attend_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.Tensor | None,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of query, key, value and bias."""
    grads = _empty_gradients(query, key, value, bias)
    grad_query, grad_key, grad_value, grad_bias = grads
    bias_sums = query.new_zeros(*query.shape[1:3], bias.shape[-1], dtype=torch.float32) if bias.dim() == 2 else None
    for index in range(len(query)):
        q, k, v, g = (tensor[index].float() for tensor in (query, key, value, grad))
        weights = _scores(q, k, bias, _of_example(mask, index), is_causal)
        weights = weights.sub_(log_sums[index][..., None]).exp_()
        grad_value[index] = weights.mT @ g
        products = (g * output[index]).sum(-1, keepdim=True)
        grad_scores = weights.mul_((g @ v.mT).sub_(products))
        grad_query[index] = grad_scores @ k
        grad_key[index] = grad_scores.mT @ q
        if bias_sums is not None:
            _diagonals(bias_sums, key.shape[2]).add_(grad_scores)
    if bias_sums is not None:
        grad_bias.copy_(bias_sums.sum(dim=1))
    return grads


@_attend_backward.register_fake
def _(grad, query, key, value, bias, mask, output, log_sums, is_causal):
    return _empty_gradients(query, key, value, bias)


def _empty_gradients(query, key, value, bias):
    in_order = [tensor.new_empty(tensor.transpose(1, 2).shape).transpose(1, 2) for tensor in (query, key, value)]
    return *in_order, bias.new_empty(bias.shape)


def _save_for_backward(ctx, inputs, output):
    query, key, value, bias, mask, ctx.is_causal = inputs
    ctx.save_for_backward(query, key, value, bias, mask, *output)


def _backward(ctx, grad, grad_log_sums):
    return *_attend_backward(grad, *ctx.saved_tensors, ctx.is_causal), None, None


_attend.register_autograd(_backward, setup_context=_save_for_backward)


def _of_example(mask, index):
    return None if mask is None else mask[index : index + 1]


def _scores(query, key, bias, mask, is_causal):
    """The scores (H, Q, K) of one example, float32, -inf where the mask or causality forbids."""
    scores = query.float() @ key.float().mT
    if bias.dim() == 2:
        scores += bias.unfold(-1, key.shape[1], 1).flip(1)
    if mask is not None:
        scores.masked_fill_(~expand_mask(mask, query.shape[1])[0], -torch.inf)
    elif is_causal:
        forbidden = scores.new_ones(scores.shape[1:], dtype=torch.bool).triu_(1)
        scores.masked_fill_(forbidden, -torch.inf)
    return scores


def _diagonals(sums, key_length):
    """
    A view (H, Q, K) of (H, Q, Q + K - 1), in which the entries of one distance of query and key are those of a column.
    """
    heads, queries, distances = sums.shape
    return sums.as_strided((heads, queries, key_length), (queries * distances, distances - 1, 1), queries - 1)


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
        mask (`torch.IntTensor` of shape `(batch_size, 1, 3, queries + keys)`, *optional*)
        is_causal (`bool`): only without a mask.

    Returns:
        `torch.Tensor` of shape `(batch_size, heads, queries, head_size)`, of the dtype of `query`.
    """
    return _attend(query, key, value, bias, mask, is_causal)[0]
