"""[`Objective`]: what all objectives of pre-training share, above all the preparation of documents and splits."""

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from inspect import get_annotations
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset, IterableDataset, concatenate_datasets
from transformers import PreTrainedTokenizerBase

from ..errors import UserError, listed
from .columns import readable_documents
from .data_collator import DataCollatorForDepth, DataCollatorForT5SpanCorruption
from .metadata import MetadataEncoder
from .mixture import (
    DocumentMixture,
    Documents,
    MixtureDataset,
    MixtureStream,
    Statistics,
    each_source,
    join_sources,
    naming_source,
)
from .noise_lengths import MAX_UNIT_LENGTH
from .packing import LengthBounds, PackedPreprocessor
from .pmi import UnitFinder, read_pmi_vocabulary
from .preprocessing import (
    DepthPreprocessor,
    SpanCorruptionPreprocessor,
    dataset_statistics,
    no_examples,
    prepare_dataset,
)
from .streams import ExampleStream
from .tokenization import add_sentinels

logger = logging.getLogger(__name__)

Preprocessor = SpanCorruptionPreprocessor | DepthPreprocessor | PackedPreprocessor
# What comes of a split. A mixture gives one data set to train on and several to evaluate on.
Examples = Dataset | ExampleStream | MixtureDataset | MixtureStream | dict[str, Dataset]
Collator = DataCollatorForT5SpanCorruption | DataCollatorForDepth

# A stream to train on, and the share of words in collocations, are judged by so many of the first examples.
CHECKED_EXAMPLES = 1000
PACKING_SETTINGS = ("packing", "packed_source_length", "packed_target_length")
METADATA_SETTINGS = ("metadata_columns", "metadata_probability", "max_metadata_length")


def without_waiting(desc: str) -> contextlib.AbstractContextManager:
    """Stands for `main_process_first` where there is one process."""
    return contextlib.nullcontext()


