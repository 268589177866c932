"""
Pre-tokenised shards: Arrow files of token ids, which are prepared once and read by any number of runs.

    DIR/manifest.json            Settings and versions; at the end also counts and the list of shards.
    DIR/tokenizer/               The tokenizer of the ids.
    DIR/train/text/00000.arrow   And so on, by split and source.

A shard holds the examples of consecutive documents, in their order. The division does not depend on the number of
processes. Each shard is renamed when it is whole, so that a killed preparation continues with the missing shards.
`datasets` maps the files into memory, so a run reads them in any order and copies nothing.
"""

import hashlib
import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, concatenate_datasets
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ..disk import MANIFEST_FILE, replace_text
from ..errors import UserError, listed
from ..tables import aligned
from .base_objective import Objective
from .columns import readable_documents
from .corpus import CONTENT, describe_file
from .mixture import (
    DocumentMixture,
    Mixing,
    MixtureDataset,
    Statistics,
    join_sources,
    naming_source,
    summed_statistics,
)
from .preprocessing import dataset_statistics, no_examples
from .streams import DOCUMENTS_AT_ONCE, JOINED_DOCUMENTS_AT_ONCE
from .tokenization import TextEncoder

logger = logging.getLogger(__name__)

SHARDS_VERSION = 3
TOKENIZER_FOLDER = "tokenizer"
SOURCE = "text"  # the name of the source of documents without a mixture
SHARD_SIZE = 16_000_000  # bytes of text
BATCH_SIZE = 1000  # examples in a record batch
SCHEMA_KEY = b"hf_depth"

# Settings of objectives that only collators use. The preparation does not depend on them.
DRAWN_SETTINGS = frozenset(("sentence_shuffling_probability", "metadata_probability"))
# Counts in addition to those of `dataset_statistics`. Dropped are documents that begin in no example.
DOCUMENT_COUNTS = ("documents", "documents_dropped")

Shard = dict[str, Any]  # the description of a shard: `examples`, `digest`, `counts`


