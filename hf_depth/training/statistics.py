"""
The statistics of labels behind the metrics of pre-training: losses, accuracies, fractions.

Each one is a sum over examples, to be added up over batches, accumulation steps and processes before it is divided; so
memory does not grow with the number of examples.
"""

import torch
from transformers import PretrainedConfig

from ..models.modeling_depth import has_sentence_tokens, is_sentence_token

# The columns of `example_statistics`, in order. "sentence" labels are sentence tokens of the input, "eosen" labels are
# `<eosen>`, "reconstruction" labels are all others: tokens of the text, sentinels, `</s>`, and the sentence tokens by
# which a prefix language model goes on, which have no place in the order of its input.
STATISTICS = (
    "examples",
    "tokens",  # labels that count
    "loss_sum",  # weighted by `sentence_loss_coefficient`
    "sentence_tokens",
    "sentence_loss_sum",
    "reconstruction_tokens",
    "reconstruction_loss_sum",
    "eosen_tokens",
    "eosen_loss_sum",
    "shuffled",
    "input_tokens",  # without padding
    "positions",  # with padding, inputs and labels
    "tokens_cut",
    # The following need the predictions, so they are measured in evaluation only.
    "sentence_correct",
    "sentence_expected",  # expected number of correct guesses at chance
    "shuffled_sentence_tokens",
    "shuffled_sentence_correct",
    "shuffled_sentence_expected",
    "reconstruction_correct",
)


def sentence_sequence(ids: torch.Tensor, config: PretrainedConfig, width: int | None = None) -> torch.Tensor:
    """
    The sentence tokens of each row of a batch, in their order.

    Args:
        ids (`torch.LongTensor` of shape `(batch_size, length)`): token ids; -100 and padding may occur.
        width (`int`, *optional*): how many to keep of each row, by default `num_sentence_tokens`.

    Returns:
        `torch.LongTensor` of shape `(batch_size, width)`: padded with -1 at the end; sentence tokens past the
        `width`-th are left out.
    """
    return _in_front(ids, is_sentence_token(ids, config), config.num_sentence_tokens if width is None else width)


def _in_front(values: torch.Tensor, mask: torch.Tensor, width: int) -> torch.Tensor:
    """The values (B, L) under a mask, in their order, as (B, width): padded with -1, what is too many left out."""
    # Everything else is written to one column too many, which is cut off.
    column = torch.where(mask, mask.cumsum(dim=1) - 1, width).clamp(max=width)
    sequence = values.new_full((len(values), width + 1), -1).scatter_(1, column, torch.where(mask, values, -1))
    return sequence[:, :width]


def _is_given(sentences: torch.Tensor, input_ids: torch.Tensor, config: PretrainedConfig) -> torch.Tensor:
    """Which sentence tokens of `(B, N)`, padded with -1, the input has."""
    given = sentence_sequence(input_ids, config)  # (B, num_sentence_tokens)
    return (sentences[:, :, None] == given[:, None, :]).any(2) & (sentences >= 0)


def given_sequence(
    ids: torch.Tensor, input_ids: torch.Tensor, labels: torch.Tensor, config: PretrainedConfig
) -> torch.Tensor:
    """
    [`sentence_sequence`] of ids; in examples whose labels go on with sentences that the input has not (prefix language
    modelling), of the sentences that it has. Of other ids than the labels, all are kept: a model may write a sentence
    token several times, so that others come late.
    """
    gold = sentence_sequence(labels, config)
    sequence = gold if ids is labels else sentence_sequence(ids, config, max(gold.shape[1], ids.shape[1]))
    goes_on = ((gold >= 0) & ~_is_given(gold, input_ids, config)).any(1, keepdim=True)  # (B, 1)
    left_out = goes_on & ~_is_given(sequence, input_ids, config)
    order = left_out.long().argsort(dim=1, stable=True)
    return sequence.masked_fill(left_out, -1).gather(1, order)


def is_shuffled(input_ids: torch.Tensor, labels: torch.Tensor, config: PretrainedConfig) -> torch.BoolTensor:
    """
    Whether the sentence tokens of each example stand in another order in the input than in the labels.

    Args:
        input_ids (`torch.LongTensor` of shape `(B, S)`)
        labels (`torch.LongTensor` of shape `(B, T)`)
        config: the model's.

    Returns:
        `torch.BoolTensor` of shape `(B,)`.
    """
    if not has_sentence_tokens(config):
        return torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    return (sentence_sequence(input_ids, config) != given_sequence(labels, input_ids, labels, config)).any(dim=1)


