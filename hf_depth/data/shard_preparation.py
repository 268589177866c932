"""
[`prepare_shards`], which writes folders of shards, see [`~hf_depth.data.shards.ShardFolder`].

A shard holds the examples of consecutive documents, in their order. The division does not depend on the number of
processes. `datasets.map` divides the shards among processes. Each writes a shard to a temporary file and renames it,
so that a killed preparation continues with the missing shards.
"""

import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import tokenizers
from datasets import Dataset

from ..disk import MANIFEST_FILE, replace_text, sync_folder
from ..errors import UserError
from .base_objective import Objective, summed_statistics
from .files import check_text_column, without_format
from .metadata import check_metadata_columns, column_values
from .mixture import DocumentMixture, naming_source
from .preprocessing import EXAMPLES_VERSION, NoExamplesError, dataset_statistics
from .sentences import get_sentence_splitter
from .shards import (
    DOCUMENT_COUNTS,
    PLAN_FILE,
    SHARDS_VERSION,
    TOKENIZER_FOLDER,
    Counts,
    ShardFolder,
    differences,
    example_counts,
    preparation_settings,
    read_manifest,
    revision_advice,
    source_folder,
    tokenizer_digest,
)
from .streams import DOCUMENTS_AT_ONCE, JOINED_DOCUMENTS_AT_ONCE

logger = logging.getLogger(__name__)

SOURCE = "text"  # the name of the source of documents without a mixture
SHARD_SIZE = 16_000_000  # bytes of text
BATCH_SIZE = 1000  # examples in a record batch
SCHEMA_KEY = b"hf_depth"

Shard = dict[str, Any]  # the description of a shard: `examples`, `digest`, `counts`


