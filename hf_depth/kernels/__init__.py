"""
What makes models of this package faster. A saved model runs without it.

Importing it registers attention functions with transformers, and the loss without all logits with our models.
"""

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from ..models.modeling_depth import T5ForConditionalGeneration
from .attention import register_attention
from .flex import depth_flex
from .linear_cross_entropy import head_loss
from .sdpa import depth_sdpa
from .triton import INTERPRETED, depth_triton

AttentionInterface.register("depth_sdpa", depth_sdpa)
AttentionMaskInterface.register("depth_sdpa", sdpa_mask)
register_attention("depth_flex", depth_flex, ("cuda", "xpu"))
register_attention("depth_triton", depth_triton, ("cuda", "cpu") if INTERPRETED else ("cuda",))
T5ForConditionalGeneration.head_loss = staticmethod(head_loss)
