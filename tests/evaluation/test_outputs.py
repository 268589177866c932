"""Files of fine-tuning: predictions, submissions in the form of GLUE's server, confusion matrices, tables, cards."""

import json
import logging
import tempfile
from pathlib import Path

import numpy as np
import yaml
from absl.testing import parameterized
from huggingface_hub import ModelCard
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread

from hf_depth.evaluation.metrics import UNPARSED
from hf_depth.evaluation.outputs import results_table, write_predictions, write_submission
from hf_depth.evaluation.plots import confusion_figure, confusion_matrix, plot_confusion_matrix
from hf_depth.evaluation.scoring import TaskResult, compute_task_metrics
from hf_depth.tasks.registry import get_task, task_names
from hf_depth.training.model_card import fine_tuning_card, model_index

# GLUE's server: the name of each file, and what may stand in its second column.
SERVER = {
    ("cola", "test"): ("CoLA.tsv", {"0", "1"}),
    ("sst2", "test"): ("SST-2.tsv", {"0", "1"}),
    ("mrpc", "test"): ("MRPC.tsv", {"0", "1"}),
    ("qqp", "test"): ("QQP.tsv", {"0", "1"}),
    ("wnli", "test"): ("WNLI.tsv", {"0", "1"}),
    ("stsb", "test"): ("STS-B.tsv", {f"{fifths / 5:.1f}" for fifths in range(26)}),
    ("mnli", "test_matched"): ("MNLI-m.tsv", {"entailment", "neutral", "contradiction"}),
    ("mnli", "test_mismatched"): ("MNLI-mm.tsv", {"entailment", "neutral", "contradiction"}),
    ("ax", "test"): ("AX.tsv", {"entailment", "neutral", "contradiction"}),
    ("qnli", "test"): ("QNLI.tsv", {"entailment", "not_entailment"}),
    ("rte", "test"): ("RTE.tsv", {"entailment", "not_entailment"}),
}


class FilesTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))


class SubmissionTest(FilesTest):
    def test_every_test_set_of_glue_has_a_file(self):
        splits = {(name, split) for name in task_names("glue") for split in get_task(name, "glue").test_splits}
        self.assertEqual(splits, set(SERVER))

    @parameterized.parameters(*SERVER)
    def test_file_is_what_the_server_reads(self, name, split):
        spec = get_task(name, "glue")
        file_name, allowed = SERVER[name, split]
        predicted = np.random.default_rng(0).permutation(np.tile([*spec.labels, UNPARSED], 3))
        indices = np.random.default_rng(1).permutation(len(predicted))
        path = write_submission(self.folder / "submission", spec, split, predicted, indices)
        self.assertEqual(path, self.folder / "submission" / file_name)
        text = path.read_text(encoding="utf-8")
        self.assertTrue(text.endswith("\n"))
        header, *lines = [line.split("\t") for line in text.removesuffix("\n").split("\n")]
        self.assertEqual(header, ["index", "prediction"])
        self.assertEqual([line[0] for line in lines], [str(i) for i in range(len(predicted))])
        self.assertEqual({line[1] for line in lines}, allowed)
        written = {int(index): value for index, value in lines}
        for index, label_id in zip(indices, predicted, strict=True):
            if label_id != UNPARSED:
                expected = spec.labels[label_id] if spec.submission_labels != "id" else str(label_id)
                self.assertEqual(written[index], expected)

    def test_an_answer_that_is_no_label_becomes_the_first_one_and_is_reported(self):
        with self.assertLogs("hf_depth.evaluation.outputs", logging.WARNING) as logs:
            path = write_submission(self.folder, get_task("rte"), "test", [1, UNPARSED, UNPARSED])
        lines = ["index\tprediction", "0\tnot_entailment", "1\tentailment", "2\tentailment"]
        self.assertEqual(path.read_text().splitlines(), lines)
        self.assertIn("'test': 2 answers are no label; the file has 'entailment'", logs.output[0])

    def test_a_wrong_number_of_rows_is_reported(self):
        with self.assertLogs("hf_depth.evaluation.outputs", logging.WARNING) as logs:
            write_submission(self.folder, get_task("wnli"), "test", [0] * 145)
        self.assertIn("145 predictions, but the server expects 146", logs.output[0])
        with self.assertNoLogs("hf_depth.evaluation.outputs", logging.WARNING):
            write_submission(self.folder, get_task("wnli"), "test", [0] * 146)

    def test_splits_without_a_server_get_no_file(self):
        self.assertIsNone(write_submission(self.folder, get_task("rte"), "validation", [0, 1]))
        self.assertIsNone(write_submission(self.folder, get_task("SParxiv"), "test", [0, 1]))
        self.assertEmpty(list(self.folder.iterdir()))

    @parameterized.named_parameters(
        ("twice", [0, 1], [3, 3], "'rte', split 'test': the index 3 is given twice"),
        ("missing", [0, 1], [3], "1 `indices` for 2 predictions"),
        ("no_class", [0, 2], [0, 1], "2 is no class. The classes are 0 to 1"),
    )
    def test_bad_predictions_are_named(self, predicted, indices, message):
        with self.assertRaisesRegex(ValueError, message):
            write_submission(self.folder, get_task("rte"), "test", predicted, indices)