def shuffled_segments(
    input_ids: torch.Tensor, labels: torch.Tensor, decoder_segment_ids: torch.Tensor, config: PretrainedConfig
) -> torch.BoolTensor:
    """
    [`is_shuffled`] for each example of packed rows, of which an input has as many sentence tokens as its labels.

    Args:
        input_ids (`torch.LongTensor` of shape `(B, S)`)
        labels (`torch.LongTensor` of shape `(B, T)`)
        decoder_segment_ids (`torch.LongTensor` of shape `(B, T)`): which example of its row each label belongs to.
        config: the model's.

    Returns:
        `torch.BoolTensor` of shape `(B, T)`: `True` in column `n - 1` if example `n` of the row is shuffled.
    """
    if not has_sentence_tokens(config):
        return torch.zeros_like(labels, dtype=torch.bool)
    width = labels.shape[1]
    is_label = is_sentence_token(labels, config)
    # The k-th sentence token of the inputs of a row and that of its labels belong to the same example.
    given = _in_front(input_ids, is_sentence_token(input_ids, config), width)
    differs = given != _in_front(labels, is_label, width)
    segments = _in_front(decoder_segment_ids, is_label, width).clamp(min=0)
    return _by_segment(differs, segments) > 0


def _by_segment(values: torch.Tensor, segment_ids: torch.Tensor) -> torch.Tensor:
    """Sums of values (B, L) over the examples 1, 2, … of each row: (B, L), int64, as no row has more than L."""
    sums = segment_ids.new_zeros(len(values), values.shape[1] + 1)
    return sums.scatter_add_(1, segment_ids, values.to(sums.dtype))[:, 1:]


