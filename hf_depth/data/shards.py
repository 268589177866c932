"""
Pre-tokenised shards: Arrow files of token ids, which are prepared once and read by any number of runs.

    DIR/manifest.json            settings, versions, counts
    DIR/tokenizer/               the tokenizer of the ids
    DIR/train/text/00000.arrow   and so on, by split and source

[`~hf_depth.data.shard_preparation.prepare_shards`] writes them. `datasets` maps them into memory, so a run reads them
in any order and copies nothing.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, concatenate_datasets
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ..disk import MANIFEST_FILE
from ..errors import UserError
from ..suggestions import listed
from ..tables import aligned
from .base_objective import Objective, Statistics, summed_statistics
from .files import describe_file
from .mixture import Mixing, MixtureDataset, mix_examples
from .pmi import UNITS_VERSION
from .preprocessing import dataset_statistics
from .tokenization import TextEncoder, load_tokenizer

logger = logging.getLogger(__name__)

SHARDS_VERSION = 2
PLAN_FILE = "plan.json"  # the settings of the shards until the manifest is written
TOKENIZER_FOLDER = "tokenizer"

# Settings of objectives that only collators use. The preparation does not depend on them.
DRAWN_SETTINGS = frozenset(("sentence_shuffling_probability", "metadata_probability"))
# Counts in addition to those of `dataset_statistics`.
DOCUMENT_COUNTS = ("documents", "documents_dropped", "examples_dropped")

# Entries that may be unknown: without a connection to the Hub, or in shards of an earlier release.
CONTENT, PMI_CONTENT = "dataset_content", "pmi_vocab_content"

Counts = dict[str, int]


def preparation_settings(objective: Objective) -> dict[str, Any]:
    """
    Return the settings of an objective that prepared examples depend on.

    Args:
        objective: the objective.
    """
    settings = {"model_type": objective.model_type, **objective.settings}
    if file := getattr(objective, "pmi_vocab_file", None):
        settings |= {PMI_CONTENT: describe_file(file), "pmi_units_version": UNITS_VERSION}
    return {name: value for name, value in settings.items() if name not in DRAWN_SETTINGS}


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """
    Return a hash of a tokenizer's vocabulary and rules, which does not depend on its folder.

    Args:
        tokenizer: any T5 tokenizer.
    """
    encoder = TextEncoder(tokenizer).tokenizer
    rules = encoder.to_str() if isinstance(encoder, Tokenizer) else type(encoder).__name__
    content = json.dumps([sorted(tokenizer.get_vocab().items()), rules])
    return hashlib.sha256(content.encode()).hexdigest()


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """
    Return the differences of two descriptions as texts for an error message.

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
    """Return advice for an error about [`differences`]: how to read the earlier commit. Empty if no commit differs."""
    if not any("hf://datasets/" in difference for difference in changed):
        return ""
    return " To read another commit of a data set of the Hub, name it by `dataset_revision` (in a mixture `revision`)."


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else str(value)


def source_folder(source: str) -> str:
    """
    Return the name of the folder for the shards of a source.

    >>> source_folder("allenai/c4:en")
    'allenai-c4-en'
    """
    return re.sub(r"[^\w.-]+", "-", source)


def example_counts(counts: Counts) -> Statistics:
    """
    Return those counts of a source that [`dataset_statistics`] would give for its examples.

    Args:
        counts: the counts of a source in [`ShardFolder.counts`].
    """
    return {name: number for name, number in counts.items() if name not in DOCUMENT_COUNTS}


def read_manifest(folder: str | os.PathLike) -> dict[str, Any] | None:
    """
    Return the manifest of a folder of shards, or its plan if it is not finished; `None` if there is neither.

    Only a finished manifest lists `shards`.

    Args:
        folder: any folder.

    Raises:
        `ValueError`: if the file is damaged.
    """
    path = next((path for path in (Path(folder, MANIFEST_FILE), Path(folder, PLAN_FILE)) if path.is_file()), None)
    if path is None:
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        manifest["versions"]["format"], manifest["settings"]  # raises for another kind of manifest
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"`tokenized_dataset_dir` {folder}: {path.name} cannot be read ({error!r}). Start anew by "
            "`overwrite_cache`, or name another folder."
        ) from error
    return manifest


