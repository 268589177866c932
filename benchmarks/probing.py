"""
How well a probe reads discourse tasks from frozen sentence embeddings, over the steps of pre-training, as mean
and standard deviation over several pre-training runs of each kind of model; step 0 is the same model with random
weights.

    python benchmarks/probing.py --runs depth=runs/depth_1 depth=runs/depth_2 t5=runs/t5_1 t5=runs/t5_2 \
        --tasks disco_eval/SParxiv disco_eval/DCchat --dataset_dir data/{task} --output probes.jsonl

Lines of `--output` that are there are not computed again, so that further runs, tasks or options can be added.
"""

import argparse
import json
import logging
import statistics
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch

from hf_depth import TaskSplits, load_model, load_tokenizer
from hf_depth.evaluation.embeddings import POOLINGS
from hf_depth.evaluation.probing import NORMALIZATIONS, ProbeOptions, probe_task, with_random_weights
from hf_depth.training.comparison import find_checkpoints


def main():
    arguments = parse_arguments()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING)
    path = Path(arguments.output)
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    done = {json.dumps(line["key"]) for line in lines}
    with path.open("a", encoding="utf-8") as file:
        for key, measure in measurements(arguments, {line["key"]["task"] for line in lines}):
            if json.dumps(key) not in done:
                start = time.process_time()
                line = {"key": key, "scores": measure(), "seconds": round(time.process_time() - start, 1)}
                lines.append(line)
                print(json.dumps(line), file=file, flush=True)
    print(table(lines))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", required=True, help="NAME=FOLDER of a pre-training run; names repeat")
    parser.add_argument("--tasks", nargs="+", required=True, help="BENCHMARK/TASK")
    parser.add_argument("--dataset_dir", required=True, help="{task} stands for the name of the task")
    parser.add_argument("--steps", nargs="+", type=int, help="0: random weights (default: 0 and all checkpoints)")
    parser.add_argument("--train_samples", type=int, default=1000)
    parser.add_argument("--eval_samples", type=int, default=500)
    parser.add_argument("--predict_samples", type=int, default=1000)
    parser.add_argument("--layer", type=int, default=-1)
    parser.add_argument("--pooling", choices=POOLINGS)
    parser.add_argument("--normalization", choices=NORMALIZATIONS, default="standardize")
    parser.add_argument("--read_together", action="store_true")
    parser.add_argument("--output", required=True, help="a line of JSON for each probe; is continued")
    return parser.parse_args()


def measurements(arguments, baselines) -> Iterator[tuple]:
    """
    What identifies a probe, and a function that gives the scores of the model and its baselines on test data; not for
    the tasks whose `baselines` are there.
    """
    options = ProbeOptions(
        arguments.layer, arguments.pooling, arguments.read_together, arguments.normalization, batch_size=64
    )
    settings = f"layer {options.layer}, {options.pooling or 'default'}, {options.normalization}"
    settings += ", together" * options.read_together
    tasks = {task: load_task(task, arguments) for task in arguments.tasks}
    for entry in arguments.runs:
        seed = zlib.crc32(entry.encode())  # each run has random weights of its own
        for step, folder in steps_of(entry, arguments.steps):
            for task, splits in tasks.items():
                key = {"model": entry.partition("=")[0], "run": entry, "step": step, "task": task, "options": settings}
                fitted = () if task in baselines else ("bag_of_words",)  # once, it is that of the tokenizer
                baselines.add(task)
                yield key, lambda args=(folder, step, seed, splits, options, fitted): scores(*args)


def load_task(task, arguments) -> TaskSplits:
    """Seeded subsets of the splits, the same for all models."""
    return TaskSplits.load(
        task,
        dataset_dir=arguments.dataset_dir.replace("{task}", task.rpartition("/")[2]),
        max_train_samples=arguments.train_samples,
        max_eval_samples=arguments.eval_samples,
        max_predict_samples=arguments.predict_samples,
    )


def steps_of(entry, wanted) -> list[tuple[int, str]]:
    """Step and folder of each checkpoint, step 0 in front."""
    found = [(checkpoint.step, checkpoint.path) for checkpoint in find_checkpoints(entry)]
    found = [(0, found[0][1]), *found]
    return [(step, path) for step, path in found if wanted is None or step in wanted]


def scores(folder, step, seed, splits, options, baselines) -> dict[str, float]:
    (part,) = splits.parts
    spec, examples = part.spec, part.examples
    tokenizer = load_tokenizer(folder)
    model = load_model(folder, tokenizer)
    model = with_random_weights(model, seed) if step == 0 else model
    train, validation, test = (examples[name] for name in ("train", "validation", "test"))
    (found,) = probe_task(
        model, tokenizer, spec, train, validation, {"test": test}, options, seed=seed, baselines=baselines
    )
    names = (spec.metric_to_optimize, *(f"{kind}_{spec.metric_to_optimize}" for kind in ("majority", *baselines)))
    return {name: found.metrics[name] for name in names}


def table(lines) -> str:
    """A row for each model, step and setting with mean and standard deviation over runs, a column for each task."""
    tasks = list(dict.fromkeys(line["key"]["task"] for line in lines))
    rows = {}
    for line in lines:
        key = line["key"]
        metric, *baselines = line["scores"]
        rows.setdefault((key["model"], key["options"], key["step"]), {}).setdefault(key["task"], []).append(
            line["scores"][metric]
        )
        for name in baselines:
            rows.setdefault((name.removesuffix(f"_{metric}"), "", ""), {})[key["task"]] = [line["scores"][name]]
    text = [f"{'model':15} {'options':45} {'step':>6} {' '.join(f'{task:>24}' for task in tasks)}"]
    for (model, options, step), found in sorted(rows.items(), key=str):
        cells = [spread(found.get(task, [])) for task in tasks]
        text.append(f"{model:15} {options:45} {step:>6} {' '.join(f'{cell:>24}' for cell in cells)}")
    return "\n".join(text)


def spread(values) -> str:
    deviation = f" ± {statistics.stdev(values):.4f} ({len(values)})" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4f}{deviation}" if values else ""


if __name__ == "__main__":
    main()
