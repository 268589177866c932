"""
Pre-tokenised shards: examples of token ids as parquet files, prepared once and read by any number of runs.

    DIR/manifest.json            settings, versions, counts; sizes and hashes of all files
    DIR/tokenizer/               what the ids are of
    DIR/train/text/00000.parquet and so on, by split and source

They are written by [`~hf_depth.data.shard_preparation.prepare_shards`].
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, IterableDataset, load_dataset
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ..disk import (
    MANIFEST_FILE,
    UNFINISHED_FOLDER,
    damaged_file,
    read_manifest,
)
from ..tables import aligned
from .base_objective import Objective, Statistics, summed_statistics, without_waiting
from .files import describe_file, literal_pattern
from .mixture import Mixing, mix_examples
from .pmi import UNITS_VERSION
from .preprocessing import dataset_statistics
from .streams import ExampleStream
from .tokenization import TextEncoder, load_tokenizer

logger = logging.getLogger(__name__)

SHARDS_VERSION = 1  # of the format
PLAN_FILE = "plan.json"  # in the unfinished folder: what is being prepared
TOKENIZER_FOLDER = "tokenizer"

# Settings of objectives that have no part in the preparation: a collator draws by them.
DRAWN_SETTINGS = frozenset(("sentence_shuffling_probability", "metadata_probability"))
# Counts beside those of `dataset_statistics`.
DOCUMENT_COUNTS = ("documents", "documents_dropped", "examples_dropped")

# What is not always known: of a data set without a connection to the Hub, of a file in shards of an earlier release.
CONTENT, PMI_CONTENT = "dataset_content", "pmi_vocab_content"

Counts = dict[str, int]
Examples = Dataset | ExampleStream


def preparation_settings(objective: Objective) -> dict[str, Any]:
    """
    The settings of an objective that prepared examples depend on.

    Args:
        objective: any one.
    """
    settings = {"model_type": objective.model_type, **objective.settings}
    if file := getattr(objective, "pmi_vocab_file", None):
        settings |= {PMI_CONTENT: describe_file(file), "pmi_units_version": UNITS_VERSION}
    return {name: value for name, value in settings.items() if name not in DRAWN_SETTINGS}


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """
    A hash of a tokenizer: of all its ids, and of how it encodes text, wherever it is loaded from.

    Args:
        tokenizer: any T5 tokenizer.
    """
    encoder = TextEncoder(tokenizer).tokenizer
    rules = encoder.to_str() if isinstance(encoder, Tokenizer) else type(encoder).__name__
    content = json.dumps([sorted(tokenizer.get_vocab().items()), rules])
    return hashlib.sha256(content.encode()).hexdigest()


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """
    What differs between two descriptions, in the words of an error.

    >>> differences({"settings": {"max_source_length": 512}}, {"settings": {"max_source_length": 256}})
    ['max_source_length 512 (now 256)']
    """
    found = []
    for name in dict.fromkeys([*saved, *now]):
        one, other = saved.get(name), now.get(name)
        if name in (CONTENT, PMI_CONTENT) and None in (one, other):
            continue
        if name != CONTENT and isinstance(one, Mapping) and isinstance(other, Mapping):
            found += differences(one, other)
        elif one != other:
            found.append(f"{name} {_short(one)} (now {_short(other)})")
    return found


def revision_advice(changed: Sequence[str]) -> str:
    """How to read the commit of before, for an error about what [`differences`] found; nothing if none differs."""
    if not any("hf://datasets/" in difference for difference in changed):
        return ""
    return " To read another commit of a data set of the Hub, name it by `dataset_revision` (in a mixture `revision`)."


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else str(value)


def source_folder(source: str) -> str:
    """
    The name of the folder for the shards of a source.

    >>> source_folder("allenai/c4:en")
    'allenai-c4-en'
    """
    return re.sub(r"[^\w.-]+", "-", source)


def example_counts(counts: Counts) -> Statistics:
    """
    Of the counts of a source, those that [`dataset_statistics`] of its examples would give.

    Args:
        counts: an entry of [`ShardFolder.counts`].
    """
    return {name: number for name, number in counts.items() if name not in DOCUMENT_COUNTS}


@dataclass
class PreparedColumns:
    """
    Passes examples of shards through, in the place of a preprocessor of documents.

    Args:
        features: the columns.
    """

    features: Features

    @property
    def input_columns(self) -> tuple[str, ...]:
        """All columns."""
        return tuple(self.features)

    def __call__(self, batch: dict[str, list]) -> dict[str, list]:
        return batch


@dataclass
class ShardFolder:
    """
    A finished folder of shards, see [`prepare_shards`]. Made by [`ShardFolder.open`], which checks it.

    Args:
        folder: its path.
        manifest: what was prepared: `settings`, `tokenizer` (a hash), `versions`, `text`, `sources`, `files`.

    >>> import tempfile
    >>> from datasets import Dataset
    >>> from hf_depth import ShardFolder, SpanCorruptionObjective, prepare_shards, train_tokenizer
    >>> documents = Dataset.from_dict({"text": ["The dog barked.", "The cat slept."]})
    >>> tokenizer = train_tokenizer(documents["text"], vocab_size=300, allow_fewer=True)
    >>> objective = SpanCorruptionObjective(tokenizer, max_source_length=64)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     shards = prepare_shards({"train": documents}, objective, folder)
    ...     ShardFolder.open(folder).counts["train"]["text"]["examples"]
    2
    """

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: str | os.PathLike, check_hashes: bool = False) -> "ShardFolder":
        """
        Open a folder and check that all of its files are there.

        Args:
            folder: its path.
            check_hashes: read all files and compare their hashes; otherwise only the sizes.

        Raises:
            `ValueError`: naming what is missing or damaged.
        """
        folder = Path(folder)
        again = "Prepare it (again) by `--preprocessing_only`, with the arguments of its preparation."
        try:
            manifest = read_manifest(folder)
        except ValueError as error:
            raise ValueError(f"`tokenized_dataset_dir` {folder}: {error}. {again}") from error
        if manifest is None:
            is_begun = (folder / UNFINISHED_FOLDER / PLAN_FILE).is_file()
            problem = "was not prepared to its end" if is_begun else f"is no folder of shards: no {MANIFEST_FILE}"
            raise ValueError(f"`tokenized_dataset_dir` {folder} {problem}. {again}")
        missing = [name for name in ("settings", "tokenizer", "versions", "text", "sources") if name not in manifest]
        if missing:
            raise ValueError(
                f"`tokenized_dataset_dir` {folder} is damaged: {MANIFEST_FILE} has no {missing[0]!r}. {again}"
            )
        version = manifest["versions"].get("format")
        if version != SHARDS_VERSION:
            raise ValueError(
                f"`tokenized_dataset_dir` {folder} has the format {version}, but {SHARDS_VERSION} is read here. "
                "Prepare it anew in another folder."
            )
        problem = damaged_file(folder, manifest["files"], check_hashes)
        if problem is not None:
            raise ValueError(f"`tokenized_dataset_dir` {folder} is damaged: {problem}. {again}")
        return cls(folder, manifest)

    @property
    def counts(self) -> dict[str, dict[str, Counts]]:
        """By split and source: documents, examples, tokens, and what was dropped or cut."""
        return self.manifest["sources"]

    @property
    def source(self) -> str:
        """Where the text is from, without the path of any file."""
        return self.manifest["text"].get("source", self.folder.resolve().name)

    @property
    def hub_datasets(self) -> list[str]:
        """The names of data sets that may be on the Hub, of which the text is."""
        return self.manifest["text"].get("hub_datasets", [])

    @property
    def mixing(self) -> Mixing | None:
        """How the sources were to be mixed, `None` if there was no mixture."""
        mixing = self.manifest.get("mixing")
        return None if mixing is None else Mixing(**mixing)

    @property
    def tokenizer_folder(self) -> str:
        """Of the tokenizer of the shards."""
        return str(self.folder / TOKENIZER_FOLDER)

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the shards."""
        return load_tokenizer(self.tokenizer_folder)

    @property
    def digest(self) -> str:
        """A short hash of all files and settings, by which a run is known to be one from these shards."""
        files = {name: entry["sha256"] for name, entry in self.manifest["files"].items() if "examples" in entry}
        content = json.dumps([files, self.manifest["tokenizer"], self.manifest["settings"]], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    def check(self, objective: Objective) -> None:
        """
        Check that the shards are what an objective would prepare.

        Raises:
            `ValueError`: naming all settings that differ.
        """
        now = {"tokenizer": tokenizer_digest(objective.tokenizer), **preparation_settings(objective)}
        now = json.loads(json.dumps(now, default=str))
        changed = differences({"tokenizer": self.manifest["tokenizer"], **self.manifest["settings"]}, now)
        if changed:
            raise ValueError(
                f"The shards in `tokenized_dataset_dir` {self.folder} were prepared with {', '.join(changed)}. Train "
                "with the settings and the tokenizer of the shards, or prepare others by `--preprocessing_only`."
            )

    def sources(
        self,
        split: str,
        streaming: bool = False,
        seed: int = 42,
        shuffle_buffer_size: int = 10_000,
        cache_dir: str | None = None,
    ) -> dict[str, Examples]:
        """
        The examples of a split, by source.

        Args:
            split: a key of `counts`.
            streaming: read the shards while training: an [`ExampleStream`], of which each consumer reads row groups of
                its own if there are enough. By default, a map-style `Dataset` in numpy format, for which `datasets`
                keeps an uncompressed copy of the shards in its cache.
            seed, shuffle_buffer_size: of a stream, see [`ExampleStream`].
            cache_dir: of `datasets`.
        """
        found = {}
        for source in self.counts[split]:
            place = f"{split}/{source_folder(source)}/"
            names = [name for name in self.manifest["files"] if name.startswith(place)]
            files = [literal_pattern(str(self.folder.resolve() / name)) for name in names]
            try:
                examples = load_dataset(
                    "parquet", data_files=files, split="train", streaming=streaming, cache_dir=cache_dir
                )
                examples = examples.reshard() if streaming else examples  # a shard of the stream is a row group
            except Exception as error:  # of a damaged footer, or of the cache
                reason = " ".join(str(error.__cause__ or error).split())
                raise ValueError(
                    f"`tokenized_dataset_dir` {self.folder}: the shards of {place[:-1]} cannot be read: {reason}. If "
                    "they are damaged, remove them and prepare again by `--preprocessing_only`."
                ) from error
            if isinstance(examples, IterableDataset):
                columns = PreparedColumns(examples.features)
                found[source] = ExampleStream(examples, columns, 1, seed, shuffle_buffer_size, whole_shards=True)
            else:
                found[source] = examples.with_format("numpy")
        return found

    def load_splits(
        self,
        objective: Objective,
        splits: Iterable[str],
        *,
        max_samples: Mapping[str, int | None] | None = None,
        streaming: bool = False,
        seed: int = 42,
        shuffle_buffer_size: int = 10_000,
        cache_dir: str | None = None,
        mixing: Mixing | None = None,
        main_process_first: Callable[..., AbstractContextManager] = without_waiting,
    ) -> tuple[dict[str, Any], dict[str, Statistics]]:
        """
        What [`Objective.prepare_splits`] returns for the documents of the shards.

        Args:
            objective: of the run; it must be that of the shards.
            splits: those to load. Only `"train"` is streamed.
            max_samples: the most examples of each split; a stream with a limit becomes map-style.
            streaming, seed, shuffle_buffer_size, cache_dir: see [`sources`].
            mixing: of several sources; by default as they were to be mixed when they were prepared.
            main_process_first: makes the context in which one process reads before the others.

        Raises:
            `ValueError`: if the objective is another one, see [`check`], or if the sources cannot be mixed so.
        """
        self.check(objective)
        mixing, data, statistics = mixing or self.mixing, {}, {}
        for split in splits:
            limit = (max_samples or {}).get(split)
            is_stream = streaming and split == "train" and limit is None
            with main_process_first(desc=f"reading the {split} shards"):
                sources = self.sources(split, is_stream, seed, shuffle_buffer_size, cache_dir)
            counts = {name: example_counts(self.counts[split][name]) for name in sources}
            if limit is not None:
                sources = {name: part.select(range(min(limit, len(part)))) for name, part in sources.items()}
                unknown = objective.tokenizer.unk_token_id
                counts = {name: dataset_statistics(part, unknown) for name, part in sources.items()}
            if mixing is None and len(sources) > 1:
                raise ValueError(
                    f"`tokenized_dataset_dir` {self.folder} has several sources: {', '.join(sources)}. Say how to mix "
                    "them by `dataset_mixture`."
                )
            if mixing is None:
                (data[split],) = sources.values()
            else:
                data[split] = mix_examples(sources, mixing, seed) if split == "train" else sources
                if split == "train":
                    logger.info(f"{split}: {data[split].description}")
                statistics |= {f"{name} {split}": count for name, count in counts.items()}
            statistics[split] = summed_statistics(counts.values())
            objective.report(statistics[split], split)
        return data, statistics

    def table(self) -> str:
        """What the folder holds, as lines of text."""
        rows = [["", "documents", "dropped", "examples", "tokens", "cut", "shards", "MB"]]
        for split, sources in self.counts.items():
            for source, counts in sources.items():
                place = f"{split}/{source_folder(source)}"
                files = self.manifest["files"].items()
                sizes = [entry["size"] for name, entry in files if name.startswith(f"{place}/")]
                names = ("documents", "documents_dropped", "examples", "tokens", "tokens_cut")
                numbers = [*(counts[name] for name in names), len(sizes)]
                rows.append([place, *(f"{number:,}" for number in numbers), f"{sum(sizes) / 1e6:.1f}"])
        return aligned(rows)
