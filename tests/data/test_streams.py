from collections import Counter
from itertools import islice

import numpy as np
from absl.testing import parameterized
from datasets import IterableDataset, interleave_datasets

from hf_depth.data.streams import ExampleStream
from tiny_streams import Numbers, documents, examples_by_pass

FILES = ([7, 20, 33], [5, 1, 9, 30, 2, 0, 8, 100])


def numbers(examples):
    return [int(example["input_ids"][0]) for example in examples]


class PassTest(parameterized.TestCase):
    @parameterized.product(files=FILES, num_processes=(1, 2), num_workers=(0, 2))
    def test_every_example_comes_once_per_pass(self, files, num_processes, num_workers):
        stream = ExampleStream(documents(*files), Numbers(), buffer_size=16)
        counts = examples_by_pass(stream, num_processes, num_workers)
        for epoch in range(2):
            self.assertEqual(counts[0, epoch], Counter(range(sum(files))))

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
        with self.assertRaisesRegex(ValueError, "None of the documents to train on gives an example: too little text"):
            ExampleStream(empty, Numbers()).one_pass()

    @parameterized.parameters(2, 3, 8)
    def test_every_consumer_gets_examples_of_a_single_document(self, num_consumers):
        stream = ExampleStream(documents(1), Numbers())
        for consumer in range(num_consumers):
            epochs = [e["stream_epoch"] for e in islice(stream.consumer_examples([consumer], num_consumers), 3)]
            self.assertEqual(np.diff(epochs).tolist(), [num_consumers] * 2)
