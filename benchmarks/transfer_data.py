"""
The texts and tasks of benchmarks/transfer.py: documentation and Python functions of what is installed, and prose from
files. Of each text, whole groups of documents are held out: documents, books, modules.
"""

import ast
import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

from hf_depth import TaskSpec, load_corpus
from hf_depth.data.default_corpus import find_packages, is_read, standard_library
from hf_depth.data.sentences import get_sentence_splitter
from hf_depth.tasks.loaders.discourse import is_sentence

SPLITS = ("train", "validation", "test")
HELD_OUT = {"test": 0.06, "validation": 0.04}  # of the groups of documents
HELD_OUT_LABELLED = {"test": 0.15, "validation": 0.05}
WITH_PAIRS = ("documentation", "prose")  # texts of which minimal pairs are made
MAX_STATEMENT = 160  # characters; at a longer one a function is cut
TASK_ROWS = {"train": 4000, "validation": 400, "test": 1000}
MAX_PAIRS = 2000
MAX_WINDOWS = {"train": 20_000, "test": 600}  # of sentences to put in order, of each length

Document = dict[str, str]


# ---- Texts ----------------------------------------------------------------------------------------------------------


def write_corpus(name: str, folder: Path, files: Any = None) -> None:
    """Write the splits of a text as JSON lines with `text`, `group` and `source`; `files` are those that hold it."""
    if name == "abstracts":
        splits = abstracts(Path(files))
    elif name == "subjectivity":
        splits = divide(labelled(files), HELD_OUT_LABELLED)
    else:
        own = {"documentation": documentation, "functions": functions}
        splits = divide(own[name]() if name in own else read(files), HELD_OUT)
    for split, rows in splits.items():
        write_rows(folder / f"{split}.jsonl", rows)


def divide(documents: Iterable[Document], held_out: dict[str, float]) -> dict[str, list[Document]]:
    """The documents of each split: whole groups, chosen by what they say."""
    documents = list(documents)
    splits: dict[str, list[Document]] = {split: [] for split in SPLITS}
    groups = sorted({document["group"] for document in documents}, key=digest)
    ends = {"test": max(1, round(held_out["test"] * len(groups)))}
    ends["validation"] = ends["test"] + max(1, round(held_out["validation"] * len(groups)))
    place = {group: number for number, group in enumerate(groups)}
    for document in documents:
        split = next((split for split in ends if place[document["group"]] < ends[split]), "train")
        splits[split].append(document)
    return splits


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """Write JSON lines; a file is there when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    unfinished.replace(path)


@cache
def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def digest(text: str) -> str:
    return hashlib.blake2b(" ".join(text.split()).encode(), digest_size=8).hexdigest()


def documentation() -> Iterator[Document]:
    """Python's reference, and the docstrings of its standard library and of installed packages."""
    for document in load_corpus(installed_packages=True, validation_split_percentage=0)["train"]:
        yield {"text": document["text"], "group": document["text"], "source": document["source"]}


def read(files: Sequence[str]) -> Iterator[Document]:
    """Documents of files; those with the same `title`, such as the pages of a book, stay together."""
    for document in load_corpus(train_file=list(files), validation_split_percentage=0)["train"]:
        title = document.get("title") or document["text"]
        yield {"text": document["text"], "group": title, "source": title}


def labelled(file: str) -> Iterator[dict[str, Any]]:
    """The texts of a task. Pre-training reads those of its training split, without their labels."""
    for row in map(json.loads, Path(file).read_text(encoding="utf-8").splitlines()):
        yield {"text": row["text"], "group": row["text"], "source": "labelled", "label": row["label"]}


def abstracts(folder: Path) -> dict[str, list[Document]]:
    """
    Sentences of scientific abstracts in their order, one on a line: five of DiscoEval's SParxiv, two of BSOarxiv.
    A document of which a sentence stands in a row of another split is left out of the training split.
    """
    splits: dict[str, list[Document]] = {}
    seen: set[str] = set()
    for split in ("test", "validation", "train"):
        documents = []
        for task in ("SParxiv", "BSOarxiv") if split == "train" else ("SParxiv",):
            for lines in map(in_order, load_rows(folder / task, split)):
                if lines and not (split == "train" and seen & set(lines)):
                    text = "\n".join(lines)
                    documents.append({"text": text, "group": text, "source": task})
        splits[split] = documents
        for task in ("SParxiv", "BSOarxiv"):
            for row in load_rows(folder / task, split) if split != "train" else ():
                seen.update(sentences_of_row(row))
    return splits


def load_rows(folder: Path, split: str) -> list[dict[str, Any]]:
    from datasets import load_dataset

    (file,) = folder.glob(f"{split}.*")
    return load_dataset("json", data_files=str(file), split="train").to_list()


def sentences_of_row(row: dict[str, Any]) -> list[str]:
    return [text for name, text in row.items() if name.startswith("sentence_")]


