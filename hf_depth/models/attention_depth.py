"""
The attention of T5, UMT5 and DEPTH, with its relative position bias.

The implementations of this package (`sdpa_depth.py` and those beside it) never hold scores, masks or biases of
`batch x heads x queries x keys`. They get the mask as numbers per token, see `compact_mask`, and the position bias as
one number per distance of two tokens: `bias[h, k - q + Q - 1]` for head h, query q of Q, and key k of K, of shape
`(heads, Q + K - 1)`. Cross-attention, which has no position bias, gets an empty tensor of shape `(0,)`.

Imports only torch, transformers and the files beside it: the Hub ships it with the model's code.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask
from transformers import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.utils import logging

from .cache_depth import CACHE, takes_cache
from .masking_depth import COMPACT_IMPLEMENTATIONS, depth_mask, expand_mask, is_compact
from .operators_depth import is_transformed

logger = logging.get_logger(__name__)

# Of the implementations below: whether one works on a device, for the automatic choice of `load_model`.
ATTENTION_CHECKS: dict[str, Callable[[torch.device, int, torch.dtype], str | None]] = {}
# What this copy of the files has registered, by name. The Hub ships copies, maybe of another release, and transformers
# knows one function of a name in a process, that of the copy that was imported last.
_FUNCTIONS: dict[str, Callable[..., tuple[torch.Tensor, None]]] = {}


def register_attention(
    name: str,
    function: Callable[..., torch.Tensor],
    device_types: Sequence[str] | None = None,
    check: Callable[[torch.device, int, torch.dtype], str | None] | None = None,
) -> None:
    """
    Make an implementation known to transformers, for `attn_implementation=name`.

    The function gets what training and evaluation need. A step with a key/value cache, a dense mask given by the
    caller, dropout of the attention weights in training, and `torch.func` go the way of "sdpa", with the same results.

    Args:
        name (`str`): one of `COMPACT_IMPLEMENTATIONS`.
        function (`Callable`): `function(query, key, value, bias, mask, is_causal)`, of

            - `query` of shape `(batch_size, heads, queries, head_size)`, `key` and `value` of shape
              `(batch_size, heads, keys, head_size)`, all of the same dtype, in any order of memory,
            - `bias` of shape `(heads, queries + keys - 1)` or `(0,)`, of that dtype or float32,
            - `mask`: `None`, or a compact mask of shape `(batch_size, 1, 3, queries + keys)`, int32,
            - `is_causal` (`bool`): only without a mask: a query attends to keys up to its own index.

            Returns the output, of the shape and dtype of `query`, best as a transposed view of
            `(batch_size, queries, heads, head_size)`: the model needs it in that order. Scores are not scaled. A query
            without any key has an output and gradients of 0. There are gradients to query, key, value and bias.
        device_types (`Sequence[str]`, *optional*):
            Where the function works, such as `("cuda",)`. Tensors on other devices go the way of "depth_sdpa".
        check (`Callable`, *optional*):
            `check(device, head_size, dtype)`, the reason why the function cannot be used there, or `None`. Without it
            the function is never chosen for a GPU by itself.
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
        if position_bias is not None and position_bias.dim() < 4:
            if device_types is not None and query.device.type not in device_types:
                return _FUNCTIONS["depth_sdpa"](
                    module, query, key, value, attention_mask, dropout=dropout, position_bias=position_bias, **kwargs
                )
            if kwargs.get("output_attentions"):
                logger.warning_once(
                    f"`{name}` attention does not support `output_attentions=True`: there are none in the output. "
                    'Call `model.set_attn_implementation("eager")` to have them.'
                )
            if dropout == 0.0 and not is_transformed():
                is_causal = module.is_causal and attention_mask is None
                output = function(query, key, value, position_bias, attention_mask, is_causal)
                return output.transpose(1, 2), None
            position_bias = expand_bias(position_bias, query.shape[2], key.shape[2])
        if is_compact(attention_mask):
            attention_mask = expand_mask(attention_mask, query.shape[2])
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, position_bias=position_bias, **kwargs
        )

    def attention_forward_of_its_copy(module: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
        return getattr(module, "attention_functions", _FUNCTIONS)[name](module, *args, **kwargs)

    _FUNCTIONS[name] = attention_forward
    ALL_ATTENTION_FUNCTIONS.register(name, attention_forward_of_its_copy)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, depth_mask)
    if check is not None:
        ATTENTION_CHECKS[name] = check


