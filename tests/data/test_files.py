"""Files by their names, and columns that must hold text; how files are read is in `test_reading`."""

import json
import os
import shutil
import unittest
from pathlib import Path
from unittest import mock

import pyarrow
from absl.testing import parameterized
from datasets import Dataset

from helpers import DOCUMENTS, CorpusTestCase
from hf_depth.data.files import check_text_column, column_texts, file_kind, file_names, find_files, shard_problem

TEXTS = [*DOCUMENTS, "None", "1984"]
CONTENTS = {"jsonl": "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)}


class FindTest(CorpusTestCase):
    def test_a_missing_file_is_named_with_those_near_to_it(self):
        self.write("train.jsonl", CONTENTS["jsonl"])
        with self.assertRaisesRegex(FileNotFoundError, "`test_file`: there is no file .*Did you mean '.*train.jsonl'"):
            self.load(test_file="trian.jsonl")
        with self.assertRaisesRegex(FileNotFoundError, "there is no file '.*/no folder/x.txt'"):
            self.load(train_file="no folder/x.txt")
        with self.assertRaisesRegex(ValueError, "is a folder. Name its files"):
            self.load(train_file="")

    def test_a_link_to_nothing_is_told_with_what_it_names(self):
        os.symlink(self.path("gone.jsonl"), self.path("train.jsonl"))
        with self.assertRaisesRegex(FileNotFoundError, "`train_file`: .*train.jsonl is a link to '.*gone.jsonl', whi"):
            self.load(train_file="train.jsonl")

    @unittest.skipUnless(hasattr(os, "mkfifo"), "this system has no named pipes")
    def test_a_pipe_is_refused_since_it_can_be_read_only_once(self):
        os.mkfifo(self.path("pipe.jsonl"))
        with self.assertRaisesRegex(
            ValueError, "`train_file`: .*pipe.jsonl is a pipe .* Write what it gives to a file"
        ):
            self.load(train_file="pipe.jsonl")

    def test_a_tilde_is_the_home_folder(self):
        self.write("home.txt", "A dog barked.\n")
        with mock.patch.dict(os.environ, HOME=self.path(""), USERPROFILE=self.path("")):
            self.assertEqual(find_files("train_file", ["~/ho*.txt"]), [os.path.join(self.path(""), "home.txt")])

    @parameterized.parameters(False, True)
    def test_a_file_that_is_named_twice_is_refused(self, streaming):
        self.write("a.jsonl", CONTENTS["jsonl"])
        for other in ("*.jsonl", "cache/../a.jsonl"):
            Path(self.path("cache")).mkdir(exist_ok=True)
            with self.assertRaisesRegex(ValueError, "`train_file` names .*a.jsonl 2 times"):
                self.load(train_file=["a.jsonl", other], streaming=streaming)

    @parameterized.parameters(
        (["a.TXT"], "text"),
        (["a.json", "b.jsonl.gz"], "json"),
        (["https://host/a.csv.gz?x=a.txt", "s3://b/c.csv"], "csv"),
    )
    def test_the_kind_of_files_is_that_of_the_ends_of_their_names(self, files, kind):
        self.assertEqual(file_kind("train_file", files), kind)


class HeldOutTest(CorpusTestCase):
    def setUp(self):
        super().setUp()
        for name in ("a", "b", "held_out"):
            self.write(f"{name}.jsonl", CONTENTS["jsonl"] + json.dumps({"text": name}))
        os.symlink(self.path("held_out.jsonl"), self.path("link.jsonl"))

    @parameterized.product(
        train_file=["*.jsonl", ["a.jsonl", "held_out.jsonl"], ["a.jsonl", "link.jsonl"]],
        argument=["validation_file", "test_file"],
        streaming=[False, True],
    )
    def test_a_file_that_is_held_out_is_not_trained_on(self, train_file, argument, streaming):
        message = f"`train_file` and `{argument}` both name .*(held_out|link).jsonl, .* Take it out of one of them"
        with self.assertRaisesRegex(ValueError, message):
            self.load(**{"train_file": train_file, argument: "held_out.jsonl"}, streaming=streaming)

    def test_no_source_of_a_mixture_trains_on_what_another_one_holds_out(self):
        sources = [
            {"name": "one", "train_file": self.path("*.jsonl")},
            {"name": "two", "train_file": self.path("b.jsonl"), "validation_file": self.path("held_out.jsonl")},
        ]
        with self.assertRaisesRegex(
            ValueError, "one.*: `train_file` and `validation_file` both name .*(held_out|link)"
        ):
            self.load(dataset_mixture=sources, validation_split_percentage=0)

    @parameterized.parameters("a.jsonl", "[ab].jsonl")
    def test_just_the_same_files_may_be_trained_and_evaluated_on(self, files):
        with self.assertLogs("hf_depth", "WARNING") as logs:
            corpus = self.load(train_file=files, validation_file=files)
        self.assertEqual(self.texts(corpus["train"]), self.texts(corpus["validation"]))
        self.assertIn("`train_file` and `validation_file` name the same text", logs.output[0])

    def test_a_copy_is_the_same_text_under_another_name(self):
        shutil.copy(self.path("a.jsonl"), self.path("copy.jsonl"))
        with self.assertLogs("hf_depth", "WARNING") as logs:
            self.load(train_file="a.jsonl", validation_file="copy.jsonl")
        self.assertRegex(logs.output[0], "`train_file` and `validation_file` name the same text, .*copy.jsonl")
        with self.assertRaisesRegex(ValueError, "`train_file` and `test_file` both name .*copy.jsonl, or a copy"):
            self.load(train_file=["a.jsonl", "b.jsonl"], test_file="copy.jsonl")

    def test_files_that_no_split_shares_are_not_remarked_on(self):
        with self.assertNoLogs("hf_depth", "WARNING"):
            self.load(train_file=["a.jsonl", "b.jsonl"], validation_file="held_out.jsonl", test_file="held_out.jsonl")


class ShardsTest(CorpusTestCase):
    @parameterized.parameters(
        (["00000-of-00002", "00001-of-00002"], None),
        (["00001-of-00002", "00002-of-00002"], None),
        (["00000-of-00002-0123456789abcdef", "00001-of-00002-fedcba9876543210"], None),
        (["100000-of-00002", "2024"], None),
        (["00001-of-00003"], "text-00000-of-00003.jsonl, .*text-00002-of-00003.jsonl are missing"),
        (["00000-of-00001", "00000-of-00002", "00001-of-00002"], "several sets, '-of-00001', '-of-00002'"),
    )
    def test_a_copy_that_is_not_complete_is_reported(self, shards, message):
        for shard in shards:
            self.write(f"text-{shard}.jsonl", CONTENTS["jsonl"])
        for source in ({"train_file": "*.jsonl"}, {"dataset_name": self.folder, "split": "train"}):
            check_logs = self.assertLogs if message else self.assertNoLogs
            with check_logs("hf_depth", "WARNING") as logs:
                corpus = self.load(**source, validation_split_percentage=0)
            self.assertLen(corpus["train"], len(shards) * len(TEXTS))
            if message:
                self.assertRegex(logs.output[0], f"`{next(iter(source))}`: .*{message}")

    def test_shards_of_another_name_or_folder_are_other_shards(self):
        names = ["a/train-00000-of-00001.txt", "a/test-00000-of-00002.txt", "a/test-00001-of-00002.txt"]
        self.assertIsNone(shard_problem([*names, "b/train-00000-of-00002.txt", "b/train-00001-of-00002.txt"]))
        folder = "b-00000-of-00001"
        missing = f"{folder}/c.00000-of-00002.gz is missing"
        self.assertEqual(shard_problem([*names, f"{folder}/c.00001-of-00002.gz"]), missing)


class FileNamesTest(parameterized.TestCase):
    @parameterized.parameters(
        (None, []),
        ("a.txt", ["a.txt"]),
        (Path("a.txt"), ["a.txt"]),
        (["a.txt", Path("b.txt")], ["a.txt", "b.txt"]),
        ((), []),
    )
    def test_one_file_several_or_none_are_a_list_of_names(self, files, names):
        self.assertEqual(file_names(files), names)


class TextColumnTest(parameterized.TestCase):
    def test_a_table_with_other_separators_is_answered_by_those_that_it_needs(self):
        with self.assertRaisesRegex(ValueError, "column is 'text;y': separate columns by commas in a .csv file. The"):
            check_text_column(Dataset.from_dict({"text;y": ["a;0"]}), "text")

    def test_the_names_of_all_columns_are_returned(self):
        dataset = Dataset.from_dict({"title": ["a"], "text": ["b"]})
        self.assertEqual(check_text_column(dataset, "text"), ["title", "text"])

    def test_a_batch_gives_its_texts_a_missing_one_as_an_empty_one(self):
        self.assertEqual(column_texts({"text": ["a", None, ""], "year": [1, 2, 3]}, "text"), ["a", "", ""])

    @parameterized.parameters(pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())
    def test_columns_of_text_are_known_by_their_type_without_reading_them(self, kind):
        dataset = Dataset(pyarrow.table({"text": pyarrow.array(TEXTS, kind)}))
        with mock.patch("hf_depth.data.files._check_texts", side_effect=AssertionError):
            self.assertEqual(check_text_column(dataset, "text"), ["text"])

    def test_what_is_no_text_is_named(self):
        with self.assertRaisesRegex(ValueError, "column 'year' must hold text, but its row 1 holds 2 \\(int\\)"):
            column_texts({"year": [None, 2]}, "year")
