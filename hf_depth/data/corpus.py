"""Where the text comes from: files, the Hub, or Python's own documentation."""

import contextlib
import glob
import hashlib
import logging
import math
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, load_dataset, load_dataset_builder
from datasets.exceptions import DatasetGenerationError

from ..errors import UserError
from ..suggestions import listed
from .files import (
    Files,
    check_files_named,
    check_folder_name,
    check_held_out,
    check_text_column,
    describe_all_files,
    file_names,
    find_files,
    shard_problem,
)
from .mixture import DocumentMixture, Mixing, naming_source, read_sources
from .python_docstrings import find_packages, python_docstring_documents, standard_library
from .python_reference import python_reference_documents
from .reading import load_files
from .sentences import get_sentence_splitter

logger = logging.getLogger(__name__)

Documents = Dataset | IterableDataset
SPLITS = ("train", "validation", "test")

# Of the documents, for validation in pre-training, and for the test of discourse tasks, which then was not trained on.
HELD_OUT_PERCENTAGE = 5

PYTHON_TEXT = "Python's own documentation"  # where the text is from that needs no source
PYTHON_TEXT_VERSION = 2  # raised when Python's own documentation is read in another way

# A data set of text files is judged by so many of its lines.
_CHECKED_LINES = 1_000

_COMMIT = re.compile(r"hf://datasets/[^@]+@[0-9a-f]{40}(?=/)")  # in the address of each file of a data set of the Hub

_TOO_FEW_DOCUMENTS = (
    "There are too few documents to set one apart for {}. Add documents, name a `validation_file` (for a task also a "
    "`test_file`), or, to pre-train without, set `validation_split_percentage` to 0. (In a text file, blank lines "
    "separate documents.)"
)


def load_corpus(
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    train_file: Files = None,
    validation_file: Files = None,
    test_file: Files = None,
    text_column: str = "text",
    streaming: bool = False,
    validation_split_percentage: float = HELD_OUT_PERCENTAGE,
    split_seed: int = 42,
    cache_dir: str | None = None,
    token: str | None = None,
    revision: str | None = None,
    split: str | None = None,
    dataset_mixture: Sequence[Any] | str | None = None,
    mixture_temperature: float = 1.0,
    mixture_stopping_strategy: str = "all_exhausted",
    installed_packages: bool = False,
) -> DatasetDict | IterableDatasetDict | dict[str, DocumentMixture]:
    """
    Load documents to pre-train on; without any source, about a megabyte of prose that every CPython has: its language
    reference and the docstrings of its standard library.

    Args:
        dataset_name, dataset_config_name, cache_dir, token, revision (`str`, *optional*): as for
            `datasets.load_dataset`, which takes each line of a text file for a document.
        train_file, validation_file, test_file (`str`, path, or several of these, *optional*): files or globs, of one
            kind in each split, see [`load_files`].
        text_column (`str`, defaults to `"text"`): the column that holds the documents (`"text"` for text files).
        streaming (`bool`, defaults to `False`): read the documents while training instead of before.
        validation_split_percentage (`float`, defaults to 5): without validation data, the share of the training
            documents to set apart for validation, see [`hold_out`]; 0 for none.
        split_seed (`int`, defaults to 42): of that choice. A run's `seed` has no part in it.
        split (`str`, *optional*): train on this split of the data set, or, unless it is streamed, on a part of it such
            as `"train[:10%]"`, and read no other one.
        dataset_mixture (`Sequence`, *optional*): several sources instead of one, see [`read_sources`].
        mixture_temperature, mixture_stopping_strategy (*optional*): how they are mixed, see [`Mixing`].
        installed_packages (`bool`, defaults to `False`): without any source, read the docstrings of numpy, torch and
            other packages, too: eleven megabytes more. That takes minutes once; then they are kept.

    Returns:
        A dictionary with the splits `"train"`, `"validation"` and `"test"`, those of them that there are. Each row is
        one document. With `dataset_mixture`, a split is a [`DocumentMixture`] with the documents of each source.

    Raises:
        `ValueError`: naming the argument, the file, the line and the remedy.
        `FileNotFoundError`: if there is no such file.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = Path(folder.name, "texts.txt")
    >>> _ = file.write_text("The first document.\\n\\nThe second one.\\n\\nThe third one.")
    >>> corpus = load_corpus(train_file=file, validation_split_percentage=33, cache_dir=folder.name)
    >>> {split: len(documents) for split, documents in corpus.items()}
    {'train': 2, 'validation': 1}
    """
    if not 0 <= validation_split_percentage < 100:
        raise UserError(f"`validation_split_percentage` must be in [0, 100), got {validation_split_percentage}.")
    files = {"train": train_file, "validation": validation_file, "test": test_file}
    check_files_named({f"{name}_file": value for name, value in files.items()} | {"dataset_name": dataset_name})
    files = {name: file_names(value) for name, value in files.items() if value}
    of_hub = {"dataset_config_name": dataset_config_name, "split": split, "revision": revision}
    mixing = {"temperature": mixture_temperature, "stopping_strategy": mixture_stopping_strategy}
    _check_one_source(dataset_name, files, dataset_mixture, of_hub, mixing, installed_packages)
    reading = {"text_column": text_column, "streaming": streaming, "cache_dir": cache_dir}
    if dataset_mixture is not None:
        holding_out = {"validation_split_percentage": validation_split_percentage, "split_seed": split_seed}
        return _load_mixture(dataset_mixture, mixing, reading | holding_out | {"token": token})
    if dataset_name:
        corpus = _load_named(dataset_name, **reading, **of_hub, token=token)
    elif files:
        corpus = _load_splits(files, **reading)
    else:
        corpus = _load_python_text(streaming, cache_dir, installed_packages)
    if validation_split_percentage and "train" in corpus and "validation" not in corpus:
        corpus |= hold_out(corpus["train"], {"validation": validation_split_percentage}, split_seed, text_column)
    for name, documents in corpus.items() if not streaming else ():
        logger.info(f"{name}: {len(documents):,} documents")
    return IterableDatasetDict(corpus) if streaming else DatasetDict(corpus)


