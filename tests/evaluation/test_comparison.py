"""The scores of compared checkpoints: which one counts, and the tables and figures made of them."""

import csv
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

from absl.testing import parameterized

from hf_depth.evaluation import comparison
from hf_depth.evaluation.comparison import (
    Checkpoint,
    ComparisonRun,
    Result,
    grouped,
    markdown,
    random_weight_results,
    read_result,
    report,
    score_figure,
)
from hf_depth.tasks.registry import get_task


def results(task, model, scores, **changes):
    """Results of a model on a task: `scores` has a list for each step, with the score of each seed."""
    values = {"checkpoint": "c", "split": "test", "metric": "accuracy", "majority": 0.6, "chance": 0.5}
    values |= {"unparsed_fraction": None, "folder": "f"} | changes
    return [
        Result(model=model, task=task, step=step, seed=seed, score=score, **values)
        for step, seeds in scores.items()
        for seed, score in enumerate(seeds)
    ]


class ReadResultTest(parameterized.TestCase):
    def run_of(self, name, benchmark, step=40):
        return ComparisonRun(Checkpoint("depth", "runs/depth", step), get_task(name, benchmark), 1, Path("out"), ())

    @parameterized.named_parameters(
        ("validation", "rte", {"eval_accuracy": 0.7}, "validation", 0.7),
        ("test_before_validation", "rte", {"eval_accuracy": 0.7, "predict_accuracy": 0.6}, "test", 0.6),
        ("unlabeled_test", "rte", {"eval_accuracy": 0.7, "predict_unparsed_fraction": 0.0}, "validation", 0.7),
        (
            "first_of_several_splits",
            "mnli",
            {"eval_validation_mismatched_accuracy": 0.8, "eval_validation_matched_accuracy": 0.7},
            "validation_matched",
            0.7,
        ),
        ("metric_to_optimize", "cola", {"eval_accuracy": 0.9, "eval_matthews_correlation": 0.2}, "validation", 0.2),
    )
    def test_the_score_that_counts(self, task, metrics, split, score):
        result = read_result(self.run_of(task, "glue"), metrics)
        self.assertEqual((result.split, result.score), (split, score))
        self.assertEqual((result.model, result.checkpoint, result.step), ("depth", "runs/depth", 40))
        self.assertEqual((result.task, result.seed, result.folder), (f"glue/{task}", 1, "out"))

    def test_baselines_are_those_of_the_same_data(self):
        metrics = {"eval_accuracy": 0.7, "eval_majority_accuracy": 0.6, "eval_chance_accuracy": 0.5}
        result = read_result(self.run_of("rte", "glue"), metrics | {"eval_unparsed_fraction": 0.1})
        self.assertEqual((result.majority, result.chance, result.unparsed_fraction), (0.6, 0.5, 0.1))
        result = read_result(self.run_of("rte", "glue"), metrics | {"predict_accuracy": 0.8})
        self.assertEqual((result.majority, result.chance, result.unparsed_fraction), (None, None, None))
        probed = {"predict_bag_of_words_accuracy": 0.4, "predict_random_weights_accuracy": 0.3}
        result = read_result(self.run_of("rte", "glue"), metrics | {"predict_accuracy": 0.8} | probed)
        self.assertEqual((result.bag_of_words, result.random_weights), (0.4, 0.3))

    @parameterized.parameters((40, "depth at step 40 on glue/rte, seed 1"), (None, "depth on glue/rte, seed 1"))
    def test_a_run_without_a_score_is_named(self, step, name):
        with self.assertRaisesRegex(ValueError, f"{name}: no accuracy in .*, which has train_loss.*do_eval"):
            read_result(self.run_of("rte", "glue", step), {"train_loss": 1.0})

    def test_the_score_of_the_task_that_it_is_trained_on_is_not_its_own(self):
        metrics = {"eval_matthews_correlation": 0.9}
        with self.assertRaisesRegex(ValueError, "no matthews_correlation in .* the task labeled data"):
            read_result(self.run_of("ax", "glue"), metrics)
        result = read_result(self.run_of("ax", "glue"), metrics | {"predict_matthews_correlation": 0.1})
        self.assertEqual((result.split, result.score), ("test", 0.1))


