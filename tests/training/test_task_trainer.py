import copy
import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from absl.testing import absltest, parameterized
from datasets import Dataset

import tiny_tasks
from helpers import SENTENCES, process_environment, tiny_tokenizer
from hf_depth import TaskTrainingArguments, get_task
from hf_depth.tasks.dataset import name_datasets
from hf_depth.tasks.preprocessing import encode_labels
from hf_depth.training.checkpoints import best_checkpoint, is_finished, last_complete_checkpoint
from tiny_tasks import QUESTIONS, RTE, rte_rows, task_dataset, trainer
from tiny_training import parameters, tiny_model

KINDS = ("depth", "t5", "stock_t5")


@functools.cache
def memorised_model(kind: str):
    """A model that has learnt 32 rows with labels at random by heart."""
    with tempfile.TemporaryDirectory() as folder:
        trained = trainer(kind, folder, rte_rows(32), max_steps=100)
        trained.train()
        return trained.model


def memorised(kind: str, folder: str, **arguments):
    """A trainer of a copy of it."""
    return trainer(kind, folder, rte_rows(32), model=copy.deepcopy(memorised_model(kind)), **arguments)


class TestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name


class OverfitTest(TestCase):
    @parameterized.parameters("depth", "t5")
    def test_rows_are_learnt_by_heart_and_answered_by_generation_and_by_scores(self, kind):
        trained = memorised(kind, self.folder)
        generated = trained.evaluate()
        self.assertEqual((generated["eval_accuracy"], generated["eval_unparsed_fraction"]), (1.0, 0.0))
        by_generation = trained.evaluations["glue", "rte", "validation"].predictions
        trained.args.prediction_mode = "score_labels"
        scored = trained.evaluate()
        self.assertEqual(scored["eval_accuracy"], 1.0)
        self.assertNotIn("eval_unparsed_fraction", scored)
        by_scores = trained.evaluations["glue", "rte", "validation"].predictions
        np.testing.assert_array_equal(by_generation.label_ids, by_scores.label_ids)
        self.assertEqual(scored["eval_loss"], generated["eval_loss"])
        self.assertContainsSubset({"eval_score": 1.0, "eval_chance_accuracy": 0.5}.items(), scored.items())

    def test_an_answer_comes_from_generation_not_from_teacher_forcing(self):
        trained = memorised("t5", self.folder)
        text = RTE.labels[0]
        # A model that writes the right label after any beginning of it, but begins with something else.
        start = encode_labels(tiny_tokenizer(True), [text])[0, 0].item()
        with torch.no_grad():
            trained.model.lm_head.weight[start] = 0.0
        trained.evaluate()
        predictions = trained.evaluations["glue", "rte", "validation"].predictions
        self.assertNotIn(text, predictions.answers)
        self.assertLess(trained.evaluations["glue", "rte", "validation"].metrics["accuracy"], 0.6)


