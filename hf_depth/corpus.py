"""Where the text comes from: files, the Hub, or Python's own documentation; and a vocabulary for it."""

import hashlib
import io
import os
import re
import string
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import sentencepiece
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, load_dataset
from transformers import PreTrainedTokenizerBase, T5Tokenizer

from .corpus_files import load_files
from .default_corpus import python_reference_documents
from .preprocessing import check_text_column

Documents = Dataset | IterableDataset
Files = str | Sequence[str] | None

NUM_SENTINELS = 100  # of a trained vocabulary, as many as T5 has
CHARACTER_COVERAGE = 0.99999  # rarer characters are unknown to a trained vocabulary; printable ASCII never is
MAX_TRAINING_SIZE = 40_000_000  # characters that a vocabulary is trained on

# Never learnt as words, since they have ids of their own.
_SPECIAL_TOKEN = re.compile(r"<(?:extra_id_\d+|sent_\d+|eosen|/s|pad|unk)>")
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
) -> DatasetDict | IterableDatasetDict:
    """
    Load documents to pre-train on: one row is one document. Without any source, they are Python's own documentation.

    Args:
        dataset_name: a data set on the Hub, or a folder, as for `datasets.load_dataset`.
        dataset_config_name: the configuration of that data set.
        train_file, validation_file, test_file: one or several files or globs: txt, json, jsonl, csv, parquet, or the
            .gz of one of these, in UTF-8. Blank lines separate the documents of text files; if there are none, each
            line is a document. The files of a split must be of one kind.
        text_column: the column that holds the documents (`"text"` for text files).
        streaming: read the documents while training instead of before.
        validation_split_percentage: without validation data, the share of the training documents to set apart for
            validation, at least one document; 0 for none. In a stream they are chosen by a hash of their text.
        seed: of that choice.
        cache_dir, token, revision: as for `datasets.load_dataset`.

    Returns:
        Splits `train`, `validation` and `test`, those of them that there are.

    Raises:
        `ValueError`: if a file is empty, of an unknown kind or not UTF-8, or a column is missing or holds no text, or
            there are too few documents to set some apart. The message names the file, the line and the remedy.
        `FileNotFoundError`: if there is no such file.
    """
    if not 0 <= validation_split_percentage < 100:
        raise ValueError(f"`validation_split_percentage` must be in [0, 100), got {validation_split_percentage}.")
    files = {"train": train_file, "validation": validation_file, "test": test_file}
    files = {split: [names] if isinstance(names, str) else list(names) for split, names in files.items() if names}
    if dataset_name and files:
        raise ValueError(f"Give either `dataset_name` ({dataset_name!r}) or files of your own ({files}), not both.")
    if dataset_name:
        options = {"cache_dir": cache_dir, "token": token, "revision": revision, "streaming": streaming}
        corpus = _load_named(dataset_name, dataset_config_name, options)
    elif files:
        corpus = {split: load_files(f"{split}_file", files[split], streaming, cache_dir) for split in files}
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
    return IterableDatasetDict(corpus) if streaming else DatasetDict(corpus)


def train_tokenizer(
    texts: Iterable[str | None], vocab_size: int, output_dir: str | os.PathLike, allow_fewer: bool = False
) -> PreTrainedTokenizerBase:
    """
    Train a vocabulary the T5 way: a SentencePiece unigram model with `<pad>` 0, `</s>` 1, `<unk>` 2, no `<s>`, and 100
    sentinels at the end, `<extra_id_0>` last. The same texts give the same vocabulary. Takes about 1 s per million
    characters, of which at most `MAX_TRAINING_SIZE` are used, spread evenly over the texts.

    Args:
        texts: the documents.
        vocab_size: number of ids, sentinels included; sentence tokens (`add_sentence_tokens`) come on top.
        output_dir: where the tokenizer is saved, for `AutoTokenizer`, and as `spiece.model` for SentencePiece.
        allow_fewer: take `vocab_size` as an upper limit, if the text is too small for that many.

    Returns:
        The saved tokenizer, a `T5Tokenizer`.

    Raises:
        `ValueError`: if the texts cannot fill so large a vocabulary, or their characters alone exceed it.
    """
    if vocab_size <= NUM_SENTINELS:
        raise ValueError(f"`vocab_size` must be larger than its {NUM_SENTINELS} sentinels, got {vocab_size}.")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_training_lines(texts),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size - NUM_SENTINELS,
            hard_vocab_limit=not allow_fewer,
            character_coverage=CHARACTER_COVERAGE,
            required_chars=string.digits + string.ascii_letters + string.punctuation,
            max_sentence_length=2**30,  # longer ones would be left out without a word
            num_threads=1,  # the model depends on their number, and more are not faster
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise ValueError(_explain_training_error(str(error), vocab_size)) from error
    # Not in `output_dir` itself, which may hold an older tokenizer that would be read instead.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "spiece.model").write_bytes(model.getvalue())
        T5Tokenizer.from_pretrained(folder, extra_ids=NUM_SENTINELS).save_pretrained(output_dir)
    Path(output_dir, "spiece.model").write_bytes(model.getvalue())
    return T5Tokenizer.from_pretrained(output_dir)


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
    """Chooses documents of a stream at random, yet the same ones for any number of workers and shards."""

    text_column: str
    seed: int
    limit: float
    negate: bool = False

    def hash(self, row: dict[str, Any]) -> float:
        """A number in [0, 1)."""
        digest = hashlib.blake2b(f"{self.seed} {row[self.text_column]}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) / 2**64

    def __call__(self, row: dict[str, Any]) -> bool:
        return (self.hash(row) <= self.limit) != self.negate


def _training_lines(texts: Iterable[str | None]) -> Iterator[str]:
    """Lines of every n-th text: the smallest power of two that leaves at most `MAX_TRAINING_SIZE` characters."""
    chosen, size, step = [], 0, 1
    for index, text in enumerate(texts):
        if text and index % step == 0:
            chosen.append(text)
            size += len(text)
            if size > MAX_TRAINING_SIZE:
                chosen, step = chosen[::2], 2 * step
                size = sum(map(len, chosen))
    for text in chosen:
        yield from _SPECIAL_TOKEN.sub(" ", text).splitlines()


def _explain_training_error(message: str, vocab_size: int) -> str:
    """Say in terms of `vocab_size` what SentencePiece says in terms of its own pieces."""
    if "sentences_.empty()" in message:
        return "There is no text to train a vocabulary on."
    problem = f"A vocabulary of `vocab_size`={vocab_size} cannot be trained on this text"
    too_large = re.search(r"value <= (\d+)", message)
    if too_large:
        return f"{problem}: it gives at most {int(too_large[1]) + NUM_SENTINELS} ids. Lower `vocab_size`, or add text."
    too_small = re.search(r"smaller than required_chars. \d+ vs (\d+)", message)
    if too_small:
        return f"{problem}: its characters alone need {int(too_small[1]) + NUM_SENTINELS} ids. Raise `vocab_size`."
    return f"{problem}. SentencePiece says: {message}"
