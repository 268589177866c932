"""The loader of a task without files: from which part of Python's documentation does a passage come?"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from datasets import Dataset

from ...data.corpus import HELD_OUT_PERCENTAGE, hold_out, load_corpus
from ...data.sentences import get_sentence_splitter
from ...ranges import check_ranges
from ..rows import read_splits
from ..sources import TaskFiles, split_files
from ..spec import TaskSpec
from .discourse import TEST_PERCENTAGES, VALIDATION_PERCENTAGE

MIN_CHARACTERS, MAX_CHARACTERS = 100, 300  # the length of a passage


@dataclass(frozen=True)
class PythonModulesOptions:
    """
    The options of the loader of passages from Python's documentation.

    Args:
        test_split_percentage (`float`, *optional*, defaults to 5):
            The share of documents to test on. If a model was pre-trained on the default corpus, this must not exceed
            its `validation_split_percentage`. It has then not read them.
    """

    test_split_percentage: float = HELD_OUT_PERCENTAGE

    def __post_init__(self):
        check_ranges(self, {"test_split_percentage": TEST_PERCENTAGES})


def load(
    spec: TaskSpec, files: TaskFiles, options: PythonModulesOptions, *, split_seed: int = 42, **_: Any
) -> dict[str, Dataset]:
    """
    Return passages of the default corpus, labeled by their `source`.

    The documents of each source are joined and cut into passages. Repeated passages are left out. No document is in
    two splits, but a module may be. If a file is named, it is read as a table instead, for example with new passages.
    """
    if files.are_named:
        return read_splits(spec, split_files(spec, files), files.cache_dir)
    corpus = load_corpus(validation_split_percentage=0, cache_dir=files.cache_dir)["train"]
    percentages = {"test": options.test_split_percentage, "validation": VALIDATION_PERCENTAGE}
    documents = hold_out(corpus, percentages, split_seed)
    label_of = {name: label for label, name in spec.labels.items()}
    splits, seen = {}, set()
    for split in ("test", "validation", "train"):
        texts: dict[str, list[str]] = {source: [] for source in label_of}
        for document in documents[split]:
            if document["source"] in label_of:
                texts[document["source"]].append(document["text"])
        rows = {
            passage: label_of[source]
            for source, parts in texts.items()
            for passage in passages("\n".join(parts))
            if passage not in seen
        }
        seen |= rows.keys()
        splits[split] = Dataset.from_dict({"text": list(rows), "label": list(rows.values())})
    return splits


def passages(text: str) -> Iterator[str]:
    """
    Yield passages of a text, each of as many consecutive sentences as fit into `MAX_CHARACTERS`.

    Passages shorter than `MIN_CHARACTERS` are left out, and so are sentences longer than `MAX_CHARACTERS`.

    >>> [len(passage) for passage in passages(" ".join(["This sentence has forty-two letters in all."] * 9))]
    [263, 131]
    """
    passage = ""
    for sentence in [*get_sentence_splitter()(text), None]:
        longer = f"{passage} {sentence}".lstrip()
        if sentence is not None and len(longer) <= MAX_CHARACTERS:
            passage = longer
            continue
        if len(passage) >= MIN_CHARACTERS:
            yield passage
        passage = sentence if sentence is not None and len(sentence) <= MAX_CHARACTERS else ""
