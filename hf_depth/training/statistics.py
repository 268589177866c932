"""
The statistics behind the metrics of pre-training.

Each one is a sum over examples, to be added up over batches, accumulation steps and processes before it is divided; so
memory does not grow with the number of examples.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
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
ORDER_STATISTICS = ("orders", "exact", "tau_sum")
UNSHUFFLING_STATISTICS = (*ORDER_STATISTICS, "squared_tau_sum")


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


def _given_sequence(
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
    return (sentence_sequence(input_ids, config) != _given_sequence(labels, input_ids, labels, config)).any(dim=1)


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
    One row of [`STATISTICS`] per example; of packed rows, one per row with the sums over its examples.

    Args:
        input_ids (`torch.LongTensor` of shape `(B, S)`)
        attention_mask (`torch.Tensor` of shape `(B, S)`, *optional*): non-zero on real tokens.
        labels (`torch.LongTensor` of shape `(B, T)`): -100 does not count.
        token_losses (`torch.FloatTensor` of shape `(B, T)`): unweighted cross-entropy, 0 where the label is -100.
        config: the model's; a `DepthConfig` says which ids are sentence tokens.
        predictions (`torch.LongTensor` of shape `(B, T)`, *optional*): the likeliest ids; without them no accuracy is
            measured.
        num_cut_tokens (`torch.LongTensor` of shape `(B,)`, *optional*): see `preprocessing`.
        decoder_segment_ids (`torch.LongTensor` of shape `(B, T)`, *optional*): of packed rows, which example each
            label belongs to.

    Returns:
        `torch.DoubleTensor` of shape `(B, len(STATISTICS))`.
    """
    counted = labels != -100  # (B, T), as the masks below
    every_sentence = is_sentence_token(labels, config)
    sentence = every_sentence & _are_of_input(labels, input_ids, config)
    eosen = labels == config.eosen_token_id if has_sentence_tokens(config) else torch.zeros_like(counted)
    reconstruction = counted & ~sentence & ~eosen
    ones = torch.ones_like(input_ids[:, 0])  # (B,)
    if decoder_segment_ids is None:
        examples, num_sentences = ones[:, None], sentence.sum(1, keepdim=True)  # (B, 1), as `shuffled`
        shuffled = is_shuffled(input_ids, labels, config)[:, None]
    else:
        examples = _by_segment(counted, decoder_segment_ids) > 0  # (B, T), as those below
        num_sentences = _by_segment(sentence, decoder_segment_ids)
        shuffled = shuffled_segments(input_ids, labels, decoder_segment_ids, config)
    loss = token_losses.detach().double()  # (B, T)
    loss_sum = loss.sum(1)
    if sentence_loss_coefficient != 1:
        loss_sum = loss_sum + (sentence_loss_coefficient - 1) * (loss * every_sentence).sum(1)
    values = {
        "examples": examples.sum(1),
        "tokens": counted.sum(1),
        "loss_sum": loss_sum,
        "shuffled": shuffled.sum(1),
        "input_tokens": input_ids.shape[1] * ones if attention_mask is None else (attention_mask != 0).sum(1),
        "positions": (input_ids.shape[1] + labels.shape[1]) * ones,
    }
    if num_cut_tokens is not None:
        values["tokens_cut"] = num_cut_tokens
    kinds = {"sentence": sentence, "reconstruction": reconstruction, "eosen": eosen}
    masks = torch.stack(list(kinds.values()))  # (3, B, T)
    for kind, number, total in zip(kinds, masks.sum(2), (loss * masks).sum(2), strict=True):
        values[f"{kind}_tokens"], values[f"{kind}_loss_sum"] = number, total
    if predictions is not None:
        correct = predictions == labels
        right = (correct & sentence).sum(1, keepdim=True)
        if decoder_segment_ids is not None:
            right = _by_segment(correct & sentence, decoder_segment_ids)
        values["reconstruction_correct"] = (correct & reconstruction).sum(1)
        by_example = {"tokens": num_sentences, "correct": right, "expected": _harmonic_number(num_sentences)}
        for name, numbers in by_example.items():
            values[f"sentence_{name}"] = numbers.sum(1)
            values[f"shuffled_sentence_{name}"] = (numbers * shuffled).sum(1)
    zeros = torch.zeros_like(ones, dtype=torch.float64)
    # Numbers of all kinds, converted by one operation: there is one such row in every step of training.
    return torch.stack([values.get(name, zeros) for name in STATISTICS], dim=1)


def _are_of_input(labels: torch.Tensor, input_ids: torch.Tensor, config: PretrainedConfig) -> torch.Tensor:
    """Which sentence tokens among the labels (B, T) the input has; anything for other labels."""
    if not has_sentence_tokens(config):
        return torch.zeros_like(labels, dtype=torch.bool)
    first, number = config.first_sentence_token_id, config.num_sentence_tokens

    def places(ids: torch.Tensor) -> torch.Tensor:
        return torch.where(is_sentence_token(ids, config), ids - first, number)  # one column too many

    given = torch.zeros(len(labels), number + 1, dtype=torch.bool, device=labels.device)
    return given.scatter_(1, places(input_ids), True).gather(1, places(labels))


