"""
Packed rows beside padded ones: real tokens (of inputs and targets, without padding) that a training step gets through
per second of CPU.

    python benchmarks/packing.py --train_file corpus.jsonl --tokenizer google-t5/t5-base

Steps on packed rows and on examples padded to the longest of a batch alternate in one process, over as many tokens.
(That packed rows have the losses of their examples is a test, `tests/training/test_packed_training.py`.)
"""

import argparse
import os
import statistics
import time
from itertools import cycle

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read when the tokenizer is first used

import numpy as np  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from transformers import set_seed  # noqa: E402

from hf_depth import (  # noqa: E402
    DepthObjective,
    SpanCorruptionObjective,
    add_sentence_tokens,
    load_corpus,
    load_model,
    train_tokenizer,
)
from hf_depth.data.base_objective import Objective  # noqa: E402
from hf_depth.data.tokenization import load_tokenizer  # noqa: E402

SIZE_FLAGS = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}


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


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", help="documents (default: Python's own documentation)")
    parser.add_argument("--tokenizer", help="folder or name of a T5 tokenizer (default: one trained on the documents)")
    parser.add_argument("--model_type", choices=("depth", "t5"), default="depth")
    parser.add_argument("--max_source_length", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=4, help="packed rows of a step, in each process")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup_steps", type=int, default=2)
    parser.add_argument("--num_threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    for name, value in SIZE_FLAGS.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


if __name__ == "__main__":
    main()
