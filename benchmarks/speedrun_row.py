"""
A row of the leaderboard, from the folder of a finished run of pre-training; `benchmarks/speedrun.sh` calls it.

    python benchmarks/speedrun_row.py runs/speedrun/run --target_loss 1.953 --leaderboard runs/leaderboard.jsonl

The row has the hours of training until the first evaluation whose loss is at most the target. The time of evaluations
is left out, and steps are taken to be equally long. The rate in TFLOP/s is that of the matrix products at full lengths
(`benchmarks/run_cost.py`).
"""

import argparse
import json
import time
from pathlib import Path

import torch
import transformers
from run_cost import training_flops
from transformers import AutoConfig
from transformers.trainer_utils import get_last_checkpoint

import hf_depth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip(), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the output_dir of the run")
    parser.add_argument("--target_loss", type=float, default=1.953, help="of the validation split; default: 1.953")
    parser.add_argument("--leaderboard", type=Path, help="file of rows, one JSON object each, to which this is added")
    args = parser.parse_args()
    row = make_row(args.run, args.target_loss)
    if args.leaderboard:
        with args.leaderboard.open("a", encoding="utf-8") as file:
            print(json.dumps(row), file=file)
    for name, value in row.items():
        print(f"{name:32} {value}")


def make_row(run: Path, target_loss: float) -> dict[str, object]:
    """What the leaderboard says about a run; hours are `None` if no evaluation reached the target."""
    state = json.loads((run / "trainer_state.json").read_text(encoding="utf-8"))
    results = json.loads((run / "all_results.json").read_text(encoding="utf-8"))
    settings = json.loads(Path(get_last_checkpoint(str(run)), "run.json").read_text(encoding="utf-8"))
    evaluations = [log for log in state["log_history"] if "eval_loss" in log]
    seconds = results["train_runtime"] - sum(log["eval_runtime"] for log in evaluations)
    reached = [log["step"] for log in evaluations if log["eval_loss"] <= target_loss]
    config = AutoConfig.from_pretrained(run)
    lengths = settings["max_source_length"], settings["max_target_length"]
    processes = settings["num_processes"]
    batch = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"] * processes
    examples_per_second = state["global_step"] * batch / seconds
    flops = examples_per_second * training_flops(config, *lengths)
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
        "tflops_per_second": round(flops / 1e12, 4),
        "versions": {module.__name__: module.__version__ for module in (hf_depth, torch, transformers)},
    }


if __name__ == "__main__":
    main()
