"""
What a planned pre-training run costs: steps, tokens, FLOPs and disk, and hours by a measured rate.

    python benchmarks/run_cost.py                                           # T5 v1.1 base, C4, the steps of the paper
    python benchmarks/run_cost.py --size small --global_batch 128 --max_steps 15000 --target_length 256
    python benchmarks/run_cost.py --examples_per_second 80 160              # hours, by the rate that you measured

A rate is that of the whole run, all devices together: `train_samples_per_second` in `all_results.json` of a run. An
upper limit of it, without data and communication, is what `benchmarks/train_step.py` measures.
"""

import argparse

import torch
from common import SIZES, make_config, training_flops

import hf_depth

BYTES_OF_CHECKPOINT = 12  # float32 parameters and two moments of AdamW, for each parameter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SIZES), default="base")
    parser.add_argument("--source_length", type=int, default=512)
    parser.add_argument("--target_length", type=int, default=512)
    parser.add_argument("--text_length", type=int, default=512, help="Tokens of text in an example.")
    parser.add_argument("--global_batch", type=int, default=200, help="Examples in a step, of all devices.")
    parser.add_argument("--max_steps", type=int, default=1_000_000)
    parser.add_argument("--corpus_tokens", type=float, default=156e9, help="Default: C4 en.")
    parser.add_argument("--corpus_gigabytes", type=float, default=305.0, help="On disk, compressed. Default: C4 en.")
    parser.add_argument("--save_total_limit", type=int, default=3)
    parser.add_argument("--examples_per_second", type=float, nargs="*", default=[], help="Measured rates.")
    print_plan(parser.parse_args())


def print_plan(args: argparse.Namespace) -> None:
    """What is to be known of a run, and hours by measured rates."""
    config = make_config(hf_depth.DepthConfig, args.size)
    with torch.device("meta"):
        parameters = hf_depth.DepthForConditionalGeneration(config).num_parameters()
    flops = training_flops(config, args.source_length, args.target_length)
    examples = args.global_batch * args.max_steps
    checkpoint = parameters * BYTES_OF_CHECKPOINT / 1e9
    saves = f"{args.save_total_limit} checkpoints and one being written"
    rows = {
        "parameters": f"{parameters / 1e6:,.1f} M",
        "tokens in a step": f"{args.global_batch * (args.source_length + args.target_length):,} with padding",
        "tokens of text read": f"{examples * args.text_length / 1e9:,.1f} billion at most",
        "passes over the corpus": f"{examples * args.text_length / args.corpus_tokens:,.2f}",
        "steps of one pass": f"{args.corpus_tokens / args.text_length / args.global_batch:,.0f}",
        "FLOPs of an example": f"{flops:.3g}",
        "FLOPs of the run": f"{flops * examples:.3g}",
        "disk: the corpus as published": f"{args.corpus_gigabytes:,.0f} GB",
        "disk: token ids of one pass, two bytes each": f"{args.corpus_tokens * 2 / 1e9:,.0f} GB",
        "disk: a checkpoint": f"{checkpoint:,.2f} GB",
        f"disk: {saves}": f"{checkpoint * (args.save_total_limit + 1):,.1f} GB",
    }
    print(f"| {args.size}, {args.max_steps:,} steps of {args.global_batch} | |\n|---|---|")
    for name, value in rows.items():
        print(f"| {name} | {value} |")
    if args.examples_per_second:
        print("\n| examples/s | TFLOP/s | hours |\n|---|---|---|")
    for rate in args.examples_per_second:
        print(f"| {rate:g} | {rate * flops / 1e12:,.3g} | {examples / rate / 3600:,.1f} |")


if __name__ == "__main__":
    main()
