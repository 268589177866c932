"""
Packed rows beside padded ones: real tokens (of inputs and targets, without padding) that a training step gets through
per second of CPU, and losses.

    python benchmarks/packing.py --train_file corpus.jsonl --tokenizer google-t5/t5-base
    accelerate launch --config_file examples/accelerate/ddp_cpu.yaml benchmarks/packing.py --losses 6

Steps on packed rows and on examples padded to the longest of a batch alternate in one process, over as many tokens.
With `--losses`, a model is trained twice from the same weights for so many steps: on packed rows, and on the same
examples of the same rows, each in a row of its own. The losses of both are printed.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read when the tokenizer is first used

import numpy as np  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from transformers import set_seed  # noqa: E402

from hf_depth import (  # noqa: E402
    DepthObjective,
    DepthTrainer,
    DepthTrainingArguments,
    SpanCorruptionObjective,
    add_sentence_tokens,
    load_corpus,
    load_model,
    train_tokenizer,
)
from hf_depth.data.base_objective import Collator, Objective  # noqa: E402
from hf_depth.data.packing import unpack_rows  # noqa: E402
from hf_depth.data.tokenization import load_tokenizer  # noqa: E402

SIZE_FLAGS = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}


class SeparateRows:
    """Gives each example of packed rows a row of its own."""

    def __init__(self, collator: Collator):
        self.collator = collator

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        return self.collator(unpack_rows(rows))

    def set_epoch(self, epoch: int) -> None:
        self.collator.set_epoch(epoch)


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.num_threads)
    documents = load_corpus(train_file=args.train_file, validation_split_percentage=0)["train"]
    texts = documents["text"]
    tokenizer = load_tokenizer(args.tokenizer) if args.tokenizer else train_tokenizer(texts, 2000, allow_fewer=True)
    if args.model_type == "depth":
        objective = DepthObjective(add_sentence_tokens(tokenizer), args.max_source_length, packing=True)
    else:
        objective = SpanCorruptionObjective(tokenizer, args.max_source_length, packing=True)
    rows = objective.prepare(documents)
    if args.losses:
        compare_losses(args, objective, rows)
    else:
        compare_speed(args, objective, rows, objective.prepare(documents, packing=False))


def make_model(args: argparse.Namespace, objective: Objective) -> torch.nn.Module:
    set_seed(args.seed)
    size = {name: getattr(args, name) for name in SIZE_FLAGS}
    return load_model(None, objective.tokenizer, model_type=args.model_type, dropout_rate=0.0, **size)


def compare_speed(args: argparse.Namespace, objective: Objective, rows: Dataset, examples: Dataset) -> None:
    examples_per_row = len(examples) / len(rows)
    collator, runs = objective.collator(), {}
    for name, data, size in (
        ("packed", rows, args.batch_size),
        ("padded", examples, max(1, round(args.batch_size * examples_per_row))),
    ):
        order = torch.Generator().manual_seed(args.seed)
        batches = DataLoader(
            data, size, shuffle=True, collate_fn=collator, generator=order, drop_last=len(data) > size
        )
        model = make_model(args, objective).train()
        runs[name] = (model, torch.optim.AdamW(model.parameters(), lr=1e-4), cycle(batches))
    speeds, real, positions = {name: [] for name in runs}, dict.fromkeys(runs, 0), dict.fromkeys(runs, 0)
    for step in range(args.warmup_steps + args.steps):
        for name, (model, optimizer, batches) in runs.items():
            batch = next(batches)
            batch.pop("num_cut_tokens")
            tokens = int(batch["attention_mask"].sum() + (batch["labels"] != -100).sum())
            started = time.process_time()
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step >= args.warmup_steps:
                speeds[name].append(tokens / (time.process_time() - started))
                real[name] += tokens
                positions[name] += batch["input_ids"].numel() + batch["labels"].numel()
    print(f"{len(examples):,} examples in {len(rows):,} rows, {examples_per_row:.2f} in each")
    for name in runs:
        speed = statistics.median(speeds[name])
        share = real[name] / positions[name]
        print(f"{name} {speed:10,.0f} real tokens per CPU second, {share:6.1%} of the positions of a batch are real")
    ratios = np.array(speeds["packed"]) / np.array(speeds["padded"])
    print(f"ratio  {np.median(ratios):10.2f}  (median of {args.steps} steps of each)")


def compare_losses(args: argparse.Namespace, objective: Objective, rows: Dataset) -> None:
    losses = {}
    for name, collator in (("packed", objective.collator()), ("separate", SeparateRows(objective.collator()))):
        with tempfile.TemporaryDirectory() as folder:
            arguments = DepthTrainingArguments(
                folder,
                max_steps=args.losses,
                per_device_train_batch_size=args.batch_size,
                learning_rate=1e-3,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
            )
            trainer = DepthTrainer(make_model(args, objective), arguments, collator, train_dataset=rows)
            trainer.train()
            losses[name] = [log for log in trainer.state.log_history if "loss" in log]
    if trainer.is_world_process_zero():
        print(f"\nprocesses: {arguments.world_size}, rows in a step: {args.batch_size * arguments.world_size}")
        print(
            f"{'step':>4}{'loss, packed':>16}{'separate':>12}{'difference':>14}{'padding, packed':>19}{'separate':>12}"
        )
        for packed, separate in zip(*losses.values(), strict=True):
            print(
                f"{packed['step']:4}{packed['loss']:16.6f}{separate['loss']:12.6f}"
                f"{packed['loss'] - separate['loss']:14.1e}"
                f"{packed['padding_fraction']:19.3f}{separate['padding_fraction']:12.3f}"
            )
    trainer.end()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", help="documents (default: Python's own documentation)")
    parser.add_argument("--tokenizer", help="folder or name of a T5 tokenizer (default: one trained on the documents)")
    parser.add_argument("--model_type", choices=("depth", "t5"), default="depth")
    parser.add_argument("--max_source_length", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=4, help="packed rows of a step, in each process")
    parser.add_argument("--losses", type=int, default=0, help="compare losses over so many steps, not speed")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup_steps", type=int, default=2)
    parser.add_argument("--num_threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    for name, value in SIZE_FLAGS.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


if __name__ == "__main__":
    main()
