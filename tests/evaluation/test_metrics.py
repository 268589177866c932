"""Metrics are those of scikit-learn, scipy and rouge-score, and an unparseable prediction is always wrong."""

import random
from unittest import mock

import evaluate
import numpy as np
from absl.testing import parameterized
from scipy import stats
from sklearn import metrics as sklearn_metrics

from hf_depth.evaluation.metrics import METRICS, Accuracy, TaskMetric, TextMetric, register_metric
from hf_depth.evaluation.outputs import results_table
from hf_depth.evaluation.scoring import TaskResult, compute_task_metrics
from hf_depth.tasks.checks import METRIC_KINDS
from hf_depth.tasks.spec import UNPARSED, TaskSpec
from tiny_tasks import CLASS_METRICS, random_classes

SEEDS = [0, 1, 2]
WORDS = "the cat cats sat running on a mat, mats! Running 12 dogs dog's café".split()


def random_texts(seed, number=20):
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(0, 7))) for _ in range(number)]


class MetricsTest(parameterized.TestCase):
    def test_every_metric_of_the_registry_is_a_metric_of_evaluate(self):
        self.assertEqual({name: metric.kind for name, metric in METRICS.items()}, METRIC_KINDS)
        for name, metric in METRICS.items():
            self.assertTrue(issubclass(metric, evaluate.Metric))
            self.assertEqual(metric.key, name)
            self.assertNotEmpty(metric().description)

    @parameterized.product(seed=SEEDS, name=CLASS_METRICS, num_labels=[2, 3, 12])
    def test_classes_without_unparsed_predictions_are_scored_as_by_scikit_learn(self, seed, name, num_labels):
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
    def test_an_unparsed_prediction_counts_as_the_other_of_two_classes(self, seed, name):
        references, predictions = random_classes(seed, 2)
        wrong = np.where(predictions == UNPARSED, 1 - references, predictions)
        expected = getattr(sklearn_metrics, f"{name}_score")(references, wrong)
        self.assertGreater((predictions == UNPARSED).sum(), 0)
        result = METRICS[name]().compute(predictions=predictions, references=references)
        self.assertAlmostEqual(result[name], expected, places=12)

    @parameterized.product(seed=SEEDS, name=["f1", "precision", "recall"])
    def test_an_unparsed_prediction_finds_none_of_several_classes(self, seed, name):
        references, predictions = random_classes(seed, 4)
        function = getattr(sklearn_metrics, f"{name}_score")
        expected = function(references, predictions, labels=range(4), average="macro", zero_division=0)
        result = METRICS[name]().compute(predictions=predictions, references=references, num_labels=4)
        self.assertAlmostEqual(result[name], expected, places=12)

    @parameterized.product(seed=SEEDS, num_labels=[2, 3])
    def test_an_unparsed_prediction_is_a_class_of_its_own_for_the_matthews_correlation(self, seed, num_labels):
        references, predictions = random_classes(seed, num_labels)
        expected = sklearn_metrics.matthews_corrcoef(references, np.where(predictions == UNPARSED, 99, predictions))
        result = METRICS["matthews_correlation"]().compute(predictions=predictions, references=references)
        self.assertAlmostEqual(result["matthews_correlation"], expected, places=12)

    @parameterized.product(name=[name for name in CLASS_METRICS if name != "recall"], num_labels=[2, 4])
    def test_an_unparsed_prediction_in_place_of_a_right_one_lowers_the_score(self, name, num_labels):
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
        texts = random_texts(seed)
        references = [random_texts(1000 * seed + number, 1 + number % 3) for number in range(len(texts))]
        from rouge_score.rouge_scorer import RougeScorer  # brings nltk, which takes a moment to import

        scorer = RougeScorer(["rougeL"], use_stemmer=True)
        expected = [
            max(scorer.score(reference, answer)["rougeL"].fmeasure for reference in allowed)
            for answer, allowed in zip(texts, references, strict=True)
        ]
        np.testing.assert_allclose(METRICS["rougeL"].row_scores(texts, references), expected)
        result = METRICS["rougeL"]().compute(predictions=texts, references=references)
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
    def test_metrics_take_batches_and_many_examples(self, name):
        metric = METRICS[name]()
        predictions = {"ids": [0, 1, 1], "values": [0.0, 1.0, 2.0], "texts": ["a b", "a", "b"]}[metric.kind]
        references = [[text] for text in predictions] if metric.kind == "texts" else predictions
        for _ in range(1000):
            metric.add_batch(predictions=predictions, references=references)
        self.assertAlmostEqual(metric.compute()[name], metric.scale)


class WithinOne(TaskMetric):
    key, kind = "within_one", "values"

    @staticmethod
    def score(predictions, references):
        return np.mean(np.abs(np.subtract(predictions, references)) <= 1)


class Balanced(TaskMetric):
    key, kind, scale = "balanced", "ids", 100.0

    @staticmethod
    def score(predictions, references, num_labels, sample_weight=None):
        return sklearn_metrics.balanced_accuracy_score(references, predictions, sample_weight=sample_weight)


class FirstLetter(TextMetric):
    key = "first_letter"

    @staticmethod
    def row_scores(predictions, references):
        pairs = zip(predictions, references, strict=True)
        return [float(text[:1] in [one[:1] for one in allowed]) for text, allowed in pairs]


class NoKind(TaskMetric):
    key = "no_kind"


class Unweighted(Balanced):
    @staticmethod
    def score(predictions, references, num_labels=None):
        return 1.0


