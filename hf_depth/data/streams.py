"""
A stream of documents as an endless stream of examples to train on: each example once per pass, in an order of its own
and with new noise at each pass, whatever the number of files, workers and processes; resuming it is exact and cheap.

A consumer is a worker of a data loader (or a process that has none). In every pass the documents are divided among the
consumers, which tokenize nothing but their own; from pass to pass the parts rotate.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from datasets import IterableDataset

from .metadata import column_values
from .preprocessing import DepthPreprocessor, NoExamplesError, SpanCorruptionPreprocessor
from .reading import READING_VERSION

# Documents that are tokenized together; as for `datasets.map` where they are packed, since a batch ends in a short
# example, and fewer otherwise, so that a worker is never busy for long between two examples.
DOCUMENTS_AT_ONCE = 100
PACKED_DOCUMENTS_AT_ONCE = 1000

# Data sets whose shards, read one after the other, are what the whole data set is. Of others (`take`, `skip`,
# `interleave_datasets`, `shuffle`, and `map` or `filter` with indices) the shards together may be other documents.
_DIVISIBLE = {
    "ArrowExamplesIterable",
    "ExamplesIterable",
    "FilteredExamplesIterable",
    "FormattedExamplesIterable",
    "MappedExamplesIterable",
    "RebatchedArrowExamplesIterable",
    "SelectColumnsIterable",
    "VerticallyConcatenatedMultiSourcesExamplesIterable",
}


class Block(NamedTuple):
    """
    Examples that are shuffled among each other, by where they begin.

    Args:
        epoch: passes before this one.
        number: blocks before it in this pass.
        shard, row: place of the shard in the order of this pass, and in the shard the first document that was
            tokenized together with the beginning of the block.
        offset: examples of those documents that belong to the block before.
    """

    epoch: int = 0
    number: int = 0
    shard: int = 0
    row: int = 0
    offset: int = 0


class StreamPosition(NamedTuple):
    """
    How far a consumer has read.

    Args:
        num_examples: examples that it has given so far, in all passes.
        block: the block of the last one.
        place: examples of this block that it has given.
    """

    num_examples: int = 0
    block: Block = Block()
    place: int = 0

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> "StreamPosition":
        """From its numbers one after the other, as [`flatten_position`] gives them after the consumer."""
        num_examples, *block, place = numbers
        return cls(num_examples, Block(*block), place)


class ResumableStream(torch.utils.data.IterableDataset, ABC):
    """
    What streams to train on have in common: they are divided among consumers, and each of these goes on from a
    position. [`ExampleStream`] reads documents, [`MixtureStream`] several such streams.

    By itself it can be read by any data loader, by the workers of which it is divided. [`DepthTrainer`] divides it
    among processes, too, and resumes it.

    Attributes:
        starts (`dict[int, StreamPosition]`): where consumers begin, by their numbers; the others at the beginning.
        position_class: of a position; made from plain numbers by `from_numbers`.
    """

    starts: dict[int, Any]
    position_class: ClassVar[type] = StreamPosition

    @abstractmethod
    def examples_from(self, consumer: int, num_consumers: int, start: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
        """
        Endless examples of one consumer, each with the position after it.

        Args:
            consumer (`int`): its number.
            num_consumers (`int`): how many there are.
            start: the position to go on from.
        """

    @abstractmethod
    def one_pass(self) -> Iterator[dict[str, Any]]:
        """Examples of the first pass to look at, not shuffled."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What a position depends on, beside the documents and the `versions`."""

    @property
    @abstractmethod
    def versions(self) -> dict[str, Any]:
        """Of what makes examples of the documents: a position counts examples, too."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        return self.consumer_examples(
            [0 if worker is None else worker.id], 1 if worker is None else worker.num_workers
        )

    def divided(self, num_consumers: int) -> IterableDataset:
        """
        A data set with one shard for each consumer, which accelerate divides among processes and a data loader among
        its workers. Those that `starts` names begin with an empty example for each that they have given before.

        Args:
            num_consumers (`int`): processes times workers.
        """
        consumers = {"consumer": list(range(num_consumers)), "num_consumers": num_consumers}
        return IterableDataset.from_generator(self.consumer_examples, gen_kwargs=consumers)

    def consumer_examples(self, consumer: Sequence[int], num_consumers: int) -> Iterator[dict[str, Any]]:
        """
        The examples of one consumer, with their positions in `stream_position`.

        Args:
            consumer (`Sequence[int]`): its number, alone in a list, as `datasets` divides the arguments of generators.
            num_consumers (`int`): how many there are.
        """
        (consumer,) = consumer
        start = self.starts.get(consumer, self.position_class())
        for _ in range(start.num_examples):
            yield {}
        for position, example in self.examples_from(consumer, num_consumers, start):
            yield {**example, "stream_position": (consumer, position)}


@dataclass
class ExampleStream(ResumableStream):
    """
    Endless examples of a stream of documents, as [`Objective.prepare_splits`] makes them to train on.

    Beside the columns of the preprocessor, an example has `stream_epoch` (`int`: the passes before this one, from
    which the collators draw its noise) and `stream_position` ([`StreamPosition`]).

    Args:
        documents (`IterableDataset`): one document per row.
        preprocessor ([`SpanCorruptionPreprocessor`] or [`DepthPreprocessor`]): makes examples of documents.
        min_sentences (`int`, defaults to 1): leave out examples with fewer sentences.
        seed (`int`, defaults to 42): of the order.
        buffer_size (`int`, defaults to 10_000): that many consecutive examples of a consumer are shuffled.
        whole_shards (`bool`, defaults to `False`): where there are enough of them, each consumer reads shards of its
            own, so that none is downloaded by all. By default each reads all shards and takes its share of their
            documents, which is even also if the shards are not.

    Raises:
        `ValueError`: if the documents are repeated already, or `buffer_size` is below 1.

    >>> from datasets import Dataset
    >>> from hf_depth.data.preprocessing import SpanCorruptionPreprocessor
    >>> from hf_depth.data.vocabulary import train_tokenizer
    >>> documents = Dataset.from_dict({"text": ["The dog barked.", "The cat slept.", "It rained."]})
    >>> tokenizer = train_tokenizer(documents["text"], vocab_size=300, allow_fewer=True)
    >>> stream = ExampleStream(documents.to_iterable_dataset(), SpanCorruptionPreprocessor(tokenizer, raw_length=100))
    >>> [(tokenizer.decode(example["input_ids"]), example["stream_epoch"]) for example in islice(stream, 4)]
    [('It rained.', 0), ('The cat slept.', 0), ('The dog barked.', 0), ('The dog barked.', 1)]
    """

    documents: IterableDataset
    preprocessor: SpanCorruptionPreprocessor | DepthPreprocessor
    min_sentences: int = 1
    seed: int = 42
    buffer_size: int = 10_000
    whole_shards: bool = False
    starts: dict[int, StreamPosition] = field(default_factory=dict, init=False)

    def __post_init__(self):
        if self.buffer_size < 1:
            raise ValueError(f"`shuffle_buffer_size` must be at least 1, got {self.buffer_size}: 1 keeps the order.")
        kinds = _kinds(self.documents.state_dict())
        if "RepeatExamplesIterable" in kinds:
            raise ValueError("The documents to train on are repeated already: leave out `.repeat(...)`, passes are.")
        is_divisible = kinds <= _DIVISIBLE and not _has_indices(self.documents._ex_iterable)
        self.num_shards = self.documents.num_shards if is_divisible else 1

    def one_pass(self) -> Iterator[dict[str, Any]]:
        """
        The examples of the first pass, not shuffled.

        Raises:
            `NoExamplesError`: if there is none.
        """
        examples = (example for _, _, rows in self._batches(0, 1, Block()) for example in self._examples(rows))
        first = next(examples, None)
        if first is None:
            raise NoExamplesError(self._nothing_usable())
        yield first
        yield from examples

    def examples_from(
        self, consumer: int, num_consumers: int, start: StreamPosition
    ) -> Iterator[tuple[StreamPosition, dict[str, Any]]]:
        """
        Endless examples of one consumer, each with the position after it.

        Args:
            consumer (`int`): its number.
            num_consumers (`int`): how many there are.
            start ([`StreamPosition`]): the position to go on from.
        """
        num_examples = start.num_examples
        for block, place, example in self._shuffled(consumer, num_consumers, start):
            num_examples += 1
            yield StreamPosition(num_examples, block, place + 1), {**example, "stream_epoch": block.epoch}

    def _shuffled(
        self, consumer: int, num_consumers: int, start: StreamPosition
    ) -> Iterator[tuple[Block, int, dict[str, Any]]]:
        blocks = groupby(self._in_order(consumer, num_consumers, start.block), key=itemgetter(0))
        block, members = next(blocks)
        examples = [example for _, example in members]
        first = start.place
        while True:
            following, members = next(blocks)
            following_examples = []
            order = self._random(block.epoch, block.number, consumer).permutation(len(examples))
            for place, index in islice(enumerate(order), first, None):
                yield block, place, examples[index]
                # One is prepared for each that is given: there is never a long wait for a whole block.
                following_examples.extend(example for _, example in islice(members, 1))
            following_examples.extend(example for _, example in members)
            block, examples, first = following, following_examples, 0

    def _in_order(self, consumer: int, num_consumers: int, block: Block) -> Iterator[tuple[Block, dict[str, Any]]]:
        """Endless examples with their blocks; the first is the first one of `block`."""
        num_empty_passes = 0
        while num_empty_passes <= num_consumers:  # in as many passes, every document comes to every consumer
            num_empty_passes += 1
            length, offset = 0, block.offset
            for shard, row, rows in self._batches(consumer, num_consumers, block):
                examples = self._examples(rows)
                for number, example in islice(enumerate(examples), offset, None):
                    if length == self.buffer_size:
                        block, length = Block(block.epoch, block.number + 1, shard, row, number), 0
                    length += 1
                    num_empty_passes = 0
                    yield block, example
                offset = 0
            block = Block(block.epoch + 1)
        raise NoExamplesError(self._nothing_usable())

    def _batches(self, consumer: int, num_consumers: int, block: Block) -> Iterator[tuple[int, int, list[tuple]]]:
        """The consumer's documents of a pass in batches, each with shard and row of its first document."""
        joins = getattr(self.preprocessor, "joins_documents", False)
        size = PACKED_DOCUMENTS_AT_ONCE if joins else DOCUMENTS_AT_ONCE
        documents = self._documents(consumer, num_consumers, block)
        while batch := list(islice(documents, size)):
            shard, row, _ = batch[0]
            yield shard, row, [document for _, _, document in batch]

    def _documents(self, consumer: int, num_consumers: int, block: Block) -> Iterator[tuple[int, int, tuple]]:
        owns_shards = self.whole_shards and self.num_shards >= num_consumers
        order = self._random(block.epoch).permutation(self.num_shards).tolist()
        for place in range(block.shard, self.num_shards):
            shard = order[place]
            if owns_shards and (shard + block.epoch) % num_consumers != consumer:
                continue
            first = block.row if place == block.shard else 0
            for row, document in islice(enumerate(self._read(shard)), first, None):
                if owns_shards or (shard + row + block.epoch) % num_consumers == consumer:
                    yield place, row, document

    def _read(self, shard: int) -> Iterator[tuple]:
        """The documents of a shard: of each, what the preprocessor reads of it."""
        documents = self.documents if self.num_shards == 1 else self.documents.shard(self.num_shards, shard)
        # `iter(documents)` would divide them among the workers of a data loader once more.
        for batch in documents.iter(DOCUMENTS_AT_ONCE):
            yield from column_values(batch, self.preprocessor.input_columns)

    def _examples(self, documents: list[tuple]) -> list[dict[str, Any]]:
        rows = zip(*documents, strict=True)
        columns = self.preprocessor(dict(zip(self.preprocessor.input_columns, map(list, rows), strict=True)))
        examples = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        return [
            example
            for example in examples
            if len(example["input_ids"])
            and (self.min_sentences == 1 or len(example["sentence_lengths"]) >= self.min_sentences)
        ]

    def _random(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self.seed % 2**64, *numbers])

    def _nothing_usable(self) -> str:
        wanted = f"{self.min_sentences} sentences (`min_sentences`)" if self.min_sentences > 1 else "enough text"
        return f"The stream to train on has no document with {wanted} for an example."

    @property
    def settings(self) -> dict[str, Any]:
        names = ("seed", "buffer_size", "min_sentences", "whole_shards", "num_shards")
        return {name: getattr(self, name) for name in names}

    @property
    def versions(self) -> dict[str, Any]:
        versions = getattr(self.preprocessor, "versions", None)  # examples of shards are prepared already
        return {} if versions is None else {"readers": READING_VERSION, **versions}


