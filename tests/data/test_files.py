"""Files by their names, and columns that must hold text; how files are read is in `test_reading`."""

import json
import os
import shutil
from pathlib import Path

from absl.testing import parameterized

from helpers import DOCUMENTS, CorpusTestCase
from hf_depth.data.files import column_texts

CONTENT = "".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS)


class FindTest(CorpusTestCase):
    def test_a_missing_file_is_named_with_those_near_to_it(self):
        self.write("train.jsonl", CONTENT)
        with self.assertRaisesRegex(FileNotFoundError, "`test_file`: there is no file .*Did you mean '.*train.jsonl'"):
            self.load(test_file="trian.jsonl")
        with self.assertRaisesRegex(FileNotFoundError, "there is no file '.*/no folder/x.txt'"):
            self.load(train_file="no folder/x.txt")
        with self.assertRaisesRegex(ValueError, "is a folder. Name its files"):
            self.load(train_file="")

    def test_a_file_that_is_named_twice_is_refused(self):
        self.write("a.jsonl", CONTENT)
        Path(self.path("cache")).mkdir()
        for other in ("*.jsonl", "cache/../a.jsonl"):
            with self.assertRaisesRegex(ValueError, "`train_file` names .*a.jsonl 2 times"):
                self.load(train_file=["a.jsonl", other])

    def test_a_name_that_datasets_takes_for_a_glob_is_refused(self):
        for name in ("texts[1]", "texts1"):
            os.makedirs(self.path(f"{name}/train"))
            self.write(f"{name}/train/a.jsonl", json.dumps({"text": name}))
        message = r"the path .*texts\[1\].* holds one of the characters \[ \* \?"
        for source in ({"train_file": "texts[1]/train/a.jsonl"}, {"dataset_name": self.path("texts[1]")}):
            with self.assertRaisesRegex(ValueError, f"`{next(iter(source))}`: {message}"):
                self.load(**source)


class HeldOutTest(CorpusTestCase):
    def setUp(self):
        super().setUp()
        for name in ("a", "b", "held_out"):
            self.write(f"{name}.jsonl", CONTENT + json.dumps({"text": name}))
        os.symlink(self.path("held_out.jsonl"), self.path("link.jsonl"))
        shutil.copy(self.path("a.jsonl"), self.path("a.jsonl.copy"))

    @parameterized.parameters(("*.jsonl", "validation_file"), (["a.jsonl", "link.jsonl"], "test_file"))
    def test_a_file_that_is_held_out_is_not_trained_on(self, train_file, argument):
        message = f"`train_file` and `{argument}` both name .*held_out.jsonl, or a copy.* Take it out of one of them"
        with self.assertRaisesRegex(ValueError, message):
            self.load(**{"train_file": train_file, argument: "held_out.jsonl"})

    def test_no_source_of_a_mixture_trains_on_what_another_one_holds_out(self):
        sources = [
            {"name": "one", "train_file": self.path("*.jsonl")},
            {"name": "two", "train_file": self.path("b.jsonl"), "validation_file": self.path("held_out.jsonl")},
        ]
        with self.assertRaisesRegex(ValueError, "one.*: `train_file` and `validation_file` both name .*held_out"):
            self.load(dataset_mixture=sources, validation_split_percentage=0)

    def test_just_the_same_text_may_be_trained_and_evaluated_on(self):
        os.rename(self.path("a.jsonl.copy"), self.path("copy.jsonl"))
        with self.assertLogs("hf_depth", "WARNING") as logs:
            corpus = self.load(train_file="a.jsonl", validation_file="copy.jsonl")
        self.assertEqual(self.texts(corpus["train"]), self.texts(corpus["validation"]))
        self.assertIn("`train_file` and `validation_file` name the same text", logs.output[0])


class TextColumnTest(parameterized.TestCase):
    def test_what_is_no_text_is_named(self):
        with self.assertRaisesRegex(ValueError, "column 'year' must hold text, but its row 1 holds 2 \\(int\\)"):
            column_texts({"year": [None, 2]}, "year")
