"""
What a model is pre-trained on. An objective is given its noise, lengths and sentence settings once; it prepares
documents and makes the collator that fits them.

A new objective is one class here: a subclass of [`Objective`] with its settings as fields, a `preprocessor` and a
`make_collator`, listed in `OBJECTIVES`. The flags of the pre-training script reach it by the names of its fields.
"""

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset, IterableDataset, concatenate_datasets
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..suggestions import suggestion
from .corruption import (
    MAX_UNIT_LENGTH,
    largest_raw_length,
    noise_counts,
    t5_input_and_target_lengths,
    t5_raw_length,
)
from .data_collator import DataCollatorForDepth, DataCollatorForT5SpanCorruption
from .denoisers import UL2_DENOISERS, Denoiser, denoiser_input_and_target_lengths, most_spans, parse_denoisers
from .files import check_text_column
from .metadata import METADATA_IDS, MetadataEncoder, check_metadata_columns
from .mixture import DocumentMixture, MixtureDataset, MixtureStream, mix_examples, naming_source
from .packing import (
    PER_EXAMPLE,
    LengthBounds,
    PackedPreprocessor,
    denoiser_length_bounds,
    depth_length_bounds,
    prefix_lm_length_bounds,
    t5_length_bounds,
)
from .pmi import UnitFinder, read_pmi_vocabulary
from .preprocessing import (
    DepthPreprocessor,
    NoExamplesError,
    SpanCorruptionPreprocessor,
    check_enough_sentinels,
    dataset_statistics,
    prepare_dataset,
)
from .streams import ExampleStream
from .tokenization import sentence_token_ids

logger = logging.getLogger(__name__)

Documents = Dataset | IterableDataset
Preprocessor = SpanCorruptionPreprocessor | DepthPreprocessor | PackedPreprocessor
SPLITS = ("train", "validation", "test")

# A stream to train on is judged by so many of its first examples, before anything is trained.
STREAM_CHECK_EXAMPLES = 1000
# The share of real tokens in packed rows is that of so many rows, at equal distances.
MEASURED_ROWS = 500
# The share of words in collocations is that of so many of the first examples.
COLLOCATION_EXAMPLES = 1000
PACKING_SETTINGS = ("packing", "packed_source_length", "packed_target_length")
METADATA_SETTINGS = ("metadata_columns", "metadata_probability", "max_metadata_length")

Statistics = dict[str, int]
# What comes of a split: of a mixture, one data set to train on and several to evaluate on.
Examples = Dataset | ExampleStream | MixtureDataset | MixtureStream | dict[str, Dataset]
Collator = DataCollatorForT5SpanCorruption | DataCollatorForDepth


def summed_statistics(statistics: Iterable[Statistics]) -> Statistics:
    """The statistics of several data sets together."""
    statistics = list(statistics)
    return {name: sum(each[name] for each in statistics) for name in statistics[0]}


@contextlib.contextmanager
def without_waiting(desc: str) -> Iterator[None]:
    """Stands for `main_process_first` where there is one process."""
    yield


