"""Probes: the features of each task, how the classifier is chosen, baselines, and what is left untouched."""

import copy
from dataclasses import replace
from unittest import mock

import numpy as np
import torch
from absl.testing import absltest, parameterized
from datasets import Dataset
from sklearn.linear_model import LogisticRegression

from helpers import SENTENCES, tiny_tokenizer
from hf_depth import DATASET_VALS, TaskSplits, get_task, sentence_embeddings
from hf_depth.evaluation import probing
from hf_depth.evaluation.probe_features import FEATURES, BagOfWords, EmbeddingFeatures, ProbeOptions
from hf_depth.evaluation.probing import Probe, ProbedSplit, probe_task, probe_tasks, with_random_weights
from hf_depth.tasks.checks import PROBE_FEATURES
from hf_depth.tasks.spec import TaskSpec
from tiny_tasks import QUESTIONS, RTE, rte_rows
from tiny_training import tiny_model

TONE = TaskSpec("tests", "tone", "review", "tone review:", labels=("sad", "glad"))
ORDER = get_task("sentence_ordering", "discourse")


def reviews(number: int, seed: int = 0) -> Dataset:
    """Examples whose class is told by one word."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(number) % 2).tolist()
    texts = [f"{random.choice(SENTENCES)[:40]} It is {('wet', 'dry')[label]}." for label in labels]
    return Dataset.from_dict({"review": texts, "label": labels})


def pairs(number: int, seed: int = 0) -> Dataset:
    random = np.random.default_rng(seed)
    chosen = [random.choice(SENTENCES, size=2, replace=False) for _ in range(number)]
    first, second = zip(*chosen, strict=True)
    return Dataset.from_dict({"sentence_1": first, "sentence_2": second, "label": np.arange(number) % 2})


def featurizer(kind: str = "depth", spec: TaskSpec = ORDER, **options) -> EmbeddingFeatures:
    tokenizer = tiny_tokenizer(kind == "depth")
    return EmbeddingFeatures(tiny_model(kind, num_layers=2), tokenizer, spec, ProbeOptions(**options))


class GivenFeatures:
    """Features that do not depend on a model: those of a column."""

    regularization = (1e-4, 1e-2, 1.0, 100.0)

    def fit_transform(self, rows):
        return self.transform(rows)

    def transform(self, rows):
        return np.array(rows["features"][:])


class FeaturesTest(parameterized.TestCase):
    def test_they_are_what_their_names_say(self):
        x = np.array([[[1.0, 2.0], [4.0, 3.0]], [[0.0, -1.0], [5.0, 5.0]]])
        expected = {
            "concatenation": [1, 2, 4, 3],
            "first_differences": [1, 2, -3, -1],
            "difference": [1, 2, 4, 3, -3, -1],
            "product": [1, 2, 4, 3, 3, 1, 4, 6],
        }
        self.assertCountEqual(FEATURES, PROBE_FEATURES)
        for name, first in expected.items():
            with self.subTest(name):
                features = np.concatenate(FEATURES[name](x), axis=-1)
                self.assertEqual((len(features), features[0].tolist()), (2, first))
        three = np.arange(6.0).reshape(1, 3, 2)
        self.assertEqual(np.concatenate(FEATURES["first_differences"](three), -1).tolist(), [[0, 1, -2, -2, -4, -4]])

    @parameterized.parameters(
        ("disco_eval/SSPabs", "concatenation"),
        ("disco_eval/SPwiki", "first_differences"),
        ("disco_eval/BSOrocstory", "difference"),
        ("disco_eval/DCwiki", "concatenation"),
        ("disco_eval/PDTB-E", "product"),
        ("disco_eval/RST", "product"),
        ("discourse/sentence_position", "first_differences"),
        ("discourse/sentence_ordering", "difference"),
        ("discourse/discourse_coherence", "concatenation"),
        ("glue/sst2", "concatenation"),
        ("glue/mnli", "product"),
    )
    def test_the_tasks_have_those_of_disco_eval(self, task, features):
        self.assertEqual(get_task(task).probe_features, features)

    def test_only_the_probes_of_coherence_have_a_hidden_layer(self):
        tasks = [get_task(name, benchmark) for benchmark, names in DATASET_VALS.items() for name in names]
        units = {task.name: task.probe_hidden_units for task in tasks if task.probe_hidden_units}
        self.assertEqual(units, dict.fromkeys(("DCchat", "DCwiki", "discourse_coherence"), 2000))

    @parameterized.product(kind=("depth", "t5"), layer=(-1, 0))
    def test_each_text_is_embedded_by_itself_unless_they_are_read_together(self, kind, layer):
        rows = pairs(9)
        model, tokenizer = tiny_model(kind, num_layers=2), tiny_tokenizer(kind == "depth")
        alone, together = (featurizer(kind, layer=layer, read_together=value).embed(rows) for value in (False, True))
        self.assertEqual((alone.shape, alone.dtype), ((9, 2, 16), np.float32))
        for number, row in enumerate(rows):
            texts = [row["sentence_1"], row["sentence_2"]]
            separate = sentence_embeddings(model, tokenizer, [[text] for text in texts], layer=layer)
            np.testing.assert_allclose(alone[number], torch.cat(separate), atol=1e-5)
            document = sentence_embeddings(model, tokenizer, texts, layer=layer)
            np.testing.assert_allclose(together[number], document, atol=1e-5)

    @parameterized.parameters("standardize", "whiten", "none")
    def test_embeddings_are_normalized_by_those_of_the_training_examples(self, normalization):
        rows = pairs(60)
        features = featurizer(normalization=normalization)
        trained = features.fit_transform(rows)
        first, second, difference = np.split(trained, 3, axis=1)
        single = np.concatenate([first, second])
        np.testing.assert_allclose(difference, first - second, atol=1e-5)
        np.testing.assert_allclose(features.transform(rows.select(range(3))), trained[:3], atol=1e-4)
        if normalization == "none":
            np.testing.assert_allclose(first, features.embed(rows)[:, 0], atol=1e-6)
        else:
            np.testing.assert_allclose(single.mean(0), 0, atol=1e-6)
            np.testing.assert_allclose(single.var(0), 1, rtol=0.02)
        if normalization == "whiten":
            np.testing.assert_allclose(np.cov(single.T), np.eye(single.shape[1]), atol=0.02)

    def test_a_bag_of_words_has_columns_of_its_own_for_each_text(self):
        rows = Dataset.from_dict({"sentence_1": ["wet dog", "cat"], "sentence_2": ["cat", "wet dog"], "label": [0, 1]})
        features = BagOfWords(tiny_tokenizer(), ORDER).fit_transform(rows).toarray()
        half = features.shape[1] // 2
        np.testing.assert_array_equal(features[0, :half], features[1, half:])
        self.assertFalse(np.array_equal(features[0], features[1]))

    def test_a_bag_of_words_for_a_hidden_layer_has_few_dimensions_for_each_text(self):
        features = BagOfWords(tiny_tokenizer(), ORDER, dimensions=5)
        trained = features.fit_transform(pairs(40))
        self.assertEqual((trained.shape, trained.dtype), ((40, 10), np.float32))
        np.testing.assert_allclose(features.transform(pairs(40).select(range(3))), trained[:3], atol=1e-5)
        few = Dataset.from_dict({"sentence_1": ["wet dog", "cat"], "sentence_2": ["cat", "wet dog"], "label": [0, 1]})
        self.assertEqual(BagOfWords(tiny_tokenizer(), ORDER, dimensions=500).fit_transform(few).shape[0], 2)

    @parameterized.product(read_together=(False, True), normalization=("standardize", "whiten"))
    def test_texts_without_tokens_are_zeros_and_change_no_other_text(self, read_together, normalization):
        rows = pairs(30)
        holes = {"sentence_1": ["", " ", SENTENCES[0]], "sentence_2": ["", SENTENCES[1], ""], "label": [0, 1, 0]}
        features = featurizer(read_together=read_together, normalization=normalization)
        expected = features.fit_transform(rows)
        with_holes = Dataset.from_dict({name: [*rows[name], *values] for name, values in holes.items()})
        embeddings = features.embed(with_holes)
        np.testing.assert_allclose(embeddings[:30], features.embed(rows), atol=1e-6)
        self.assertEqual(embeddings.any(axis=-1)[30:].tolist(), [[False, False], [False, True], [True, False]])
        found = features.transform(with_holes)
        np.testing.assert_allclose(found[:30], expected, atol=1e-3)
        np.testing.assert_array_equal(found[30], 0)
        self.assertEqual(features.num_empty_texts, 8)  # embedded twice

    def test_there_may_be_no_text_with_tokens(self):
        rows = Dataset.from_dict({"sentence_1": ["", " "], "sentence_2": [" ", ""], "label": [0, 1]})
        for read_together in (False, True):
            np.testing.assert_array_equal(featurizer(read_together=read_together).embed(rows), np.zeros((2, 2, 16)))

    def test_there_is_no_other_normalization(self):
        with self.assertRaisesRegex(ValueError, "`normalization` must be one of standardize, whiten, none, got 'l2'"):
            ProbeOptions(normalization="l2")


class ProbeTest(parameterized.TestCase):
    def test_unlabeled_examples_are_no_class_of_their_own(self):
        rows = reviews(24)
        unlabeled = rows.map(lambda row, index: {"label": row["label"] if index % 3 else -1}, with_indices=True)
        probe = Probe(TONE, BagOfWords(tiny_tokenizer(True), TONE)).fit(unlabeled, rows)
        self.assertEqual(probe.classifier.classes_.tolist(), [0, 1])

    @parameterized.parameters(0, 6)
    def test_without_labeled_validation_examples_training_examples_are_held_out(self, number):
        rows = reviews(24)
        unlabeled = rows.select(range(number)).map(lambda row: {"label": -1})
        probes = [Probe(TONE, BagOfWords(tiny_tokenizer(True), TONE)).fit(rows, given) for given in (None, unlabeled)]
        self.assertEqual(*[probe.classifier.coef_.tolist() for probe in probes])

    def rows(self, number, seed):
        random = np.random.default_rng(seed)
        labels = np.arange(number) % 2
        features = random.normal(size=(number, 30))
        features[:, 0] += labels
        return Dataset.from_dict({"review": ["."] * number, "label": labels, "features": features})

    def test_the_regularization_is_the_best_on_validation_examples(self):
        train, validation = self.rows(40, 0), self.rows(200, 1)
        probe = Probe(TONE, GivenFeatures()).fit(train, validation)
        x, y = np.array(train["features"][:]), train["label"][:]
        scores = [
            LogisticRegression(C=c, max_iter=500, tol=1e-3)
            .fit(x, y)
            .score(validation["features"][:], validation["label"][:])
            for c in GivenFeatures.regularization
        ]
        self.assertEqual(probe.classifier.C, GivenFeatures.regularization[int(np.argmax(scores))])
        predicted = probe.predict(validation)
        self.assertAlmostEqual(np.mean(predicted == validation["label"][:]), max(scores), delta=0.02)

    @parameterized.parameters((0, 0.4, 0.7), (100, 0.9, 1.0))
    def test_only_a_hidden_layer_compares_texts(self, units, least, most):
        def rows(number, seed):
            features = np.random.default_rng(seed).normal(size=(number, 2))  # as of two texts
            labels = (features[:, 0] * features[:, 1] > 0).astype(int)
            return Dataset.from_dict({"review": ["."] * number, "label": labels, "features": features})

        train, validation, test = (rows(number, seed) for seed, number in enumerate((1000, 200, 1000)))
        predicted = []
        for _ in range(2):
            probe = Probe(replace(TONE, probe_hidden_units=units), GivenFeatures()).fit(train, validation)
            predicted.append(probe.predict(test))
        self.assertBetween(np.mean(predicted[0] == test["label"][:]), least, most)
        np.testing.assert_array_equal(*predicted)

    def test_the_epoch_of_a_network_is_the_best_on_validation_examples(self):
        train, validation = self.rows(40, 0), self.rows(200, 1)
        spec = replace(TONE, probe_hidden_units=20)
        scores = []
        with mock.patch.object(probing, "PATIENCE", 3):
            probe = Probe(spec, GivenFeatures())
            score = probe._score
            probe._score = lambda *args: scores.append(score(*args)) or scores[-1]
            probe.fit(train, validation)
        self.assertEqual(len(scores), int(np.argmax(scores)) + 1 + 3)
        self.assertAlmostEqual(np.mean(probe.predict(validation) == validation["label"][:]), max(scores))

    def test_without_validation_examples_some_training_examples_are_held_out(self):
        rows = self.rows(40, 0)
        first, second = (Probe(TONE, GivenFeatures(), seed=3).fit(rows) for _ in range(2))
        np.testing.assert_array_equal(first.classifier.coef_, second.classifier.coef_)
        other = Probe(TONE, GivenFeatures(), seed=4).fit(rows)
        self.assertFalse(np.array_equal(first.classifier.coef_, other.classifier.coef_))

    def test_there_must_be_two_classes(self):
        rows = self.rows(8, 0).filter(lambda row: row["label"] == 1)
        with self.assertRaisesRegex(ValueError, "at least two classes, but the 4 that there are have 1"):
            Probe(TONE, GivenFeatures()).fit(rows, rows)


class ProbeTaskTest(parameterized.TestCase):
    def probe(self, kind="depth", train=None, spec=TONE, **arguments):
        train = reviews(120) if train is None else train
        test = reviews(60, seed=1)
        model = tiny_model(kind)
        return probe_task(model, tiny_tokenizer(kind == "depth"), spec, train, test, {"test": test}, **arguments)

    @parameterized.parameters("depth", "t5")
    def test_it_reads_what_embeddings_hold_beside_its_baselines(self, kind):
        (evaluation,) = self.probe(kind)
        metrics = evaluation.metrics
        names = ["majority_accuracy", "chance_accuracy", "bag_of_words_accuracy", "random_weights_accuracy"]
        self.assertCountEqual(metrics, ["accuracy", *names])
        self.assertGreater(metrics["accuracy"], 0.7)
        self.assertGreater(metrics["bag_of_words_accuracy"], 0.9)
        self.assertEqual(metrics["majority_accuracy"], 0.5)
        predicted, labels = evaluation.predictions.label_ids, evaluation.dataset.rows["label"][:]
        self.assertEqual(np.mean(predicted == labels), metrics["accuracy"])

    def test_a_hidden_layer_has_the_same_baselines(self):
        spec = replace(TONE, probe_hidden_units=50)
        (evaluation,) = self.probe(spec=spec)
        for name in ("accuracy", "bag_of_words_accuracy", "random_weights_accuracy"):
            self.assertGreater(evaluation.metrics[name], 0.7)

    def test_texts_without_tokens_are_counted_in_one_warning(self):
        train = Dataset.from_list([*reviews(30), {"review": "", "label": 0}, {"review": " ", "label": 1}])
        with self.assertLogs("hf_depth.evaluation.probing", "WARNING") as logs:
            self.probe(train=train)
        self.assertLen(logs.output, 1)
        self.assertIn("tests/tone: 2 texts have no token", logs.output[0])

    def test_labels_that_embeddings_cannot_tell_are_not_found(self):
        rows = reviews(120)
        shuffled = rows.remove_columns("label").add_column(
            "label", np.random.default_rng(5).permutation(rows["label"])
        )
        (evaluation,) = self.probe(train=shuffled, baselines=())
        self.assertBetween(evaluation.metrics["accuracy"], 0.25, 0.75)

    def test_the_model_is_not_changed_and_the_same_probe_gives_the_same(self):
        model, tokenizer, rows = tiny_model("depth").train(), tiny_tokenizer(True), reviews(30)
        before = copy.deepcopy(model.state_dict())
        state = torch.get_rng_state()
        first, second = (probe_task(model, tokenizer, TONE, rows, rows, {"train": rows}) for _ in range(2))
        self.assertTrue(model.training)
        torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
        self.assertTrue(torch.equal(torch.get_rng_state(), state))
        self.assertEqual(first[0].metrics, second[0].metrics)

    def test_random_weights_are_those_of_a_seed_and_of_the_same_configuration(self):
        model = tiny_model("depth")
        first, again, other = (with_random_weights(model, seed) for seed in (1, 1, 2))
        self.assertIs(type(first), type(model))
        self.assertEqual(first.config.to_dict(), model.config.to_dict())
        weights = [one.shared.weight for one in (model, first, again, other)]
        self.assertTrue(torch.equal(weights[1], weights[2]))
        for different in (weights[0], weights[3]):
            self.assertFalse(torch.equal(weights[1], different))
        self.assertEqual(with_random_weights(model.to(torch.bfloat16), 1).dtype, torch.bfloat16)

    def test_unlabeled_examples_are_predicted_and_not_scored(self):
        rows = rte_rows(12)
        test = rows.remove_columns("label").add_column("label", [-1] * 12)
        (found,) = probe_task(tiny_model("t5"), tiny_tokenizer(), RTE, rows, rows, {"test": test}, baselines=())
        self.assertLen(found.predictions.label_ids, 12)
        self.assertEqual((found.metrics, found.dataset.has_targets), ({}, False))

    @parameterized.parameters(
        (get_task("glue/stsb"), "predicts classes, but 'stsb' predicts numbers"),
        (QUESTIONS, "'questions' is free-form"),
    )
    def test_there_must_be_classes(self, spec, message):
        with self.assertRaisesRegex(ValueError, message):
            self.probe(spec=spec)


class ProbeTasksTest(parameterized.TestCase):
    def test_a_task_without_training_data_is_predicted_by_the_probe_of_another(self):
        rows = {"premise": SENTENCES[:9], "hypothesis": SENTENCES[1:10], "label": [0, 1, 2] * 3}
        mnli, ax = get_task("glue/mnli"), get_task("glue/ax")
        splits = TaskSplits.from_datasets(
            mnli, {name: Dataset.from_dict(rows) for name in ("train", "validation_matched", "test_matched")}
        )
        splits.parts += TaskSplits.from_datasets(ax, {"test": Dataset.from_dict(rows)}).parts
        found = probe_tasks(tiny_model("t5"), tiny_tokenizer(), splits, do_eval=False)
        keys = [evaluation.dataset.key for evaluation in found]
        self.assertEqual(keys, [("glue", "mnli", "test_matched"), ("glue", "ax", "test")])
        del splits.parts[0]
        with self.assertRaisesRegex(ValueError, "Task 'glue/ax' has no training examples"):
            probe_tasks(tiny_model("t5"), tiny_tokenizer(), splits)

    def test_tasks_of_one_name_have_probes_of_their_own(self):
        other = replace(RTE, benchmark="tests", labels=("not_entailment", "entailment"))
        labels = [0, 1] * 8
        texts = {"sentence1": [f"It is {('wet', 'dry')[label]}." for label in labels], "sentence2": ["So."] * 16}
        splits = TaskSplits([])
        for spec, own in ((RTE, labels), (other, [1 - label for label in labels])):
            rows = Dataset.from_dict(texts | {"label": own})
            splits.parts += TaskSplits.from_datasets(spec, {"train": rows, "validation": rows}).parts
        for evaluation in probe_tasks(tiny_model("t5"), tiny_tokenizer(), splits):
            self.assertEqual(evaluation.metrics["accuracy"], 1.0)

    def test_a_split_knows_whether_it_is_labeled(self):
        self.assertTrue(ProbedSplit(RTE, "validation", rte_rows(3)).has_targets)


if __name__ == "__main__":
    absltest.main()
