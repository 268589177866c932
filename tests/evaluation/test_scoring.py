"""Metrics of tasks: those of scikit-learn, scipy and rouge-score, with answers that are no label always wrong."""

import math
import random

import datasets
import evaluate
import numpy as np
from absl.testing import parameterized
from rouge_score.rouge_scorer import RougeScorer
from scipy import stats
from sklearn import metrics as sklearn_metrics

from hf_depth.evaluation.metrics import METRICS, UNPARSED
from hf_depth.evaluation.scoring import (
    compute_task_metrics,
    label_values,
    majority_class,
    optimized_score,
    parse_answers,
)
from hf_depth.tasks.checks import METRIC_NAMES
from hf_depth.tasks.registry import get_task
from hf_depth.tasks.spec import TaskSpec

SEEDS = [0, 1, 2]
CLASS_METRICS = ("accuracy", "f1", "f1_macro", "precision", "recall", "matthews_correlation")
WORDS = "the cat cats sat running on a mat, mats! Running 12 dogs dog's café".split()


def task(num_labels=3, **changes):
    labels = [f"label {number}" for number in range(num_labels)]
    entry = {"benchmark": "b", "name": "t", "text_column_name": "text", "prefix": "", "labels": labels}
    return TaskSpec(**(entry | changes))


def random_classes(seed, num_labels, unparsed=0.2, number=60):
    """True and predicted classes, some of them unparsed and about half of the others right."""
    rng = np.random.default_rng(seed)
    references = rng.integers(0, num_labels, number)
    predictions = np.where(rng.random(number) < 0.4, references, rng.integers(0, num_labels, number))
    return references, np.where(rng.random(number) < unparsed, UNPARSED, predictions)


def rows_of(label_ids):
    return [{"label": int(label_id)} for label_id in label_ids]


def random_texts(seed, number=20):
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(0, 7))) for _ in range(number)]


