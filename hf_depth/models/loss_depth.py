"""
Cross-entropy of each label.

Imports only torch: the Hub ships it with the model's code.
"""

import torch
from torch import nn


def cross_entropy_per_token(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """
    Cross-entropy of each label in nats.

    Args:
        logits (`torch.FloatTensor` of shape `(batch_size, target_length, vocab_size)`): any float dtype.
        labels (`torch.LongTensor` of shape `(batch_size, target_length)`): -100 is ignored.

    Returns:
        `torch.FloatTensor` of shape `(batch_size, target_length)`: float32, 0 where the label is -100.
    """
    labels = labels.to(logits.device)
    losses = nn.functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none"
    )
    return losses.view(labels.shape)
