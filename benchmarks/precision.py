"""
Training in float32, in bfloat16, and in bfloat16 with its residual stream, from the same weights on the same batches.

    python benchmarks/precision.py
    python benchmarks/precision.py --steps 5000 --d_model 512 --num_layers 6 --batch_size 64 --device cuda

Small DEPTH models are trained from scratch on the documentation that comes with Python. The figures are losses on
held-out documents with the same noise; how far apart those of several seeds are says which differences mean anything.
"""

import argparse
import logging
import os
import statistics
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read when the tokenizer is first used

import torch  # noqa: E402
from transformers import set_seed  # noqa: E402

from hf_depth import (  # noqa: E402
    DepthObjective,
    DepthTrainer,
    DepthTrainingArguments,
    add_sentence_tokens,
    load_corpus,
    load_model,
    train_tokenizer,
)

MODES = {
    "float32": {},
    "bfloat16": {"bf16": True},
    "bfloat16, residual stream too": {"bf16": True, "residual_dtype": "bfloat16"},
}


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    splits = load_corpus()
    tokenizer = train_tokenizer(splits["train"]["text"], args.vocab_size, allow_fewer=True)
    tokenizer = add_sentence_tokens(tokenizer)
    objective = DepthObjective(tokenizer, args.max_source_length)
    samples = {"train": args.steps * args.batch_size, "validation": args.eval_samples}
    data, _ = objective.prepare_splits(splits, max_samples=samples)
    print(f"DEPTH, d_model {args.d_model}, {args.num_layers} layers, {args.steps} steps of {args.batch_size}")
    print("| validation loss | " + " | ".join(f"seed {seed}" for seed in range(args.seeds)) + " | mean difference |")
    print("|---" * (args.seeds + 2) + "|")
    first = None
    for name, mode in MODES.items():
        losses = [validation_loss(objective, data, seed, mode, args) for seed in range(args.seeds)]
        first = first or losses
        difference = statistics.mean(loss - right for loss, right in zip(losses, first, strict=True))
        print(f"| {name} | " + " | ".join(f"{loss:.4f}" for loss in losses) + f" | {difference:+.4f} |", flush=True)
    if args.seeds > 1:
        print(f"\nStandard deviation of float32 over seeds: {statistics.stdev(first):.4f}")


def validation_loss(objective: DepthObjective, data: dict, seed: int, mode: dict, args: argparse.Namespace) -> float:
    set_seed(seed)
    size = {name: getattr(args, name) for name in ("d_model", "d_kv", "d_ff", "num_layers", "num_heads")}
    with tempfile.TemporaryDirectory() as folder:
        trainer = DepthTrainer(
            model=load_model(None, objective.tokenizer, **size),
            args=DepthTrainingArguments(
                folder,
                seed=seed,
                max_steps=args.steps,
                per_device_train_batch_size=args.batch_size,
                learning_rate=args.learning_rate,
                warmup_steps=args.steps // 10,
                lr_scheduler_type="cosine",
                use_cpu=args.device == "cpu",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                log_level="error",
                **mode,
            ),
            data_collator=objective.collator(),
            processing_class=objective.tokenizer,
            train_dataset=data["train"],
            eval_dataset=data["validation"],
        )
        trainer.train()
        return trainer.evaluate()["eval_loss"]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--eval_samples", type=int, default=300)
    parser.add_argument("--max_source_length", type=int, default=96)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--vocab_size", type=int, default=2000)
    parser.add_argument("--d_model", type=int, default=96)
    parser.add_argument("--d_kv", type=int, default=32)
    parser.add_argument("--d_ff", type=int, default=192)
    parser.add_argument("--num_layers", type=int, default=4)
    parser.add_argument("--num_heads", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
