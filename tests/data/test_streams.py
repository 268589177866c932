from collections import Counter
from dataclasses import dataclass
from itertools import islice

import numpy as np
from absl.testing import parameterized
from datasets import Dataset, IterableDataset, concatenate_datasets, interleave_datasets
from torch.utils.data import DataLoader

from hf_depth.data.preprocessing import NoExamplesError
from hf_depth.data.streams import ExampleStream, StreamCollator

FILES = ([7, 20, 33], [5, 1, 9, 30, 2, 0, 8, 100])


@dataclass
class Numbers:
    """A preprocessor that makes `copies` examples of a document; an example is the number that its text is."""

    input_columns: tuple[str, ...] = ("text",)
    copies: int = 1

    def __call__(self, batch):
        numbers = [np.array([int(text)]) for text in batch["text"] for _ in range(self.copies) if text]
        return {"input_ids": numbers, "num_cut_tokens": [0] * len(numbers)}


class Sentences(Numbers):
    """A preprocessor of texts of one to three sentences."""

    def __call__(self, batch):
        examples = super().__call__(batch)
        return examples | {"sentence_lengths": [[1] * (1 + int(ids[0]) % 3) for ids in examples["input_ids"]]}


def documents(*sizes):
    """A stream of files of so many documents, which are numbered from 0."""
    bounds = np.cumsum([0, *sizes]).tolist()
    files = [
        Dataset.from_dict({"text": [str(number) for number in range(first, last)]}).to_iterable_dataset()
        for first, last in zip(bounds, bounds[1:], strict=False)
        if last > first
    ]
    return concatenate_datasets(files)


def numbers(examples):
    return [int(example["input_ids"][0]) for example in examples]


