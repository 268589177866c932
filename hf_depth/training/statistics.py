"""
The weighted loss of a batch, and the statistics of labels behind the metrics of pre-training.

Each statistic is a sum over examples. It is added up over batches, accumulation steps and processes before it is
divided, so memory does not grow with the number of examples.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedConfig, TrainingArguments
from transformers.modeling_outputs import ModelOutput

from ..data.mixture import MixtureDataset, MixtureStream
from ..models.modeling_depth import cross_entropy_per_token, has_sentence_tokens, is_sentence_token
from .source_counts import COUNTED, SourceCounts, num_consumers

if TYPE_CHECKING:
    from .trainer import DepthTrainer

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


# ---- The loss -------------------------------------------------------------------------------------------------------


def loss_weights(
    labels: torch.Tensor,
    num_items: torch.Tensor | int | None,
    config: PreTrainedConfig,
    args: TrainingArguments,
    num_processes: int = 1,
) -> torch.Tensor:
    """
    The weight of each label (B, T), padded with -100, in the loss: (B, T), float32. `num_items` are the labels of the
    global batch (by default of this one), `num_processes` those over which gradients are averaged.
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
    The sum of the weighted losses of all labels, the losses of the labels (B, T), and the outputs of the model.

    `weights_losses` says whether `forward` takes `loss_weights`, and computes the loss without all logits. To other
    models, `inputs` gives `decoder_input_ids` (B, T). `needs_gradients` is of the losses of single labels.
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


# ---- The order of sentences -----------------------------------------------------------------------------------------


def sentence_sequence(ids: torch.Tensor, config: PreTrainedConfig, width: int | None = None) -> torch.Tensor:
    """
    The sentence tokens of each row of ids (B, L), in their order: (B, width), padded with -1. The width is by default
    `num_sentence_tokens`; those past it are left out.
    """
    return _in_front(ids, is_sentence_token(ids, config), config.num_sentence_tokens if width is None else width)


def _in_front(values: torch.Tensor, mask: torch.Tensor, width: int) -> torch.Tensor:
    """The values (B, L) under a mask, in their order, as (B, width): padded with -1, what is too many left out."""
    # Everything else is written to one column too many, which is cut off.
    column = torch.where(mask, mask.cumsum(dim=1) - 1, width).clamp(max=width)
    sequence = values.new_full((len(values), width + 1), -1).scatter_(1, column, torch.where(mask, values, -1))
    return sequence[:, :width]


def _is_given(ids: torch.Tensor, input_ids: torch.Tensor, config: PreTrainedConfig) -> torch.Tensor:
    """Which ids (B, L) are sentence tokens that the input (B, S) has."""
    is_sentence = is_sentence_token(ids, config)
    if not has_sentence_tokens(config):
        return is_sentence
    first, number = config.first_sentence_token_id, config.num_sentence_tokens

    def places(tokens: torch.Tensor) -> torch.Tensor:
        return torch.where(is_sentence_token(tokens, config), tokens - first, number)  # one column too many

    given = torch.zeros(len(ids), number + 1, dtype=torch.bool, device=ids.device)
    return is_sentence & given.scatter_(1, places(input_ids), True).gather(1, places(ids))


