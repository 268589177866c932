"""
How fast text becomes batches: text preparation and collators, beside those of nanoT5 and of the published DEPTH, and
beside what training needs.

    python benchmarks/data_pipeline.py
    python benchmarks/data_pipeline.py --nanot5_path ~/nanoT5 --depth_path ~/depth --output_dir runs/speed
    python benchmarks/data_pipeline.py --step_seconds 0.14 --batch_size 128     # the step that train_step.py measured
    python benchmarks/data_pipeline.py --parts preparation --train_file corpus.jsonl --num_proc 2

The paths are checkouts of https://github.com/PiotrNawrot/nanoT5 and https://github.com/zbambergerNLP/depth; without
them only our own rates are printed. (The published DEPTH prepares text by a tokenizer that needs transformers 4.) What
a line compares works on the same data in the same process and takes turns, so that other load on the machine affects
all alike. Time is CPU time of the process, which other load affects less than wall-clock time; rates are medians.

- `preparation`: splitting into sentences, tokenization and cutting into windows, in characters per second, and what
  the tokenizer alone takes. Every run reads documents that no earlier run has read, since sentence splitters and
  tokenizers cache their results. With `--num_proc`, all documents are then written to shards for DEPTH, in that many
  processes, whose CPU time is printed.
- `collators`: examples per second of a process. Examples hold numpy arrays, as `Dataset.with_format("numpy")` gives
  them, or lists of ints, which every collator has to convert to arrays first.
- `loader`: how many workers a step of `--step_seconds` needs by these rates.
"""

import argparse
import math
import os
import resource
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read when the tokenizer is first used

import datasets  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from checkouts import Collator, Example, nanot5_collator, nanot5_preparation, published_depth_collator  # noqa: E402
from transformers import PreTrainedTokenizerBase, T5Tokenizer  # noqa: E402

from hf_depth import (  # noqa: E402
    DataCollatorForDepth,
    DataCollatorForT5SpanCorruption,
    DepthObjective,
    add_sentence_tokens,
)
from hf_depth.data.corpus import load_corpus  # noqa: E402
from hf_depth.data.denoisers import UL2_DENOISERS  # noqa: E402
from hf_depth.data.noise_lengths import depth_input_and_target_lengths, t5_raw_length  # noqa: E402
from hf_depth.data.preprocessing import DepthPreprocessor, SpanCorruptionPreprocessor  # noqa: E402
from hf_depth.data.shards import prepare_shards  # noqa: E402
from hf_depth.data.tokenization import add_mode_tokens, load_tokenizer  # noqa: E402
from hf_depth.data.vocabulary import train_tokenizer  # noqa: E402

PARTS = ("preparation", "collators", "loader")
INPUT_LENGTH = 512
SPAN_LENGTH = 3.0
NUM_PIECES = 32_000  # ids below are pieces of the vocabulary; sentinels and sentence tokens follow
GOALS = {"nanoT5": 10.0, "DEPTH examples/s": 20_000.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--nanot5_path", type=Path, help="folder of a nanoT5 checkout")
    parser.add_argument("--depth_path", type=Path, help="folder of a checkout of the published DEPTH")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20, help="of five batches for each collator")
    parser.add_argument("--step_seconds", type=float, default=0.14, help="that a training step takes")
    parser.add_argument("--train_file", nargs="+", help="documents (default: Python's own documentation)")
    parser.add_argument("--text_column", default="text")
    parser.add_argument("--tokenizer", help="folder or name of a T5 tokenizer (default: one trained on the documents)")
    parser.add_argument("--language", default="en")
    parser.add_argument("--runs", type=int, default=7, help="of text preparation")
    parser.add_argument("--megabytes", type=float, default=2.0, help="text per run, at most")
    parser.add_argument("--num_proc", type=int, help="write shards in so many processes")
    parser.add_argument("--output_dir", type=Path, help="writes data_pipeline.md")
    args = parser.parse_args()

    torch.set_num_threads(1)
    table = Table()
    if "preparation" in args.parts:
        compare_preparation(args, table)
    tokenizer = synthetic_tokenizer()
    if "collators" in args.parts:
        compare_collators(args, tokenizer, table)
    if "loader" in args.parts:
        feed_training(args, tokenizer, table)
    table.write(args)


