"""
What makes models of this package faster. A saved model runs without it.

Importing it registers an attention function with transformers, and the loss without all logits with our models.
"""

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from ..models.modeling_depth import T5ForConditionalGeneration
from .linear_cross_entropy import head_loss
from .sdpa import depth_sdpa

AttentionInterface.register("depth_sdpa", depth_sdpa)
AttentionMaskInterface.register("depth_sdpa", sdpa_mask)
T5ForConditionalGeneration.head_loss = staticmethod(head_loss)