class TablesTest(parameterized.TestCase):
    def table(self, entries):
        lines = [line for line in markdown(entries).splitlines() if line[:1] == "|"]
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return head, rows

    def test_models_stand_side_by_side_with_the_baselines_below(self):
        entries = [
            *results("glue/rte", "depth", {1000: [0.2, 0.3], 10: [0.1, 0.1]}),
            *results("glue/rte", "t5", {10: [0.4]}),
            *results("disco_eval/SParxiv", "t5", {None: [0.9]}, majority=None, chance=0.2, split="validation"),
        ]
        head, rows = self.table(entries)
        tasks = ("glue/rte", "disco_eval/SParxiv")
        self.assertEqual(head, ["steps", *(f"{task}<br>{model}" for task in tasks for model in ("depth", "t5"))])
        self.assertEqual(
            rows,
            [
                ["10", "0.1000 ± 0.0000", "0.4000", "", ""],
                ["1,000", "0.2500 ± 0.0707", "", "", ""],
                ["", "", "", "", "0.9000"],
                ["majority", "0.6000", "0.6000", "", ""],
                ["chance", "0.5000", "0.5000", "0.2000", "0.2000"],
            ],
        )
        text = markdown(entries)
        self.assertIn("- glue/rte: accuracy on test\n- disco_eval/SParxiv: accuracy on validation\n", text)
        self.assertIn("Mean and standard deviation", text)

    def test_one_seed_has_no_deviation(self):
        text = markdown(results("glue/rte", "t5", {10: [0.4], 20: [0.5]}))
        self.assertNotIn("±", text)
        self.assertNotIn("deviation", text)

    def test_a_score_that_is_not_a_number_does_not_stop_the_others(self):
        text = markdown(results("glue/rte", "t5", {10: [float("nan"), 0.5], 20: [0.5, 0.5]}))
        self.assertIn("nan ± nan", text)
        self.assertIn("0.5000 ± 0.0000", text)

    def test_probes_have_their_baselines_and_random_weights_as_step_0(self):
        probed = {"bag_of_words": 0.65, "random_weights": 0.55}
        entries = results("glue/rte", "depth", {10: [0.5, 0.6], 20: [0.7, 0.8]}, **probed)
        random = random_weight_results(entries)
        self.assertEqual([(one.step, one.seed, one.score) for one in random], [(0, 0, 0.55), (0, 1, 0.55)])
        _, rows = self.table([*entries, *random])
        self.assertEqual(rows[0], ["0", "0.5500 ± 0.0000"])
        self.assertEqual(rows[-1], ["bag of words", "0.6500"])
        self.assertStartsWith(markdown([*entries, *random]), "Scores of probes, step 0 with random weights")
        self.assertEqual(random_weight_results([*entries, *random]), [])
        self.assertEqual(random_weight_results(results("glue/rte", "t5", {10: [0.5]})), [])

    def test_baselines_that_differ_between_seeds_have_a_mean_and_a_deviation(self):
        entries = results("glue/rte", "depth", {10: [0.5, 0.6], 20: [0.7, 0.8]})
        entries += results("glue/rte", "t5", {10: [0.5]})
        bags = {0: 0.4, 1: 0.6}
        entries = [replace(entry, bag_of_words=bags[entry.seed]) for entry in entries]
        _, rows = self.table(entries)
        self.assertEqual(rows[-3:-1], [["majority", "0.6000", "0.6000"], ["chance", "0.5000", "0.5000"]])
        self.assertEqual(rows[-1], ["bag of words", "0.5000 ± 0.1414", "0.5000 ± 0.1414"])
        (panel,) = score_figure(entries).axes
        lines = {line.get_label(): line.get_ydata()[0] for line in panel.lines}
        self.assertAlmostEqual(lines["bag of words"], 0.5)
        bands = [tuple(round(edge, 4) for edge in patch.get_bbox().intervaly) for patch in panel.patches]
        self.assertEqual(bands, [(0.6, 0.6), (0.5, 0.5), (0.3586, 0.6414)])

    def test_results_are_grouped_by_task_model_and_step(self):
        rte = results("glue/rte", "t5", {10: [0.4, 0.5], 20: [0.6]})
        cola = results("glue/cola", "depth", {10: [0.1]})
        expected = {"glue/rte": {"t5": {10: rte[:2], 20: rte[2:]}}, "glue/cola": {"depth": {10: cola}}}
        self.assertEqual(grouped([*rte, *cola]), expected)

    def test_the_files_hold_all_results(self):
        entries = results("glue/rte", "t5", {10: [0.4, 0.5], None: [0.6]})
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(comparison, "score_figure") as figure:
            report(entries, folder)
            with Path(folder, "results.csv").open(newline="") as file:
                rows = list(csv.DictReader(file))
            self.assertEqual(Path(folder, "results.md").read_text(encoding="utf-8"), markdown(entries))
            figure.assert_called_once_with(entries)
            self.assertEqual(figure().savefig.call_args.args, (Path(folder, "scores.png"),))
        self.assertEqual(
            [(row["step"], row["seed"], row["score"]) for row in rows[1:]], [("10", "1", "0.5"), ("", "0", "0.6")]
        )
        self.assertEqual((rows[0]["majority"], rows[0]["unparsed_fraction"]), ("0.6", ""))