def in_order(row: dict[str, Any]) -> list[str] | None:
    """The sentences of a row as they were written; `None` for a pair that is turned round."""
    lines, label = sentences_of_row(row), row["label"]
    if len(lines) == 2:
        return lines if label == 1 else None
    first = lines.pop(0)  # it stood at `label`
    return [*lines[:label], first, *lines[label:]]


def functions() -> Iterator[Document]:
    """The bodies of Python functions, a statement on each line; each body once."""
    roots = {"": standard_library()} | {name: folder for name, (_, folder) in find_packages().items()}
    seen: set[str] = set()
    for package, root in roots.items():
        for file in sorted(Path(root).rglob("*.py")):
            path = PurePath(package) / file.relative_to(root)
            if not is_read(PurePath(file.relative_to(root))):
                continue
            try:
                module = ast.parse(file.read_bytes())
            except (SyntaxError, ValueError):
                continue
            for lines in bodies(module):
                text = "\n".join(lines)
                if text not in seen:
                    seen.add(text)
                    yield {"text": text, "group": path.as_posix(), "source": path.parts[0]}


def bodies(module: ast.Module) -> Iterator[list[str]]:
    """Yield the statements of each function, each on one line, without its docstring."""
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        statements = node.body[ast.get_docstring(node) is not None :]
        lines: list[str] = []
        for line in [*(" ".join(ast.unparse(statement).split()) for statement in statements), None]:
            if line is not None and len(line) <= MAX_STATEMENT:
                lines.append(line)
                continue
            if len(lines) > 1:
                yield lines
            lines = []


# ---- Tasks ----------------------------------------------------------------------------------------------------------


def sentences_of(documents: Iterable[Document], fewest: int = 6, most: int = 30) -> Iterator[tuple[Document, str]]:
    """Yield the sentences of prose with so many words, each once."""
    splitter, seen = get_sentence_splitter(), set()
    for document in documents:
        for sentence in splitter(document["text"]):
            sentence = " ".join(sentence.split())
            if fewest <= len(sentence.split()) <= most and is_sentence(sentence) and sentence not in seen:
                seen.add(sentence)
                yield document, sentence


def write_task(name: str, corpus: Path, folder: Path) -> None:
    """Write the rows of each split of a task of `MAKERS`."""
    for split in SPLITS:
        rng = random.Random(f"{name} {split}")
        write_rows(folder / f"{split}.jsonl", MAKERS[name](shuffled(corpus, split, rng), TASK_ROWS[split], rng))


def shuffled(corpus: Path, split: str, rng: random.Random) -> list[Document]:
    documents = list(read_rows(corpus / f"{split}.jsonl"))
    rng.shuffle(documents)
    return documents


