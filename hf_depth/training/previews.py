"""What a person reads during a run."""

from collections.abc import Mapping, Sequence

import torch
from transformers import PreTrainedTokenizerBase

from .statistics import order_statistics, sentence_sequence


def describe_example(row: Mapping, data_collator, tokenizer: PreTrainedTokenizerBase) -> str:
    """
    One row of the data as a person reads it: the document, what the encoder reads, what the decoder is to write.

    Args:
        row: a row of the prepared data set.
        data_collator: what corrupts it.
    """
    batch = data_collator([row])
    labels = batch["labels"][0]
    words = [int(i) for i in row["input_ids"]]
    return "\n".join(
        [
            f"document: {tokenizer.decode(words)}",
            f"input:    {tokenizer.decode(batch['input_ids'][0][batch['attention_mask'][0]])}",
            f"target:   {tokenizer.decode(labels[labels >= 0])}",
        ]
    )


@torch.no_grad()
def unshuffle(model, tokenizer: PreTrainedTokenizerBase, row: Mapping, batch: Mapping, **generate_kwargs) -> dict:
    """
    Let a DEPTH model put the sentences of one example in order by `generate()`.

    Args:
        row: the prepared row: `input_ids` (words) and `sentence_lengths`.
        batch: what the collator made of that row alone.
        generate_kwargs: passed on to `generate()`.

    Returns:
        `dict`: `given`, `predicted`, `true`: lists of sentences in the order of the input, of the model's output and
        of the document; `generated`: the output as text; `kendall_tau`.
    """
    device, config = model.device, model.config
    inputs = {name: batch[name].to(device) for name in ("input_ids", "attention_mask")}
    generated = model.eval().generate(**inputs, **generate_kwargs)
    labels = batch["labels"].to(device)

    words, sentences, start = [int(i) for i in row["input_ids"]], [], 0
    for length in row["sentence_lengths"]:
        sentences.append(tokenizer.decode(words[start : start + int(length)]))
        start += int(length)
    true_order = sentence_sequence(labels, config)[0].tolist()
    sentence_of = dict(zip(true_order, sentences, strict=False))

    def in_order(ids):
        return [sentence_of[i] for i in dict.fromkeys(sentence_sequence(ids, config)[0].tolist()) if i in sentence_of]

    scores = order_statistics(generated, inputs["input_ids"], labels, config)[0]
    return {
        "given": in_order(inputs["input_ids"]),
        "predicted": in_order(generated),
        "true": sentences,
        "generated": tokenizer.decode(generated[0][generated[0] != tokenizer.pad_token_id]),
        "kendall_tau": float(scores[3]),
    }


def metrics_table(before: Mapping[str, float] | None, after: Mapping[str, float], names: Sequence[str]) -> str:
    """The metrics `names`, before and after training, one a line; those not measured are left out."""
    lines = [f"{'':40}{'before':>10}{'after':>10}"]
    for name in names:
        if name in after:
            earlier = f"{before[name]:10.4f}" if before and name in before else f"{'':10}"
            lines.append(f"{name:40}{earlier}{after[name]:10.4f}")
    return "\n".join(lines)
