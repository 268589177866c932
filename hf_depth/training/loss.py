"""The weighted loss of a batch, whatever model computes it."""

from typing import Any

import torch
from transformers import PreTrainedConfig, TrainingArguments
from transformers.modeling_outputs import ModelOutput

from ..models.modeling_depth import cross_entropy_per_token, is_sentence_token


def loss_weights(
    labels: torch.Tensor,
    num_items: torch.Tensor | int | None,
    config: PreTrainedConfig,
    args: TrainingArguments,
    num_processes: int = 1,
) -> torch.Tensor:
    """
    The weight of each label in the loss.

    Args:
        labels (`torch.LongTensor` of shape `(B, T)`): padded with -100.
        num_items (`torch.Tensor` or `int`, *optional*): labels in the global batch; by default in this one.
        config (`PreTrainedConfig`): of the model, which says what a sentence token is.
        args (`DepthTrainingArguments`): with `sentence_loss_coefficient` and `average_tokens_across_devices`.
        num_processes (`int`, *optional*, defaults to 1): over which gradients are averaged.

    Returns:
        `torch.FloatTensor` of shape `(B, T)`.
    """
    weights = torch.ones(labels.shape, device=labels.device)
    if args.sentence_loss_coefficient != 1.0:
        weights = weights.masked_fill(is_sentence_token(labels, config), args.sentence_loss_coefficient)
    if num_items is None:
        return weights / (labels != -100).sum().clamp(min=1)
    if args.average_tokens_across_devices:
        # Gradients are averaged over the processes, but `num_items` already counts the labels of all of them.
        weights = weights * num_processes
    return weights / num_items


def weighted_loss(
    model: torch.nn.Module,
    inputs: dict[str, Any],
    weights: torch.Tensor,
    weights_losses: bool,
    needs_gradients: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, ModelOutput]:
    """
    The sum of the weighted losses of all labels.

    Args:
        model (`torch.nn.Module`): any encoder-decoder.
        inputs (`dict`): of its `forward`, with `labels` (B, T); for a model that does not weight losses also with
            `decoder_input_ids` (B, T).
        weights (`torch.FloatTensor` of shape `(B, T)`): see [`loss_weights`].
        weights_losses (`bool`): whether `forward` takes `loss_weights`, and computes the loss without all logits.
        needs_gradients (`bool`, *optional*, defaults to `False`): of the losses of single labels, for other terms.

    Returns:
        The loss, the losses of the labels (B, T), and the outputs of the model.
    """
    if weights_losses and not needs_gradients:
        outputs = model(**inputs, use_cache=False, loss_weights=weights)
        return outputs["loss"], outputs["token_losses"], outputs
    if weights_losses:
        inputs.setdefault("skip_logits", False)  # without logits, token losses have no gradients
        outputs = model(**inputs, use_cache=False)
        token_losses = outputs["token_losses"]
    else:  # without labels, for which each family has a loss of its own
        outputs = model(**{name: values for name, values in inputs.items() if name != "labels"}, use_cache=False)
        token_losses = cross_entropy_per_token(outputs["logits"], inputs["labels"])
    return (weights * token_losses).sum(), token_losses, outputs
