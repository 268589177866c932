"""What scores are compared with: a bag of words, and the same training from scratch."""

from pathlib import Path

import torch
from datasets import Dataset

from helpers import tiny_tokenizer
from hf_depth import TaskSplits, TaskTrainer, TaskTrainingArguments
from hf_depth.errors import UserError
from tiny_tasks import QUESTIONS, rte_rows
from tiny_training import TrainingTestCase, parameters, tiny_model


class BaselinesTest(TrainingTestCase):
    def trainer(self, splits: TaskSplits) -> TaskTrainer:
        quiet = {"use_cpu": True, "disable_tqdm": True, "report_to": "none"}
        stops_early = {"eval_strategy": "epoch", "save_strategy": "epoch", "early_stopping_patience": 1}
        return TaskTrainer(
            model=tiny_model("t5"),
            args=TaskTrainingArguments(self.folder, max_steps=1, generation_max_length=8, **quiet | stops_early),
            train_dataset=splits.train_dataset(),
            eval_dataset=splits.eval_dataset(),
            processing_class=tiny_tokenizer(),
        )

    def test_each_split_has_the_metrics_of_both_and_the_model_is_left_as_it_is(self):
        rows = {"train": rte_rows(12), "validation": rte_rows(6, seed=1), "test": rte_rows(6, seed=2)}
        splits = TaskSplits.from_datasets("glue/rte", rows).prepare(tiny_tokenizer())
        trained = self.trainer(splits)
        before = parameters(trained.model)
        trained.fit_baselines(splits, ["bag_of_words", "from_scratch"])
        expected = {"bag_of_words_accuracy", "from_scratch_accuracy"}
        for split in ("validation", "test"):
            self.assertContainsSubset(expected, trained.baselines["glue", "rte", split])
        self.assertContainsSubset({f"eval_{name}" for name in expected}, trained.evaluate())
        for name, value in parameters(trained.model).items():
            self.assertTrue(torch.equal(value, before[name]), name)
        self.assertFalse(Path(self.folder, "from_scratch").exists())

    def test_a_bag_of_words_needs_labels_and_its_name(self):
        questions = Dataset.from_dict({"question": ["Why?"] * 2, "answers": [["a"]] * 2})
        rows = {"train": questions, "validation": questions}
        splits = TaskSplits.from_datasets(QUESTIONS, rows).prepare(tiny_tokenizer())
        with self.assertRaisesRegex(UserError, "bag_of_words is for tasks with labels.*questions"):
            self.trainer(splits).fit_baselines(splits, ["bag_of_words"])
        with self.assertRaisesRegex(UserError, "no baseline 'bag_of_word'. Did you mean 'bag_of_words'"):
            self.trainer(splits).fit_baselines(splits, ["bag_of_word"])
