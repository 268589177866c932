"""Laws of metadata: what a prefix says, that it fits, is never masked, and changes nothing else of an example."""

import datetime
import json
import math
import tempfile
from itertools import islice

import numpy as np
import torch
from absl.testing import absltest, parameterized
from datasets import Dataset, IterableDataset, interleave_datasets
from torch.utils.data import DataLoader

from helpers import DOCUMENTS, SENTENCES, CorpusTestCase, tiny_tokenizer
from hf_depth.data import metadata
from hf_depth.data.data_collator import DataCollatorForDepth, DataCollatorForT5SpanCorruption
from hf_depth.data.metadata import MetadataEncoder, check_metadata_columns, metadata_prefix
from hf_depth.data.objectives import (
    DepthObjective,
    MixtureOfDenoisersObjective,
    PrefixLMObjective,
    SpanCorruptionObjective,
)
from hf_depth.data.preprocessing import SpanCorruptionPreprocessor, prepare_dataset
from hf_depth.data.shard_preparation import prepare_shards
from hf_depth.data.tokenization import TextEncoder, add_mode_tokens
from tiny_training import tiny_model

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


def plain(examples, *names):
    names = names or ("input_ids", "metadata_ids", "num_cut_metadata_tokens")
    return [{name: np.asarray(example[name]).tolist() for name in names} for example in examples]


def rows(batch):
    """The inputs of a batch without padding."""
    return [ids[mask].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]


class PrefixTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"url": "https://a.org/b", "title": "A  day\n in May "}, "url: https://a.org/b | title: A day in May |||"),
        ({"title": None, "url": "", "year": math.nan, "tags": [], "topic": " "}, ""),
        ({}, ""),
        ({"a": 0, "b": False, "c": 3.0, "d": 0.1, "e": 10**20}, f"a: 0 | b: False | c: 3 | d: 0.1 | e: {10**20} |||"),
        ({"tags": ["x", None, "y z", 3]}, "tags: x, y z, 3 |||"),
        ({"tags": np.array(["x", "y"]), "n": np.int64(4), "f": np.float32("nan")}, "tags: x, y | n: 4 |||"),
        ({"t": datetime.date(2019, 5, 1)}, "t: 2019-05-01 |||"),
        ({"t": datetime.datetime(2019, 5, 1, 9, 30)}, "t: 2019-05-01 09:30:00 |||"),
        ({"t": "2019-02-30"}, "t: 2019-02-30 |||"),
        ({"t": "20190501", "u": "in 2019-05-01"}, "t: 20190501 | u: in 2019-05-01 |||"),
    )
    def test_a_prefix_names_each_value_that_there_is(self, values, expected):
        self.assertEqual(metadata_prefix(values), expected)

    @parameterized.parameters(
        ("2019-04-25T12:57:54Z", "2019-04-25 12:57:54"),
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
        ([{"a": 1}], r"column 'meta' holds \{'a': 1\} \(dict\)"),
        (b"x", r"column 'meta' holds b'x' \(bytes\)"),
    )
    def test_what_is_no_text_is_named_with_its_column(self, value, message):
        with self.assertRaisesRegex(ValueError, message):
            metadata_prefix({"title": "x", "meta": value})


class EncoderTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        metadata._warn_of_cut.cache_clear()

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

    @parameterized.parameters(10, 20, 31)
    def test_what_is_too_long_loses_its_end_but_not_its_end_mark_and_is_counted(self, max_length):
        text = " ".join(SENTENCES[:3])
        whole, nothing = self.encode(text, 1000)
        with self.assertLogs("hf_depth.data.metadata", "WARNING") as logs:
            ids, num_cut = self.encode(text, max_length)
            self.encode(text, max_length)
        self.assertLen(logs.output, 1)
        self.assertRegex(logs.output[0], f"more than {max_length} tokens are cut")
        end = len(TextEncoder(TOKENIZER)(["|||"])[0])
        self.assertEqual((nothing, num_cut, len(ids)), (0, len(whole) - max_length, max_length))
        self.assertEqual(ids, whole[: max_length - end] + whole[-end:])

    def test_a_length_without_room_for_a_word_is_refused(self):
        with self.assertRaisesRegex(ValueError, "`max_metadata_length` must be above 3, the tokens of ' |||', got 3"):
            MetadataEncoder(TOKENIZER, ["title"], 3)


