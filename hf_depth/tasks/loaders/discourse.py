"""
Discourse tasks made of any text: sentence position, binary sentence ordering and discourse coherence, as DiscoEval
defines them, from documents in any language for which there are sentence rules.

Source: Chen, Chu and Gimpel (2019), "Evaluation Benchmarks and Learning Criteria for Discourse-Aware Sentence
Representations", arXiv 1909.00142, section 3.
"""

import hashlib
import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value

from ...data.corpus import HELD_OUT_PERCENTAGE, hold_out, load_corpus
from ...data.sentences import LINES, SentenceSplitter, get_sentence_splitter
from ..sources import TaskFiles, keep_rows, kept_splits, named_generator, split_files
from ..spec import TaskSpec

logger = logging.getLogger(__name__)

VALIDATION_PERCENTAGE = 10  # of the documents, if there is no file
DOCUMENT_SUFFIXES = (".txt", ".json", ".jsonl", ".csv", ".parquet")

# What counts as a sentence, and not as a heading, an item of a list, code or a table.
MIN_LETTERS, MAX_CHARACTERS = 10, 1000
MIN_LETTER_SHARE = 0.75  # of the characters, white space not counted
_CLOSING = ("Pe", "Pf", "Pi")  # brackets and curly quotation marks; straight ones are "Po", as full stops are
_NO_END = frozenset(",:;、，：；/\\@#%&*")


@dataclass(frozen=True)
class DiscourseOptions:
    """
    Args:
        text_column (`str`, *optional*, defaults to `"text"`): the column that holds the documents.
        sentence_language (`str`, *optional*, defaults to `"en"`): of the documents, see [`get_sentence_splitter`].
        max_examples_per_document (`int`, *optional*, defaults to 20):
            At least one window is taken, with an example of every label; `None` takes all.
        test_split_percentage (`float`, *optional*, defaults to 5):
            Without a file for the test, the share of the documents to take for it: at most the
            `validation_split_percentage` of pre-training on the same documents, which then has not read them.

    Raises:
        `ValueError`: if there are no rules for the language, the limit is less than 1, or the percentage is not
            between 0 and 90.
    """

    text_column: str = "text"
    sentence_language: str = "en"
    max_examples_per_document: int | None = 20
    test_split_percentage: float = HELD_OUT_PERCENTAGE

    def __post_init__(self):
        check_test_split_percentage(self.test_split_percentage)
        limit = self.max_examples_per_document
        if limit is not None and limit < 1:
            raise ValueError(f"`max_examples_per_document` must be at least 1, or None for no limit, got {limit}.")
        get_sentence_splitter(self.sentence_language)  # raises if there is none


def check_test_split_percentage(percentage: float) -> None:
    """Raise a `ValueError` unless documents are left beside those for the test and for validation."""
    if not 0 < percentage < 100 - VALIDATION_PERCENTAGE:
        raise ValueError(
            f"`test_split_percentage` must lie between 0 and {100 - VALIDATION_PERCENTAGE}, got {percentage}."
        )


Sentences = Sequence[str]
Example = tuple[list[str], int]


@dataclass(frozen=True)
class DiscourseTask:
    """
    Attributes:
        num_sentences: the length of a window: of so many consecutive sentences the examples are made.
        num_examples: how many examples a window gives: one of each label.
        examples: makes them of a window, a window of another document (if `needs_other`), and a generator.
        needs_other: whether there must be other documents.
    """

    num_sentences: int
    num_examples: int
    examples: Callable[[Sentences, Sentences, np.random.Generator], list[Example]]
    needs_other: bool = False


@dataclass(frozen=True)
class _Document:
    """The windows of a document, and a hash of its text."""

    id: str
    windows: list[tuple[str, ...]]


