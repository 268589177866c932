"""
T5's layers with fewer passes over the memory and faster products. Their parameters and what they compute stay T5's.

Imports only torch, transformers and the files beside it: the Hub ships it with the model's code.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.activations import GELUTanh, NewGELUActivation
from transformers.models.t5.modeling_t5 import T5DenseActDense, T5DenseGatedActDense, T5LayerNorm

from .matmul_depth import ONEDNN_IS_FASTER, linear
from .operators_depth import is_transformed


def speed_up_layers(model: nn.Module) -> None:
    """
    Give the layers of a T5 their fast forms, in place.

    Args:
        model (`nn.Module`): layers that are not T5's own, such as apex's norms, stay what they are.
    """
    for name, module in model.named_modules():
        if type(module) is T5LayerNorm and hasattr(module, "variance_epsilon"):
            module.__class__ = DepthLayerNorm
        elif type(module) in (T5DenseActDense, T5DenseGatedActDense) and type(module.act) is NewGELUActivation:
            module.act = GELUTanh()  # the same formula, in one kernel instead of eight
        elif type(module) is nn.Linear and name != "lm_head" and ONEDNN_IS_FASTER:
            module.__class__ = DepthLinear


class DepthLinear(nn.Linear):
    """An [`nn.Linear`] by the library that is the fastest on the CPU, see `matmul_depth.py`."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return super().forward(states) if self.bias is not None else linear(states, self.weight)


class DepthLayerNorm(T5LayerNorm):
    """A [`T5LayerNorm`] by one kernel on an accelerator, and with few passes over the memory on a CPU."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # Inductor fuses the formula with what is around it; for weights in half precision it has casts of its own.
        if torch.compiler.is_compiling() or self.weight.dtype != torch.float32 or is_transformed():
            return super().forward(hidden_states)
        hidden_states = hidden_states.float()
        if hidden_states.device.type == "cpu":
            return _RMSNorm.apply(hidden_states, self.weight, self.variance_epsilon)
        return nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)


class _RMSNorm(torch.autograd.Function):
    """
    `x / sqrt(mean(x ** 2) + eps) * weight` with a backward pass of three elementwise passes and two matrix-vector
    products. Autograd's own (torch 2.13, also of `rms_norm` on a CPU) takes three times as long.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()  # (..., 1)
        ctx.save_for_backward(x, weight, scale)
        ctx.eps = eps
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is asked for: the same without anything in place
            scale = (x.square().mean(-1, keepdim=True) + ctx.eps).rsqrt()
            weighted = gradient * weight
            x_gradient = scale * weighted - scale.pow(3) * x * (weighted * x).mean(-1, keepdim=True)
            return x_gradient, (gradient * x * scale).reshape(-1, x.shape[-1]).sum(0), None
        product = gradient * x
        rows, scales = product.reshape(-1, x.shape[-1]), scale.reshape(-1)
        with torch.autocast(x.device.type, enabled=False):  # which would round the products
            weight_gradient = torch.mv(rows.t(), scales) if ctx.needs_input_grad[1] else None
            if not ctx.needs_input_grad[0]:
                return None, weight_gradient, None
            shares = torch.mv(rows, weight).mul_(scales.pow(3)).div_(-x.shape[-1]).view(scale.shape)
        torch.mul(gradient, weight, out=product)
        return product.mul_(scale).addcmul_(x, shares), weight_gradient, None


def set_residual_dtype(model: nn.Module, dtype: torch.dtype | None) -> None:
    """
    Let a T5 add up the outputs of its layers in another dtype under autocast to that dtype. Weights, layer norms and
    the softmax stay as they are.

    Args:
        model (`nn.Module`): with an `encoder` and a `decoder` of T5's.
        dtype (`torch.dtype`, *optional*): `torch.bfloat16`; `None` for that of the embeddings, as T5 does.
    """

    for stack in (model.encoder, model.decoder):
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


def is_plain_layer(module: nn.Module, kind: type[nn.Module]) -> bool:
    """
    Whether a layer is just its weight, which may be used without calling it.

    Args:
        module (`nn.Module`): no layer of PEFT, without a quantized, distributed (DTensor) or partitioned (DeepSpeed)
            weight, and with nothing hooked to its calls.
        kind (`type`): the class that it must be of, and of no subclass.
    """
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return (
        type(module) is kind
        and type(module.weight) in (nn.Parameter, torch.Tensor)
        and module.weight.is_floating_point()
        and not hasattr(module.weight, "ds_id")
        and "forward" not in vars(module)  # accelerate puts its hooks there
        and not any(hooks)
    )
