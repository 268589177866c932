"""What a run prints: examples, a line for each log, documents put in order, metrics before and after."""

import itertools
import logging
import random
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerState,
)

from ..data.metadata import METADATA_IDS
from ..data.packing import unpack_rows
from ..data.streams import TrainingStream
from ..evaluation.ordering import order_sentences
from ..tables import aligned

logger = logging.getLogger(__name__)

# The figures that are printed, and how. All others are in trainer_state.json and all_results.json.
FIGURES = {
    "loss": ".4g",
    "sentence_loss": ".4g",
    "reconstruction_loss": ".4g",
    "learning_rate": ".2e",
    "grad_norm": ".3g",
    "tokens_per_second": ",.0f",
    "sentence_accuracy": ".4f",
    "order_exact_shuffled": ".4f",
    "with_metadata_loss": ".4g",
    "attention_entropy": ".2f",
    "score": ".4f",
    "unparsed_fraction": ".4f",
    "runtime": ",.0f",
}
LEGEND = (
    "loss: cross-entropy per target token, in nats; sentence loss: of the sentence tokens of DEPTH, before their "
    "coefficient; reconstruction loss: of all other tokens. A model from scratch starts high: its random output layer "
    "is sure of wrong tokens."
)
NO_LIMIT = 1_000_000  # of tokens; the documents were cut for this model already
REPORTED_METRICS = (
    "eval_loss",
    "eval_sentence_loss",
    "eval_reconstruction_loss",
    "eval_sentence_accuracy",
    "eval_sentence_accuracy_chance",
    "eval_sentence_accuracy_shuffled",
    "eval_sentence_accuracy_shuffled_chance",
    "eval_sentence_accuracy_unshuffled",
    "eval_sentence_accuracy_unshuffled_chance",
    "eval_reconstruction_accuracy",
    "eval_order_exact_shuffled",
    "eval_order_exact_shuffled_chance",
    "eval_order_exact_constrained_shuffled",
    "eval_order_kendall_tau_shuffled",
    "eval_order_kendall_tau_constrained_shuffled",
    "eval_with_metadata_loss",
    "eval_with_metadata_sentence_loss",
    "eval_with_metadata_reconstruction_loss",
    "eval_with_metadata_sentence_accuracy_shuffled",
    "eval_with_metadata_reconstruction_accuracy",
)


# ---- Logs -----------------------------------------------------------------------------------------------------------


class LogLines(PrinterCallback):
    """Prints one line with a few figures for each log on the first process; nothing with `log_level` error."""

    _is_explained = False

    def on_log(self, args, state, control, logs=None, **kwargs):
        line = log_line(state, logs or {})
        if line is None or not state.is_world_process_zero or args.get_process_log_level() > logging.WARNING:
            return
        if "reconstruction loss" in line and not self._is_explained:  # of pre-training
            tqdm.write(LEGEND, file=sys.stdout)
            self._is_explained = True
        tqdm.write(line, file=sys.stdout)  # above the bars, if there are any
        sys.stdout.flush()

    def on_predict(self, args, state, control, metrics, **kwargs):
        super().on_predict(args, state, control, metrics=metrics, **kwargs)
        self.on_log(args, state, control, logs=metrics)


class ProgressBar(LogLines, ProgressCallback):
    """A [`ProgressCallback`] that writes the lines of [`LogLines`] above its bars."""


def install_console(trainer: Trainer) -> None:
    """Print by [`LogLines`], or on a terminal by a [`ProgressBar`]. A notebook keeps its own callback."""
    for stock in trainer.callback_handler.callbacks:
        if type(stock) in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(stock)
            trainer.add_callback(ProgressBar if type(stock) is ProgressCallback and sys.stderr.isatty() else LogLines)
            return


def log_line(state: TrainerState, logs: Mapping[str, Any]) -> str | None:
    """
    The line to print for a log of training, of evaluations, or of the end of training; `None` if it has no figure.

    >>> state = TrainerState(global_step=25, max_steps=400)
    >>> log_line(state, {"loss": 8.508, "sentence_loss": 6.5, "learning_rate": 1e-3, "padding_fraction": 0.3})
    'step  25/400 | loss 8.508 | sentence loss 6.5 | learning rate 1.00e-03'
    >>> log_line(state, {"eval_loss": 8.5, "eval_score": 0.25, "eval_runtime": 2.0})
    'step  25/400 | evaluation: loss 8.5, score 0.2500, seconds 2'
    """
    # Each data set that was evaluated has a runtime, as has the end of training.
    prefixes = [name.removesuffix("runtime") for name in logs if name.endswith("_runtime")]
    parts = [f"{_title(prefix)}: {', '.join(_figures(logs, prefix))}" for prefix in prefixes] or _figures(logs, "")
    if prefixes and "eval_" not in prefixes and "eval_score" in logs:  # of several tasks
        parts.append(f"mean score {logs['eval_score']:.4f}")
    total = str(state.max_steps or "")
    step = f"step {state.global_step:>{len(total)}}" + (total and f"/{total}")
    return " | ".join([step, *parts]) if parts else None


