"""
The attention of T5, UMT5 and DEPTH, with its relative position bias.

Imports only torch and transformers: the Hub ships it with the model's code.
"""

from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask
from transformers import Cache
from transformers.models.t5.modeling_t5 import T5Attention


class DepthAttention(T5Attention):
    """
    T5 attention with two changes. Under flex attention, which indexes the position bias by batch, the bias has a batch
    axis. A layer with a relative bias of its own uses that, not the one of the layer before: UMT5 has one per layer.
    """

    def forward(
        self,
        hidden_states: torch.Tensor,
        mask: torch.Tensor | BlockMask | None = None,
        key_value_states: torch.Tensor | None = None,
        position_bias: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, ...]:
        if self.has_relative_attention_bias:
            position_bias = None
        if position_bias is None and self.config._attn_implementation == "flex_attention":
            position_bias = self._batched_position_bias(hidden_states, mask, key_value_states, past_key_values)
        return super().forward(
            hidden_states,
            mask=mask,
            key_value_states=key_value_states,
            position_bias=position_bias,
            past_key_values=past_key_values,
            **kwargs,
        )

    def _batched_position_bias(self, hidden_states, mask, key_value_states, past_key_values):
        """The position bias (B, H, Q, K) of hidden states (B, Q, D)."""
        batch_size, query_length = hidden_states.shape[:2]
        past = past_key_values.get_seq_length(self.layer_idx) if past_key_values is not None else 0
        if mask is not None:  # under flex a BlockMask of shape (B, 1, Q, K)
            key_length = mask.shape[-1]
        else:
            key_length = query_length + past if key_value_states is None else key_value_states.shape[1]
        if self.has_relative_attention_bias:
            bias = self.compute_bias(query_length, key_length, hidden_states.device, past)
        else:
            bias = hidden_states.new_zeros(1, self.n_heads, query_length, key_length)
        return bias.expand(batch_size, -1, -1, -1)
