"""
Cross-entropy of each label, from logits or from the hidden states below them.

Imports only torch and the files beside it: the Hub ships it with the model's code.
"""

import math

import torch
from torch import nn

from .matmul_depth import MULTIPLE, onednn, suits_onednn
from .operators_depth import counts_flops, is_traced, operator_name

IGNORED = -100
LOG2_E = math.log2(math.e)
# What the logits of a chunk may take in float32. On a CPU they should stay in the cache from the matrix product to the
# softmax and back; on an accelerator each chunk reads and writes the gradient of the whole head once more.
CPU_CHUNK_BYTES, CHUNK_BYTES = 32 * 2**20, 512 * 2**20
MAX_ONEDNN_ROWS = 512  # of a chunk: of small vocabularies, more rows would be of too many sizes


def cross_entropy_per_token(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """
    Cross-entropy of each label in nats.

    Args:
        logits (`torch.FloatTensor` of shape `(batch_size, target_length, vocab_size)`): any float dtype.
        labels (integers of shape `(batch_size, target_length)`): -100 is ignored.

    Returns:
        `torch.FloatTensor` of shape `(batch_size, target_length)`: float32 or float64, 0 where the label is -100.
    """
    labels = labels.to(logits.device, torch.int64)
    losses = nn.functional.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1),
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="none",
    )
    return losses.view(labels.shape)


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    loss_weights: torch.Tensor | None = None,
    with_predictions: bool = False,
) -> tuple[torch.Tensor, ...]:
    """
    The cross-entropy of `hidden @ weight.T`, a chunk of rows at a time: there is never a tensor of all logits.

    The gradients of the loss are computed in the forward pass, while the logits of a chunk are there, so that the
    backward pass only scales them. `token_losses` may be differentiated, too, though not in a compiled graph that has
    the loss as well: then the backward pass computes the logits again for the gradient of `weight`. Under autocast the
    matrix products are in its dtype; the softmax, the losses and the sum over the chunks are in float32.

    Args:
        hidden (`torch.FloatTensor` of shape `(num_labels, d_model)`): what the output head reads.
        weight (`torch.FloatTensor` of shape `(vocab_size, d_model)`): that of the output head.
        labels (`torch.LongTensor` of shape `(num_labels,)`): -100 is ignored.
        loss_weights (`torch.FloatTensor` of shape `(num_labels,)`, *optional*): of each label in the loss; 1 by
            default.
        with_predictions (`bool`, *optional*): whether to return the likeliest ids.

    Returns:
        `tuple`: the loss `(loss_weights * token_losses).sum()`; `token_losses` of shape `(num_labels,)`, the
        cross-entropies in nats, 0 where the label is -100; and on request `predictions` (`torch.LongTensor` of shape
        `(num_labels,)`), -100 where the label is. The losses are float32.

    Raises:
        `RuntimeError`: in the backward pass, if second derivatives are asked for, or `token_losses` are differentiated
            beside the loss in a compiled graph.
    """
    device = hidden.device
    has_autocast = device.type != "meta" and torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if has_autocast else weight.dtype
    exact = torch.promote_types(dtype, torch.float32)
    with_gradients = torch.is_grad_enabled()
    loss, token_losses, predictions, *_ = _linear_cross_entropy(
        hidden,
        weight,
        labels.to(device),
        torch.ones(labels.shape, device=device) if loss_weights is None else loss_weights.to(device, exact),
        dtype,
        with_gradients and hidden.requires_grad,
        with_gradients and weight.requires_grad,
        with_predictions,
    )
    return (loss, token_losses, predictions) if with_predictions else (loss, token_losses)


