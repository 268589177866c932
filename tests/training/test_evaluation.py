"""Evaluations: metrics of examples and labels, the same in any batches, with metadata and without."""

import multiprocessing
from types import MappingProxyType
from unittest import mock

import numpy as np
import torch
from absl.testing import absltest, parameterized
from datasets import Dataset

from helpers import SENTENCES, tiny_tokenizer
from hf_depth import DepthObjective, DepthTrainer
from hf_depth.training.collators import objective_collator
from hf_depth.training.statistics import is_shuffled
from tiny_training import WRAPPERS, TrainingTestCase, parameters, rows, tiny_model, trainer

ALL_KINDS = ("depth", "t5", "stock_t5")
PERSISTENT = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}


class MetadataTest(TrainingTestCase):
    def data(self, number=7):
        """Examples with metadata, and every third one without any."""
        ids = rows(40)[39]["input_ids"][:9]
        return [{**row, "metadata_ids": ids[: i % 3 * 4]} for i, row in enumerate(rows(number))]

    def losses_of(self, run, probability):
        """The sum of the losses of each kind of label, of a batch that is made for it."""
        kind = type(objective_collator(run.data_collator))
        collator = kind(tiny_tokenizer(sentence_tokens=True), metadata_probability=probability)
        batch = collator(self.data())
        return (run.model.eval()(**batch).token_losses.sum() / (batch["labels"] != -100).sum()).item()

    @parameterized.product(kind=("depth", "t5"), workers=(0, 1), wrapper=("none", "wrapper"))
    def test_an_evaluation_is_one_without_metadata_and_one_with_all(self, kind, workers, wrapper):
        persistent = {"dataloader_num_workers": workers, "dataloader_persistent_workers": bool(workers)}
        run = trainer(kind, self.folder, **persistent)
        collator = run.data_collator
        run = DepthTrainer(run.model, run.args, WRAPPERS[wrapper](collator), eval_dataset=run.eval_dataset)
        run.eval_dataset = self.data()
        plain = trainer(kind, self.folder, model=run.model).evaluate()
        for _ in range(2):
            metrics = run.evaluate()
            for name, probability in (("eval_loss", 0.0), ("eval_with_metadata_loss", 1.0)):
                self.assertAlmostEqual(metrics[name], self.losses_of(run, probability), delta=1e-5)
            self.assertNotAlmostEqual(metrics["eval_loss"], metrics["eval_with_metadata_loss"], delta=3e-5)
            times = ("runtime", "per_second", "preparation_time")
            same = {name: value for name, value in plain.items() if not name.endswith(times)}
            self.assertEqual({name: metrics[name] for name in same}, same)
            twice = [name for name in same if "attention_entropy" not in name]
            self.assertContainsSubset([name.replace("eval_", "eval_with_metadata_", 1) for name in twice], metrics)
        self.assertLen([log for log in run.state.log_history if "eval_with_metadata_loss" in log], 2)
        self.assertEqual(collator.metadata_probability, 0.5)

    def test_un_shuffling_and_predictions_come_with_and_without_metadata(self):
        run = trainer("depth", self.folder, predict_with_generate=True, generation_max_length=40)
        run.eval_dataset = self.data(3)
        metrics = run.evaluate()
        self.assertContainsSubset(["eval_order_exact", "eval_with_metadata_order_exact"], metrics)
        self.assertEqual(set(run.unshuffling), {"eval", "eval_with_metadata"})
        output = run.predict(self.data(3), metric_key_prefix="predict")
        self.assertLen(output.predictions, 3)
        self.assertContainsSubset(["predict_loss", "predict_with_metadata_loss"], output.metrics)

    @parameterized.product(kind=("depth", "t5"), sets=("plain", "some", "all"))
    def test_the_metrics_to_choose_the_best_model_by_are_those_that_are_reported(self, kind, sets):
        generation = {"predict_with_generate": True, "generation_max_length": 9, "constrain_sentence_order": True}
        run = trainer(kind, self.folder, **generation if kind == "depth" else {})
        several = {"a": self.data(9) if sets == "all" else rows(9), "b": rows(9) if sets == "plain" else self.data(9)}
        for datasets in (several, several["b"]):
            run.eval_dataset = datasets
            others = ("runtime", "per_second", "preparation_time", "epoch")
            reported = [name.removeprefix("eval_") for name in run.evaluate() if not name.endswith(others)]
            reported = [name for name in reported if "attention_entropy" not in name]  # no measure of quality
            self.assertCountEqual(run.metric_names(), reported)

    def test_several_data_sets_with_metadata_are_one_with_all_of_them(self):
        run = trainer("depth", self.folder, per_device_eval_batch_size=1)
        run.eval_dataset = {"a": self.data()[:3], "b": self.data()[3:]}
        together, alone = run.evaluate(), run.evaluate(self.data())
        for name, value in alone.items():
            if "with_metadata" in name and "second" not in name and "time" not in name:
                self.assertAlmostEqual(together[name], value, delta=1e-5, msg=name)

    @parameterized.parameters("with_metadata_loss", "eval_with_metadata_reconstruction_loss")
    def test_the_best_model_can_be_that_with_metadata(self, name):
        arguments = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "best", "metric_for_best_model": name}
        run = trainer("t5", self.folder, number_of_rows=2, **arguments)
        with self.assertRaisesRegex(ValueError, f"{name.removeprefix('eval_')}' is no metric of the evaluation"):
            run.train()
        run.eval_dataset = self.data()
        run.train()
        (log,) = (log for log in run.state.log_history if "eval_with_metadata_loss" in log)
        self.assertEqual(run.state.best_metric, log[f"eval_{name.removeprefix('eval_')}"])

    @parameterized.parameters(False, True)
    def test_a_resumed_run_draws_the_same_metadata(self, streaming):
        arguments = {"max_steps": 10, "learning_rate": 0.1, "per_device_train_batch_size": 2}
        objective = DepthObjective(
            tiny_tokenizer(sentence_tokens=True),
            max_source_length=96,
            metadata_columns=["title"],
            max_metadata_length=16,
        )
        texts = [" ".join(SENTENCES[i:][:4]) for i in range(10)]
        documents = Dataset.from_dict({"text": texts, "title": [f"Number {i}" for i in range(10)]})
        documents = documents.to_iterable_dataset(num_shards=2) if streaming else documents

        def run_of(**changes):
            seen = []
            model = tiny_model("depth", dropout_rate=0.1)
            model.register_forward_pre_hook(
                lambda module, args, kwargs: seen.append(kwargs["input_ids"].tolist()), with_kwargs=True
            )
            run = trainer("depth", self.folder, model=model, **arguments | changes)
            run.train_dataset = objective.prepare_splits({"train": documents}, shuffle_buffer_size=4)[0]["train"]
            return run, seen

        whole, seen = run_of()
        whole.train()
        run_of(max_steps=6, save_strategy="steps", save_steps=6)[0].train()
        resumed, rest = run_of()
        resumed.train(resume_from_checkpoint=True)
        self.assertEqual(rest, seen[-4:])
        for name, value in parameters(whole.model).items():
            self.assertTrue(torch.equal(value, parameters(resumed.model)[name]), name)
        eosen = objective.collator().tokenizer.convert_tokens_to_ids("<eosen>")
        with_metadata = [ids[0] != eosen for batch in seen for ids in batch]
        self.assertBetween(sum(with_metadata), 3, 17)  # of 20: neither none nor all


