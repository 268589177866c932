"""Tables of GLUE as they are published, with columns and names of their own."""

from absl.testing import parameterized

from hf_depth.tasks.registry import get_task
from tiny_tasks import TaskFilesTestCase


class GlueFilesTest(TaskFilesTestCase):
    """The files of gluebenchmark.com, with columns and names of their own."""

    def test_mnli(self):
        columns = "index\tpromptID\tgenre\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label"
        for name in ("train", "dev_matched", "dev_mismatched"):
            self.write(f"MNLI/{name}.tsv", f"{columns}\n4\t1\tslate\t(P)\tP.\tH.\tneutral\tcontradiction\n")
        self.write("MNLI/test_matched.tsv", "index\tsentence1\tsentence2\n9\tP.\tH.\n")
        expected = {"premise": "P.", "hypothesis": "H."}
        loaded = self.load_folder("mnli")
        self.assertEqual(list(loaded), ["train", "validation_matched", "validation_mismatched", "test_matched"])
        self.assertEqual(loaded["validation_mismatched"], [expected | {"label": 2, "idx": 4}])
        self.assertEqual(loaded["test_matched"], [expected | {"label": -1, "idx": 9}])

    def test_cola_has_no_header_but_in_the_test(self):
        self.write("CoLA/train.tsv", "gj04\t1\t\tOur friends came.\ngj04\t0\t*\tThey came us.\n")
        self.write("CoLA/test.tsv", "index\tsentence\n0\tBill whistled.\n")
        loaded = self.load_folder("cola")
        self.assertEqual(
            [(row["sentence"], row["label"]) for row in loaded["train"]],
            [("Our friends came.", 1), ("They came us.", 0)],
        )
        self.assertEqual(loaded["test"], [{"sentence": "Bill whistled.", "label": -1, "idx": 0}])

    @parameterized.parameters(
        ("stsb", "STS-B", "index\tgenre\tsentence1\tsentence2\tscore", "4\tnews\tA.\tB.\t4.250", 4.25),
        ("mrpc", "MRPC", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t8\t9\tA.\tB.", 1),
        ("qqp", "QQP", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "4\t1\t2\tA.\tB.\t1", 1),
        ("qnli", "QNLI", "index\tquestion\tsentence\tlabel", "4\tA.\tB.\tnot_entailment", 1),
        ("wnli", "WNLI", "index\tsentence1\tsentence2\tlabel", "4\tA.\tB.\t1", 1),
        ("rte", "RTE", "index\tsentence1\tsentence2\tlabel", "4\tA.\tB.\tentailment", 0),
    )
    def test_pairs(self, name, folder, header, line, label):
        self.write(f"{folder}/train.tsv", f"{header}\n{line}\n")
        (row,) = self.load_folder(name)["train"]
        self.assertEqual([row[column] for column in get_task(name).text_column_name], ["A.", "B."])
        self.assertEqual(row["label"], label)

    def test_the_diagnostic_set(self):
        self.write("AX/AX.tsv", "index\tsentence1\tsentence2\n4\tP.\tH.\n")
        self.assertEqual(
            self.load_folder("ax"), {"test": [{"premise": "P.", "hypothesis": "H.", "label": -1, "idx": 4}]}
        )
