"""
"depth_flex": attention of T5 and DEPTH by torch's flex_attention, with a compact position bias and a compact mask.

The gradient of the bias is added up atomically, in an order that varies. Torch has no backward pass on a CPU.
"""

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers.integrations.flex_attention import compile_friendly_flex_attention

from .attention import expand_bias
from .masks import ANY_GROUP, ANY_SEGMENT, PADDING_SEGMENT

BLOCK_SIZE = 128  # queries and keys of a block, which is computed or skipped; torch's default


def depth_flex(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.IntTensor,
) -> torch.Tensor:
    """Attention with a compact position bias and a compact mask; see [`register_attention`] for the arguments."""
    query_length, key_length = query.shape[2], key.shape[2]
    # One number per pair of a query and a key: the atomic additions to their gradients meet once per example.
    dense = _stored(expand_bias(bias, key_length)[0])  # (heads, queries, keys)
    mask = _stored(mask)

    def add_bias(score, batch_idx, head_idx, q_idx, kv_idx):
        return score + dense[head_idx, q_idx, kv_idx]

    # Compiled, unless all of the model is: the plain function holds the scores of the whole batch.
    attend = flex_attention if query.device.type == "cpu" else compile_friendly_flex_attention
    return attend(query, key, value, score_mod=add_bias, block_mask=flex_block_mask(mask, query_length), scale=1.0)


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """The same, stored: else inductor computes it for each score, or fails."""
    tensor = tensor.contiguous()
    return tensor.as_strided(tensor.shape, tensor.stride())


def flex_block_mask(mask: torch.IntTensor, query_length: int) -> BlockMask:
    """
    A compact mask as flex_attention wants it. A block is skipped if segments and positions say that no query attends
    to any key. `create_block_mask` would look at each pair of the batch.

    Args:
        mask (`torch.IntTensor` of shape `(batch_size, 1, 3, query_length + key_length)`): of [`compact_mask`].
        query_length (`int`): number of queries.
    """
    segments, groups, positions = mask[:, 0].unbind(dim=1)  # each (B, Q + K)
    key_length = mask.shape[-1] - query_length

    def mask_mod(batch_idx, head_idx, q_idx, kv_idx):
        kv_idx = kv_idx + query_length
        segment, group = segments[batch_idx, q_idx], groups[batch_idx, q_idx]
        key_segment = segments[batch_idx, kv_idx]
        same_segment = (segment == key_segment) | ((segment == ANY_SEGMENT) & (key_segment != PADDING_SEGMENT))
        same_group = (group == ANY_GROUP) | (group == groups[batch_idx, kv_idx])
        return same_segment & same_group & (positions[batch_idx, kv_idx] <= positions[batch_idx, q_idx])

    # For each block of queries (B, blocks, 1) and for each block of keys (B, 1, blocks).
    lowest = _blocks(segments[:, :query_length], "amin")[..., None]
    highest = _blocks(segments[:, :query_length], "amax")[..., None]
    latest = _blocks(positions[:, :query_length], "amax")[..., None]
    key_segments = segments[:, query_length:]
    no_padding = torch.where(key_segments == PADDING_SEGMENT, torch.iinfo(torch.int32).max, key_segments)
    key_lowest = _blocks(no_padding, "amin")[:, None]
    key_highest = _blocks(key_segments, "amax")[:, None]
    earliest = _blocks(positions[:, query_length:], "amin")[:, None]
    possible = (key_highest >= lowest) & ((key_lowest <= highest) | (lowest == ANY_SEGMENT)) & (earliest <= latest)
    possible = possible[:, None]  # (B, 1, blocks of queries, blocks of keys)
    return BlockMask.from_kv_blocks(
        possible.sum(dim=-1, dtype=torch.int32),
        possible.int().argsort(dim=-1, descending=True, stable=True).int(),
        BLOCK_SIZE=BLOCK_SIZE,
        mask_mod=mask_mod,
        seq_lengths=(query_length, key_length),
    )


def _blocks(values: torch.Tensor, reduction: str) -> torch.Tensor:
    """The least ("amin") or greatest ("amax") of each block of numbers (B, L): (B, blocks)."""
    missing = -values.shape[-1] % BLOCK_SIZE
    if missing:
        values = torch.cat((values, values[:, -1:].expand(-1, missing)), dim=-1)
    return getattr(values.unflatten(-1, (-1, BLOCK_SIZE)), reduction)(dim=-1)