class MetricsTest(parameterized.TestCase):
    def test_every_metric_of_the_registry_is_a_metric_of_evaluate(self):
        self.assertEqual(set(METRICS), set(METRIC_NAMES))
        for name, metric in METRICS.items():
            self.assertTrue(issubclass(metric, evaluate.Metric))
            self.assertEqual(metric.key, name)
            self.assertNotEmpty(metric().description)

    @parameterized.product(seed=SEEDS, name=CLASS_METRICS, num_labels=[2, 3, 12])
    def test_classes_without_unparsed_answers_are_scored_as_by_scikit_learn(self, seed, name, num_labels):
        references, predictions = random_classes(seed, num_labels, unparsed=0.0)
        average = {"average": "binary" if num_labels == 2 and name != "f1_macro" else "macro"}
        expected = {
            "accuracy": sklearn_metrics.accuracy_score(references, predictions),
            "f1": sklearn_metrics.f1_score(references, predictions, **average),
            "f1_macro": sklearn_metrics.f1_score(references, predictions, average="macro"),
            "precision": sklearn_metrics.precision_score(references, predictions, **average, zero_division=0),
            "recall": sklearn_metrics.recall_score(references, predictions, **average),
            "matthews_correlation": sklearn_metrics.matthews_corrcoef(references, predictions),
        }[name]
        result = METRICS[name]().compute(predictions=predictions, references=references, num_labels=num_labels)
        self.assertEqual(list(result), [name])
        self.assertAlmostEqual(result[name], expected, places=12)

    @parameterized.product(seed=SEEDS, name=["f1", "precision", "recall"])
    def test_an_unparsed_answer_counts_as_the_other_of_two_classes(self, seed, name):
        references, predictions = random_classes(seed, 2)
        wrong = np.where(predictions == UNPARSED, 1 - references, predictions)
        expected = getattr(sklearn_metrics, f"{name}_score")(references, wrong)
        self.assertGreater((predictions == UNPARSED).sum(), 0)
        result = METRICS[name]().compute(predictions=predictions, references=references)
        self.assertAlmostEqual(result[name], expected, places=12)

    @parameterized.product(seed=SEEDS, name=["f1", "precision", "recall"])
    def test_an_unparsed_answer_finds_none_of_several_classes(self, seed, name):
        references, predictions = random_classes(seed, 4)
        function = getattr(sklearn_metrics, f"{name}_score")
        expected = function(references, predictions, labels=range(4), average="macro", zero_division=0)
        result = METRICS[name]().compute(predictions=predictions, references=references, num_labels=4)
        self.assertAlmostEqual(result[name], expected, places=12)

    @parameterized.product(seed=SEEDS, num_labels=[2, 3])
    def test_an_unparsed_answer_is_a_class_of_its_own_for_the_matthews_correlation(self, seed, num_labels):
        references, predictions = random_classes(seed, num_labels)
        expected = sklearn_metrics.matthews_corrcoef(references, np.where(predictions == UNPARSED, 99, predictions))
        result = METRICS["matthews_correlation"]().compute(predictions=predictions, references=references)
        self.assertAlmostEqual(result["matthews_correlation"], expected, places=12)

    @parameterized.product(name=[name for name in CLASS_METRICS if name != "recall"], num_labels=[2, 4])
    def test_an_unparsed_answer_in_place_of_a_right_one_lowers_the_score(self, name, num_labels):
        references, predictions = random_classes(0, num_labels, unparsed=0.0)
        right = np.flatnonzero(references == predictions)
        before = METRICS[name].score(predictions, references, num_labels)
        for index in right:
            changed = predictions.copy()
            changed[index] = UNPARSED
            self.assertLess(METRICS[name].score(changed, references, num_labels), before)

    @parameterized.product(seed=SEEDS, name=["pearson", "spearman"])
    def test_numbers_are_correlated_as_by_scipy(self, seed, name):
        rng = np.random.default_rng(seed)
        references = rng.random(30) * 5
        predictions = np.round(references + rng.normal(size=30))  # with ties
        predictions[rng.random(30) < 0.2] = -1.0
        expected = {"pearson": stats.pearsonr, "spearman": stats.spearmanr}[name](predictions, references).statistic
        result = METRICS[name]().compute(predictions=predictions, references=references)
        self.assertAlmostEqual(result[name], expected, places=12)

    @parameterized.parameters("pearson", "spearman")
    def test_a_constant_is_not_correlated(self, name):
        for predictions, references in (([2.0, 2.0, 2.0], [1.0, 2.0, 3.0]), ([1.0], [1.0])):
            self.assertEqual(METRICS[name]().compute(predictions=predictions, references=references), {name: 0.0})

    @parameterized.parameters(*SEEDS)
    def test_rouge_l_is_that_of_rouge_score_against_the_best_reference(self, seed):
        answers = random_texts(seed)
        references = [random_texts(1000 * seed + number, 1 + number % 3) for number in range(len(answers))]
        scorer = RougeScorer(["rougeL"], use_stemmer=True)
        expected = [
            max(scorer.score(reference, answer)["rougeL"].fmeasure for reference in allowed)
            for answer, allowed in zip(answers, references, strict=True)
        ]
        np.testing.assert_allclose(METRICS["rougeL"].row_scores(answers, references), expected)
        result = METRICS["rougeL"]().compute(predictions=answers, references=references)
        self.assertAlmostEqual(result["rougeL"], 100 * np.mean(expected))

    def test_rouge_l_of_equal_texts_is_one_hundred(self):
        result = METRICS["rougeL"]().compute(predictions=["Two dogs."], references=[["a cat", "two dog"]])
        self.assertEqual(result, {"rougeL": 100.0})

    @parameterized.parameters(
        ("A  cat.", ["dog", "a cat"], 1.0), ("cats", ["cat"], 0.0), ("", ["."], 1.0), ("cafe", ["café"], 0.0)
    )
    def test_exact_match_is_up_to_case_punctuation_and_spaces(self, answer, references, expected):
        result = METRICS["exact_match"]().compute(predictions=[answer], references=[references])
        self.assertEqual(result, {"exact_match": expected})

    @parameterized.parameters("accuracy", "f1", "pearson", "rougeL")
    def test_metrics_take_batches_and_many_rows(self, name):
        metric = METRICS[name]()
        predictions = {"ids": [0, 1, 1], "values": [0.0, 1.0, 2.0], "texts": ["a b", "a", "b"]}[metric.kind]
        references = [[text] for text in predictions] if metric.kind == "texts" else predictions
        for _ in range(1000):
            metric.add_batch(predictions=predictions, references=references)
        self.assertAlmostEqual(metric.compute()[name], metric.scale)


