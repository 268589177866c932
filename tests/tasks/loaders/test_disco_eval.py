"""DiscoEval as it is published: text, pickles, and columns of its copies."""

import os
import pickle
from unittest import mock

from absl.testing import parameterized

from hf_depth.tasks.loaders import disco_eval
from hf_depth.tasks.registry import get_task
from tiny_tasks import TaskFilesTestCase, as_jsonl


class DiscoEvalTest(TaskFilesTestCase):
    def test_published_text_has_the_label_first(self):
        self.write("data/SP/arxiv/valid.txt", "3\tA .\tB .\tC .\tD .\tE .\n0\tF .\tG .\tH .\tI .\tJ .\n")
        self.write("data/SP/arxiv/test.txt", "1\tK .\tL .\tM .\tN .\tO .\n")
        loaded = self.load_folder("SParxiv")
        self.assertEqual([len(loaded[split]) for split in ("validation", "test")], [2, 1])
        expected = {f"sentence_{i + 1}": f"{letter} ." for i, letter in enumerate("ABCDE")}
        self.assertEqual(loaded["validation"][0], expected | {"label": 3, "idx": 0})

    @parameterized.parameters(*disco_eval.FOLDERS)
    def test_every_task_has_its_published_folder(self, name):
        task = get_task(name)
        texts = [f"Text {i} ." for i in range(len(task.text_column_name))]
        self.write(f"{disco_eval.FOLDERS[name]}/train.txt", "\t".join(["1", *texts]) + "\n")
        (row,) = self.load_folder(name)["train"]
        self.assertEqual([*map(row.get, task.text_column_name)], texts)
        self.assertEqual(row["label"], 1)

    def test_a_pair_without_a_label_gives_the_right_order_and_then_the_swapped_one(self):
        path = self.write("train.txt", "A .\tB .\nC .\tD .\n")
        rows = self.load("BSOwiki", train_file=path)["train"]
        self.assertEqual(
            [(row["sentence_1"], row["sentence_2"], row["label"], row["idx"]) for row in rows],
            [("A .", "B .", 1, 0), ("B .", "A .", 0, 1), ("C .", "D .", 1, 2), ("D .", "C .", 0, 3)],
        )

    @parameterized.parameters(
        ("A .\tB .\n", "line 1: expected a label and 2 texts for the task 'PDTB-E', got 2 parts"),
        ("1\tA .\tB .\n\n1\t \tB .\n", "line 3: text 1 of 2 is empty"),
        ("12\tA .\tB .\n", "row 0 .*: Task 'PDTB-E': the column 'label' holds '12', .*none of its labels"),
    )
    def test_a_bad_line_is_named(self, content, message):
        path = self.write("bad.txt", content)
        self.assert_refused(f"bad.txt, {message}", "PDTB-E", train_file=path)

    STRUCTURE = [("NS-Cause", ["A a ,", "b ."], ["C ."]), (0, ["D ."], "E .")]

    EXPECTED = [
        {"sentence_1": "A a , b .", "sentence_2": "C .", "label": 38, "idx": 0},
        {"sentence_1": "D .", "sentence_2": "E .", "label": 0, "idx": 1},
    ]

    @parameterized.parameters(0, 5)
    def test_rst_is_read_from_its_pickles(self, protocol):
        self.write("RST/RST_TRAIN.pkl", pickle.dumps(self.STRUCTURE, protocol))
        self.write("RST/RST_DEV.pkl", pickle.dumps(self.STRUCTURE[:1], protocol))
        self.assertEqual(self.load_folder("RST"), {"train": self.EXPECTED, "validation": self.EXPECTED[:1]})

    def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(self):
        mark = self.folder / "mark"

        class Harm:
            def __reduce__(self):
                return os.mkdir, (str(mark),)

        for data in (Harm(), [Harm()], [("NS-Cause", Harm(), ["A ."])], range(3)):
            path = self.write("a.pkl", pickle.dumps(data))
            self.assert_refused("a.pkl: cannot be read .* it asks for .* could run code", "RST", train_file=path)
        self.assertFalse(mark.exists())

    @parameterized.parameters(
        (b"\x80\x04nonsense", "cannot be read as a pickle"),
        (pickle.dumps([("NS-Cause", ["A ."])]), "row 0 .*expected a label and 2 texts"),
        (pickle.dumps([("NS-Cause", ["A ."], {5})]), "cannot be read as a pickle of"),
        (pickle.dumps([("XX-Cause", ["A ."], ["B ."])]), "row 0 .*'label' holds 'XX-Cause'"),
    )
    def test_a_bad_pickle_is_named(self, content, message):
        self.assert_refused(f"a.pkl.*{message}", "RST", train_file=self.write("a.pkl", content))

    @parameterized.parameters(
        (("sentence_1", "sentence_2"), 1),
        (("first_sentence", "second_sentence"), "1"),
    )
    def test_columns_of_the_hub_are_known_with_numbers_or_texts_as_labels(self, columns, label):
        row = {"idx": 4, columns[0]: "A .", "label": label, columns[1]: "B ."}
        loaded = self.load("PDTB-E", train_file=self.write("a.jsonl", as_jsonl([row])))["train"]
        self.assertEqual(loaded, [{"sentence_1": "A .", "sentence_2": "B .", "label": 1, "idx": 4}])

    def test_without_files_the_published_ones_are_downloaded(self):
        def download(path, name, **_):
            return str(self.folder / "data" / path / name)

        for name in ("TRAIN", "DEV", "TEST"):
            self.write(f"OfekGlick/DiscoEval/data/RST/RST_{name}.pkl", pickle.dumps(self.STRUCTURE))
        for name in ("train", "valid", "test"):
            self.write(f"OfekGlick/DiscoEval/data/BSO/wiki/{name}.txt", "A .\tB .\n")
        with mock.patch.object(disco_eval, "hf_hub_download", side_effect=download):
            self.assertEqual(self.load("RST"), dict.fromkeys(("train", "validation", "test"), self.EXPECTED))
            self.assertEqual([len(rows) for rows in self.load("BSOwiki").values()], [2, 2, 2])

    def test_without_a_network_the_error_says_where_the_files_are(self):
        with mock.patch.object(disco_eval, "hf_hub_download", side_effect=ConnectionError("no route.")):
            self.assert_refused("'SPwiki' .* no route. .*ZeweiChu/DiscoEval .*`dataset_dir`", "SPwiki")