def given_sequence(
    ids: torch.Tensor, input_ids: torch.Tensor, labels: torch.Tensor, config: PreTrainedConfig
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


def is_shuffled(input_ids: torch.Tensor, labels: torch.Tensor, config: PreTrainedConfig) -> torch.BoolTensor:
    """Whether (B,) the sentence tokens stand in another order in `input_ids` (B, S) than in `labels` (B, T)."""
    if not has_sentence_tokens(config):
        return torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    return (sentence_sequence(input_ids, config) != given_sequence(labels, input_ids, labels, config)).any(dim=1)


def shuffled_segments(
    input_ids: torch.Tensor, labels: torch.Tensor, decoder_segment_ids: torch.Tensor, config: PreTrainedConfig
) -> torch.BoolTensor:
    """
    [`is_shuffled`] for each example of packed rows, whose inputs have as many sentence tokens as their labels. It
    has the shape (B, T) of `decoder_segment_ids`, and is true in column `n - 1` if example `n` of the row is shuffled.
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


# ---- Statistics -----------------------------------------------------------------------------------------------------


def example_statistics(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    labels: torch.Tensor,
    token_losses: torch.Tensor,
    config: PreTrainedConfig,
    coefficient: float = 1.0,
    predictions: torch.Tensor | None = None,
    num_cut_tokens: torch.Tensor | None = None,
    decoder_segment_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """
    One row of [`STATISTICS`] per example; of packed rows, one per row with the sums over its examples. The shape is
    `(B, len(STATISTICS))`, the dtype float64.

    `input_ids` and `attention_mask` are (B, S); `labels` with -100 for padding, `token_losses` (unweighted, 0 for
    padding), `predictions` (the likeliest ids, for accuracies) and `decoder_segment_ids` (of packed rows) are (B, T).
    """
    counted, sentence = labels != -100, _is_given(labels, input_ids, config)  # (B, T)
    eosen = labels == config.eosen_token_id if has_sentence_tokens(config) else torch.zeros_like(sentence)
    kinds = {"sentence": sentence, "reconstruction": counted & ~sentence & ~eosen, "eosen": eosen}
    ones = torch.ones_like(input_ids[:, 0])  # (B,)
    if decoder_segment_ids is None:
        examples, shuffled = ones, is_shuffled(input_ids, labels, config)  # (B,)
    else:
        examples = (_by_segment(counted, decoder_segment_ids) > 0).sum(1)
        shuffled = shuffled_segments(input_ids, labels, decoder_segment_ids, config).sum(1)
    loss = token_losses.detach().double()
    loss_sum = loss.sum(1)
    if coefficient != 1:
        loss_sum = loss_sum + (coefficient - 1) * (loss * is_sentence_token(labels, config)).sum(1)
    values = {
        "examples": examples,
        "tokens": counted.sum(1),
        "loss_sum": loss_sum,
        "shuffled": shuffled,
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
        num_sentences = sentence.sum(1)
        numbers_of = {"tokens": num_sentences, "correct": (correct & sentence).sum(1)}
        for name, numbers in (numbers_of | {"expected": _harmonic_number(num_sentences)}).items():
            values[f"sentence_{name}"], values[f"shuffled_sentence_{name}"] = numbers, numbers * shuffled
    # Numbers of all kinds, converted by one operation: there is one such row in every step of training.
    return torch.stack([values.get(name, 0 * ones) for name in STATISTICS], dim=1)


def summarize(sums: torch.Tensor) -> dict[str, float]:
    """
    Metrics from summed [`example_statistics`]; a measure without any label to measure it on is left out.

    Losses are in nats per label (`loss` is weighted, the others are not), accuracies and fractions in [0, 1].
    `sentence_accuracy_chance` is what guessing among the sentence tokens that remain would reach: H(n)/n for n
    sentences.
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


class TrainingMetrics:
    """
    What is added up between two logs of a training: the components of the loss, rates, and of a mixture what was seen
    of each source. Sums stay on the device: no step waits for it. [`~TrainingMetrics.gather`] adds them up over the
    processes, before a log.
    """

    def __init__(self, trainer: "DepthTrainer"):
        self.trainer = trainer
        self.sources: SourceCounts | None = None  # of a mixture
        self._sums: torch.Tensor | None = None
        self._clock: float | None = None
        self._gathered: dict[str, float] = {}

    def begin(self) -> None:
        """When a training begins, or goes on from the totals of the run."""
        trainer = self.trainer
        self._sums, self._clock, self._gathered, self.sources = None, None, {}, None
        if isinstance(trainer.train_dataset, MixtureDataset | MixtureStream):
            self.sources = SourceCounts(trainer.train_dataset, trainer.sums_device, num_consumers(trainer.args))
            if trainer.is_world_process_zero():
                self.sources.restore(trainer.totals.sources)

    def add(self, statistics: torch.Tensor, read: Mapping[str, Any]) -> None:
        """Count a batch by its [`example_statistics`], and of a mixture by what [`SourceCounts`] counts, all (B,)."""
        own = statistics.sum(0)
        self._sums = own if self._sums is None else self._sums + own
        if self.sources is not None and "source" in read:
            self.sources.add(**{name: read[name] for name in COUNTED})

    def snapshot(self) -> Callable[[], None]:
        """A function that forgets what is counted from now on."""
        before, sources = self._sums, None if self.sources is None else self.sources.sums

        def go_back() -> None:
            self._sums = before
            if self.sources is not None:
                self.sources.sums = sources

        return go_back

    def gather_sources(self) -> None:
        """Add up what was seen of each source; all processes call this at the same time."""
        if self.sources is not None:
            self._gathered |= self.sources.metrics(self.trainer.accelerator)
            self.trainer.totals.sources = self.sources.gathered

    def gather(self) -> None:
        """Add up what the next log shows; all processes call this at the same time."""
        self.gather_sources()
        sums, self._sums = self._sums, None
        if sums is None:
            return
        sums = self.trainer.accelerator.reduce(sums, "sum")
        # The loss itself is in the log already, and accuracies take predictions, which training does not make.
        names = self.trainer.training_metrics
        self._gathered |= {name: value for name, value in summarize(sums).items() if name in names}
        now = time.perf_counter()
        if self._clock is not None:
            statistics = dict(zip(STATISTICS, sums.tolist(), strict=True))
            tokens = statistics["input_tokens"] + statistics["tokens"]
            self._gathered["tokens_per_second"] = tokens / (now - self._clock)
        self._clock = now

    def pause(self, seconds: float) -> None:
        """Leave a time out of the rates, such as that of an evaluation."""
        if self._clock is not None:
            self._clock += seconds

    def pop(self) -> dict[str, float]:
        """What was gathered for a log."""
        gathered, self._gathered = self._gathered, {}
        return gathered
