"""
The loader of the discourse tasks. It makes tasks of DiscoEval from documents of your own: sentence position, binary
sentence ordering and discourse coherence.

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
from ...errors import UserError
from ..sources import TaskFiles, keep_rows, kept_splits, named_generator, split_files
from ..spec import TaskSpec

logger = logging.getLogger(__name__)

VALIDATION_PERCENTAGE = 10  # the share of documents for validation, if there is no validation file
DOCUMENT_SUFFIXES = (".txt", ".json", ".jsonl", ".csv", ".parquet")

# What counts as a sentence. Headings, items of lists, code and tables do not.
MIN_LETTERS, MAX_CHARACTERS = 10, 1000
MIN_LETTER_SHARE = 0.75  # the share of letters among characters other than white space
_CLOSING = ("Pe", "Pf", "Pi")  # Unicode categories of brackets and curly quotation marks
_NO_END = frozenset(",:;、，：；/\\@#%&*")


@dataclass(frozen=True)
class DiscourseOptions:
    """
    The options of the loader of discourse tasks.

    Args:
        text_column (`str`, *optional*, defaults to `"text"`): the column with the documents.
        sentence_language (`str`, *optional*, defaults to `"en"`):
            The language of the documents, see [`get_sentence_splitter`].
        max_examples_per_document (`int`, *optional*, defaults to 20):
            The maximum number of examples of a document; `None` for no limit. A document gives at least one example
            of every label.
        test_split_percentage (`float`, *optional*, defaults to 5):
            The share of documents for the test, if there is no test file. If a model was pre-trained on the same
            documents, this must not exceed its `validation_split_percentage`. It has then not read them.

    Raises:
        `ValueError`: if the language has no sentence rules, the limit is less than 1, or the percentage is not between
            0 and 90.
    """

    text_column: str = "text"
    sentence_language: str = "en"
    max_examples_per_document: int | None = 20
    test_split_percentage: float = HELD_OUT_PERCENTAGE

    def __post_init__(self):
        check_test_split_percentage(self.test_split_percentage)
        limit = self.max_examples_per_document
        if limit is not None and limit < 1:
            raise UserError(f"`max_examples_per_document` must be at least 1, or None for no limit, got {limit}.")
        get_sentence_splitter(self.sentence_language)  # raises if the language is unknown


def check_test_split_percentage(percentage: float) -> None:
    """Raise `ValueError` if the test and validation splits would take all documents."""
    if not 0 < percentage < 100 - VALIDATION_PERCENTAGE:
        raise UserError(
            f"`test_split_percentage` must lie between 0 and {100 - VALIDATION_PERCENTAGE}, got {percentage}."
        )


Sentences = Sequence[str]
Example = tuple[list[str], int]


@dataclass(frozen=True)
class DiscourseTask:
    """
    How a discourse task makes examples from a window of consecutive sentences.

    Attributes:
        num_sentences: the number of sentences in a window.
        num_examples: the number of examples of a window, one for each label.
        examples: returns the examples of a window, a window of another document and a random generator.
        needs_other: whether a window of another document is needed.
    """

    num_sentences: int
    num_examples: int
    examples: Callable[[Sentences, Sentences, np.random.Generator], list[Example]]
    needs_other: bool = False


@dataclass(frozen=True)
class _Document:
    """The windows of consecutive sentences of a document, and a hash of its text."""

    id: str
    windows: list[tuple[str, ...]]


def sentence_position(window: Sentences, other: Sentences, rng: np.random.Generator) -> list[Example]:
    """
    Return one example for each sentence, moved to the front. The label is the place that it came from.

    >>> sentence_position(["a", "b", "c"], [], None)
    [(['a', 'b', 'c'], 0), (['b', 'a', 'c'], 1), (['c', 'a', 'b'], 2)]
    """
    return [([window[i], *window[:i], *window[i + 1 :]], i) for i in range(len(window))]


def sentence_ordering(window: Sentences, other: Sentences, rng: np.random.Generator) -> list[Example]:
    """Return the sentences in their order (label 1) and in reverse (label 0)."""
    return [(list(window), 1), (list(reversed(window)), 0)]


def discourse_coherence(window: Sentences, other: Sentences, rng: np.random.Generator) -> list[Example]:
    """
    Return the sentences as they are (label 1), and with one inner sentence replaced by a foreign one (label 0).

    The foreign sentence comes from the same place in a window of another document, so its place gives no hint.
    """
    place = rng.integers(1, len(window) - 1)
    return [(list(window), 1), ([*window[:place], other[place], *window[place + 1 :]], 0)]


# The discourse tasks by `TaskSpec.config_name`.
DISCOURSE_TASKS = {
    "sentence_position": DiscourseTask(5, 5, sentence_position),
    "sentence_ordering": DiscourseTask(2, 2, sentence_ordering),
    "discourse_coherence": DiscourseTask(6, 2, discourse_coherence, needs_other=True),
}


def load(
    spec: TaskSpec, files: TaskFiles, options: DiscourseOptions, *, split_seed: int = 42, **_: Any
) -> dict[str, Dataset]:
    """
    Make the examples of a discourse task from documents; by default, from Python's documentation.

    Each sentence of a document starts a window of consecutive sentences. A window gives one example of every label, so
    the labels are balanced. A heading, an item of a list, code, a table or a short fragment interrupts a window. So
    does a sentence that occurs in several documents. Repeated windows, and windows with a repeated sentence, are left
    out. With the `sentence_language` `lines`, every line is a sentence.

    No document and no sentence is in two splits. Without a `validation_file`, a tenth of the documents is for
    validation. Without a `test_file`, too, `test_split_percentage` of the documents is for the test. These are among
    the documents that `load_corpus` holds out from training with the same `split_seed` and at least the same
    percentage. A model pre-trained on the rest has not read them, see [`corpus.hold_out`].

    The examples are cached in `cache_dir`. What was left out is logged only when they are made.

    Args:
        spec: the task. Its `config_name` is a key of `DISCOURSE_TASKS`.
        files: the documents, as for [`corpus.load_corpus`].
        options: the column of the documents, their language, and the number of examples.
        split_seed: the seed of the splits and of random choices.

    Returns:
        `dict[str, Dataset]`: `train`, `validation` and `test` if there are documents for them, with the columns
        `sentence_1`, …, `label` (int) and `document` (a hash of its text).

    Raises:
        `ValueError`: if files cannot be read, see `load_corpus`, or they give no examples.
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
        raise UserError(
            f"The task {spec.name!r}: `config_name` {spec.config_name!r} with {num_columns} columns and {num_labels} "
            f"labels is no discourse task. There are: {', '.join(known)}."
        )