def _check_one_source(
    dataset_name: str | None,
    files: Mapping[str, list[str]],
    mixture: Any,
    of_hub: Mapping[str, str | None],
    mixing: Mapping[str, Any],
    installed_packages: bool,
) -> None:
    """Stop on arguments that would have no part in what is loaded."""
    given = [name for name, value in of_hub.items() if value is not None]
    others = ["dataset_name"] * bool(dataset_name) + [f"{name}_file" for name in files]
    if mixture is not None and others:
        raise UserError(f"Give either `dataset_mixture` or `{others[0]}`, not both: all sources stand in the mixture.")
    if mixture is not None and given:
        raise UserError(
            f"`{given[0]}` beside `dataset_mixture` does not say which source it is of: give it to a source of the "
            "mixture."
        )
    if mixture is None and Mixing(**mixing) != Mixing():
        raise UserError(
            "`mixture_temperature` and `mixture_stopping_strategy` are for `dataset_mixture`, which is missing."
        )
    if dataset_name and files:
        raise UserError(f"Give either `dataset_name` ({dataset_name!r}) or files of your own ({files}), not both.")
    if given and mixture is None and not dataset_name:
        raise UserError(f"`{given[0]}` is for `dataset_name`, which is missing.")
    if of_hub["revision"] is not None and Path(dataset_name or "").is_dir():
        raise UserError(
            f"`revision` {of_hub['revision']!r} is of a data set on the Hub, but `dataset_name` {dataset_name!r} is a "
            "folder: leave it out."
        )
    if installed_packages and others:
        raise UserError(f"`installed_packages` adds to {PYTHON_TEXT}, which is read where no other source is named.")


