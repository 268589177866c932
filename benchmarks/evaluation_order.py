"""
Evaluation by length beside evaluation in the order of the data, on examples of uneven lengths.

    python benchmarks/evaluation_order.py
    python benchmarks/evaluation_order.py --d_model 512 --num_layers 8 --batch_size 64 --device cuda

The lengths are lognormal, with a median of 100 tokens and up to 512, as those of short documents are. The same trainer
evaluates the loss, and the order of sentences by greedy generation, both ways in turn. Time is CPU time of the
process, on a GPU wall-clock time; the figures are medians over the rounds. The losses are those of both ways.
"""

import argparse
import logging
import os
import statistics
import tempfile
import time
from unittest import mock

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read when the tokenizer is first used

import numpy as np  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from torch.utils.data import SequentialSampler  # noqa: E402
from transformers import set_seed  # noqa: E402

from hf_depth import (  # noqa: E402
    DepthObjective,
    DepthTrainer,
    DepthTrainingArguments,
    add_sentence_tokens,
    load_model,
    train_tokenizer,
)
from hf_depth.data.python_reference import python_reference_documents  # noqa: E402

MEDIAN_LENGTH, SIGMA, LONGEST, SENTENCE_LENGTH = 100, 0.8, 500, 25


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    set_seed(0)
    texts = [document["text"] for document in python_reference_documents()]
    tokenizer = add_sentence_tokens(train_tokenizer(texts, 2000, allow_fewer=True))
    size = {name: getattr(args, name) for name in ("d_model", "d_kv", "num_layers", "num_heads")}
    model = load_model(None, tokenizer, d_ff=2 * args.d_model, **size)
    data = uneven_examples(args.examples, len(tokenizer) // 2)
    print(f"{args.examples} examples, {args.batch_size} in a batch, {args.device}, {args.rounds} rounds")
    print("| evaluation of | by length (s) | in the order of the data (s) | ratio | losses |\n|---|---|---|---|---|")
    for name in ("loss", "generation"):
        with tempfile.TemporaryDirectory() as folder:
            settings = {"predict_with_generate": name == "generation", "generation_max_length": args.generate_tokens}
            trainer = DepthTrainer(
                model=model,
                args=DepthTrainingArguments(
                    folder,
                    per_device_eval_batch_size=args.batch_size,
                    use_cpu=args.device == "cpu",
                    report_to="none",
                    disable_tqdm=True,
                    log_level="error",
                    **settings,
                ),
                data_collator=DepthObjective(tokenizer, 512).collator(),
                eval_dataset=data,
            )
            print(row(name, *compare(trainer, args.rounds)), flush=True)


def uneven_examples(number: int, vocab_size: int) -> Dataset:
    """Documents of tokens at random, each of several sentences."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(MEDIAN_LENGTH), SIGMA, number), 2, LONGEST).astype(int)
    rows = []
    for length in lengths:
        sentences = np.array_split(np.arange(length), min(18, max(2, length // SENTENCE_LENGTH)))
        ids = rng.integers(3, vocab_size, length).tolist()
        rows.append({"input_ids": ids, "sentence_lengths": [len(sentence) for sentence in sentences]})
    return Dataset.from_list(rows)


def compare(trainer: DepthTrainer, rounds: int) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """Seconds of each round, by length and in the order of the data, and both losses."""
    clock = time.perf_counter if trainer.args.device.type == "cuda" else time.process_time
    in_order = mock.patch.object(DepthTrainer, "_get_eval_sampler", lambda self, data: SequentialSampler(data))
    seconds: list[tuple[float, float]] = []
    for number in range(rounds + 1):  # the first one does not count
        started = clock()
        by_length = trainer.evaluate()["eval_loss"]
        middle = clock()
        with in_order:
            by_data = trainer.evaluate()["eval_loss"]
        if number:
            seconds.append((middle - started, clock() - middle))
    return seconds, (by_length, by_data)


def row(name: str, seconds: list[tuple[float, float]], losses: tuple[float, float]) -> str:
    by_length, by_data = map(statistics.median, zip(*seconds, strict=True))
    ratio = statistics.median(one / other for one, other in seconds)
    return f"| {name} | {by_length:.2f} | {by_data:.2f} | {ratio:.2f} | {losses[0]:.6f}, {losses[1]:.6f} |"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--generate_tokens", type=int, default=24)
    for name, value in {"d_model": 128, "d_kv": 32, "num_layers": 2, "num_heads": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