class TaskMetricsTest(parameterized.TestCase):
    @parameterized.product(seed=SEEDS, name=["rte", "mrpc", "cola", "mnli", "SParxiv"])
    def test_answers_and_their_classes_have_the_same_scores(self, seed, name):
        spec = get_task(name)
        references, predictions = random_classes(seed, spec.num_labels)
        answers = [spec.labels.get(int(label_id), "nonsense") for label_id in predictions]
        from_answers = compute_task_metrics(spec, rows_of(references), answers)
        from_classes = compute_task_metrics(spec, rows_of(references), predicted_ids=predictions)
        unparsed = from_answers.pop("unparsed_fraction")
        self.assertAlmostEqual(unparsed, np.mean(predictions == UNPARSED))
        self.assertEqual(from_answers, from_classes)
        for metric in spec.metric_names:
            self.assertAlmostEqual(
                from_answers[metric], METRICS[metric].score(predictions, references, spec.num_labels)
            )

    def test_no_class_is_guessed_for_an_answer_that_is_no_label(self):
        spec = get_task("rte")
        self.assertEqual(
            parse_answers(spec, ["entailment", " not_entailment ", "Entailment", "entail", ""]).tolist(),
            [0, 1, UNPARSED, UNPARSED, UNPARSED],
        )
        metrics = compute_task_metrics(spec, rows_of([0, 1, 0, 1]), ["nonsense"] * 4)
        self.assertEqual((metrics["accuracy"], metrics["unparsed_fraction"]), (0.0, 1.0))

    def test_labels_of_rows_may_be_texts_and_rows_a_data_set(self):
        spec = get_task("rte")
        texts = [{"label": "entailment"}, {"label": "not_entailment"}]
        expected = compute_task_metrics(spec, rows_of([0, 1]), predicted_ids=[0, 0])
        self.assertEqual(compute_task_metrics(spec, texts, predicted_ids=[0, 0]), expected)
        data = datasets.Dataset.from_list([row | {"sentence1": "a"} for row in texts])
        self.assertEqual(compute_task_metrics(spec, data, predicted_ids=[0, 0]), expected)

    def test_hidden_labels_are_left_out(self):
        spec = get_task("rte")
        metrics = compute_task_metrics(spec, rows_of([0, -1, 1, -1]), ["entailment", "x", "entailment", "entailment"])
        self.assertEqual((metrics["accuracy"], metrics["unparsed_fraction"]), (0.5, 0.25))
        self.assertEqual(
            compute_task_metrics(spec, rows_of([-1, -1]), ["entailment", "x"]), {"unparsed_fraction": 0.5}
        )
        self.assertEqual(compute_task_metrics(spec, rows_of([-1]), predicted_ids=[0]), {})

    @parameterized.product(num_labels=[2, 5], name=CLASS_METRICS)
    def test_chance_is_what_guessing_gives_on_average(self, num_labels, name):
        spec = task(num_labels, metric_names=(name,))
        rng = np.random.default_rng(0)
        references = np.sort(rng.integers(0, num_labels, 40) * rng.integers(0, 2, 40))  # unbalanced
        chance = compute_task_metrics(spec, rows_of(references), predicted_ids=references)[f"chance_{name}"]
        # With each row a thousand times, one draw of guesses is near the expected confusion matrix.
        many = np.tile(references, 1000)
        self.assertAlmostEqual(
            chance, METRICS[name].score(rng.integers(0, num_labels, len(many)), many, num_labels), delta=0.01
        )

    @parameterized.product(num_labels=[2, 5], name=CLASS_METRICS)
    def test_majority_is_the_score_of_the_most_frequent_class_in_training(self, num_labels, name):
        spec = task(num_labels, metric_names=(name,))
        references, _ = random_classes(1, num_labels)
        metrics = compute_task_metrics(spec, rows_of(references), predicted_ids=references, train_label_ids=[1, 0, 1])
        constant = np.ones_like(references)
        self.assertAlmostEqual(
            metrics[f"majority_{name}"], METRICS[name].score(constant, references, num_labels), places=12
        )

    def test_majority_is_counted_in_the_rows_without_training_labels(self):
        metrics = compute_task_metrics(get_task("rte"), rows_of([1, 1, 0, -1, -1, -1]), predicted_ids=[0] * 6)
        self.assertAlmostEqual(metrics["majority_accuracy"], 2 / 3)
        self.assertEqual(majority_class([2, 1, 1, 2, -1, -1, -1]), 1)
        with self.assertRaisesRegex(ValueError, "no majority class"):
            majority_class([-1])

    def test_numbers_are_compared_with_those_of_the_rows_not_with_the_grid(self):
        spec = get_task("stsb")
        values, answers = [0.11, 2.5, 3.75, 4.9], ["0.2", "2.4", "nonsense", "5.0"]
        metrics = compute_task_metrics(spec, [{"label": value} for value in values], answers)
        predicted = [0.2, 2.4, -1.0, 5.0]
        self.assertAlmostEqual(metrics["pearson"], stats.pearsonr(predicted, values).statistic)
        self.assertAlmostEqual(metrics["spearman"], stats.spearmanr(predicted, values).statistic)
        self.assertEqual((metrics["unparsed_fraction"], metrics["chance_pearson"]), (0.25, 0.0))

    def test_values_of_classes(self):
        np.testing.assert_array_equal(label_values(get_task("stsb"), [0, 3, -1]), [0.0, 0.6, -1.0])
        np.testing.assert_array_equal(label_values(get_task("rte"), [1, 0, -1]), [1.0, 0.0, -1.0])

    def test_open_text_is_scored_over_all_rows_and_over_each_group(self):
        spec = get_task("natural_instructions")
        rows = [
            {"references": ["yes", "sure"], "task": "task1", "category": "Question Answering"},
            {"references": ["a b"], "task": "task1", "category": "Question Answering"},
            {"references": ["no"], "task": "task2", "category": "Title"},
        ]
        answers = ["Sure.", "a", "yes"]
        for form in (rows, datasets.Dataset.from_list(rows)):
            metrics = compute_task_metrics(spec, form, answers)
            self.assertAlmostEqual(metrics["rougeL"], 100 * (1 + 2 / 3 + 0) / 3)
            self.assertAlmostEqual(metrics["exact_match"], 1 / 3)
            self.assertAlmostEqual(metrics["rougeL_question_answering"], 100 * (1 + 2 / 3) / 2)
            self.assertAlmostEqual(metrics["exact_match_task1"], 1 / 2)
            self.assertEqual((metrics["rougeL_title"], metrics["rougeL_task2"]), (0.0, 0.0))
        self.assertEqual(list(compute_task_metrics(spec, rows, answers, group_columns=())), ["rougeL", "exact_match"])

    def test_open_text_without_references_is_left_out(self):
        spec = task(labels=None)
        rows = [{"label": "yes"}, {"label": []}, {"label": None}]
        self.assertEqual(compute_task_metrics(spec, rows, ["yes", "a", "b"])["exact_match"], 1.0)
        self.assertEqual(compute_task_metrics(spec, rows[1:], ["a", "b"]), {})

    def test_classes_may_be_scored_as_texts(self):
        spec = task(2, metric_names=("exact_match", "accuracy"))
        metrics = compute_task_metrics(spec, rows_of([0, 1]), ["label 0", "nonsense"])
        self.assertEqual((metrics["exact_match"], metrics["accuracy"]), (0.5, 0.5))
        self.assertNotIn("majority_exact_match", metrics)

    def test_optimized_score_is_at_best_one(self):
        self.assertEqual(optimized_score(get_task("natural_instructions"), {"rougeL": 40.0}), 0.4)
        self.assertEqual(optimized_score(get_task("rte"), {"accuracy": 0.4}), 0.4)

    def test_scores_are_plain_finite_numbers(self):
        for name in ("mrpc", "cola", "stsb"):
            for value in compute_task_metrics(get_task(name), rows_of([0, 1]), ["x", "y"]).values():
                self.assertIs(type(value), float)
                self.assertTrue(math.isfinite(value))

    @parameterized.named_parameters(
        ("neither", {}, "either `answers` or `predicted_ids`"),
        ("both", {"answers": ["a", "b"], "predicted_ids": [0, 1]}, "either `answers` or `predicted_ids`"),
        ("answers", {"answers": ["a"]}, "'rte' has 2 rows, but 1 `answers`"),
        ("classes", {"predicted_ids": [0, 1, 1]}, "'rte' has 2 rows, but 3 `predicted_ids`"),
    )
    def test_one_prediction_per_row_is_needed(self, predictions, message):
        with self.assertRaisesRegex(ValueError, message):
            compute_task_metrics(get_task("rte"), rows_of([0, 1]), **predictions)

    def test_open_text_has_no_classes(self):
        with self.assertRaisesRegex(ValueError, "'t' has open answers: give `answers`"):
            compute_task_metrics(task(labels=None), rows_of([0]), predicted_ids=[0])