def _load_mixture(mixture: Any, mixing: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, DocumentMixture]:
    """The splits of a mixture, from what [`load_corpus`] reads of each source; `shared` are its other arguments."""
    sources = read_sources(mixture)
    weights = {source.name: source.weight for source in sources if source.weight is not None}
    settings = Mixing(weights or None, **mixing)
    if shared["streaming"]:
        settings.check_streams()
    for source in sources:  # of its own files, `load_corpus` sees to it
        others = [item for other in sources if other is not source for item in other.files.items()]
        with naming_source(source.name):
            check_held_out(source.files.get("train_file", ()), [item for item in others if item[0] != "train_file"])
    splits: dict[str, dict[str, Documents]] = {}
    for source in sources:
        given = {item.name: getattr(source, item.name) for item in fields(source)}
        given = {name: value for name, value in given.items() if value is not None and name not in ("name", "weight")}
        with naming_source(source.name):
            for split, documents in load_corpus(**{**shared, **given}).items():
                splits.setdefault(split, {})[source.name] = documents
    return {
        split: DocumentMixture(documents, sources, settings, shared["text_column"])
        for split, documents in splits.items()
    }


def _load_named(
    dataset_name: str,
    dataset_config_name: str | None,
    text_column: str,
    split: str | None,
    **options: Any,
) -> dict[str, Documents]:
    """The splits of a data set on the Hub, or of a folder."""
    source = f"`dataset_name` {dataset_name!r}"
    if os.path.isfile(dataset_name):
        raise UserError(f"{source} is a file. Name it by `train_file`.")
    check_folder_name("dataset_name", dataset_name)
    _report_shards("dataset_name", glob.glob(os.path.join(glob.escape(dataset_name), "**", "*"), recursive=True))
    with _naming(source):
        loaded = load_dataset(dataset_name, dataset_config_name, split=split, **options)
        if split is None and "train" not in loaded:
            raise UserError(f"there is no split 'train', only {listed(loaded)}.")
    splits = {"train": loaded} if split is not None else {name: loaded[name] for name in SPLITS if name in loaded}
    for name, documents in splits.items():
        with _naming(f"{source}, {name} split"):
            check_text_column(documents, text_column)
            _report_lines(f"{source}, {name} split", dataset_name, documents)
    return splits


def _load_splits(
    files: Mapping[str, list[str]], text_column: str, streaming: bool, cache_dir: str | None
) -> dict[str, Documents]:
    """The splits, from the files of each."""
    check_held_out(files.get("train", ()), [(f"{split}_file", files[split]) for split in files if split != "train"])
    splits = {}
    for split, names in files.items():
        argument = f"{split}_file"
        _report_shards(argument, find_files(argument, names))
        splits[split] = load_files(argument, names, streaming, cache_dir, text_column)
        with _naming(f"`{argument}` {names}"):
            check_text_column(splits[split], text_column)
        missing = 0 if streaming else splits[split].data.column(text_column).null_count
        if missing:
            logger.warning(
                f"`{argument}`: {missing:,} of {len(splits[split]):,} rows have no {text_column!r}, or null. They are "
                "left out."
            )
    return splits


def _load_python_text(streaming: bool, cache_dir: str | None, installed_packages: bool) -> dict[str, Documents]:
    """Python's own documentation, and that of packages. It takes some seconds to read, hence is kept on disk."""
    versions = (PYTHON_TEXT_VERSION, sys.version, get_sentence_splitter().version)
    packages = find_packages() if installed_packages else {}
    arguments = {"folder": standard_library(), "packages": packages, "versions": versions}
    try:
        documents = Dataset.from_generator(_read_python_documents, gen_kwargs=arguments, cache_dir=cache_dir)
    except DatasetGenerationError as error:
        raise (error.__cause__ or error) from None
    return {"train": documents.to_iterable_dataset() if streaming else documents}


def _read_python_documents(
    folder: str, packages: Mapping[str, tuple[str, str]], versions: tuple
) -> Iterator[dict[str, str]]:
    """Yield the documents; `versions` tell those of another Python from them."""
    seen: set[str] = set()
    yield from python_reference_documents()
    yield from python_docstring_documents(folder, seen=seen)
    for name, (_, package_folder) in packages.items():
        yield from python_docstring_documents(package_folder, name, seen)


