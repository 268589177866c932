"""
Who attends to whom in DEPTH and in rows of several examples: rules as mask functions, and masks made of them.

Imports only torch, transformers and the configuration beside it: the Hub ships it with the model's code.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import PreTrainedConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, and_masks, padding_mask_function

from .configuration_depth import DepthConfig


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


def own_sentence_mask_function(
    sentence_mask: torch.BoolTensor, segment_ids: torch.LongTensor | None = None
) -> Callable:
    """
    Encoder self-attention: a sentence token attends to the tokens of its own sentence, any other token to all.

    The token in front of the first sentence token, its `<eosen>`, belongs to the first sentence. What is before that,
    such as metadata of the text, is no part of any.

    Args:
        sentence_mask (`torch.BoolTensor` of shape `(batch_size, source_length)`): `True` on sentence tokens.
        segment_ids (`torch.LongTensor` of shape `(batch_size, source_length)`, *optional*):
            Several examples in one row: sentences are counted in each of them. See [`same_segment_mask_function`],
            which keeps them apart.

    Returns:
        A mask function of (batch, head, query, key) indices, `True` = may attend (see `transformers.masking_utils`).
    """
    sentence_index = sentence_mask.cumsum(dim=-1)  # (B, S): the running count of sentence tokens
    if segment_ids is not None:
        at_start = torch.where(is_segment_start(segment_ids), sentence_index - sentence_mask.long(), 0)
        sentence_index = sentence_index - at_start.cummax(dim=-1).values
    is_next = nn.functional.pad(sentence_mask[:, 1:], (0, 1))
    sentence_index = sentence_index + (is_next & (sentence_index == 0))

    def mask_function(batch_idx, head_idx, q_idx, kv_idx):
        own = sentence_index[batch_idx, q_idx] == sentence_index[batch_idx, kv_idx]
        return ~sentence_mask[batch_idx, q_idx] | own

    return mask_function


def sentence_to_sentence_mask_function(
    query_mask: torch.BoolTensor,
    key_mask: torch.BoolTensor,
    query_segments: torch.LongTensor | None = None,
    key_segments: torch.LongTensor | None = None,
) -> Callable:
    """
    Decoder self- and cross-attention: a sentence token attends to sentence tokens, any other token to all.

    Where a row has no sentence token among its keys (a prompt with sentence tokens for an input without), its queries
    attend to all keys: a softmax over nothing would attend to the padding. Of several examples in a row, this is
    decided for each.

    Args:
        query_mask (`torch.BoolTensor` of shape `(batch_size, query_length)`): `True` on sentence tokens.
        key_mask (`torch.BoolTensor` of shape `(batch_size, key_length)`): `True` on sentence tokens.
        query_segments (`torch.LongTensor` of shape `(batch_size, query_length)`, *optional*):
            Which example of a row each query belongs to.
        key_segments (`torch.LongTensor` of shape `(batch_size, key_length)`, *optional*): the same of the keys.
    """
    if query_segments is None:
        has_keys = key_mask.any(dim=-1, keepdim=True)  # (B, 1)
    else:
        number = key_mask.shape[1]  # no row has more segments than tokens
        counts = key_mask.new_zeros(len(key_mask), number + 1, dtype=torch.long)
        counts = counts.scatter_add(1, key_segments.long().clamp(0, number), key_mask.long())
        has_keys = counts.gather(1, query_segments.long().clamp(0, number)) > 0  # (B, Q)
    unrestricted = ~(query_mask & has_keys)  # (B, Q)

    def mask_function(batch_idx, head_idx, q_idx, kv_idx):
        return unrestricted[batch_idx, q_idx] | key_mask[batch_idx, kv_idx]

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
        return (query == 0) | (query == key_segments[batch_idx, kv_idx])

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
    config: DepthConfig,
    mask_function: Callable,
    attention_mask: torch.Tensor | None,
    query_shape: tuple[int, int],
    key_length: int,
    like: torch.Tensor,
    query_offset: torch.Tensor | int = 0,
) -> torch.Tensor | BlockMask | None:
    """
    The mask of one attention in the form its implementation wants: additive for eager, boolean for sdpa, blocks for
    flex_attention.

    `create_causal_mask(and_mask_function=...)` of transformers calls the same registry, but evaluates the function by
    `torch.vmap`: about 5 ms a mask of any size on a CPU, more than a step of `generate()` of a small model. Those here
    only index, so that broadcasting is enough.

    Args:
        mask_function (`Callable`): of (batch, head, query, key) indices, `True` = may attend.
        attention_mask (`torch.Tensor` of shape `(batch_size, key_length)` or shorter, *optional*):
            Non-zero on tokens that are not padding. A 4-D mask is returned as it is.
        query_shape (`tuple[int, int]`): batch size and number of queries.
        like (`torch.Tensor`): has the dtype and the device of the attention.
        query_offset (`torch.Tensor` or `int`): index of the first query among the keys.
    """
    if is_4d(attention_mask):
        return attention_mask
    if attention_mask is not None:
        padding_mask = pad_to(attention_mask.to(like.device, torch.bool), key_length)
        mask_function = and_masks(mask_function, padding_mask_function(padding_mask))
    return ALL_MASK_ATTENTION_FUNCTIONS[config._attn_implementation](
        batch_size=query_shape[0],
        q_length=query_shape[1],
        kv_length=key_length,
        q_offset=query_offset,
        kv_offset=0,
        mask_function=mask_function,
        allow_is_causal_skip=False,
        dtype=like.dtype,
        device=like.device,
        config=config,
    )


def pad_to(mask: torch.BoolTensor, length: int) -> torch.BoolTensor:
    """A (B, L) mask with `False` behind, up to `length`."""
    return nn.functional.pad(mask, (0, max(0, length - mask.shape[1])))


def is_4d(mask: torch.Tensor | BlockMask | None) -> bool:
    """Whether a mask (a tensor, or a BlockMask) is complete, with an entry for each query."""
    return mask is not None and len(mask.shape) == 4
