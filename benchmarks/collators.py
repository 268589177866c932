"""
How many examples the collators make per second, beside those of nanoT5 and of the published DEPTH.

    python benchmarks/collators.py
    python benchmarks/collators.py --nanot5_path ~/nanoT5 --depth_path ~/depth

The paths are checkouts of https://github.com/PiotrNawrot/nanoT5 and https://github.com/zbambergerNLP/depth; without
them only our own rates are printed. The collators of a line read the same rows in the same process and in turns, so
that whatever else the machine does meets all of them. Time is that of the process, which others disturb less than the
clock on the wall; rates are medians over the rounds. Rows hold numpy arrays, as `Dataset.with_format("numpy")` gives
them, or lists of ints, which every collator has to turn into arrays first.
"""

import argparse
import ast
import importlib
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch
from transformers import T5Tokenizer

from hf_depth import DataCollatorForDepth, DataCollatorForT5SpanCorruption, add_sentence_tokens
from hf_depth.data.corruption import depth_input_and_target_lengths, t5_input_and_target_lengths, t5_raw_length
from hf_depth.data.tokenization import eosen_token_id, sentence_token_ids, sentinel_token_ids

INPUT_LENGTH = 512
MEAN_SPAN_LENGTH = 3.0
NUM_WORDS = 32_000  # ids below are pieces of the vocabulary; sentinels and sentence tokens follow


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanot5_path", type=Path, help="folder of a nanoT5 checkout")
    parser.add_argument("--depth_path", type=Path, help="folder of a checkout of the published DEPTH")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=20, help="of five batches for each collator")
    args = parser.parse_args()

    torch.set_num_threads(1)
    tokenizer = synthetic_tokenizer()
    rng = np.random.default_rng(0)
    print(f"examples per second, batches of {args.batch_size}, medians of {args.rounds} rounds")
    for density in (0.15, 0.3):
        rows = t5_rows(rng, args.batch_size, density)
        ours = DataCollatorForT5SpanCorruption(tokenizer, density, MEAN_SPAN_LENGTH)
        collators = {"hf_depth": ours}
        if args.nanot5_path:
            collators["nanoT5"] = nanot5_collator(args.nanot5_path, tokenizer, density, len(rows[0]["input_ids"]))
        for form, convert in (("arrays", dict), ("lists", as_lists)):
            compare(f"T5, density {density}, {form}", collators, [convert(row) for row in rows], args.rounds)
        print_size(ours(rows))

    rows = depth_rows(rng, args.batch_size)
    ours = DataCollatorForDepth(tokenizer, 0.3, MEAN_SPAN_LENGTH)
    for form, convert in (("arrays", dict), ("lists", as_lists)):
        compare(f"DEPTH, density 0.3, {form}", {"hf_depth": ours}, [convert(row) for row in rows], args.rounds)
    print_size(ours(rows))
    if args.depth_path:  # too slow for as many rounds
        published = published_depth_collator(args.depth_path, tokenizer)
        compare("DEPTH, batches of 16", {"hf_depth": ours, "published": published}, rows[:16], rounds=3, batches=1)


def compare(title, collators, rows, rounds, batches=5):
    """Print examples per second, and how many times as fast as each of the others the first collator is."""
    seconds = {name: [] for name in collators}
    for round_number in range(rounds + 1):
        for name, collator in collators.items():
            start = time.process_time()
            for batch in range(batches):  # in a row, as in a run
                if hasattr(collator, "set_epoch"):
                    collator.set_epoch(round_number * batches + batch)  # new noise, not learnt by heart
                collator(rows)
            seconds[name].append(time.process_time() - start)
    rates = {name: batches * len(rows) / np.median(times[1:]) for name, times in seconds.items()}  # the first warms up
    ours = rates.pop("hf_depth")
    others = "".join(f", {name} {rate:,.0f} (ratio {ours / rate:,.1f})" for name, rate in rates.items())
    print(f"{title}: hf_depth {ours:,.0f}{others}", flush=True)


def print_size(batch):
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in batch.items())
    size = sum(tensor.nbytes for tensor in batch.values())
    print(f"    leaves the collator: {shapes}; {size / 1e6:.2f} MB")


def synthetic_tokenizer():
    """A tokenizer with the ids of T5's: only ids matter here."""
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocabulary += [(f"piece{number}", 0.0) for number in range(NUM_WORDS - len(vocabulary))]
    vocabulary += [(f"<extra_id_{number}>", 0.0) for number in reversed(range(100))]
    return add_sentence_tokens(T5Tokenizer(vocab=vocabulary, extra_ids=100))


