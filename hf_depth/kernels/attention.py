"""
Attention kernels, by name for any T5 of transformers: `attn_implementation="depth_flex"`.

A kernel never holds scores, masks or biases of `batch x heads x queries x keys`. It gets the mask as numbers per
token, see [`compact_mask`], and T5's relative position bias as one number per distance of two tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ..errors import UserError
from .masks import is_compact, mask_for


def register_attention(name: str, function: Callable[..., torch.Tensor], device_types: Sequence[str]) -> None:
    """
    Make a kernel known to transformers, for `attn_implementation=name` of any T5.

    "sdpa" does the rest, with the same results: single tokens in `generate()`, dense masks of the caller, and other
    devices.

    Args:
        name (`str`): the name of the kernel.
        function (`Callable`): `function(query, key, value, bias, mask)`, with

            - `query` of shape `(batch_size, heads, queries, head_size)`, `key` and `value` of shape
              `(batch_size, heads, keys, head_size)`, all of the same dtype, in any order of memory,
            - `bias` of shape `(heads, queries + keys - 1)`: `bias[h, k - q + queries - 1]` for head h, query q, key k,
            - `mask`: a compact mask of shape `(batch_size, 1, 3, queries + keys)`, int32, see [`compact_mask`].

            Returns the output, of the shape and dtype of `query`. Scores are not scaled.
        device_types (`Sequence[str]`): the devices on which it runs.
    """

    def attention_forward(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        position_bias: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        if not is_compact(attention_mask):
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout=dropout, position_bias=position_bias, **kwargs
            )
        if dropout > 0 or position_bias is None:
            raise UserError(
                f"`{name}` is for a T5 without dropout of attention weights: set `dropout_rate=0.0`, or take `sdpa`."
            )
        output = function(query, key, value, bias_by_distance(position_bias), attention_mask)
        return output.transpose(1, 2), None

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, mask_for(device_types))


def bias_by_distance(bias: torch.Tensor) -> torch.Tensor:
    """
    T5's position bias `(1, heads, queries, keys)` without repetitions, since it depends only on the distance of two
    tokens: `(heads, queries + keys - 1)`, the first column from its end, then the first row.
    """
    query_length, key_length = bias.shape[2:]
    distances = torch.arange(1 - query_length, key_length, device=bias.device)
    # Not `cat` of a row and a column: on GPUs, inductor of torch 2.11 to 2.13 fails on it ("is not comparable").
    return bias[0, :, (-distances).clamp(min=0), distances.clamp(min=0)]


def expand_bias(bias: torch.Tensor, key_length: int) -> torch.Tensor:
    """The inverse of [`bias_by_distance`]: what every kernel must agree with."""
    return bias.unfold(-1, key_length, 1).flip(1)[None]  # row i of the unfolded has the biases of query Q - 1 - i