class EvaluationTest(TrainingTestCase):
    @parameterized.parameters("depth", "t5")
    def test_batch_size_does_not_change_the_metrics(self, kind):
        results = [trainer(kind, self.folder, per_device_eval_batch_size=size).evaluate() for size in (1, 3, 7)]
        for key in ("eval_loss", "eval_reconstruction_loss", "eval_reconstruction_accuracy"):
            for result in results[1:]:
                self.assertAlmostEqual(result[key], results[0][key], delta=1e-5, msg=key)

    def test_untrained_model_is_measured_against_chance(self):
        metrics = trainer("depth", self.folder).evaluate()
        data = rows(7)
        lengths = [len(row["sentence_lengths"]) for row in data]
        chance = sum(1 / k for n in lengths for k in range(1, n + 1)) / sum(lengths)
        self.assertAlmostEqual(metrics["eval_sentence_accuracy_chance"], chance, delta=1e-6)
        run = trainer("depth", self.folder)
        batches = list(run.get_eval_dataloader())
        shuffled = sum(is_shuffled(b["input_ids"], b["labels"], run.model.config).sum().item() for b in batches)
        self.assertBetween(shuffled, 1, 6)
        self.assertAlmostEqual(metrics["eval_shuffled_fraction"], shuffled / 7)
        self.assertEqual(metrics["eval_tokens_cut"], 0)

    def test_t5_has_no_sentence_metrics(self):
        metrics = trainer("t5", self.folder).evaluate()
        self.assertEmpty([name for name in metrics if "sentence" in name or "shuffled" in name or "order" in name])

    def test_cut_tokens_are_counted(self):
        run = trainer("depth", self.folder)
        data = [{**row, "num_cut_tokens": 3} for row in rows(7)]
        self.assertEqual(run.evaluate(data)["eval_tokens_cut"], 21)

    def test_no_logits_are_kept(self):
        run = trainer("depth", self.folder)
        output = run.evaluation_loop(run.get_eval_dataloader(), "Evaluation", metric_key_prefix="eval")
        self.assertIsNone(output.predictions)
        self.assertIsNone(output.label_ids)

    def test_generation_scores_the_order_and_predict_returns_it(self):
        run = trainer("depth", self.folder, predict_with_generate=True, generation_max_length=40)
        metrics = run.evaluate()
        self.assertIn("eval_order_exact", metrics)
        self.assertBetween(metrics["eval_order_kendall_tau"], -1.0, 1.0)
        output = run.predict(rows(3), metric_key_prefix="predict")
        self.assertLen(output.predictions, 3)
        self.assertLen(output.label_ids, 3)
        self.assertIn("predict_order_kendall_tau", output.metrics)

    def test_constrained_order_comes_beside_the_free_one_which_stays(self):
        arguments = {"predict_with_generate": True, "generation_max_length": 40}
        free = trainer("depth", self.folder, **arguments).evaluate()
        run = trainer("depth", self.folder, constrain_sentence_order=True, **arguments)
        metrics = run.evaluate()
        for name, value in free.items():
            if "time" not in name and "per_second" not in name:
                self.assertEqual(metrics[name], value, name)
        names = [f"eval_order_{name}{shuffled}" for name in ("exact", "kendall_tau") for shuffled in ("", "_shuffled")]
        names = [name.replace("exact", "exact_constrained").replace("tau", "tau_constrained") for name in names]
        self.assertContainsSubset(names, metrics)
        self.assertEmpty([name for name in free if "constrained" in name])
        # Whatever the weights, each order is complete: no pair of sentences is missing.
        self.assertGreater(metrics["eval_order_kendall_tau_constrained"], metrics["eval_order_kendall_tau"])
        self.assertEqual(list(run.unshuffling), ["eval"])
        for decoding, prefix in (("free", ""), ("constrained", "_constrained")):
            entries = run.unshuffling["eval"][decoding]["all"]["by_number_of_sentences"]
            self.assertEqual(sum(entry["examples"] for entry in entries), 7)
            exact = sum(entry["correct"] for entry in entries) / 7
            self.assertAlmostEqual(exact, metrics[f"eval_order_exact{prefix}"])

    @parameterized.parameters("", "a")
    def test_an_evaluation_in_small_batches_or_of_named_data_counts_the_same(self, name):
        arguments = {"predict_with_generate": True, "constrain_sentence_order": True, "generation_max_length": 30}
        expected = trainer("depth", self.folder, **arguments)
        expected.evaluate()
        run = trainer("depth", self.folder, per_device_eval_batch_size=2, **arguments)
        run.evaluate({name: rows(7)} if name else None)
        self.assertEqual(run.unshuffling[f"eval_{name}" if name else "eval"], expected.unshuffling["eval"])

    def test_the_constraint_is_for_depth_models(self):
        with self.assertRaisesRegex(ValueError, "`constrain_sentence_order` needs a DEPTH model"):
            trainer("t5", self.folder, predict_with_generate=True, constrain_sentence_order=True)

    @parameterized.parameters(({"max_new_tokens": 3},), ({"num_beams": 2, "max_length": 9},))
    def test_the_constraint_holds_beside_settings_of_generation(self, settings):
        run = trainer("depth", self.folder, predict_with_generate=True, constrain_sentence_order=True)
        metrics = run.evaluate(**settings)
        expected = trainer("depth", self.folder, predict_with_generate=True, generation_max_length=40)
        self.assertGreater(
            metrics["eval_order_kendall_tau_constrained"], expected.evaluate()["eval_order_kendall_tau"]
        )

    def test_persistent_workers_of_one_data_set_read_no_other(self):
        first, second = rows(7), rows(12)[7:]
        expected = [trainer("t5", self.folder).evaluate(data)["eval_loss"] for data in (first, second)]
        self.assertNotAlmostEqual(*expected, delta=1e-3)
        others = {*multiprocessing.active_children()}
        run = trainer("t5", self.folder, **PERSISTENT)
        for _ in range(2):
            metrics = run.evaluate() | run.evaluate({"a": first, "b": second})
            losses = [metrics["eval_a_loss"], metrics["eval_b_loss"]]
            losses += [run.evaluate(first)["eval_loss"], run.evaluate(second)["eval_loss"]]
            losses += [run.evaluate()["eval_loss"], run.predict(second).metrics["test_loss"]]
            np.testing.assert_allclose(losses, expected * 3, atol=1e-6)
        self.assertEmpty({*multiprocessing.active_children()} - others)
        run.end()

    def test_persistent_workers_read_the_data_sets_that_the_trainer_has_now(self):
        first, second = rows(7), rows(12)[7:]
        expected = [trainer("t5", self.folder).evaluate(data)["eval_loss"] for data in (first, second)]
        run = trainer("t5", self.folder, **PERSISTENT)
        run.evaluate()
        run.eval_dataset = second
        self.assertAlmostEqual(run.evaluate()["eval_loss"], expected[1], delta=1e-6)
        run.eval_dataset = {"a": first, "b": second}
        run.evaluate()
        run.eval_dataset["b"] = first
        metrics = run.evaluate()
        self.assertAlmostEqual(metrics["eval_b_loss"], expected[0], delta=1e-6)
        self.assertAlmostEqual(metrics["eval_a_loss"], expected[0], delta=1e-6)
        run.end()

    def test_the_best_model_can_be_that_of_one_of_several_data_sets_in_any_mapping(self):
        arguments = {"eval_strategy": "steps", "save_strategy": "best", "metric_for_best_model": "b_loss"}
        run = trainer("t5", self.folder, eval_steps=1, **arguments)
        run.eval_dataset = MappingProxyType({"a": rows(3), "b": rows(7)})
        run.train()
        (log,) = (log for log in run.state.log_history if "eval_b_loss" in log)
        self.assertEqual(run.state.best_metric, log["eval_b_loss"])

    def test_one_of_several_data_sets_is_evaluated_by_its_name(self):
        run = trainer("t5", self.folder)
        expected = run.evaluate(rows(3))["eval_loss"]
        run.eval_dataset = {"a": rows(3), "b": rows(7)}
        self.assertEqual(run.evaluate("a")["eval_loss"], expected)

    def test_datasets_rows_work_like_lists(self):
        data = Dataset.from_list(rows(7))
        run = trainer("depth", self.folder)
        self.assertAlmostEqual(
            run.evaluate(data.with_format("numpy"))["eval_loss"], run.evaluate()["eval_loss"], delta=1e-6
        )


