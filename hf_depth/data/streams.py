"""
A stream of documents as an endless stream of examples to train on: each example once per pass, in an order of its own
and with new noise at each pass, whatever the number of files, workers and processes; resuming it is exact.

A consumer is a worker of a data loader (or a process that has none). In every pass the documents are divided among the
consumers, which tokenize nothing but their own; from pass to pass the parts rotate.

Reading, and the order of the files, are those of `datasets`. The rest is made here, since its streams repeat a pass in
the same order, lose what is in the buffer of `shuffle` when they are resumed, and are divided after `map`, so that
each process would tokenize the documents of all.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import IterableDataset

from .metadata import column_values
from .preprocessing import DepthPreprocessor, NoExamplesError, SpanCorruptionPreprocessor
from .reading import READING_VERSION

# Documents that are tokenized together; as for `datasets.map` where they are joined, since a batch ends in a short
# example, and fewer otherwise, so that a worker is never busy for long between two examples.
DOCUMENTS_AT_ONCE = 100
JOINED_DOCUMENTS_AT_ONCE = 1000

Position = tuple[int, ...]  # how far a consumer has read; its first number are the examples that it has given


class Block(NamedTuple):
    """
    Examples that are shuffled among each other, by where they begin.

    Args:
        epoch: passes before this one.
        number: blocks before it in this pass.
        batch: batches of documents that were read in this pass before the one in which the block begins.
        offset: examples of that batch that belong to the block before.
    """

    epoch: int = 0
    number: int = 0
    batch: int = 0
    offset: int = 0


# All examples given, the block of the last one, and how many of this block were given.
FIRST_POSITION: Position = (0, *Block(), 0)


class ResumableStream(torch.utils.data.IterableDataset, ABC):
    """
    What streams to train on have in common: they are divided among consumers, and each of these goes on from a
    position. [`ExampleStream`] reads documents, [`MixtureStream`] several such streams.

    By itself it can be read by any data loader, by the workers of which it is divided. [`DepthTrainer`] divides it
    among processes, too, and resumes it.

    Attributes:
        starts (`dict[int, Position]`): where consumers begin, by their numbers; the others at the beginning.
    """

    starts: dict[int, Position]

    @abstractmethod
    def examples_from(
        self, consumer: int, num_consumers: int, start: Position | None
    ) -> Iterator[tuple[Position, dict[str, Any]]]:
        """
        Endless examples of one consumer, each with the position after it.

        Args:
            consumer (`int`): its number.
            num_consumers (`int`): how many there are.
            start (`Position`): the position to go on from, `None` at the beginning.
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
        The examples of one consumer, with its number and its position in `stream_position`.

        Args:
            consumer (`Sequence[int]`): its number, alone in a list, as `datasets` divides the arguments of generators.
            num_consumers (`int`): how many there are.
        """
        (consumer,) = consumer
        start = self.starts.get(consumer)
        for _ in range(start[0] if start else 0):
            yield {}
        for position, example in self.examples_from(consumer, num_consumers, start):
            yield {**example, "stream_position": (consumer, *position)}


@dataclass
class ExampleStream(ResumableStream):
    """
    Endless examples of a stream of documents, as [`Objective.prepare_splits`] makes them to train on.

    Beside the columns of the preprocessor, an example has `stream_epoch` (`int`: the passes before this one, from
    which the collators draw its noise) and `stream_position` (`tuple[int, ...]`: its consumer and how far that is).

    Args:
        documents (`IterableDataset`): one document per row.
        preprocessor ([`SpanCorruptionPreprocessor`] or [`DepthPreprocessor`]): makes examples of documents.
        min_sentences (`int`, defaults to 1): leave out examples with fewer sentences.
        seed (`int`, defaults to 42): of the order.
        buffer_size (`int`, defaults to 10_000): that many consecutive examples of a consumer are shuffled.
        whole_shards (`bool`, defaults to `False`): where there are enough files, each consumer reads files of its own,
            so that none is downloaded by all. By default each reads all files and takes its share of their documents,
            which is even also if the files are not.

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
    starts: dict[int, Position] = field(default_factory=dict, init=False)

    def __post_init__(self):
        if self.buffer_size < 1:
            raise ValueError(f"`shuffle_buffer_size` must be at least 1, got {self.buffer_size}: 1 keeps the order.")
        if "RepeatExamplesIterable" in str(self.documents.state_dict()):
            raise ValueError("The documents to train on are repeated already: leave out `.repeat(...)`, passes are.")

    def one_pass(self) -> Iterator[dict[str, Any]]:
        """
        The examples of the first pass, not shuffled.

        Raises:
            `NoExamplesError`: if there is none.
        """
        examples = (example for _, batch in self._batches(0, 1, Block()) for example in batch)
        first = next(examples, None)
        if first is None:
            raise NoExamplesError(self._nothing_usable())
        yield first
        yield from examples

    def examples_from(
        self, consumer: int, num_consumers: int, start: Position | None = None
    ) -> Iterator[tuple[Position, dict[str, Any]]]:
        """See [`ResumableStream.examples_from`]."""
        number, *numbers, first = start or FIRST_POSITION
        for block, place, example in self._shuffled(consumer, num_consumers, Block(*numbers), first):
            number += 1
            yield (number, *block, place + 1), {**example, "stream_epoch": block.epoch}

    def _shuffled(
        self, consumer: int, num_consumers: int, block: Block, first: int
    ) -> Iterator[tuple[Block, int, dict[str, Any]]]:
        blocks = groupby(self._in_order(consumer, num_consumers, block), key=itemgetter(0))
        block, members = next(blocks)
        examples = [example for _, example in members]
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
            for batch, examples in self._batches(consumer, num_consumers, block):
                for place, example in islice(enumerate(examples), offset, None):
                    if length == self.buffer_size:
                        block, length = Block(block.epoch, block.number + 1, batch, place), 0
                    length += 1
                    num_empty_passes = 0
                    yield block, example
                offset = 0
            block = Block(block.epoch + 1)
        raise NoExamplesError(self._nothing_usable())

    def _batches(self, consumer: int, num_consumers: int, first: Block) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """From a block on, the examples of the consumer's documents in a pass, by numbered batches of documents."""
        documents, part, num_parts = self.documents, (consumer + first.epoch) % num_consumers, num_consumers
        if self.whole_shards and documents.num_shards >= num_consumers:
            documents, part, num_parts = documents.shard(num_consumers, part), 0, 1
        if documents.num_shards > 1:
            # The files in another order, some of them in turn. (With less of a buffer `datasets` reads row by row.)
            seed = int(self._random(first.epoch).integers(2**31))
            documents = documents.shuffle(seed=seed, buffer_size=DOCUMENTS_AT_ONCE)
        joins = getattr(self.preprocessor, "joins_documents", False)
        size = max(JOINED_DOCUMENTS_AT_ONCE if joins else DOCUMENTS_AT_ONCE, DOCUMENTS_AT_ONCE * num_parts)
        # `iter(documents)` would divide them among the workers of a data loader once more.
        for number, batch in islice(enumerate(documents.iter(size)), first.batch, None):
            rows = list(column_values(batch, self.preprocessor.input_columns))[part::num_parts]
            yield number, self._examples(rows) if rows else []

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
        names = ("seed", "buffer_size", "min_sentences", "whole_shards")
        return {name: getattr(self, name) for name in names} | {"num_shards": self.documents.num_shards}

    @property
    def versions(self) -> dict[str, Any]:
        return {"readers": READING_VERSION, **getattr(self.preprocessor, "versions", {})}


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
        plain = [{name: example[name] for name in example if name != "stream_position"} for example in examples]
        # Plain numbers in a tuple, which no part of the data loader moves to a device.
        return {**self.data_collator(plain), "stream_position": examples[-1]["stream_position"]}
