r"""
Fine-tune or probe checkpoints on a list of tasks, and show how the scores grow with pre-training, T5 beside DEPTH.

    python examples/compare_checkpoints.py --checkpoints depth=runs/depth t5=runs/t5 \
        --tasks disco_eval/SParxiv glue/rte --output_dir runs/comparison -- --dataset_dir data/{task} --max_steps 500
    python examples/compare_checkpoints.py --prediction_mode probe --checkpoints depth=runs/depth t5=runs/t5 \
        --tasks disco_eval/SParxiv --output_dir runs/probes -- --dataset_dir data/{task}

The folder of a pre-training run stands for all its checkpoints. What follows `--` is passed to
examples/fine_tune_t5.py; there and in `--config`, {benchmark} and {task} stand for those of the task. Writes
results.csv, results.md and scores.png to `--output_dir` after each run. Started again, it continues with the runs that
are missing.
"""

import logging
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_depth.arguments.compare_args import CompareArguments
from hf_depth.arguments.exits import run_script
from hf_depth.arguments.parser import parse_arguments
from hf_depth.evaluation.comparison import Result, markdown
from hf_depth.training.comparison import Comparison

SCRIPT = Path(__file__).resolve().with_name("fine_tune_t5.py")
RECIPES = Path(__file__).resolve().with_name("configs") / "recipes"


def main(args: Sequence[str] | None = None) -> list[Result]:
    # ---- Arguments ----
    args = list(sys.argv[1:] if args is None else args)
    end = args.index("--") if "--" in args else len(args)
    (arguments,) = parse_arguments([CompareArguments], args[:end], description=__doc__)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)

    # ---- Plan ----
    comparison = Comparison(arguments, script=SCRIPT, recipes=RECIPES, flags=args[end + 1 :])
    runs = comparison.pending_runs()
    if arguments.dry_run:
        for run in runs:
            print(shlex.join(comparison.command(run)))
        return []

    # ---- Fine-tuning and results ----
    failed = comparison.execute(runs)
    results = comparison.collect()
    print("\n" + markdown(results))
    if failed:
        raise SystemExit(f"{len(failed)} of {len(runs)} runs failed; started again, they are tried once more.")
    return results


if __name__ == "__main__":
    run_script(main)
