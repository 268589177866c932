"""
[`ExampleStream`], which turns a stream of documents into an endless stream of training examples.

A pass gives each example once, with a new order and new noise. A resumed run continues exactly where it was.

A consumer is a worker of a data loader, or a process without workers. The documents of each pass are divided among the
consumers, and each tokenizes only its own. The parts rotate from pass to pass.

`datasets` reads the files and orders them. The rest is made here, for three reasons. Streams of `datasets` repeat a
pass in the same order. They lose the buffer of `shuffle` when they are resumed. They are divided after `map`, so each
process would tokenize all documents.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import IterableDataset

from ..errors import UserError
from .metadata import column_values
from .preprocessing import DepthPreprocessor, NoExamplesError, SpanCorruptionPreprocessor
from .reading import READING_VERSION

# The number of documents that are tokenized together. A small number keeps the wait between two examples short. Where
# documents are joined, the number is that of `datasets.map`, as every batch ends in a short example.
DOCUMENTS_AT_ONCE = 100
JOINED_DOCUMENTS_AT_ONCE = 1000

# The files of these data sets give the same documents in any order and for any consumer. Others may give other
# documents: `take`, `skip`, `interleave_datasets`, `shuffle`.
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

Position = tuple[int, ...]  # how far a consumer has read; the first number counts the examples that it has given


class Block(NamedTuple):
    """The beginning of a block, which is a series of examples that are shuffled together."""

    epoch: int = 0  # passes before this one
    number: int = 0  # blocks before this one in the pass
    batch: int = 0  # batches of documents in the pass before the one in which the block begins
    offset: int = 0  # examples of that batch that belong to the previous block


# The number of examples given, the block of the last one, and how many examples of this block were given.
FIRST_POSITION: Position = (0, *Block(), 0)


class ResumableStream(torch.utils.data.IterableDataset, ABC):
    """
    The base class of training streams, which are divided among consumers and can be resumed.

    [`ExampleStream`] reads documents, [`MixtureStream`] reads several streams. Any data loader can read a stream and
    divides it among its workers. [`DepthTrainer`] also divides it among processes and resumes it.

    Attributes:
        starts (`dict[int, Position]`): the number of a consumer -> its first position. The others start from the
            beginning.
    """

    starts: dict[int, Position]

    @abstractmethod
    def examples_from(
        self, consumer: int, num_consumers: int, start: Position | None
    ) -> Iterator[tuple[Position, dict[str, Any]]]:
        """Yield endless examples of one consumer from a position on, each with the position after it."""

    @abstractmethod
    def one_pass(self) -> Iterator[dict[str, Any]]:
        """Yield the examples of the first pass, not shuffled."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the settings that a position depends on, besides the documents and `versions`."""

    @property
    @abstractmethod
    def versions(self) -> dict[str, Any]:
        """Return the versions of what makes examples from documents, as a position counts examples."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        return self.consumer_examples(
            [0 if worker is None else worker.id], 1 if worker is None else worker.num_workers
        )

    def divided(self, num_consumers: int) -> IterableDataset:
        """
        Return a data set with one shard for each consumer.

        accelerate divides the shards among processes, and a data loader among its workers. A consumer in `starts`
        begins with an empty example for each one that it has given before.

        Args:
            num_consumers (`int`): the number of processes times the number of workers of each.
        """
        consumers = {"consumer": list(range(num_consumers)), "num_consumers": num_consumers}
        return IterableDataset.from_generator(self.consumer_examples, gen_kwargs=consumers)

    def consumer_examples(self, consumer: Sequence[int], num_consumers: int) -> Iterator[dict[str, Any]]:
        """Yield the examples of one consumer, with its number and its position in `stream_position`."""
        (consumer,) = consumer  # as `datasets` divides lists
        start = self.starts.get(consumer)
        for _ in range(start[0] if start else 0):
            yield {}
        for position, example in self.examples_from(consumer, num_consumers, start):
            yield {**example, "stream_position": (consumer, *position)}


@dataclass
class ExampleStream(ResumableStream):
    """
    An endless stream of training examples from a stream of documents, made by [`Objective.prepare_splits`].

    An example has the columns of the preprocessor and two more. `stream_epoch` (`int`) is the number of passes before
    this one; collators draw the noise by it. `stream_position` (`tuple[int, ...]`) is the consumer and its position.

    Args:
        documents (`IterableDataset`): one document per row.
        preprocessor ([`SpanCorruptionPreprocessor`] or [`DepthPreprocessor`]): makes examples from documents.
        min_sentences (`int`, defaults to 1): leave out examples with fewer sentences.
        seed (`int`, defaults to 42): the seed of the order.
        buffer_size (`int`, defaults to 10_000): how many consecutive examples of a consumer are shuffled together.
        whole_shards (`bool`, defaults to `False`): if there are enough files, each consumer reads files of its own and
            downloads no others. By default, each reads all files and takes an equal share of their documents.

    Raises:
        `ValueError`: if the documents are repeated by `.repeat(...)`.

    >>> from datasets import Dataset
    >>> from hf_depth.data.preprocessing import SpanCorruptionPreprocessor
    >>> from hf_depth import train_tokenizer
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
        kinds = set(re.findall(r"'type': '(\w+)'", str(self.documents.state_dict())))
        if "RepeatExamplesIterable" in kinds:
            raise UserError("The documents to train on are repeated already: leave out `.repeat(...)`.")
        self.num_shards = self.documents.num_shards if kinds <= _DIVISIBLE else 1

    def one_pass(self) -> Iterator[dict[str, Any]]:
        """Yield the examples of the first pass, not shuffled."""
        examples = (example for _, batch in self._batches(0, 1, Block()) for example in batch)
        first = next(examples, None)
        if first is None:
            wanted = f"{self.min_sentences} sentences (`min_sentences`)" if self.min_sentences > 1 else "enough text"
            raise NoExamplesError(f"The stream to train on has no document with {wanted} for an example.")
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
                # Prepare one example of the next block for each that is given, so that there is never a long wait.
                following_examples.extend(example for _, example in islice(members, 1))
            following_examples.extend(example for _, example in members)
            block, examples, first = following, following_examples, 0

    def _in_order(self, consumer: int, num_consumers: int, block: Block) -> Iterator[tuple[Block, dict[str, Any]]]:
        """Yield endless examples with their blocks, from the beginning of `block`."""
        while True:
            length, offset = 0, block.offset
            for batch, examples in self._batches(consumer, num_consumers, block):
                for place, example in islice(enumerate(examples), offset, None):
                    if length == self.buffer_size:
                        block, length = Block(block.epoch, block.number + 1, batch, place), 0
                    length += 1
                    yield block, example
                offset = 0
            block = Block(block.epoch + 1)

    def _batches(self, consumer: int, num_consumers: int, first: Block) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yield numbered batches of documents of the consumer as examples, from a block to the end of its pass."""
        documents, part, num_parts = self.documents, (consumer + first.epoch) % num_consumers, num_consumers
        if self.whole_shards and self.num_shards >= max(2, num_consumers):
            documents, part, num_parts = documents.shard(num_consumers, part), 0, 1
        if self.num_shards > 1 and documents.num_shards > 1:
            # Shuffle the files and read some of them in turn. With a smaller buffer, `datasets` reads row by row.
            seed = int(self._random(first.epoch).integers(2**31))
            documents = documents.shuffle(seed=seed, buffer_size=DOCUMENTS_AT_ONCE)
        joins = getattr(self.preprocessor, "joins_documents", False)
        size = max(JOINED_DOCUMENTS_AT_ONCE if joins else DOCUMENTS_AT_ONCE, DOCUMENTS_AT_ONCE * num_parts)
        # `iter(documents)` would divide them again among the workers of a data loader.
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

    @property
    def settings(self) -> dict[str, Any]:
        names = ("seed", "buffer_size", "min_sentences", "whole_shards")
        return {name: getattr(self, name) for name in names} | {"num_shards": self.num_shards}

    @property
    def versions(self) -> dict[str, Any]:
        return {"readers": READING_VERSION, **getattr(self.preprocessor, "versions", {})}


@dataclass
class StreamCollator:
    """
    The collator of an objective for a [`ResumableStream`]. It adds the `stream_position` of the last example to the
    batch. A batch of examples that were given before a run was resumed is empty.
    """

    data_collator: Callable[[list[Any]], dict[str, Any]]

    def __call__(self, examples: Sequence[Mapping]) -> dict[str, Any]:
        if not examples[-1]:
            return {}
        plain = [{name: example[name] for name in example if name != "stream_position"} for example in examples]
        # A tuple of numbers, which the data loader does not move to a device.
        return {**self.data_collator(plain), "stream_position": examples[-1]["stream_position"]}
