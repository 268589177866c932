"""
Who attends to whom in DEPTH and in rows of several examples: rules as numbers per token, and masks made of them.

Imports only torch, transformers and the configuration beside it: the Hub ships it with the model's code.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import PreTrainedConfig
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    padding_mask_function,
    sdpa_mask,
)

from .configuration_depth import DepthConfig

# Attention implementations of this package, which take compact masks.
COMPACT_IMPLEMENTATIONS = ("depth_sdpa", "depth_triton", "depth_flex")
# What the numbers of a compact mask mean that are no number of a segment, of a group or of a place.
ANY_SEGMENT, PADDING_SEGMENT, ANY_GROUP, ANY_POSITION = 0, -1, -1, 2**30


def is_sentence_token(
    input_ids: torch.LongTensor, config: DepthConfig, attention_mask: torch.Tensor | None = None
) -> torch.BoolTensor:
    """`True` where an id of `input_ids` (any shape) is one of the configuration's sentence tokens, and no padding."""
    first = config.first_sentence_token_id
    sentence_mask = (input_ids >= first) & (input_ids < first + config.num_sentence_tokens)
    if attention_mask is not None and attention_mask.shape == input_ids.shape:
        # Whatever id stands in a padded place, it is no sentence.
        sentence_mask = sentence_mask & attention_mask.to(sentence_mask.device, torch.bool)
    return sentence_mask


def has_sentence_tokens(config: PreTrainedConfig) -> bool:
    """Whether `config` is a DEPTH model's, be its class from this package or from a Hub repository."""
    return hasattr(config, "first_sentence_token_id")


def sentence_token_mask(ids: torch.Tensor, config: PreTrainedConfig) -> torch.BoolTensor:
    """`True` where an id (any shape) is a sentence token of `config`; nowhere if the model has none (plain T5)."""
    if not has_sentence_tokens(config):
        return torch.zeros_like(ids, dtype=torch.bool)
    return is_sentence_token(ids, config)


def own_sentence_groups(
    sentence_mask: torch.BoolTensor, segment_ids: torch.LongTensor | None = None
) -> tuple[torch.LongTensor, torch.LongTensor]:
    """
    Encoder self-attention: a sentence token attends to the tokens of its own sentence, any other token to all.

    The token in front of the first sentence token, its `<eosen>`, belongs to the first sentence. What is before that,
    such as metadata of the text, is no part of any.

    Args:
        sentence_mask (`torch.BoolTensor` of shape `(batch_size, source_length)`): `True` on sentence tokens.
        segment_ids (`torch.LongTensor` of shape `(batch_size, source_length)`, *optional*):
            Several examples in one row: sentences are counted in each of them. Segments keep them apart, see
            [`create_mask`].

    Returns:
        The groups of the queries and those of the keys, both of shape `(batch_size, source_length)`, see
        [`group_mask_function`].
    """
    sentence_index = sentence_mask.cumsum(dim=-1)  # (B, S): the running count of sentence tokens
    if segment_ids is not None:
        at_start = torch.where(is_segment_start(segment_ids), sentence_index - sentence_mask.long(), 0)
        sentence_index = sentence_index - at_start.cummax(dim=-1).values
    is_next = nn.functional.pad(sentence_mask[:, 1:], (0, 1))
    sentence_index = sentence_index + (is_next & (sentence_index == 0))
    return sentence_index.masked_fill(~sentence_mask, ANY_GROUP), sentence_index


