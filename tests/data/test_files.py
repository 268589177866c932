"""Files by their names, and columns that must hold text; how files are read is in `test_reading`."""

import json
import os
import shutil
import unittest
from pathlib import Path

from absl.testing import parameterized

from helpers import DOCUMENTS, CorpusTestCase
from hf_depth.data.files import column_texts

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

    @unittest.skipUnless(hasattr(os, "mkfifo"), "this system has no named pipes")
    def test_a_pipe_is_refused_since_it_can_be_read_only_once(self):
        os.mkfifo(self.path("pipe.jsonl"))
        with self.assertRaisesRegex(
            ValueError, "`train_file`: .*pipe.jsonl is a pipe .* Write what it gives to a file"
        ):
            self.load(train_file="pipe.jsonl")

    @parameterized.parameters(False, True)
    def test_a_file_that_is_named_twice_is_refused(self, streaming):
        self.write("a.jsonl", CONTENTS["jsonl"])
        for other in ("*.jsonl", "cache/../a.jsonl"):
            Path(self.path("cache")).mkdir(exist_ok=True)
            with self.assertRaisesRegex(ValueError, "`train_file` names .*a.jsonl 2 times"):
                self.load(train_file=["a.jsonl", other], streaming=streaming)


class HeldOutTest(CorpusTestCase):
    def setUp(self):
        super().setUp()
        for name in ("a", "b", "held_out"):
            self.write(f"{name}.jsonl", CONTENTS["jsonl"] + json.dumps({"text": name}))
        os.symlink(self.path("held_out.jsonl"), self.path("link.jsonl"))

    @parameterized.parameters(
        ("*.jsonl", "validation_file", False),
        (["a.jsonl", "held_out.jsonl"], "test_file", True),
        (["a.jsonl", "link.jsonl"], "validation_file", True),
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


class ShardsTest(CorpusTestCase):
    @parameterized.parameters(
        (["00000-of-00002", "00001-of-00002"], None),
        (["00001-of-00002", "00002-of-00002"], None),
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


class TextColumnTest(parameterized.TestCase):
    def test_what_is_no_text_is_named(self):
        with self.assertRaisesRegex(ValueError, "column 'year' must hold text, but its row 1 holds 2 \\(int\\)"):
            column_texts({"year": [None, 2]}, "year")
