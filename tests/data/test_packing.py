"""Laws of packed rows: nothing is lost or torn, lengths hold whatever is drawn, noise is that of single examples."""

import pickle
import time
from collections import Counter
from itertools import takewhile

import numpy as np
import torch
from absl.testing import parameterized
from datasets import Dataset

from helpers import SENTENCES, tiny_tokenizer
from hf_depth import DepthObjective, DepthPrefixLMObjective, PrefixLMObjective, SpanCorruptionObjective
from hf_depth.arguments.data_args import ObjectiveArguments
from hf_depth.arguments.model_args import ModelArguments
from hf_depth.data.packing import PER_EXAMPLE, pack, unpack_rows
from hf_depth.data.preprocessing import dataset_statistics
from hf_depth.training.checkpoints.run_description import describe_run

TOKENIZER = tiny_tokenizer(sentence_tokens=True)
OBJECTIVES = (
    (DepthObjective, {}),
    (DepthObjective, {"min_sentences": 2, "packed_target_length": 120}),
    (SpanCorruptionObjective, {}),
    (PrefixLMObjective, {}),
)


def documents(number: int = 60, seed: int = 0) -> Dataset:
    """Texts of one to six sentences, and some that give no example."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(SENTENCES, rng.integers(1, 7))) for _ in range(number)]
    return Dataset.from_dict({"text": [*texts, "", texts[0], "  "]})


def packed(kind, settings):
    return kind(TOKENIZER, max_source_length=96, packing=True, **settings)


def keys(examples) -> Counter:
    """What the examples hold, whatever the order."""
    return Counter(
        tuple(tuple(map(int, example[name])) for name in ("input_ids", "sentence_lengths") if name in example)
        for example in examples
    )


def taken_apart(rows) -> list[dict]:
    return unpack_rows(list(rows))


class PackTest(parameterized.TestCase):
    @parameterized.parameters(100, 1000, 40)  # the targets bind: hardly ever, never, always
    def test_rows_hold_each_example_once_within_both_lengths(self, max_target_length):
        rng = np.random.default_rng(0)
        source = rng.integers(1, 200, 700)
        target = np.minimum(1 + source // rng.integers(2, 6, 700), 40)
        rows = pack(source, target, 200, max_target_length)
        self.assertEqual(sorted(np.concatenate(rows).tolist()), list(range(700)))
        for row in rows:
            self.assertLessEqual(source[row].sum(), 200)
            self.assertLessEqual(target[row].sum(), max_target_length)
            self.assertEqual(sorted(row.tolist()), row.tolist())
        self.assertEqual(sorted(row[0] for row in rows), [row[0] for row in rows])
        needed = max(source.sum() / 200, target.sum() / max_target_length)
        self.assertLess(len(rows), 1.1 * needed + 1)

    def test_ten_thousand_examples_take_seconds_at_most(self):
        rng = np.random.default_rng(0)
        source, target = rng.integers(1, 400, (2, 10_000))
        for limit in (400, 4000):
            started = time.process_time()
            pack(source, target, limit, 400)
            self.assertLess(time.process_time() - started, 10.0)

    def test_nothing_gives_no_rows(self):
        self.assertEqual(pack(np.array([], np.int64), np.array([], np.int64), 10, 10), [])

    def test_an_example_that_does_not_fit_is_named(self):
        with self.assertRaisesRegex(
            ValueError, "Example 1 can have a source of 11 .* target of 4 tokens, but a row has"
        ):
            pack(np.array([3, 11]), np.array([4, 4]), 10, 10)


class RowsTest(parameterized.TestCase):
    @parameterized.parameters(*OBJECTIVES)
    def test_every_example_is_in_exactly_one_row_whatever_prepares_it(self, kind, settings):
        objective = packed(kind, settings)
        examples = objective.prepare(documents(), packing=False)
        expected = keys(examples)
        stream = documents().to_iterable_dataset(num_shards=2)
        endless, _ = objective.prepare_splits({"train": stream})
        for rows in (
            objective.prepare(documents()),
            objective.prepare(documents(), num_proc=2),
            objective.prepare(stream),
            endless["train"].one_pass(),
        ):
            rows = list(rows)
            self.assertEqual(keys(taken_apart(rows)), expected)
            self.assertLess(len(rows), 0.85 * len(examples))
            self.assertGreater(min(len(row["input_ids"]) for row in rows), 0)

    def test_a_stream_gives_each_example_once_per_pass_to_each_number_of_consumers(self):
        objective = packed(DepthObjective, {})
        expected = keys(objective.prepare(documents(), packing=False))
        stream, _ = objective.prepare_splits({"train": documents().to_iterable_dataset(num_shards=3)})
        for number in (1, 2):
            found = Counter()
            for consumer in range(number):
                rows = stream["train"].consumer_examples([consumer], number)
                for row in rows:
                    if row["stream_epoch"] > 0:
                        break
                    found += keys(taken_apart([row]))
            self.assertEqual(found, expected)

    def test_rows_are_the_same_each_time_and_in_the_order_of_the_documents(self):
        objective = packed(SpanCorruptionObjective, {})
        rng = np.random.default_rng(0)
        texts = {"text": [" ".join(map(str, rng.integers(0, 10**6, rng.integers(2, 40)))) for _ in range(60)]}
        one, other = (objective.training_preprocessor()(texts) for _ in range(2))
        self.assertEqual(one.keys(), other.keys())
        for name in one:
            for values, others in zip(one[name], other[name], strict=True):
                np.testing.assert_array_equal(values, others)
        place = {tuple(ids): index for index, ids in enumerate(objective.preprocessor()(texts)["input_ids"])}
        rows = Dataset.from_dict(one, features=objective.training_preprocessor().features)
        places = [[place[tuple(example["input_ids"])] for example in taken_apart([row])] for row in rows]
        self.assertEqual(places, sorted(places))
        self.assertEqual(places, [sorted(row) for row in places])

    @parameterized.parameters(*OBJECTIVES)
    def test_both_lengths_hold_whatever_is_drawn(self, kind, settings):
        objective = packed(kind, settings)
        rows = list(objective.prepare(documents()))
        collator = objective.collator()
        for epoch in range(30):
            collator.set_epoch(epoch)
            batch = collator(rows)
            self.assertLessEqual(batch["input_ids"].shape[1], objective.packed_source_length)
            self.assertLessEqual(batch["labels"].shape[1], objective.packed_target_length)

    def test_what_is_left_out_is_counted_as_without_packing(self):
        objective = packed(DepthObjective, {"min_sentences": 3})
        logs = []
        for packing in (False, True):
            with self.assertLogs("hf_depth", "INFO") as log:
                objective.prepare(documents(), packing=packing)
            logs.append([line for line in log.output if "Dropped" in line or "Left out" in line])
        self.assertLen(logs[0], 2)
        self.assertEqual(*logs)

    @parameterized.parameters(*OBJECTIVES[:3])
    def test_statistics_count_examples_and_rows(self, kind, settings):
        objective = packed(kind, settings)
        rows = objective.prepare(documents())
        counts = dataset_statistics(rows, TOKENIZER.unk_token_id)
        self.assertEqual(counts.pop("rows"), len(rows))
        self.assertEqual(counts, dataset_statistics(objective.prepare(documents(), packing=False), 2))

    def test_only_training_data_are_packed(self):
        objective = packed(DepthObjective, {})
        for make in (lambda: documents(), lambda: documents().to_iterable_dataset()):
            data, statistics = objective.prepare_splits(
                {"train": make(), "validation": make(), "test": make()}, max_samples={"train": 4}
            )
            self.assertIn("input_ids" + PER_EXAMPLE, data["train"].column_names)
            self.assertLen(data["train"], 4)
            self.assertEqual(statistics["train"]["rows"], 4)
            for split in ("validation", "test"):
                self.assertNotIn("input_ids" + PER_EXAMPLE, data[split].column_names)


class SettingsTest(parameterized.TestCase):
    def test_rows_are_as_long_as_an_example_and_those_of_depth_twice(self):
        lengths = []
        for kind in (DepthObjective, SpanCorruptionObjective, PrefixLMObjective):
            objective = kind(TOKENIZER, max_source_length=96, packing=True)
            lengths.append((objective.packed_source_length, objective.packed_target_length))
        self.assertEqual(lengths, [(192, 192), (96, 22), (96, 96)])

    @parameterized.parameters(
        ({"packed_source_length": 100}, "`packed_source_length` is the length of packed rows: it needs `packing`"),
        ({"packing": True, "packed_target_length": 10}, "`packed_target_length` 10 is below the 22 tokens that a"),
        ({"packing": True, "pack_examples": True}, "`pack_examples` joins documents .* choose one of them"),
    )
    def test_settings_that_contradict_each_other_are_refused(self, settings, message):
        with self.assertRaisesRegex(ValueError, message):
            SpanCorruptionObjective(TOKENIZER, max_source_length=96, **settings)

    def test_an_objective_without_bounds_refuses_packing(self):
        with self.assertRaisesRegex(ValueError, "not for the objective 'prefix_lm' of a depth model"):
            DepthPrefixLMObjective(TOKENIZER, packing=True)

    def test_packing_is_compared_when_a_run_is_continued(self):
        described = [
            describe_run(ModelArguments(), data_args=[ObjectiveArguments(**settings)])
            for settings in ({}, {"packing": True}, {"packing": True, "packed_source_length": 1024})
        ]
        for name, values in (("packing", [False, True, True]), ("packed_source_length", [None, None, 1024])):
            self.assertEqual([run[name] for run in described], values)


class CollatorTest(parameterized.TestCase):
    @parameterized.product(objective=OBJECTIVES, form=("numpy", "list", "stream"))
    def test_a_row_is_its_examples_one_after_the_other_each_corrupted_as_if_alone(self, objective, form):
        objective = packed(*objective)
        if form == "stream":
            stream, _ = objective.prepare_splits({"train": documents().to_iterable_dataset()})
            rows = list(takewhile(lambda row: row["stream_epoch"] < 2, stream["train"]))
            self.assertEqual({row["stream_epoch"] for row in rows}, {0, 1})
        else:
            data = objective.prepare(documents())
            rows = list(data if form == "numpy" else data.with_format(None))
        collator = pickle.loads(pickle.dumps(objective.collator(seed=3)))
        collator.set_epoch(5)
        batch = collator(rows)
        for values in batch.values():
            self.assertIn(values.dtype, (torch.int64, torch.bool))
        for index, row in enumerate(rows):
            examples = taken_apart([row])
            alone = [collator([example]) for example in examples]
            sizes = [[part[name].shape[1] for part in alone] for name in ("input_ids", "labels")]
            starts = [torch.cat([torch.tensor([0]), part["labels"][0, :-1]]) for part in alone]
            expected = {
                "input_ids": torch.cat([part["input_ids"][0] for part in alone]),
                "labels": torch.cat([part["labels"][0] for part in alone]),
                "decoder_input_ids": torch.cat(starts),
                "encoder_segment_ids": torch.repeat_interleave(torch.tensor(sizes[0])) + 1,
                "decoder_segment_ids": torch.repeat_interleave(torch.tensor(sizes[1])) + 1,
                "attention_mask": torch.ones(sum(sizes[0]), dtype=torch.bool),
            }
            for name, values in expected.items():
                found = batch[name][index]
                self.assertEqual(found[: len(values)].tolist(), values.tolist(), name)
                padding = -100 if name == "labels" else 0
                self.assertTrue((found[len(values) :] == padding).all(), name)
            self.assertEqual(batch["num_cut_tokens"][index], row["num_cut_tokens"])

    def test_widths_are_the_packed_lengths_or_a_multiple(self):
        objective = packed(DepthObjective, {"packed_source_length": 150, "packed_target_length": 140})
        rows = list(objective.prepare(documents()))
        sources = ("input_ids", "attention_mask", "encoder_segment_ids")
        targets = ("labels", "decoder_input_ids", "decoder_segment_ids")
        for arguments, widths in (
            ({"padding": "max_length"}, (150, 140)),
            ({"padding": "max_length", "pad_to_multiple_of": 64}, (192, 192)),
        ):
            batch = objective.collator(**arguments)(rows)
            for names, width in zip((sources, targets), widths, strict=True):
                self.assertEqual({batch[name].shape for name in names}, {(len(rows), width)})

    def test_columns_that_contradict_each_other_are_refused(self):
        objective = packed(DepthObjective, {})
        rows = list(objective.prepare(documents()).with_format(None))
        collator = objective.collator()
        plain = list(objective.prepare(documents(), packing=False))
        with self.assertRaisesRegex(ValueError, "Some rows of the batch hold several examples .* and some do not"):
            collator([rows[0], plain[0]])
        for name in ("input_ids", "sentence_lengths"):
            wrong = {**rows[1], name + PER_EXAMPLE: rows[1][name + PER_EXAMPLE][1:]}
            with self.assertRaisesRegex(ValueError, f"Row 1 of the batch has .* items in `{name}`, but"):
                collator([rows[0], wrong])

    def test_a_row_that_is_too_long_is_refused(self):
        rows = list(packed(DepthObjective, {"packed_source_length": 400}).prepare(documents()))
        with self.assertRaisesRegex(
            ValueError, r"The examples of row \d+ .* source tokens together, but `packed_sour"
        ):
            packed(DepthObjective, {"packed_source_length": 100}).collator()(rows)