class PreparationTest(CorpusTestCase):
    @parameterized.product(objective=KINDS, streaming=(False, True))
    def test_text_is_cut_as_without_metadata_into_what_they_leave(self, objective, streaming):
        data = documents().to_iterable_dataset() if streaming else documents()
        examples = list(objective(TOKENIZER, **LENGTHS, **COLUMNS).prepare(data))
        shorter = objective(TOKENIZER, max_source_length=64, max_target_length=96).prepare(documents())
        self.assertEqual(plain(examples, "input_ids"), plain(shorter, "input_ids"))
        prefixes = {TOKENIZER.decode(example["metadata_ids"]) for example in examples}
        self.assertIn("title: Moby-Dick | year: 1801 |||", prefixes)
        self.assertIn("", prefixes)

    @parameterized.parameters(*KINDS)
    def test_map_style_data_streams_and_streams_to_train_on_agree(self, objective):
        objective = objective(TOKENIZER, **LENGTHS, **COLUMNS)
        expected = plain(objective.prepare(documents()))
        self.assertEqual(plain(objective.prepare(documents().to_iterable_dataset())), expected)
        self.assertEqual(plain(objective.prepare(documents(), num_proc=2)), expected)
        data, _ = objective.prepare_splits({"train": documents().to_iterable_dataset(num_shards=2)})
        self.assertCountEqual(plain(islice(data["train"], len(expected))), expected)

    @parameterized.product(kind=("numpy", "torch", "pandas", "arrow"), streaming=(False, True))
    def test_the_format_of_a_data_set_does_not_matter(self, kind, streaming):
        times = [datetime.datetime(1900 + i, 5, 1, 9, 30) for i in range(12)]
        plainly = documents().add_column("time", times)
        data = plainly.to_iterable_dataset() if streaming else plainly
        objective = DepthObjective(TOKENIZER, **LENGTHS, metadata_columns=["time", "year"], max_metadata_length=32)
        expected = plain(objective.prepare(plainly))
        self.assertEqual(plain(objective.prepare(data.with_format(kind))), expected)
        found, _ = objective.prepare_splits({"train": data.with_format(kind)})
        self.assertCountEqual(plain(islice(found["train"], len(expected))), expected)
        shards = prepare_shards({"train": plainly.with_format(kind)}, objective, self.path("shards"))
        self.assertEqual(plain(shards.sources("train")["text"]), expected)

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

    def test_metadata_of_which_there_are_none_are_told(self):
        empty = documents().remove_columns("title").add_column("title", [None] * 12)
        with self.assertLogs("hf_depth", "WARNING") as logs:
            SpanCorruptionObjective(TOKENIZER, **LENGTHS, metadata_columns="title", max_metadata_length=16).prepare(
                empty
            )
        self.assertRegex("".join(logs.output), "No example of the prepared data has metadata: title")

    @parameterized.parameters(False, True)
    def test_a_missing_column_is_named_with_those_that_there_are(self, streaming):
        corpus = {"train": documents().to_iterable_dataset() if streaming else documents()}
        objective = DepthObjective(TOKENIZER, **LENGTHS | COLUMNS | {"metadata_columns": ["titel"]})
        with self.assertRaisesRegex(ValueError, "no column 'titel'.*'text', 'title', 'year'. Did you mean 'title'?"):
            objective.prepare_splits(corpus)

    @parameterized.parameters(False, True)
    def test_the_text_is_no_metadata(self, streaming):
        data = documents().rename_column("text", "body").to_iterable_dataset() if streaming else documents()
        name = "body" if streaming else "text"
        with self.assertRaisesRegex(ValueError, f"`metadata_columns` names '{name}', which holds the text"):
            objective = DepthObjective(TOKENIZER, **LENGTHS | COLUMNS | {"metadata_columns": ["title", name]})
            objective.prepare_splits({"train": data}, text_column=name)

    @parameterized.parameters(
        ({"metadata_columns": ["a", "a"]}, "names a column twice: a, a"),
        ({"max_metadata_length": 49}, "`max_metadata_length` must be between 1 and half of `max_source_length`=96"),
        ({"metadata_probability": 1.5}, "`metadata_probability` must be between 0 and 1, got 1.5"),
        ({"metadata_columns": [], "metadata_probability": 0.9}, "`metadata_probability` .* needs `metadata_columns`"),
        ({"pack_examples": True}, "`pack_examples` joins documents"),
    )
    def test_settings_that_contradict_each_other_are_refused(self, changes, message):
        with self.assertRaisesRegex(ValueError, message):
            SpanCorruptionObjective(TOKENIZER, **LENGTHS | COLUMNS | changes)

    def test_an_objective_that_would_leave_metadata_out_is_refused(self):
        class Plain(SpanCorruptionObjective):
            def preprocessor(self, text_column="text"):
                return SpanCorruptionPreprocessor(self.tokenizer, 50, text_column)

        with self.assertRaisesRegex(ValueError, "Plain does not take metadata"):
            Plain(TOKENIZER, **LENGTHS, **COLUMNS)

    @parameterized.parameters(*KINDS)
    def test_without_metadata_examples_and_settings_are_as_ever(self, objective):
        objective = objective(TOKENIZER, **LENGTHS)
        self.assertNoCommonElements(objective.settings, COLUMNS)
        self.assertNotIn("metadata_ids", objective.prepare(documents()).column_names)

    @parameterized.product(kind=("jsonl", "csv", "parquet"), streaming=(False, True), held_out=(0, 20))
    def test_columns_of_files_reach_the_examples(self, kind, streaming, held_out):
        getattr(documents(), {"jsonl": "to_json"}.get(kind, f"to_{kind}"))(self.path(f"texts.{kind}"))
        corpus = self.load(train_file=f"texts.{kind}", streaming=streaming, validation_split_percentage=held_out)
        objective = DepthObjective(TOKENIZER, **LENGTHS, **COLUMNS)
        found = set()
        for split in corpus.values():
            found |= {json.dumps(row) for row in plain(objective.prepare(split), "metadata_ids")}
        expected = {json.dumps(row) for row in plain(objective.prepare(documents()), "metadata_ids")}
        self.assertEqual(found, expected)

    def test_records_of_a_stream_may_lack_columns(self):
        lines = [{"text": "Call me Ishmael."}] * 150 + [{"text": "It rained.", "title": "Rain", "url": None}] * 150
        self.write("texts.jsonl", "\n".join(map(json.dumps, lines)))
        corpus = self.load(train_file="texts.jsonl", streaming=True, validation_split_percentage=0)
        objective = SpanCorruptionObjective(TOKENIZER, **LENGTHS, metadata_columns=["title"], max_metadata_length=16)
        examples = list(objective.prepare(corpus["train"]))
        prefixes = [TOKENIZER.decode(example["metadata_ids"]) for example in examples]
        self.assertEqual(prefixes, [""] * 150 + ["title: Rain |||"] * 150)
        stream = objective.prepare_splits(corpus)[0]["train"]
        self.assertCountEqual(plain(islice(stream, 300)), plain(examples))

    def test_examples_of_several_sources_can_be_interleaved(self):
        objective = DepthObjective(TOKENIZER, **LENGTHS, **COLUMNS)
        parts = [objective.prepare(documents(4)), objective.prepare(documents(8))]
        mixed = interleave_datasets(parts, stopping_strategy="all_exhausted").with_format("numpy")
        self.assertIn("metadata_ids", mixed.column_names)
        objective.collator()(list(mixed))


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

    @parameterized.parameters(*KINDS)
    def test_with_probability_zero_a_batch_is_that_of_examples_without_metadata(self, objective):
        examples, batch = self.collated(objective, 0.0)
        bare = [{name: example[name] for name in example if "metadata" not in name} for example in examples]
        for padding in ("longest", "max_length"):
            _, batch = self.collated(objective, 0.0, padding=padding)
            expected = objective(TOKENIZER, **LENGTHS).collator(padding=padding)(bare)
            self.assertEqual(batch.keys(), expected.keys())
            for name, tensor in expected.items():
                self.assertTrue(torch.equal(batch[name], tensor), name)

    @parameterized.parameters(0.1, 0.5, 0.9)
    def test_the_share_of_examples_with_metadata_is_that_asked_for(self, probability):
        random = np.random.default_rng(0)
        examples = [{"input_ids": random.integers(3, 300, 6), "metadata_ids": np.array([7])} for _ in range(10_000)]
        collator = DataCollatorForT5SpanCorruption(TOKENIZER, metadata_probability=probability)
        without = collator([{"input_ids": example["input_ids"]} for example in examples])["attention_mask"].sum(1)
        lengths = {}
        for epoch in range(2):
            collator.set_epoch(epoch)
            lengths[epoch] = collator(examples)["attention_mask"].sum(1) - without
            self.assertAlmostEqual(lengths[epoch].float().mean().item(), probability, delta=0.02)
        # The draws of the epochs are independent.
        both = (lengths[0] * lengths[1]).float().mean().item()
        self.assertAlmostEqual(both, probability**2, delta=0.02)

    @parameterized.parameters(DataCollatorForDepth, DataCollatorForT5SpanCorruption)
    def test_it_does_not_depend_on_the_batch_which_examples_have_metadata(self, collator):
        examples = list(DepthObjective(TOKENIZER, **LENGTHS, **COLUMNS).prepare(documents()))
        together = rows(collator(TOKENIZER)(examples))
        self.assertEqual([rows(collator(TOKENIZER)([example]))[0] for example in examples], together)
        lists = [{name: np.asarray(value).tolist() for name, value in example.items()} for example in examples]
        self.assertEqual(rows(collator(TOKENIZER)(lists)), together)

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

    @parameterized.parameters(DataCollatorForDepth, DataCollatorForT5SpanCorruption)
    def test_any_example_of_a_batch_may_be_without_metadata(self, collator):
        ids = list(range(5, 30))
        for lengths in ((0,), (0, 2), (2, 0), (0, 0), (2, 0, 3, 0)):
            examples = [
                {"input_ids": ids, "sentence_lengths": [25], "metadata_ids": list(range(40, 40 + length))}
                for length in lengths
            ]
            batch = collator(TOKENIZER, metadata_probability=1.0)(examples)
            sizes = batch["attention_mask"].sum(1)
            self.assertEqual((sizes - sizes.min()).tolist(), [length - min(lengths) for length in lengths])

    @parameterized.parameters(
        ({"metadata_ids": [TOKENIZER.eos_token_id]}, "in `metadata_ids`, which is no token of a text"),
        ({"metadata_ids": [9, TOKENIZER.eos_token_id, 9]}, "in `metadata_ids`, which is no token of a text"),
        ({"metadata_ids": [9] * 90}, "tokens of metadata and input together, but `max_source_length` is 96"),
        ({}, "Example 1 of the batch has no column `metadata_ids`"),
    )
    def test_wrong_examples_are_named(self, example, message):
        examples = [
            {"input_ids": list(range(5, 30)), "metadata_ids": [9]},
            {"input_ids": list(range(5, 30)), **example},
        ]
        for probability in (0.0, 1.0):
            collator = DataCollatorForT5SpanCorruption(
                TOKENIZER, max_source_length=96, metadata_probability=probability
            )
            with self.assertRaisesRegex(ValueError, message):
                collator(examples)

    def test_any_text_and_any_metadata_fit(self):
        random = np.random.default_rng(0)
        for objective in KINDS:
            made = objective(TOKENIZER, max_source_length=64, metadata_columns=["title"], max_metadata_length=24)
            texts = [" ".join(random.choice(DOCUMENTS[0].split(), random.integers(2, 200))) for _ in range(40)]
            titles = [" ".join(random.choice(DOCUMENTS[1].split(), random.integers(0, 40))) for _ in range(40)]
            examples = list(made.prepare(Dataset.from_dict({"text": texts, "title": titles})))
            collator = made.collator()
            collator.set_metadata_probability(1.0)
            for epoch in range(5):
                collator.set_epoch(epoch)
                self.assertLessEqual(collator(examples)["input_ids"].shape[1], 64)