class MetricsTest(TrainingTestCase):
    @parameterized.product(kind=("depth", "t5"), generate=(False, True))
    def test_metrics_of_the_user_come_beside_ours(self, kind, generate):
        arguments = {"sentence_loss_coefficient": 5.0, "predict_with_generate": generate, "generation_max_length": 9}
        expected = trainer(kind, self.folder, **arguments).evaluate()
        run, seen = trainer(kind, self.folder, **arguments), []

        def compute_metrics(prediction):
            seen.append(prediction)
            return {"mine": 1.0}

        run.compute_metrics = compute_metrics
        metrics = run.evaluate()
        self.assertEqual(metrics["eval_mine"], 1.0)
        for name, value in expected.items():
            if not any(part in name for part in ("time", "per_second", "order")):
                self.assertAlmostEqual(metrics[name], value, delta=1e-5, msg=name)
        self.assertEqual("eval_order_exact" in metrics, generate and kind == "depth")
        (prediction,) = seen
        self.assertLen(prediction.label_ids, 7)
        if generate:
            self.assertEqual(prediction.predictions.ndim, 2)  # ids, not logits
            self.assertLen(prediction.predictions, 7)


class AttentionTest(TrainingTestCase):
    def test_each_evaluation_tells_how_even_the_attention_is(self):
        metrics = trainer("depth", self.folder).evaluate()
        layers = {name: value for name, value in metrics.items() if name.startswith("eval_attention_entropy_")}
        self.assertLen(layers, 3)  # one layer, each kind
        self.assertEqual(metrics["eval_attention_entropy"], min(layers.values()))
        self.assertBetween(metrics["eval_attention_entropy"], 0.3, 1.0)

    def test_of_several_data_sets_it_is_told_once(self):
        run = trainer("depth", self.folder)
        run.eval_dataset = {"a": rows(3), "b": rows(2)}
        names = [name for name in run.evaluate() if name.endswith("attention_entropy")]
        self.assertEqual(names, ["eval_attention_entropy"])

    def test_saturated_attention_is_warned_of_once_while_training(self):
        run = trainer("depth", self.folder, max_steps=3, learning_rate=1e-9, eval_strategy="steps", eval_steps=1)
        # A limit that this model is below of.
        self.enterContext(mock.patch("hf_depth.evaluation.attention_entropy.SATURATED", 1.0))
        with self.assertNoLogs("hf_depth.evaluation.attention_entropy", "WARNING"):
            run.evaluate()
        with self.assertLogs("hf_depth.evaluation.attention_entropy", "WARNING") as logs:
            run.train()
        self.assertLen(logs.output, 1)
        self.assertRegex(
            logs.output[0], r"Step 1: `attention_entropy_\w+_0` is 0.\d+, of at most 1.*--optim adamw_scale"
        )


if __name__ == "__main__":
    absltest.main()
