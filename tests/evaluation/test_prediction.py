import tempfile

import torch
from absl.testing import parameterized
from datasets import Dataset, DatasetDict

from helpers import tiny_tokenizer
from hf_depth import TaskPredictor
from hf_depth.evaluation.prediction import decode_generated, generation_length
from tiny_tasks import QUESTIONS, RTE, rte_rows, task_dataset, trainer
from tiny_training import tiny_model

TOKENIZER = tiny_tokenizer(sentence_tokens=True)


class TaskPredictorTest(parameterized.TestCase):
    def predictor(self, kind="depth", task=RTE, **arguments):
        return TaskPredictor(tiny_model(kind), TOKENIZER, task, batch_size=3, **arguments)

    @parameterized.product(kind=("depth", "t5"), prediction_mode=("generate", "score_labels"))
    def test_predictions_are_those_of_the_trainer(self, kind, prediction_mode):
        rows = rte_rows(7)
        with tempfile.TemporaryDirectory() as folder:
            run = trainer(kind, folder, rows, prediction_mode=prediction_mode, max_steps=8)
            run.train()
            expected = run.predict(task_dataset(rows, kind=kind)).predictions
        predictor = TaskPredictor(run.model, TOKENIZER, RTE, batch_size=3, prediction_mode=prediction_mode)
        predictions = predictor(rows)
        classes = [-1 if one["label"] is None else RTE.parse(one["label"]) for one in predictions]
        self.assertEqual(classes, expected.label_ids.tolist())
        if prediction_mode == "generate":
            self.assertEqual([one["text"] for one in predictions], expected.texts)

    @parameterized.parameters("depth", "t5")
    def test_the_order_of_examples_and_their_labels_change_nothing(self, kind):
        predictor, rows = self.predictor(kind, prediction_mode="score_labels"), list(rte_rows(7))
        expected = predictor(rows, return_scores=True)
        unlabeled = [{name: row[name] for name in RTE.text_column_name} for row in rows]
        for one, other in zip(predictor(unlabeled[::-1], return_scores=True)[::-1], expected, strict=True):
            self.assertEqual(one["label"], other["label"])
            for label, score in other["scores"].items():
                self.assertAlmostEqual(one["scores"][label], score, delta=1e-4)

    def test_scores_are_log_probabilities_of_the_labels(self):
        (prediction,) = self.predictor()(list(rte_rows(1)), return_scores=True)
        self.assertEqual(list(prediction["scores"]), list(RTE.labels.values()))
        self.assertLess(max(prediction["scores"].values()), 0)
        self.assertEqual(set(prediction), {"text", "label", "scores"})

    def test_free_form_predictions_are_texts(self):
        predictor = self.predictor(task=QUESTIONS)
        predictions = predictor([{"question": "Who is it?"}, {"question": "Why?"}])
        self.assertEqual([set(one) for one in predictions], [{"text"}] * 2)
        with self.assertRaisesRegex(ValueError, "return_scores.*free-form"):
            predictor([{"question": "Who is it?"}], return_scores=True)

    def test_a_saved_model_predicts_as_before(self):
        predictor, rows = self.predictor(), list(rte_rows(4))
        with tempfile.TemporaryDirectory() as folder:
            predictor.model.save_pretrained(folder)
            TOKENIZER.save_pretrained(folder)
            self.assertEqual(TaskPredictor.from_pretrained(folder, "glue/rte")(rows), predictor(rows))

    def test_examples_that_are_cut_are_reported(self):
        long = {"sentence1": "This was invitation enough. " * 300, "sentence2": "Call me Ishmael."}
        with self.assertLogs("hf_depth.evaluation.prediction", "WARNING") as logs:
            self.predictor()([long, {"sentence1": "A.", "sentence2": "B."}])
        self.assertIn("1 of 2 examples are longer than 512 tokens", logs.output[0])

    def test_inputs_are_as_long_as_in_training(self):
        predictor = self.predictor(max_source_length=16)
        with self.assertLogs("hf_depth.evaluation.prediction", "WARNING") as logs:
            predictor([{"sentence1": "This was invitation enough. " * 5, "sentence2": "Call me Ishmael."}])
        self.assertIn("longer than 16 tokens", logs.output[0])

    def test_wrong_input_is_named(self):
        predictor = self.predictor()
        with self.assertRaisesRegex(ValueError, "Example 1 has no column 'sentence2'. The columns are: 'sentence1'"):
            predictor([{"sentence1": "A.", "sentence2": "B."}, {"sentence1": "Call me Ishmael."}])
        with self.assertRaisesRegex(ValueError, "no column 'sentence2'"):
            predictor(Dataset.from_dict({"sentence1": ["A."]}))
        with self.assertRaisesRegex(ValueError, "'sentence2' must hold text"):
            predictor([{"sentence1": "A.", "sentence2": None}])
        with self.assertRaisesRegex(ValueError, "Example 0 must be a dictionary with the columns 'sentence1', 'sent"):
            predictor(["A. B."])
        with self.assertRaisesRegex(ValueError, "got DatasetDict"):
            predictor(DatasetDict(train=Dataset.from_dict({"sentence1": ["A."], "sentence2": ["B."]})))
        with self.assertRaisesRegex(ValueError, "`num_beams`: nothing is generated"):
            self.predictor(prediction_mode="score_labels")(list(rte_rows(1)), num_beams=2)
        with self.assertRaisesRegex(ValueError, r"predictor\(\[example\]\)"):
            predictor({"sentence1": "A.", "sentence2": "B."})
        self.assertEmpty(predictor([]))
        self.assertLen(predictor(iter([{"sentence1": "A.", "sentence2": "B."}])), 1)
        self.assertLen(predictor(Dataset.from_dict({"sentence1": ["A."], "sentence2": ["B."]})), 1)

    @parameterized.parameters(
        ({"prediction_mode": "scores"}, "prediction_mode.*generate, score_labels, got 'scores'"),
        ({"batch_size": 0}, "`batch_size` must be at least 1"),
        ({"batch_size": -1}, "`batch_size` must be at least 1"),
    )
    def test_arguments_out_of_range_are_refused(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            TaskPredictor(tiny_model("depth"), TOKENIZER, RTE, **arguments)

    @parameterized.parameters({"num_return_sequences": 2}, {"return_dict_in_generate": True})
    def test_generation_with_several_results_is_refused(self, **generate_kwargs):
        with self.assertRaisesRegex(ValueError, next(iter(generate_kwargs))):
            self.predictor()(list(rte_rows(1)), num_beams=2, **generate_kwargs)

    def test_a_model_in_training_predicts_without_dropout(self):
        model = tiny_model("depth", dropout_rate=0.5)
        predictor, rows = TaskPredictor(model, TOKENIZER, RTE), list(rte_rows(3))
        model.train()
        self.assertEqual(predictor(rows, return_scores=True), predictor(rows, return_scores=True))
        self.assertTrue(model.training)
        with self.assertRaises(ValueError):
            predictor([{"sentence1": "A.", "sentence2": None}])
        self.assertTrue(model.training)

    def test_a_tokenizer_of_another_model_is_refused(self):
        with self.assertRaisesRegex(ValueError, "sentence tokens"):
            TaskPredictor(tiny_model("depth"), tiny_tokenizer(), RTE)


class GeneratedTextTest(parameterized.TestCase):
    def test_text_ends_before_the_end_token_and_keeps_sentinels(self):
        ids = TOKENIZER("<extra_id_0> Call me Ishmael.")["input_ids"]
        rows = torch.tensor([[0, *ids, 5, 5], [0, *ids[1:], 0, 0, 0]])
        self.assertEqual(decode_generated(TOKENIZER, rows), ["<extra_id_0> Call me Ishmael.", "Call me Ishmael."])

    def test_every_label_can_be_generated(self):
        self.assertEqual(generation_length(RTE, torch.zeros(2, 5)), 6)
        self.assertEqual(generation_length(QUESTIONS, None), QUESTIONS.max_target_length + 1)
