"""
Speed of preprocessing (splitting into sentences, tokenization, cutting into windows), absolute and relative to the
tokenizer alone on the same documents. One process, one thread, in CPU time.

    python benchmarks/preparation.py
    python benchmarks/preparation.py --train_file corpus.jsonl --tokenizer google/t5-v1_1-base --num_proc 2

Every run reads documents that no earlier run has read, since sentence splitters and tokenizers cache their results.

With `--num_proc`, all documents are then written to shards for DEPTH, in that many processes. The CPU time of all of
them is compared with what the tokenizer alone would take for as much text, beside the peak memory of a process.
"""

import argparse
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read when the tokenizer is first used

from transformers import PreTrainedTokenizerBase  # noqa: E402

from hf_depth import DepthObjective, add_sentence_tokens  # noqa: E402
from hf_depth.data.corpus import load_corpus
from hf_depth.data.corruption import t5_raw_length
from hf_depth.data.preprocessing import DepthPreprocessor, SpanCorruptionPreprocessor
from hf_depth.data.shard_preparation import prepare_shards
from hf_depth.data.tokenization import load_tokenizer
from hf_depth.data.vocabulary import train_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", help="documents (default: Python's own documentation)")
    parser.add_argument("--text_column", default="text")
    parser.add_argument("--tokenizer", help="folder or name of a T5 tokenizer (default: one trained on the documents)")
    parser.add_argument("--language", default="en")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--megabytes", type=float, default=2.0, help="text per run, at most")
    parser.add_argument("--num_proc", type=int, help="write shards in so many processes")
    arguments = parser.parse_args()
    # A process of its own for the shards, forked before this one holds the documents, so that its memory can be told.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        pool.submit(os.getpid).result()
        compare(arguments, pool)


def compare(arguments: argparse.Namespace, pool: ProcessPoolExecutor) -> None:
    """Print the speeds, and what `pool` measures of writing shards."""
    texts = load_corpus(
        train_file=arguments.train_file, text_column=arguments.text_column, validation_split_percentage=0
    )["train"][arguments.text_column]
    tokenizer = add_sentence_tokens(get_tokenizer(arguments.tokenizer, texts))
    prepare = {
        "tokenizer alone": lambda batch: tokenizer(batch["text"])["input_ids"],
        "T5": SpanCorruptionPreprocessor(tokenizer, t5_raw_length(512, 0.15, 3.0)),
        "DEPTH": DepthPreprocessor(tokenizer, 512, 512, 0.3, 3.0, language=arguments.language),
    }
    parts = unseen_parts([text for text in texts if text], arguments.runs + 1, arguments.megabytes * 1e6)
    measure(prepare, parts[0])  # warm-up: the rules of a splitter are loaded at its first use
    runs = [measure(prepare, part) for part in parts[1:]]

    sizes = [sum(map(len, part)) / 1e6 for part in parts]
    print(f"{len(runs)} runs of {statistics.median(sizes):.2f} million characters, medians:")
    for name in prepare:
        speed = statistics.median(size / run[name] for size, run in zip(sizes[1:], runs, strict=True))
        ratio = statistics.median(run["tokenizer alone"] / run[name] for run in runs)
        print(f"{name:16} {speed:6.2f} million characters/s, {ratio:5.2f} times the speed of the tokenizer alone")
    if arguments.num_proc:
        alone = statistics.median(run["tokenizer alone"] / size for size, run in zip(sizes[1:], runs, strict=True))
        size = sum(map(len, filter(None, texts))) / 1e6
        seconds, duration, memory, memory_of_process = pool.submit(write_shards, arguments, tokenizer).result()
        print(
            f"shards, {arguments.num_proc} processes: {size / seconds:.2f} million characters per second of a CPU "
            f"({size / duration:.2f} by the clock), {size * alone / seconds:.2f} times the tokenizer alone\n"
            f"peak memory: {memory:.0f} MB, of a process that prepares {memory_of_process:.0f} MB"
        )


def write_shards(
    arguments: argparse.Namespace, tokenizer: PreTrainedTokenizerBase
) -> tuple[float, float, float, float]:
    """CPU seconds and seconds that writing shards takes, and the peak memory of this process and its largest child."""
    documents = load_corpus(
        train_file=arguments.train_file,
        text_column=arguments.text_column,
        validation_split_percentage=0,
        streaming=True,
    )
    objective = DepthObjective(tokenizer, sentence_language=arguments.language)
    before, begin = cpu_seconds(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        prepare_shards(documents, objective, folder, text_column=arguments.text_column, num_proc=arguments.num_proc)
    seconds, duration = cpu_seconds() - before, time.perf_counter() - begin
    peaks = (resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return seconds, duration, *peaks


def cpu_seconds() -> float:
    """Of this process and of those that it has started, once they have ended."""
    usage = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in usage)


def get_tokenizer(name: str | None, texts: list[str]) -> PreTrainedTokenizerBase:
    if name:
        return load_tokenizer(name)
    with tempfile.TemporaryDirectory() as folder:
        return train_tokenizer(texts, 32_000, folder, allow_fewer=True)


def unseen_parts(texts: list[str], number: int, size: float) -> list[list[str]]:
    """Distribute documents over parts of nearly the same size, none of them larger than `size` characters."""
    parts: list[list[str]] = [[] for _ in range(number)]
    sizes = [0] * number
    for text in texts:
        smallest = sizes.index(min(sizes))
        if sizes[smallest] + len(text) <= size:
            parts[smallest].append(text)
            sizes[smallest] += len(text)
    return parts


def measure(prepare: dict[str, Callable], part: list[str]) -> dict[str, float]:
    """The seconds that each function takes for the same documents."""
    seconds = {}
    for name, function in prepare.items():
        start = time.process_time()
        function({"text": part})
        seconds[name] = time.process_time() - start
    return seconds


if __name__ == "__main__":
    main()
