"""
How well the pairs of sentences of `unshuffle.yaml` or `quickstart.yaml` can be put in order without reading them: by
the longer sentence, and by linear rankers on lengths, marks and words. What an un-shuffling model has learnt is what
it scores above these.

    python benchmarks/order_baselines.py --train_file novels.jsonl.gz --validation_file other_novels.jsonl.gz \\
        --tokenizer runs/unshuffle
    python benchmarks/order_baselines.py --max_length 48 --validation_split_percentage 10 --tokenizer runs/quickstart

The rankers are logistic regressions on the difference between the features of the first and the second sentence.
"""

import argparse
import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping

from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import LogisticRegression

from hf_depth import DepthObjective, add_sentence_tokens, load_corpus, load_tokenizer, train_tokenizer

Pair = tuple[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", help="documents (default: Python's own documentation)")
    parser.add_argument("--validation_file", nargs="+", help="held-out documents (default: a part of the others)")
    parser.add_argument("--validation_split_percentage", type=float, default=5, help="without --validation_file")
    parser.add_argument("--tokenizer", help="folder of the run (default: a vocabulary trained on the documents)")
    parser.add_argument("--vocab_size", type=int, default=4096)
    parser.add_argument("--max_length", type=int, default=32, help="of source and target, as in the configuration")
    parser.add_argument("--mlm_probability", type=float, default=0.1)
    arguments = parser.parse_args()

    pairs = corpus_pairs(arguments)
    train, held_out = pairs["train"], pairs["validation"]
    error = 0.5 / math.sqrt(len(held_out))  # of a share of the pairs, at 0.5
    print(f"{len(train):,} pairs to train on, {len(held_out):,} held out (standard error {error:.3f})")
    print(f"{'longer sentence first':24} {share_of_longer_first(held_out):.3f}")
    for name, features in FEATURES.items():
        print(f"{'ranker on ' + name:24} {ranker_accuracy(features, train, held_out):.3f}")


def corpus_pairs(arguments: argparse.Namespace) -> dict[str, list[Pair]]:
    """The texts of each example of two sentences, by split."""
    corpus = load_corpus(
        train_file=arguments.train_file,
        validation_file=arguments.validation_file,
        validation_split_percentage=arguments.validation_split_percentage,
    )
    if arguments.tokenizer:
        tokenizer = load_tokenizer(arguments.tokenizer)
    else:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = train_tokenizer(corpus["train"]["text"], arguments.vocab_size, folder, allow_fewer=True)
    objective = DepthObjective(
        add_sentence_tokens(tokenizer, num_sentence_tokens(tokenizer)),
        max_source_length=arguments.max_length,
        mlm_probability=arguments.mlm_probability,
        min_sentences=2,
        max_sentences=2,
    )
    splits, _ = objective.prepare_splits(corpus)
    pairs = {}
    for split, examples in splits.items():
        cuts = [(example["input_ids"], example["sentence_lengths"][0]) for example in examples]
        firsts = tokenizer.batch_decode([ids[:length] for ids, length in cuts])
        seconds = tokenizer.batch_decode([ids[length:] for ids, length in cuts])
        pairs[split] = list(zip(firsts, seconds, strict=True))
    return pairs


def num_sentence_tokens(tokenizer) -> int:
    return sum(f"<sent_{i}>" in tokenizer.get_vocab() for i in range(20)) or 2


def share_of_longer_first(pairs: list[Pair]) -> float:
    """The share of pairs whose first sentence has more characters; equal ones count half."""
    return sum((len(first) > len(second)) + (len(first) == len(second)) / 2 for first, second in pairs) / len(pairs)


def lengths(text: str) -> Mapping[str, float]:
    words = len(text.split())
    return {"characters": len(text) / 50, "words": words / 10, "log": math.log(len(text)), "short": words < 5}


def marks(text: str) -> Mapping[str, float]:
    """Punctuation, and which marks begin and end the sentence."""
    return Counter(re.findall(r"[^\w\s]", text)) | {f"begins {text[:1]!r}": 1, f"ends {text[-1:]!r}": 1}


def words(text: str) -> Mapping[str, float]:
    found = re.findall(r"\w+|[^\w\s]", text.lower())
    return dict.fromkeys(found, 1) | {f"begins {found[0]}": 1, f"ends {found[-1]}": 1} if found else {}


FEATURES: dict[str, Callable[[str], Mapping[str, float]]] = {
    "lengths": lengths,
    "punctuation": marks,
    "words": lambda text: {**lengths(text), **marks(text), **words(text)},
}


def ranker_accuracy(features: Callable[[str], Mapping[str, float]], train: list[Pair], held_out: list[Pair]) -> float:
    """The share of held-out pairs that a linear ranker puts in order."""
    hasher = FeatureHasher(2**16)

    def differences(pairs: list[Pair]):
        firsts, seconds = zip(*pairs, strict=True)
        return hasher.transform(map(features, firsts)) - hasher.transform(map(features, seconds))

    matrix = differences(train)
    flipped = [index % 2 for index in range(len(train))]  # a ranker has no classes: every second pair is turned round
    signs = [1 - 2 * flip for flip in flipped]
    ranker = LogisticRegression(C=0.1, fit_intercept=False, max_iter=1000)
    ranker.fit(matrix.multiply([[sign] for sign in signs]).tocsr(), flipped)
    return float((ranker.decision_function(differences(held_out)) < 0).mean())


if __name__ == "__main__":
    main()