def sentence_position(window: Sentences, other: Sentences, rng: np.random.Generator) -> list[Example]:
    """
    Each sentence is moved to the front once; the label is the place that it came from.

    >>> sentence_position(["a", "b", "c"], [], None)
    [(['a', 'b', 'c'], 0), (['b', 'a', 'c'], 1), (['c', 'a', 'b'], 2)]
    """
    return [([window[i], *window[:i], *window[i + 1 :]], i) for i in range(len(window))]


def sentence_ordering(window: Sentences, other: Sentences, rng: np.random.Generator) -> list[Example]:
    """The sentences as they stand (1), and in reverse (0)."""
    return [(list(window), 1), (list(reversed(window)), 0)]


def discourse_coherence(window: Sentences, other: Sentences, rng: np.random.Generator) -> list[Example]:
    """
    The sentences as they stand (1), and with one of them, never the first or the last, replaced by a sentence of
    another document (0). That comes from the same place of its window, so that no sentence shows by itself, without
    those around it, that it is foreign.
    """
    place = rng.integers(1, len(window) - 1)
    return [(list(window), 1), ([*window[:place], other[place], *window[place + 1 :]], 0)]


# By `TaskSpec.config_name`.
DISCOURSE_TASKS = {
    "sentence_position": DiscourseTask(5, 5, sentence_position),
    "sentence_ordering": DiscourseTask(2, 2, sentence_ordering),
    "discourse_coherence": DiscourseTask(6, 2, discourse_coherence, needs_other=True),
}


def load(
    spec: TaskSpec, files: TaskFiles, options: DiscourseOptions, *, split_seed: int = 42, **_: Any
) -> dict[str, Dataset]:
    """
    Make the examples of a discourse task from documents; without any files, from Python's own documentation.

    A window of consecutive sentences starts at each sentence of a document, and gives an example of every label
    (`DISCOURSE_TASKS`), so that the labels are balanced and a majority scores no more than chance. What is no sentence
    (a heading, an item of a list, code, a table, a short fragment) is never part of a window, nor are the sentences on
    both sides of it neighbours. The same holds for a sentence that several documents have, such as a byline. Windows
    in which a sentence occurs twice, and windows that occur before, are left out. With the `sentence_language` `lines`
    every line is a sentence.

    Splits: no document, and no sentence, is in two of them. Where `train_file` has no `validation_file` beside it, a
    tenth of the documents is set apart for validation, and before them `test_split_percentage` for the test if there
    is no `test_file` either. The latter are among the documents that `load_corpus` sets apart from its training data
    with the same `split_seed` and at least that `validation_split_percentage` (the defaults of both are equal): a
    model pre-trained on the rest has not read them, see [`corpus.hold_out`].

    The examples of a document depend on its text and `split_seed`; only the sentences that it shares with other
    documents, and the foreign ones of discourse coherence, depend on those as well.

    The examples are kept in `cache_dir`. What was left out is logged when they are made, not when they are found.

    Args:
        spec: the task; its `config_name` is a key of `DISCOURSE_TASKS`.
        files: the documents, as for [`corpus.load_corpus`].
        options: which column, which language, how many examples.
        split_seed: of the splits and of what is drawn.

    Returns:
        `dict[str, Dataset]`: `train`, `validation` and `test`, those that there are documents for, with columns
        `sentence_1`, …, `label` (int) and `document` (a hash of its text), document by document.

    Raises:
        `ValueError`: if files cannot be read, see `load_corpus`, or give no example.
    """
    _check_task(spec)
    paths = split_files(spec, files, DOCUMENT_SUFFIXES)
    documents = {
        "train_file": paths.get(spec.train_split),
        "validation_file": paths.get(next(iter(spec.validation_splits), None)),
        "test_file": paths.get(next(iter(spec.test_splits), None)),
    }
    arguments = {
        "spec": spec,
        "documents": _documents(documents, options, files.cache_dir, split_seed),
        "options": options,
        "seed": split_seed,
        "splitter": get_sentence_splitter(options.sentence_language),
    }
    features = {name: Value("string") for name in spec.text_column_name}
    features |= {spec.label_column_name: Value("int64"), "document": Value("string"), "split": Value("string")}
    splits = kept_splits(keep_rows(_rows, arguments, Features(features), files.cache_dir))
    return {split: splits[split] for split in ("train", "validation", "test") if split in splits}