@dataclass
class ShardFolder:
    """
    A finished folder of shards. Open one with [`ShardFolder.open`], write one with [`prepare_shards`].

    The `manifest` is its description: `settings`, `tokenizer` (a hash), `versions`, `text`, `sources` (their counts),
    `shards` (the number of `examples` and the `digest` of each).

    >>> import tempfile
    >>> from hf_depth import ShardFolder, SpanCorruptionObjective, prepare_shards, train_tokenizer
    >>> documents = Dataset.from_dict({"text": ["The dog barked.", "The cat slept.", ""]})
    >>> tokenizer = train_tokenizer(documents["text"], vocab_size=300, allow_fewer=True)
    >>> objective = SpanCorruptionObjective(tokenizer, max_source_length=64)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shards = prepare_shards({"train": documents}, objective, folder)
    ...     [tokenizer.decode(ids) for ids in ShardFolder.open(folder).sources("train")["text"]["input_ids"]]
    ['The dog barked.', 'The cat slept.']
    >>> shards.counts["train"]["text"]["documents"], shards.counts["train"]["text"]["documents_dropped"]
    (3, 1)
    """

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: str | os.PathLike) -> "ShardFolder":
        """Open a folder. Raises `ValueError` if something is missing; says what."""
        folder = Path(folder)
        manifest = _read_manifest(folder)
        if manifest is None:
            problem = f"is no folder of shards: no {MANIFEST_FILE}"
        elif manifest["versions"]["format"] != SHARDS_VERSION:
            problem = f"has the format {manifest['versions']['format']}, but {SHARDS_VERSION} is read here"
        elif "shards" not in manifest:
            problem = "is not finished"
        elif missing := _missing(folder, manifest):
            problem = f"is damaged: {missing[0]} is missing"
        else:
            return cls(folder, manifest)
        raise UserError(
            f"`tokenized_dataset_dir` {folder} {problem}. Prepare it (again) by `--preprocessing_only`, with the "
            "arguments of its preparation."
        )

    @property
    def counts(self) -> dict[str, dict[str, Statistics]]:
        """By split and source, how many documents, examples and tokens there are, and what was dropped or cut."""
        return self.manifest["sources"]

    @property
    def source(self) -> str:
        """The origin of the text, without paths of files."""
        return self.manifest["text"].get("source", self.folder.resolve().name)

    @property
    def hub_datasets(self) -> list[str]:
        """The names of the data sets of the text that may be on the Hub."""
        return self.manifest["text"].get("hub_datasets", [])

    @property
    def mixing(self) -> Mixing | None:
        """The mixing that was chosen in the preparation; `None` if there was no mixture."""
        mixing = self.manifest.get("mixing")
        return None if mixing is None else Mixing(**mixing)

    @property
    def tokenizer_folder(self) -> str:
        """The folder of the tokenizer of the shards."""
        return str(self.folder / TOKENIZER_FOLDER)

    @property
    def digest(self) -> str:
        """A short hash of text and settings. Runs are described by it."""
        parts = [shard["digest"] for shard in self.manifest["shards"].values()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]

    def check(self, objective: Objective) -> None:
        """Raise `ValueError` if the objective would prepare other examples than the shards hold; names why."""
        now = _plan(objective, 0, {})
        changed = differences(self.manifest, now, ("tokenizer", "settings"))
        if changed:
            raise UserError(
                f"The shards in `tokenized_dataset_dir` {self.folder} were prepared with {', '.join(changed)}. Train "
                "with the settings and the tokenizer of the shards, or prepare others by `--preprocessing_only`."
            )

    def _shards(self, split: str, source: str) -> dict[str, Shard]:
        place = f"{split}/{source}"
        return {name: of for name, of in self.manifest["shards"].items() if name.rpartition("/")[0] == place}

    def sources(self, split: str) -> dict[str, Dataset]:
        """The examples of each source of a split, in numpy format; `ValueError` that names a damaged shard."""
        if split not in self.counts:
            known = listed(self.counts)
            raise UserError(f"`tokenized_dataset_dir` {self.folder} has no split {split!r}, only {known}.")
        found = {}
        for source in self.counts[split]:
            parts = [self._read(name, shard["examples"]) for name, shard in self._shards(split, source).items()]
            found[source] = concatenate_datasets(parts).with_format("numpy")
        return found

    def _read(self, name: str, number: int) -> Dataset:
        try:
            examples, reason = Dataset.from_file(str(self.folder / name)), "it is shorter than when it was written"
        except (OSError, ValueError, pa.ArrowException) as error:
            examples, reason = [], " ".join(str(error).split())
        if len(examples) != number:
            raise UserError(
                f"`tokenized_dataset_dir` {self.folder}: the shard {name} is damaged: {reason}. Remove this file, and "
                "prepare again by `--preprocessing_only`."
            )
        return examples

    def load_splits(
        self,
        objective: Objective,
        splits: Iterable[str],
        *,
        max_samples: Mapping[str, int | None] | None = None,
        seed: int = 42,
        mixing: Mixing | None = None,
    ) -> tuple[dict[str, Dataset | MixtureDataset | dict[str, Dataset]], dict[str, Statistics]]:
        """
        Return what [`Objective.prepare_splits`] would make of the documents: splits and statistics. `max_samples` are
        the most examples of each split and source. Several sources are mixed as in the preparation, unless `mixing`
        says otherwise. `ValueError` if the objective has other settings, see [`check`].
        """
        self.check(objective)
        mixing, data, statistics = mixing or self.mixing, {}, {}
        for split in splits:
            sources = self.sources(split)
            counts = {name: _example_counts(self.counts[split][name]) for name in sources}
            limit = (max_samples or {}).get(split)
            if limit is not None:
                sources = {name: part.select(range(min(limit, len(part)))) for name, part in sources.items()}
                unknown = objective.tokenizer.unk_token_id
                counts = {name: dataset_statistics(part, unknown) for name, part in sources.items()}
            if mixing is not None:
                data[split], found = join_sources(split, sources, counts, mixing, seed)
            elif len(sources) == 1:
                (data[split],), found = sources.values(), {split: counts.popitem()[1]}
            else:
                raise UserError(
                    f"`tokenized_dataset_dir` {self.folder} has several sources: {', '.join(sources)}. Say how to mix "
                    "them by `dataset_mixture`."
                )
            statistics |= found
            objective.report(statistics[split], split)
        return data, statistics

    def table(self) -> str:
        """Return the counts of all splits and sources as a table for readers."""
        names = (*DOCUMENT_COUNTS, "examples", "tokens", "tokens_cut")
        rows = [["", *names, "shards"]]
        for split, sources in self.counts.items():
            for source, counts in sources.items():
                numbers = [*(counts[name] for name in names), len(self._shards(split, source))]
                rows.append([f"{split}/{source}", *(f"{number:,}" for number in numbers)])
        return aligned(rows)