def _title(prefix: str) -> str:
    split, _, dataset = prefix.strip("_").partition("_")
    return {"eval": "evaluation", "train": "training"}.get(split, split) + (dataset and f" of {dataset}")


def _figures(logs: Mapping[str, Any], prefix: str) -> list[str]:
    shown = [(name, format(logs[prefix + name], spec)) for name, spec in FIGURES.items() if prefix + name in logs]
    names = {"tokens_per_second": "tokens/s", "runtime": "seconds"}
    return [f"{names.get(name, name.replace('_', ' '))} {number}" for name, number in shown]


# ---- The beginning and the end of a run -----------------------------------------------------------------------------


def first_examples(dataset: Any, number: int = 2) -> list[dict[str, Any]]:
    """
    The first prepared examples; of a stream those before it is shuffled, of several data sets those of the first one.

    >>> first_examples([{"input_ids": [5, 6]}, {"input_ids": [7]}, {"input_ids": [8]}])
    [{'input_ids': [5, 6]}, {'input_ids': [7]}]
    """
    if isinstance(dataset, Mapping):
        dataset = next(iter(dataset.values()))
    rows = list(itertools.islice(dataset.one_pass() if isinstance(dataset, TrainingStream) else dataset, number))
    return unpack_rows(rows)[:number]


def print_examples(
    examples: Iterable[Mapping[str, Any]],
    data_collator: Callable[[list], Mapping[str, torch.Tensor]],
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Print prepared examples as text: the document, its metadata, what the encoder reads, what the decoder writes."""
    print("\nWhat the model reads and writes:")
    for example in examples:
        batch = data_collator([example])
        input_ids, labels = batch["input_ids"][0][batch["attention_mask"][0].bool()], batch["labels"][0]
        metadata_ids = [int(i) for i in example.get(METADATA_IDS, ())]
        print(f"document: {tokenizer.decode([int(i) for i in example['input_ids']])}")
        print(f"metadata: {tokenizer.decode(metadata_ids)}\n" if metadata_ids else "", end="")
        print(f"input:    {tokenizer.decode(input_ids)}")
        print(f"target:   {tokenizer.decode(labels[labels >= 0])}\n", flush=True)


def print_unshuffled(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Iterable[Mapping[str, Any]],
) -> None:
    """
    Let a DEPTH model put the sentences of held-out documents in order, which are prepared examples. Print how many
    pairs of sentences stand as in the documents, and the orders of three of them.
    """
    generator, documents, shuffled = random.Random(0), [], []
    for sentences in (_sentences(example, tokenizer) for example in examples):
        order = generator.sample(range(len(sentences)), len(sentences))
        if order != sorted(order) and all(sentence.strip() for sentence in sentences):
            documents.append(sentences)
            shuffled.append(order)
    if not documents:
        logger.warning("No evaluation example can be shuffled: there is no order to show.")
        return
    given = [[sentences[i] for i in order] for sentences, order in zip(documents, shuffled, strict=True)]
    results = order_sentences(model, tokenizer, given, max_source_length=NO_LIMIT)
    found = [[order[i] for i in result["order"]] for order, result in zip(shuffled, results, strict=True)]
    pairs = [place < later for order in found for place, later in itertools.combinations(order, 2)]
    right = f"{sum(pairs)} of {len(pairs)} shuffled pairs put in order (chance {len(pairs) / 2:.0f})"
    print(f"\nHeld-out documents: {right}. Some documents as the model orders them, with the true places:\n")
    for sentences, order in list(zip(documents, found, strict=True))[:3]:
        lines = [f"  {place + 1}. {textwrap.shorten(sentences[place], 120)}" for place in order]
        print("\n".join(lines) + "\n", flush=True)


def _sentences(example: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    token_ids = [int(i) for i in example["input_ids"]]
    ends = itertools.accumulate(int(length) for length in example["sentence_lengths"])
    return [tokenizer.decode(token_ids[start:end]) for start, end in itertools.pairwise([0, *ends])]


def before_and_after(state: TrainerState, after: Mapping[str, float], names: Sequence[str]) -> str:
    """
    A table of the metrics of a trained model beside those of the first evaluation in the logs of its run; those not
    measured are left out.

    >>> state = TrainerState(global_step=9, log_history=[{"step": 0, "eval_loss": 6.5}, {"step": 9, "eval_loss": 2.0}])
    >>> print(before_and_after(state, {"eval_loss": 2.0}, ["eval_loss"]))
               before   after
    eval_loss  6.5000  2.0000
    """
    columns = {"evaluation": after}
    first = next((log for log in state.log_history if "eval_loss" in log), None)
    if first is not None and first["step"] < state.global_step:
        columns = {f"step {first['step']}" if first["step"] else "before": first, "after": after}
    rows = [
        [name, *(f"{values[name]:.4f}" if name in values else "-" for values in columns.values())]
        for name in names
        if name in after
    ]
    return aligned([["", *columns], *rows])