# An operator of its own. A compiled graph of the loop could not leave out rows, and what it keeps between the passes
# would be up to the partitioner. The gradients, made in the forward pass, are further outputs.
@torch.library.custom_op(operator_name("linear_cross_entropy", __name__), mutates_args=())
def _linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    loss_weights: torch.Tensor,
    dtype: torch.dtype,
    needs_hidden_gradient: bool,
    needs_weight_gradient: bool,
    with_predictions: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """
    Loss, token losses (N,), predictions (N,), the gradient of each token loss for its hidden state (N, D), and that of
    the loss for the weight (V, D). What is not asked for is empty. `dtype` is that of the matrix products.
    """
    outputs = _empty_outputs(
        hidden, weight, labels, loss_weights, dtype, needs_hidden_gradient, needs_weight_gradient, with_predictions
    )
    loss, *by_row, weight_gradient = outputs
    is_label = labels != IGNORED
    rows, part = None, by_row
    if labels.device.type == "cpu" and not is_label.all():  # elsewhere, to count them would wait for the device
        rows = is_label.nonzero()[:, 0]
    number = len(labels) if rows is None else len(rows)
    # For oneDNN, chunks of one size whatever the number of labels, and one of what is left: few sizes.
    size = min(CPU_CHUNK_BYTES // 4 // len(weight), MAX_ONEDNN_ROWS) // MULTIPLE * MULTIPLE
    is_by_onednn = size > 0 and suits_onednn(weight.device, dtype, MULTIPLE, *weight.shape)
    if not is_by_onednn:
        size = _chunk_size(number, len(weight), weight.device.type)
    padding = -number % MULTIPLE if is_by_onednn else 0
    if rows is None and padding:
        rows = torch.arange(number, device=labels.device)
    with torch.autocast(hidden.device.type, enabled=False), onednn(is_by_onednn):
        if rows is not None:
            hidden, loss_weights = (_rows_and_padding(each, rows, padding, 0) for each in (hidden, loss_weights))
            labels = _rows_and_padding(labels, rows, padding, IGNORED)
            is_label = labels != IGNORED
            part = [output.new_empty(len(labels) if len(output) else 0, *output.shape[1:]) for output in by_row]
        coefficients = loss_weights * is_label
        _fill(*part, weight_gradient, hidden.to(dtype), weight.to(dtype), labels, is_label, coefficients, size)
        torch.sum(part[0] * coefficients, dim=0, out=loss)
    if rows is not None:
        for output, values, nothing in zip(by_row, part, (0, IGNORED, 0), strict=True):
            if len(output):
                output.fill_(nothing).index_copy_(0, rows, values[:number])
    return outputs


def _rows_and_padding(tensor, rows, padding, value):
    return torch.cat([tensor[rows], tensor.new_full((padding, *tensor.shape[1:]), value)])


@_linear_cross_entropy.register_fake
def _empty_outputs(
    hidden, weight, labels, loss_weights, dtype, needs_hidden_gradient, needs_weight_gradient, with_predictions
):
    exact = torch.promote_types(dtype, torch.float32)
    rows, vocab_size = hidden.shape[0], weight.shape[0]  # `len` would fix the sizes of a compiled graph
    return (
        hidden.new_empty((), dtype=exact),
        hidden.new_empty(rows, dtype=exact),
        labels.new_empty(rows if with_predictions else 0),
        hidden.new_empty((rows if needs_hidden_gradient else 0, hidden.shape[1])),
        weight.new_empty((vocab_size if needs_weight_gradient else 0, weight.shape[1]), dtype=exact),
    )


def _fill(
    token_losses, predictions, hidden_gradient, weight_gradient, hidden, weight, labels, is_label, coefficients, size
) -> None:
    """Compute the first four, `size` rows at a time. Hidden states and weight have the dtype of the products."""
    targets = labels.masked_fill(~is_label, 0)[:, None]  # any other that is no id is an error
    scale = None
    if hidden.dtype == torch.float16 and len(coefficients):  # in which 1 / (number of labels) loses its last bits
        scale = coefficients.abs().amax().clamp(min=torch.finfo(torch.float32).tiny)
        coefficients = coefficients / scale
    memory = hidden.new_empty(min(size, len(hidden)), len(weight))
    exact_memory = memory
    if hidden.dtype != token_losses.dtype:
        exact_memory = torch.empty_like(memory, dtype=token_losses.dtype)
    if not len(hidden) or weight_gradient.dtype != hidden.dtype:
        weight_gradient.zero_()
    for start in range(0, len(hidden), size):
        rows = slice(start, start + size)
        states = hidden[rows]
        logits = torch.mm(states, weight.t(), out=memory[: len(states)])
        if len(predictions):
            predictions[rows] = logits.argmax(1).where(is_label[rows], IGNORED)
        exponentials, totals, losses = _softmax(logits, targets[rows], exact_memory[: len(states)])
        token_losses[rows] = losses.where(is_label[rows], 0.0)
        if not (len(hidden_gradient) or len(weight_gradient)):
            continue
        exponentials.scatter_add_(1, targets[rows], -totals)
        if exponentials is not logits:
            torch.div(exponentials, totals, out=logits)
            totals = torch.ones_like(totals)
        # `logits` is now the gradient of the token losses for the logits, times `totals`.
        if len(hidden_gradient):
            hidden_gradient[rows] = torch.mm(logits, weight) * (is_label[rows, None] / totals)
        if len(weight_gradient):
            weighted = (states * (coefficients[rows, None] / totals)).to(states.dtype)
            if weighted.dtype == weight_gradient.dtype:
                weight_gradient.addmm_(logits.t(), weighted, beta=1 if start else 0)
            else:
                weight_gradient.add_(torch.mm(logits.t(), weighted))
    if scale is not None:
        weight_gradient.mul_(scale)


def _softmax(logits, targets, values):
    """
    In the memory `values`, which may be that of the logits (N, V), their exponentials up to a factor per row; their
    sums (N, 1), and the cross-entropy of the targets (N,).
    """
    if values.dtype != logits.dtype:
        values.copy_(logits)
    values.sub_(values.amax(1, keepdim=True))
    own = values.gather(1, targets)
    # On a CPU powers of 2: for the exponential of what is below -87, MKL takes 12 to 18 times as long. Elsewhere the
    # product would be one more pass over the memory.
    exponentials = values.mul_(LOG2_E).exp2_() if values.device.type == "cpu" else values.exp_()
    totals = exponentials.sum(1, keepdim=True)
    return values, totals, (totals.log() - own)[:, 0]


def _chunk_size(num_rows: int, vocab_size: int, device_type: str) -> int:
    """Rows of a chunk: all about equally many, a multiple of what matrix products are made of."""
    most, multiple = (CPU_CHUNK_BYTES, 8) if device_type == "cpu" else (CHUNK_BYTES, 128)
    num_chunks = -(-num_rows * vocab_size * 4 // most)
    return -(-num_rows // max(1, num_chunks) // multiple) * multiple or multiple


def _keep_gradients(ctx, inputs, output):
    hidden, weight, labels, loss_weights, *ctx.settings = inputs
    _, token_losses, predictions, hidden_gradient, weight_gradient = output
    ctx.mark_non_differentiable(predictions, hidden_gradient, weight_gradient)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(hidden, weight, labels, loss_weights, token_losses, hidden_gradient, weight_gradient)


def _backward(ctx, loss_gradient, token_gradient, *_):
    if torch.is_grad_enabled():
        raise RuntimeError(
            "The loss has no second derivatives without logits: pass `skip_logits=False` to the model, and call "
            '`model.set_attn_implementation("eager")`, as only that attention has any.'
        )
    hidden, weight, labels, loss_weights, token_losses, hidden_gradient, weight_gradient = ctx.saved_tensors
    if loss_gradient is not None and token_gradient is not None and is_traced(loss_gradient):
        loss_gradient, token_gradient = _refuse(token_gradient, loss_gradient), None
    row_gradient = 0.0 if loss_gradient is None else loss_gradient * loss_weights
    if token_gradient is not None:
        row_gradient = row_gradient + token_gradient
        if ctx.needs_input_grad[1]:
            dtype, *_ = ctx.settings
            *_, weight_gradient = _linear_cross_entropy(
                hidden, weight, labels, row_gradient, dtype, False, True, False
            )
    elif ctx.needs_input_grad[1]:
        weight_gradient = _scaled(weight_gradient, loss_gradient)
    return (
        (hidden_gradient * row_gradient[:, None]).to(hidden.dtype) if ctx.needs_input_grad[0] else None,
        weight_gradient.to(weight.dtype) if ctx.needs_input_grad[1] else None,
        None,
        loss_gradient * token_losses if ctx.needs_input_grad[3] and loss_gradient is not None else None,
        *[None] * len(ctx.settings),
    )


# A compiled graph has a gradient of each of its outputs, of zeros if nobody differentiates it: for token losses that
# are only logged, each step would compute the logits again. To look at the gradient must not wait for the device.
@torch.library.custom_op(operator_name("refuse_token_gradient", __name__), mutates_args=())
def _refuse(token_gradient: torch.Tensor, loss_gradient: torch.Tensor) -> torch.Tensor:
    """A copy of `loss_gradient`; an error, unless `token_gradient` is 0."""
    torch._assert_async(
        (token_gradient == 0).all(),
        "In a compiled graph `token_losses` have no gradient beside that of the loss: pass `skip_logits=False` to the "
        "model, or `loss_weights` for another weighting of the labels.",
    )
    return loss_gradient.clone()


@_refuse.register_fake
def _(token_gradient, loss_gradient):
    return torch.empty_like(loss_gradient)


_linear_cross_entropy.register_autograd(_backward, setup_context=_keep_gradients)


@counts_flops(operator_name("linear_cross_entropy", __name__))
def _flops(
    hidden, weight, labels, loss_weights, dtype, needs_hidden_gradient, needs_weight_gradient, *others, **kwargs
):
    """Rows without a label count, too: which ones these are is no matter of shapes."""
    return 2 * hidden[0] * hidden[1] * weight[0] * (1 + needs_hidden_gradient + needs_weight_gradient)


def _scaled(gradient: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Their product; on a CPU, where another matrix of this size costs as much as a chunk, nothing is done for 1."""
    if factor.device.type == "cpu" and not is_traced(factor) and factor.item() == 1:
        return gradient
    return gradient * factor