class EvaluationTest(TestCase):
    def trainer(self, kind="t5", number=7, eval_dataset=None, **arguments):
        rows = rte_rows(number)
        return trainer(kind, self.folder, rows, eval_dataset, model=tiny_model(kind), **arguments)

    @parameterized.product(kind=KINDS, mode=("generate", "score_labels"))
    def test_batches_and_order_change_no_prediction(self, kind, mode):
        outputs = []
        for batch_size in (1, 3, 16):
            evaluated = self.trainer(kind, per_device_eval_batch_size=batch_size, prediction_mode=mode)
            metrics = evaluated.evaluate()
            predictions = evaluated.evaluations["glue", "rte", "validation"].predictions
            outputs.append((predictions.answers if mode == "generate" else predictions.scores, metrics["eval_loss"]))
        for output, loss in outputs[1:]:
            if mode == "generate":
                self.assertEqual(output, outputs[0][0])
            else:
                np.testing.assert_allclose(output, outputs[0][0], rtol=1e-6)
            self.assertAlmostEqual(loss, outputs[0][1], delta=1e-5)

    def test_predictions_are_those_of_each_row_alone(self):
        evaluated = self.trainer("depth", prediction_mode="score_labels")
        evaluated.evaluate()
        scores = evaluated.evaluations["glue", "rte", "validation"].predictions.scores
        rows = evaluated.eval_dataset.rows
        for index in (0, 3, 6):
            alone = task_dataset(rows.select([index]), "depth")
            evaluated.evaluate(alone)
            expected = evaluated.evaluations["glue", "rte", "validation"].predictions.scores[0]
            np.testing.assert_allclose(scores[index], expected, rtol=1e-6)

    def test_long_rows_come_first_and_batches_hold_little_padding(self):
        dataset = task_dataset(rte_rows(40), "t5")
        lengths = [len(dataset[i]["input_ids"]) for i in range(len(dataset))]
        self.assertEqual(lengths, sorted(lengths, reverse=True))
        self.assertEqual(sorted(dataset[i]["index"] for i in range(40)), list(range(40)))

    def test_predict_returns_what_was_found_for_each_row(self):
        evaluated = self.trainer(prediction_mode="score_labels")
        output = evaluated.predict(evaluated.eval_dataset, metric_key_prefix="predict")
        np.testing.assert_array_equal(output.predictions.label_ids, output.predictions.scores.argmax(1))
        expected = np.mean(output.predictions.label_ids == np.array(evaluated.eval_dataset.rows["label"][:]))
        self.assertAlmostEqual(output.metrics["predict_accuracy"], expected)

    def test_length_normalised_scores_are_the_sums_divided_by_the_lengths(self):
        scores = []
        for normalized in (False, True):
            evaluated = self.trainer(prediction_mode="score_labels", length_normalize_scores=normalized)
            evaluated.evaluate()
            scores.append(evaluated.evaluations["glue", "rte", "validation"].predictions.scores)
        lengths = (encode_labels(tiny_tokenizer(True), list(RTE.labels.values())) >= 0).sum(1).numpy()
        np.testing.assert_allclose(scores[1], scores[0] / lengths, rtol=1e-5)

    @parameterized.parameters("generate", "score_labels")
    def test_hidden_labels_are_predicted_without_scores(self, mode):
        rows = rte_rows(6)
        hidden = rows.remove_columns("label").add_column("label", [-1] * 6)
        evaluated = self.trainer(prediction_mode=mode, eval_dataset=task_dataset(hidden, "t5", "test"))
        metrics = evaluated.evaluate()
        self.assertLen(evaluated.evaluations["glue", "rte", "test"].predictions.label_ids, 6)
        self.assertNotIn("eval_accuracy", metrics)
        self.assertNotIn("eval_loss", metrics)
        self.assertNotIn("eval_score", metrics)

    def test_rows_with_hidden_labels_count_for_nothing_beside_others(self):
        rows = rte_rows(6)
        some = rows.remove_columns("label").add_column("label", [-1, 1, -1, 0, 0, -1])
        both = [task_dataset(data, "t5") for data in (some, some.select([1, 3, 4]))]
        evaluated = self.trainer(prediction_mode="score_labels", per_device_eval_batch_size=1)
        metrics, expected = (evaluated.evaluate(dataset) for dataset in both)
        self.assertEqual(metrics["eval_accuracy"], expected["eval_accuracy"])
        self.assertAlmostEqual(metrics["eval_loss"], expected["eval_loss"], delta=1e-5)

    def test_several_data_sets_have_names_and_one_score(self):
        rows = rte_rows(6)
        questions = Dataset.from_dict({"question": SENTENCES[:4], "answers": [["a", "b"]] * 4})
        mnli = get_task("mnli", "glue")
        pairs = rows.rename_columns({"sentence1": "premise", "sentence2": "hypothesis"})
        datasets = [
            task_dataset(rows, "t5"),
            *(task_dataset(pairs, "t5", split, mnli) for split in mnli.validation_splits),
            task_dataset(questions, "t5", spec=QUESTIONS),
        ]
        evaluated = self.trainer(eval_dataset=name_datasets(datasets))
        metrics = evaluated.evaluate()
        first = ("rte_accuracy", "mnli_validation_matched_accuracy", "questions_rougeL")
        self.assertContainsSubset([f"eval_{name}" for name in first], metrics)
        self.assertIn("eval_mnli_validation_mismatched_accuracy", metrics)
        scores = [metrics[f"eval_{name}"] / (100 if name.endswith("rougeL") else 1) for name in first]
        self.assertAlmostEqual(metrics["eval_score"], np.mean(scores))
        self.assertLen(evaluated.state.log_history, 1)
        evaluated.args.prediction_mode = "score_labels"
        with self.assertRaisesRegex(ValueError, "questions.*open text.*generate"):
            evaluated.evaluate()

    def test_a_label_beside_a_special_token_is_no_answer(self):
        tokenizer = tiny_tokenizer(sentence_tokens=True)
        label = tokenizer.encode("entailment", add_special_tokens=False)
        sentinel, end, pad = tokenizer.convert_tokens_to_ids(["<extra_id_0>", "</s>", "<pad>"])
        rows = [[*label, end, sentinel], [sentinel, *label, end], [*label, end, -100], [*label, pad, pad]]
        generated = np.array([[pad, *row] for row in rows])
        texts = self.trainer()._texts(generated)
        self.assertEqual([texts[0], *texts[2:]], ["entailment"] * 3)
        self.assertEqual([RTE.parse(text) for text in texts], [0, -1, 0, 0])
        self.assertIn("<extra_id_0>", texts[1])

    @parameterized.parameters(False, True)
    def test_persistent_workers_of_one_data_set_read_no_other(self, several):
        rows, tests = rte_rows(5), rte_rows(3, seed=1)
        own = task_dataset(rows, "t5")
        own = {"a": own, "b": task_dataset(rows, "t5", "other")} if several else own
        arguments = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
        evaluated = self.trainer(eval_dataset=own, **arguments)
        for _ in range(2):
            evaluated.evaluate()
            evaluated.evaluate_tasks(task_dataset(tests, "t5", "test"))
            self.assertLen(evaluated.evaluations["glue", "rte", "test"].predictions.answers, 3)
            self.assertLen(evaluated.evaluations["glue", "rte", "validation"].predictions.answers, 5)

    def test_no_accuracy_of_teacher_forcing_is_reported(self):
        metrics = self.trainer("depth").evaluate()
        self.assertEmpty([name for name in metrics if "reconstruction" in name or "sentence" in name])