@dataclass
class StreamCollator:
    """
    Passes examples of a [`ResumableStream`] on to a collator, and `stream_position` of the last one to the batch. A
    batch of examples that were given before a run was resumed is empty.

    Args:
        data_collator (`Callable`): that of the objective.
    """

    data_collator: Callable[[list[Any]], dict[str, Any]]

    def __call__(self, examples: Sequence[Mapping]) -> dict[str, Any]:
        if not examples[-1]:
            return {}
        consumer, position = examples[-1]["stream_position"]
        plain = [{name: example[name] for name in example if name != "stream_position"} for example in examples]
        # Plain numbers in a tuple, which no part of the data loader moves to a device.
        return {**self.data_collator(plain), "stream_position": flatten_position(consumer, position)}


def flatten_position(consumer: int, position: tuple) -> tuple[int, ...]:
    """
    A consumer and its position as plain numbers.

    >>> flatten_position(3, StreamPosition(num_examples=20, block=Block(epoch=1, row=7, offset=2), place=4))
    (3, 20, 1, 0, 0, 7, 2, 4)
    """
    return consumer, *_numbers(position)


def _numbers(position: tuple | int) -> Iterator[int]:
    if isinstance(position, int):
        yield position
    else:
        for part in position:
            yield from _numbers(part)


def unflatten_position(values: Sequence[int], position_class: type = StreamPosition) -> tuple[int, Any]:
    """
    The consumer and its position from the numbers of [`flatten_position`].

    Args:
        values (`Sequence[int]`): the numbers.
        position_class: that of the stream.

    >>> unflatten_position((3, 20, 1, 0, 0, 7, 2, 4))
    (3, StreamPosition(num_examples=20, block=Block(epoch=1, number=0, shard=0, row=7, offset=2), place=4))
    """
    consumer, *numbers = values
    return consumer, position_class.from_numbers(numbers)


def _kinds(state: Any) -> set[str]:
    """The classes that a data set is made of, from its `state_dict()`."""
    if isinstance(state, Mapping):
        kinds = {state["type"]} if "type" in state else set()
        return kinds.union(*map(_kinds, state.values()))
    return set().union(*map(_kinds, state)) if isinstance(state, list) else set()


def _has_indices(iterable: Any) -> bool:
    """Whether a function of `map` or `filter` takes the number of a row, which is another one in a shard."""
    inner = [getattr(iterable, "ex_iterable", None), *getattr(iterable, "ex_iterables", ())]
    return getattr(iterable, "with_indices", False) or any(_has_indices(part) for part in inner if part is not None)