def _documents(
    files: Mapping[str, list[str] | None], options: DiscourseOptions, cache_dir: str | None, split_seed: int
) -> dict[str, Dataset]:
    """Return the documents of each split, `test` and `validation` first."""
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
    """Yield the examples of all splits, one split after the other."""
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
            raise UserError(f"Task {spec.name!r}, {split} split: {error}") from error
        _report(spec, split, len(found), len(examples), counts[split])
        for texts, label, id in examples:
            row = dict(zip(spec.text_column_name, texts, strict=True))
            yield row | {spec.label_column_name: label, "document": id, "split": split}


def _sentences(
    texts: Iterable[str | None], splitter: SentenceSplitter, seen: set[str], counts: Counter
) -> dict[str, list[str]]:
    """Map the hash of each new text to its sentences, with `""` for what is no sentence. Adds the hashes to `seen`."""
    documents = {}
    is_split = splitter.language == LINES  # every line is a sentence
    for text in texts:
        pieces = (text or "").split()
        id = hashlib.blake2b(" ".join(pieces).encode(), digest_size=8).hexdigest()
        if id in seen:
            counts["repeated documents"] += 1
            continue
        seen.add(id)
        # A line break inside a sentence could reveal the original order.
        sentences = [" ".join(sentence.split()) for sentence in splitter(text or "")]
        documents[id] = [sentence if is_split or is_sentence(sentence) else "" for sentence in sentences]
        counts["pieces"] += len(sentences)
        counts["no sentences"] += documents[id].count("")
    return documents