def python_text(with_packages: bool = False) -> str:
    """What to call the text that needs no source; with the versions of the packages."""
    if not with_packages:
        return PYTHON_TEXT
    versions = ", ".join(f"{name} {number}" for name, (number, _) in find_packages().items())
    return f"{PYTHON_TEXT} and that of installed packages: {versions}"


@contextlib.contextmanager
def _naming(source: str) -> Iterator[None]:
    """Errors about bad input name where it is from, unless they name an argument already."""
    try:
        yield
    except (ValueError, DatasetGenerationError) as error:
        if str(error).startswith("`"):
            raise
        raise UserError(f"{source}: {error.__cause__ or error}") from error


def _report_shards(argument: str, files: Sequence[str]) -> None:
    """Warn of an incomplete copy, which may be meant: of large corpora often some shards only are downloaded."""
    problem = shard_problem(files)
    if problem:
        logger.warning(f"`{argument}`: {problem}. If this is not meant, copy the files again, older ones removed.")


def _report_lines(source: str, folder: str, documents: Documents) -> None:
    """Warn where `datasets` made a document of each line of text files, although blank lines part their text."""
    lines = next(documents.iter(_CHECKED_LINES)).get("text", []) if documents.info.builder_name == "text" else []
    texts = [place for place, line in enumerate(lines) if line.strip()]
    are_lines = not any("\n" in line.strip() for line in lines)  # else they are paragraphs or files (`sample_by`)
    if texts and are_lines and texts[-1] - texts[0] >= len(texts):
        example = f", such as '{folder}/**/*.txt'" if os.path.isdir(folder) else ""
        logger.warning(
            f"{source}: `datasets` takes each line of these text files for a document, although there are blank lines "
            "between them. If these separate the documents, name the files themselves by `train_file`, "
            f"`validation_file` and `test_file`{example}."
        )


def describe_documents(
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    split: str | None = None,
    train_file: Files = None,
    validation_file: Files = None,
    *,
    validation_split_percentage: float = HELD_OUT_PERCENTAGE,
    streaming: bool = False,
    cache_dir: str | None = None,
    revision: str | None = None,
    installed_packages: bool = False,
) -> dict[str, Any]:
    """
    What identifies the documents that [`load_corpus`] gives to train on, wherever their files are: what these hold,
    and how many of the documents are held out, which are none where there are validation data.

    Without `streaming`, a data set of the Hub, or Python's documentation, is left to what is prepared of it: that
    stays the same if nothing but a card has changed. What is not known, as without a connection, is `None`.
    """
    held_out = {"documents_held_out": f"{0 if validation_file else validation_split_percentage:g}%"}
    if train_file:
        return {"train_file": describe_all_files("train_file", file_names(train_file))} | held_out
    if dataset_name is None:
        return {"dataset_content": _describe_python(installed_packages) if streaming else None} | held_out
    is_described = streaming or Path(dataset_name).is_dir()
    splits = describe_dataset(dataset_name, dataset_config_name, cache_dir, revision) if is_described else None
    if splits is None:
        return {"dataset_content": None, "documents_held_out": None}
    if split is not None:  # then no other split is used
        return {"dataset_content": splits} | held_out
    if "validation" in splits:
        held_out["documents_held_out"] = "0%"
    return {"dataset_content": splits.get("train")} | held_out


def describe_dataset(
    dataset_name: str | None,
    dataset_config_name: str | None = None,
    cache_dir: str | None = None,
    revision: str | None = None,
    installed_packages: bool = False,
) -> dict[str, list[str]] | list[str] | None:
    """
    What a data set holds, by the names of its splits: of a folder [`describe_file`] of the files, of the Hub the
    commit; or of Python's own documentation the versions. `None` if it is not known, as without a connection.
    """
    if dataset_name is None:
        return _describe_python(installed_packages)
    try:
        builder = load_dataset_builder(dataset_name, dataset_config_name, cache_dir=cache_dir, revision=revision)
    except Exception:  # of many kinds; what is wrong is told when the documents are loaded
        return None
    files = getattr(builder.config, "data_files", None)
    if not files:
        return None
    return {str(split): _describe_split(names) for split, names in files.items()}


