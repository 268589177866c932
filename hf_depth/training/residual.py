"""The residual stream of a T5 in another dtype than its weights."""

from functools import partial

import torch
from torch import nn

from ..errors import UserError


def set_residual_dtype(model: nn.Module, dtype: torch.dtype | None) -> None:
    """
    Let a T5 add up the outputs of its layers in another dtype under autocast to that dtype. Weights, layer norms and
    the softmax stay as they are.

    Args:
        model (`nn.Module`): with an `encoder` and a `decoder` of T5's.
        dtype (`torch.dtype`, *optional*): `torch.bfloat16`; `None` for that of the embeddings, as T5 does.

    Raises:
        `ValueError`: for a dtype, if the layers are not those of a T5.
    """
    for stack in (model.get_encoder(), model.get_decoder()):
        if not hasattr(stack, "block"):
            if dtype is None:
                return
            raise UserError(
                f"`residual_dtype` is for models with layers of T5, not for a {type(model).__name__}: leave it out."
            )
        first = stack.block[0]
        if hasattr(first, "residual_hook"):
            first.residual_hook.remove()
            del first.residual_hook
        if dtype is not None:
            first.residual_hook = first.register_forward_pre_hook(partial(_cast_residual, dtype))


def _cast_residual(dtype: torch.dtype, module: nn.Module, arguments: tuple) -> tuple:
    hidden_states, *others = arguments
    device = hidden_states.device.type
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == dtype:
        hidden_states = hidden_states.to(dtype)
    return (hidden_states, *others)
