"""
[`ExampleStream`], which turns a stream of documents into an endless stream of training examples.

A pass gives each example once, with a new order and new noise. The order follows from the seed: a resumed run reads
what it has read again, and skips it.

A consumer is a worker of a data loader, or a process without workers. The documents of each pass are divided among the
consumers, and each tokenizes only its own. The parts rotate from pass to pass.

`datasets` reads the files. Order and division are made here, for two reasons. Streams of `datasets` repeat a pass in
the same order. They are divided after `map`, so each process would tokenize all documents.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, groupby, islice
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from datasets import IterableDataset

from ..errors import UserError
from .columns import column_values, readable_documents
from .preprocessing import Preprocessor, no_examples
from .reading import READING_VERSION

# The number of documents that are tokenized together. A small number keeps the wait between two examples short. Where
# documents are joined, the number is that of `datasets.map`, as every batch ends in a short example.
DOCUMENTS_AT_ONCE = 100
JOINED_DOCUMENTS_AT_ONCE = 1000

# The files of these data sets give the same documents in any order and for any consumer. Others may give other
# documents: `take`, `skip`, `interleave_datasets`, `shuffle`.
_DIVISIBLE = frozenset(
    "ArrowExamplesIterable ExamplesIterable FilteredExamplesIterable FormattedExamplesIterable MappedExamplesIterable "
    "RebatchedArrowExamplesIterable SelectColumnsIterable VerticallyConcatenatedMultiSourcesExamplesIterable".split()
)


class TrainingStream(torch.utils.data.IterableDataset):
    """
    The base class of the endless streams to train on: [`ExampleStream`] of documents, [`MixtureStream`] of several
    streams. Any data loader divides one among its workers, and [`DepthTrainer`] also among processes.

    A subclass has three members. `consumer_examples(consumer, num_consumers)` gives the endless examples of one
    consumer, whose number is the only item of `consumer`. `one_pass()` gives those of the first pass, not shuffled.
    `versions` are those of what makes examples from documents.
    """

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        return self.consumer_examples([worker.id], worker.num_workers) if worker else self.consumer_examples([0], 1)

    def divided(self, num_consumers: int) -> IterableDataset:
        """
        Return a data set with a shard for each consumer: accelerate divides them among processes, a data loader among
        its workers. `num_consumers` is the number of processes times the number of workers of each.
        """
        # `datasets` divides lists among the arguments of generators.
        consumers = {"consumer": list(range(num_consumers)), "num_consumers": num_consumers}
        return IterableDataset.from_generator(self.consumer_examples, gen_kwargs=consumers)


@dataclass
class ExampleStream(TrainingStream):
    """
    An endless stream of training examples from a stream of documents, made by [`Objective.prepare_splits`].

    An example has the columns of the preprocessor, and `stream_epoch`, the number of passes before this one; collators
    draw the noise by it. `buffer_size` consecutive examples of a consumer are shuffled together. Each consumer reads
    all files and takes an equal share of their documents. With `whole_shards`, it reads files of its own, if there are
    enough, and downloads no others. `ValueError` if the documents are repeated by `.repeat(...)`.
    """

    documents: IterableDataset
    preprocessor: Preprocessor
    seed: int = 42
    buffer_size: int = 10_000
    whole_shards: bool = False

    def __post_init__(self):
        text_column, *metadata_columns = self.preprocessor.input_columns
        self.documents, _ = readable_documents(self.documents, text_column, metadata_columns)
        kinds = set(re.findall(r"'type': '(\w+)'", str(self.documents.state_dict())))
        if "RepeatExamplesIterable" in kinds:
            raise UserError("The documents to train on are repeated already: leave out `.repeat(...)`.")
        self.num_shards = self.documents.num_shards if kinds <= _DIVISIBLE else 1

    @property
    def versions(self) -> dict[str, Any]:
        return {"readers": READING_VERSION, **self.preprocessor.versions}

    def one_pass(self) -> Iterator[dict[str, Any]]:
        """Yield the examples of the first pass, not shuffled."""
        examples = self._in_order(0, 1, epoch=0)
        first = next(examples, None)
        if first is None:
            raise no_examples("the documents to train on", self.preprocessor)
        return chain([first], examples)

    def consumer_examples(self, consumer: Sequence[int], num_consumers: int) -> Iterator[dict[str, Any]]:
        (consumer,) = consumer
        placed = (
            ((epoch, place // self.buffer_size), example)
            for epoch in count()
            for place, example in enumerate(self._in_order(consumer, num_consumers, epoch))
        )
        blocks = groupby(placed, key=itemgetter(0))  # by their pass and the block of those that are shuffled together
        block, members = next(blocks)
        examples = [example for _, example in members]
        while True:
            following, members = next(blocks)
            following_examples = []
            for index in self._random(*block, consumer).permutation(len(examples)):
                yield {**examples[index], "stream_epoch": block[0]}
                # Prepare one example of the next block for each that is given, so that there is never a long wait.
                following_examples.extend(example for _, example in islice(members, 1))
            following_examples.extend(example for _, example in members)
            block, examples = following, following_examples

    def _in_order(self, consumer: int, num_consumers: int, epoch: int) -> Iterator[dict[str, Any]]:
        """Yield the examples of the consumer in a pass, in the order of the documents."""
        documents, part, num_parts = self.documents, (consumer + epoch) % num_consumers, num_consumers
        if self.whole_shards and self.num_shards >= max(2, num_consumers):
            documents, part, num_parts = documents.shard(num_consumers, part), 0, 1
        if self.num_shards > 1 and documents.num_shards > 1:
            # Shuffle the files and read some of them in turn. With a smaller buffer, `datasets` reads row by row.
            seed = int(self._random(epoch).integers(2**31))
            documents = documents.shuffle(seed=seed, buffer_size=DOCUMENTS_AT_ONCE)
        joins, names = self.preprocessor.joins_documents, self.preprocessor.input_columns
        size = max(JOINED_DOCUMENTS_AT_ONCE if joins else DOCUMENTS_AT_ONCE, DOCUMENTS_AT_ONCE * num_parts)
        # `iter(documents)` would divide them again among the workers of a data loader.
        for batch in documents.iter(size):
            rows = list(column_values(batch, names))[part::num_parts]
            if rows:
                columns = self.preprocessor(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
                for values in zip(*columns.values(), strict=True):
                    yield dict(zip(columns, values, strict=True))

    def _random(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self.seed % 2**64, *numbers])