def _check_task(spec: TaskSpec) -> None:
    task = DISCOURSE_TASKS.get(spec.config_name)
    num_columns, num_labels = len(spec.text_column_name), spec.num_labels
    if task is None or (num_columns, num_labels) != (task.num_sentences, task.num_examples):
        known = [
            f"{name!r} with {one.num_sentences} columns and {one.num_examples} labels"
            for name, one in DISCOURSE_TASKS.items()
        ]
        raise ValueError(
            f"The task {spec.name!r}: `config_name` {spec.config_name!r} with {num_columns} columns and {num_labels} "
            f"labels is no discourse task. There are: {', '.join(known)}."
        )


def _documents(
    files: Mapping[str, list[str] | None], options: DiscourseOptions, cache_dir: str | None, split_seed: int
) -> dict[str, Dataset]:
    """The documents of each split, `test` and `validation` first."""
    corpus = load_corpus(**files, text_column=options.text_column, validation_split_percentage=0, cache_dir=cache_dir)
    if "train" in corpus and "validation" not in corpus:
        percentages = {"validation": VALIDATION_PERCENTAGE}
        if "test" not in corpus:
            percentages = {"test": options.test_split_percentage, **percentages}
        corpus |= hold_out(corpus["train"], percentages, split_seed, options.text_column)
    return {split: corpus[split] for split in ("test", "validation", "train") if split in corpus}


def _rows(
    spec: TaskSpec,
    documents: Mapping[str, Dataset],
    options: DiscourseOptions,
    seed: int,
    splitter: SentenceSplitter,
) -> Iterator[dict[str, Any]]:
    """Yield the examples of all splits, those of a split together."""
    num_sentences = DISCOURSE_TASKS[spec.config_name].num_sentences
    counts = {split: Counter(documents=len(documents[split])) for split in documents}
    seen: set[str] = set()
    sentences = {
        split: _sentences(documents[split][options.text_column], splitter, seen, counts[split]) for split in documents
    }
    num_documents = Counter(text for split in sentences.values() for texts in split.values() for text in set(texts))
    shared = {text for text, number in num_documents.items() if number > 1}
    for split in documents:
        found = [
            _Document(id, _windows(texts, num_sentences, shared, counts[split]))
            for id, texts in sentences[split].items()
        ]
        found = [document for document in found if document.windows]
        try:
            examples = list(_examples(spec.config_name, found, options.max_examples_per_document, seed))
        except ValueError as error:
            raise ValueError(f"Task {spec.name!r}, {split} split: {error}") from error
        _report(spec, split, len(found), len(examples), counts[split])
        for texts, label, id in examples:
            row = dict(zip(spec.text_column_name, texts, strict=True))
            yield row | {spec.label_column_name: label, "document": id, "split": split}


def _sentences(
    texts: Iterable[str | None], splitter: SentenceSplitter, seen: set[str], counts: Counter
) -> dict[str, list[str]]:
    """By a hash of each new text its sentences, `""` for what is none; `seen` holds the hashes, and grows."""
    documents = {}
    is_split = splitter.language == LINES  # then every line is meant to be a sentence
    for text in texts:
        pieces = (text or "").split()
        id = hashlib.blake2b(" ".join(pieces).encode(), digest_size=8).hexdigest()
        if id in seen:
            counts["repeated documents"] += 1
            continue
        seen.add(id)
        # A line break would show the original order.
        sentences = [" ".join(sentence.split()) for sentence in splitter(text or "")]
        documents[id] = [sentence if is_split or is_sentence(sentence) else "" for sentence in sentences]
        counts["pieces"] += len(sentences)
        counts["no sentences"] += documents[id].count("")
    return documents