class CombinationTest(parameterized.TestCase):
    """Metadata in packed rows, in shards, with mode tokens, and in the masks of DEPTH."""

    @parameterized.product(objective=KINDS, streaming=(False, True))
    def test_packed_examples_keep_their_own_metadata(self, objective, streaming):
        settings = LENGTHS | COLUMNS
        data = documents().to_iterable_dataset() if streaming else documents()
        packed = objective(TOKENIZER, **settings, packing=True, packed_source_length=256, packed_target_length=256)
        rows_of_examples = list(packed.prepare(data))
        examples = list(objective(TOKENIZER, **settings).prepare(documents()))
        self.assertLess(len(rows_of_examples), len(examples))
        for probability in (0.5, 1.0):
            collator = packed.collator()
            collator.set_metadata_probability(probability)
            alone = [tuple(row) for row in rows(collator(examples))]
            batch = collator(rows_of_examples)
            self.assertLessEqual(batch["input_ids"].shape[1], 256)
            together = [
                tuple(ids[segments == segment].tolist())
                for ids, segments in zip(batch["input_ids"], batch["encoder_segment_ids"], strict=True)
                for segment in range(1, int(segments.max()) + 1)
            ]
            self.assertCountEqual(together, alone)

    def test_shards_hold_metadata(self):
        corpus = {"train": documents()}
        objective = DepthObjective(TOKENIZER, **LENGTHS, **COLUMNS)
        folder = self.enter_context(tempfile.TemporaryDirectory())
        shards = prepare_shards(corpus, objective, f"{folder}/shards")
        objective = DepthObjective(TOKENIZER, **LENGTHS, **COLUMNS, metadata_probability=1.0)
        data, _ = shards.load_splits(objective, ["train"])
        self.assertEqual(plain(data["train"]), plain(objective.prepare(documents())))
        self.assertGreater(shards.counts["train"]["text"]["metadata_tokens_cut"], 0)
        missing = DepthObjective(TOKENIZER, **LENGTHS | COLUMNS | {"metadata_columns": ["titel"]})
        with self.assertRaisesRegex(ValueError, "no column 'titel'"):
            prepare_shards(corpus, missing, f"{folder}/others")

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

    def test_what_packed_rows_hold_is_counted_by_example(self):
        counts = [
            DepthObjective(TOKENIZER, **LENGTHS, **COLUMNS, packing=packing).prepare_splits({"train": documents()})[1]
            for packing in (False, True)
        ]
        names = ("examples", "metadata_examples", "metadata_tokens", "metadata_tokens_cut")
        self.assertEqual(*({name: count["train"][name] for name in names} for count in counts))

    def test_sentence_tokens_do_not_see_metadata_but_words_do(self):
        examples = list(DepthObjective(TOKENIZER, **LENGTHS, **COLUMNS).prepare(documents()))[:1]
        collator = DataCollatorForDepth(TOKENIZER)
        encoder = tiny_model("depth").eval().get_encoder()  # of one layer
        outputs = {}
        for probability in (0.0, 1.0):
            collator.set_metadata_probability(probability)
            batch = collator(examples)
            length = int(batch["input_ids"].shape[1])
            outputs[probability] = encoder(batch["input_ids"], batch["attention_mask"]).last_hidden_state[0]
        number = len(examples[0]["metadata_ids"])
        self.assertEqual(length, len(outputs[0.0]) + number)
        ids = batch["input_ids"][0, number:]
        first = TOKENIZER.convert_tokens_to_ids("<sent_0>")
        is_sentence = (ids >= first) & (ids < first + 20)
        difference = (outputs[0.0] - outputs[1.0][number:]).abs().amax(1)
        self.assertLess(difference[is_sentence].max().item(), 1e-5)
        self.assertGreater(difference[~is_sentence].min().item(), 1e-5)


class ColumnsTest(parameterized.TestCase):
    def test_a_preprocessor_alone_is_checked_as_well(self):
        preprocessor = SpanCorruptionPreprocessor(TOKENIZER, 50, metadata=MetadataEncoder(TOKENIZER, ["author"]))
        with self.assertRaisesRegex(ValueError, "There is no column 'author'"):
            prepare_dataset(documents(), preprocessor)

    def test_columns_of_later_records_count(self):
        records = IterableDataset.from_generator(lambda: iter([{"text": "a"}, {"text": "b", "title": "B"}]))
        check_metadata_columns(records, ["title"])
        with self.assertRaisesRegex(ValueError, "no column 'url'"):
            check_metadata_columns(records, ["title", "url"])


if __name__ == "__main__":
    absltest.main()