def order_statistics(
    generated_ids: torch.Tensor, input_ids: torch.Tensor, labels: torch.Tensor, config: PretrainedConfig
) -> torch.Tensor:
    """
    How well generated targets un-shuffle: one row of [`ORDER_STATISTICS`] per example.

    `exact` is 1 if the sentence tokens generated are those of the labels in the same order. `tau_sum` is Kendall's tau
    between both orders, `2 * concordant pairs / pairs - 1`; a pair of which a token was not generated is not
    concordant. An example with fewer than two sentences has no order and counts nowhere. Where the labels go on with
    sentences that the input has not (prefix language modelling), only the sentences of the input count.

    Args:
        generated_ids (`torch.LongTensor` of shape `(B, G)`): what `generate()` returned.
        input_ids (`torch.LongTensor` of shape `(B, S)`): encoder input.
        labels (`torch.LongTensor` of shape `(B, T)`): the target.

    Returns:
        `torch.DoubleTensor` of shape `(B, len(ORDER_STATISTICS))`.
    """
    gold = _given_sequence(labels, input_ids, labels, config)  # (B, N)
    generated = _given_sequence(generated_ids, input_ids, labels, config)  # (B, G), G >= N
    num_sentences = (gold >= 0).sum(1)
    pairs = num_sentences.double() * (num_sentences - 1) / 2
    counts = (num_sentences >= 2).double()
    width = gold.shape[1]
    exact = ((gold == generated[:, :width]).all(1) & (generated[:, width:] < 0).all(1)).double() * counts

    # The place of each gold token in the generated order; tokens that were not generated have none.
    same = (gold[:, :, None] == generated[:, None, :]) & (gold >= 0)[:, :, None]  # (B, N, G)
    found = same.any(2)
    place = same.int().argmax(2)  # (B, N), the first occurrence
    in_order = (place[:, :, None] < place[:, None, :]) & found[:, :, None] & found[:, None, :]
    concordant = in_order.triu(diagonal=1).sum((1, 2))
    tau = (2 * concordant / pairs.clamp(min=1) - 1) * counts
    return torch.stack([counts, exact, tau], dim=1)


def added(total: torch.Tensor | None, part: torch.Tensor) -> torch.Tensor:
    """
    The sum of what was added up so far, `None` of nothing, and one more part.

    >>> added(added(None, torch.tensor([1, 2])), torch.tensor([3, 4])).tolist()
    [4, 6]
    """
    return part if total is None else total + part


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


def summarize_order(table: torch.Tensor, constrained: bool = False) -> dict[str, float]:
    """
    Metrics from summed [`unshuffling_table`]s: `order_exact`, its chance level, and `order_kendall_tau` (chance: 0),
    of all examples and of shuffled ones.

    Args:
        table (`torch.DoubleTensor` of shape `(2, N + 1, C)`)
        constrained (`bool`, *optional*): whether each sentence token had to be generated once. Then the names are
            `order_exact_constrained` and `order_kendall_tau_constrained`; the chance level is that of `order_exact`.
    """
    metrics = {}
    decoding = "_constrained" if constrained else ""
    in_order, shuffled = table.cpu().numpy()
    chance = [1 / math.factorial(number) for number in range(len(shuffled))]  # of the one order of so many sentences
    for suffix, part in (("", in_order + shuffled), ("_shuffled", shuffled)):
        orders, exact, tau = part[:, : len(ORDER_STATISTICS)].sum(0).tolist()
        if orders:
            metrics[f"order_exact{decoding}{suffix}"] = exact / orders
            if not constrained:
                metrics[f"order_exact{suffix}_chance"] = float(part[:, 0] @ chance) / orders
            metrics[f"order_kendall_tau{decoding}{suffix}"] = tau / orders
    return metrics


def is_without_order(name: str, metrics: Mapping[str, float]) -> bool:
    """
    Whether a metric of [`summarize_order`] is the Kendall's tau of a model that wrote no order: -1, of all examples. A
    mean over evaluation data in which every order is reversed has not been seen; but a model that copies the order of
    its input has -1 on shuffled pairs. Under the constraint, an order is always written.

    >>> is_without_order("eval_order_kendall_tau", {"eval_order_kendall_tau": -1.0})
    True
    >>> copied = {"eval_order_kendall_tau": 0.2, "eval_order_kendall_tau_shuffled": -1.0}
    >>> is_without_order("eval_order_kendall_tau_shuffled", copied)
    False
    """
    if "kendall_tau" not in name or "constrained" in name:
        return False
    return metrics[name] == -1 and metrics.get(name.removesuffix("_shuffled"), -1) == -1