class Table:
    """Printed while it grows, and kept for the file."""

    def __init__(self) -> None:
        self.lines = ["| | hf_depth | beside it | goal |", "|---|---|---|---|"]
        print("\n".join(self.lines))

    def add(self, what: str, ours: str, beside: str = "", goal: str = "") -> None:
        self.lines.append(f"| {what} | {ours} | {beside} | {goal} |")
        print(self.lines[-1], flush=True)

    def write(self, args: argparse.Namespace) -> None:
        if args.output_dir is None:
            return
        args.output_dir.mkdir(parents=True, exist_ok=True)
        command = shlex.join(["python", "benchmarks/data_pipeline.py", *sys.argv[1:]])
        lines = [f"`{command}`\n", *self.lines]
        (args.output_dir / "data_pipeline.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def verdict(is_met: bool, goal: str) -> str:
    return f"{goal}: {'met' if is_met else 'not met'}"


# ---- Text preparation -----------------------------------------------------------------------------------------------


def compare_preparation(args: argparse.Namespace, table: Table) -> None:
    texts = load_corpus(train_file=args.train_file, text_column=args.text_column, validation_split_percentage=0)
    texts = texts["train"][args.text_column]
    tokenizer = add_sentence_tokens(get_tokenizer(args.tokenizer, texts))
    raw_length = t5_raw_length(INPUT_LENGTH, 0.15, SPAN_LENGTH)
    prepare = {
        "the tokenizer alone": lambda batch: tokenizer(batch["text"])["input_ids"],
        "T5": SpanCorruptionPreprocessor(tokenizer, raw_length),
        "DEPTH": DepthPreprocessor(tokenizer, INPUT_LENGTH, INPUT_LENGTH, 0.3, SPAN_LENGTH, language=args.language),
    }
    if args.nanot5_path:
        prepare["nanoT5"] = nanot5_preparation(args.nanot5_path, tokenizer, raw_length)
    parts = unseen_parts([text for text in texts if text], args.runs + 1, args.megabytes * 1e6)
    measure(prepare, parts[0])  # warm-up: the rules of a splitter are loaded at its first use
    runs = [measure(prepare, part) for part in parts[1:]]

    sizes = [sum(map(len, part)) / 1e6 for part in parts]
    for name in ("T5", "DEPTH"):
        speed = statistics.median(size / run[name] for size, run in zip(sizes[1:], runs, strict=True))
        ratios = {other: statistics.median(run[other] / run[name] for run in runs) for other in prepare}
        beside = [f"{ratios[other]:.2f} times {other}" for other in prepare if other not in ("T5", "DEPTH")]
        table.add(f"prepare text for {name}", f"{speed:.2f} million characters/s", ", ".join(beside))
    if args.num_proc:
        alone = statistics.median(run["the tokenizer alone"] / size for size, run in zip(sizes[1:], runs, strict=True))
        size = sum(map(len, filter(None, texts))) / 1e6
        seconds, duration = write_shards(args, tokenizer)
        table.add(
            f"write shards, {args.num_proc} processes",
            f"{size / seconds:.2f} million characters per second of a CPU ({size / duration:.2f} by the clock)",
            f"{size * alone / seconds:.2f} times the tokenizer alone",
        )


def write_shards(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> tuple[float, float]:
    """CPU seconds and seconds that writing shards takes."""
    documents = load_corpus(train_file=args.train_file, text_column=args.text_column, validation_split_percentage=0)
    objective = DepthObjective(tokenizer, sentence_language=args.language)
    before, begin = cpu_seconds(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        prepare_shards(documents, objective, folder, text_column=args.text_column, num_proc=args.num_proc)
    return cpu_seconds() - before, time.perf_counter() - begin


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


def measure(prepare: Mapping[str, Callable], part: list[str]) -> dict[str, float]:
    """The seconds that each function takes for the same documents."""
    seconds = {}
    for name, function in prepare.items():
        start = time.process_time()
        function({"text": part})
        seconds[name] = time.process_time() - start
    return seconds


# ---- Collators ------------------------------------------------------------------------------------------------------


def compare_collators(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase, table: Table) -> None:
    rng = np.random.default_rng(0)
    for density in (0.15, 0.3):
        examples = t5_examples(rng, args.batch_size, density)
        collators = {"hf_depth": DataCollatorForT5SpanCorruption(tokenizer, density, SPAN_LENGTH)}
        if args.nanot5_path:
            raw_length = len(examples[0]["input_ids"])
            collators["nanoT5"] = nanot5_collator(args.nanot5_path, tokenizer, (density, SPAN_LENGTH), raw_length)
        for form, convert in (("arrays", dict), ("lists", as_lists)):
            rates = collator_rates(collators, [convert(example) for example in examples], args.rounds)
            goal = ""
            if form == "arrays" and "nanoT5" in rates:
                goal = verdict(rates["hf_depth"] >= GOALS["nanoT5"] * rates["nanoT5"], "≥ 10 times nanoT5")
            add_rates(table, f"T5 collator, density {density}, {form}", rates, goal)
        add_size(table, collators["hf_depth"](examples))

    examples = depth_examples(rng, args.batch_size)
    ours = DataCollatorForDepth(tokenizer, 0.3, SPAN_LENGTH)
    for form, convert in (("arrays", dict), ("lists", as_lists)):
        rates = collator_rates({"hf_depth": ours}, [convert(example) for example in examples], args.rounds)
        is_met = rates["hf_depth"] >= GOALS["DEPTH examples/s"]
        goal = verdict(is_met, "≥ 20,000 examples/s") if form == "arrays" else ""
        add_rates(table, f"DEPTH collator, density 0.3, {form}", rates, goal)
    add_size(table, ours(examples))
    if args.depth_path:  # too slow for as many rounds
        published = published_depth_collator(args.depth_path, tokenizer, (0.3, SPAN_LENGTH), INPUT_LENGTH)
        collators = {"hf_depth": ours, "the published one": published}
        rates = collator_rates(collators, examples[:16], rounds=3, batches=1)
        add_rates(table, "DEPTH collator, batches of 16", rates)
    compare_objectives(args, tokenizer, table)


def compare_objectives(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase, table: Table) -> None:
    """Add the rates of the other objectives beside those of span corruption on the same examples."""
    rng = np.random.default_rng(1)
    add_mode_tokens(tokenizer, [denoiser.mode for denoiser in UL2_DENOISERS])
    t5 = [{"input_ids": ids} for ids in rng.integers(3, NUM_PIECES, (args.batch_size, 510))]
    t5 = [example | {"unit_lengths": unit_lengths(rng, np.array([510]))} for example in t5]
    depth = depth_examples(rng, args.batch_size)
    depth = [e | {"unit_lengths": unit_lengths(rng, e["sentence_lengths"])} for e in depth]
    for kind, collator_class, examples, name, settings in (
        ("T5", DataCollatorForT5SpanCorruption, t5, "PMI masking", {"whole_units": True}),
        ("T5", DataCollatorForT5SpanCorruption, t5, "prefix-LM", {"objective": "prefix_lm"}),
        ("T5", DataCollatorForT5SpanCorruption, t5, "mixture of denoisers", {"objective": "mixture_of_denoisers"}),
        ("DEPTH", DataCollatorForDepth, depth, "PMI masking", {"whole_units": True}),
        ("DEPTH", DataCollatorForDepth, depth, "prefix-LM", {"objective": "prefix_lm"}),
    ):
        collators = {"hf_depth": collator_class(tokenizer, **settings), "span corruption": collator_class(tokenizer)}
        add_rates(table, f"{kind} collator, {name}", collator_rates(collators, examples, args.rounds))


def unit_lengths(rng: np.random.Generator, lengths: np.ndarray) -> np.ndarray:
    """Units of 1.6 tokens on average, as words and collocations of prose are, that end where the sentences do."""
    ends = np.cumsum(lengths)
    borders = np.cumsum(rng.choice([1, 2, 3, 4], ends[-1], p=[0.6, 0.25, 0.1, 0.05]))
    return np.diff(np.union1d(borders[borders < ends[-1]], ends), prepend=0)


def collator_rates(
    collators: Mapping[str, Collator], examples: Sequence[Example], rounds: int, batches: int = 5
) -> dict[str, float]:
    """Examples per second of each collator, which take turns: the median of the rounds after a warm-up."""
    seconds = {name: [] for name in collators}
    for round_number in range(rounds + 1):
        for name, collator in collators.items():
            start = time.process_time()
            for batch in range(batches):  # without a break, as in training
                if hasattr(collator, "set_epoch"):
                    collator.set_epoch(round_number * batches + batch)  # draws new noise
                collator(examples)
            seconds[name].append(time.process_time() - start)
    return {name: batches * len(examples) / statistics.median(times[1:]) for name, times in seconds.items()}


def add_rates(table: Table, what: str, rates: Mapping[str, float], goal: str = "") -> None:
    ours = rates["hf_depth"]
    others = [f"{name} {rate:,.0f} (ratio {ours / rate:,.1f})" for name, rate in rates.items() if name != "hf_depth"]
    table.add(what, f"{ours:,.0f} examples/s", ", ".join(others), goal)


def add_size(table: Table, batch: Mapping[str, torch.Tensor]) -> None:
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in batch.items())
    table.add("a batch of it", f"{sum(tensor.nbytes for tensor in batch.values()) / 1e6:.2f} MB", shapes)


def synthetic_tokenizer() -> PreTrainedTokenizerBase:
    """A tokenizer with the ids of T5's tokenizer, as only ids matter here."""
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary += [(f"piece{number}", 0.0) for number in range(NUM_PIECES - len(vocabulary))]
    vocabulary += [(f"<extra_id_{number}>", 0.0) for number in reversed(range(100))]
    return add_sentence_tokens(T5Tokenizer(vocab=vocabulary, extra_ids=100))


def t5_examples(rng: np.random.Generator, number: int, density: float) -> list[Example]:
    """Examples whose corrupted input has 512 tokens: 568 tokens at density 0.15, 639 at density 0.3."""
    raw_length = t5_raw_length(INPUT_LENGTH, density, SPAN_LENGTH)
    return [{"input_ids": ids} for ids in rng.integers(3, NUM_PIECES, (number, raw_length))]


def depth_examples(rng: np.random.Generator, number: int) -> list[Example]:
    """Sentences of 25 tokens on average, as in prose, as many as fit into the input under any corruption."""
    examples = []
    while len(examples) < number:
        lengths = np.maximum(rng.gamma(2.2, 25 / 2.2, 20).astype(np.int64), 1)
        needed, _ = depth_input_and_target_lengths(np.cumsum(lengths), np.arange(1, 21), 0.3, SPAN_LENGTH)
        lengths = lengths[needed <= INPUT_LENGTH]
        examples.append({"input_ids": rng.integers(3, NUM_PIECES, lengths.sum()), "sentence_lengths": lengths})
    return examples


def as_lists(example: Example) -> Example:
    return {name: values.tolist() for name, values in example.items()}


# ---- Feeding training -----------------------------------------------------------------------------------------------


def feed_training(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase, table: Table) -> None:
    """Compare the rate of DEPTH's collator, reading included, with that of training."""
    rng, needed = np.random.default_rng(2), args.batch_size / args.step_seconds
    examples = depth_examples(rng, 2 * args.batch_size)
    dataset = datasets.Dataset.from_list([as_lists(example) for example in examples]).with_format("numpy")
    collator = DataCollatorForDepth(tokenizer, 0.3, SPAN_LENGTH)
    indices = list(range(args.batch_size))
    read = lambda _: collator(dataset.__getitems__(indices))  # noqa: E731
    rate = collator_rates({"hf_depth": read}, examples[: args.batch_size], max(2, args.rounds // 4))["hf_depth"]
    step = f"steps of {args.step_seconds:g} s, batches of {args.batch_size}"
    table.add(f"workers for {step}", f"{math.ceil(needed / rate)}", f"{needed:,.0f} of {rate:,.0f} examples/s")


if __name__ == "__main__":
    main()