def example_statistics(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    labels: torch.Tensor,
    token_losses: torch.Tensor,
    config: PretrainedConfig,
    sentence_loss_coefficient: float = 1.0,
    predictions: torch.Tensor | None = None,
    num_cut_tokens: torch.Tensor | None = None,
    decoder_segment_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """
    One row of [`STATISTICS`] per example; of packed rows, one per row with the sums over its examples. The shape is
    `(B, len(STATISTICS))`, the dtype float64.

    Args:
        input_ids (`torch.LongTensor` of shape `(B, S)`)
        attention_mask (`torch.Tensor` of shape `(B, S)`, *optional*): non-zero on real tokens.
        labels (`torch.LongTensor` of shape `(B, T)`): -100 does not count.
        token_losses (`torch.FloatTensor` of shape `(B, T)`): unweighted cross-entropy, 0 where the label is -100.
        config: the model's; a `DepthConfig` says which ids are sentence tokens.
        predictions (`torch.LongTensor` of shape `(B, T)`, *optional*): the likeliest ids, for accuracies.
        num_cut_tokens (`torch.LongTensor` of shape `(B,)`, *optional*): see `preprocessing`.
        decoder_segment_ids (`torch.LongTensor` of shape `(B, T)`, *optional*): of packed rows, the example of a label.
    """
    kinds = _kinds_of_labels(labels, input_ids, config)
    counted, sentence = labels != -100, kinds["sentence"]  # (B, T)
    ones = torch.ones_like(input_ids[:, 0])  # (B,)
    if decoder_segment_ids is None:
        examples, num_sentences = ones[:, None], sentence.sum(1, keepdim=True)  # (B, 1), as `shuffled`
        shuffled = is_shuffled(input_ids, labels, config)[:, None]
    else:
        examples = _by_segment(counted, decoder_segment_ids) > 0  # (B, T), as those below
        num_sentences = _by_segment(sentence, decoder_segment_ids)
        shuffled = shuffled_segments(input_ids, labels, decoder_segment_ids, config)
    loss = token_losses.detach().double()
    loss_sum = loss.sum(1)
    if sentence_loss_coefficient != 1:
        loss_sum = loss_sum + (sentence_loss_coefficient - 1) * (loss * is_sentence_token(labels, config)).sum(1)
    values = {
        "examples": examples.sum(1),
        "tokens": counted.sum(1),
        "loss_sum": loss_sum,
        "shuffled": shuffled.sum(1),
        "input_tokens": input_ids.shape[1] * ones if attention_mask is None else (attention_mask != 0).sum(1),
        "positions": (input_ids.shape[1] + labels.shape[1]) * ones,
        "tokens_cut": 0 * ones if num_cut_tokens is None else num_cut_tokens,
    }
    masks = torch.stack(list(kinds.values()))  # (3, B, T)
    for kind, number, total in zip(kinds, masks.sum(2), (loss * masks).sum(2), strict=True):
        values[f"{kind}_tokens"], values[f"{kind}_loss_sum"] = number, total
    if predictions is not None:
        correct = predictions == labels
        values["reconstruction_correct"] = (correct & kinds["reconstruction"]).sum(1)
        right = (correct & sentence).sum(1, keepdim=True)
        if decoder_segment_ids is not None:
            right = _by_segment(correct & sentence, decoder_segment_ids)
        values |= _sentence_accuracy(num_sentences, right, shuffled)
    # Numbers of all kinds, converted by one operation: there is one such row in every step of training.
    return torch.stack([values.get(name, 0 * ones) for name in STATISTICS], dim=1)


def _kinds_of_labels(
    labels: torch.Tensor, input_ids: torch.Tensor, config: PretrainedConfig
) -> dict[str, torch.Tensor]:
    """Which labels (B, T) are sentence tokens of the input, which are anything else, and which are `<eosen>`."""
    sentence = is_sentence_token(labels, config) & _are_of_input(labels, input_ids, config)
    eosen = labels == config.eosen_token_id if has_sentence_tokens(config) else torch.zeros_like(sentence)
    return {"sentence": sentence, "reconstruction": (labels != -100) & ~sentence & ~eosen, "eosen": eosen}


def _sentence_accuracy(
    num_sentences: torch.Tensor, right: torch.Tensor, shuffled: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The statistics of sentence tokens (B,) from numbers for each example of a row, all of shape (B, examples)."""
    values = {}
    numbers_of = {"tokens": num_sentences, "correct": right, "expected": _harmonic_number(num_sentences)}
    for name, numbers in numbers_of.items():
        values[f"sentence_{name}"] = numbers.sum(1)
        values[f"shuffled_sentence_{name}"] = (numbers * shuffled).sum(1)
    return values


def _are_of_input(labels: torch.Tensor, input_ids: torch.Tensor, config: PretrainedConfig) -> torch.Tensor:
    """Which sentence tokens among the labels (B, T) the input has; anything for other labels."""
    if not has_sentence_tokens(config):
        return torch.zeros_like(labels, dtype=torch.bool)
    first, number = config.first_sentence_token_id, config.num_sentence_tokens

    def places(ids: torch.Tensor) -> torch.Tensor:
        return torch.where(is_sentence_token(ids, config), ids - first, number)  # one column too many

    given = torch.zeros(len(labels), number + 1, dtype=torch.bool, device=labels.device)
    return given.scatter_(1, places(input_ids), True).gather(1, places(labels))


def summarize(sums: torch.Tensor) -> dict[str, float]:
    """
    Metrics from summed [`example_statistics`]; a measure without any label to measure it on is left out.

    Args:
        sums (`torch.DoubleTensor` of shape `(len(STATISTICS),)`)

    Returns:
        `dict[str, float]`: losses in nats per label (`loss` is weighted, the others are not), accuracies and fractions
        in [0, 1], and `tokens_cut`, a number of tokens. `sentence_accuracy_chance` is what guessing among the sentence
        tokens that remain would reach: H(n)/n for n sentences.
    """
    s = dict(zip(STATISTICS, sums.tolist(), strict=True))
    ratios = {
        "loss": ("loss_sum", "tokens"),
        "sentence_loss": ("sentence_loss_sum", "sentence_tokens"),
        "reconstruction_loss": ("reconstruction_loss_sum", "reconstruction_tokens"),
        "eosen_loss": ("eosen_loss_sum", "eosen_tokens"),
        "sentence_accuracy": ("sentence_correct", "sentence_tokens"),
        "sentence_accuracy_chance": ("sentence_expected", "sentence_tokens"),
        "sentence_accuracy_shuffled": ("shuffled_sentence_correct", "shuffled_sentence_tokens"),
        "sentence_accuracy_shuffled_chance": ("shuffled_sentence_expected", "shuffled_sentence_tokens"),
        "sentence_accuracy_unshuffled": ("unshuffled_sentence_correct", "unshuffled_sentence_tokens"),
        "sentence_accuracy_unshuffled_chance": ("unshuffled_sentence_expected", "unshuffled_sentence_tokens"),
        "reconstruction_accuracy": ("reconstruction_correct", "reconstruction_tokens"),
        "padding_fraction": ("padding", "positions"),
    }
    for name in ("tokens", "correct", "expected"):
        s[f"unshuffled_sentence_{name}"] = s[f"sentence_{name}"] - s[f"shuffled_sentence_{name}"]
    s["padding"] = s["positions"] - s["input_tokens"] - s["tokens"]
    metrics = {name: s[part] / s[whole] for name, (part, whole) in ratios.items() if s[whole] > 0}
    if s["sentence_tokens"] > 0:
        metrics["shuffled_fraction"] = s["shuffled"] / s["examples"]
    metrics["tokens_cut"] = int(s["tokens_cut"])
    return metrics


def _harmonic_number(n: torch.Tensor) -> torch.Tensor:
    """H(n) = 1 + 1/2 + … + 1/n for integers of any shape; H(0) = 0."""
    return torch.digamma(n.double() + 1) - torch.digamma(torch.ones((), dtype=torch.float64, device=n.device))
