"""Laws of metadata: what a prefix says, that it fits, is never masked, and changes nothing else of an example."""

import datetime
import logging
import math
from itertools import islice

import numpy as np
import torch
from absl.testing import parameterized
from datasets import Dataset
from torch.utils.data import DataLoader

from helpers import SENTENCES, CorpusTestCase, plain_examples, tiny_tokenizer
from hf_depth.data.columns import MetadataEncoder, metadata_prefix
from hf_depth.data.data_collator import DataCollatorForT5SpanCorruption
from hf_depth.data.objectives import (
    DepthObjective,
    MixtureOfDenoisersObjective,
    PrefixLMObjective,
    SpanCorruptionObjective,
)
from hf_depth.data.shards import prepare_shards
from hf_depth.data.tokenization import TextEncoder, add_mode_tokens

TOKENIZER = tiny_tokenizer(sentence_tokens=True)
SPECIAL = {*TOKENIZER.all_special_ids} - {TOKENIZER.unk_token_id}
KINDS = (DepthObjective, SpanCorruptionObjective, PrefixLMObjective)
LENGTHS = {"max_source_length": 96, "max_target_length": 96}
COLUMNS = {"metadata_columns": ["title", "year"], "max_metadata_length": 32}
TITLES = [
    "Pride and Prejudice",
    "Moby-Dick",
    None,
    "A title of so many words that no one would ever read it to its end",
]


def documents(number=12):
    texts = [" ".join(SENTENCES[i % 10 : i % 10 + 2 + i % 5]) + f" Number {i}." for i in range(number)]
    years = [1800 + i if i % 4 != 2 else None for i in range(number)]
    return Dataset.from_dict({"text": texts, "title": [TITLES[i % 4] for i in range(number)], "year": years})


def rows(batch):
    """The inputs of a batch without padding."""
    return [ids[mask].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]


class PrefixTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"url": "https://a.org/b", "title": "A  day\n in May "}, "url: https://a.org/b | title: A day in May |||"),
        ({"title": None, "url": "", "year": math.nan, "tags": [], "topic": " "}, ""),
        ({"a": 0, "b": False, "c": 3.0, "d": 0.1}, "a: 0 | b: False | c: 3 | d: 0.1 |||"),
        ({"tags": ["x", None, "y z", 3]}, "tags: x, y z, 3 |||"),
        ({"t": datetime.date(2019, 5, 1)}, "t: 2019-05-01 |||"),
        ({"t": "2019-02-30"}, "t: 2019-02-30 |||"),
        ({"t": "20190501", "u": "in 2019-05-01"}, "t: 20190501 | u: in 2019-05-01 |||"),
    )
    def test_a_prefix_names_each_value_that_there_is(self, values, expected):
        self.assertEqual(metadata_prefix(values), expected)

    @parameterized.parameters(
        ("2019-04-25T12:57:54+02:00", "2019-04-25 10:57:54"),
        ("2019-04-25", "2019-04-25"),
        ("2019-04-25T00:00:00", "2019-04-25"),
    )
    def test_a_time_is_the_same_as_text_and_as_the_reader_of_json_types_it(self, text, expected):
        self.assertEqual(metadata_prefix({"t": text}), f"t: {expected} |||")
        typed = datetime.datetime.fromisoformat(text)
        self.assertEqual(metadata_prefix({"t": typed}), f"t: {expected} |||")

    @parameterized.parameters(
        ({"a": 1}, r"column 'meta' holds \{'a': 1\} \(dict\).*documents.flatten\(\)"),
        (b"x", r"column 'meta' holds b'x' \(bytes\)"),
    )
    def test_what_is_no_text_is_named_with_its_column(self, value, message):
        with self.assertRaisesRegex(ValueError, message):
            metadata_prefix({"title": "x", "meta": value})


class EncoderTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        logging.Logger.warning_once.cache_clear()

    def encode(self, values, max_length=64):
        columns = MetadataEncoder(TOKENIZER, ["meta"], max_length)({"meta": [values]}, [1])
        return columns["metadata_ids"][0].tolist(), columns["num_cut_metadata_tokens"][0]

    def test_each_example_of_a_document_has_its_metadata(self):
        encoder = MetadataEncoder(TOKENIZER, ["a", "b"])
        columns = encoder({"a": ["x", None, "z"], "text": ["", "", ""]}, [2, 0, 1])
        self.assertEqual([TOKENIZER.decode(ids) for ids in columns["metadata_ids"]], ["a: x |||"] * 2 + ["a: z |||"])
        self.assertEqual(columns["num_cut_metadata_tokens"], [0, 0, 0])

    def test_no_token_of_metadata_is_a_special_token(self):
        text = "Keep <extra_id_3>, <sent_2>, <eosen>, </s> and <pad> as written."
        ids, _ = self.encode(text)
        self.assertEmpty(SPECIAL & set(ids))
        self.assertEqual("".join(TOKENIZER.decode(ids).split()), "".join(f"meta: {text} |||".split()))

    @parameterized.parameters(10, 31)
    def test_what_is_too_long_loses_its_end_but_not_its_end_mark_and_is_counted(self, max_length):
        text = " ".join(SENTENCES[:3])
        whole, nothing = self.encode(text, 1000)
        with self.assertLogs("hf_depth.data.columns", "WARNING") as logs:
            ids, num_cut = self.encode(text, max_length)
            self.encode(text, max_length)
        self.assertLen(logs.output, 1)
        self.assertRegex(logs.output[0], f"more than {max_length} tokens are cut")
        end = len(TextEncoder(TOKENIZER)(["|||"])[0])
        self.assertEqual((nothing, num_cut, len(ids)), (0, len(whole) - max_length, max_length))
        self.assertEqual(ids, whole[: max_length - end] + whole[-end:])


class PreparationTest(CorpusTestCase):
    @parameterized.parameters(*KINDS)
    def test_text_is_cut_as_without_metadata_into_what_they_leave(self, objective):
        made = objective(TOKENIZER, **LENGTHS, **COLUMNS)
        examples = list(made.prepare(documents()))
        data, _ = made.prepare_splits({"train": documents().to_iterable_dataset(num_shards=2)})
        self.assertCountEqual(plain_examples(islice(data["train"], len(examples))), plain_examples(examples))
        shorter = objective(TOKENIZER, max_source_length=64, max_target_length=96).prepare(documents())
        self.assertEqual(plain_examples(examples, "input_ids"), plain_examples(shorter, "input_ids"))
        prefixes = {TOKENIZER.decode(example["metadata_ids"]) for example in examples}
        self.assertIn("title: Moby-Dick | year: 1801 |||", prefixes)
        self.assertIn("", prefixes)

    def test_the_format_of_a_data_set_does_not_matter(self):
        times = [datetime.datetime(1900 + i, 5, 1, 9, 30) for i in range(12)]
        plainly = documents().add_column("time", times)
        data = plainly.to_iterable_dataset().with_format("arrow")
        objective = DepthObjective(TOKENIZER, **LENGTHS, metadata_columns=["time", "year"], max_metadata_length=32)
        expected = plain_examples(objective.prepare(plainly))
        self.assertEqual(plain_examples(objective.prepare(data)), expected)
        found, _ = objective.prepare_splits({"train": data})
        self.assertCountEqual(plain_examples(islice(found["train"], len(expected))), expected)
        shards = prepare_shards({"train": plainly.with_format("arrow")}, objective, self.path("shards"))
        self.assertEqual(plain_examples(shards.sources("train")["text"]), expected)

    def test_what_was_cut_is_counted(self):
        objective = DepthObjective(TOKENIZER, **LENGTHS, **COLUMNS)
        with self.assertLogs("hf_depth", "INFO") as logs:
            data, statistics = objective.prepare_splits({"train": documents()})
        examples = data["train"]
        lengths = np.array([len(example["metadata_ids"]) for example in examples])
        self.assertEqual(lengths.max(), 32)
        cut = int(sum(example["num_cut_metadata_tokens"] for example in examples))
        self.assertGreater(cut, 0)
        found = {name: value for name, value in statistics["train"].items() if name.startswith("metadata")}
        expected = {"metadata_examples": (lengths > 0).sum(), "metadata_tokens": lengths.sum()}
        self.assertEqual(found, expected | {"metadata_tokens_cut": cut})
        self.assertRegex("".join(logs.output), f"{cut} metadata tokens cut")

    @parameterized.parameters(False, True)
    def test_a_missing_column_is_named_with_those_that_there_are(self, streaming):
        corpus = {"train": documents().to_iterable_dataset() if streaming else documents()}
        objective = DepthObjective(TOKENIZER, **LENGTHS | COLUMNS | {"metadata_columns": ["titel"]})
        with self.assertRaisesRegex(ValueError, "no column 'titel'.*'text', 'title', 'year'. Did you mean 'title'?"):
            objective.prepare_splits(corpus)


