"""
What makes models of this package faster, and is never part of a saved one: they run without it.

Importing it registers attention functions with transformers, and the loss without all logits with our models.
"""

from ..models.modeling_depth import T5ForConditionalGeneration
from .attention import register_attention
from .flex import depth_flex
from .linear_cross_entropy import head_loss
from .triton import INTERPRETED, depth_triton

register_attention("depth_flex", depth_flex, ("cuda", "xpu"))
register_attention("depth_triton", depth_triton, ("cuda", "cpu") if INTERPRETED else ("cuda",))
T5ForConditionalGeneration.head_loss = staticmethod(head_loss)
