"""Where the text comes from: files, the Hub, or Python's own documentation."""

import hashlib
import logging
from dataclasses import dataclass, replace
from typing import Any

from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, load_dataset

from .files import Files, check_text_column, file_names, load_files
from .python_reference import python_reference_documents
from .records import check_on_bad_record, load_streamed_files

logger = logging.getLogger(__name__)

Documents = Dataset | IterableDataset

_TOO_FEW_DOCUMENTS = (
    "There are too few documents to set one apart for validation. Add documents, name a `validation_file`, or set "
    "`validation_split_percentage` to 0. (In a text file, blank lines separate documents.)"
)


def load_corpus(
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    train_file: Files = None,
    validation_file: Files = None,
    test_file: Files = None,
    text_column: str = "text",
    streaming: bool = False,
    validation_split_percentage: float = 5,
    seed: int = 42,
    cache_dir: str | None = None,
    token: str | None = None,
    revision: str | None = None,
    on_bad_record: str = "error",
) -> DatasetDict | IterableDatasetDict:
    """
    Load documents to pre-train on. Without any source, they are the Python language reference that every CPython has.

    Args:
        dataset_name (`str`, *optional*): a data set on the Hub, or a folder, as for `datasets.load_dataset`.
        dataset_config_name (`str`, *optional*): the configuration of that data set.
        train_file, validation_file, test_file (`str`, path, or several of these, *optional*): files or globs:
            txt, json, jsonl, csv, parquet, or the .gz of one of these, in UTF-8. Blank lines separate the documents of
            text files; if there are none, each line is a document. The files of a split must be of one kind.
        text_column (`str`, defaults to `"text"`): the column that holds the documents (`"text"` for text files).
        streaming (`bool`, defaults to `False`): read the documents while training instead of before.
        validation_split_percentage (`float`, defaults to 5): without validation data, the share of the training
            documents to set apart for validation, at least one document; 0 for none. In a stream they are chosen by a
            hash of their text.
        seed (`int`, defaults to 42): of that choice.
        cache_dir, token, revision (`str`, *optional*): as for `datasets.load_dataset`.
        on_bad_record (`str`, defaults to `"error"`): what to do about a record of a streamed file that cannot be read
            or has no text: stop with its file and line, or `"skip"`, which logs how many were left out of each file.

    Returns:
        `DatasetDict` or, if `streaming`, `IterableDatasetDict`: a dictionary with the splits `"train"`, `"validation"`
        and `"test"`, those of them that there are. Each example of a split is one document.

    Raises:
        `ValueError`: if a file is empty, of an unknown kind or not UTF-8, or a column is missing or holds no text, or
            there are too few documents to set some apart. The message names the file, the line and the remedy.
        `FileNotFoundError`: if there is no such file.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> from hf_depth.data.corpus import load_corpus
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = Path(folder.name, "texts.txt")
    >>> _ = file.write_text("The first document.\\n\\nThe second one.\\n\\nThe third one.")
    >>> corpus = load_corpus(train_file=file, validation_split_percentage=33, cache_dir=folder.name)
    >>> {split: len(documents) for split, documents in corpus.items()}
    {'train': 2, 'validation': 1}
    """
    if not 0 <= validation_split_percentage < 100:
        raise ValueError(f"`validation_split_percentage` must be in [0, 100), got {validation_split_percentage}.")
    files = {"train": train_file, "validation": validation_file, "test": test_file}
    files = {split: file_names(names) for split, names in files.items() if names}
    if dataset_name and files:
        raise ValueError(f"Give either `dataset_name` ({dataset_name!r}) or files of your own ({files}), not both.")
    check_on_bad_record(on_bad_record, streaming and bool(files))
    if dataset_name:
        options = {"cache_dir": cache_dir, "token": token, "revision": revision, "streaming": streaming}
        corpus = _load_named(dataset_name, dataset_config_name, options)
    elif files and streaming:
        corpus = {
            split: load_streamed_files(f"{split}_file", files[split], text_column, on_bad_record, cache_dir)
            for split in files
        }
    elif files:
        corpus = {split: load_files(f"{split}_file", files[split], cache_dir=cache_dir) for split in files}
    else:
        documents = Dataset.from_list(python_reference_documents())
        corpus = {"train": documents.to_iterable_dataset() if streaming else documents}
    for split, documents in corpus.items():
        try:
            check_text_column(documents, text_column)
        except ValueError as error:
            source = f"`dataset_name` {dataset_name!r}" if dataset_name else f"`{split}_file` {files.get(split)}"
            raise ValueError(f"{source}, {split} split: {error}") from error
    if validation_split_percentage and "train" in corpus and "validation" not in corpus:
        hold_out = _hold_out_of_stream if streaming else _hold_out
        corpus |= hold_out(corpus["train"], validation_split_percentage / 100, seed, text_column)
    if streaming:
        return IterableDatasetDict(corpus)
    for split, documents in corpus.items():
        logger.info(f"{split}: {len(documents):,} documents")
    return DatasetDict(corpus)


def _load_named(name: str, config_name: str | None, options: dict[str, Any]) -> dict[str, Documents]:
    loaded = load_dataset(name, config_name, **options)
    if "train" not in loaded:
        raise ValueError(f"The data set {name!r} has no split 'train', but: {', '.join(map(repr, loaded))}.")
    return {split: loaded[split] for split in ("train", "validation", "test") if split in loaded}


def _hold_out(documents: Dataset, share: float, seed: int, text_column: str) -> dict[str, Dataset]:
    if len(documents) < 2:
        raise ValueError(_TOO_FEW_DOCUMENTS)
    parts = documents.train_test_split(test_size=max(1, round(len(documents) * share)), seed=seed)
    return {"train": parts["train"], "validation": parts["test"]}


def _hold_out_of_stream(
    documents: IterableDataset, share: float, seed: int, text_column: str
) -> dict[str, IterableDataset]:
    is_validation = _HashIsLow(text_column, seed, share)
    if _is_empty(documents.filter(is_validation)):  # a short stream, now read to its end: take its lowest hash
        is_validation = replace(is_validation, limit=min(map(is_validation.hash, documents)))
    splits = {
        "train": documents.filter(replace(is_validation, negate=True)),
        "validation": documents.filter(is_validation),
    }
    if _is_empty(splits["train"]):
        raise ValueError(_TOO_FEW_DOCUMENTS)
    return splits


def _is_empty(documents: IterableDataset) -> bool:
    return next(iter(documents), None) is None


@dataclass(frozen=True)
class _HashIsLow:
    """Chooses documents of a stream by a hash, so that they are the same for any number of workers and shards."""

    text_column: str
    seed: int
    limit: float
    negate: bool = False

    def hash(self, document: dict[str, Any]) -> float:
        """A number in [0, 1)."""
        digest = hashlib.blake2b(f"{self.seed} {document[self.text_column]}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) / 2**64

    def __call__(self, document: dict[str, Any]) -> bool:
        return (self.hash(document) <= self.limit) != self.negate