class PredictionsTest(FilesTest):
    def read(self, *args, **kwargs):
        path = self.folder / "new" / "predictions.jsonl"
        write_predictions(path, *args, **kwargs)
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def test_generated_answers_beside_labels(self):
        rows = [
            {"sentence1": "Ä", "sentence2": "B", "label": 0, "idx": 7},
            {"sentence1": "C", "sentence2": "D", "label": 1, "idx": 8},
            {"sentence1": "E", "sentence2": "F", "label": -1, "idx": 9},
        ]
        lines = self.read(get_task("rte"), rows, ["entailment", "nonsense", "entailment"])
        self.assertEqual(
            lines[0],
            {
                "index": 0,
                "idx": 7,
                "input": "rte sentence1: Ä sentence2: B",
                "answer": "entailment",
                "prediction": "entailment",
                "label": "entailment",
                "correct": True,
            },
        )
        self.assertEqual((lines[1]["prediction"], lines[1]["correct"]), (None, False))
        self.assertEqual((lines[2]["label"], lines[2]["correct"]), (None, None))

    def test_scores_are_named_by_their_labels(self):
        rows = [{"sentence1": "A", "sentence2": "B", "label": 0}]
        (line,) = self.read(
            get_task("rte"), rows, predicted_ids=np.array([1]), scores=np.array([[-2, -0.5]], dtype=np.float32)
        )
        self.assertEqual(line["scores"], {"entailment": -2.0, "not_entailment": -0.5})
        self.assertEqual((line["prediction"], line["correct"]), ("not_entailment", False))
        self.assertNotIn("answer", line)

    def test_numbers_stay_numbers(self):
        rows = [{"sentence1": "A", "sentence2": "B", "label": value} for value in (3.75, 0.0)]
        lines = self.read(get_task("stsb"), rows, ["3.8", "many"])
        self.assertEqual([line["prediction"] for line in lines], [3.8, None])
        self.assertEqual([line["label"] for line in lines], [3.75, 0.0])
        self.assertEqual([line["correct"] for line in lines], [True, False])

    def test_open_text_has_all_its_references(self):
        rows = [{"prompt": "Say yes.", "references": ["yes", "sure"], "task": "t", "category": "c", "id": "t-1"}]
        (line,) = self.read(get_task("natural_instructions"), rows, ["Sure!"])
        self.assertEqual((line["references"], line["correct"]), (["yes", "sure"], True))
        self.assertEqual((line["task"], line["category"], line["id"]), ("t", "c", "t-1"))
        self.assertNotIn("label", line)


class ConfusionMatrixTest(FilesTest):
    def test_counts_have_a_column_for_answers_that_are_no_label(self):
        labels, predicted = [0, 0, 1, 2, 2, -1], [0, 1, UNPARSED, 2, UNPARSED, 0]
        counts = confusion_matrix(get_task("mnli"), labels, predicted)
        self.assertEqual(counts.tolist(), [[1, 1, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1]])

    def test_matrix_is_saved_as_a_picture(self):
        path = self.folder / "new" / "matrix.png"
        plot_confusion_matrix(path, get_task("rte"), [0, 1, 1], [0, UNPARSED, 1])
        self.assertGreater(imread(path).std(), 0.01)

    @parameterized.parameters("rte", "SParxiv", "PDTB-E", "RST", "stsb")
    def test_no_text_is_cut_off_or_written_over_another(self, name):
        spec = get_task(name)
        counts = np.full((spec.num_labels, spec.num_labels + 1), 888)
        figure = confusion_figure(spec, counts, "title")
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        axes = figure.axes[0]
        self.assertLen(axes.texts, counts.size)
        picture = figure.bbox
        for texts in (axes.get_xticklabels(), axes.get_yticklabels(), axes.texts[: spec.num_labels + 1]):
            boxes = [text.get_window_extent(renderer) for text in texts]
            for box, following in zip(boxes, boxes[1:], strict=False):
                self.assertFalse(box.overlaps(following), f"{name}: text over text")
            for box in boxes:
                self.assertTrue(picture.x0 <= box.x0 and box.x1 <= picture.x1, f"{name}: cut off")
                self.assertTrue(picture.y0 <= box.y0 and box.y1 <= picture.y1, f"{name}: cut off")