def described_commit(content: Any, dataset_name: str | None) -> str | None:
    """
    The commit of a data set of the Hub in what [`describe_dataset`] says of it, `None` if there is not just one.

    >>> described_commit({"train": ["hf://datasets/some/data@" + 10 * "4e5f"]}, "some/data") == 10 * "4e5f"
    True
    """
    found = re.findall(rf"hf://datasets/{re.escape(str(dataset_name))}@([0-9a-f]{{40}})\b", str(content))
    return found[0] if len(set(found)) == 1 else None


def _describe_split(names: Sequence[str]) -> list[str]:
    commits = [_COMMIT.match(name) for name in names]
    if all(commits):
        return list(dict.fromkeys(commit[0] for commit in commits))
    return describe_all_files("dataset_name", names)


def _describe_python(with_packages: bool = False) -> list[str]:
    splitter = get_sentence_splitter()
    described = [f"Python {platform.python_version()}", f"reader {PYTHON_TEXT_VERSION}", splitter.version]
    packages = find_packages() if with_packages else {}
    return described + [f"{name} {number}" for name, (number, _) in packages.items()]


def hold_out(
    documents: Documents, percentages: Mapping[str, float], split_seed: int = 42, text_column: str = "text"
) -> dict[str, Documents]:
    """
    Set documents apart from those to train on, by a hash of `split_seed` and their text: those with the lowest hashes
    are the first split, the next ones the second.

    So the choice depends neither on the other documents nor on files, order or streaming, equal texts are in the same
    split, and a smaller first split is part of a larger one: what a discourse task tests on is part of what
    [`load_corpus`] held out, if that was at least as much.

    Args:
        documents (`Dataset` or `IterableDataset`): to choose from. A blank document is left to `"train"`.
        percentages (`Mapping[str, float]`): the names of the splits, and how many of the documents each of them takes:
            roughly, since each document is chosen by itself, but at least one.
        split_seed (`int`, defaults to 42): of the hash.
        text_column (`str`, defaults to `"text"`): the column that holds the documents.

    Returns:
        `dict`: `"train"`, with the other documents, and the splits.

    Raises:
        `ValueError`: if there are too few documents.

    >>> documents = Dataset.from_dict({"text": [f"Document {i}." for i in range(10)]})
    >>> splits = hold_out(documents, {"test": 5, "validation": 20})
    >>> {name: len(split) for name, split in splits.items()}
    {'train': 7, 'test': 2, 'validation': 1}
    """
    splits, lower, upper = {}, -1.0, 0.0
    for name, percentage in percentages.items():
        upper += percentage / 100
        is_chosen = _HashBetween(split_seed, lower, upper)
        splits[name] = documents.filter(is_chosen, input_columns=text_column)
        if _is_empty(splits[name]):  # of few documents, the one with the next hash
            hashes = (is_chosen.hash(document[text_column]) for document in documents)
            is_chosen = replace(is_chosen, upper=min((value for value in hashes if value > lower), default=1.0))
            splits[name] = documents.filter(is_chosen, input_columns=text_column)
        lower = is_chosen.upper
        upper = max(lower, upper)
    train = documents.filter(_HashBetween(split_seed, lower, math.inf), input_columns=text_column)
    if lower >= 1 or _is_empty(train):
        raise UserError(_TOO_FEW_DOCUMENTS.format(" and for ".join(percentages)))
    return {"train": train, **splits}


def _is_empty(documents: Documents) -> bool:
    return next(iter(documents), None) is None


@dataclass(frozen=True)
class _HashBetween:
    """Whether the hash of a text lies above the lower number, and not above the upper one."""

    split_seed: int
    lower: float
    upper: float

    def hash(self, text: str | None) -> float:
        """A number in [0, 1), whatever white space stands between the words; 1 for a blank text."""
        words = str(text or "").split()
        if not words:
            return 1.0
        digest = hashlib.blake2b(" ".join((str(self.split_seed), *words)).encode(), digest_size=8).digest()
        return int.from_bytes(digest) / 2**64

    def __call__(self, text: str | None) -> bool:
        return self.lower < self.hash(text) <= self.upper