def topic(documents: list[Document], number: int, rng: random.Random) -> list[dict[str, Any]]:
    """Which package is a sentence from? As many sentences of each."""
    by_label: dict[int, list[str]] = {label: [] for label in range(len(TOPICS))}
    for document, sentence in sentences_of(documents):
        if document["source"] in TOPICS:
            by_label[TOPICS.index(document["source"])].append(sentence)
    each = min(number // len(TOPICS), *map(len, by_label.values()))
    rows = [{"text": text, "label": label} for label, texts in by_label.items() for text in rng.sample(texts, each)]
    rng.shuffle(rows)
    return rows


def altered(documents: list[Document], number: int, rng: random.Random) -> list[dict[str, Any]]:
    """Is a sentence as it was written? In others two neighbouring words change places, or one is another one's."""
    found = [sentence for _, sentence in sentences_of(documents)]
    texts = found[:number]
    words = [word for text in found for word in text.split() if is_plain(word)]
    rows = []
    for place, text in enumerate(texts):
        changed = alter(text, words, rng) if place % 2 else text
        if changed is not None:
            rows.append({"text": changed, "label": int(changed == text)})
    return rows


def alter(text: str, words: list[str], rng: random.Random) -> str | None:
    pieces = text.split()
    places = [place for place, word in enumerate(pieces[1:], 1) if is_plain(word)]
    pairs = [(a, b) for a, b in pairwise(places) if b == a + 1 and pieces[a] != pieces[b]]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    if rng.random() < 0.5:
        pieces[first], pieces[second] = pieces[second], pieces[first]
    else:
        old = pieces[first]
        pieces[first] = next(word for word in iter(lambda: rng.choice(words), None) if word != old)
    return " ".join(pieces)


def is_plain(word: str) -> bool:
    return word.isalpha() and word.islower()


def last_word(documents: list[Document], number: int, rng: random.Random) -> list[dict[str, Any]]:
    """Which word ends the sentence? After Paperno et al. (2016), "The LAMBADA dataset", arXiv 1606.06031."""
    rows = []
    for _, sentence in sentences_of(documents, fewest=8):
        match = re.fullmatch(r"(.+) ([a-z]{3,})\.", sentence)
        if match and len(rows) < number:
            rows.append({"text": match[1], "label": match[2]})
    return rows


def subjectivity(documents: list[dict[str, Any]], number: int, rng: random.Random) -> list[dict[str, Any]]:
    """Is a sentence of a film's plot (objective) or of a review (subjective)? Pang and Lee (2004), cs/0409058."""
    return [{"text": document["text"], "label": 1 - document["label"]} for document in documents[:number]]


TOPICS = ("matplotlib", "networkx", "nltk", "numpy", "pandas", "scipy", "sklearn", "sympy", "torch", "transformers")
MAKERS = {"topic": topic, "altered": altered, "last_word": last_word, "subjectivity": subjectivity}
SPECS = {
    "topic": TaskSpec("transfer", "topic", "text", "topic:", labels=TOPICS),
    "altered": TaskSpec("transfer", "altered", "text", "altered:", labels=("altered", "original")),
    "subjectivity": TaskSpec("transfer", "subjectivity", "text", "subjectivity:", labels=("objective", "subjective")),
    "last_word": TaskSpec("transfer", "last_word", "text", "last word:", metric_names=("exact_match",)),
}


# ---- Minimal pairs and windows --------------------------------------------------------------------------------------

AGREEMENT = {"is": "are", "was": "were", "has": "have", "does": "do"}
DETERMINERS = {"a": "an", "this": "these", "that": "those"}
OTHERS = {
    "agreement": AGREEMENT | {b: a for a, b in AGREEMENT.items()},
    "determiner": DETERMINERS | {b: a for a, b in DETERMINERS.items()},
}


def write_minimal_pairs(corpus: Path, path: Path) -> None:
    """
    Write pairs of sentences that differ in one place, one of which is as it was written: `before`, `good`, `bad`,
    `after`. After Warstadt et al. (2020), "BLiMP", arXiv 1912.00582, by rules on held-out sentences.
    """
    rng = random.Random("minimal pairs")
    found = [sentence.split() for _, sentence in sentences_of(shuffled(corpus, "test", rng))]
    counts = Counter(word for pieces in found for word in pieces if is_plain(word))
    common = sorted((word for word, count in counts.items() if count > 1), key=lambda word: (-counts[word], word))
    rank = {word: place for place, word in enumerate(common)}
    rows, numbers = [], Counter()
    for pieces in found:
        candidates = list(one_word_pairs(pieces, common, rank, rng))
        for kind in ("agreement", "determiner", "neighbours", "replaced"):
            own = [row for row in candidates if row["kind"] == kind]
            if own and numbers[kind] < MAX_PAIRS // 4:
                numbers[kind] += 1
                rows.append(rng.choice(own))
    write_rows(path, rows)


def one_word_pairs(pieces: list[str], common: list[str], rank: dict[str, int], rng: random.Random) -> Iterator[dict]:
    def row(kind: str, start: int, end: int, bad: Sequence[str]) -> dict[str, str]:
        before, good, after = pieces[:start], pieces[start:end], pieces[end:]
        parts = {"before": before, "good": good, "bad": bad, "after": after}
        return {"kind": kind} | {name: " ".join(words) for name, words in parts.items()}

    for place in range(1, len(pieces) - 1):
        word, following = pieces[place], pieces[place + 1]
        for kind, others in OTHERS.items():
            if word in others:  # "that" may be a conjunction as well
                yield row(kind, place, place + 1, [others[word]])
        if is_plain(word) and is_plain(following) and word != following:
            yield row("neighbours", place, place + 2, [following, word])
        if word in rank:  # one that is about as frequent
            other = common[min(len(common) - 1, max(0, rank[word] + rng.choice([-3, -2, -1, 1, 2, 3])))]
            if other != word:
                yield row("replaced", place, place + 1, [other])


def write_windows(corpus: Path, path: Path, language: str) -> None:
    """Write windows of 2 and of 4 neighbouring sentences of held-out documents, and pairs to train a ranker on."""
    splitter, rng = get_sentence_splitter(language), random.Random("windows")
    windows: dict[str, list[list[str]]] = {"train": [], "2": [], "4": []}
    for split, sizes in (("train", {"train": 2}), ("test", {"2": 2, "4": 4})):
        for document in shuffled(corpus, split, rng):
            texts = [" ".join(sentence.split()) for sentence in splitter(document["text"])]
            texts = [text if language == "lines" or is_sentence(text) else "" for text in texts]
            for name, size in sizes.items():
                if len(texts) >= size:
                    start = rng.randrange(len(texts) - size + 1)
                    window = texts[start : start + size]
                    if all(window) and len(set(window)) == size and len(windows[name]) < MAX_WINDOWS[split]:
                        windows[name].append(window)
    write_rows(path, [windows])