@dataclass
class ShardFolder:
    """
    A finished folder of shards. Open one with [`ShardFolder.open`], write one with [`prepare_shards`].

    Args:
        folder: the path of the folder.
        manifest: its description: `settings`, `tokenizer` (a hash), `versions`, `text`, `sources` (their counts),
            `shards` (the number of `examples` and the `digest` of each).

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
    def open(cls, folder: str | os.PathLike) -> "ShardFolder":
        """
        Open a folder and check that it has all shards.

        Args:
            folder: the path of the folder.

        Raises:
            `ValueError`: if something is missing; says what.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        if manifest is not None and manifest["versions"]["format"] != SHARDS_VERSION:
            raise UserError(
                f"`tokenized_dataset_dir` {folder} has the format {manifest['versions']['format']}, but "
                f"{SHARDS_VERSION} is read here. Prepare the text again in another folder."
            )
        missing = [name for name in (manifest or {}).get("shards", ()) if not (folder / name).is_file()]
        problem = f"is damaged: {missing[0]} is missing" if missing else None
        if manifest is None:
            problem = f"is no folder of shards: no {MANIFEST_FILE}"
        elif "shards" not in manifest:
            problem = "is not finished"
        if problem is not None:
            raise UserError(
                f"`tokenized_dataset_dir` {folder} {problem}. Prepare it (again) by `--preprocessing_only`, with the "
                "arguments of its preparation."
            )
        return cls(folder, manifest)

    @property
    def counts(self) -> dict[str, dict[str, Counts]]:
        """The counts of each split and source: documents, examples, tokens, and what was dropped or cut."""
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

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """Load the tokenizer of the shards."""
        return load_tokenizer(self.tokenizer_folder)

    @property
    def digest(self) -> str:
        """A short hash of text and settings. Runs are described by it."""
        parts = [shard["digest"] for shard in self.manifest["shards"].values()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]

    def check(self, objective: Objective) -> None:
        """
        Raise `ValueError` if the objective would prepare other examples than the shards hold.

        Raises:
            `ValueError`: names all settings that differ.
        """
        now = {"tokenizer": tokenizer_digest(objective.tokenizer), **preparation_settings(objective)}
        now = json.loads(json.dumps(now, default=str))
        changed = differences({"tokenizer": self.manifest["tokenizer"], **self.manifest["settings"]}, now)
        if changed:
            raise UserError(
                f"The shards in `tokenized_dataset_dir` {self.folder} were prepared with {', '.join(changed)}. Train "
                "with the settings and the tokenizer of the shards, or prepare others by `--preprocessing_only`."
            )

    def sources(self, split: str) -> dict[str, Dataset]:
        """
        Return the examples of each source of a split, in numpy format.

        Args:
            split: a key of `counts`.

        Raises:
            `ValueError`: if there is no such split, or a shard is damaged; names it.
        """
        if split not in self.counts:
            raise UserError(
                f"`tokenized_dataset_dir` {self.folder} has no split {split!r}, only {listed(self.counts)}."
            )
        found = {}
        for source in self.counts[split]:
            place = f"{split}/{source_folder(source)}/"
            shards = {name: shard for name, shard in self.manifest["shards"].items() if name.startswith(place)}
            parts = [self._read(name, shard["examples"]) for name, shard in shards.items()]
            found[source] = concatenate_datasets(parts).with_format("numpy")
        return found

    def _read(self, name: str, number: int) -> Dataset:
        """Return the examples of a shard. Raises if it has not `number` examples."""
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
        Return the splits that [`Objective.prepare_splits`] would make from the documents of the shards.

        Args:
            objective: the objective of the run, with the settings of the shards.
            splits: the names of the splits to load.
            max_samples: the maximum number of examples of each split and source.
            seed: the seed of the order in which sources are drawn.
            mixing: how to mix several sources. By default, as the mixture of the preparation.

        Raises:
            `ValueError`: if the objective has other settings, see [`check`], or the sources cannot be mixed so.
        """
        self.check(objective)
        mixing, data, statistics = mixing or self.mixing, {}, {}
        for split in splits:
            sources = self.sources(split)
            counts = {name: example_counts(self.counts[split][name]) for name in sources}
            limit = (max_samples or {}).get(split)
            if limit is not None:
                sources = {name: part.select(range(min(limit, len(part)))) for name, part in sources.items()}
                unknown = objective.tokenizer.unk_token_id
                counts = {name: dataset_statistics(part, unknown) for name, part in sources.items()}
            if mixing is not None:
                data[split] = mix_examples(sources, mixing, seed) if split == "train" else sources
                if split == "train":
                    logger.info(f"{split}: {data[split].description}")
                statistics |= {f"{name} {split}": count for name, count in counts.items()}
            elif len(sources) == 1:
                (data[split],) = sources.values()
            else:
                raise UserError(
                    f"`tokenized_dataset_dir` {self.folder} has several sources: {', '.join(sources)}. Say how to mix "
                    "them by `dataset_mixture`."
                )
            statistics[split] = summed_statistics(counts.values())
            objective.report(statistics[split], split)
        return data, statistics

    def table(self) -> str:
        """Return a table of the splits and sources in the folder as lines of text."""
        rows = [["", "documents", "dropped", "examples", "tokens", "cut", "shards", "MB"]]
        for split, sources in self.counts.items():
            for source, counts in sources.items():
                place = f"{split}/{source_folder(source)}"
                shards = [name for name in self.manifest["shards"] if name.startswith(f"{place}/")]
                sizes = [(self.folder / name).stat().st_size for name in shards]
                names = ("documents", "documents_dropped", "examples", "tokens", "tokens_cut")
                numbers = [*(counts[name] for name in names), len(sizes)]
                rows.append([place, *(f"{number:,}" for number in numbers), f"{sum(sizes) / 1e6:.1f}"])
        return aligned(rows)