def prepare_shards(
    corpus: Mapping[str, Dataset | Mapping[str, Dataset]],
    objective: Objective,
    folder: str | os.PathLike,
    *,
    text_column: str = "text",
    num_proc: int | None = None,
    shard_size: int = SHARD_SIZE,
    text: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> ShardFolder:
    """
    Prepare documents as [`Objective.prepare`] does, and write the examples to a folder of shards.

    The memory does not grow with the corpus. Shards of an earlier call with the same arguments are kept.

    Args:
        corpus: the splits of [`load_corpus`], without streams. A split is one data set, or several by the names of
            their sources. The mixing of a [`DocumentMixture`] is saved, too.
        objective: the objective. Its tokenizer is saved, too.
        folder: the folder for the shards: new, empty, or from an earlier call.
        text_column: the column with the documents. The sources of a [`DocumentMixture`] have their own.
        num_proc: the number of processes.
        shard_size: about how many bytes of text a shard holds.
        text: the description of the documents, for the manifest.
        overwrite: replace the shards of an earlier call.

    Returns:
        [`ShardFolder`]: the finished folder.

    Raises:
        `ValueError`: if the folder holds something else, the documents are a stream, or a source gives no examples.
            Also as [`Objective.prepare_splits`].

    >>> import tempfile
    >>> from datasets import Dataset
    >>> from hf_depth import SpanCorruptionObjective, prepare_shards, train_tokenizer
    >>> documents = Dataset.from_dict({"text": ["The dog barked.", "The cat slept.", ""]})
    >>> tokenizer = train_tokenizer(documents["text"], vocab_size=300, allow_fewer=True)
    >>> objective = SpanCorruptionObjective(tokenizer, max_source_length=64)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shards = prepare_shards({"train": documents}, objective, folder)
    ...     [tokenizer.decode(ids) for ids in shards.sources("train")["text"]["input_ids"]]
    ['The dog barked.', 'The cat slept.']
    >>> shards.counts["train"]["text"]["documents"], shards.counts["train"]["text"]["documents_dropped"]
    (3, 1)
    """
    folder = Path(folder)
    plan = _plan(objective, shard_size, text or {})
    mixing = getattr(corpus.get("train"), "mixing", None)
    mixing = mixing and asdict(mixing)
    saved = read_manifest(folder) if _is_begun(folder) and not overwrite else None
    if saved is not None:
        _check_same(folder, saved, plan)
        if "shards" in saved and all((folder / name).is_file() for name in saved["shards"]):
            logger.info(f"{folder} is already finished.")
            _write_json(folder / MANIFEST_FILE, saved | {"mixing": mixing})  # may change, as no example depends on it
            return ShardFolder.open(folder)
        logger.info(f"Continuing with the shards in {folder}")
    parts = _documents_by_source(corpus, objective, text_column)
    if saved is None:
        objective.tokenizer.save_pretrained(folder / TOKENIZER_FOLDER)  # before the plan: a plan implies a tokenizer
    _write_json(folder / PLAN_FILE, plan)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    shards, counts = {}, {}
    for split, source, documents, column in parts:
        writer = _ShardWriter(objective, documents, column, folder, f"{split}/{source_folder(source)}", plan)
        written = _write_source(writer, num_proc, overwrite)
        counts.setdefault(split, {})[source] = summed_statistics(shard.pop("counts") for shard in written.values())
        shards |= written
    for split in counts:
        objective.report(example_counts(summed_statistics(counts[split].values())), split)
    _write_json(folder / MANIFEST_FILE, plan | {"sources": counts, "mixing": mixing, "shards": shards})
    (folder / PLAN_FILE).unlink()
    return ShardFolder.open(folder)


def _plan(objective: Objective, shard_size: int, text: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the shards depend on, as JSON values."""
    versions = {"format": SHARDS_VERSION, "examples": EXAMPLES_VERSION, "tokenizers": tokenizers.__version__}
    language = objective.settings.get("sentence_language")
    if language is not None:
        versions["sentences"] = get_sentence_splitter(language).version
    plan = {
        "versions": versions,
        "tokenizer": tokenizer_digest(objective.tokenizer),
        "settings": preparation_settings(objective),
        "shard_size": shard_size,
        "text": text,
    }
    return json.loads(json.dumps(plan, default=str))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(content, indent=2))
    sync_folder(path.parent)


def begun_tokenizer_folder(folder: str | os.PathLike) -> str | None:
    """
    Return the folder of the tokenizer if a preparation has begun, so that it continues with it; otherwise `None`.

    Args:
        folder: the folder for the shards.

    Raises:
        `ValueError`: if the folder holds something else.
    """
    return str(Path(folder, TOKENIZER_FOLDER)) if _is_begun(Path(folder)) else None


def _is_begun(folder: Path) -> bool:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"`tokenized_dataset_dir` {folder} is a file. Name a new folder.")
    names = {item.name for item in folder.iterdir()} if folder.is_dir() else set()
    is_begun = not names.isdisjoint((MANIFEST_FILE, PLAN_FILE))
    others = {name for name in names if not name.startswith("_")} - {TOKENIZER_FOLDER}  # `_`: an unfinished file
    if others and not is_begun:
        raise UserError(
            f"`tokenized_dataset_dir` {folder} is no folder of shards, but holds {min(others)}. Name a new folder."
        )
    return is_begun


def _check_same(folder: Path, saved: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    changed = differences({name: saved.get(name) for name in plan}, plan)
    if changed:
        raise UserError(
            f"`tokenized_dataset_dir` {folder} holds another preparation, with {', '.join(changed)}. Choose another "
            f"folder, or prepare this one anew by `overwrite_cache`.{revision_advice(changed)}"
        )


def _documents_by_source(
    corpus: Mapping[str, Dataset | Mapping[str, Dataset]], objective: Objective, text_column: str
) -> list[tuple[str, str, Dataset, str]]:
    """Return split, source, documents and text column of all documents. Raises before anything is written."""
    parts = []
    for split, documents in corpus.items():
        sources = dict(documents) if isinstance(documents, Mapping) else {SOURCE: documents}
        folders = [source_folder(source) for source in sources]
        double = [source for source, name in zip(sources, folders, strict=True) if folders.count(name) > 1]
        if double:
            raise UserError(f"The sources {', '.join(map(repr, double))} would share one folder. Rename them.")
        named = documents.sources if isinstance(documents, DocumentMixture) else {}
        for source, part in sources.items():
            if not isinstance(part, Dataset):
                raise UserError(
                    f"Shards are made from map-style data, but {split} is a stream: load it without `streaming`."
                )
            part = without_format(part)
            column = named[source].text_column if source in named else text_column
            with naming_source(source) if source in named else nullcontext():
                check_text_column(part, column)
                check_metadata_columns(part, objective.metadata_columns, column)
            parts.append((split, source, part, column))
    return parts


def _write_source(writer: "_ShardWriter", num_proc: int | None, overwrite: bool) -> dict[str, Shard]:
    """Write the missing shards of a source. Returns the descriptions of all its shards by their names."""
    place = writer.folder / writer.place
    place.mkdir(parents=True, exist_ok=True)
    if overwrite:
        shutil.rmtree(place)
        place.mkdir()
    numbers = Dataset.from_dict({"number": range(math.ceil(len(writer.documents) / writer.rows))})
    written = numbers.map(
        writer,
        num_proc=num_proc and max(1, min(num_proc, len(numbers))),
        new_fingerprint="shards",  # hashing the writer would hash all documents in memory
        load_from_cache_file=False,
        desc=f"Preparing shards of {writer.place}",
    )
    shards = {row["name"]: json.loads(row["shard"]) for row in written}
    for path in place.iterdir():
        if f"{writer.place}/{path.name}" not in shards:  # from a longer text or a killed process
            path.unlink()
    if not any(shard["examples"] for shard in shards.values()):
        raise NoExamplesError(f"No document of {writer.place} holds enough text for an example.")
    counts = summed_statistics(shard["counts"] for shard in shards.values())
    if counts["documents_dropped"] or counts["examples_dropped"]:
        logger.warning(
            f"{writer.place}: dropped {counts['documents_dropped']:,} of {counts['documents']:,} documents with too "
            f"little text, and {counts['examples_dropped']:,} examples with too few sentences (`min_sentences`)."
        )
    return shards


class _ShardWriter:
    """
    Writes the shards of a source that are missing or damaged, for `datasets.map`.

    Args:
        objective: makes the examples.
        documents: the documents of the source.
        text_column: the column with the documents.
        folder: the folder of all shards.
        place: the subfolder for the shards of the source.
        plan: the settings that all shards depend on.
    """

    def __init__(
        self,
        objective: Objective,
        documents: Dataset,
        text_column: str,
        folder: Path,
        place: str,
        plan: Mapping[str, Any],
    ):
        make = objective.training_preprocessor if place.startswith("train/") else objective.preprocessor
        self.folder, self.place = folder, place
        self.preprocessor = make(text_column)
        self.min_sentences = objective.min_sentences
        self.unk_token_id = objective.tokenizer.unk_token_id
        self.id_type = id_type(len(objective.tokenizer))
        self.plan = json.dumps([plan[name] for name in ("versions", "tokenizer", "settings")])
        self.parent = os.getpid()
        joins = getattr(self.preprocessor, "joins_documents", False)
        self.documents_at_once = JOINED_DOCUMENTS_AT_ONCE if joins else DOCUMENTS_AT_ONCE
        self.documents = documents.select_columns(list(self.preprocessor.input_columns))
        table = self.documents.data
        self.rows = max(1, round(plan["shard_size"] * len(table) / max(table.nbytes, 1)))  # documents of a shard
        if joins:  # keep documents that are joined in one shard
            self.rows = math.ceil(self.rows / self.documents_at_once) * self.documents_at_once

    def __call__(self, row: dict[str, int]) -> dict[str, str]:
        if self.parent not in (os.getpid(), os.getppid()):
            os._exit(1)  # the parent was killed, and its successor does not wait for this process
        first = row["number"] * self.rows
        documents = self.documents[first : first + self.rows]
        digest = hashlib.blake2b(self.plan.encode(), digest_size=16)
        for values in column_values(documents, self.preprocessor.input_columns):
            digest.update(json.dumps(values, default=str).encode())
        name = f"{self.place}/{row['number']:05}.arrow"
        shard = self._written(self.folder / name)
        if shard is None or shard["digest"] != digest.hexdigest():
            shard = self._write(self.folder / name, documents, digest.hexdigest())
        return {"name": name, "shard": json.dumps(shard)}

    def _written(self, path: Path) -> Shard | None:
        """Return the description of the shard in a file; `None` if the file is missing or damaged."""
        try:
            with pa.memory_map(str(path)) as file:
                return json.loads(pa.ipc.open_stream(file).schema.metadata[SCHEMA_KEY])
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException):
            return None

    def _write(self, path: Path, documents: dict[str, list], digest: str) -> Shard:
        number = len(documents[self.preprocessor.text_column])
        tables, counts = [], dict.fromkeys(DOCUMENT_COUNTS, 0) | {"documents": number}
        for start in range(0, number, self.documents_at_once):
            batch = {name: values[start : start + self.documents_at_once] for name, values in documents.items()}
            tables.append(self._examples(self.preprocessor(batch), counts))
        table = pa.concat_tables(tables)
        counts |= dataset_statistics(Dataset(table), self.unk_token_id)
        shard = {"examples": len(table), "digest": digest, "counts": counts}
        table = table.combine_chunks().replace_schema_metadata({SCHEMA_KEY: json.dumps(shard)})
        aside = path.with_name(f"_{path.name}.{os.getpid()}")
        with aside.open("wb") as file:
            with pa.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table, BATCH_SIZE)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        sync_folder(path.parent)
        return shard

    def _examples(self, columns: dict[str, list], counts: Counts) -> pa.Table:
        """Return the examples to keep, with small integers in lists. Adds what is left out to `counts`."""
        table = pa.Table.from_pydict(columns, schema=self.preprocessor.features.arrow_schema)
        kept = table.filter(pc.greater(pc.list_value_length(table["input_ids"]), 0))
        counts["documents_dropped"] += len(table) - len(kept)
        if self.min_sentences > 1:
            table = kept
            kept = table.filter(pc.greater_equal(pc.list_value_length(table["sentence_lengths"]), self.min_sentences))
            counts["examples_dropped"] += len(table) - len(kept)
        fields = [pa.field(field.name, _narrow(field.type, self.id_type)) for field in kept.schema]
        try:
            return kept.cast(pa.schema(fields))
        except pa.ArrowInvalid as error:  # a length is greater than all ids
            raise UserError(
                f"The examples do not fit into integers of type {self.id_type}: {error}. Lower `max_source_length`."
            ) from error


def id_type(vocab_size: int) -> pa.DataType:
    """
    Return the smallest integer type that holds all ids of a vocabulary.

    >>> id_type(32128), id_type(65536), id_type(65537)
    (DataType(uint16), DataType(uint16), DataType(uint32))
    """
    return pa.uint16() if vocab_size <= 1 << 16 else pa.uint32()


def _narrow(kind: pa.DataType, integer: pa.DataType) -> pa.DataType:
    """Return a column type with integers in lists replaced by `integer`. A count outside of a list may be large."""
    return pa.list_(integer) if pa.types.is_list(kind) and pa.types.is_integer(kind.value_type) else kind
