"""Files, folders and the Hub as sources of examples."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

from absl.testing import parameterized
from datasets import ClassLabel, Dataset, DatasetDict

from hf_depth.tasks import sources
from hf_depth.tasks.loading import load_task
from hf_depth.tasks.registry import get_task
from hf_depth.tasks.sources import named_generator
from tiny_tasks import (
    QUESTIONS,
    RTE_EXAMPLES,
    UNLABELED_EXAMPLES,
    WRITERS,
    TaskFilesTestCase,
    as_csv,
    as_jsonl,
    as_parquet,
    as_tsv,
)


class FilesTest(TaskFilesTestCase):
    @parameterized.product(extension=list(WRITERS))
    def test_every_kind_of_file_gives_the_same_examples(self, extension):
        path = self.write(f"a.{extension}" + ".gz" * (extension != "parquet"), WRITERS[extension](RTE_EXAMPLES))
        self.assertEqual(self.load("rte", train_file=path), {"train": RTE_EXAMPLES})

    def test_a_task_that_is_only_tested_takes_no_training_file(self):
        path = self.write("a.jsonl", as_jsonl([{"premise": "P.", "hypothesis": "H.", "label": 1}]))
        self.assert_refused("`train_file`: the task 'ax' has no such .* trained .* 'mnli'", "ax", train_file=path)
        self.assertEqual(list(self.load("ax", test_file=path)), ["test"])

    @parameterized.parameters("validation_file", "test_file")
    def test_a_file_that_is_held_out_is_not_trained_on(self, argument):
        held_out = self.write("dev.jsonl", as_jsonl(RTE_EXAMPLES[1:]))
        self.write("train.jsonl", as_jsonl(RTE_EXAMPLES[:1]))
        message = f"`train_file` and `{argument}` both name .*dev.jsonl"
        every = str(self.folder / "data" / "*.jsonl")
        self.assert_refused(message, "rte", **{"train_file": every, argument: held_out})
        if argument == "validation_file":
            self.assert_refused(message, "rte", dataset_dir=self.folder / "data", train_file=every)

    def test_what_was_read_is_found_again_and_a_changed_file_is_read_anew(self):
        path = self.write("a.tsv", as_tsv(RTE_EXAMPLES))
        task, cache_dir = get_task("rte"), str(self.folder / "cache")
        first = load_task(task, train_file=path, cache_dir=cache_dir)["train"]
        (file,) = first.cache_files
        written = Path(file["filename"]).stat().st_mtime_ns
        again = load_task(task, train_file=path, cache_dir=cache_dir)["train"]
        self.assertEqual(first._fingerprint, again._fingerprint)  # that of the tokenized rows follows from it
        self.assertEqual(again.cache_files, [file])
        self.assertEqual(Path(file["filename"]).stat().st_mtime_ns, written)
        self.write("a.tsv", as_tsv([RTE_EXAMPLES[0] | {"label": 1}]))
        self.assertEqual(self.load(task, train_file=path)["train"], [RTE_EXAMPLES[0] | {"label": 1}])


class BadFilesTest(TaskFilesTestCase):
    def test_a_line_with_too_few_cells_is_named(self):
        path = self.write("bad.tsv", as_tsv(RTE_EXAMPLES) + "\nonly one\n")
        self.assert_refused("`train_file`: .*bad.tsv, line 6: it has 1 cells .* 4: 'sent", "rte", train_file=path)

    def test_broken_lines_and_empty_texts_of_published_files_are_counted_where_the_entry_knows_of_them(self):
        names = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
        rows = [{name: f"{name} {i}" for name in names} | {"id": i, "is_duplicate": i % 2} for i in range(4)]
        rows[2]["question2"] = ""
        lines = as_tsv(rows).splitlines()
        lines[2:2] = ["7\t1\t2\tA question", "in two lines.\tAnother?\t1", "8\t1\t2\tOne\ttab\ttoo many?\t0"]
        path = self.write("train.tsv", "\n".join(lines) + "\n")
        with self.assertLogs("hf_depth.tasks", "WARNING") as logs:
            read = self.load("qqp", train_file=path)["train"]
        self.assertEqual([row["idx"] for row in read], [0, 1, 2, 3])
        self.assertEqual([row["question2"] for row in read], ["question2 0", "question2 1", "", "question2 3"])
        self.assertIn("train.tsv: 3 lines do not have 6 cells between tabs and are left out", logs.output[0])
        self.assert_refused(
            "train.tsv, line 3: it has 4 cells", replace(get_task("qqp"), file_defects=()), train_file=path
        )

    def test_labels_of_several_types_are_read_but_texts_among_lists_are_refused(self):
        rows = [RTE_EXAMPLES[0] | {"label": label} for label in (0, "not_entailment", "1", 1.0)]
        read = self.load("rte", train_file=self.write("a.jsonl", as_jsonl(rows)))["train"]
        self.assertEqual([row["label"] for row in read], [0, 1, 1, 1])
        path = self.write("b.jsonl", as_jsonl([{"question": "Q", "answers": answer} for answer in ("5", ["5"])]))
        self.assert_refused("b.jsonl, row 0 .*'answers' must hold a text or a list", QUESTIONS, train_file=path)
        path = self.write("c.jsonl", as_jsonl([row | {"sentence1": "2020-01-01"} for row in RTE_EXAMPLES]))
        self.assert_refused("c.jsonl, row 0 .*'sentence1' must hold text, but holds datetime", "rte", train_file=path)

    def test_a_quotation_mark_does_not_swallow_lines(self):
        rows = [RTE_EXAMPLES[0] | {"sentence1": '"An opening quotation mark', "idx": i} for i in range(3)]
        self.assertEqual(self.load("rte", train_file=self.write("a.tsv", as_tsv(rows)))["train"], rows)

    @parameterized.parameters(
        ("a.txt", "A plain text.", "a.txt has an unknown extension. Known are .json, .jsonl, .csv, .parquet, .tsv"),
        ("a.tsv", "", "a.tsv has no rows"),
        ("a.tsv", b"sentence1\tsentence2\tlabel\n\xff\tb\t1\n", "a.tsv, line 2: it is not UTF-8"),
        ("a.jsonl", '{"sentence1": \n', "cannot read .*a.jsonl, line [12]"),
    )
    def test_a_file_that_cannot_be_read_is_named(self, name, content, message):
        self.assert_refused(message, "rte", train_file=self.write(name, content))


class FoldersTest(TaskFilesTestCase):
    @parameterized.parameters("train", "RTE/train", "rte/rte_train", "rte/train-00000-of-00001")
    def test_the_files_of_a_task_are_found_in_the_folder_or_in_one_of_its_name(self, name):
        self.write(f"{name}.jsonl", as_jsonl(RTE_EXAMPLES))
        self.assertEqual(self.load_folder("rte"), {"train": RTE_EXAMPLES})

    @parameterized.parameters("valid", "dev.jsonl.gz")
    def test_a_split_has_several_names(self, name):
        self.write(name if "." in name else f"{name}.jsonl", as_jsonl(RTE_EXAMPLES))
        self.assertEqual(self.load_folder("rte"), {"validation": RTE_EXAMPLES})

    @parameterized.parameters("", "-a09b74b3ef9c3b56")
    def test_shards_of_the_hub_are_joined(self, digest):
        for number, rows in enumerate((RTE_EXAMPLES[:1], RTE_EXAMPLES[1:])):
            self.write(f"rte/train-0000{number}-of-00002{digest}.parquet", as_parquet(rows))
        self.assertEqual(self.load_folder("rte")["train"], RTE_EXAMPLES)

    def test_two_files_for_a_split_are_an_error(self):
        self.write("rte/dev.jsonl", as_jsonl(RTE_EXAMPLES))
        self.write("rte/validation.csv", as_csv(RTE_EXAMPLES))
        with self.assertRaisesRegex(ValueError, "'validation': .* has several files: .* `validation_file`"):
            self.load_folder("rte")
        named = self.load_folder("rte", validation_file=str(self.folder / "data" / "rte" / "dev.jsonl"))
        self.assertEqual(named, {"validation": RTE_EXAMPLES})

    def test_a_folder_without_the_task_says_what_it_holds(self):
        self.write("cola/train.jsonl", as_jsonl(RTE_EXAMPLES))
        with self.assertRaisesRegex(ValueError, "neither files of the task 'rte'.* It holds: 'cola/'"):
            self.load_folder("rte")
        self.assert_refused("`dataset_dir`: there is no folder", "rte", dataset_dir=self.folder / "nothing")


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


class HubTest(TaskFilesTestCase):
    def hub(self, **splits: list[dict]):
        loaded = DatasetDict({split: Dataset.from_list(rows) for split, rows in splits.items()})
        return mock.patch.object(sources, "load_dataset", return_value=loaded)

    def test_without_files_the_task_comes_from_the_hub(self):
        rows = Dataset.from_list(RTE_EXAMPLES).cast_column("label", ClassLabel(names=["entailment", "not_entailment"]))
        loaded = DatasetDict(train=rows, validation=rows, test=Dataset.from_list(UNLABELED_EXAMPLES), other=rows)
        with mock.patch.object(sources, "load_dataset", return_value=loaded) as load_dataset:
            splits = self.load("rte")
        self.assertEqual(load_dataset.call_args.args, ("nyu-mll/glue", "rte"))
        self.assertEqual(splits, {"train": RTE_EXAMPLES, "validation": RTE_EXAMPLES, "test": UNLABELED_EXAMPLES})

    def test_a_missing_split_is_an_error_but_for_the_test(self):
        with self.hub(train=RTE_EXAMPLES, validation=RTE_EXAMPLES):
            self.assertEqual(list(self.load("rte")), ["train", "validation"])
        with (
            self.hub(train=RTE_EXAMPLES),
            self.assertRaisesRegex(ValueError, "no split 'validation', but: 'train'. Name .*`validation_splits`"),
        ):
            self.load("rte")

    def test_without_a_network_the_error_names_the_flags_for_files(self):
        with mock.patch.object(sources, "load_dataset", side_effect=ConnectionError("no route.")):
            self.assert_refused("'nyu-mll/glue', configuration 'rte',.* no route.*`train_file`.*`dataset_dir`", "rte")


class NamedGeneratorTest(parameterized.TestCase):
    def test_it_depends_on_the_seed_and_the_names_alone(self):
        draws = [named_generator(*names).integers(2**60) for names in ((1, "a"), (1, "a"), (2, "a"), (1, "b"))]
        self.assertEqual(draws[0], draws[1])
        self.assertLen(set(draws), 3)
        # Another value would change the examples of all runs.
        self.assertEqual(named_generator(42, "sentence_position", "x").integers(1000), 568)