def results():
    mrpc, rte, instructions = get_task("mrpc"), get_task("rte"), get_task("natural_instructions")
    return [
        TaskResult(rte, "validation", compute_task_metrics(rte, [{"label": 0}] * 3, ["entailment"] * 2 + ["x"])),
        TaskResult(rte, "test", {"unparsed_fraction": 0.5}),
        TaskResult(mrpc, "validation", compute_task_metrics(mrpc, [{"label": 1}] * 4, predicted_ids=[1, 1, 1, 0])),
        TaskResult(instructions, "test", {"rougeL": 41.256, "exact_match": 0.25, "rougeL_title": 12.0}),
    ]


class TablesTest(parameterized.TestCase):
    def test_table_shows_scores_beside_baselines(self):
        lines = [line.split() for line in results_table(results()).splitlines()]
        self.assertEqual(lines[0], ["task", "split", "metric", "model", "majority", "chance", "unparsed"])
        self.assertEqual(lines[1], ["glue/rte", "validation", "accuracy", "0.6667", "1.0000", "0.5000", "0.3333"])
        self.assertEqual(lines[2], ["glue/mrpc", "validation", "f1", "0.8571", "1.0000", "0.6667"])
        self.assertEqual(lines[4], ["natural_instructions/natural_instructions", "test", "rougeL", "41.26"])
        self.assertLen(lines, 6)

    def test_markdown_has_as_many_cells_in_each_line(self):
        lines = results_table(results(), markdown=True).splitlines()
        self.assertEqual({line.count("|") for line in lines}, {8})
        self.assertLen(lines, 7)

    def test_card_states_results_in_the_form_of_the_hub(self):
        card = ModelCard(
            fine_tuning_card(
                "my-model",
                "depth",
                results(),
                {"Data": {"train": "rte.jsonl", "rows": 32}, "Settings": {"learning_rate": 1e-4}},
                base_model="google/t5-v1_1-base",
                datasets=["nyu-mll/glue"],
            )
        )
        data = yaml.safe_load(card.data.to_yaml())
        self.assertEqual((data["base_model"], data["datasets"]), ("google/t5-v1_1-base", ["nyu-mll/glue"]))
        (index,) = data["model-index"]
        self.assertEqual(index["name"], "my-model")
        found = {
            (entry["dataset"].get("config"), entry["dataset"]["split"], metric["type"]): metric["value"]
            for entry in index["results"]
            for metric in entry["metrics"]
        }
        self.assertEqual(
            found,
            {
                ("rte", "validation", "accuracy"): 0.666667,
                ("mrpc", "validation", "f1"): 0.857143,
                ("mrpc", "validation", "accuracy"): 0.75,
                (None, "test", "rouge"): 41.256,
                (None, "test", "exact_match"): 0.25,
            },
        )
        self.assertEqual([score.metric_value for score in card.data.eval_results], list(found.values()))
        for text in ("trust_remote_code=True", "| rows | 32 |", "| learning_rate | 0.0001 |", "| majority |"):
            self.assertIn(text, card.text)

    def test_card_names_no_folder_of_this_machine(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory())) / "t5-run"
        folder.mkdir()
        text = fine_tuning_card("m", "t5", results(), {}, base_model=str(folder))
        self.assertNotIn(str(folder.parent), text)
        self.assertIn("from t5-run on", text)
        self.assertNotIn("base_model", text)
        self.assertNotIn("trust_remote_code", text)
        text = fine_tuning_card("m", "t5", results(), {}, base_model="/not/here/t5-run")
        self.assertNotIn("/not/here", text)

    def test_rows_from_files_do_not_pass_for_those_of_the_hub(self):
        score, *_ = model_index(results())
        self.assertEqual((score.dataset_type, score.dataset_config), ("glue/rte", None))
        score, *_ = model_index(results(), ["nyu-mll/glue"])
        self.assertEqual((score.dataset_type, score.dataset_config), ("nyu-mll/glue", "rte"))

    def test_scores_of_labels_leave_no_column_for_unparsed_answers(self):
        spec = get_task("rte", "glue")
        result = TaskResult(spec, "validation", {"accuracy": 0.5})
        self.assertNotIn("unparsed", results_table([result]))
        self.assertIn(
            "unparsed", results_table([result, TaskResult(spec, "test", {"accuracy": 1, "unparsed_fraction": 0})])
        )

    def test_card_without_results_is_valid(self):
        card = ModelCard(fine_tuning_card("m", "t5", [TaskResult(get_task("rte"), "test", {})], {}))
        self.assertNotIn("model-index", card.data.to_dict())

    def test_scores_that_are_no_numbers_are_left_out_of_the_index(self):
        self.assertEmpty(model_index([TaskResult(get_task("rte"), "test", {"accuracy": float("nan")})]))