def _example_counts(counts: Statistics) -> Statistics:
    return {name: number for name, number in counts.items() if name not in DOCUMENT_COUNTS}


# ---- Settings -------------------------------------------------------------------------------------------------------


def _plan(objective: Objective, shard_size: int, text: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that shards depend on, as JSON values."""
    settings = {"model_type": objective.model_type, **objective.settings}
    if file := getattr(objective, "pmi_vocab_file", None):
        settings |= {"pmi_vocab_content": describe_file(file)}
    plan = {
        "versions": {"format": SHARDS_VERSION, **objective.preprocessor().versions},
        "tokenizer": _tokenizer_digest(objective.tokenizer),
        "settings": {name: value for name, value in settings.items() if name not in DRAWN_SETTINGS},
        "shard_size": shard_size,
        "text": text,
    }
    return json.loads(json.dumps(plan, default=str))


def _tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of vocabulary and rules, which does not depend on the folder of the tokenizer."""
    encoder = TextEncoder(tokenizer).tokenizer
    rules = encoder.to_str() if isinstance(encoder, Tokenizer) else type(encoder).__name__
    content = json.dumps([sorted(tokenizer.get_vocab().items()), rules])
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def differences(saved: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str] | None = None) -> list[str]:
    """The differences of two descriptions, in some names or in all, such as `max_source_length 512 (now 256)`."""
    found = []
    for name in names or dict.fromkeys([*saved, *now]):
        one, other = saved.get(name), now.get(name)
        if name == CONTENT and None in (one, other):
            continue
        if name != CONTENT and isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differences(one, other)
        elif one != other:
            found.append(f"{name} {one} (now {other})")
    return found


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    if not (folder / MANIFEST_FILE).is_file():
        return None
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        manifest["versions"]["format"], manifest["settings"]  # raises for another kind of manifest
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"`tokenized_dataset_dir` {folder}: {MANIFEST_FILE} cannot be read ({error!r}). Start anew in another "
            "folder."
        ) from error
    return manifest


def _missing(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    return [name for name in manifest["shards"] if not (folder / name).is_file()]


def _write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / MANIFEST_FILE, json.dumps(content, indent=2))