def unshuffling_statistics(
    generated_ids: torch.Tensor, input_ids: torch.Tensor, labels: torch.Tensor, config: PretrainedConfig
) -> torch.Tensor:
    """
    What generated targets have right, one row per example: what [`unshuffling_table`] adds up.

    Args:
        generated_ids, input_ids, labels, config: see [`order_statistics`].

    Returns:
        `torch.DoubleTensor` of shape `(B, 2 + len(UNSHUFFLING_STATISTICS) + N)` for N sentence tokens: whether the
        example is shuffled, its number of sentences, `UNSHUFFLING_STATISTICS`, and for each position whether the right
        sentence stands there.
    """
    gold = _given_sequence(labels, input_ids, labels, config)  # (B, N)
    is_sentence = gold >= 0
    generated = _given_sequence(generated_ids, input_ids, labels, config)[:, : gold.shape[1]]
    right = (gold == generated) & is_sentence
    scores = order_statistics(generated_ids, input_ids, labels, config)  # (B, len(ORDER_STATISTICS))
    keys = torch.stack([is_shuffled(input_ids, labels, config), is_sentence.sum(1)], dim=1)
    return torch.cat([keys.double(), scores, scores[:, -1:] ** 2, right.double()], dim=1)


def unshuffling_table(statistics: torch.Tensor) -> torch.Tensor:
    """
    Sums of [`unshuffling_statistics`] by the number of sentences, to be added up over batches.

    Args:
        statistics (`torch.DoubleTensor` of shape `(B, 2 + C)`): from [`unshuffling_statistics`].

    Returns:
        `torch.DoubleTensor` of shape `(2, N + 1, C)`: for examples left in order and for shuffled ones, and for 0 to N
        sentences.
    """
    keys, rows = statistics[:, :2].long(), statistics[:, 2:]
    table = rows.new_zeros(2, rows.shape[1] - len(UNSHUFFLING_STATISTICS) + 1, rows.shape[1])
    return table.index_put_((keys[:, 0], keys[:, 1]), rows, accumulate=True)


def unshuffling_accuracy(table: torch.Tensor) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """
    Un-shuffling accuracy by the number of sentences and by position, from summed [`unshuffling_table`]s.

    Args:
        table (`torch.DoubleTensor` of shape `(2, N + 1, C)`)

    Returns:
        `dict`: for `all` examples of at least two sentences and for the `shuffled` ones, `by_number_of_sentences` (the
        share of examples whose order is right) and `by_position` (the share with the right sentence at this position,
        of the examples that have one). Each entry has `accuracy` with `examples` and `correct`, its 95 % Wilson score
        `interval`, and the level of `chance`, a random order. By number of sentences there are also the mean of
        Kendall's tau and its standard error.
    """
    in_order, shuffled = table.cpu().numpy()
    return {name: _accuracies(part[2:]) for name, part in (("all", in_order + shuffled), ("shuffled", shuffled))}


def _accuracies(rows: np.ndarray) -> dict[str, list[dict[str, Any]]]:
    """Of rows for two sentences and more."""
    by_number, by_position = [], []
    sizes = np.arange(2, len(rows) + 2)  # (len(rows),)
    for size, (examples, exact, tau, tau_squared) in zip(sizes.tolist(), rows[:, :4].tolist(), strict=True):
        if examples:
            mean = tau / examples
            variance = max(0.0, tau_squared / examples - mean**2) * examples / max(1.0, examples - 1)
            taus = {"kendall_tau": mean, "kendall_tau_standard_error": math.sqrt(variance / examples)}
            by_number.append({"sentences": size, **_proportion(exact, examples, 1 / math.factorial(size)), **taus})
    for position in range(1, len(rows) + 2):
        examples = rows[sizes >= position, 0]
        if examples.sum():
            chance = (examples / sizes[sizes >= position]).sum() / examples.sum()
            correct = rows[:, 3 + position].sum()
            by_position.append({"position": position, **_proportion(correct, examples.sum(), chance)})
    return {"by_number_of_sentences": by_number, "by_position": by_position}


def _proportion(correct: float, examples: float, chance: float) -> dict[str, Any]:
    from scipy.stats import binomtest  # takes half a second to import

    interval = binomtest(int(correct), int(examples)).proportion_ci(0.95, method="wilson")
    return {
        "examples": int(examples),
        "correct": int(correct),
        "accuracy": float(correct / examples),
        "interval": [float(interval.low), float(interval.high)],
        "chance": float(chance),
    }


def _harmonic_number(n: torch.Tensor) -> torch.Tensor:
    """H(n) = 1 + 1/2 + … + 1/n for integers of any shape; H(0) = 0."""
    return torch.digamma(n.double() + 1) - torch.digamma(torch.ones((), dtype=torch.float64, device=n.device))
