"""Pictures: confusion matrices, un-shuffling accuracies."""

import tempfile
from pathlib import Path

import numpy as np
from absl.testing import parameterized
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from hf_depth.evaluation.plots import (
    confusion_figure,
    confusion_matrix,
    losses_figure,
    plot_confusion_matrix,
    plot_unshuffling,
    unshuffling_figure,
)
from hf_depth.tasks.registry import get_task
from hf_depth.tasks.spec import UNPARSED

LOSSES = [{"step": 5, "loss": 2.0}, {"step": 10, "loss": 1.0}, {"step": 10, "eval_loss": 1.5}]
SCORES = [{"step": 5, "eval_loss": 2.0, "eval_score": 0.7}, {"step": 10, "eval_loss": 1.5, "eval_score": 0.6}]


class LossesTest(parameterized.TestCase):
    def test_losses_alone_have_one_panel(self):
        (panel,) = losses_figure(LOSSES, baselines={"majority": 0.5}).axes
        lines = {line.get_label(): line.get_xydata().tolist() for line in panel.lines}
        self.assertEqual(lines, {"loss, training": [[5, 2], [10, 1]], "loss, evaluation": [[10, 1.5]]})

    def test_scores_stand_beside_the_losses_with_their_best_and_the_baselines(self):
        losses, scores = losses_figure(LOSSES + SCORES, baselines={"majority": 0.5, "chance": 0.25}).axes
        self.assertEqual((losses.get_xlabel(), scores.get_ylabel()), ("step", "score"))
        lines = {line.get_label(): line for line in scores.lines}
        expected = ["score, evaluation", "best: 0.7000 at step 5", "majority: 0.5000", "chance: 0.2500"]
        self.assertEqual(list(lines), expected)
        self.assertEqual(lines["score, evaluation"].get_xydata().tolist(), [[5, 0.7], [10, 0.6]])
        self.assertEqual(lines["majority: 0.5000"].get_ydata()[0], 0.5)

    def test_the_last_step_keeps_its_score_when_the_best_model_is_evaluated_after_training(self):
        best = {"step": 10, "eval_loss": 2.0, "eval_score": 0.7}
        losses, scores = losses_figure([*SCORES, best]).axes
        self.assertEqual(scores.lines[0].get_xydata().tolist(), [[5, 0.7], [10, 0.6]])
        self.assertEqual(losses.lines[0].get_xydata().tolist(), [[5, 2.0], [10, 1.5]])

    @parameterized.parameters(([float("nan"), 0.5], "best: 0.5000 at step 1"), ([float("nan")], None))
    def test_nan_is_never_the_best_score(self, scores, label):
        history = [{"step": step, "eval_score": score} for step, score in enumerate(scores)]
        texts = [text.get_text() for text in losses_figure(history).axes[1].get_legend().get_texts()]
        self.assertEqual([text for text in texts if text.startswith("best")], [label] if label else [])

    def test_losses_have_the_names_of_the_log_and_a_logarithmic_axis(self):
        (panel,) = losses_figure([{"step": 1, "loss": 20.0, "sentence_loss": 8.0, "reconstruction_loss": 9.0}]).axes
        names = ["loss, training", "sentence loss, training", "reconstruction loss, training"]
        self.assertEqual([line.get_label() for line in panel.lines], names)
        self.assertEqual((panel.get_xscale(), panel.get_yscale()), ("linear", "log"))

    def test_a_run_without_logs_has_an_empty_picture(self):
        self.assertEmpty(losses_figure([]).axes[0].lines)