def sentence_to_sentence_groups(
    query_mask: torch.BoolTensor,
    key_mask: torch.BoolTensor,
    query_segments: torch.LongTensor | None = None,
    key_segments: torch.LongTensor | None = None,
) -> tuple[torch.LongTensor, torch.LongTensor]:
    """
    Decoder self- and cross-attention: a sentence token attends to sentence tokens, any other token to all.

    Where a row has no sentence token among its keys (a prompt with sentence tokens for an input without), its queries
    attend to all keys: otherwise they would attend to nothing. Of several examples in a row, this is decided for each.

    Args:
        query_mask (`torch.BoolTensor` of shape `(batch_size, query_length)`): `True` on sentence tokens.
        key_mask (`torch.BoolTensor` of shape `(batch_size, key_length)`): `True` on sentence tokens.
        query_segments (`torch.LongTensor` of shape `(batch_size, query_length)`, *optional*):
            Which example of a row each query belongs to.
        key_segments (`torch.LongTensor` of shape `(batch_size, key_length)`, *optional*): the same of the keys.

    Returns:
        The groups of the queries, `(batch_size, query_length)`, and those of the keys, `(batch_size, key_length)`, see
        [`group_mask_function`].
    """
    if query_segments is None:
        has_keys = key_mask.any(dim=-1, keepdim=True)  # (B, 1)
    else:
        number = key_mask.shape[1]  # no row has more segments than tokens
        counts = key_mask.new_zeros(len(key_mask), number + 1, dtype=torch.long)
        counts = counts.scatter_add(1, key_segments.long().clamp(0, number), key_mask.long())
        counts = counts.expand(len(query_segments), -1)  # one input may have several targets
        has_keys = counts.gather(1, query_segments.long().clamp(0, number)) > 0  # (B, Q)
    return torch.where(query_mask & has_keys, 1, ANY_GROUP), key_mask.long()


def group_mask_function(query_groups: torch.LongTensor, key_groups: torch.LongTensor) -> Callable:
    """
    A query attends to the keys of its own group, a query without a group to all keys.

    Args:
        query_groups (`torch.LongTensor` of shape `(batch_size, query_length)`): -1, or which group it attends to.
        key_groups (`torch.LongTensor` of shape `(batch_size, key_length)`): which group each key is in, from 0.

    Returns:
        A mask function of (batch, head, query, key) indices, `True` = may attend (see `transformers.masking_utils`).
    """

    def mask_function(batch_idx, head_idx, q_idx, kv_idx):
        query = query_groups[batch_idx, q_idx]
        return (query == ANY_GROUP) | (query == key_groups[batch_idx, kv_idx])

    return mask_function


def same_segment_mask_function(query_segments: torch.LongTensor, key_segments: torch.LongTensor) -> Callable:
    """
    Attention among several examples in one row: a token attends to those of its own example alone. Padding attends to
    all: it counts nowhere, and a softmax over nothing would not be finite.

    Args:
        query_segments (`torch.LongTensor` of shape `(batch_size, query_length)`):
            Which example each query belongs to; 0 is padding.
        key_segments (`torch.LongTensor` of shape `(batch_size, key_length)`): the same of the keys.
    """

    def mask_function(batch_idx, head_idx, q_idx, kv_idx):
        query = query_segments[batch_idx, q_idx]
        return (query == ANY_SEGMENT) | (query == key_segments[batch_idx, kv_idx])

    return mask_function


