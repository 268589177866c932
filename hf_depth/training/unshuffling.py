"""
The statistics behind the scores of un-shuffling: in which order a model writes the sentence tokens of its input.

Each one is a sum over examples, as those of labels are.
"""

import math
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedConfig

from .statistics import given_sequence, is_shuffled

# Behind the two keys of a row of `unshuffling_statistics`; then follow the positions.
ORDER_STATISTICS = ("orders", "exact", "tau_sum")


def unshuffling_statistics(
    generated_ids: torch.Tensor, input_ids: torch.Tensor, labels: torch.Tensor, config: PreTrainedConfig
) -> torch.Tensor:
    """
    What generated targets have right, one row per example: what [`unshuffling_table`] adds up.

    - `exact` is 1 if the sentence tokens generated are those of the labels in the same order.
    - `tau_sum` is Kendall's tau between both orders, `2 * concordant pairs / pairs - 1`. A pair of which a token was
      not generated is not concordant.
    - An example with fewer than two sentences has no order, and counts nowhere.
    - Where the labels go on with sentences that the input has not (prefix language modelling), only the sentences of
      the input count.

    `generated_ids` are (B, G), `input_ids` (B, S), `labels` (B, T). A row has, for N sentence tokens and in float64,
    whether the example is shuffled, its number of sentences, `ORDER_STATISTICS`, and which positions are right (N).
    """
    gold = given_sequence(labels, input_ids, labels, config)  # (B, N)
    generated = given_sequence(generated_ids, input_ids, labels, config)  # (B, G), G >= N
    width, is_sentence = gold.shape[1], gold >= 0
    num_sentences = is_sentence.sum(1)
    pairs = num_sentences.double() * (num_sentences - 1) / 2
    counts = (num_sentences >= 2).double()
    right = gold == generated[:, :width]
    exact = (right.all(1) & (generated[:, width:] < 0).all(1)).double() * counts

    # The place of each gold token in the generated order; tokens that were not generated have none.
    same = (gold[:, :, None] == generated[:, None, :]) & is_sentence[:, :, None]  # (B, N, G)
    found = same.any(2)
    place = same.int().argmax(2)  # (B, N), the first occurrence
    in_order = (place[:, :, None] < place[:, None, :]) & found[:, :, None] & found[:, None, :]
    concordant = in_order.triu(diagonal=1).sum((1, 2))
    tau = (2 * concordant / pairs.clamp(min=1) - 1) * counts
    columns = [is_shuffled(input_ids, labels, config), num_sentences, counts, exact, tau]
    return torch.cat([torch.stack([each.double() for each in columns], dim=1), (right & is_sentence).double()], dim=1)


def unshuffling_table(statistics: torch.Tensor) -> torch.Tensor:
    """
    Sums of [`unshuffling_statistics`] (B, 2 + C), float64 of shape `(2, N + 1, C)`: for examples left in order and for
    shuffled ones, and for 0 to N sentences. They are added up over batches.
    """
    keys, rows = statistics[:, :2].long(), statistics[:, 2:]
    table = rows.new_zeros(2, rows.shape[1] - len(ORDER_STATISTICS) + 1, rows.shape[1])
    return table.index_put_((keys[:, 0], keys[:, 1]), rows, accumulate=True)


def summarize_order(table: torch.Tensor, constrained: bool = False) -> dict[str, float]:
    """
    Metrics from a summed [`unshuffling_table`]: `order_exact`, its chance level, and `order_kendall_tau` (chance: 0;
    of a model that writes no order: -1), of all examples and of shuffled ones. If each sentence token had to be
    generated once (`constrained`), the names say so.
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


def unshuffling_accuracy(table: torch.Tensor) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """
    Un-shuffling accuracy from a summed [`unshuffling_table`]: for `all` examples of at least two sentences and for the
    `shuffled` ones, `by_number_of_sentences` (the share of examples whose order is right) and `by_position` (the share
    with the right sentence there, of the examples that have one). Each entry has `examples`, `correct`, `accuracy`,
    its 95 % Wilson score `interval` and the level of `chance`; by number of sentences also the mean of Kendall's tau.
    """
    in_order, shuffled = table.cpu().numpy()
    return {name: _accuracies(part[2:]) for name, part in (("all", in_order + shuffled), ("shuffled", shuffled))}


def _accuracies(rows: np.ndarray) -> dict[str, list[dict[str, Any]]]:
    """By number of sentences and by position, from rows for two sentences and more."""
    by_number, by_position = [], []
    sizes = np.arange(2, len(rows) + 2)  # (len(rows),)
    for size, (examples, exact, tau) in zip(sizes.tolist(), rows[:, :3].tolist(), strict=True):
        if examples:
            share = _proportion(exact, examples, 1 / math.factorial(size))
            by_number.append({"sentences": size, **share, "kendall_tau": tau / examples})
    for position in range(1, len(rows) + 2):
        examples = rows[sizes >= position, 0]
        if examples.sum():
            chance = (examples / sizes[sizes >= position]).sum() / examples.sum()
            correct = rows[:, 2 + position].sum()
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
