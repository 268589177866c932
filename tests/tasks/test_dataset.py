"""What a trainer takes of a task: batches of prepared examples, and data sets to evaluate on."""

from unittest import mock

import numpy as np
import torch
from absl.testing import parameterized
from datasets import Dataset

from helpers import tiny_tokenizer
from hf_depth import DataCollatorForTasks, TaskDataset
from hf_depth.tasks.dataset import count_tokens, name_datasets
from tiny_tasks import QUESTIONS, RTE, prepared, rte_rows, task_dataset

TOKENIZER = tiny_tokenizer(sentence_tokens=True)


class CollatorTest(parameterized.TestCase):
    def test_the_collator_pads_and_passes_on_no_other_columns(self):
        rows = [
            {
                "input_ids": np.array([5, 6, 1]),
                "labels": np.array([7, 1]),
                "num_cut_tokens": 2,
                "index": 4,
                "text": "x",
            },
            {
                "input_ids": np.array([5, 1]),
                "labels": np.array([7, 8, 1]),
                "num_cut_tokens": 0,
                "index": 3,
                "text": "y",
            },
        ]
        batch = DataCollatorForTasks(TOKENIZER)(rows)
        expected = {
            "input_ids": [[5, 6, 1], [5, 1, 0]],
            "attention_mask": [[1, 1, 1], [1, 1, 0]],
            "labels": [[7, 1, -100], [7, 8, 1]],
            "num_cut_tokens": [2, 0],
            "index": [4, 3],
        }
        self.assertEqual({name: tensor.tolist() for name, tensor in batch.items()}, expected)
        self.assertEqual({tensor.dtype for tensor in batch.values()}, {torch.int64})
        wide = DataCollatorForTasks(TOKENIZER, pad_to_multiple_of=8)(rows)
        self.assertEqual((wide["input_ids"].shape, wide["labels"].shape), ((2, 8), (2, 8)))
        for row in rows:
            del row["labels"]
        self.assertNotIn("labels", DataCollatorForTasks(TOKENIZER)(rows))

    def test_examples_that_are_not_prepared_are_refused_with_the_remedy(self):
        message = "no column 'input_ids', but: 'sentence1', .* `TaskSplits.load.*prepare.* `prepare_task.*TaskPrep"
        with self.assertRaisesRegex(ValueError, message):
            DataCollatorForTasks(TOKENIZER)([rte_rows(1)[0]])


class TaskDatasetTest(parameterized.TestCase):
    def test_long_examples_come_first_and_batches_hold_little_padding(self):
        dataset = task_dataset(rte_rows(40), "t5")
        lengths = [len(dataset[i]["input_ids"]) for i in range(len(dataset))]
        self.assertEqual(lengths, sorted(lengths, reverse=True))
        self.assertEqual(sorted(dataset[i]["index"] for i in range(40)), list(range(40)))

    def test_ids_that_are_not_those_of_the_examples_are_refused(self):
        rows = rte_rows(3)
        for ids in (rows, prepared(rows.select([0, 1]), "t5")):
            with self.assertRaisesRegex(
                ValueError, "`prepared` must hold the ids of the 3 examples of glue/rte .*prep"
            ):
                TaskDataset(RTE, "validation", rows, ids)

    def test_names_tell_splits_and_tasks_apart_and_one_needs_none(self):
        rows = rte_rows(2)
        one, other = task_dataset(rows, "t5", "a"), task_dataset(rows, "t5", "b")
        questions = task_dataset(Dataset.from_dict({"question": ["Who?"], "answers": [["me"]]}), "t5", spec=QUESTIONS)
        self.assertIs(name_datasets([one]), one)
        self.assertEqual(list(name_datasets([one, other])), ["a", "b"])
        self.assertEqual(list(name_datasets([one, other, questions])), ["rte_a", "rte_b", "questions"])

    def test_tokens_are_counted_in_all_examples_whatever_their_format_and_order(self):
        ids = [[9, 9, 1], [1], [4, 1], [], [9, 1]] * 7
        data = Dataset.from_dict({"input_ids": ids, "labels": [[12, -100], []] + [[3]] * 33})
        expected = [21, 14, 12]
        for examples in (data, data.with_format("numpy"), data.select(range(34, -1, -1)), list(data)):
            counts = count_tokens(examples, 9)
            self.assertEqual([counts.with_text, counts.with_token, counts.greatest_id], expected)
        for chosen, expected in (([4, 1, 4, 2, 4], [4, 3, 9]), (range(2, 5), [2, 1, 9]), ([2, 2], [2, 0, 4])):
            counts = count_tokens(data.select(chosen), 9)
            self.assertEqual([counts.with_text, counts.with_token, counts.greatest_id], expected)
        empty = count_tokens(data.select([]), 9)
        self.assertEqual([empty.with_text, empty.with_token, empty.greatest_id], [0, 0, -1])

    def test_rows_that_a_mixture_draws_are_read_where_they_are_stored(self):
        rng = np.random.default_rng(0)
        ids = [rng.integers(2, 12, rng.integers(0, 9)).tolist() for _ in range(25_000)]
        data = Dataset.from_dict({"input_ids": ids, "labels": [[1]] * len(ids)})
        drawn = rng.integers(0, len(ids), 60_000)
        chosen = [ids[number] for number in drawn]
        expected = [sum(len(row) > 1 for row in chosen), sum(9 in row for row in chosen), 11]
        with mock.patch("datasets.arrow_dataset.query_table", side_effect=AssertionError("gathered")):
            counts = count_tokens(data.select(drawn), 9)
        self.assertEqual([counts.with_text, counts.with_token, counts.greatest_id], expected)