def check_segment_ids(
    encoder_segment_ids: torch.LongTensor | None,
    decoder_segment_ids: torch.LongTensor | None,
    source: torch.Tensor | None,
    target: torch.Tensor | None,
) -> None:
    """
    Check the segment ids of rows that hold several examples: their shapes always, their values on the CPU.

    Args:
        encoder_segment_ids (`torch.LongTensor` of shape `(batch_size, source_length)`)
        decoder_segment_ids (`torch.LongTensor` of shape `(batch_size, target_length)`)
        source (`torch.Tensor` of shape `(batch_size, source_length, ...)`, *optional*): what the encoder gets.
        target (`torch.Tensor` of shape `(batch_size, target_length, ...)`, *optional*): what the decoder gets.

    Raises:
        `ValueError`: naming the argument, if one of them is missing or of another shape or type than the tokens, if
            ids are negative or do not count up, or if the decoder has an example that the encoder has not.
    """
    parts = {
        "encoder_segment_ids": (encoder_segment_ids, source),
        "decoder_segment_ids": (decoder_segment_ids, target),
    }
    for name, (segment_ids, tokens) in parts.items():
        if segment_ids is None:
            raise ValueError(f"`{name}` is missing: a row of several examples needs those of encoder and decoder.")
        if segment_ids.is_floating_point() or segment_ids.dtype == torch.bool:
            raise ValueError(f"`{name}` must be integers, got {segment_ids.dtype}.")
        if tokens is not None and segment_ids.shape != tokens.shape[:2]:
            raise ValueError(
                f"`{name}` must have one id per token, shape {tuple(tokens.shape[:2])}, got the shape "
                f"{tuple(segment_ids.shape)}."
            )
    if torch.compiler.is_compiling() or encoder_segment_ids.device.type != "cpu":
        return
    for name, (segment_ids, _) in parts.items():
        largest_before = nn.functional.pad(segment_ids.cummax(dim=1).values[:, :-1], (1, 0))
        is_known = is_segment_start(segment_ids) & (segment_ids != 0) & (segment_ids <= largest_before)
        if segment_ids.min() < 0 or segment_ids.max() > segment_ids.shape[1] or is_known.any():
            raise ValueError(
                f"`{name}` must count the examples of a row from 1 in the order of the tokens, with 0 on padding. "
                f"They range from {segment_ids.min()} to {segment_ids.max()}"
                f"{', and an example goes on after padding or after another one' if is_known.any() else ''}."
            )
    number = max(encoder_segment_ids.shape[1], decoder_segment_ids.shape[1]) + 1
    has_source = torch.zeros(len(encoder_segment_ids), number, dtype=torch.bool)
    has_source.scatter_(1, encoder_segment_ids.long(), True)
    has_source = has_source.expand(len(decoder_segment_ids), -1)
    has_none = (decoder_segment_ids != 0) & ~has_source.gather(1, decoder_segment_ids.long())
    if has_none.any():
        row, place = has_none.nonzero()[0].tolist()
        raise ValueError(
            f"Row {row} of `decoder_segment_ids` has an example {decoder_segment_ids[row, place]}, of which "
            "`encoder_segment_ids` has no token: it would attend to nothing."
        )


def is_segment_start(segment_ids: torch.LongTensor) -> torch.BoolTensor:
    """Where a segment (or padding) begins: (B, L)."""
    return nn.functional.pad(segment_ids[:, 1:] != segment_ids[:, :-1], (1, 0), value=True)


