"""What a run prints: examples as text, a document put in order, metrics before and after training."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerState

from ..data.streams import ExampleStream
from .statistics import is_shuffled, order_statistics, sentence_sequence

logger = logging.getLogger(__name__)

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
    "eval_order_kendall_tau_shuffled",
)


def first_examples(dataset: Dataset | ExampleStream, number: int = 2) -> list[dict[str, Any]]:
    """
    The first prepared examples; of a stream those before it is shuffled, for which a whole buffer is prepared.

    >>> first_examples(Dataset.from_dict({"input_ids": [[5, 6], [7], [8]]}))
    [{'input_ids': [5, 6]}, {'input_ids': [7]}]
    """
    return list(islice(dataset.one_pass() if isinstance(dataset, ExampleStream) else dataset, number))


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
    One example as text: the document, what the encoder reads, what the decoder is to write.

    Args:
        example: of the prepared data set.
        data_collator: what corrupts it.
        tokenizer: what decodes it.
    """
    batch = data_collator([example])
    labels = batch["labels"][0]
    token_ids = [int(i) for i in example["input_ids"]]
    return "\n".join(
        [
            f"document: {tokenizer.decode(token_ids)}",
            f"input:    {tokenizer.decode(batch['input_ids'][0][batch['attention_mask'][0]])}",
            f"target:   {tokenizer.decode(labels[labels >= 0])}",
        ]
    )


@torch.no_grad()
def unshuffle(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    example: Mapping[str, Any],
    batch: Mapping[str, torch.Tensor],
    **generate_kwargs: Any,
) -> dict[str, Any]:
    """
    Let a DEPTH model put the sentences of one example in order by `generate()`.

    Args:
        example: the prepared example: `input_ids` (no special tokens) and `sentence_lengths`.
        batch: what the collator made of that example alone.
        generate_kwargs: passed on to `generate()`.

    Returns:
        `dict`: `given`, `predicted`, `true`: lists of sentences in the order of the input, of the model's output and
        of the document; `generated`: the output as text; `kendall_tau`.
    """
    device, config = model.device, model.config
    inputs = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
    generated = model.eval().generate(**inputs, **generate_kwargs)
    labels = batch["labels"].to(device)

    token_ids, sentences, start = [int(i) for i in example["input_ids"]], [], 0
    for length in example["sentence_lengths"]:
        sentences.append(tokenizer.decode(token_ids[start : start + int(length)]))
        start += int(length)
    true_order = sentence_sequence(labels, config)[0].tolist()
    sentence_of = dict(zip(true_order, sentences, strict=False))

    def in_order(ids: torch.Tensor) -> list[str]:
        return [sentence_of[i] for i in dict.fromkeys(sentence_sequence(ids, config)[0].tolist()) if i in sentence_of]

    scores = order_statistics(generated, inputs["input_ids"], labels, config)[0]
    return {
        "given": in_order(inputs["input_ids"]),
        "predicted": in_order(generated),
        "true": sentences,
        "generated": tokenizer.decode(generated[0][generated[0] != tokenizer.pad_token_id]),
        "kendall_tau": float(scores[3]),
    }


def print_unshuffled(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Iterable[Mapping[str, Any]],
    data_collator: Callable[[list], Mapping[str, torch.Tensor]],
    max_length: int | None = None,
) -> None:
    """
    Let a DEPTH model put one held-out document in order, and print the orders given, predicted and true.

    Args:
        examples: of the prepared data set; the first one that can be shuffled is taken.
        data_collator: what corrupts them.
        max_length: of the generated ids.
    """
    collator = replace(data_collator, sentence_shuffling_probability=1.0)
    for example in islice(examples, 100):
        batch = collator([example])
        if is_shuffled(batch["input_ids"], batch["labels"], model.config).item():
            break
    else:
        logger.warning("No evaluation example has several sentences: there is nothing to un-shuffle.")
        return
    result = unshuffle(model, tokenizer, example, batch, max_length=max_length)
    print("\nUn-shuffling a held-out document by generate():")
    for title in ("given", "predicted", "true"):
        print(f"  {title} order:")
        print("".join(f"    {number}. {sentence}\n" for number, sentence in enumerate(result[title], 1)), end="")
    if not result["predicted"]:
        print("  The model wrote no sentence token of this document.")
    print(f"  Kendall's tau {result['kendall_tau']:.2f} (1: the true order, 0: chance, -1: reversed)")
    print(f"  generated: {result['generated']}", flush=True)


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
            rows.append([name, *(f"{values[name]:.4f}" if name in values else "-" for values in columns.values())])
    return aligned(rows) + note


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """
    A table as lines of text: the first column to the left, numbers to the right.

    >>> print(aligned([["", "before"], ["loss", "6.5"], ["accuracy", "0.25"]]))
              before
    loss         6.5
    accuracy    0.25
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
