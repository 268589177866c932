"""Laws of packed rows: nothing is lost or torn, lengths hold whatever is drawn, noise is that of single examples."""

import pickle
from collections import Counter
from itertools import takewhile

import numpy as np
import torch
from absl.testing import parameterized
from datasets import Dataset

from helpers import SENTENCES, tiny_tokenizer
from hf_depth import DepthObjective, PrefixLMObjective, SpanCorruptionObjective
from hf_depth.data.packing import PER_EXAMPLE, pack, unpack_rows

TOKENIZER = tiny_tokenizer(sentence_tokens=True)
OBJECTIVES = (
    (DepthObjective, {}),
    (DepthObjective, {"min_sentences": 2, "packed_target_length": 120}),
    (SpanCorruptionObjective, {}),
    (PrefixLMObjective, {}),
)


def documents(number: int = 30, seed: int = 0) -> Dataset:
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
    @parameterized.parameters(100, 40)  # the targets bind: hardly ever, always
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

    @parameterized.parameters(*OBJECTIVES)
    def test_both_lengths_hold_whatever_is_drawn(self, kind, settings):
        objective = packed(kind, settings)
        rows = list(objective.prepare(documents()))
        collator = objective.collator()
        for epoch in range(4):
            collator.set_epoch(epoch)
            batch = collator(rows)
            self.assertLessEqual(batch["input_ids"].shape[1], objective.packed_source_length)
            self.assertLessEqual(batch["labels"].shape[1], objective.packed_target_length)

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


class CollatorTest(parameterized.TestCase):
    @parameterized.parameters(
        *((one, "stream") for one in OBJECTIVES), (OBJECTIVES[0], "numpy"), (OBJECTIVES[2], "list")
    )
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
            expected = {
                "input_ids": torch.cat([part["input_ids"][0] for part in alone]),
                "labels": torch.cat([part["labels"][0] for part in alone]),
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

    def test_columns_that_contradict_each_other_are_refused(self):
        objective = packed(DepthObjective, {})
        rows = list(objective.prepare(documents()).with_format(None))
        collator = objective.collator()
        wrong = {**rows[1], "input_ids_per_example": rows[1]["input_ids_per_example"][1:]}
        with self.assertRaisesRegex(ValueError, "items in `input_ids`, but their examples"):
            collator([rows[0], wrong])
        with self.assertRaisesRegex(ValueError, r"The examples of row \d+ .* tokens together, but `packed_sour"):
            packed(DepthObjective, {"packed_source_length": 100}).collator()(rows)
