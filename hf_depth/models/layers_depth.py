"""
T5's layer norm and activation with fewer passes over the memory. Their parameters and what they compute stay T5's.

Imports only torch and transformers: the Hub ships it with the model's code.
"""

from typing import Any

import torch
from torch import nn
from transformers.activations import GELUTanh, NewGELUActivation
from transformers.models.t5.modeling_t5 import T5DenseActDense, T5DenseGatedActDense, T5LayerNorm


def speed_up_layers(model: nn.Module) -> None:
    """
    Give the layer norms and feed-forward layers of T5 within a model their fast forms, in place.

    Args:
        model (`nn.Module`): layers that are not T5's own, such as apex's norms, stay what they are.
    """
    for module in model.modules():
        if type(module) is T5LayerNorm and hasattr(module, "variance_epsilon"):
            module.__class__ = DepthLayerNorm
        elif type(module) in (T5DenseActDense, T5DenseGatedActDense) and type(module.act) is NewGELUActivation:
            module.act = GELUTanh()  # the same formula, in one kernel instead of eight


class DepthLayerNorm(T5LayerNorm):
    """A [`T5LayerNorm`] by one kernel on an accelerator, and with few passes over the memory on a CPU."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # Inductor fuses the formula with what is around it. Other dtypes take T5's order of casts.
        if torch.compiler.is_compiling() or hidden_states.dtype != self.weight.dtype:
            return super().forward(hidden_states)
        if hidden_states.device.type != "cpu" or hidden_states.dtype not in (torch.float32, torch.float64):
            return nn.functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)
        return _RMSNorm.apply(hidden_states, self.weight, self.variance_epsilon)


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
        return (x * scale).mul_(weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        product = gradient * x
        rows, scales = product.view(-1, x.shape[-1]), scale.view(-1)
        weight_gradient = torch.mv(rows.t(), scales) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, weight_gradient, None
        shares = torch.mv(rows, weight).mul_(scales.pow(3)).div_(-x.shape[-1]).view(scale.shape)
        torch.mul(gradient, weight, out=product)
        return product.mul_(scale).addcmul_(x, shares), weight_gradient, None