class TrainingTest(TestCase):
    def test_the_best_model_is_that_of_the_best_score_and_training_stops_early(self):
        # Trained on the wrong labels, the model only gets worse at the right ones.
        best = copy.deepcopy(memorised_model("t5"))
        arguments = {"max_steps": 60, "save_strategy": "steps", "save_steps": 6, "eval_strategy": "steps"}
        arguments |= {"eval_steps": 6, "early_stopping_patience": 2, "prediction_mode": "score_labels"}
        right = rte_rows(32).select(range(16))
        wrong = right.map(lambda row: {"label": 1 - row["label"]})
        trained = trainer("t5", self.folder, wrong, task_dataset(right, "t5"), best, **arguments)
        with self.assertLogs("hf_depth.training.callbacks", "INFO") as logs:
            trained.train()
        self.assertRegex(
            logs.output[-1], f"Stopping early at step {trained.state.global_step}: .*score in 2 evaluations"
        )
        scores = [log["eval_score"] for log in trained.state.log_history if "eval_score" in log]
        self.assertEqual(trained.state.best_metric, max(scores))
        self.assertLen(scores, scores.index(max(scores)) + 3)  # two evaluations that were no better
        self.assertLess(trained.state.global_step, 60)
        self.assertEqual(trained.evaluate()["eval_score"], max(scores))  # the best model was loaded
        checkpoint = last_complete_checkpoint(self.folder)
        self.assertTrue(is_finished(checkpoint, trained.args))  # though not at step 60
        self.assertEqual(best_checkpoint(checkpoint, trained.args), trained.state.best_model_checkpoint)
        trained.args.early_stopping_patience = 9
        self.assertFalse(is_finished(checkpoint, trained.args))

    @parameterized.parameters("depth", "t5")
    def test_training_moves_every_parameter(self, kind):
        trained = trainer(kind, self.folder, rte_rows(16), model=tiny_model(kind))
        before = parameters(trained.model)
        trained.train()
        log = trained.state.log_history[0]
        self.assertNotIn("eval_accuracy", log)
        same = [name for name, value in parameters(trained.model).items() if torch.equal(value, before[name])]
        self.assertEmpty(same)

    @parameterized.parameters(
        ({"prediction_mode": "guess"}, "prediction_mode.*generate, score_labels.*guess"),
        ({"predict_with_generate": False}, "predict_with_generate.*score_labels"),
        ({"early_stopping_patience": 0, "eval_strategy": "steps", "eval_steps": 500}, "early_stopping_patience"),
        ({"early_stopping_patience": 2}, "early_stopping_patience.*eval_strategy"),
        ({"early_stopping_threshold": -1.0}, "early_stopping_threshold"),
    )
    def test_bad_arguments_are_refused(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            TaskTrainingArguments(self.folder, use_cpu=True, **arguments)


class ProcessesTest(TestCase):
    def test_two_processes_predict_seven_rows_as_one_does(self):
        arguments = json.dumps({"per_device_eval_batch_size": 2})
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
        command += [tiny_tasks.__file__, "depth", self.folder, "7", arguments]
        result = subprocess.run(command, env=process_environment(), capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        written = json.loads(Path(self.folder, "evaluations.json").read_text())
        tiny_tasks.main("depth", self.folder, "7", arguments)
        expected = json.loads(Path(self.folder, "evaluations.json").read_text())
        self.assertEqual(written["generate"]["outputs"], expected["generate"]["outputs"])
        scores = [found["score_labels"]["outputs"] for found in (written, expected)]
        np.testing.assert_allclose(*scores, rtol=1e-6)
        for mode in expected:
            for name in ("eval_accuracy", "eval_loss", "eval_majority_accuracy"):
                metrics = [found[mode]["metrics"][name] for found in (written, expected)]
                self.assertAlmostEqual(*metrics, delta=1e-5)


if __name__ == "__main__":
    absltest.main()