def _begun(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder to write to, `None` if it is new. Raises if the folder holds something else."""
    manifest = _read_manifest(folder)
    names = {item.name for item in folder.iterdir()} if folder.is_dir() else set()
    others = {name for name in names if not name.startswith("_")} - {TOKENIZER_FOLDER}  # `_`: an unfinished file
    if others and manifest is None:
        raise UserError(
            f"`tokenized_dataset_dir` {folder} is no folder of shards, but holds {min(others)}. Name a new folder."
        )
    return manifest


def begun_tokenizer_folder(folder: str | os.PathLike) -> str | None:
    """Return the folder of the tokenizer of a preparation that has begun and should continue with it, or `None`."""
    return None if _begun(Path(folder)) is None else str(Path(folder, TOKENIZER_FOLDER))


# ---- Preparation ----------------------------------------------------------------------------------------------------


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
    Prepare documents as [`Objective.prepare`] does, and write the examples to a folder of shards. The memory does not
    grow with the corpus. Shards of an earlier call with the same arguments are kept.

    Args:
        corpus: the splits of [`load_corpus`], without streams. A split is one data set, or several by the names of
            their sources. The mixing of a [`DocumentMixture`] is saved, too.
        objective: what prepares them. Its tokenizer is saved, too.
        folder: new, empty, or from an earlier call, whose shards `overwrite` replaces.
        text_column: the column with the documents. The sources of a [`DocumentMixture`] have their own.
        num_proc, shard_size: the number of processes, and about how many bytes of text a shard holds.
        text: the description of the documents, for the manifest.

    Raises:
        `ValueError`: if the folder holds something else, the documents are a stream, or a source gives no examples.

    >>> prepare_shards({"train": Dataset.from_dict({"text": ["A text."]}).to_iterable_dataset()}, None, "shards")
    Traceback (most recent call last):
    hf_depth.errors.UserError: Shards are made from map-style data, but train is a stream: load it without `streaming`.
    """
    sources = _documents_by_source(corpus, objective, text_column)
    folder, plan = Path(folder), _plan(objective, shard_size, text or {})
    mixing = getattr(corpus.get("train"), "mixing", None)
    mixing = mixing and asdict(mixing)
    saved = _begun(folder)
    saved = None if overwrite else saved
    if changed := differences(saved or plan, plan, plan):
        raise UserError(
            f"`tokenized_dataset_dir` {folder} holds another preparation, with {', '.join(changed)}. Choose another "
            "folder, or prepare this one anew by `overwrite_cache`."
        )
    if saved is not None and "shards" in saved and not _missing(folder, saved):
        logger.info(f"{folder} is already finished.")
        _write_manifest(folder, saved | {"mixing": mixing})  # may change, as no example depends on it
        return ShardFolder.open(folder)
    if saved is None:
        objective.tokenizer.save_pretrained(folder / TOKENIZER_FOLDER)  # first: a manifest implies a tokenizer
    _write_manifest(folder, plan)
    shards, counts = {}, {}
    for (split, source), (documents, column) in sources.items():
        written = _ShardWriter(objective, documents, column, folder, split, source, plan, overwrite).write_all(
            num_proc
        )
        counts.setdefault(split, {})[source] = summed_statistics([one.pop("counts") for one in written.values()])
        shards |= written
    for split, found in counts.items():
        objective.report(_example_counts(summed_statistics(list(found.values()))), split)
    _write_manifest(folder, plan | {"sources": counts, "mixing": mixing, "shards": shards})
    return ShardFolder.open(folder)


def _documents_by_source(
    corpus: Mapping[str, Dataset | Mapping[str, Dataset]], objective: Objective, text_column: str
) -> dict[tuple[str, str], tuple[Dataset, str]]:
    """The documents and their text column, by split and source."""
    found = {}
    for split, documents in corpus.items():
        columns = {}
        if isinstance(documents, DocumentMixture):
            columns = {name: source.text_column for name, source in documents.sources.items()}
        for source, part in (documents if isinstance(documents, Mapping) else {SOURCE: documents}).items():
            if not isinstance(part, Dataset):
                raise UserError(
                    f"Shards are made from map-style data, but {split} is a stream: load it without `streaming`."
                )
            column = columns.get(source, text_column)
            with naming_source(source) if columns else nullcontext():
                part, _ = readable_documents(part, column, objective.metadata_columns)
            found[split, source] = part, column
    return found


class _ShardWriter:
    """Writes the shards of a source that are missing or damaged."""

    def __init__(
        self,
        objective: Objective,
        documents: Dataset,
        text_column: str,
        folder: Path,
        split: str,
        source: str,
        plan: Mapping[str, Any],
        overwrite: bool,
    ):
        make = objective.training_preprocessor if split == "train" else objective.preprocessor
        self.folder, self.place, self.overwrite = folder, f"{split}/{source}", overwrite
        self.preprocessor = make(text_column)
        self.unk_token_id = objective.tokenizer.unk_token_id
        # Small integers in lists; a count outside of a list may be larger.
        ids = pa.list_(pa.uint16() if len(objective.tokenizer) <= 1 << 16 else pa.uint32())
        schema = self.preprocessor.features.arrow_schema
        self.schema = pa.schema([item.with_type(ids) if pa.types.is_list(item.type) else item for item in schema])
        self.plan = [plan[name] for name in ("versions", "tokenizer", "settings")]
        self.parent = os.getpid()
        joins = self.preprocessor.joins_documents
        self.documents_at_once = JOINED_DOCUMENTS_AT_ONCE if joins else DOCUMENTS_AT_ONCE
        self.documents = documents.select_columns(list(self.preprocessor.input_columns))
        table = self.documents.data
        self.rows = max(1, round(plan["shard_size"] * len(table) / max(table.nbytes, 1)))  # documents of a shard
        if joins:  # keep documents that are joined in one shard
            self.rows = math.ceil(self.rows / self.documents_at_once) * self.documents_at_once

    def write_all(self, num_proc: int | None) -> dict[str, Shard]:
        """Write what is missing, with so many processes. Returns the descriptions of all shards by their names."""
        place = self.folder / self.place
        place.mkdir(parents=True, exist_ok=True)
        numbers = Dataset.from_dict({"number": range(math.ceil(len(self.documents) / self.rows))})
        written = numbers.map(
            self,
            num_proc=num_proc and max(1, min(num_proc, len(numbers))),
            new_fingerprint="shards",  # hashing the writer would hash all documents in memory
            load_from_cache_file=False,
            desc=f"Preparing shards of {self.place}",
        )
        shards = {row["name"]: json.loads(row["shard"]) for row in written}
        for path in place.iterdir():
            if f"{self.place}/{path.name}" not in shards:  # from a longer text or a killed process
                path.unlink()
        if not any(shard["examples"] for shard in shards.values()):
            raise no_examples(f"the documents of {self.place}", self.preprocessor)
        return shards

    def __call__(self, row: dict[str, int]) -> dict[str, str]:
        if self.parent not in (os.getpid(), os.getppid()):
            os._exit(1)  # the parent was killed, and its successor does not wait for this process
        first = row["number"] * self.rows
        documents = self.documents[first : first + self.rows]
        content = json.dumps([self.plan, documents], default=str)
        digest = hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
        name = f"{self.place}/{row['number']:05}.arrow"
        shard = None if self.overwrite else _written(self.folder / name)
        if shard is None or shard["digest"] != digest:
            shard = self._write(self.folder / name, documents, digest)
        return {"name": name, "shard": json.dumps(shard)}

    def _write(self, path: Path, documents: dict[str, list], digest: str) -> Shard:
        number, features = len(documents[self.preprocessor.text_column]), self.preprocessor.features.arrow_schema
        tables = []
        for start in range(0, number, self.documents_at_once):
            batch = {name: values[start : start + self.documents_at_once] for name, values in documents.items()}
            tables.append(pa.Table.from_pydict(self.preprocessor(batch), schema=features).cast(self.schema))
        table = pa.concat_tables(tables).combine_chunks()
        dropped = number - pc.sum(table["num_documents"], min_count=0).as_py()
        counts = {"documents": number, "documents_dropped": dropped}
        counts |= dataset_statistics(Dataset(table), self.unk_token_id)
        shard = {"examples": len(table), "digest": digest, "counts": counts}
        table = table.replace_schema_metadata({SCHEMA_KEY: json.dumps(shard)})
        aside = path.with_name(f"_{path.name}.{os.getpid()}")
        with aside.open("wb") as file:
            with pa.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table, BATCH_SIZE)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        return shard


def _written(path: Path) -> Shard | None:
    """The description of a shard in its file; `None` if the file is missing or damaged."""
    try:
        with pa.memory_map(str(path)) as file:
            return json.loads(pa.ipc.open_stream(file).schema.metadata[SCHEMA_KEY])
    except (OSError, ValueError, TypeError, KeyError, pa.ArrowException):
        return None
