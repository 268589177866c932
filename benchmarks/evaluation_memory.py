"""
Peak memory of evaluation by the number of examples.

    python benchmarks/evaluation_memory.py

Evaluates the same model on 1, 4 and 16 times as many examples and prints by how much the peak memory of the process
rises each time; then evaluates the smallest number with `Seq2SeqTrainer`, which keeps the logits of all examples.
"""

import argparse
import logging
import resource
import sys
import tempfile

import numpy as np
from transformers import Seq2SeqTrainer

from hf_depth import (
    DataCollatorForDepth,
    DepthConfig,
    DepthForConditionalGeneration,
    DepthTrainer,
    DepthTrainingArguments,
)
from hf_depth.data.default_corpus import python_reference_documents
from hf_depth.data.tokenization import add_sentence_tokens, eosen_token_id, sentence_token_ids
from hf_depth.data.vocabulary import train_tokenizer


class Examples:
    """A data set of `number` examples that are made when they are read, so that it takes no memory itself."""

    def __init__(self, number: int, length: int, vocab_size: int):
        self.number, self.length, self.vocab_size = number, length, vocab_size

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < self.number:
            raise IndexError(index)
        ids = np.random.default_rng(index).integers(3, self.vocab_size, size=self.length)
        return {"input_ids": ids, "sentence_lengths": np.full(4, self.length // 4)}


def peak_megabytes() -> float:
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes on macOS, kilobytes on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=256, help="the smallest number of examples")
    parser.add_argument("--length", type=int, default=128, help="tokens per example")
    parser.add_argument("--vocab_size", type=int, default=4096)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)

    with tempfile.TemporaryDirectory() as folder:
        texts = [document["text"] for document in python_reference_documents()]
        tokenizer = add_sentence_tokens(train_tokenizer(texts, 2048, folder))
        model = DepthForConditionalGeneration(
            DepthConfig(
                vocab_size=arguments.vocab_size,
                d_model=64,
                d_kv=16,
                d_ff=128,
                num_layers=1,
                num_heads=4,
                first_sentence_token_id=int(sentence_token_ids(tokenizer)[0]),
                eosen_token_id=eosen_token_id(tokenizer),
            )
        )
        options = DepthTrainingArguments(folder, per_device_eval_batch_size=32, use_cpu=True, disable_tqdm=True)
        common = {"model": model, "args": options, "data_collator": DataCollatorForDepth(tokenizer)}

        def rise(trainer: Seq2SeqTrainer, factor: int) -> float:
            before = peak_megabytes()
            trainer.evaluate(Examples(factor * arguments.examples, arguments.length, 1900))
            return peak_megabytes() - before

        trainer = DepthTrainer(**common)
        rise(trainer, 4)  # warm-up: allocator, caches
        for factor in (1, 4, 16):
            print(f"DepthTrainer, {factor * arguments.examples:6} examples: peak +{rise(trainer, factor):7.1f} MB")
        stock = Seq2SeqTrainer(**common, compute_metrics=lambda prediction: {})
        print(f"Seq2SeqTrainer, {arguments.examples:4} examples: peak +{rise(stock, 1):7.1f} MB (keeps all logits)")


if __name__ == "__main__":
    main()
