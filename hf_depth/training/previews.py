"""What a run prints: examples as text, a document put in order, metrics before and after training."""

import copy
import logging
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
from ..evaluation.ordering import SentenceOrderLogitsProcessor
from ..tables import aligned
from .parts import objective_collator
from .statistics import is_shuffled, is_without_order, order_statistics, sentence_sequence

logger = logging.getLogger(__name__)

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
    return unpack_rows(rows)[0][:number] if rows else rows


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


@torch.no_grad()
def unshuffle(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    example: Mapping[str, Any],
    batch: Mapping[str, torch.Tensor],
    **generate_kwargs: Any,
) -> dict[str, Any]:
    """
    Let a DEPTH model put the sentences of one example in order by `generate()`, each sentence once.

    Args:
        example: the prepared example: `input_ids` (no special tokens) and `sentence_lengths`.
        batch: what the collator made of that example alone.
        generate_kwargs: passed on to `generate()`.

    Returns:
        `dict`: `given`, `predicted`, `true`: lists of sentences in the order of the input, of the model's output under
        the constraint of [`SentenceOrderLogitsProcessor`], and of the document (of a prefix language model, the
        sentences that it reads); `kendall_tau` of the order predicted.
        `generated`: what the model writes without the constraint, as text; `free_kendall_tau` of its order, `None` if
        it does not name each sentence once.
    """
    config = model.config
    inputs = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
    free = model.eval().generate(**inputs, **generate_kwargs).cpu()
    max_new_tokens = (generate_kwargs.get("max_length") or 1) - 1
    constraint = SentenceOrderLogitsProcessor(config, tokenizer, inputs["input_ids"], max_new_tokens)
    settings = generate_kwargs | {"max_length": constraint.max_new_tokens + 1}
    generated = model.generate(**inputs, **settings, logits_processor=[constraint]).cpu()
    labels = batch["labels"]

    token_ids, sentences, start = [int(i) for i in example["input_ids"]], [], 0
    for length in example["sentence_lengths"]:
        sentences.append(tokenizer.decode(token_ids[start : start + int(length)]))
        start += int(length)
    true_order = sentence_sequence(labels, config)[0].tolist()
    sentence_of = dict(zip(true_order, sentences, strict=False))
    read = set(sentence_sequence(inputs["input_ids"], config)[0].tolist())

    def in_order(ids: torch.Tensor) -> list[str]:
        return [sentence_of[i] for i in dict.fromkeys(sentence_sequence(ids, config)[0].tolist()) if i in sentence_of]

    def kendall_tau(ids: torch.Tensor) -> float:
        return float(order_statistics(ids, batch["input_ids"], labels, config)[0, -1])

    free_tokens = [token for token in sentence_sequence(free, config, free.shape[1])[0].tolist() if token >= 0]
    true_tokens = [token for token in true_order if token >= 0]
    return {
        "given": in_order(batch["input_ids"]),
        "predicted": in_order(generated),
        "true": [sentence_of[i] for i in true_order if i in sentence_of and i in read],
        "kendall_tau": kendall_tau(generated),
        "generated": tokenizer.decode(free[0][free[0] != tokenizer.pad_token_id]),
        "free_kendall_tau": kendall_tau(free) if sorted(free_tokens) == sorted(true_tokens) else None,
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
    data_collator = copy.deepcopy(data_collator)
    objective_collator(data_collator).sentence_shuffling_probability = 1.0
    for example in islice(examples, 100):
        batch = data_collator([example])
        if is_shuffled(batch["input_ids"], batch["labels"], model.config).item():
            break
    else:
        logger.warning("No evaluation example has its sentences in another order: there is nothing to un-shuffle.")
        return
    result = unshuffle(model, tokenizer, example, batch, max_length=max_length)
    print("\nUn-shuffling a held-out document by generate(), each sentence once:")
    for title in ("given", "predicted", "true"):
        print(f"  {title} order:")
        print("".join(f"    {number}. {sentence}\n" for number, sentence in enumerate(result[title], 1)), end="")
    print(f"  Kendall's tau {result['kendall_tau']:.2f} (1: the true order, 0: chance, -1: reversed)")
    tau = result["free_kendall_tau"]
    found = "it does not name each sentence once" if tau is None else f"Kendall's tau {tau:.2f}"
    generated = " ".join(result["generated"].split())  # a model that has learnt little writes lines of spaces
    print(f"  Generated without this constraint ({found}): {generated}", flush=True)


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