def create_mask(
    config: PreTrainedConfig,
    attention_mask: torch.Tensor | None,
    query_shape: tuple[int, int],
    key_length: int,
    dtype: torch.dtype,
    device: torch.device,
    query_offset: torch.Tensor | int = 0,
    is_causal: bool = False,
    segments: tuple[torch.LongTensor, torch.LongTensor] | None = None,
    groups: tuple[torch.LongTensor, torch.LongTensor] | None = None,
) -> torch.Tensor | BlockMask:
    """
    The mask of one attention in the form its implementation wants: compact for those of this package, additive for
    eager, boolean for sdpa, blocks for flex_attention.

    `create_causal_mask(and_mask_function=...)` of transformers calls the same registry, but evaluates the function by
    `torch.vmap`: about 5 ms a mask of any size on a CPU, more than a step of `generate()` of a small model. Those here
    only index, so that broadcasting is enough.

    Args:
        config ([`PreTrainedConfig`]): of the encoder or of the decoder.
        attention_mask (`torch.Tensor` of shape `(batch_size, key_length)` or shorter, *optional*):
            Non-zero on tokens that are not padding. A 4-D mask is returned as it is. Of this, and of segments and
            groups, one row stands for all of the batch.
        query_shape (`tuple[int, int]`): batch size and number of queries.
        key_length (`int`): number of keys.
        dtype (`torch.dtype`): of the hidden states.
        device (`torch.device`): of the tokens. That of a parameter may be another one, where weights are offloaded.
        query_offset (`torch.Tensor` or `int`): index of the first query among the keys.
        is_causal (`bool`): a query attends to no key behind it.
        segments (`tuple`, *optional*): of queries and keys, see [`same_segment_mask_function`].
        groups (`tuple`, *optional*): of queries and keys, see [`group_mask_function`]. As in all mask functions, the
            first query is the one at `query_offset`.

    Raises:
        `ValueError`: if `attention_mask` is longer than the keys.
    """
    if is_4d(attention_mask):
        return attention_mask
    batch_size = query_shape[0]
    if attention_mask is not None:
        if attention_mask.shape[1] > key_length:
            name = "decoder_attention_mask" if is_causal else "attention_mask"
            raise ValueError(
                f"`{name}` must have one entry per token, at most {key_length}, got the shape "
                f"{tuple(attention_mask.shape)}: leave out what is behind the tokens."
            )
        attention_mask = pad_to(attention_mask.to(device, torch.bool), key_length).expand(batch_size, -1)
    # One input may have several targets.
    if segments is not None:
        segments = tuple(each.expand(batch_size, -1) for each in segments)
    if groups is not None:
        groups = tuple(each.expand(batch_size, -1) for each in groups)
    if config._attn_implementation in COMPACT_IMPLEMENTATIONS:
        return compact_mask(query_shape, key_length, device, attention_mask, is_causal, segments, groups, query_offset)
    functions = [causal_mask_function] if is_causal else []
    # Of a model that is spread over several devices, the states of the encoder may be on another one than the ids.
    functions += [same_segment_mask_function(*_on(device, segments))] if segments is not None else []
    functions += [group_mask_function(*_on(device, groups))] if groups is not None else []
    functions += [padding_mask_function(attention_mask)] if attention_mask is not None else []
    return ALL_MASK_ATTENTION_FUNCTIONS[config._attn_implementation](
        batch_size=batch_size,
        q_length=query_shape[1],
        kv_length=key_length,
        q_offset=query_offset,
        kv_offset=0,
        mask_function=and_masks(*functions),
        allow_is_causal_skip=False,
        dtype=dtype,
        device=device,
        config=config,
    )


def _on(device: torch.device, tensors: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.to(device) for tensor in tensors]


