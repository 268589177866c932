"""
What a pre-training run costs: steps, tokens, FLOPs and disk of one that is planned; hours and speed of one that ended.

    python benchmarks/run_cost.py                                           # T5 v1.1 base, C4, the steps of the paper
    python benchmarks/run_cost.py --size small --global_batch 128 --max_steps 15000 --target_length 256
    python benchmarks/run_cost.py --examples_per_second 80 160              # hours, by the rate that you measured
    python benchmarks/run_cost.py --run runs/speedrun/run --target_loss 1.953 --leaderboard runs/leaderboard.jsonl

A rate is that of the whole run, all devices together: `train_samples_per_second` in `all_results.json` of a run. An
upper limit of it, without data and communication, is what `benchmarks/train_step.py` measures.

For a finished run (`benchmarks/speedrun.sh` makes one), the last command prints a row of a leaderboard. It has the
hours of training until the first evaluation whose loss is at most the target. The time of evaluations is left out, and
steps are taken to be equally long. The rate in TFLOP/s is that of the matrix products at full lengths.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import transformers
from common import SIZES, make_config, training_flops
from transformers import AutoConfig
from transformers.trainer_utils import get_last_checkpoint

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
    parser.add_argument("--run", type=Path, help="The output_dir of a finished run, instead of all of the above.")
    parser.add_argument("--target_loss", type=float, default=1.953, help="Of the validation split of the run.")
    parser.add_argument("--leaderboard", type=Path, help="JSON lines, to which the row of the run is added.")
    args = parser.parse_args()
    if args.run is None:
        print_plan(args)
        return
    row = row_of_run(args.run, args.target_loss)
    if args.leaderboard:
        with args.leaderboard.open("a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)
    for name, value in row.items():
        print(f"{name:32} {value}")


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


def row_of_run(run: Path, target_loss: float) -> dict[str, object]:
    """What the leaderboard says about a run; hours are `None` if no evaluation reached the target."""
    state = json.loads((run / "trainer_state.json").read_text(encoding="utf-8"))
    results = json.loads((run / "all_results.json").read_text(encoding="utf-8"))
    settings = json.loads(Path(get_last_checkpoint(str(run)), "run.json").read_text(encoding="utf-8"))
    evaluations = [log for log in state["log_history"] if "eval_loss" in log]
    seconds = results["train_runtime"] - sum(log["eval_runtime"] for log in evaluations)
    reached = [log["step"] for log in evaluations if log["eval_loss"] <= target_loss]
    config = AutoConfig.from_pretrained(run)
    lengths = settings["max_source_length"], settings["max_target_length"]
    batch = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    batch *= settings["num_processes"]
    examples_per_second = state["global_step"] * batch / seconds
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "model": f"{settings['model_type']}, d_model {config.d_model}, {config.num_layers} layers",
        "lengths": lengths,
        "global_batch": batch,
        "steps": state["global_step"],
        "optim": settings["optim"],
        "last_eval_loss": round(evaluations[-1]["eval_loss"], 4),
        "target_loss": target_loss,
        "hours_to_target": round(seconds * reached[0] / state["global_step"] / 3600, 4) if reached else None,
        "hours": round(seconds / 3600, 4),
        "tokens_per_second": round(examples_per_second * sum(lengths)),  # with padding
        "tflops_per_second": round(examples_per_second * training_flops(config, *lengths) / 1e12, 4),
        "versions": {module.__name__: module.__version__ for module in (hf_depth, torch, transformers)},
    }


if __name__ == "__main__":
    main()