def _windows(sentences: Sentences, num_sentences: int, shared: set[str], counts: Counter) -> list[tuple[str, ...]]:
    """The windows of a document without what is no sentence (`""`) and what it shares with others."""
    counts["sentences of several documents"] += sum(sentence in shared for sentence in sentences if sentence)
    windows = {}  # keeps their order
    for start in range(len(sentences) - num_sentences + 1):
        window = tuple(sentences[start : start + num_sentences])
        if "" in window or not shared.isdisjoint(window):
            continue
        if len(set(window)) < num_sentences or window in windows:
            counts["repeated windows"] += 1
        else:
            windows[window] = None
    return list(windows)


def is_sentence(text: str) -> bool:
    """
    Whether a text reads like a sentence of prose, in any script: it ends as a sentence does, consists of letters in
    the main, and is neither a mere word or two nor endless.

    >>> is_sentence("It is never empty."), is_sentence("3.2. Data model"), is_sentence("x[i] = f(*y) + 1.")
    (True, False, False)
    """
    characters = [character for character in text if not character.isspace()]
    # Letters, with the marks that belong to them in many scripts.
    num_letters = sum(unicodedata.category(character)[0] in "LM" for character in characters)
    if num_letters < MIN_LETTERS or num_letters < MIN_LETTER_SHARE * len(characters) or len(text) > MAX_CHARACTERS:
        return False
    while characters[-1] in "\"'" or unicodedata.category(characters[-1]) in _CLOSING:
        characters.pop()
    return unicodedata.category(characters[-1]) == "Po" and characters[-1] not in _NO_END


def _examples(
    kind: str, documents: Sequence[_Document], limit: int | None, seed: int
) -> Iterator[tuple[list[str], int, str]]:
    """Yield sentences, label and document of each example."""
    task = DISCOURSE_TASKS[kind]
    for index, document in enumerate(documents):
        rng = named_generator(seed, kind, document.id)
        windows = document.windows
        if limit is not None:
            windows = _some(windows, max(1, limit // task.num_examples), rng)  # whole ones: their labels are balanced
        for window in windows:
            other = _other_window(documents, index, rng) if task.needs_other else ()
            for sentences, label in task.examples(window, other, rng):
                yield sentences, label, document.id


def _some(items: list, number: int, rng: np.random.Generator) -> list:
    """At most so many of them, in their order."""
    if len(items) <= number:
        return items
    return [items[i] for i in sorted(rng.choice(len(items), number, replace=False))]


def _other_window(documents: Sequence[_Document], index: int, rng: np.random.Generator) -> tuple[str, ...]:
    """A window of another document, all documents being equally likely."""
    if len(documents) == 1:
        raise ValueError(
            "there is no sentence of another document to put in place of one of this: only one document has enough "
            "sentences of its own. Add documents that do not repeat each other, or name a file for this split. (In a "
            "text file, blank lines separate documents.)"
        )
    windows = documents[(index + rng.integers(1, len(documents))) % len(documents)].windows
    return windows[rng.integers(len(windows))]


def _report(spec: TaskSpec, split: str, num_documents: int, num_examples: int, counts: Counter) -> None:
    """Log what was made and what was left out; raise if there is nothing."""
    names = ("repeated documents", "sentences of several documents", "repeated windows")
    left_out = [f"{counts[name]:,} {name}" for name in names if counts[name]]
    message = (
        f"Task {spec.name!r}, {split} split: {num_examples:,} examples of {num_documents:,} documents, out of "
        f"{counts['documents']:,}; of {counts['pieces']:,} pieces of text, {counts['no sentences']:,} are no sentences"
        f"{'; left out: ' if left_out else ''}{', '.join(left_out)}."
    )
    if not num_examples:
        raise ValueError(
            f"{message} An example needs {len(spec.text_column_name)} sentences in a row, each of at least "
            f"{MIN_LETTERS} letters, with a full stop or the like at its end, and in no other document. (In a text "
            "file without blank lines, each line is a document.)"
        )
    logger.info(message)