def t5_rows(rng, number, density):
    """As many words per row as fill the input: (512, 0.15) -> 568, (512, 0.3) -> 639."""
    raw_length = t5_raw_length(INPUT_LENGTH, density, MEAN_SPAN_LENGTH)
    return [{"input_ids": ids} for ids in rng.integers(3, NUM_WORDS, (number, raw_length))]


def depth_rows(rng, number):
    """Sentences of 25 words on average, as in prose, for as long as any corruption of the row fits into the input."""
    rows = []
    while len(rows) < number:
        lengths = np.maximum(rng.gamma(2.2, 25 / 2.2, 20).astype(np.int64), 1)
        needed, _ = depth_input_and_target_lengths(np.cumsum(lengths), np.arange(1, 21), 0.3, MEAN_SPAN_LENGTH)
        lengths = lengths[needed <= INPUT_LENGTH]
        rows.append({"input_ids": rng.integers(3, NUM_WORDS, lengths.sum()), "sentence_lengths": lengths})
    return rows


def as_lists(row):
    return {name: values.tolist() for name, values in row.items()}


def nanot5_collator(path, tokenizer, density, raw_length):
    """`DataCollatorForT5MLM` of a checkout, alone: its module does not import, for want of a name elsewhere in it."""
    tree = ast.parse((path / "nanoT5/utils/copied_utils.py").read_text())
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom) or getattr(node, "name", "") == "DataCollatorForT5MLM"
    ]
    module = ModuleType("nanot5")
    sys.modules[module.__name__] = module
    exec(compile(tree, str(path), "exec"), module.__dict__)
    input_length, target_length = map(int, t5_input_and_target_lengths(raw_length, density, MEAN_SPAN_LENGTH))
    return module.DataCollatorForT5MLM(tokenizer, density, MEAN_SPAN_LENGTH, input_length, target_length, 0)


def published_depth_collator(path, tokenizer):
    """`DEPTHDataCollator` of a checkout, with a stand-in for its tokenizer, which needs transformers 4."""
    sys.path.insert(0, str(path))
    sys.modules["encoder_decoder_utils.tokenizer_utils"] = SimpleNamespace(DepthTokenizer=object)
    module = importlib.import_module("encoder_decoder_utils.data_collator_utils")
    sys.modules["encoder_decoder_utils.corruption"].np = NumpyWithNewshape("numpy")
    sentences, eosen = sentence_token_ids(tokenizer).tolist(), eosen_token_id(tokenizer)
    sentinels = [f"<extra_id_{number}>" for number in range(len(sentinel_token_ids(tokenizer)))]
    stand_in = SimpleNamespace(
        special_tokens_map={"additional_special_tokens": sentinels},
        convert_tokens_to_ids=tokenizer.convert_tokens_to_ids,
        all_special_ids=tokenizer.all_special_ids,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        pad_token_type_id=0,
        end_of_sentence_token_id=eosen,
        get_sentence_token_ids=lambda: sentences,
        get_sentence_token_and_eosen_ids=lambda: [*sentences, eosen],
    )
    collator = module.DEPTHDataCollator(
        stand_in, 0.3, MEAN_SPAN_LENGTH, INPUT_LENGTH, INPUT_LENGTH, 0, 0, sentence_shuffling_probability=0.5
    )

    def collate(rows):
        return collator([published_layout(row, sentences, eosen, tokenizer.eos_token_id) for row in rows])

    return collate


class NumpyWithNewshape(ModuleType):
    """numpy with the argument `newshape` of `reshape`, which numpy 2.4 has no more."""

    def __getattr__(self, name):
        return getattr(np, name)

    def reshape(self, array, newshape):
        return np.reshape(array, newshape)


def published_layout(row, sentence_tokens, eosen, eos):
    ids, types = [eosen], [1]
    parts = np.split(row["input_ids"], np.cumsum(row["sentence_lengths"])[:-1])
    for number, (token, words) in enumerate(zip(sentence_tokens, parts, strict=False), start=1):
        ids += [token, *words.tolist(), eosen]
        types += [number] * (len(words) + 2)
    ids, types = [*ids[: INPUT_LENGTH - 1], eos], [*types[: INPUT_LENGTH - 1], types[-1]]
    padding = [0] * (INPUT_LENGTH - len(ids))
    return {"input_ids": np.array(ids + padding), "token_type_ids": np.array(types + padding)}


if __name__ == "__main__":
    main()
