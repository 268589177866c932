"""Pictures: confusion matrices, un-shuffling accuracies."""

import io

import numpy as np
from absl.testing import parameterized
from matplotlib.backends.backend_agg import FigureCanvasAgg

from hf_depth.evaluation.plots import plot_confusion_matrix, plot_losses
from hf_depth.tasks.registry import get_task
from hf_depth.tasks.spec import UNPARSED

LOSSES = [{"step": 5, "loss": 2.0}, {"step": 10, "loss": 1.0}, {"step": 10, "eval_loss": 1.5}]
SCORES = [{"step": 5, "eval_loss": 2.0, "eval_score": 0.7}, {"step": 10, "eval_loss": 1.5, "eval_score": 0.6}]


class LossesTest(parameterized.TestCase):
    def test_scores_stand_beside_the_losses_with_their_best(self):
        figure = plot_losses(LOSSES + SCORES, io.BytesIO())
        losses, scores = figure.axes
        self.assertEqual((losses.get_xlabel(), scores.get_ylabel()), ("step", "score"))
        lines = {line.get_label(): line for line in scores.lines}
        self.assertEqual(list(lines), ["score, evaluation", "best: 0.7000 at step 5"])
        self.assertEqual(lines["score, evaluation"].get_xydata().tolist(), [[5, 0.7], [10, 0.6]])


class ConfusionMatrixTest(parameterized.TestCase):
    @parameterized.parameters("rte", "stsb")
    def test_no_text_is_cut_off_or_written_over_another(self, name):
        spec = get_task(name)
        predicted = np.repeat([*spec.labels, UNPARSED], 888)  # the other rows are as wide as the first
        figure = plot_confusion_matrix(io.BytesIO(), spec, np.zeros_like(predicted), predicted, "title")
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