def compact_mask(
    query_shape: tuple[int, int],
    key_length: int,
    device: torch.device | str,
    padding_mask: torch.BoolTensor | None = None,
    is_causal: bool = False,
    segments: tuple[torch.Tensor, torch.Tensor] | None = None,
    groups: tuple[torch.Tensor, torch.Tensor] | None = None,
    query_offset: torch.Tensor | int = 0,
) -> torch.IntTensor:
    """
    Who attends to whom as three numbers per token, from which the implementations of this package find out, block by
    block, what a mask of `queries x keys` would say. It has four axes, so that transformers passes it on untouched.

    A query attends to a key if all three channels say so:

    - 0, segment: a query of segment `s >= 1` attends to the keys of that segment, a query of segment 0 to those of
      any. A key of segment -1 is padding, to which no query attends.
    - 1, group: a query of group `g >= 0` attends to the keys of that group, a query of group -1 to those of any.
    - 2, position: a query attends to keys at its own position or before it.

    Args:
        query_shape (`tuple[int, int]`): batch size and number of queries.
        key_length (`int`): number of keys.
        device (`torch.device`): where the mask is needed.
        padding_mask (`torch.BoolTensor` of shape `(batch_size, key_length)`, *optional*): `False` on padding.
        is_causal (`bool`): a query attends to no key behind it.
        segments (`tuple`, *optional*): of queries and keys, see [`same_segment_mask_function`].
        groups (`tuple`, *optional*): of queries and keys, see [`group_mask_function`].
        query_offset (`torch.Tensor` or `int`): index of the first query among the keys, and in `segments` and `groups`
            if there are more numbers than queries.

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

    any_query, any_key = torch.full_like(places, ANY_SEGMENT), torch.zeros_like(key_places)
    query_segments, key_segments = (any_query, any_key) if segments is None else segments
    if padding_mask is not None:
        key_segments = torch.where(padding_mask, key_segments, PADDING_SEGMENT)
    channels = [
        channel(query_segments, key_segments),
        channel(*groups) if groups is not None else channel(torch.full_like(places, ANY_GROUP), any_key),
        channel(places if is_causal else torch.full_like(places, ANY_POSITION), key_places),
    ]
    return torch.stack(channels, dim=1)[:, None]


def is_compact(mask: torch.Tensor | BlockMask | None) -> bool:
    """Whether a mask is one of [`compact_mask`]; dense ones are boolean or floating-point."""
    return isinstance(mask, torch.Tensor) and mask.dtype == torch.int32 and mask.dim() == 4 and mask.shape[2] == 3


def expand_mask(mask: torch.IntTensor, query_length: int, channels: Sequence[int] = (0, 1, 2)) -> torch.BoolTensor:
    """
    A compact mask as booleans: what every implementation must agree with.

    Args:
        mask (`torch.IntTensor` of shape `(batch_size, 1, 3, query_length + key_length)`): of [`compact_mask`].
        query_length (`int`): number of queries.
        channels (`Sequence[int]`): which channels count, at least one. Each of them takes time.

    Returns:
        `torch.BoolTensor` of shape `(batch_size, 1, query_length, key_length)`: `True` = may attend.
    """
    query, key = mask[..., :query_length, None], mask[..., None, query_length:]  # (B, 1, 3, Q, 1), (B, 1, 3, 1, K)

    def allowed_by(channel):
        of_query, of_key = query[:, :, channel], key[:, :, channel]
        if channel == 0:
            return (of_query == of_key) | ((of_query == ANY_SEGMENT) & (of_key != PADDING_SEGMENT))
        if channel == 1:
            return (of_query == of_key) | (of_query == ANY_GROUP)
        return of_key <= of_query

    return reduce(torch.logical_and, map(allowed_by, channels))


def depth_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: torch.Tensor | int = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> torch.Tensor | None:
    """
    What `create_causal_mask` and `create_bidirectional_mask` of transformers call for the implementations of this
    package: the compact mask of padding and causality, `None` where there is neither padding nor an offset, and the
    boolean mask of sdpa for all else, such as a single query of `generate()`, for which nothing is more compact.

    Unlike that of sdpa, it never looks at the values of a mask, which would wait for the device.
    """
    is_causal = mask_function is causal_mask_function
    is_plain = kv_offset == 0 and (is_causal or mask_function is bidirectional_mask_function)
    if not is_plain or q_length == 1:
        return sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=allow_is_causal_skip,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip,
            device=device,
            **kwargs,
        )
    if attention_mask is None and not is_causal and allow_is_bidirectional_skip:
        return None
    is_square = isinstance(q_offset, int) and q_offset == 0 and q_length == kv_length
    if attention_mask is None and is_causal and allow_is_causal_skip and is_square:
        return None
    padding_mask = None
    if attention_mask is not None:
        padding_mask = pad_to(attention_mask.to(device, torch.bool), kv_length)[:, :kv_length]
    return compact_mask(
        (batch_size, q_length), kv_length, device, padding_mask, is_causal=is_causal, query_offset=q_offset
    )


def pad_to(mask: torch.BoolTensor, length: int) -> torch.BoolTensor:
    """A (B, L) mask with `False` behind, up to `length`."""
    return nn.functional.pad(mask, (0, max(0, length - mask.shape[1])))


def is_4d(mask: torch.Tensor | BlockMask | None) -> bool:
    """Whether a mask (a tensor, or a BlockMask) is complete, with an entry for each query."""
    return mask is not None and len(mask.shape) == 4
