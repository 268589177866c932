"""Masks as three numbers per token. A kernel reads from them, block by block, who attends to whom."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from ..models.modeling_depth import MaskRule

# Numbers that stand for no single segment, group or position.
ANY_SEGMENT, PADDING_SEGMENT, ANY_GROUP, ANY_POSITION = 0, -1, -1, 2**30


def compact_mask(
    rule: MaskRule,
    query_shape: tuple[int, int],
    key_length: int,
    device: torch.device | str,
    query_offset: torch.Tensor | int = 0,
) -> torch.IntTensor:
    """
    A [`MaskRule`] as numbers. It has four axes, so transformers passes it on untouched. A query attends to a key if
    all three channels say so:

    - 0, segment: a query of segment `s >= 1` attends to the keys of that segment, a query of segment 0 to all. A key
      of segment -1 is padding: no query attends to it.
    - 1, group: a query of group `g >= 0` attends to the keys of that group, a query of group -1 to all.
    - 2, position: a query attends to keys at its own position or before it.

    Args:
        rule ([`MaskRule`]): who attends to whom.
        query_shape (`tuple[int, int]`): batch size and number of queries.
        key_length (`int`): number of keys.
        device (`torch.device`): where the mask is needed.
        query_offset (`torch.Tensor` or `int`): index of the first query among the keys. It is also the index in the
            segments and groups of the rule, if these have more numbers than queries.

    Returns:
        `torch.IntTensor` of shape `(batch_size, 1, 3, query_length + key_length)`: the queries, then the keys.
    """
    batch_size, query_length = query_shape
    places = torch.arange(query_length, dtype=torch.int32, device=device) + query_offset
    key_places = torch.arange(key_length, dtype=torch.int32, device=device)

    def channel(queries, keys):
        if queries.shape[-1] != query_length:  # those of the queries before these are in a cache
            queries = queries[..., places]
        parts = [part.to(device, torch.int32).expand(batch_size, -1) for part in (queries, keys)]
        return torch.cat(parts, dim=-1)

    any_key = torch.zeros_like(key_places)
    segments, key_segments = rule.segments or (torch.full_like(places, ANY_SEGMENT), any_key)
    if rule.padding is not None:
        key_segments = torch.where(rule.padding, key_segments, PADDING_SEGMENT)
    channels = [
        channel(segments, key_segments),
        channel(*(rule.groups or (torch.full_like(places, ANY_GROUP), any_key))),
        channel(places if rule.is_causal else torch.full_like(places, ANY_POSITION), key_places),
    ]
    return torch.stack(channels, dim=1)[:, None]


def is_compact(mask: Any) -> bool:
    """Whether a mask is one of [`compact_mask`]. Dense masks are boolean or floating-point."""
    return isinstance(mask, torch.Tensor) and mask.dtype == torch.int32 and mask.dim() == 4 and mask.shape[2] == 3


def expand_mask(mask: torch.IntTensor, query_length: int) -> torch.BoolTensor:
    """
    A compact mask `(batch_size, 1, 3, query_length + key_length)` as booleans `(batch_size, 1, query_length,
    key_length)`, `True` = may attend: what every kernel must agree with.
    """
    query, key = mask[..., :query_length, None], mask[..., None, query_length:]  # (B, 1, 3, Q, 1), (B, 1, 3, 1, K)
    (segment, group, place), (key_segment, key_group, key_place) = query.unbind(2), key.unbind(2)
    in_segment = (segment == key_segment) | ((segment == ANY_SEGMENT) & (key_segment != PADDING_SEGMENT))
    in_group = (group == key_group) | (group == ANY_GROUP)
    return in_segment & in_group & (key_place <= place)


def mask_for(device_types: Sequence[str]) -> Callable[..., torch.Tensor | None]:
    """
    What transformers calls to make the mask of a kernel. It makes a compact one from a [`MaskRule`], and from the
    causal and bidirectional masks of transformers. For a single query, other masks and other devices, it makes the
    boolean one of sdpa.
    """

    def make(
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: torch.Tensor | int = 0,
        kv_offset: int = 0,
        mask_function: Callable[..., Any] = causal_mask_function,
        attention_mask: torch.Tensor | None = None,
        device: torch.device | str = "cpu",
        **kwargs: Any,
    ) -> torch.Tensor | None:
        rule = mask_function if isinstance(mask_function, MaskRule) else None
        if mask_function in (causal_mask_function, bidirectional_mask_function):
            padding = None
            if attention_mask is not None:
                room = (0, max(0, kv_length - attention_mask.shape[1]))
                padding = nn.functional.pad(attention_mask.to(device, torch.bool), room)[:, :kv_length]
            rule = MaskRule(padding, is_causal=mask_function is causal_mask_function)
        if rule is not None and q_length > 1 and not kv_offset and torch.device(device).type in device_types:
            return compact_mask(rule, (batch_size, q_length), kv_length, device, q_offset)
        return sdpa_mask(
            batch_size,
            q_length,
            kv_length,
            q_offset,
            kv_offset,
            mask_function,
            attention_mask,
            device=device,
            **kwargs,
        )

    return make