@dataclass
class Objective(ABC):
    """
    Base class of the pre-training objectives.

    Args:
        tokenizer: what the model reads; a T5 tokenizer, for DEPTH with sentence tokens.
        max_source_length (`int`, defaults to 512): longest encoder input in tokens.
        max_target_length (`int`, *optional*): longest target in tokens; by default what the longest input needs.
        packing (`bool`, defaults to `False`): put several training examples into one row. Each is corrupted and
            learned from as if it stood alone, but less of a batch is padding.
        packed_source_length (`int`, *optional*): most tokens of the inputs of a row; by default `max_source_length`
            (DEPTH: twice that, since no two of its windows of whole sentences may fit together).
        packed_target_length (`int`, *optional*): most tokens of the targets of a row; by default as many times
            `max_target_length`.
        metadata_columns (`Sequence[str]`, *optional*): columns of the documents that the encoder reads before some of
            the examples, see [`metadata_prefix`]: never masked, and in no target.
        metadata_probability (`float`, defaults to 0.5): with which an example has its metadata, drawn at every visit.
        max_metadata_length (`int`, defaults to 64): most tokens of metadata. With metadata, the text of an example is
            by so many tokens shorter than `max_source_length`, whatever metadata it has.

    >>> sorted(name for _, name in OBJECTIVES), all(issubclass(kind, Objective) for kind in OBJECTIVES.values())
    (['mixture_of_denoisers', 'prefix_lm', 'prefix_lm', 'span_corruption', 'span_corruption'], True)
    """

    # Which models it trains (a key of `models.loading.MODEL_TYPES`), and its name for that kind of model.
    model_type: ClassVar[str]
    name: ClassVar[str]
    # Subclasses that have these settings make fields of them. (A field cannot take the place of a `ClassVar`.)
    min_sentences = 1
    pack_examples = False
    # How many times as long as an example a packed row is by default.
    packed_examples: ClassVar[int] = 1

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
        if not isinstance(self.tokenizer, PreTrainedTokenizerBase):
            raise ValueError(
                f"`tokenizer` must be a tokenizer, got {self.tokenizer!r:.80}. `load_tokenizer(name)` loads one."
            )
        self._check_metadata()
        self.collator()  # checks lengths and noise
        self.complete()
        preprocessor = self.preprocessor()  # checks that there are enough sentinels
        if self.metadata_columns and METADATA_IDS not in preprocessor.features:
            raise ValueError(f"{type(self).__name__} does not take metadata: leave out `metadata_columns`.")
        self._complete_packing()

    def _check_metadata(self) -> None:
        columns = [self.metadata_columns] if isinstance(self.metadata_columns, str) else self.metadata_columns
        self.metadata_columns = list(columns)
        if not self.metadata_columns:
            return
        if len(set(self.metadata_columns)) < len(self.metadata_columns):
            raise ValueError(f"`metadata_columns` names a column twice: {', '.join(self.metadata_columns)}.")
        if not 1 <= self.max_metadata_length <= self.max_source_length // 2:
            raise ValueError(
                "`max_metadata_length` must be between 1 and half of `max_source_length`="
                f"{self.max_source_length}, got {self.max_metadata_length}: the rest is for the text."
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

    def complete(self) -> None:
        """Fill in the settings that depend on others."""
        if self.max_target_length is None:
            self.max_target_length = self.max_source_length

    def _complete_packing(self) -> None:
        lengths = PACKING_SETTINGS[1:]
        if not self.packing:
            given = [name for name in lengths if getattr(self, name) is not None]
            if given:
                raise ValueError(f"`{given[0]}` is the length of packed rows: it needs `packing`.")
            return
        if self.pack_examples:
            raise ValueError(
                "`pack_examples` joins documents into one example, `packing` keeps examples apart in one row: choose "
                "one of them."
            )
        self.length_bounds()  # not all objectives have them
        for name in lengths:
            longest = getattr(self, name.replace("packed", "max"))
            if getattr(self, name) is None:
                setattr(self, name, self.packed_examples * longest)
            if getattr(self, name) < longest:
                raise ValueError(
                    f"`{name}` {getattr(self, name)} is below the {longest} tokens that a single example may have: "
                    "raise it, or lower the maximal length of examples."
                )

    def length_bounds(self) -> LengthBounds:
        """
        What says how long examples can be after corruption, for [`PackedPreprocessor`].

        Raises:
            `ValueError`: if the objective has no such bounds.
        """
        raise ValueError(
            f"`packing` is not for the objective {self.name!r} of a {self.model_type} model, which has no "
            "`length_bounds`: leave it out."
        )

    @abstractmethod
    def preprocessor(self, text_column: str = "text") -> SpanCorruptionPreprocessor | DepthPreprocessor:
        """The function for `datasets.map` that cuts documents into windows of token ids."""

    def training_preprocessor(self, text_column: str = "text") -> Preprocessor:
        """As [`preprocessor`], and with `packing` it puts several examples into one row."""
        preprocessor = self.preprocessor(text_column)
        if not self.packing:
            return preprocessor
        return PackedPreprocessor(
            preprocessor,
            self.length_bounds(),
            self.packed_source_length,
            self.packed_target_length,
            self.min_sentences,
        )

    @abstractmethod
    def make_collator(self, **arguments: Any) -> Collator:
        """
        The collator with the noise of this objective.

        Args:
            arguments: what [`collator`] passes on: lengths, padding, seed.
        """

    def collator(
        self,
        seed: int = 42,
        padding: bool | str = "longest",
        pad_to_multiple_of: int | None = None,
        model: PreTrainedModel | None = None,
    ) -> Collator:
        """
        The collator that corrupts what [`prepare`] returns.

        Args:
            seed: together with the epoch and the tokens of an example it decides what is drawn for that example.
            padding: `"longest"`, or `"max_length"` for static shapes.
            pad_to_multiple_of: makes both widths of a batch a multiple of this number.
            model: if given, compared with the tokenizer, see [`check_sentence_tokens`].
        """
        packed = {name: getattr(self, name) for name in PACKING_SETTINGS[1:]}
        return self.make_collator(
            max_source_length=self.max_source_length,
            max_target_length=self.max_target_length,
            padding=padding,
            pad_to_multiple_of=pad_to_multiple_of,
            seed=seed,
            model=model,
            metadata_probability=self.metadata_probability,
            **(packed if self.packing else {}),
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by their names, without the tokenizer, and without those of metadata and packing if unused."""
        left_out = {"tokenizer"}
        left_out |= set() if self.metadata_columns else set(METADATA_SETTINGS)
        left_out |= set() if self.packing else set(PACKING_SETTINGS)
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in left_out}
        return {"objective": self.name} | values

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
        Cut documents into examples of token ids. They are not corrupted yet: the collator draws that at every visit.

        Args:
            documents: one document per row, map-style or streamed.
            text_column: the column that holds them.
            max_samples: stop at so many examples (or packed rows), without preparing many more documents than that
                takes.
            num_proc: processes, for map-style data.
            overwrite_cache: prepare anew even if `datasets` has cached the result.
            desc: for the progress bar.
            packing: whether to put several examples into one row; by default as the objective says. Data to evaluate
                on are not packed: give `False`.

        Returns:
            A data set of the same kind with the columns `input_ids`, `num_cut_tokens`, for DEPTH `sentence_lengths`,
            with PMI masking `unit_lengths`, and with `metadata_columns` those of [`MetadataEncoder`]; map-style data
            in numpy format, which the collators read fastest. For packed rows see [`PackedPreprocessor`].

        Raises:
            `ValueError`: if the column or one of the metadata is missing or holds something else than text, if no
                example is left, or if several splits are given.
        """
        if isinstance(documents, Mapping):
            raise ValueError(
                f"`documents` are the splits {', '.join(map(repr, documents))}. Prepare one of them, or all by "
                "`objective.prepare_splits(corpus)`."
            )
        if not isinstance(documents, Documents):
            raise ValueError(
                f"`documents` must be a data set, got {type(documents).__name__}. Make one of texts by "
                '`datasets.Dataset.from_dict({"text": texts})`.'
            )
        packing = self.packing if packing is None else packing
        preprocessor = self.training_preprocessor(text_column) if packing else self.preprocessor(text_column)
        examples = self._prepare(documents, preprocessor, max_samples, num_proc, overwrite_cache, desc)
        if isinstance(examples, Dataset):
            self.report(dataset_statistics(examples, self.tokenizer.unk_token_id), "prepared")
            self._report_examples(examples, "prepared")
        return examples

    def _prepare(
        self,
        documents: Documents,
        preprocessor: Preprocessor,
        max_samples: int | None,
        num_proc: int | None,
        overwrite_cache: bool,
        desc: str,
    ) -> Documents:
        if max_samples is not None and max_samples < 1:
            raise ValueError(f"`max_samples` must be at least 1, got {max_samples}.")
        if isinstance(documents, IterableDataset):
            examples = prepare_dataset(documents, preprocessor, min_sentences=self.min_sentences)
            return examples if max_samples is None else examples.take(max_samples)
        number = len(documents)
        if max_samples is not None and not self.pack_examples:
            number = min(max_samples, number)
        while True:
            try:
                examples = prepare_dataset(
                    documents.select(range(number)),
                    preprocessor,
                    num_proc=num_proc,
                    overwrite_cache=overwrite_cache,
                    desc=desc,
                    min_sentences=self.min_sentences,
                )
            except NoExamplesError:
                if number == len(documents):
                    raise
                examples = []
            if max_samples is None or len(examples) >= max_samples or number == len(documents):
                break
            number = min(2 * number, len(documents))  # some documents gave no example
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

        A stream to train on is an [`ExampleStream`]: endless, each example once per pass, shuffled, with new noise at
        each pass. With `max_samples` it is read into memory, as is a stream to evaluate on: only then is it known
        which examples these are, and to several processes which of them just fill up their last batch.

        The sources of a mixture are prepared one by one. Those to train on are mixed, see [`mix_examples`]; of the
        other splits there is a dictionary with the examples of each source.

        Args:
            corpus: splits `train`, `validation`, `test` (or some of them), see [`load_corpus`].
            text_column, num_proc, overwrite_cache: as for [`prepare`].
            max_samples: the most examples of each split, of a mixture from each source.
            main_process_first: makes the context in which one process prepares before the others, such as
                `training_args.main_process_first`.
            seed, shuffle_buffer_size, whole_shards: of a stream to train on, see [`ExampleStream`].

        Returns:
            The prepared splits, and the [`dataset_statistics`] of those whose length is known; of a mixture their sums
            and those of each source, such as `"novels train"`.

        Raises:
            `ValueError`: as [`prepare`], or if the training examples have nothing to learn from.
        """
        if not isinstance(corpus, Mapping):
            raise ValueError(
                f"`corpus` must hold splits, such as `load_corpus(...)`, got {type(corpus).__name__}. Prepare one "
                "data set by `objective.prepare(documents)`."
            )
        limits = max_samples or {}
        unknown = [split for split in limits if split not in SPLITS]
        if unknown:
            raise ValueError(f"`max_samples`: there is no split {unknown[0]!r}.{suggestion(unknown[0], SPLITS)}")
        data, statistics = {}, {}

        def prepared(
            split: str, documents: Documents, text_column: str, whole_shards: bool, source: str = ""
        ) -> Dataset | ExampleStream:
            if isinstance(documents, IterableDataset) and split == "train" and limits.get(split) is None:
                return self._endless(documents, text_column, seed, shuffle_buffer_size, whole_shards)
            # Metrics of evaluation are means over examples, and `generate()` takes one per row.
            preprocessor = (self.training_preprocessor if split == "train" else self.preprocessor)(text_column)
            title = f"{source} {split}".lstrip()
            with main_process_first(desc=f"preparing the {title} split"):
                examples = self._prepare(
                    documents, preprocessor, limits.get(split), num_proc, overwrite_cache, f"Preparing {title}"
                )
                if isinstance(examples, IterableDataset):
                    examples = self._in_memory(examples, split, preprocessor)
            statistics[title] = dataset_statistics(examples, self.tokenizer.unk_token_id)
            self.report(statistics[title], split)
            self._report_examples(examples, split)
            return examples

        for split, documents in corpus.items():
            if not isinstance(documents, DocumentMixture):
                data[split] = prepared(split, documents, text_column, whole_shards)
                continue
            parts = {}
            for name, source in documents.sources.items():
                logger.info(f"{split}, source {name!r}:")
                with naming_source(name):
                    parts[name] = prepared(split, documents[name], source.text_column, source.is_remote, name)
            data[split] = parts
            if split == "train":
                data[split] = mix_examples(parts, documents.mixing, seed)
                logger.info(f"{split}: {data[split].description}")
            counts = [statistics[f"{name} {split}"] for name in parts if f"{name} {split}" in statistics]
            if counts:
                statistics[split] = summed_statistics(counts)
        return data, statistics

    def _endless(
        self, documents: IterableDataset, text_column: str, seed: int, buffer_size: int, whole_shards: bool
    ) -> ExampleStream:
        """A stream to train on, the first examples of which are checked."""
        check_text_column(documents, text_column)
        check_metadata_columns(documents, self.metadata_columns, text_column)
        stream = ExampleStream(
            documents, self.training_preprocessor(text_column), self.min_sentences, seed, buffer_size, whole_shards
        )
        first = Dataset.from_list(list(islice(stream.one_pass(), STREAM_CHECK_EXAMPLES)), stream.preprocessor.features)
        kind = "rows" if self.packing else "examples"
        logger.info(f"train: a stream, of which these are the first {len(first):,} {kind}")
        self.report(dataset_statistics(first, self.tokenizer.unk_token_id), "train")
        self._report_examples(first.with_format("numpy"), "train")
        return stream

    def report(self, statistics: Statistics, split: str) -> None:
        """
        Log what the preparation made of the documents of a split, and warn of many unknown tokens.

        Args:
            statistics: from [`dataset_statistics`].
            split: its name.
        """
        logger.info(
            f"{split}: " + ", ".join(f"{value:,} {key.replace('_', ' ')}" for key, value in statistics.items())
        )
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

    def real_token_shares(self, rows: Dataset) -> dict[str, float]:
        """
        How much of packed rows is no padding, as the collator corrupts them in the first epoch.

        Args:
            rows: from [`prepare`] with `packing`.

        Returns:
            `dict[str, float]`: `source`, the share of the `packed_source_length` tokens of a row, and `target`, that
            of `packed_target_length`; of many rows, those of a sample.
        """
        indices = np.unique(np.linspace(0, len(rows) - 1, MEASURED_ROWS).astype(int))
        collator, num_source, num_target = self.collator(), 0, 0
        for start in range(0, len(indices), 50):
            batch = collator([rows[int(index)] for index in indices[start : start + 50]])
            num_source += int((batch["encoder_segment_ids"] > 0).sum())
            num_target += int((batch["decoder_segment_ids"] > 0).sum())
        return {
            "source": num_source / (len(indices) * self.packed_source_length),
            "target": num_target / (len(indices) * self.packed_target_length),
        }

    def _report_examples(self, examples: Dataset, split: str) -> None:
        """Log what is measured on prepared examples, which are in numpy format, beside their statistics."""
        if f"input_ids{PER_EXAMPLE}" not in examples.column_names:
            return
        shares = self.real_token_shares(examples)
        logger.info(
            f"{split}: packed rows of {self.packed_source_length:,} source and {self.packed_target_length:,} target "
            f"tokens, of which {shares['source']:.1%} and {shares['target']:.1%} are real, the rest padding; a batch "
            "is padded to its longest row only"
        )

    def _in_memory(self, examples: IterableDataset, split: str, preprocessor: Preprocessor) -> Dataset:
        features = preprocessor.features
        # In parts, since lists of numbers take ten times the memory of arrays.
        parts = [Dataset.from_dict(part, features=features) for part in examples.iter(1000)]
        if not parts:
            raise NoExamplesError(
                f"None of the documents of the {split} stream gives an example: they have too little text, or fewer "
                f"than `min_sentences` {self.min_sentences} sentences."
            )
        return concatenate_datasets(parts).with_format("numpy")


class _PMIMasking:
    """What the objectives share that mask spans: the vocabulary of collocations that are masked as a whole."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by their names, without the tokenizer and without the folder of a vocabulary."""
        settings = super().settings
        file = settings.pop("pmi_vocab_file")
        return settings if file is None else settings | {"pmi_vocab_file": Path(file).name}

    @cached_property
    def _units(self) -> UnitFinder | None:
        if self.pmi_vocab_file is None:
            return None
        return UnitFinder(self.tokenizer, read_pmi_vocabulary(self.pmi_vocab_file))

    @property
    def _max_unit_length(self) -> int:
        return 1 if self.pmi_vocab_file is None else MAX_UNIT_LENGTH

    def _report_examples(self, examples: Dataset, split: str) -> None:
        super()._report_examples(examples, split)
        if self._units is None:
            return
        texts = examples.select_columns("input_ids")[:COLLOCATION_EXAMPLES]["input_ids"]
        share, num_words = self._units.collocation_share(np.concatenate(texts), np.array(list(map(len, texts))))
        logger.info(f"{split}: {share:.1%} of {num_words:,} words (and punctuation marks) stand in collocations")
        if share < 0.01 and num_words >= 1000:
            logger.warning(
                f"Hardly any word of the {split} data ({share:.2%}) stands in a collocation of `pmi_vocab_file` "
                f"{self.pmi_vocab_file}, so that words are masked one by one: is it of the same language? Make one of "
                "this text by `examples/build_pmi_vocabulary.py`."
            )


class _UnShuffling:
    """What the objectives of DEPTH share: the numbers of sentences."""

    def complete(self) -> None:
        super().complete()
        available = len(sentence_token_ids(self.tokenizer))
        if self.max_sentences is None:
            self.max_sentences = available
        if not 2 <= self.max_sentences <= available:
            raise ValueError(
                f"`max_sentences` must lie between 2 and {available}, the number of sentence tokens, got "
                f"{self.max_sentences}. For more, raise `num_sentence_tokens`."
            )
        if not 1 <= self.min_sentences <= self.max_sentences:
            raise ValueError(
                f"`min_sentences` must lie between 1 and `max_sentences`={self.max_sentences}, got "
                f"{self.min_sentences}."
            )

    def report(self, statistics: Statistics, split: str) -> None:
        """As [`Objective.report`]; training examples of one sentence each are an error, others a warning."""
        super().report(statistics, split)
        if statistics["one_sentence_examples"] < statistics["examples"]:
            return
        message = (
            f"No example of the {split} data has more than one sentence, so there is nothing to un-shuffle. DEPTH "
            "needs documents of several sentences: check `text_column` (one document per row, not one sentence) and "
            "`sentence_language`, raise `max_source_length`, or train a T5 (`model_type` t5)."
        )
        if split == "train":
            raise ValueError(message)
        logger.warning(message)


@dataclass
class DepthObjective(_PMIMasking, _UnShuffling, Objective):
    """
    DEPTH's objective (arXiv 2405.07788): span corruption and sentence un-shuffling.

    Args:
        tokenizer: with sentence tokens, see [`add_sentence_tokens`].
        max_source_length, max_target_length (`int`): longest encoder input (512) and target (by default as long) in
            tokens, special tokens included. A longer document becomes several examples, cut between sentences.
        mlm_probability (`float`, defaults to 0.3): the noise density, the share of the tokens to mask.
        mean_noise_span_length (`float`, defaults to 3.0): mean length of a masked span in tokens.
        sentence_shuffling_probability (`float`, defaults to 0.5): share of the examples whose sentences are shuffled.
        max_sentences (`int`, *optional*): most sentences of an example; by default the number of sentence tokens.
        min_sentences (`int`, defaults to 1): leave out examples with fewer sentences. One sentence has no order.
        sentence_language (`str`, defaults to `"en"`): of the documents, see [`get_sentence_splitter`].
        pmi_vocab_file (`str`, *optional*): collocations that are masked as a whole, as other words are then, see
            [`read_pmi_vocabulary`] and [`unit_spans`].
        metadata_columns, metadata_probability, max_metadata_length: see [`Objective`].

    Raises:
        `ValueError`: for values out of range, if the tokenizer has no sentence tokens, or if an example can have more
            masked spans than there are sentinels.

    >>> from datasets import Dataset
    >>> from hf_depth import DepthObjective, add_sentence_tokens, train_tokenizer
    >>> documents = Dataset.from_dict({"text": ["The dog barked. The cat slept.", "It rained. We stayed in."]})
    >>> tokenizer = add_sentence_tokens(train_tokenizer(documents["text"], vocab_size=300, allow_fewer=True))
    >>> objective = DepthObjective(tokenizer, max_source_length=64, sentence_shuffling_probability=1.0)
    >>> examples = objective.prepare(documents)
    >>> [int(length) for length in examples[0]["sentence_lengths"]]
    [15, 14]
    >>> batch = objective.collator(seed=0)(list(examples))
    >>> tokenizer.decode(batch["input_ids"][0])
    '<eosen><sent_5> The dog barked<extra_id_74><eosen><sent_6><extra_id_73>The c<extra_id_85>t<extra_id_7><eosen></s>'
    """

    model_type = "depth"
    name = "span_corruption"
    packed_examples = 2

    mlm_probability: float = 0.3
    mean_noise_span_length: float = 3.0
    sentence_shuffling_probability: float = 0.5
    max_sentences: int | None = None
    min_sentences: int = 1
    sentence_language: str = "en"
    pmi_vocab_file: str | None = None

    def preprocessor(self, text_column: str = "text") -> DepthPreprocessor:
        return DepthPreprocessor(
            self.tokenizer,
            max_source_length=self.max_text_length,
            max_target_length=self.max_target_length,
            mlm_probability=self.mlm_probability,
            mean_noise_span_length=self.mean_noise_span_length,
            max_sentences=self.max_sentences,
            text_column=text_column,
            language=self.sentence_language,
            units=self._units,
            metadata=self.metadata_encoder,
        )

    def length_bounds(self) -> LengthBounds:
        return partial(
            depth_length_bounds,
            mlm_probability=self.mlm_probability,
            mean_noise_span_length=self.mean_noise_span_length,
            max_unit_length=self._max_unit_length,
        )

    def make_collator(self, **arguments: Any) -> DataCollatorForDepth:
        return DataCollatorForDepth(
            self.tokenizer,
            mlm_probability=self.mlm_probability,
            mean_noise_span_length=self.mean_noise_span_length,
            sentence_shuffling_probability=self.sentence_shuffling_probability,
            whole_units=self.pmi_vocab_file is not None,
            **arguments,
        )


@dataclass
class DepthPrefixLMObjective(_UnShuffling, Objective):
    """
    Prefix language modelling for DEPTH: a text is cut at a random place between two sentences. The model reads those
    before, in some examples shuffled; it names them in their true order, and writes those that follow.

    Un-shuffling stays a part of the objective: what is to be continued has to be put in order first. Sentences are not
    cut, because a sentence token stands for a whole sentence, which half of one in the input and half in the target
    could not share. Nothing is masked: masking the sentences that are read would be span corruption once more, whose
    spans the continuation would bury under whole sentences.

    Args:
        tokenizer: with sentence tokens, see [`add_sentence_tokens`].
        max_source_length, max_target_length (`int`): longest encoder input (512) and target (by default as long) in
            tokens, special tokens included. Both fit wherever the text is cut.
        sentence_shuffling_probability (`float`, defaults to 0.5): share of the examples whose sentences are shuffled.
        max_sentences (`int`, *optional*): most sentences of an example; by default the number of sentence tokens.
        min_sentences (`int`, defaults to 2): leave out examples with fewer sentences. Less than 2 stands for 2: one to
            read, and one to write.
        sentence_language (`str`, defaults to `"en"`): of the documents, see [`get_sentence_splitter`].

    Raises:
        `ValueError`: for values out of range, or if the tokenizer has no sentence tokens.

    >>> from datasets import Dataset
    >>> from hf_depth import DepthPrefixLMObjective, add_sentence_tokens, train_tokenizer
    >>> documents = Dataset.from_dict({"text": ["The dog barked. The cat slept. It rained."]})
    >>> tokenizer = add_sentence_tokens(train_tokenizer(documents["text"], vocab_size=300, allow_fewer=True))
    >>> objective = DepthPrefixLMObjective(tokenizer, max_source_length=64, sentence_shuffling_probability=1.0)
    >>> batch = objective.collator(seed=0)(list(objective.prepare(documents)))
    >>> tokenizer.decode(batch["input_ids"][0])
    '<eosen><sent_7> The cat slept.<eosen><sent_4> The dog barked.<eosen></s>'
    >>> tokenizer.decode(batch["labels"][0])
    '<sent_4><eosen><sent_7><eosen><sent_0> It rained.<eosen></s>'
    """

    model_type = "depth"
    name = "prefix_lm"

    sentence_shuffling_probability: float = 0.5
    max_sentences: int | None = None
    min_sentences: int = 2
    sentence_language: str = "en"

    def complete(self) -> None:
        self.min_sentences = max(self.min_sentences, 2)
        super().complete()

    def preprocessor(self, text_column: str = "text") -> DepthPreprocessor:
        return DepthPreprocessor(
            self.tokenizer,
            max_source_length=self.max_text_length,
            max_target_length=self.max_target_length,
            mlm_probability=None,
            mean_noise_span_length=None,
            max_sentences=self.max_sentences,
            text_column=text_column,
            language=self.sentence_language,
            metadata=self.metadata_encoder,
        )

    def make_collator(self, **arguments: Any) -> DataCollatorForDepth:
        return DataCollatorForDepth(
            self.tokenizer,
            objective=self.name,
            sentence_shuffling_probability=self.sentence_shuffling_probability,
            **arguments,
        )


@dataclass
class SpanCorruptionObjective(_PMIMasking, Objective):
    """
    T5's span corruption (Raffel et al. 2020, section 3.1.4), the baseline of [`DepthObjective`].

    Args:
        tokenizer: any T5 tokenizer.
        max_source_length, max_target_length (`int`): longest encoder input (512) and target in tokens; the target by
            default as long as the longest input needs.
        mlm_probability (`float`, defaults to 0.15): the noise density, the share of the tokens to mask.
        mean_noise_span_length (`float`, defaults to 3.0): mean length of a masked span in tokens.
        pack_examples (`bool`, defaults to `False`): join documents, so that all inputs have `max_source_length`
            tokens. Not with PMI masking.
        pmi_vocab_file (`str`, *optional*): collocations that are masked as a whole, as other words are then, see
            [`read_pmi_vocabulary`] and [`unit_spans`].
        metadata_columns, metadata_probability, max_metadata_length: see [`Objective`].

    Raises:
        `ValueError`: for values out of range, or if an example can have more masked spans than there are sentinels.

    >>> from hf_depth import SpanCorruptionObjective, train_tokenizer
    >>> tokenizer = train_tokenizer(["The dog barked at the cat."], vocab_size=300, allow_fewer=True)
    >>> objective = SpanCorruptionObjective(tokenizer, max_source_length=512)
    >>> objective.max_target_length  # as for T5
    114
    """

    model_type = "t5"
    name = "span_corruption"

    mlm_probability: float = 0.15
    mean_noise_span_length: float = 3.0
    pack_examples: bool = False
    pmi_vocab_file: str | None = None

    def complete(self) -> None:
        if self.max_target_length is None:
            lengths = t5_input_and_target_lengths(self._raw_length(), *self._noise, self._max_unit_length)
            self.max_target_length = int(lengths[1])

    @property
    def _noise(self) -> tuple[float, float]:
        return self.mlm_probability, self.mean_noise_span_length

    def _raw_length(self) -> int:
        return t5_raw_length(self.max_text_length, *self._noise, self.max_target_length, self._max_unit_length)

    def preprocessor(self, text_column: str = "text") -> SpanCorruptionPreprocessor:
        raw_length = self._raw_length()
        check_enough_sentinels(int(noise_counts(raw_length, *self._noise)[1]), self.tokenizer)
        return SpanCorruptionPreprocessor(
            self.tokenizer,
            raw_length,
            text_column=text_column,
            pack_examples=self.pack_examples,
            units=self._units,
            metadata=self.metadata_encoder,
        )

    def length_bounds(self) -> LengthBounds:
        return partial(
            t5_length_bounds,
            mlm_probability=self.mlm_probability,
            mean_noise_span_length=self.mean_noise_span_length,
            max_unit_length=self._max_unit_length,
        )

    def make_collator(self, **arguments: Any) -> DataCollatorForT5SpanCorruption:
        return DataCollatorForT5SpanCorruption(
            self.tokenizer,
            mlm_probability=self.mlm_probability,
            mean_noise_span_length=self.mean_noise_span_length,
            whole_units=self.pmi_vocab_file is not None,
            **arguments,
        )


@dataclass
class PrefixLMObjective(Objective):
    """
    Prefix language modelling (Raffel et al. 2020, section 3.1.2): a text is cut at a random place; the model reads
    what is before it and writes what follows.

    Args:
        tokenizer: any T5 tokenizer.
        max_source_length, max_target_length (`int`): longest encoder input (512) and target (by default as long).
        pack_examples (`bool`, defaults to `False`): join documents, so that every example is as long as it can be.
        metadata_columns, metadata_probability, max_metadata_length: see [`Objective`].

    >>> from datasets import Dataset
    >>> from hf_depth import PrefixLMObjective, train_tokenizer
    >>> documents = Dataset.from_dict({"text": ["The dog barked at the cat."]})
    >>> tokenizer = train_tokenizer(documents["text"], vocab_size=300, allow_fewer=True)
    >>> objective = PrefixLMObjective(tokenizer, max_source_length=64)
    >>> batch = objective.collator()(list(objective.prepare(documents)))
    >>> tokenizer.decode(batch["input_ids"][0]), tokenizer.decode(batch["labels"][0])
    ('The dog barked at the </s>', 'cat.</s>')
    """

    model_type = "t5"
    name = "prefix_lm"

    pack_examples: bool = False

    def preprocessor(self, text_column: str = "text") -> SpanCorruptionPreprocessor:
        raw_length = min(self.max_text_length, self.max_target_length)
        return SpanCorruptionPreprocessor(
            self.tokenizer, raw_length, text_column, self.pack_examples, metadata=self.metadata_encoder
        )

    def length_bounds(self) -> LengthBounds:
        return prefix_lm_length_bounds

    def make_collator(self, **arguments: Any) -> DataCollatorForT5SpanCorruption:
        return DataCollatorForT5SpanCorruption(
            self.tokenizer,
            objective="prefix_lm",
            **arguments,
        )


@dataclass
class MixtureOfDenoisersObjective(Objective):
    """
    UL2's mixture of denoisers (Tay et al. 2022, arXiv 2205.05131): at each visit an example draws a denoiser, which
    says how much is masked and in what spans, and its input begins with the mode token of this denoiser.

    Args:
        tokenizer: any T5 tokenizer, with the mode tokens, see [`add_mode_tokens`].
        max_source_length, max_target_length (`int`): longest encoder input (512) and target in tokens; the target by
            default as long as the longest input needs. Windows fit into both whatever denoiser is drawn.
        denoisers (`Sequence[Denoiser]`): the mixture, by default that of UL2. Each is a [`Denoiser`], or a mapping or
            YAML text with its arguments.
        mode_tokens (`bool`, defaults to `True`): whether inputs begin with a mode token.
        pack_examples (`bool`, defaults to `False`): join documents, so that every example is as long as it can be.

    Raises:
        `ValueError`: for values out of range, if the tokenizer lacks a mode token, or if an example can have more
            masked spans than there are sentinels.

    >>> from datasets import Dataset
    >>> from hf_depth import MixtureOfDenoisersObjective, add_mode_tokens, train_tokenizer
    >>> documents = Dataset.from_dict({"text": ["The dog barked at the cat."]})
    >>> tokenizer = train_tokenizer(documents["text"], vocab_size=300, allow_fewer=True)
    >>> objective = MixtureOfDenoisersObjective(add_mode_tokens(tokenizer, ["[R]", "[S]", "[X]"]))
    >>> objective.max_target_length
    341
    >>> batch = objective.collator()(list(objective.prepare(documents)))
    >>> tokenizer.decode(batch["input_ids"][0]), tokenizer.decode(batch["labels"][0])
    ('[R] The dog barked at the<extra_id_0></s>', '<extra_id_0> cat.</s>')
    """

    model_type = "t5"
    name = "mixture_of_denoisers"

    denoisers: Sequence[Denoiser] = UL2_DENOISERS
    mode_tokens: bool = True
    pack_examples: bool = False

    def __post_init__(self):
        self.denoisers = parse_denoisers(self.denoisers)
        super().__post_init__()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by their names, without the tokenizer; denoisers as text."""
        return super().settings | {"denoisers": list(map(str, self.denoisers))}

    def complete(self) -> None:
        if self.max_target_length is None:
            self.max_target_length = int(self._bounds(self._raw_length())[1])

    def _bounds(self, num_tokens: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return denoiser_input_and_target_lengths(num_tokens, self.denoisers, self.mode_tokens)

    def _raw_length(self) -> int:
        # Of each denoiser, the input keeps `1 - density` of the tokens or more.
        limit = self.max_text_length / (1 - min(denoiser.density for denoiser in self.denoisers))
        return largest_raw_length(self._bounds, self.max_text_length, self.max_target_length, limit)

    def preprocessor(self, text_column: str = "text") -> SpanCorruptionPreprocessor:
        raw_length = self._raw_length()
        remedy = "Raise the `mean_length` of `denoisers`, lower their `density`"
        check_enough_sentinels(most_spans(raw_length, self.denoisers), self.tokenizer, remedy)
        return SpanCorruptionPreprocessor(
            self.tokenizer, raw_length, text_column, self.pack_examples, metadata=self.metadata_encoder
        )

    def length_bounds(self) -> LengthBounds:
        return partial(denoiser_length_bounds, denoisers=self.denoisers, mode_tokens=self.mode_tokens)

    def make_collator(self, **arguments: Any) -> DataCollatorForT5SpanCorruption:
        return DataCollatorForT5SpanCorruption(
            self.tokenizer,
            objective=self.name,
            denoisers=self.denoisers,
            mode_tokens=self.mode_tokens,
            **arguments,
        )


OBJECTIVES: dict[tuple[str, str], type[Objective]] = {
    (objective.model_type, objective.name): objective
    for objective in (
        DepthObjective,
        DepthPrefixLMObjective,
        SpanCorruptionObjective,
        PrefixLMObjective,
        MixtureOfDenoisersObjective,
    )
}