class PassTest(parameterized.TestCase):
    @parameterized.product(files=FILES, num_processes=(1, 2), num_workers=(0, 2))
    def test_every_example_comes_once_per_pass(self, files, num_processes, num_workers):
        stream = ExampleStream(documents(*files), Numbers(), buffer_size=16)
        divided = stream.divided(num_processes * max(1, num_workers))
        counts = {0: Counter(), 1: Counter()}
        for rank in range(num_processes):
            # As accelerate divides it among processes.
            shard = divided.shard(num_shards=num_processes, index=rank) if num_processes > 1 else divided
            self.assertEqual(shard.num_shards, max(1, num_workers))
            unfinished = set(range(max(1, num_workers)))
            for number, batch in enumerate(DataLoader(shard, 4, num_workers=num_workers, collate_fn=list)):
                for example in batch:
                    counts.setdefault(example["stream_epoch"], Counter())[int(example["input_ids"][0])] += 1
                if batch[-1]["stream_epoch"] > 1:
                    unfinished.discard(number % max(1, num_workers))
                if not unfinished:
                    break
        expected = Counter(range(sum(files)))
        self.assertEqual(counts[0], expected)
        self.assertEqual(counts[1], expected)

    @parameterized.parameters(1, 7, 10_000)
    def test_the_order_is_new_at_each_pass_and_the_same_again(self, buffer_size):
        stream = ExampleStream(documents(20, 44), Numbers(), buffer_size=buffer_size)
        passes = np.array(numbers(islice(stream, 3 * 64))).reshape(3, 64)
        self.assertEqual(np.sort(passes).tolist(), [list(range(64))] * 3)
        if buffer_size > 1:
            self.assertLen(np.unique(passes, axis=0), 3)
        self.assertEqual(numbers(islice(stream, 3 * 64)), passes.ravel().tolist())
        other = ExampleStream(documents(20, 44), Numbers(), buffer_size=buffer_size, seed=7)
        if buffer_size > 1:
            self.assertNotEqual(numbers(islice(other, 64)), passes[0].tolist())

    def test_whole_shards_are_read_by_one_consumer_alone(self):
        stream = ExampleStream(documents(5, 5, 5, 5), Numbers(), whole_shards=True)
        parts = [{number // 5 for number in numbers(islice(stream.consumer_examples([c], 2), 10))} for c in range(2)]
        self.assertEqual(parts, [{0, 1}, {2, 3}])
        for epoch in range(3):
            read = [list(islice(stream.consumer_examples([c], 2), 10 * epoch, 10 * epoch + 10)) for c in range(2)]
            self.assertEqual(sorted(numbers(read[0] + read[1])), list(range(20)))

    @parameterized.named_parameters(
        ("take", lambda data: data.take(30), range(30)),
        ("skip", lambda data: data.skip(30), range(30, 60)),
        ("interleave", lambda data: interleave_datasets([data, documents(10)]), None),
        ("filter", lambda data: data.filter(lambda row: int(row["text"]) % 2), range(1, 60, 2)),
    )
    def test_what_documents_there_are_does_not_depend_on_their_division(self, change, expected):
        data = change(documents(20, 40))
        expected = [int(row["text"]) for row in data] if expected is None else list(expected)
        for whole_shards in (False, True):
            stream = ExampleStream(data, Numbers(), buffer_size=8, whole_shards=whole_shards)
            read = {0: [], 1: []}  # by their passes
            for consumer in range(2):
                for example in stream.consumer_examples([consumer], 2):
                    if example["stream_epoch"] > 1:
                        break
                    read[example["stream_epoch"]] += numbers([example])
            self.assertEqual([sorted(read[epoch]) for epoch in range(2)], [sorted(expected)] * 2)

    def test_documents_that_are_repeated_are_refused(self):
        with self.assertRaisesRegex(ValueError, "repeated already"):
            ExampleStream(documents(3).repeat(None), Numbers())

    def test_a_stream_of_nothing_usable_is_refused_before_training(self):
        empty = IterableDataset.from_generator(lambda: iter([{"text": ""}, {"text": None}]))
        with self.assertRaisesRegex(NoExamplesError, "no document with enough text"):
            next(ExampleStream(empty, Numbers()).one_pass())

    @parameterized.parameters(2, 3, 8)
    def test_every_consumer_gets_examples_of_a_single_document(self, num_consumers):
        stream = ExampleStream(documents(1), Numbers())
        for consumer in range(num_consumers):
            epochs = [e["stream_epoch"] for e in islice(stream.consumer_examples([consumer], num_consumers), 3)]
            self.assertEqual(np.diff(epochs).tolist(), [num_consumers] * 2)


class PositionTest(parameterized.TestCase):
    @parameterized.product(number=(1, 8, 150, 333), copies=(1, 3))
    def test_a_consumer_goes_on_where_it_was(self, number, copies):
        def stream():
            return ExampleStream(documents(20, 3, 80), Numbers(copies=copies), buffer_size=8)

        everything = list(islice(stream().consumer_examples([1], 2), number + 60))
        resumed = stream()
        consumer, *position = everything[number - 1]["stream_position"]
        resumed.starts = {consumer: position}
        examples = list(islice(resumed.consumer_examples([1], 2), number + 60))
        self.assertEqual(examples[:number], [{}] * number)
        self.assertEqual(numbers(examples[number:]), numbers(everything[number:]))
        for name in ("stream_position", "stream_epoch"):
            self.assertEqual([e[name] for e in examples[number:]], [e[name] for e in everything[number:]])

    @parameterized.parameters(
        {"seed": 1}, {"buffer_size": 4}, {"min_sentences": 2}, {"whole_shards": True}, {"num_shards": 1}
    )
    def test_settings_tell_streams_apart_in_which_a_position_is_another_place(self, **change):
        def read(**settings):
            data = documents(20, 30) if settings.pop("num_shards", 2) == 2 else documents(50)
            stream = ExampleStream(data, Sentences(), **{"buffer_size": 8} | settings)
            return stream.settings, numbers(islice(stream.consumer_examples([0], 2), 10))

        (settings, examples), (other, others) = read(), read(**change)
        self.assertNotEqual(others, examples)
        self.assertEqual(other, settings | change)

    def test_batches_carry_the_position_of_their_last_example(self):
        stream = ExampleStream(documents(20), Numbers(), buffer_size=4)
        batch = list(islice(stream, 6))
        collated = StreamCollator(lambda examples: {"columns": sorted(examples[0])})(batch)
        self.assertEqual(collated["columns"], ["input_ids", "num_cut_tokens", "stream_epoch"])
        # The first consumer: 6 examples, of pass 0, block 1, which begins in batch 0 after 4 examples, and 2 of it.
        self.assertEqual(collated["stream_position"], (0, 6, 0, 1, 0, 4, 2))
        self.assertEqual(StreamCollator(lambda examples: 1 / 0)([{}, {}]), {})
