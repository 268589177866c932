import contextlib
import json
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from absl.testing import absltest, parameterized
from datasets import Dataset

from helpers import run_in_two_processes
from hf_depth import DepthTrainer
from hf_depth.training.evaluation_order import input_lengths
from tiny_training import TrainingTestCase, rows, trainer

IN_THEIR_ORDER = mock.patch("hf_depth.training.data_loading.input_lengths", lambda data: None)


def widths(run: DepthTrainer) -> list[int]:
    """Fills up, while a trainer evaluates, with the lengths of the encoder inputs."""
    seen = []
    run.model.encoder.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    return seen


class LengthsTest(parameterized.TestCase):
    def test_lengths_are_those_of_the_rows_that_are_selected(self):
        data = Dataset.from_list([{"input_ids": list(range(length))} for length in (3, 1, 4, 1, 5)])
        self.assertEqual(input_lengths(data.select([4, 0, 1])).tolist(), [5, 3, 1])
        self.assertEqual(input_lengths(data.with_format("torch")).tolist(), [3, 1, 4, 1, 5])
        self.assertEqual(input_lengths(data.to_list()).tolist(), [3, 1, 4, 1, 5])

    def test_a_data_set_that_may_prepare_its_examples_is_not_read(self):
        self.assertIsNone(input_lengths(torch.utils.data.Subset([{"input_ids": [1]}], [0])))
        self.assertIsNone(input_lengths(Dataset.from_dict({"text": ["It rains."]})))
        self.assertIsNone(input_lengths(Dataset.from_dict({"text": ["It rains."]}).to_iterable_dataset()))


class EvaluationOrderTest(TrainingTestCase):
    def run_of(self, kind="depth", **arguments):
        run = trainer(kind, self.folder, per_device_eval_batch_size=2, **arguments)
        run.eval_dataset = rows(9)
        return run

    @parameterized.parameters("depth", "t5")
    def test_batches_are_of_similar_lengths_and_metrics_are_the_same(self, kind):
        seen, metrics = [], []
        for order in (contextlib.nullcontext(), IN_THEIR_ORDER):
            run = self.run_of(kind)
            seen.append(widths(run))
            with order:
                metrics.append(run.evaluate())
        self.assertEqual(seen[0], sorted(seen[0], reverse=True))
        self.assertLess(sum(seen[0]), sum(seen[1]))
        for name, value in metrics[1].items():
            of_batches = ("second", "time", "padding_fraction", "attention_entropy")
            if not any(word in name for word in of_batches):
                self.assertAlmostEqual(metrics[0][name], value, delta=1e-5, msg=name)
        self.assertLess(metrics[0]["eval_padding_fraction"], metrics[1]["eval_padding_fraction"])

    def test_predictions_come_in_the_order_of_the_examples(self):
        outputs = []
        for order in (contextlib.nullcontext(), IN_THEIR_ORDER):
            run = self.run_of(predict_with_generate=True, generation_max_length=24)
            with order:
                outputs.append(run.predict(rows(9)))
        np.testing.assert_array_equal(outputs[0].predictions, outputs[1].predictions)
        width = min(output.label_ids.shape[1] for output in outputs)
        np.testing.assert_array_equal(*(output.label_ids[:, :width] for output in outputs))

    def test_metrics_of_the_user_get_the_examples_in_their_order(self):
        given = []
        for order in (contextlib.nullcontext(), IN_THEIR_ORDER):
            arguments = {"predict_with_generate": True, "generation_max_length": 24}
            run = self.run_of(include_for_metrics=["inputs"], **arguments)
            run.compute_metrics = lambda evaluated: given.append(evaluated) or {"mine": 1.0}
            with order:
                self.assertEqual(run.evaluate()["eval_mine"], 1.0)
        for name in ("inputs", "label_ids", "predictions"):  # padded by batches, so with 0 or -100
            values = [np.maximum(getattr(evaluated, name), 0) for evaluated in given]
            np.testing.assert_array_equal(*values)

    def test_two_processes_predict_in_the_order_of_the_examples(self):
        run_in_two_processes(predict, self.folder)
        found = json.loads(Path(self.folder, "labels.json").read_text())
        run = self.run_of(predict_with_generate=True, generation_max_length=24)
        with IN_THEIR_ORDER:
            expected = run.predict(rows(9)).label_ids.tolist()
        self.assertEqual([[i for i in row if i > 0] for row in found], [[i for i in row if i > 0] for row in expected])


def predict(folder: str):
    """One of two processes."""
    run = trainer("depth", folder, per_device_eval_batch_size=2, predict_with_generate=True, generation_max_length=24)
    output = run.predict(rows(9))
    if run.is_world_process_zero():
        Path(folder, "labels.json").write_text(json.dumps(output.label_ids.tolist()))
    run.end()


if __name__ == "__main__":
    absltest.main()