class ConfusionMatrixTest(parameterized.TestCase):
    def test_counts_have_a_column_for_unparseable_predictions(self):
        labels, predicted = [0, 0, 1, 2, 2, -1], [0, 1, UNPARSED, 2, UNPARSED, 0]
        counts = confusion_matrix(get_task("mnli"), labels, predicted)
        self.assertEqual(counts.tolist(), [[1, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1]])

    def test_matrix_is_saved_as_a_picture(self):
        path = Path(self.enterContext(tempfile.TemporaryDirectory()), "new", "matrix.png")
        plot_confusion_matrix(path, get_task("rte"), [0, 1, 1], [0, UNPARSED, 1])
        self.assertGreater(imread(path).std(), 0.01)

    @parameterized.parameters("rte", "SParxiv", "PDTB-E", "RST", "stsb")
    def test_no_text_is_cut_off_or_written_over_another(self, name):
        spec = get_task(name)
        counts = np.full((spec.num_labels, spec.num_labels + 1), 888)
        counts[1:] = 0  # of which no text is written: the other rows are as wide as the first
        figure = confusion_figure(spec, counts, "title")
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        axes = figure.axes[0]
        self.assertLen(axes.texts, spec.num_labels + 1)
        picture = figure.bbox
        for texts in (axes.get_xticklabels(), axes.get_yticklabels(), axes.texts):
            boxes = [text.get_window_extent(renderer) for text in texts]
            for box, following in zip(boxes, boxes[1:], strict=False):
                self.assertFalse(box.overlaps(following), f"{name}: text over text")
            for box in boxes:
                self.assertTrue(picture.x0 <= box.x0 and box.x1 <= picture.x1, f"{name}: cut off")
                self.assertTrue(picture.y0 <= box.y0 and box.y1 <= picture.y1, f"{name}: cut off")


def accuracies(values: list[float], key: str) -> list[dict]:
    return [
        {
            key: number,
            "examples": 1234,
            "accuracy": value,
            "interval": [value - 0.1, value + 0.05],
            "chance": 1 / number,
        }
        for number, value in enumerate(values, 2)
    ]


def unshuffling(values: list[float]) -> dict:
    parts = {
        "by_number_of_sentences": accuracies(values, "sentences"),
        "by_position": accuracies(values, "position"),
    }
    return {"all": parts, "shuffled": {name: entries[1:] for name, entries in parts.items()}}


class UnshufflingTest(parameterized.TestCase):
    def test_each_way_of_generating_is_drawn_with_its_intervals_beside_chance(self):
        figure = unshuffling_figure({"free": unshuffling([0.4, 0.3]), "constrained": unshuffling([0.6, 0.5])})
        self.assertLen(figure.axes, 4)
        for axes, number in zip(figure.axes, (2, 2, 1, 1), strict=True):
            free, constrained = (container for container in axes.containers)
            np.testing.assert_allclose(free.lines[0].get_ydata(), [0.4, 0.3][-number:])
            np.testing.assert_allclose(constrained.lines[0].get_ydata(), [0.6, 0.5][-number:])
            (bars,) = free.lines[2]
            np.testing.assert_allclose(bars.get_segments()[-1][:, 1], [0.2, 0.35])
            (chance,) = [line for line in axes.lines if line.get_label().startswith("random order")]
            np.testing.assert_allclose(chance.get_ydata(), [1 / 2, 1 / 3][-number:])
        self.assertEqual(figure.axes[0].get_xticklabels()[0].get_text(), "2\nn=1,234")
        texts = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        expected = ["random order: 1,028 of 2,468", "generated freely: 864 of 2,468"]
        self.assertCountEqual(texts, [*expected, "each sentence exactly once: 1,357 of 2,468"])
        self.assertIn("95 % Wilson", figure.get_suptitle())

    @parameterized.parameters(1, 19)
    def test_panels_without_examples_and_with_many_are_saved_without_overlaps(self, number):
        path = Path(self.enterContext(tempfile.TemporaryDirectory()), "unshuffling.png")
        plot_unshuffling({"free": unshuffling([0.5] * number)}, path)  # of one, nothing is shuffled
        self.assertGreater(imread(path).std(), 0.01)
        figure = unshuffling_figure({"free": unshuffling([0.5] * number)})
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        boxes = [label.get_window_extent(canvas.get_renderer()) for label in figure.axes[0].get_xticklabels()]
        self.assertLen(boxes, number)
        for box, following in zip(boxes, boxes[1:], strict=False):
            self.assertFalse(box.overlaps(following))