def _windows(sentences: Sentences, num_sentences: int, shared: set[str], counts: Counter) -> list[tuple[str, ...]]:
    """Return the windows of a document that hold only sentences (not `""`) of no other document."""
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
    Return whether a text looks like a sentence of prose, in any script.

    It ends like a sentence, consists mostly of letters, and is neither very short nor very long.

    >>> is_sentence("It is never empty."), is_sentence("3.2. Data model"), is_sentence("x[i] = f(*y) + 1.")
    (True, False, False)
    """
    characters = [character for character in text if not character.isspace()]
    # Marks belong to letters in many scripts.
    num_letters = sum(unicodedata.category(character)[0] in "LM" for character in characters)
    if num_letters < MIN_LETTERS or num_letters < MIN_LETTER_SHARE * len(characters) or len(text) > MAX_CHARACTERS:
        return False
    while characters[-1] in "\"'" or unicodedata.category(characters[-1]) in _CLOSING:
        characters.pop()
    return unicodedata.category(characters[-1]) == "Po" and characters[-1] not in _NO_END


def _examples(
    kind: str, documents: Sequence[_Document], limit: int | None, seed: int
) -> Iterator[tuple[list[str], int, str]]:
    """Yield the sentences, the label and the document of each example."""
    task = DISCOURSE_TASKS[kind]
    for index, document in enumerate(documents):
        rng = named_generator(seed, kind, document.id)
        windows = document.windows
        if limit is not None:
            windows = _some(windows, max(1, limit // task.num_examples), rng)  # whole windows keep labels balanced
        for window in windows:
            other = _other_window(documents, index, rng) if task.needs_other else ()
            for sentences, label in task.examples(window, other, rng):
                yield sentences, label, document.id


def _some(items: list, number: int, rng: np.random.Generator) -> list:
    """Return at most `number` of the items, chosen at random, in their order."""
    if len(items) <= number:
        return items
    return [items[i] for i in sorted(rng.choice(len(items), number, replace=False))]


def _other_window(documents: Sequence[_Document], index: int, rng: np.random.Generator) -> tuple[str, ...]:
    """Return a window of another document. All documents are equally likely."""
    if len(documents) == 1:
        raise UserError(
            "the task needs a sentence of another document, but only one document has enough sentences of its own. "
            "Add documents that do not repeat each other, or name a file for this split. (In a text file, blank lines "
            "separate documents.)"
        )
    windows = documents[(index + rng.integers(1, len(documents))) % len(documents)].windows
    return windows[rng.integers(len(windows))]


def _report(spec: TaskSpec, split: str, num_documents: int, num_examples: int, counts: Counter) -> None:
    """Log how many examples were made and what was left out. Raise if there are no examples."""
    names = ("repeated documents", "sentences of several documents", "repeated windows")
    left_out = [f"{counts[name]:,} {name}" for name in names if counts[name]]
    message = (
        f"Task {spec.name!r}, {split} split: {num_examples:,} examples of {num_documents:,} documents, out of "
        f"{counts['documents']:,}; of {counts['pieces']:,} pieces of text, {counts['no sentences']:,} are no sentences"
        f"{'; left out: ' if left_out else ''}{', '.join(left_out)}."
    )
    if not num_examples:
        raise UserError(
            f"{message} An example needs {len(spec.text_column_name)} sentences in a row, each of at least "
            f"{MIN_LETTERS} letters, with a full stop or the like at its end, and in no other document. (In a text "
            "file without blank lines, each line is a document.)"
        )
    logger.info(message)