class NotStatic(WithinOne):
    def score(self, predictions, references):
        return 1.0


class PlainTexts(TaskMetric):
    key, kind = "plain_texts", "texts"


class MCC(Balanced):
    key = "mcc"


class RegisterMetricTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        for registry in (METRICS, METRIC_KINDS):
            self.enter_context(mock.patch.dict(registry))

    @parameterized.parameters(
        (WithinOne, {"labels": list("12345"), "label_step": 1}, "4", 0.75, {}),
        (Balanced, {"labels": list("12345")}, "4", 25.0, {"majority_balanced": 25.0, "chance_balanced": 20.0}),
        (FirstLetter, {}, "4 of 5", 0.25, {}),
    )
    def test_a_metric_of_ones_own_scores_a_task(self, metric, fields, text, score, baselines):
        with self.assertRaisesRegex(ValueError, f"there is no metric '{metric.key}'.*`register_metric` adds one"):
            TaskSpec("mine", "stars", "review", "", metric_names=metric.key, **fields)
        self.assertIs(register_metric(metric), metric)
        spec = TaskSpec("mine", "stars", "review", "", metric_names=metric.key, **fields)
        rows = [{"label": label} for label in "2345"]
        metrics = compute_task_metrics(spec, rows, [text] * len(rows))
        self.assertEqual(metrics.pop("unparsed_fraction", 0.0), 0.0)
        self.assertEqual(metrics.keys(), {metric.key, *baselines})
        for name, value in {metric.key: score, **baselines}.items():
            self.assertAlmostEqual(metrics[name], value)
        self.assertIn(f"{score:.2f}", results_table([TaskResult(spec, "test", metrics)]))

    @parameterized.parameters(True, False)
    def test_what_is_called_to_score_is_what_is_documented(self, is_of_classes):
        calls = []

        class Recorded(TaskMetric):
            """Without defaults, and with arrays alone."""

            key, kind = "recorded", "ids" if is_of_classes else "values"

        def score_classes(predictions, references, num_labels, sample_weight):
            calls.append((type(predictions), type(references), num_labels, sample_weight is not None))
            return np.average(predictions == references, weights=sample_weight)

        def score_values(predictions, references):
            calls.append((type(predictions), type(references)))
            return (predictions == references).mean()

        Recorded.score = staticmethod(score_classes if is_of_classes else score_values)
        register_metric(Recorded)
        kind = {} if is_of_classes else {"label_step": 1}
        spec = TaskSpec("mine", "stars", "review", "", list("1234"), metric_names="recorded", **kind)
        metrics = compute_task_metrics(spec, [{"label": label} for label in "1224"], predicted_ids=[0, 1, 2, 3])
        self.assertEqual(metrics["recorded"], 0.75)
        arrays = (np.ndarray, np.ndarray)
        self.assertEqual(calls[0], (*arrays, 4, False) if is_of_classes else arrays)
        self.assertEqual(calls[1:], [(*arrays, 4, True)] * 2 if is_of_classes else [])

    @parameterized.parameters(
        *("loss", "score", "unparsed_fraction", "runtime", "samples", "model_preparation_time"),
        *("samples_per_second", "majority_f1", "chance_mine", "bag_of_words_f1", "random_weights_f1", "mem_gpu"),
    )
    def test_a_name_of_something_else_that_is_reported_is_refused(self, key):
        metric = type("Mine", (Balanced,), {"key": key})
        message = f"`eval_{key}` is what .* Mine would replace: choose another `key`"
        for overwrite in (False, True):
            with self.assertRaisesRegex(ValueError, message):
                register_metric(metric, overwrite=overwrite)
        self.assertNotIn(key, METRIC_KINDS)

    def test_a_metric_suits_the_tasks_of_its_kind(self):
        register_metric(WithinOne)
        with self.assertRaisesRegex(ValueError, "'within_one' does not suit predictions that are a class"):
            TaskSpec("mine", "tone", "review", "", labels=["sad", "glad"], metric_names="within_one")

    @parameterized.parameters(
        (np.mean, TypeError, "`metric` must be a subclass of `TaskMetric`, got <function mean"),
        (NoKind, ValueError, "NoKind must have a `key`.*'ids', 'values', 'texts', got 'no_kind' and ''"),
        (Unweighted, TypeError, "`Unweighted.score` is called as .*sample_weight=….*unexpected .*'sample_weight'"),
        (NotStatic, TypeError, "`NotStatic.score` is called as `score.predictions, references.`: missing"),
        (PlainTexts, TypeError, "PlainTexts compares texts: make it a subclass of `TextMetric`"),
        (MCC, ValueError, "already is another metric 'mcc'"),
        (type("Accuracy", (Balanced,), {"key": "accuracy"}), ValueError, "already is another metric 'accuracy'"),
    )
    def test_a_metric_that_could_not_be_computed_is_refused(self, metric, error, message):
        with self.assertRaisesRegex(error, message):
            register_metric(metric)

    def test_another_metric_of_a_name_takes_its_place_on_request_alone(self):
        other = type("Other", (Accuracy,), {})
        with self.assertRaisesRegex(ValueError, "Choose another `key`. .`overwrite=True` replaces one"):
            register_metric(other)
        self.assertIs(METRICS["accuracy"], Accuracy)
        self.assertIs(register_metric(Accuracy), Accuracy)  # again
        register_metric(other, overwrite=True)
        self.assertIs(METRICS["accuracy"], other)
