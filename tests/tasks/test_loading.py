import csv
import gzip
import io
import json
import os
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pyarrow.parquet
from absl.testing import parameterized
from datasets import ClassLabel, Dataset, DatasetDict

from helpers import tiny_tokenizer
from hf_depth.evaluation.scoring import compute_task_metrics
from hf_depth.tasks import sources as task_sources
from hf_depth.tasks.loaders import disco_eval
from hf_depth.tasks.loading import LOADERS, load_task
from hf_depth.tasks.preprocessing import TaskPreprocessor, prepare_task
from hf_depth.tasks.registry import DATASET_VALS, as_task, get_task, task_names

RTE_ROWS = [
    {"sentence1": 'It said "wet".', "sentence2": "It was wet.", "label": 0, "idx": 7},
    {"sentence1": "None", "sentence2": "1984", "label": 1, "idx": 3},
    {"sentence1": "Naïve, café", "sentence2": "a\\b", "label": 0, "idx": 5},
]
OPEN = as_task({"text_column_name": "question", "prefix": "", "label_column_name": "answers"}, "mine", "open")
HIDDEN_ROWS = [row | {"label": -1} for row in RTE_ROWS]


def as_jsonl(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def as_tsv(rows: list[dict]) -> str:
    return "\n".join(["\t".join(rows[0]), *("\t".join(map(str, row.values())) for row in rows)]) + "\n"


def as_csv(rows: list[dict]) -> str:
    content = io.StringIO()
    writer = csv.DictWriter(content, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return content.getvalue()


def as_parquet(rows: list[dict]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


WRITERS = {"jsonl": as_jsonl, "json": json.dumps, "tsv": as_tsv, "csv": as_csv, "parquet": as_parquet}


class TaskDataTestCase(parameterized.TestCase):
    """Works in a folder of its own, with a cache of its own."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name: str, content: str | bytes) -> str:
        path = self.folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = content.encode() if isinstance(content, str) else content
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return str(path)

    def load(self, task, **arguments) -> dict[str, list[dict]]:
        task = get_task(task) if isinstance(task, str) else task
        splits = load_task(task, cache_dir=str(self.folder / "cache"), **arguments)
        return {split: rows.to_list() for split, rows in splits.items()}

    def load_folder(self, task, **arguments) -> dict[str, list[dict]]:
        return self.load(task, dataset_dir=self.folder / "data", **arguments)

    def assert_refused(self, message: str, task, **arguments):
        with self.assertRaisesRegex(ValueError, message):
            self.load(task, **arguments)


class FilesTest(TaskDataTestCase):
    @parameterized.product(extension=list(WRITERS), compression=["", ".gz"])
    def test_every_kind_of_file_gives_the_same_rows(self, extension, compression):
        path = self.write(f"a.{extension}{compression}", WRITERS[extension](RTE_ROWS))
        self.assertEqual(self.load("rte", train_file=path), {"train": RTE_ROWS})

    def test_labels_may_be_numbers_or_texts_and_become_numbers(self):
        rows = [row | {"label": label} for row, label in zip(RTE_ROWS, ("entailment", "1", 0.0), strict=True)]
        path = self.write("a.tsv", as_tsv(rows))
        self.assertEqual([row["label"] for row in self.load("rte", train_file=path)["train"]], [0, 1, 0])

    @parameterized.product(
        texts=[("1", "2", "3"), ("1", "0"), ("2", "0", "1")], extension=["jsonl", "csv"], numbers=[False, True]
    )
    def test_labels_that_are_numbers_stay_those_of_the_data_up_to_the_score(self, texts, extension, numbers):
        task = as_task({"text_column_name": "review", "prefix": "stars:", "labels": texts}, "mine", "stars")
        rows = [{"review": f"Film {text}.", "label": int(text) if numbers else text} for text in texts]
        path = self.write(f"a.{extension}", WRITERS[extension](rows))
        loaded = load_task(task, train_file=path, cache_dir=str(self.folder / "cache"))["train"]
        self.assertEqual(loaded["label"][:], list(range(len(texts))))
        tokenizer = tiny_tokenizer()
        prepared = prepare_task(loaded, TaskPreprocessor(tokenizer, task))
        answers = tokenizer.batch_decode(prepared["labels"][:], skip_special_tokens=True)
        self.assertEqual([task.parse(answer) for answer in answers], list(range(len(texts))))
        self.assertEqual(compute_task_metrics(task, loaded, list(texts))["accuracy"], 1.0)
        self.assertEqual(compute_task_metrics(task, loaded, list(texts[1:] + texts[:1]))["accuracy"], 0.0)

    def test_a_number_to_predict_stays_as_it_is(self):
        rows = [{"sentence1": "A.", "sentence2": "B.", "score": score} for score in (3.8, 0.25)]
        (loaded,) = self.load("stsb", validation_file=self.write("a.csv", as_csv(rows))).values()
        self.assertEqual([row["label"] for row in loaded], [3.8, 0.25])

    def test_each_row_has_its_number_or_else_its_place(self):
        numbered = self.load("rte", train_file=self.write("a.jsonl", as_jsonl(RTE_ROWS)))["train"]
        self.assertEqual([row["idx"] for row in numbered], [7, 3, 5])
        for other in ({}, {"idx": 1}, {"idx": "a-1"}):  # no number, or none that tells the rows apart
            rows = [{key: row[key] for key in row if key != "idx"} | other for row in RTE_ROWS]
            path = self.write(f"{len(other)}{other.get('idx')}.jsonl", as_jsonl(rows))
            self.assertEqual([row["idx"] for row in self.load("rte", train_file=path)["train"]], [0, 1, 2])

    def test_only_the_columns_of_the_task_are_left(self):
        path = self.write("a.jsonl", as_jsonl([row | {"genre": "news"} for row in RTE_ROWS]))
        self.assertEqual(self.load("rte", train_file=path)["train"], RTE_ROWS)

    def test_a_column_of_the_right_name_comes_before_another_name_for_it(self):
        path = self.write("a.jsonl", as_jsonl([row | {"gold_label": "contradiction", "index": 0} for row in RTE_ROWS]))
        self.assertEqual(self.load("rte", train_file=path)["train"], RTE_ROWS)

    def test_labels_of_the_test_may_be_hidden_or_missing_and_no_others(self):
        unlabelled = [{key: row[key] for key in row if key != "label"} for row in RTE_ROWS]
        for rows in (HIDDEN_ROWS, unlabelled):
            path = self.write("a.jsonl", as_jsonl(rows))
            self.assertEqual(self.load("rte", test_file=path), {"test": HIDDEN_ROWS})
        self.assert_refused("a.jsonl: the task 'rte' needs a column 'label'", "rte", validation_file=path)
        path = self.write("b.jsonl", as_jsonl(HIDDEN_ROWS))
        for argument in ("train_file", "validation_file"):
            self.assert_refused("b.jsonl, row 0 .*'label' holds -1, hence no label", "rte", **{argument: path})

    def test_a_file_of_a_task_with_two_validation_sets_is_the_first(self):
        row = {"premise": "P.", "hypothesis": "H.", "label": 1}
        path = self.write("a.jsonl", as_jsonl([row]))
        self.assertEqual(list(self.load("mnli", validation_file=path)), ["validation_matched"])
        self.assertEqual(list(self.load("mnli", test_file=path)), ["test_matched"])

    def test_a_task_that_is_only_tested_takes_no_training_file(self):
        path = self.write("a.jsonl", as_jsonl([{"premise": "P.", "hypothesis": "H.", "label": 1}]))
        self.assert_refused("`train_file`: the task 'ax' has no such .* trained .* 'mnli'", "ax", train_file=path)
        self.assertEqual(list(self.load("ax", test_file=path)), ["test"])

    def test_several_files_are_joined(self):
        paths = [self.write("a.tsv", as_tsv(RTE_ROWS[:1])), self.write("b.tsv", as_tsv(RTE_ROWS[1:]))]
        self.assertEqual(self.load("rte", train_file=paths)["train"], RTE_ROWS)
        self.assertEqual(self.load("rte", train_file=str(self.folder / "data" / "*.tsv"))["train"], RTE_ROWS)

    def test_open_text_keeps_all_its_answers(self):
        rows = [{"question": "One?", "answers": ["a", "b"]}, {"question": "Two?", "answers": ["c"]}]
        loaded = self.load(OPEN, train_file=self.write("a.jsonl", as_jsonl(rows)))["train"]
        self.assertEqual([row["answers"] for row in loaded], [["a", "b"], ["c"]])
        rows = [{"question": "One?", "answers": "a"}]
        loaded = self.load(OPEN, train_file=self.write("b.csv", as_csv(rows)))["train"]
        self.assertEqual(loaded[0]["answers"], ["a"])

    @parameterized.parameters((None,), ("",), (" ",), (-1,), ([],))
    def test_open_text_of_a_test_may_be_hidden_and_then_has_no_answer(self, hidden):
        path = self.write("a.jsonl", as_jsonl([{"question": "One?", "answers": hidden}]))
        self.assertEqual(self.load(OPEN, test_file=path)["test"][0]["answers"], [])
        self.assert_refused("a.jsonl, row 0 .*'answers' holds .*hence no label", OPEN, train_file=path)

    def test_what_was_read_is_found_again_and_a_changed_file_is_read_anew(self):
        path = self.write("a.tsv", as_tsv(RTE_ROWS))
        task, cache_dir = get_task("rte"), str(self.folder / "cache")
        first = load_task(task, train_file=path, cache_dir=cache_dir)["train"]
        with mock.patch.object(task_sources, "text_lines", side_effect=AssertionError):
            again = load_task(task, train_file=path, cache_dir=cache_dir)["train"]
        self.assertEqual(first._fingerprint, again._fingerprint)  # that of the tokenized rows follows from it
        self.assertNotEmpty(again.cache_files)
        self.write("a.tsv", as_tsv([RTE_ROWS[0] | {"label": 1}]))
        self.assertEqual(self.load(task, train_file=path)["train"], [RTE_ROWS[0] | {"label": 1}])


class BadFilesTest(TaskDataTestCase):
    def assert_rows_refused(self, message: str, rows: list[dict], extension: str = "jsonl", task="rte"):
        path = self.write(f"bad.{extension}", WRITERS[extension](rows))
        self.assert_refused(f"bad.{extension}.*{message}", task, train_file=path)

    @parameterized.parameters("jsonl", "csv", "tsv")
    def test_a_label_outside_the_set_names_file_row_and_value(self, extension):
        rows = [*RTE_ROWS, RTE_ROWS[0] | {"label": 2, "idx": 9}]
        self.assert_rows_refused("row 3 .*'label' holds .?2.?, which is none of its labels: 0", rows, extension)

    def test_a_missing_column_names_those_that_there_are(self):
        rows = [{"sentence_1": "A.", "sentence2": "B.", "label": 1}]
        self.assert_rows_refused("needs a column 'sentence1'. Did you mean 'sentence_1' or 'sentence2'", rows)

    @parameterized.parameters("", "  \n", None)
    def test_an_empty_text_names_file_row_and_column(self, text):
        rows = [RTE_ROWS[0], RTE_ROWS[1] | {"sentence2": text}]
        self.assert_rows_refused("row 1 .*: the column 'sentence2' is empty", rows)

    def test_text_that_is_no_text_names_file_row_and_column(self):
        self.assert_rows_refused("row 0 .*'sentence1' must hold text, but holds 5", [RTE_ROWS[0] | {"sentence1": 5}])

    @parameterized.parameters((5,), (2.5,), ({"text": ["a"]},), ([None],), ([["x"]],), (["a", " "],), (True,))
    def test_an_answer_that_is_no_text_names_file_row_and_column(self, answers):
        rows = [{"question": "One?", "answers": answers}]
        self.assert_rows_refused("row 0 .*: the column 'answers' must hold a text or a list", rows, task=OPEN)

    def test_a_line_with_too_few_cells_is_named(self):
        path = self.write("bad.tsv", as_tsv(RTE_ROWS) + "\nonly one\n")
        self.assert_refused("`train_file`: .*bad.tsv, line 6: it has 1 cells .* 4: 'sent", "rte", train_file=path)

    def test_a_quotation_mark_does_not_swallow_lines(self):
        rows = [RTE_ROWS[0] | {"sentence1": '"An opening quotation mark', "idx": i} for i in range(3)]
        self.assertEqual(self.load("rte", train_file=self.write("a.tsv", as_tsv(rows)))["train"], rows)

    @parameterized.parameters(
        ("a.txt", "A plain text.", "a.txt is plain text, but the task 'rte' needs columns 'sentence1', 'sentence2'"),
        ("a.tsv", "", "a.tsv is empty"),
        ("a.tsv", "sentence1\tsentence2\tlabel\n", "a.tsv has no rows"),
        ("a.tsv", b"sentence1\tsentence2\tlabel\n\xff\tb\t1\n", "a.tsv, line 2, is not UTF-8"),
        ("a.jsonl", '{"sentence1": \n', "cannot read .*a.jsonl, line [12]"),
    )
    def test_a_file_that_cannot_be_read_is_named(self, name, content, message):
        self.assert_refused(message, "rte", train_file=self.write(name, content))

    def test_a_table_between_tabs_must_be_a_local_file(self):
        self.assert_refused("`test_file`: https://a.b/c.tsv is an address", "rte", test_file="https://a.b/c.tsv")

    def test_files_of_two_kinds_that_do_not_fit_together_are_named(self):
        paths = [self.write("a.jsonl", as_jsonl(RTE_ROWS)), self.write("b.tsv", as_tsv(RTE_ROWS))]
        message = "`train_file`: .*b.tsv', '.*a.jsonl' are of different kinds: .* files of one kind, such as .jsonl"
        self.assert_refused(message, "rte", train_file=paths)

    def test_a_missing_file_is_named(self):
        self.write("train.jsonl", as_jsonl(RTE_ROWS))
        with self.assertRaisesRegex(FileNotFoundError, "`test_file`: there is no file .*trian.* mean .*train.jsonl"):
            self.load("rte", test_file=str(self.folder / "data" / "trian.jsonl"))

    def test_an_unknown_loader_is_answered_by_near_ones(self):
        task = as_task({"text_column_name": "a", "prefix": "", "labels": ["x", "y"], "loader": "tables"}, "mine", "t")
        self.assert_refused("field `loader`: there is no loader 'tables'. Did you mean 'table'", task)

    def test_every_task_has_a_loader(self):
        for benchmark in DATASET_VALS:
            for name in task_names(benchmark):
                self.assertIn(get_task(name, benchmark).loader, LOADERS)


class FoldersTest(TaskDataTestCase):
    @parameterized.parameters("train", "rte/train", "RTE/train", "rte/rte_train", "rte/train-00000-of-00001")
    def test_the_files_of_a_task_are_found_in_the_folder_or_in_one_of_its_name(self, name):
        self.write(f"{name}.jsonl", as_jsonl(RTE_ROWS))
        self.assertEqual(self.load_folder("rte"), {"train": RTE_ROWS})

    @parameterized.parameters("validation", "valid", "dev", "val", "dev.jsonl.gz")
    def test_a_split_has_several_names(self, name):
        self.write(name if "." in name else f"{name}.jsonl", as_jsonl(RTE_ROWS))
        self.assertEqual(self.load_folder("rte"), {"validation": RTE_ROWS})

    def test_shards_of_the_hub_are_joined(self):
        for number, rows in enumerate((RTE_ROWS[:1], RTE_ROWS[1:])):
            self.write(f"rte/train-0000{number}-of-00002.parquet", as_parquet(rows))
        self.assertEqual(self.load_folder("rte")["train"], RTE_ROWS)

    def test_a_file_that_is_named_comes_before_that_of_the_folder(self):
        self.write("rte/train.jsonl", as_jsonl(RTE_ROWS))
        other = self.write("other.jsonl", as_jsonl(RTE_ROWS[:1]))
        self.assertEqual(self.load_folder("rte", train_file=other), {"train": RTE_ROWS[:1]})

    def test_two_files_for_a_split_are_an_error(self):
        self.write("rte/dev.jsonl", as_jsonl(RTE_ROWS))
        self.write("rte/validation.csv", as_csv(RTE_ROWS))
        with self.assertRaisesRegex(ValueError, "several files .* 'validation': .* `validation_file`"):
            self.load_folder("rte")

    def test_a_folder_without_the_task_says_what_it_holds(self):
        self.write("cola/train.jsonl", as_jsonl(RTE_ROWS))
        with self.assertRaisesRegex(ValueError, "neither files of the task 'rte'.* It holds: 'cola/'"):
            self.load_folder("rte")
        self.assert_refused("`dataset_dir`: there is no folder", "rte", dataset_dir=self.folder / "nothing")


class GlueFilesTest(TaskDataTestCase):
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


class HubTest(TaskDataTestCase):
    def hub(self, **splits: list[dict]):
        loaded = DatasetDict({split: Dataset.from_list(rows) for split, rows in splits.items()})
        return mock.patch.object(task_sources, "load_dataset", return_value=loaded)

    def test_without_files_the_task_comes_from_the_hub(self):
        rows = Dataset.from_list(RTE_ROWS).cast_column("label", ClassLabel(names=["entailment", "not_entailment"]))
        loaded = DatasetDict(train=rows, validation=rows, test=Dataset.from_list(HIDDEN_ROWS), other=rows)
        with mock.patch.object(task_sources, "load_dataset", return_value=loaded) as load_dataset:
            splits = self.load("rte")
        self.assertEqual(load_dataset.call_args.args, ("nyu-mll/glue", "rte"))
        self.assertEqual(splits, {"train": RTE_ROWS, "validation": RTE_ROWS, "test": HIDDEN_ROWS})

    def test_a_missing_split_is_an_error_but_for_the_test(self):
        with self.hub(train=RTE_ROWS, validation=RTE_ROWS):
            self.assertEqual(list(self.load("rte")), ["train", "validation"])
        with self.hub(train=RTE_ROWS), self.assertRaisesRegex(ValueError, "no split 'validation', but: 'train'"):
            self.load("rte")

    def test_empty_texts_of_the_hub_are_kept_and_reported(self):
        rows = [RTE_ROWS[0], RTE_ROWS[1] | {"sentence2": ""}]
        with self.hub(train=rows, validation=RTE_ROWS), self.assertLogs("hf_depth", "WARNING") as logs:
            self.assertEqual(self.load("rte")["train"], rows)
        self.assertIn("1 texts in 'sentence2' are empty, the first in row 1", logs.output[0])

    def test_without_a_network_the_error_names_the_flags_for_files(self):
        with mock.patch.object(task_sources, "load_dataset", side_effect=ConnectionError("no route.")):
            self.assert_refused("'nyu-mll/glue', configuration 'rte',.* no route.*`train_file`.*`dataset_dir`", "rte")

    def test_a_task_without_any_data_says_so(self):
        task = as_task({"text_column_name": "a", "prefix": "", "labels": ["x", "y"]}, "mine", "t")
        self.assert_refused("'t' names no data set on the Hub .*`train_file`", task)


class DiscoEvalTest(TaskDataTestCase):
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

    def test_labels_that_are_numbers_are_those_of_the_file(self):
        task = replace(get_task("PDTB-E"), name="own", labels=("1", "2", "3"))
        rows = self.load(task, train_file=self.write("train.txt", "3\tA .\tB .\n1\tC .\tD .\n"))["train"]
        self.assertEqual([task.targets(row) for row in rows], [["3"], ["1"]])

    def test_a_pair_with_a_label_is_one_row(self):
        rows = self.load("BSOwiki", train_file=self.write("train.txt", "0\tA .\tB .\n"))["train"]
        self.assertEqual(rows, [{"sentence_1": "A .", "sentence_2": "B .", "label": 0, "idx": 0}])

    @parameterized.parameters(
        ("A .\tB .\n", "line 1: expected a label and 2 texts for the task 'PDTB-E', got 2 parts"),
        ("1\tA .\tB .\n1\tA .\tB .\tC .\n", "line 2: expected a label and 2 texts .* got 4 parts"),
        ("1\tA .\tB .\n\n1\t \tB .\n", "line 3: text 1 of 2 is empty"),
        ("12\tA .\tB .\n", "line 1: Task 'PDTB-E': the column 'label' holds '12', .*none of its labels"),
    )
    def test_a_bad_line_is_named(self, content, message):
        path = self.write("bad.txt", content)
        self.assert_refused(f"`train_file`: .*bad.txt, {message}", "PDTB-E", train_file=path)

    STRUCTURE = [("NS-Cause", ["A a ,", "b ."], ["C ."]), (0, ["D ."], "E .")]
    EXPECTED = [
        {"sentence_1": "A a , b .", "sentence_2": "C .", "label": 38, "idx": 0},
        {"sentence_1": "D .", "sentence_2": "E .", "label": 0, "idx": 1},
    ]

    @parameterized.parameters(0, 2, 4, 5)
    def test_rst_is_read_from_its_pickles(self, protocol):
        self.write("RST/RST_TRAIN.pkl", pickle.dumps(self.STRUCTURE, protocol))
        self.write("RST/RST_DEV.pkl", pickle.dumps(self.STRUCTURE[:1], protocol))
        self.assertEqual(self.load_folder("RST"), {"train": self.EXPECTED, "validation": self.EXPECTED[:1]})

    def test_a_pickle_may_be_compressed(self):
        path = self.write("a.pkl.gz", pickle.dumps(self.STRUCTURE))
        self.assertEqual(self.load("RST", test_file=path)["test"], self.EXPECTED)

    def test_rst_is_read_from_json_of_the_same_structure_and_from_tables(self):
        path = self.write("a.json", json.dumps(self.STRUCTURE, indent=1))
        self.assertEqual(self.load("RST", train_file=path)["train"], self.EXPECTED)
        row = {"first_sentence": ["A a ,", "b ."], "second_sentence": ["C ."], "label": "NS-Cause"}
        path = self.write("b.jsonl", as_jsonl([row]))
        self.assertEqual(self.load("RST", train_file=path)["train"], self.EXPECTED[:1])

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
        (pickle.dumps({"a": 1}), "expected a list of .label, texts, …., got dict"),
        (pickle.dumps([("NS-Cause", ["A ."])]), "row 0 .*expected a label and 2 texts"),
        (pickle.dumps([("NS-Cause", ["A ."], {5})]), "row 0 .*expected a text or a list of texts, got .5."),
        (pickle.dumps([("NS-Cause", ["A ."], [])]), "row 0 .*text 2 of 2 is empty"),
        (pickle.dumps([("XX-Cause", ["A ."], ["B ."])]), "row 0 .*'label' holds 'XX-Cause'"),
        (pickle.dumps([]), " has no rows"),
    )
    def test_a_bad_pickle_is_named(self, content, message):
        self.assert_refused(f"a.pkl.*{message}", "RST", train_file=self.write("a.pkl", content))

    @parameterized.parameters(
        (("sentence_1", "sentence_2"), 1),
        (("first_sentence", "second_sentence"), "1"),
        (("arg1", "arg2"), "Comparison.Contrast"),
    )
    def test_columns_of_the_hub_are_taken_in_their_order_with_numbers_or_texts_as_labels(self, columns, label):
        row = {"idx": 4, columns[0]: "A .", "label": label, columns[1]: "B ."}
        loaded = self.load("PDTB-E", train_file=self.write("a.jsonl", as_jsonl([row])))["train"]
        self.assertEqual(loaded, [{"sentence_1": "A .", "sentence_2": "B .", "label": 1, "idx": 4}])

    def test_ordinals_beyond_the_sentences_of_the_task_are_left_out(self):
        row = {"second_sentence": "B .", "first_sentence": "A .", "third_sentence": None, "label": 0}
        (loaded,) = self.load("PDTB-E", train_file=self.write("a.jsonl", as_jsonl([row])))["train"]
        self.assertEqual((loaded["sentence_1"], loaded["sentence_2"]), ("A .", "B ."))

    def test_too_few_columns_are_an_error(self):
        path = self.write("a.jsonl", as_jsonl([{"text": "A .", "label": 0}]))
        self.assert_refused("a.jsonl: .* needs 2 columns with text, .* There are: 'text'", "PDTB-E", train_file=path)

    def test_without_files_the_published_ones_are_downloaded(self):
        def download(path, name, **_):
            return str(self.folder / "data" / path / name)

        self.write("OfekGlick/DiscoEval/data/RST/RST_TRAIN.pkl", pickle.dumps(self.STRUCTURE))
        self.write("OfekGlick/DiscoEval/data/RST/RST_DEV.pkl", pickle.dumps(self.STRUCTURE))
        self.write("OfekGlick/DiscoEval/data/RST/RST_TEST.pkl", pickle.dumps(self.STRUCTURE))
        for name in ("train", "valid", "test"):
            self.write(f"OfekGlick/DiscoEval/data/BSO/wiki/{name}.txt", "A .\tB .\n")
        with mock.patch.object(disco_eval, "hf_hub_download", side_effect=download):
            self.assertEqual(self.load("RST"), dict.fromkeys(("train", "validation", "test"), self.EXPECTED))
            self.assertEqual([len(rows) for rows in self.load("BSOwiki").values()], [2, 2, 2])

    def test_without_a_network_the_error_says_where_the_files_are(self):
        with mock.patch.object(disco_eval, "hf_hub_download", side_effect=ConnectionError("no route.")):
            self.assert_refused("'SPwiki' .* no route. .*ZeweiChu/DiscoEval .*`dataset_dir`", "SPwiki")


class DiscourseTest(TaskDataTestCase):
    DOCUMENTS = "\n\n".join(
        " ".join(f"Sentence number {i} of the document about {topic} stands here." for i in range(8))
        for topic in map(chr, range(ord("A"), ord("Z") + 1))
    )

    @parameterized.parameters("sentence_position", "sentence_ordering", "discourse_coherence")
    def test_a_discourse_task_is_made_of_the_files_of_a_folder(self, name):
        self.write("train.txt", self.DOCUMENTS)
        named = self.load(name, train_file=str(self.folder / "data" / "train.txt"))
        self.assertEqual(self.load_folder(name), named)
        self.assertEqual(list(named), ["train", "validation", "test"])
        task = get_task(name)
        for row in named["train"]:
            self.assertLen(task.input_texts(row), len(task.text_column_name))
            self.assertLen(task.targets(row), 1)