class FigureTest(parameterized.TestCase):
    def test_a_panel_for_each_task_and_a_line_for_each_model(self):
        entries = results("glue/rte", "depth", {1000: [0.7, 0.8], 10: [0.5]})
        entries += results("glue/rte", "t5", {10: [0.4], 0: [0.2]})
        entries += results("glue/cola", "t5", {10: [0.1], None: [0.9]}, majority=None, chance=None)
        figure = score_figure(entries)
        rte, cola = figure.axes
        self.assertEqual([panel.get_title() for panel in figure.axes], ["glue/rte", "glue/cola"])
        self.assertEqual([panel.get_xscale() for panel in figure.axes], ["log", "log"])
        lines = {bars.get_label(): bars.lines[0].get_xydata().tolist() for bars in rte.containers}
        self.assertEqual(lines, {"depth": [[10, 0.5], [1000, 0.75]], "t5": [[10, 0.4]]})
        (depth, _) = rte.containers
        low, high = depth.lines[2][0].get_segments()[1][:, 1]
        self.assertAlmostEqual(low, 0.75 - 0.0707, places=4)  # as in the table
        self.assertAlmostEqual(high, 0.75 + 0.0707, places=4)
        title = "Mean and standard deviation of several seeds\nDashed: step 0, or an unknown step"
        self.assertEqual(figure.get_suptitle(), title)
        across = {line.get_label(): line.get_ydata()[0] for line in rte.lines if line.get_linestyle() != "None"}
        self.assertEqual(across | {"majority": 0.6, "chance": 0.5, "t5": 0.2}, across)
        self.assertIn(0.9, [line.get_ydata()[0] for line in cola.lines])
        self.assertEqual(score_figure(entries[:1]).get_suptitle(), "")  # one seed
        (first, *_) = entries
        probes = [replace(first, random_weights=0.4), replace(first, step=0)]
        self.assertEqual(score_figure(probes).get_suptitle(), "Dashed: random weights (step 0), or an unknown step")
        (legend,) = figure.legends
        self.assertCountEqual([text.get_text() for text in legend.texts], ["depth", "t5", "majority", "chance"])