@dataclass
class Objective(ABC):
    """
    Base class of the pre-training objectives.

    Args:
        tokenizer: what the model reads, for DEPTH with sentence tokens. It gets sentinels, if it has none and spans
            are masked, see [`add_sentinels`]: load the model after that.
        max_source_length (`int`, defaults to 512): longest encoder input in tokens, special tokens included.
        max_target_length (`int`, *optional*): longest target in tokens; by default what the longest input needs.
        packing (`bool`, defaults to `False`): put several training examples into one row, each as if it stood alone.
        packed_source_length, packed_target_length (`int`, *optional*): most tokens of a row; by default those of one
            example, for DEPTH of two. Two of its windows of whole sentences rarely fit into one.
        metadata_columns (`Sequence[str]`, *optional*): columns of the documents that the encoder reads before some of
            the examples, see [`metadata_prefix`]: never masked, and in no target.
        metadata_probability (`float`, defaults to 0.5): with which an example has its metadata, drawn at every visit.
        max_metadata_length (`int`, defaults to 64): most tokens of metadata. The text of each example leaves room for
            them.

    Raises:
        `ValueError`: for values out of range, or if an example can have more masked spans than there are sentinels.
    """

    # Which models it trains (a key of `models.loading.MODEL_TYPES`), and its name for that kind of model.
    model_type: ClassVar[str]
    name: ClassVar[str]
    collator_class: ClassVar[type]
    # How many times as long as an example a packed row is by default.
    packed_examples: ClassVar[int] = 1
    # Subclasses that have these settings make fields of them.
    pack_examples = False
    pmi_vocab_file = None

    tokenizer: PreTrainedTokenizerBase
    max_source_length: int = 512
    max_target_length: int | None = None
    packing: bool = field(default=False, kw_only=True)
    packed_source_length: int | None = field(default=None, kw_only=True)
    packed_target_length: int | None = field(default=None, kw_only=True)
    metadata_columns: Sequence[str] = field(default=(), kw_only=True)
    metadata_probability: float = field(default=0.5, kw_only=True)
    max_metadata_length: int = field(default=64, kw_only=True)

    def __post_init__(self):
        self._check_class()
        self._check_settings()
        if self.name != "prefix_lm":  # which masks nothing
            add_sentinels(self.tokenizer)
        self.collator()  # checks the noise and the lengths
        self.complete()
        self.preprocessor()  # checks that there are enough sentinels
        if self.packing:
            self._complete_packing()

    def _check_class(self) -> None:
        """Stop on a subclass that is no dataclass, or gives a default without a type: they would have no effect."""
        kind, defaults = type(self), {item.name: item.default for item in fields(self)}
        given = [name for name, hint in get_annotations(kind).items() if "ClassVar" not in str(hint)]
        lost = [name for name in given if name not in defaults]
        lost += [name for name, default in defaults.items() if vars(kind).get(name, default) is not default]
        if lost:
            raise TypeError(
                f"The setting `{lost[0]}` of {kind.__name__} is no field, and would be left out. Put `@dataclass` "
                f"before the class, and give the type of each setting (`{lost[0]}: float = …`)."
            )

    def _check_settings(self) -> None:
        defaults = {item.name: item.default for item in fields(self)}
        for needed, *names in (PACKING_SETTINGS, METADATA_SETTINGS):
            given = [name for name in names if getattr(self, name) != defaults[name]]
            if given and not getattr(self, needed):
                raise UserError(f"`{given[0]}` has no effect: it needs `{needed}`.")
        self.metadata_columns = list(self.metadata_columns)
        if self.metadata_columns and not 1 <= self.max_metadata_length <= self.max_source_length // 2:
            raise UserError(
                "`max_metadata_length` must be between 1 and half of `max_source_length`="
                f"{self.max_source_length}, got {self.max_metadata_length}: the rest is for the text."
            )
        others = [name for name in ("packing", "metadata_columns", "pmi_vocab_file") if getattr(self, name)]
        if self.pack_examples and others:
            raise UserError(
                f"`pack_examples` joins documents, which does not go with `{others[0]}`: leave one of them out."
            )

    def complete(self) -> None:
        """Fill in the settings that depend on others."""
        if self.max_target_length is None:
            self.max_target_length = self.max_source_length

    def _complete_packing(self) -> None:
        self.length_bounds()  # not all objectives have them
        for name in PACKING_SETTINGS[1:]:
            longest = getattr(self, name.replace("packed", "max"))
            length = self.packed_examples * longest if getattr(self, name) is None else getattr(self, name)
            setattr(self, name, length)
            if length < longest:
                raise UserError(
                    f"`{name}` {length} is below the {longest} tokens that a single example may have: raise it, or "
                    "lower the maximal length of examples."
                )

    def length_bounds(self) -> LengthBounds:
        """What says how long examples can be after corruption; `ValueError` if the objective has no such bounds."""
        raise UserError(
            f"`packing` is not for the objective {self.name!r} of a {self.model_type} model, which has no "
            "`length_bounds`: leave it out."
        )

    @property
    def metadata_encoder(self) -> MetadataEncoder | None:
        """What makes the metadata columns, for the preprocessor; `None` without `metadata_columns`."""
        if not self.metadata_columns:
            return None
        return MetadataEncoder(self.tokenizer, self.metadata_columns, self.max_metadata_length)

    @property
    def max_text_length(self) -> int:
        """What metadata leave of `max_source_length`."""
        return self.max_source_length - (self.max_metadata_length if self.metadata_columns else 0)

    @property
    def settings(self) -> dict[str, Any]:
        """
        The settings by their names, without the tokenizer and the folder of a vocabulary of collocations. Unused ones
        of metadata, packing and collocations are left out.
        """
        left_out = {"tokenizer", "pmi_vocab_file"}
        left_out |= set() if self.metadata_columns else set(METADATA_SETTINGS)
        left_out |= set() if self.packing else set(PACKING_SETTINGS)
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in left_out}
        vocabulary = {"pmi_vocab_file": Path(self.pmi_vocab_file).name} if self.pmi_vocab_file is not None else {}
        return {"objective": self.name} | values | vocabulary

    @cached_property
    def units(self) -> UnitFinder | None:
        """What finds the collocations in token ids that are masked as a whole."""
        file = self.pmi_vocab_file
        return None if file is None else UnitFinder(self.tokenizer, read_pmi_vocabulary(file))

    @property
    def _noise(self) -> dict[str, float]:
        """What lengths after corruption depend on, by the names of `noise_lengths`."""
        noise = {"noise_density": self.mlm_probability, "mean_noise_span_length": self.mean_noise_span_length}
        return noise | {"max_unit_length": 1 if self.pmi_vocab_file is None else MAX_UNIT_LENGTH}

    @abstractmethod
    def preprocessor(self, text_column: str = "text") -> SpanCorruptionPreprocessor | DepthPreprocessor:
        """The function for `datasets.map` that cuts documents into windows of token ids."""

    def training_preprocessor(self, text_column: str = "text") -> Preprocessor:
        """As [`preprocessor`], and with `packing` it puts several examples into one row."""
        preprocessor = self.preprocessor(text_column)
        if not self.packing:
            return preprocessor
        limits = (self.packed_source_length, self.packed_target_length)
        return PackedPreprocessor(preprocessor, self.length_bounds(), *limits)

    def collator(
        self, seed: int = 42, padding: bool | str = "longest", pad_to_multiple_of: int | None = None
    ) -> Collator:
        """The collator of what [`prepare`] returns. `padding` is `"longest"`, or `"max_length"` for static shapes."""
        taken = {item.name for item in fields(self.collator_class)}
        arguments = {item.name: getattr(self, item.name) for item in fields(self) if item.name in taken}
        if self.name in self.collator_class.objectives:
            arguments["objective"] = self.name
        arguments |= {"seed": seed, "padding": padding, "pad_to_multiple_of": pad_to_multiple_of}
        return self.collator_class(**arguments, whole_units=self.pmi_vocab_file is not None)

    def prepare(
        self,
        documents: Documents,
        *,
        text_column: str = "text",
        max_samples: int | None = None,
        num_proc: int | None = None,
        overwrite_cache: bool = False,
        desc: str = "Preparing text",
        packing: bool | None = None,
    ) -> Documents:
        """
        Cut documents, map-style or streamed, into at most `max_samples` examples of token ids (or packed rows). They
        are not corrupted yet: the collator draws that at every visit. Give `packing=False` for data to evaluate on;
        `num_proc`, `overwrite_cache` and `desc` are of `datasets.map`, for map-style data.

        Returns:
            A data set of the same kind with the columns `input_ids`, `num_cut_tokens`, for DEPTH `sentence_lengths`,
            with PMI masking `unit_lengths`, and columns of metadata. Map-style data are in numpy format, which the
            collators read fastest. For packed rows see [`PackedPreprocessor`].

        Raises:
            `ValueError`: if a column is missing or holds something else than text, or if no example is left.
        """
        if not isinstance(documents, Documents):
            raise UserError(
                f"`documents` must be a data set, got {type(documents).__name__}. Prepare the splits of a corpus by "
                '`objective.prepare_splits(corpus)`; make a data set of texts by `Dataset.from_dict({"text": texts})`.'
            )
        preprocessor = (self.preprocessor if packing is False else self.training_preprocessor)(text_column)
        examples = self._prepare(
            documents, preprocessor, max_samples, num_proc=num_proc, overwrite_cache=overwrite_cache, desc=desc
        )
        if isinstance(examples, Dataset):
            self._reported(examples, "prepared")
        return examples

    def _prepare(
        self, documents: Documents, preprocessor: Preprocessor, max_samples: int | None, **settings: Any
    ) -> Documents:
        if max_samples is not None and max_samples < 1:
            raise UserError(f"`max_samples` must be at least 1, got {max_samples}.")
        if isinstance(documents, IterableDataset):
            examples = prepare_dataset(documents, preprocessor)
            return examples if max_samples is None else examples.take(max_samples)
        wanted = len(documents) if max_samples is None or self.pack_examples else max_samples
        while True:
            examples = prepare_dataset(documents.select(range(min(wanted, len(documents)))), preprocessor, **settings)
            if wanted >= len(documents) or len(examples) >= max_samples:
                break
            wanted *= 2  # some documents gave no example
        if not len(examples):
            raise no_examples(f"the {len(documents):,} documents", preprocessor)
        if max_samples is not None:
            examples = examples.select(range(min(max_samples, len(examples))))
        return examples.with_format("numpy")

    def prepare_splits(
        self,
        corpus: Mapping[str, Documents | DocumentMixture],
        *,
        text_column: str = "text",
        max_samples: Mapping[str, int | None] | None = None,
        num_proc: int | None = None,
        overwrite_cache: bool = False,
        main_process_first: Callable[..., contextlib.AbstractContextManager] = without_waiting,
        seed: int = 42,
        shuffle_buffer_size: int = 10_000,
        whole_shards: bool = False,
    ) -> tuple[dict[str, Examples], dict[str, Statistics]]:
        """
        [`prepare`] each split of a corpus for a run. What comes of it is logged and checked.

        A stream to train on is an [`ExampleStream`] with this `seed`, `shuffle_buffer_size` and `whole_shards`. With
        `max_samples`, and to evaluate on, a stream is read into memory. Sources of a mixture are prepared one by one;
        those to train on are mixed, see [`join_sources`].

        Args:
            corpus: splits `train`, `validation`, `test` (or some of them), see [`load_corpus`].
            max_samples: the most examples of each split, of a mixture from each source.
            main_process_first: makes the context in which one process prepares before the others.

        Returns:
            The prepared splits, and the [`dataset_statistics`] of those whose length is known; also those of each
            source of a mixture, such as `"novels train"`.
        """
        if not isinstance(corpus, Mapping):
            raise UserError(
                f"`corpus` must hold splits, such as `load_corpus(...)`, got {type(corpus).__name__}. Prepare one "
                "data set by `objective.prepare(documents)`."
            )
        for split in max_samples or ():
            if split not in (*corpus, "train", "validation", "test"):
                raise UserError(f"`max_samples`: there is no split {split!r}, only {listed(corpus)}.")
        settings = {"main_process_first": main_process_first, "num_proc": num_proc, "overwrite_cache": overwrite_cache}
        data, statistics = {}, {}
        for split, documents in corpus.items():
            limit = (max_samples or {}).get(split)
            sources, counts = {}, {}
            for name, part, column, is_remote in each_source(documents, text_column):
                reading = {"seed": seed, "buffer_size": shuffle_buffer_size, "whole_shards": whole_shards or is_remote}
                with naming_source(name):
                    sources[name], counts[name] = self._prepare_source(
                        split, name, part, column, limit, reading, **settings
                    )
            data[split], found = join_sources(split, sources, counts, getattr(documents, "mixing", None), seed)
            statistics |= found
        return data, statistics

    def _prepare_source(
        self,
        split: str,
        source: str,
        documents: Documents,
        text_column: str,
        limit: int | None,
        reading: Mapping[str, Any],
        main_process_first: Callable[..., contextlib.AbstractContextManager],
        **settings: Any,
    ) -> tuple[Dataset | ExampleStream, Statistics | None]:
        """The examples of a source of a split, and their statistics if their number is known."""
        title = f"{source} {split}".lstrip()
        if source:
            logger.info(f"{split}, source {source!r}:")
        # Metrics of evaluation are means over examples, and `generate()` takes one per row.
        preprocessor = (self.training_preprocessor if split == "train" else self.preprocessor)(text_column)
        if isinstance(documents, IterableDataset) and split == "train" and limit is None:
            documents, _ = readable_documents(documents, text_column, self.metadata_columns)
            stream = ExampleStream(documents, preprocessor, **reading)
            first = Dataset.from_list(list(islice(stream.one_pass(), CHECKED_EXAMPLES)), preprocessor.features)
            kind = "rows" if self.packing else "examples"
            logger.info(f"{split}: a stream, of which these are the first {len(first):,} {kind}")
            self._reported(first.with_format("numpy"), split)
            return stream, None
        with main_process_first(desc=f"preparing the {title} split"):
            examples = self._prepare(documents, preprocessor, limit, desc=f"Preparing {title}", **settings)
            if isinstance(examples, IterableDataset):  # in parts: lists take ten times the memory of arrays
                parts = [Dataset.from_dict(part, features=preprocessor.features) for part in examples.iter(1000)]
                if not parts:
                    raise no_examples(f"the documents of the {split} stream", preprocessor)
                examples = concatenate_datasets(parts).with_format("numpy")
        return examples, self._reported(examples, split)

    def _reported(self, examples: Dataset, split: str) -> Statistics:
        """The statistics of prepared examples, which are in numpy format; they are logged and checked."""
        if self.units is not None:
            texts = examples.select_columns("input_ids")[:CHECKED_EXAMPLES]["input_ids"]
            share, num_words = self.units.collocation_share(np.concatenate(texts), np.array(list(map(len, texts))))
            logger.info(f"{split}: {share:.1%} of {num_words:,} words (and punctuation marks) stand in collocations")
            if share < 0.01 and num_words >= 1000:
                logger.warning(
                    f"Hardly any word of the {split} data ({share:.2%}) stands in a collocation of `pmi_vocab_file` "
                    f"{self.pmi_vocab_file}, so words are masked one by one. Is it of the same language? Make "
                    "one of this text by `examples/build_pmi_vocabulary.py`."
                )
        statistics = dataset_statistics(examples, self.tokenizer.unk_token_id)
        self.report(statistics, split)
        return statistics

    def report(self, statistics: Statistics, split: str) -> None:
        """Log the [`dataset_statistics`] of a split, and warn of many unknown tokens."""
        counts = (f"{value:,} {key.replace('_', ' ')}" for key, value in statistics.items())
        logger.info(f"{split}: {', '.join(counts)}")
        unknown = statistics.get("unknown_tokens", 0) / max(statistics["tokens"], 1)
        if unknown > 0.01:
            logger.warning(
                f"{unknown:.1%} of the {split} tokens are unknown to the tokenizer (`<unk>`): does it fit the "
                "language? Use another one (`tokenizer_name`)."
            )
        if statistics.get("metadata_examples") == 0:
            logger.warning(
                f"No example of the {split} data has metadata: {', '.join(self.metadata_columns)} are empty."
            )