def expand_bias(bias: torch.Tensor, query_length: int, key_length: int) -> torch.Tensor | None:
    """
    A compact position bias as what is added to the scores: what every implementation must agree with.

    Args:
        bias (`torch.Tensor` of shape `(heads, query_length + key_length - 1)` or `(0,)`)
        query_length, key_length (`int`): number of queries and of keys.

    Returns:
        `torch.Tensor` of shape `(1, heads, query_length, key_length)`, or `None` if `bias` is empty.
    """
    if bias.dim() == 1:
        return None
    return bias.unfold(-1, key_length, 1).flip(1)[None]  # row i of the unfolded has the biases of query Q - 1 - i


class DepthAttention(T5Attention):
    """
    T5 attention with three changes. Under the implementations of this package, the position bias is compact. Under
    flex attention, which indexes the position bias by batch, the bias has a batch axis. A layer with a relative bias
    of its own uses that, not the one of the layer before: UMT5 has one per layer.
    """

    attention_functions = _FUNCTIONS  # those of the files that this class is from

    @takes_cache
    def forward(
        self,
        hidden_states: torch.Tensor,
        mask: torch.Tensor | BlockMask | None = None,
        key_value_states: torch.Tensor | None = None,
        position_bias: torch.Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, ...]:
        if self.has_relative_attention_bias:
            position_bias = None
        implementation = self.config._attn_implementation
        if position_bias is None and implementation == "flex_attention":
            position_bias = self._batched_position_bias(hidden_states, mask, key_value_states, cache)
        is_dense = cache is not None or not (mask is None or is_compact(mask))
        if position_bias is None and implementation in COMPACT_IMPLEMENTATIONS and not is_dense:
            position_bias = self._compact_position_bias(hidden_states, key_value_states)
        return super().forward(
            hidden_states,
            mask=mask,
            key_value_states=key_value_states,
            position_bias=position_bias,
            **{CACHE: cache},
            **kwargs,
        )

    def _compact_position_bias(self, hidden_states, key_value_states):
        """The position bias (H, Q + K - 1) of hidden states (B, Q, D), (0,) without one."""
        if not self.has_relative_attention_bias:
            return hidden_states.new_zeros(0)
        query_length = hidden_states.shape[1]
        key_length = query_length if key_value_states is None else key_value_states.shape[1]
        buckets = self._relative_position_bucket(
            torch.arange(1 - query_length, key_length, device=hidden_states.device),
            bidirectional=not self.is_decoder,
            num_buckets=self.relative_attention_num_buckets,
            max_distance=self.relative_attention_max_distance,
        )
        return self.relative_attention_bias(buckets).t().contiguous()

    def _batched_position_bias(self, hidden_states, mask, key_value_states, cache):
        """The position bias (B, H, Q, K) of hidden states (B, Q, D)."""
        batch_size, query_length = hidden_states.shape[:2]
        past = cache.get_seq_length(self.layer_idx) if cache is not None else 0
        if mask is not None:  # under flex a BlockMask of shape (B, 1, Q, K)
            key_length = mask.shape[-1]
        else:
            key_length = query_length + past if key_value_states is None else key_value_states.shape[1]
        if self.has_relative_attention_bias:
            bias = self.compute_bias(query_length, key_length, hidden_states.device, past)
        else:
            bias = hidden_states.new_zeros(1, self.n_heads, query_length, key_length)
        return bias.expand(batch_size, -1, -1, -1)