class CollatorTest(parameterized.TestCase):
    def collated(self, objective, probability, examples=None, **changes):
        objective = objective(TOKENIZER, **LENGTHS, **COLUMNS, metadata_probability=probability)
        examples = list(objective.prepare(documents())) if examples is None else examples
        return examples, objective.collator(**changes)(examples)

    @parameterized.parameters(*KINDS)
    def test_metadata_stand_before_the_input_and_change_nothing_else(self, objective):
        examples, without = self.collated(objective, 0.0)
        _, batch = self.collated(objective, 1.0)
        torch.testing.assert_close(batch["labels"], without["labels"], rtol=0, atol=0)
        for example, ids, plain_ids in zip(examples, rows(batch), rows(without), strict=True):
            self.assertEqual(ids, np.asarray(example["metadata_ids"]).tolist() + plain_ids)
            self.assertLessEqual(len(ids), LENGTHS["max_source_length"])

    def test_the_share_of_examples_with_metadata_is_that_asked_for(self):
        random = np.random.default_rng(0)
        examples = [{"input_ids": random.integers(3, 300, 6), "metadata_ids": np.array([7])} for _ in range(4000)]
        collator = DataCollatorForT5SpanCorruption(TOKENIZER, metadata_probability=0.3)
        without = collator([{"input_ids": example["input_ids"]} for example in examples])["attention_mask"].sum(1)
        lengths = {}
        for epoch in range(2):
            collator.set_epoch(epoch)
            lengths[epoch] = collator(examples)["attention_mask"].sum(1) - without
            self.assertAlmostEqual(lengths[epoch].float().mean().item(), 0.3, delta=0.03)
        # The draws of the epochs are independent.
        both = (lengths[0] * lengths[1]).float().mean().item()
        self.assertAlmostEqual(both, 0.3**2, delta=0.03)

    def test_a_collator_and_its_workers_hear_of_another_probability(self):
        examples, without = self.collated(DepthObjective, 0.0)
        collator = DepthObjective(TOKENIZER, **LENGTHS, **COLUMNS).collator()
        loader = DataLoader(examples, 100, num_workers=1, collate_fn=collator, persistent_workers=True)
        for probability in (0.0, 1.0, 0.0):
            collator.set_metadata_probability(probability)
            (batch,) = loader
            expected = self.collated(DepthObjective, probability)[1]
            self.assertTrue(torch.equal(batch["input_ids"], expected["input_ids"]))
        self.assertEqual(collator.metadata_probability, 0.0)

    @parameterized.parameters(
        ({"metadata_ids": [9, TOKENIZER.eos_token_id, 9]}, "in `metadata_ids`, which is no token of a text"),
        ({"metadata_ids": [9] * 90}, "tokens after corruption, but `max_source_length` is 96"),
    )
    def test_wrong_examples_are_named(self, example, message):
        examples = [
            {"input_ids": list(range(5, 30)), "metadata_ids": [9]},
            {"input_ids": list(range(5, 30)), **example},
        ]
        collator = DataCollatorForT5SpanCorruption(TOKENIZER, max_source_length=96, metadata_probability=1.0)
        with self.assertRaisesRegex(ValueError, message):
            collator(examples)


class CombinationTest(parameterized.TestCase):
    """Metadata in packed rows and with mode tokens."""

    @parameterized.parameters((DepthObjective, False), (SpanCorruptionObjective, True))
    def test_packed_examples_keep_their_own_metadata(self, objective, streaming):
        settings = LENGTHS | COLUMNS
        data = documents().to_iterable_dataset() if streaming else documents()
        packed = objective(TOKENIZER, **settings, packing=True, packed_source_length=256, packed_target_length=256)
        rows_of_examples = list(packed.prepare(data))
        examples = list(objective(TOKENIZER, **settings).prepare(documents()))
        self.assertLess(len(rows_of_examples), len(examples))
        collator = packed.collator()
        alone = [tuple(row) for row in rows(collator(examples))]
        batch = collator(rows_of_examples)
        self.assertLessEqual(batch["input_ids"].shape[1], 256)
        together = [
            tuple(ids[segments == segment].tolist())
            for ids, segments in zip(batch["input_ids"], batch["encoder_segment_ids"], strict=True)
            for segment in range(1, int(segments.max()) + 1)
        ]
        self.assertCountEqual(together, alone)

    def test_metadata_stand_before_the_mode_token(self):
        tokenizer = add_mode_tokens(tiny_tokenizer(), ["[R]", "[S]", "[X]"])
        objective = MixtureOfDenoisersObjective(tokenizer, max_source_length=96, **COLUMNS)
        examples = list(objective.prepare(documents()))
        collator = objective.collator()
        without = rows(collator([{"input_ids": example["input_ids"]} for example in examples]))
        collator.set_metadata_probability(1.0)
        for example, ids, plain_ids in zip(examples, rows(collator(examples)), without, strict=True):
            self.assertEqual(ids, example["metadata_ids"].tolist() + plain_ids)
            self.assertLessEqual(len(ids), 96)
