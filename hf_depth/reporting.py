"""What a person reads: an example in text, a document put in order, the loss curves, a model card."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedTokenizerBase

from .metrics import order_statistics, sentence_sequence

TRAINING_SETTINGS = (
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "max_steps",
    "num_train_epochs",
    "optim",
    "seed",
)


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


def plot_losses(log_history: Sequence[Mapping], path: str | Path, title: str = "") -> None:
    """
    Draw the losses of a run over its steps, training as lines and evaluation as dots, and save them as a picture.

    Args:
        log_history: `trainer.state.log_history`.
        path: file to write, `.png`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for color, (key, label) in enumerate(
        [("loss", "total"), ("sentence_loss", "sentence tokens"), ("reconstruction_loss", "reconstruction")]
    ):
        for prefix, style in (("", "-"), ("eval_", "o")):
            points = [(log["step"], log[prefix + key]) for log in log_history if prefix + key in log]
            if points:
                name = f"{label}, evaluation" if prefix else label
                axes.plot(*zip(*points, strict=True), style, color=f"C{color}", label=name)
    axes.set(xlabel="step", ylabel="cross-entropy in nats per label", title=title)
    axes.grid(alpha=0.3)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if axes.lines:
        figure.legend(loc="outside right upper")
    figure.savefig(path, dpi=120)


def metrics_table(before: Mapping[str, float] | None, after: Mapping[str, float], names: Sequence[str]) -> str:
    """The metrics `names`, before and after training, one a line; those not measured are left out."""
    lines = [f"{'':40}{'before':>10}{'after':>10}"]
    for name in names:
        if name in after:
            earlier = f"{before[name]:10.4f}" if before and name in before else f"{'':10}"
            lines.append(f"{name:40}{earlier}{after[name]:10.4f}")
    return "\n".join(lines)


def model_card(model_name: str, model_type: str, sections: Mapping[str, Mapping]) -> str:
    """
    A README for the Hub that states data, settings and results.

    Args:
        model_name: title.
        model_type: `depth` or `t5`.
        sections: title -> what to list there; values must be JSON-serialisable.
    """
    paper = {
        "depth": "as a DEPTH model ([arXiv 2405.07788](https://arxiv.org/abs/2405.07788))",
        "t5": "as a T5 ([arXiv 1910.10683](https://arxiv.org/abs/1910.10683))",
    }[model_type]
    trust = ", trust_remote_code=True" if model_type == "depth" else ""
    usage = f'model = AutoModelForSeq2SeqLM.from_pretrained("{model_name}"{trust})'
    head = [
        "---",
        "library_name: transformers",
        f"tags: [{model_type}, pre-training, hf_depth]",
        "---",
        "",
        f"# {model_name}",
        "",
        f"An encoder-decoder pre-trained with hf_depth {paper}.",
        "",
        "```python",
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{model_name}")',
        usage,
        "```",
        "",
    ]
    return "\n".join(head + [line for title, values in sections.items() for line in card_section(title, values)])


def run_settings(model_args, training_args, model) -> dict:
    """What a model card states about how a model was trained."""
    settings = {}
    for name in TRAINING_SETTINGS:
        value = getattr(training_args, name)
        settings[name] = getattr(value, "value", value)  # of an enumeration
    source = model_args.model_name_or_path
    if source is not None and Path(source).exists():
        source = Path(source).resolve().name  # the way to it is nobody's business
    batch_size = training_args.train_batch_size * training_args.gradient_accumulation_steps * training_args.world_size
    return settings | {
        "global batch size": batch_size,
        "parameters": model.num_parameters(),
        "initialised from": source or "scratch",
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }


def card_section(title: str, values: Mapping) -> list[str]:
    """The lines of one section of a model card: a title, and a table of what is in `values`."""

    def text(value):
        return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)

    rows = [f"| {name} | {text(value)} |" for name, value in values.items()]
    return [f"## {title}", "", "| | |", "|---|---|", *rows, ""]
