"""Files of an evaluation: predictions, submissions in the form of GLUE's server; tables of scores."""

import json
import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from absl.testing import parameterized
from datasets import Dataset

from hf_depth.evaluation.outputs import results_table, write_outputs, write_predictions, write_submission
from hf_depth.evaluation.scoring import TaskEvaluation, TaskPredictions
from hf_depth.tasks.registry import get_task, task_names
from hf_depth.tasks.spec import UNPARSED
from tiny_tasks import QUESTIONS, rte_rows, task_dataset, task_results

# GLUE's server: the name of each file, and what may stand in its second column.
NLI, NUMBERS = {"entailment", "neutral", "contradiction"}, {"0", "1"}
SERVER = {
    **{(name.lower().replace("-", ""), "test"): (f"{name}.tsv", NUMBERS) for name in ("CoLA", "SST-2", "MRPC", "QQP")},
    ("wnli", "test"): ("WNLI.tsv", NUMBERS),
    ("stsb", "test"): ("STS-B.tsv", {f"{fifths / 5:.1f}" for fifths in range(26)}),
    ("mnli", "test_matched"): ("MNLI-m.tsv", NLI),
    ("mnli", "test_mismatched"): ("MNLI-mm.tsv", NLI),
    ("ax", "test"): ("AX.tsv", NLI),
    **{(name.lower(), "test"): (f"{name}.tsv", {"entailment", "not_entailment"}) for name in ("QNLI", "RTE")},
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

    def test_an_unparseable_prediction_becomes_the_first_one_and_is_reported(self):
        with self.assertLogs("hf_depth.evaluation.outputs", logging.WARNING) as logs:
            path = write_submission(self.folder, get_task("rte"), "test", [1, UNPARSED, UNPARSED])
        lines = ["index\tprediction", "0\tnot_entailment", "1\tentailment", "2\tentailment"]
        self.assertEqual(path.read_text().splitlines(), lines)
        self.assertIn("'test': 2 predictions are unparseable; the file has 'entailment'", logs.output[0])


class PredictionsTest(FilesTest):
    def read(self, spec, rows, texts=None, label_ids=None, scores=None):
        path = self.folder / "new" / "predictions.jsonl"
        if label_ids is None and spec.labels is not None:
            label_ids = spec.parse_all(texts)
        dataset = SimpleNamespace(spec=spec, rows=rows)
        write_predictions(path, TaskEvaluation(dataset, TaskPredictions(texts, label_ids, scores), {}))
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def test_generated_texts_beside_labels(self):
        texts = (("Ä", "B", 0, 7), ("C", "D", 1, 8), ("E", "F", -1, 9))
        rows = [dict(zip(("sentence1", "sentence2", "label", "idx"), values, strict=True)) for values in texts]
        lines = self.read(get_task("rte"), rows, ["entailment", "nonsense", "entailment"])
        expected = {"index": 0, "idx": 7, "input": "rte sentence1: Ä sentence2: B", "correct": True}
        self.assertEqual(lines[0], expected | dict.fromkeys(("answer", "prediction", "label"), "entailment"))
        self.assertEqual((lines[1]["prediction"], lines[1]["correct"]), (None, False))
        self.assertEqual((lines[2]["label"], lines[2]["correct"]), (None, None))

    def test_scores_are_named_by_their_labels(self):
        rows = [{"sentence1": "A", "sentence2": "B", "label": 0}]
        scores = np.array([[-2, -0.5]], dtype=np.float32)
        (line,) = self.read(get_task("rte"), rows, label_ids=np.array([1]), scores=scores)
        self.assertEqual(line["scores"], {"entailment": -2.0, "not_entailment": -0.5})
        self.assertEqual((line["prediction"], line["correct"]), ("not_entailment", False))
        self.assertNotIn("answer", line)

    def test_a_free_form_task_has_all_its_references(self):
        rows = [{"prompt": "Say yes.", "references": ["yes", "sure"], "task": "t", "category": "c", "id": "t-1"}]
        (line,) = self.read(get_task("natural_instructions"), rows, ["Sure!"])
        self.assertEqual((line["references"], line["correct"]), (["yes", "sure"], True))
        self.assertEqual((line["task"], line["category"], line["id"]), ("t", "c", "t-1"))
        self.assertNotIn("label", line)


class TablesTest(parameterized.TestCase):
    def test_table_shows_scores_beside_baselines(self):
        lines = [line.split() for line in results_table(task_results()).splitlines()]
        self.assertEqual(lines[0], ["task", "split", "metric", "model", "majority", "chance", "unparsed"])
        self.assertEqual(lines[1], ["glue/rte", "validation", "accuracy", "0.6667", "1.0000", "0.5000", "0.3333"])
        self.assertEqual(lines[2], ["glue/mrpc", "validation", "f1", "0.8571", "1.0000", "0.6667"])
        self.assertEqual(lines[4], ["natural_instructions/natural_instructions", "test", "rougeL", "41.26"])
        self.assertLen(lines, 6)


class OutputsTest(FilesTest):
    def evaluation(self, spec, rows, texts):
        label_ids = None if spec.labels is None else spec.parse_all(texts)
        return TaskEvaluation(task_dataset(rows, "t5", spec=spec), TaskPredictions(texts, label_ids), {})

    def files(self):
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}

    def test_each_data_set_leaves_its_files(self):
        rows, questions = rte_rows(3), Dataset.from_dict({"question": ["Who?"], "answers": [["me"]]})
        validation = self.evaluation(get_task("rte"), rows, ["entailment"] * 3)
        test = TaskEvaluation(replace(validation.dataset, split="test"), validation.predictions, {})
        free_form = self.evaluation(replace(QUESTIONS, benchmark="glue"), questions, ["me"])
        write_outputs(self.folder, [validation, test, free_form])
        names = {"rte_validation", "rte_test"}
        expected = {f"predictions_{name}.jsonl" for name in names} | {f"confusion_matrix_{name}.png" for name in names}
        expected |= {"predictions_questions_validation.jsonl", "submission/RTE.tsv"}
        self.assertEqual(self.files(), expected)

    def test_tasks_of_one_name_leave_files_of_their_own(self):
        specs = [replace(get_task("rte", "glue"), benchmark=benchmark) for benchmark in ("glue", "mine")]
        evaluations = [self.evaluation(spec, rte_rows(3), ["entailment"] * 3) for spec in specs]
        for evaluation in evaluations:
            evaluation.dataset.split = "test"
        write_outputs(self.folder, evaluations)
        names = [f"{benchmark}_rte_test" for benchmark in ("glue", "mine")]
        expected = {f"predictions_{name}.jsonl" for name in names} | {f"confusion_matrix_{name}.png" for name in names}
        self.assertEqual(self.files(), expected | {"submission/glue/RTE.tsv", "submission/mine/RTE.tsv"})
