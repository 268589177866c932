"""What a run prints: examples as text, documents put in order, metrics before and after training."""

import itertools
import logging
import random
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerState

from ..data.metadata import METADATA_IDS
from ..data.mixture import MixtureDataset
from ..data.packing import unpack_rows
from ..data.streams import ResumableStream
from ..evaluation.ordering import order_sentences
from ..tables import aligned
from .unshuffling import is_without_order

logger = logging.getLogger(__name__)

NO_LIMIT = 1_000_000  # of tokens; the documents were cut for this model already
NO_ORDER = "none"  # in a table of metrics, for Kendall's tau
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


def first_examples(
    dataset: Dataset | MixtureDataset | ResumableStream | Mapping[str, Dataset], number: int = 2
) -> list[dict[str, Any]]:
    """
    The first prepared examples; of a stream those before it is shuffled, for which a whole buffer is prepared, of
    several data sets those of the first one.

    >>> first_examples(Dataset.from_dict({"input_ids": [[5, 6], [7], [8]]}))
    [{'input_ids': [5, 6]}, {'input_ids': [7]}]
    """
    if isinstance(dataset, Mapping):
        dataset = next(iter(dataset.values()))
    rows = list(islice(dataset.one_pass() if isinstance(dataset, ResumableStream) else dataset, number))
    return unpack_rows(rows)[:number]


def print_examples(texts: Iterable[str]) -> None:
    """Print examples as text, see [`describe_example`]."""
    print("\nWhat the model reads and writes:")
    for text in texts:
        print(text + "\n", flush=True)


def describe_example(
    example: Mapping[str, Any],
    data_collator: Callable[[list], Mapping[str, torch.Tensor]],
    tokenizer: PreTrainedTokenizerBase,
) -> str:
    """
    One example as text: the document and its metadata, what the encoder reads, what the decoder is to write.

    Args:
        example: of the prepared data set.
        data_collator: what corrupts it.
        tokenizer: what decodes it.
    """
    batch = data_collator([example])
    labels = batch["labels"][0]
    token_ids = [int(i) for i in example["input_ids"]]
    metadata_ids = [int(i) for i in example.get(METADATA_IDS, ())]
    return "\n".join(
        [
            f"document: {tokenizer.decode(token_ids)}",
            *([f"metadata: {tokenizer.decode(metadata_ids)}"] if metadata_ids else []),
            f"input:    {tokenizer.decode(batch['input_ids'][0][batch['attention_mask'][0]])}",
            f"target:   {tokenizer.decode(labels[labels >= 0])}",
        ]
    )


def print_unshuffled(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Iterable[Mapping[str, Any]],
) -> None:
    """
    Let a DEPTH model put the sentences of held-out documents in order. Print how many pairs of sentences stand as in
    the documents, and the orders of three of them.

    Args:
        examples: of the prepared data set, with `input_ids` (no special tokens) and `sentence_lengths`.
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
    A table of the metrics of a trained model beside those of the first evaluation in the logs of its run, which a
    resumed run has from its checkpoint; without training, of the model alone.

    Args:
        state (`TrainerState`): after the evaluation of the trained model.
        after (`Mapping[str, float]`): the metrics of that evaluation.
        names (`Sequence[str]`): the metrics to show; those not measured are left out.

    >>> state = TrainerState(global_step=9, log_history=[{"step": 0, "eval_loss": 6.5}, {"step": 9, "eval_loss": 2.0}])
    >>> print(before_and_after(state, {"eval_loss": 2.0}, ["eval_loss"]))
               before   after
    eval_loss  6.5000  2.0000
    """
    columns = {"evaluation": after}
    note = ""
    if state.global_step:
        first = next((log for log in state.log_history if "eval_loss" in log), None)
        if first is None or first["step"] >= state.global_step:
            first, title = {}, "before"
            note = "\nBefore training nothing was measured: `--eval_on_start` does."
        else:
            title = f"step {first['step']}" if first["step"] else "before"
        columns = {title: first, "after": after}
    rows = [["", *columns]]
    for name in names:
        if name in after:
            rows.append([name, *(_cell(name, values) for values in columns.values())])
    if NO_ORDER in sum(rows, []):
        note += f"\nKendall's tau {NO_ORDER}: no generated text orders its sentences, which counts as -1 in the files."
    return aligned(rows) + note


def _cell(name: str, values: Mapping[str, float]) -> str:
    if name not in values:
        return "-"
    return NO_ORDER if is_without_order(name, values) else f"{values[name]:.4f}"
