"""What a trainer takes of a task: batches of prepared examples, and data sets to evaluate on."""

from tempfile import TemporaryDirectory

import numpy as np
import torch
from absl.testing import parameterized
from datasets import Dataset

from helpers import tiny_tokenizer
from hf_depth import DataCollatorForTasks
from hf_depth.tasks.dataset import TaskDataset, name_datasets
from tiny_tasks import QUESTIONS, RTE, prepared, rte_rows, task_dataset, trainer

TOKENIZER = tiny_tokenizer(sentence_tokens=True)


class CollatorTest(parameterized.TestCase):
    def test_the_collator_pads_and_passes_on_no_other_columns(self):
        columns = ("input_ids", "labels", "num_cut_tokens", "index", "text")
        values = [
            (np.array([5, 6, 1]), np.array([7, 1]), 2, 4, "x"),
            (np.array([5, 1]), np.array([7, 8, 1]), 0, 3, ""),
        ]
        rows = [dict(zip(columns, row, strict=True)) for row in values]
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
    def test_examples_stay_in_their_order_and_tell_their_places(self):
        dataset = task_dataset(rte_rows(40), "t5")
        self.assertEqual([dataset[i]["index"] for i in range(len(dataset))], list(range(40)))
        self.assertEqual(dataset[7]["input_ids"].tolist(), dataset.prepared[7]["input_ids"].tolist())

    def test_ids_that_are_not_those_of_the_examples_are_refused(self):
        rows = rte_rows(3)
        for ids in (rows, prepared(rows.select([0, 1]), "t5")):
            with self.assertRaisesRegex(
                ValueError, "`prepared` must hold the ids of the 3 examples of glue/rte .*prep"
            ):
                TaskDataset(RTE, "validation", rows, ids)

    def test_rows_alone_are_enough_for_what_runs_no_model(self):
        rows = rte_rows(3)
        self.assertTrue(TaskDataset(RTE, "validation", rows).has_targets)
        unlabeled = rows.remove_columns("label").add_column("label", [-1] * 3)
        self.assertFalse(TaskDataset(RTE, "test", unlabeled).has_targets)
        with self.assertRaisesRegex(ValueError, "has no column 'input_ids'.* `prepare_task"):
            trainer("t5", self.enterContext(TemporaryDirectory()), rows, TaskDataset(RTE, "validation", rows))

    def test_names_tell_splits_and_tasks_apart_and_one_needs_none(self):
        rows = rte_rows(2)
        one, other = task_dataset(rows, "t5", "a"), task_dataset(rows, "t5", "b")
        questions = task_dataset(Dataset.from_dict({"question": ["Who?"], "answers": [["me"]]}), "t5", spec=QUESTIONS)
        self.assertIs(name_datasets([one]), one)
        self.assertEqual(list(name_datasets([one, other])), ["a", "b"])
        self.assertEqual(list(name_datasets([one, other, questions])), ["rte_a", "rte_b", "questions"])
