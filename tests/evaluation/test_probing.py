"""Probes: the features of each task, how the classifier is chosen, baselines, and what is left untouched."""

import copy
import tempfile
from dataclasses import replace

import numpy as np
import torch
from absl.testing import parameterized
from datasets import Dataset
from sklearn.linear_model import LogisticRegression

from helpers import SENTENCES, tiny_tokenizer
from hf_depth import TaskSplits, get_task, sentence_embeddings
from hf_depth.evaluation import probing
from hf_depth.evaluation.probing import (
    FEATURES,
    EmbeddingFeatures,
    Probe,
    ProbeOptions,
    probe_task,
    probe_tasks,
    with_random_weights,
)
from hf_depth.tasks.spec import PROBE_FEATURES, TaskSpec
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

    title = "a column"
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

    @parameterized.parameters(("depth", -1), ("t5", 0))
    def test_each_text_is_embedded_by_itself_unless_they_are_read_together(self, kind, layer):
        rows = pairs(9)
        model, tokenizer = tiny_model(kind, num_layers=2), tiny_tokenizer(kind == "depth")
        alone, together = (featurizer(kind, layer=layer, read_together=value).read(rows) for value in (False, True))
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
            np.testing.assert_allclose(first, features.read(rows)[:, 0], atol=1e-6)
        else:
            np.testing.assert_allclose(single.mean(0), 0, atol=1e-6)
            np.testing.assert_allclose(single.var(0), 1, rtol=0.02)
        if normalization == "whiten":
            np.testing.assert_allclose(np.cov(single.T), np.eye(single.shape[1]), atol=0.02)

    @parameterized.parameters((False, "standardize"), (True, "whiten"))
    def test_texts_without_tokens_are_zeros_and_change_no_other_text(self, read_together, normalization):
        rows = pairs(30)
        holes = {"sentence_1": ["", " ", SENTENCES[0]], "sentence_2": ["", SENTENCES[1], ""], "label": [0, 1, 0]}
        features = featurizer(read_together=read_together, normalization=normalization)
        expected = features.fit_transform(rows)
        with_holes = Dataset.from_dict({name: [*rows[name], *values] for name, values in holes.items()})
        embeddings = features.read(with_holes)
        np.testing.assert_allclose(embeddings[:30], features.read(rows), atol=1e-6)
        self.assertEqual(embeddings.any(axis=-1)[30:].tolist(), [[False, False], [False, True], [True, False]])
        found = features.transform(with_holes)
        np.testing.assert_allclose(found[:30], expected, atol=1e-3)
        np.testing.assert_array_equal(found[30], 0)


class ProbeTest(parameterized.TestCase):
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
        fitted = [LogisticRegression(C=c, max_iter=500, tol=1e-3).fit(x, y) for c in GivenFeatures.regularization]
        scores = [one.score(validation["features"][:], validation["label"][:]) for one in fitted]
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


class ProbeTaskTest(parameterized.TestCase):
    def probe(self, kind="depth", train=None, spec=TONE, **arguments):
        train = reviews(120) if train is None else train
        test = reviews(60, seed=1)
        model = tiny_model(kind)
        return probe_task(model, tiny_tokenizer(kind == "depth"), spec, train, test, {"test": test}, **arguments)

    @parameterized.parameters("depth", "t5")
    def test_it_reads_what_embeddings_hold_beside_its_baselines(self, kind):
        with self.assertLogs(probing.logger, "INFO") as logs:
            (evaluation,) = self.probe(kind)
        for title, line in zip(("embeddings", "bag of words", "random weights"), logs.output, strict=True):
            self.assertIn(f", {title}: ", line)
        metrics = evaluation.metrics
        names = ["majority_accuracy", "chance_accuracy", "bag_of_words_accuracy", "random_weights_accuracy"]
        self.assertCountEqual(metrics, ["accuracy", *names])
        self.assertGreater(metrics["accuracy"], 0.7)
        self.assertGreater(metrics["bag_of_words_accuracy"], 0.9)
        self.assertEqual(metrics["majority_accuracy"], 0.5)
        predicted, labels = evaluation.predictions.label_ids, evaluation.dataset.rows["label"][:]
        self.assertEqual(np.mean(predicted == labels), metrics["accuracy"])

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
        ones = [model, *(with_random_weights(model, seed) for seed in (1, 1, 2))]
        weights = [one.shared.weight for one in ones]
        self.assertEqual([torch.equal(weights[1], other) for other in weights], [False, True, True, False])
        self.assertEqual({(type(one), str(one.config)) for one in ones}, {(type(model), str(model.config))})
        self.assertEqual(with_random_weights(model.to(torch.bfloat16), 1).dtype, torch.bfloat16)


class RunProbeTest(parameterized.TestCase):
    def test_a_task_without_training_data_is_predicted_by_the_probe_of_another(self):
        rows = Dataset.from_dict({"premise": SENTENCES[:9], "hypothesis": SENTENCES[1:10], "label": [0, 1, 2] * 3})
        mnli, ax, folder = (
            get_task("glue/mnli"),
            get_task("glue/ax"),
            self.enter_context(tempfile.TemporaryDirectory()),
        )
        names = ("train", "validation_matched", "test_matched")
        splits = TaskSplits.from_datasets(mnli, dict.fromkeys(names, rows))
        splits.parts += TaskSplits.from_datasets(ax, {"test": rows}).parts
        found = probe_tasks(tiny_model("t5"), tiny_tokenizer(), splits, output_dir=folder, do_eval=False)
        keys = [evaluation.dataset.key for evaluation in found]
        self.assertEqual(keys, [("glue", "mnli", "test_matched"), ("glue", "ax", "test")])
        del splits.parts[0]
        with self.assertRaisesRegex(ValueError, "Task 'glue/ax' has no training examples"):
            probe_tasks(tiny_model("t5"), tiny_tokenizer(), splits, output_dir=folder)
