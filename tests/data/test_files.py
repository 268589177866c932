import contextlib
import csv
import errno
import gzip
import io
import json
import os
import unittest
from pathlib import Path
from unittest import mock

import pyarrow
import pyarrow.parquet
from absl.testing import parameterized
from datasets import Dataset, DatasetDict, IterableDatasetDict

from helpers import DOCUMENTS, SENTENCES, CorpusTestCase
from hf_depth.data import readers
from hf_depth.data.files import check_text_column, column_texts, file_names, find_files, load_files, shard_problem

TEXTS = [*DOCUMENTS, "None", "1984", "Two, with a comma.", "naïve “café”"]
LONG = "A line. " * 100_000  # more than any buffer
ROWS = [{"text": text, "year": year} for year, text in enumerate(TEXTS)]


def parquet(rows: list[dict]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


CONTENTS = {
    "txt": "\n\n".join(TEXTS),
    "json": json.dumps(ROWS),
    "jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "csv": "year,text\n" + "".join('{year},"{}"\n'.format(row["text"].replace('"', '""'), **row) for row in ROWS),
    "parquet": parquet(ROWS),
}


class _CountedFile(io.FileIO):
    num_bytes = 0

    def read(self, size=-1):
        content = super().read(size)
        _CountedFile.num_bytes += len(content)
        return content


def half_copied(source, target, *more):
    target.write(source.read(100))
    raise OSError("killed")


class LoadFilesTest(CorpusTestCase):
    @parameterized.product(extension=list(CONTENTS), compression=["", ".gz"], streaming=[False, True])
    def test_every_kind_of_file_gives_the_same_documents(self, extension, compression, streaming):
        self.write(f"text.{extension}{compression}", CONTENTS[extension])
        corpus = self.load(
            train_file=f"text.{extension}{compression}", streaming=streaming, validation_split_percentage=0
        )
        self.assertIsInstance(corpus, IterableDatasetDict if streaming else DatasetDict)
        self.assertEqual(list(corpus), ["train"])
        self.assertEqual(self.texts(corpus["train"]), TEXTS)

    @parameterized.parameters(
        ("One.\nTwo.\n\nThree.\n", ["One.\nTwo.", "Three."]),
        ("One.\r\nTwo.\r\n\r\nThree.\r\n", ["One.\nTwo.", "Three."]),
        ("One. Two.\nThree.\n", ["One. Two.", "Three."]),
        ("\n\nOne. Two.\nThree.\n\n\n", ["One. Two.", "Three."]),
    )
    def test_blank_lines_separate_documents_and_lines_do_where_there_is_no_blank_one(self, content, documents):
        self.write("text.txt", content)
        corpus = self.load(train_file="text.txt", validation_split_percentage=0)
        self.assertEqual([text.strip() for text in self.texts(corpus["train"]) if text], documents)

    @parameterized.product(
        case=[
            ("One.\nTwo.\n \nThree.\n\t\nFour.", ["One.\nTwo.", "Three.", "Four."]),
            ("One.\n\x0c\nTwo.\nThree.", ["One.", "Two.\nThree."]),
            ("One.\n\u3000\nTwo.\nThree.", ["One.", "Two.\nThree."]),
            ("One.\rTwo.\r\rThree.", ["One.\nTwo.", "Three."]),
            (" \n One.\n  Two. \n\n", [" One.", "  Two. "]),
            (f"{LONG}\n{LONG}\n\nTwo.", [f"{LONG}\n{LONG}", "Two."]),
            ("One.\n" * 300_000 + "\nTwo.", ["\n".join(["One."] * 300_000), "Two."]),
        ],
        streaming=[False, True],
    )
    def test_a_document_is_what_stands_between_lines_of_white_space(self, case, streaming):
        content, documents = case
        self.write("text.txt", content)
        corpus = self.load(train_file="text.txt", streaming=streaming, validation_split_percentage=0)
        self.assertEqual(self.texts(corpus["train"]), documents)

    @parameterized.parameters(False, True)
    def test_each_text_file_says_by_itself_what_separates_its_documents(self, streaming):
        self.write("a.txt", "One.\nTwo.\n")
        self.write("b.txt", "Three.\nFour.\n\nFive.\n")
        corpus = self.load(train_file=["a.txt", "b.txt"], streaming=streaming, validation_split_percentage=0)
        self.assertEqual(self.texts(corpus["train"]), ["One.", "Two.", "Three.\nFour.", "Five."])

    @parameterized.product(extension=["txt", "json", "jsonl", "csv"], compression=["", ".gz"], streaming=[False, True])
    def test_a_byte_order_mark_is_no_text(self, extension, compression, streaming):
        # Of lists in JSON the builder of `datasets` refuses the mark in later packed files.
        number = 1 if (extension, compression) == ("json", ".gz") else 2
        files = [f"{index}.{extension}{compression}" for index in range(number)]
        for file in files:
            self.write(file, b"\xef\xbb\xbf" + CONTENTS[extension].encode())
        corpus = self.load(train_file=files, streaming=streaming, validation_split_percentage=0)
        self.assertEqual(self.texts(corpus["train"]), TEXTS * number)

    @parameterized.product(encoding=["utf-16", "utf-16-le", "utf-16-be", "utf-32"], extension=["txt", "jsonl", "csv"])
    def test_another_encoding_of_unicode_is_named(self, encoding, extension):
        self.write(f"text.{extension}", CONTENTS[extension].encode(encoding))
        name = encoding.removesuffix("-le").removesuffix("-be").upper()
        with self.assertRaisesRegex(ValueError, f"`train_file`: .*text.{extension} is text in {name}.* `iconv -f"):
            self.load(train_file=f"text.{extension}")

    def test_a_file_is_read_once_and_again_when_it_has_changed(self):
        cached = []
        for content in ("One.\nTwo.", "One.\nTwo.", "One.\n\nTwo. Three."):
            if not cached or content != Path(self.path("text.txt")).read_text():
                self.write("text.txt", content)
            corpus = self.load(train_file="text.txt", validation_split_percentage=0)
            cached.append((corpus["train"].cache_files, corpus["train"]._fingerprint))
        self.assertEqual(self.texts(corpus["train"]), ["One.", "Two. Three."])
        self.assertEqual(cached[0], cached[1])
        self.assertNotEqual(cached[0], cached[2])

    @parameterized.product(extension=list(CONTENTS), streaming=[False, True])
    def test_a_packed_file_that_has_changed_is_read_anew(self, extension, streaming):
        for texts in (TEXTS, TEXTS[:2] * 2):
            content = {
                "txt": "\n\n".join(texts),
                "json": json.dumps([{"text": text} for text in texts]),
                "jsonl": "".join(json.dumps({"text": text}) + "\n" for text in texts),
                "csv": "text\n" + "".join('"{}"\n'.format(text.replace('"', '""')) for text in texts),
                "parquet": parquet([{"text": text} for text in texts]),
            }
            self.write(f"text.{extension}.gz", content[extension])
            corpus = self.load(train_file=f"text.{extension}.gz", streaming=streaming, validation_split_percentage=0)
            self.assertEqual(self.texts(corpus["train"]), texts)

    def test_a_file_that_could_not_be_unpacked_is_not_taken_for_whole(self):
        self.write("text.parquet.gz", CONTENTS["parquet"])
        with mock.patch.object(readers.shutil, "copyfileobj", side_effect=half_copied):
            with self.assertRaisesRegex(ValueError, "`train_file`: cannot read .*text.parquet.gz as parquet: killed"):
                self.load(train_file="text.parquet.gz")
        corpus = self.load(train_file="text.parquet.gz", validation_split_percentage=0)
        self.assertEqual(self.texts(corpus["train"]), TEXTS)

    def test_a_file_is_unpacked_once(self):
        self.write("text.parquet.gz", CONTENTS["parquet"])
        copies = [readers.plain_copy(self.path("text.parquet.gz"), self.path("cache")) for _ in range(2)]
        self.assertEqual(copies[0], copies[1])
        self.assertEqual(Path(copies[0]).read_bytes(), CONTENTS["parquet"])
        self.assertEqual(readers.plain_copy(self.path("text.parquet")), self.path("text.parquet"))

    @parameterized.parameters("txt", "csv")
    def test_a_stream_goes_on_where_it_stopped(self, extension):
        self.write(f"a.{extension}", CONTENTS[extension])
        self.write(f"b.{extension}", CONTENTS[extension])
        files = [f"a.{extension}", f"b.{extension}"]
        stream = self.load(train_file=files, streaming=True, validation_split_percentage=0)["train"]
        self.assertEqual(stream.num_shards, 2)
        for _, _ in zip(range(len(TEXTS) + 2), stream, strict=False):
            state = stream.state_dict()
        stream.load_state_dict(state)
        self.assertEqual(self.texts(stream), TEXTS[2:])

    def test_lists_and_globs_join_files(self):
        for number, text in enumerate(SENTENCES[:3]):
            self.write(f"part{number}.txt", text)
        listed = self.load(train_file=["part2.txt", "part0.txt"], validation_split_percentage=0)["train"]
        self.assertEqual(self.texts(listed), [SENTENCES[2], SENTENCES[0]])
        globbed = self.load(train_file="part*.txt", validation_split_percentage=0)["train"]
        self.assertEqual(self.texts(globbed), SENTENCES[:3])

    def test_each_split_has_its_files_and_its_kind_of_file(self):
        self.write("a.txt", DOCUMENTS[0])
        self.write("b.jsonl", CONTENTS["jsonl"])
        self.write("c.csv", CONTENTS["csv"])
        corpus = self.load(train_file="a.txt", validation_file="b.jsonl", test_file="c.csv")
        self.assertEqual(self.texts(corpus["train"]), DOCUMENTS[:1])
        self.assertEqual(self.texts(corpus["validation"]), TEXTS)
        self.assertEqual(self.texts(corpus["test"]), TEXTS)

    def test_the_text_may_stand_in_any_column(self):
        self.write("a.jsonl", json.dumps({"content": "Some text."}))
        corpus = self.load(train_file="a.jsonl", text_column="content", validation_split_percentage=0)
        self.assertEqual(corpus["train"]["content"][:], ["Some text."])

    @parameterized.product(
        extension=["txt", "jsonl", "csv"], compression=["", ".gz"], streaming=[False, True], line=[1, 3, 70_000]
    )
    def test_an_undecodable_line_is_named(self, extension, compression, streaming, line):
        lines = [b'{"text": "good"}'] * 70_001
        lines[line - 1] = b'{"text": "caf\xe9"}'
        name = f"text.{extension}{compression}"
        self.write(name, b"\n".join(lines))
        with self.assertRaisesRegex(ValueError, f"`train_file`: .*{name}, line {line}, is not UTF-8 text: byte 0xe9"):
            self.load(train_file=name, streaming=streaming)

    @parameterized.parameters(
        ("text.jsonl", '{"text": "a"}\n\n{"text": "b\n', "text.jsonl, line 3, as json"),
        ("text.json", '[{"text": "a"},\n {"text": 2 3}]', "text.json, line 2, as json"),
        ("text.jsonl", '{"text": "a"}\n{"text": 2}\n', "`train_file` .*text.jsonl.* row 1 holds 2 \\(int\\)"),
        ("text.jsonl", '{"text": "a"}\n{"text": "\\ud800 b"}\n', "text.jsonl, line 2, as json: .* surrogate pair"),
        (
            "text.json",
            '[{"text": "\\ud83d\\ude00 a"},\n{"text": "\\ude00"}]',
            "text.json, line 2, holds half of a surr",
        ),
        ("text.jsonl", '"A text."\n', "text.jsonl, line 1, which is no object such as {.text.: .*}, as json"),
        ("text.jsonl", '{"text": ["a"]}\n', "column 'text' must hold text, but its row 0 holds \\['a'\\] \\(list\\)"),
        ("text.csv", "title,body\nx,y\n", "no column 'text'. The columns are: 'title', 'body'. Name the one"),
        ("text.parquet", parquet([{"text": 1}]), "column 'text' must hold text"),
        ("text.parquet", b"no parquet", "cannot read .*text.parquet as parquet"),
        ("text.txt", "", "text.txt is empty"),
        ("text.txt", " \n\n\n", "text.txt is empty"),
        ("text.csv", "text\n", "text.csv has no rows"),
        ("text.doc", "x", "text.doc has an unknown extension. Known are .txt, .json, .jsonl, .csv, .parquet"),
        ("text.txt", "Only one document.", "too few documents to set one apart .* Add documents"),
    )
    def test_what_cannot_be_read_is_named_with_the_remedy(self, name, content, message):
        Path(self.path(name)).write_bytes(content.encode() if isinstance(content, str) else content)
        with self.assertRaisesRegex(ValueError, message):
            self.load(train_file=name)

    @parameterized.parameters(b"plain text", gzip.compress(b"text " * 100_000)[:-100])
    def test_a_broken_gzip_file_is_named(self, content):
        Path(self.path("text.txt.gz")).write_bytes(content)
        with self.assertRaisesRegex(ValueError, "`train_file`: .*text.txt.gz is not a complete gzip file"):
            self.load(train_file="text.txt.gz")

    @parameterized.product(
        extension=["txt", "csv"], streaming=[False, True], fault=["byte", "gzip"], is_packed=[False, True]
    )
    def test_what_is_wrong_far_from_the_beginning_is_named_while_it_is_read(
        self, extension, streaming, fault, is_packed
    ):
        name = f"text.{extension}" + ".gz" * (is_packed or fault == "gzip")
        lines = [b"text", *(b"%020d" % number for number in range(150_000))]  # 3 MB
        if fault == "byte":
            lines[140_000 - 1] = b"caf\xe9"
        self.write(name, b"\n".join(lines))
        if fault == "gzip":
            os.truncate(self.path(name), os.path.getsize(self.path(name)) - 50)
        problem = {"byte": ", line 140000, is not UTF-8 text: byte 0xe9", "gzip": " is not a complete gzip file"}
        with self.assertRaisesRegex(ValueError, name + problem[fault]):
            corpus = self.load(train_file=name, streaming=streaming, validation_split_percentage=0)
            for _ in corpus["train"]:
                pass

    @parameterized.parameters("txt", "csv")
    def test_what_is_cached_is_not_read_again(self, extension):
        self.write(f"text.{extension}", "text\n" + "A line.\n" * 400_000)  # 3 MB
        self.load(train_file=f"text.{extension}", validation_split_percentage=0)
        _CountedFile.num_bytes = 0
        with mock.patch("hf_depth.data.files.open_file", side_effect=lambda file: _CountedFile(file)):
            self.load(train_file=f"text.{extension}", validation_split_percentage=0)
        self.assertLess(_CountedFile.num_bytes, 2_200_000)

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

    def test_a_tilde_is_the_home_folder(self):
        self.write("home.txt", "A dog barked.\n")
        with mock.patch.dict(os.environ, HOME=self.path(""), USERPROFILE=self.path("")):
            self.assertEqual(find_files("train_file", "~/ho*.txt"), [os.path.join(self.path(""), "home.txt")])

    def test_a_cache_that_cannot_be_written_is_not_taken_for_a_file_that_cannot_be_read(self):
        self.write("train.jsonl", CONTENTS["jsonl"])
        with self.assertRaisesRegex(ValueError, "cannot be kept in the cache .*Not a directory.* by `cache_dir`"):
            load_files("train_file", [self.path("train.jsonl")], cache_dir=self.path("train.jsonl/cache"))

    @parameterized.parameters(
        (OSError(errno.ENOSPC, "No space left on device"), "cannot be kept in the cache"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "cannot read .*refused$"),
        (PermissionError(errno.EACCES, "Permission denied", "texts[1].jsonl"), "cannot read .*denied: '.*jsonl'$"),
    )
    def test_a_cache_is_not_blamed_for_files_and_networks(self, cause, message):
        self.write("texts[1].jsonl", CONTENTS["jsonl"])
        if cause.filename:
            cause.filename = self.path(cause.filename)
        with (
            mock.patch("hf_depth.data.files.load_dataset", side_effect=cause),
            self.assertRaisesRegex(ValueError, message),
        ):
            load_files("train_file", [self.path("texts[1].jsonl")], cache_dir=self.path("."))

    @parameterized.parameters(False, True)
    def test_a_file_that_is_named_twice_is_refused(self, streaming):
        self.write("a.jsonl", CONTENTS["jsonl"])
        for other in ("*.jsonl", "cache/../a.jsonl"):
            Path(self.path("cache")).mkdir(exist_ok=True)
            with self.assertRaisesRegex(ValueError, "`train_file` names .*a.jsonl 2 times"):
                self.load(train_file=["a.jsonl", other], streaming=streaming)

    @parameterized.product(
        name=["texts[12]", "texts*", "texts?", "folder[1]/texts"],
        extension=["json", "jsonl", "jsonl.gz", "parquet", "csv"],
        streaming=[False, True],
    )
    def test_a_file_is_read_under_its_name_whatever_files_that_would_match_as_a_glob(self, name, extension, streaming):
        kind = extension.removesuffix(".gz")
        rows = {"json": b'[{"text": "%s"}]', "jsonl": b'{"text": "%s"}', "csv": b"text\n%s\n"}
        for folder in ("folder[1]", "folder1"):
            os.mkdir(self.path(folder))
        for other in (name, "texts1", "textss", "folder1/texts"):
            text = "right" if other == name else "wrong"
            content = parquet([{"text": text}]) if kind == "parquet" else rows[kind] % text.encode()
            self.write(f"{other}.{extension}", content)
        corpus = self.load(train_file=f"{name}.{extension}", streaming=streaming, validation_split_percentage=0)
        self.assertEqual(self.texts(corpus["train"]), ["right"])

    def test_a_name_in_the_current_folder_is_that_of_a_file_there(self):
        for folder in ("folder[1]", "folder1"):
            os.mkdir(self.path(folder))
            self.write(f"{folder}/texts.jsonl", json.dumps({"text": folder}))
        with contextlib.chdir(self.path("folder[1]")):
            documents = load_files("train_file", ["texts.jsonl"], cache_dir=self.path("cache"))
        self.assertEqual(self.texts(documents), ["folder[1]"])

    def test_columns_beside_the_text_of_other_types_are_read_as_a_stream(self):
        for number in (1, "x"):
            self.write(f"{number}.jsonl", json.dumps({"text": "Text.", "id": number}))
        files = {"train_file": ["1.jsonl", "x.jsonl"], "validation_split_percentage": 0}
        with self.assertRaisesRegex(ValueError, "cannot read .*1.jsonl, .*x.jsonl as json: .*`streaming`"):
            self.load(**files)
        self.assertEqual(self.texts(self.load(**files, streaming=True)["train"]), ["Text."] * 2)

    def test_parquet_files_of_different_columns_are_read_as_a_stream(self):
        Dataset.from_dict({"text": ["Text."]}).to_parquet(self.path("1.parquet"))
        Dataset.from_dict({"text": ["Text."], "id": [1]}).to_parquet(self.path("2.parquet"))
        files = {"train_file": ["1.parquet", "2.parquet"], "validation_split_percentage": 0}
        with self.assertRaisesRegex(ValueError, "cannot read .* as parquet: .*(?s:.*)`streaming`"):
            self.load(**files)
        self.assertEqual(self.texts(self.load(**files, streaming=True)["train"]), ["Text."] * 2)

    @parameterized.parameters(False, True)
    def test_a_parquet_file_without_rows_is_named(self, streaming):
        Dataset.from_dict({"text": ["Text."]}).to_parquet(self.path("1.parquet"))
        pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], "string")}), self.path("2.parquet"))
        with self.assertRaisesRegex(ValueError, r"2.parquet has no rows|2.parquet.*it has no rows"):
            documents = self.load(
                train_file=["1.parquet", "2.parquet"], validation_split_percentage=0, streaming=streaming
            )
            list(documents["train"])

    def test_kinds_of_files_do_not_mix_in_a_split(self):
        self.write("a.txt", "Text.")
        self.write("b.csv", CONTENTS["csv"])
        with self.assertRaisesRegex(ValueError, "mixes kinds of files, such as .*a.txt and .*b.csv"):
            self.load(train_file=["a.txt", "b.csv"])


class HeldOutTest(CorpusTestCase):
    def setUp(self):
        super().setUp()
        for name in ("a", "b", "held_out"):
            self.write(f"{name}.jsonl", CONTENTS["jsonl"])
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


class CsvTest(CorpusTestCase):
    def rows(self, content: str, **arguments) -> list[dict]:
        self.write("text.csv", content)
        corpus = self.load(train_file="text.csv", validation_split_percentage=0, **arguments)
        return [dict(row) for row in corpus["train"]]

    @parameterized.parameters(False, True)
    def test_what_is_legal_is_read_as_it_stands(self, streaming):
        texts = ['5" disk', 'say "hi"', "a\nb, c\r\n\nd", '"""', "NA", "nan", "a\0b", " x ", "y" * 200_000]
        output = io.StringIO()
        csv.writer(output).writerows([("id", "text"), *enumerate(texts)])
        content = output.getvalue().replace('"5"" disk"', '5" disk').replace('"say ""hi"""', 'say "hi"')
        rows = self.rows(content, streaming=streaming)
        self.assertEqual([row["text"] for row in rows], texts)
        self.assertEqual([row["id"] for row in rows], [str(number) for number in range(len(texts))])

    @parameterized.product(
        case=[
            ('text,y\na,0\n"b,1\nc,2\n"d,3\n', "line 3: the row .* a quoted cell that is wrong in line 5"),
            ('text,y\na,0\n"b,1\nc,2\n', "line 3: the row .* \\(unexpected end of data\\). .* double it"),
            ('text,y\n"b" c,1\n', "line 2: the row .* wrong in line 2"),
            ('y,text\n1,"b\n2,c\n3,x",5\n', "line 2: .* a quoted cell that reaches over 3 lines \\(3 cells"),
            ("text,y\na,0\nb\n", "line 3: the row has 1 cells, but there are 2 columns: 'text', 'y'"),
            ("text,y\na,0\nb,c,1\n", "line 3: the row has 3 cells, .* Enclose a cell that holds a comma"),
            ("text;y\na, b;0\n", "line 2: the row has 2 cells, .* only column is 'text;y': separate"),
            ("text,text\na,0\n", "several columns 'text': 'text', 'text'. Rename"),
            ("text,y\n", " has no rows"),
        ],
        streaming=[False, True],
    )
    def test_a_stray_quotation_mark_or_a_wrong_row_is_named_with_its_line(self, case, streaming):
        content, message = case
        with self.assertRaisesRegex(ValueError, f"`train_file`.*text.csv.*{message}"):
            self.rows(content, streaming=streaming)

    def test_rows_that_a_quoted_cell_may_have_swallowed_are_reported(self):
        with self.assertLogs(readers.logger, "WARNING") as logs:
            for _ in range(3):
                self.rows('y,text\n1,"a\n2,b\n3,c"\n4,d\n', streaming=True)
        (warning,) = logs.output  # and not at each pass
        self.assertIn("line 2: a quoted cell reaches to line 4, and each line within it looks like a row", warning)
        with self.assertNoLogs(readers.logger, "WARNING"):
            self.rows('y,text\n1,"A line.\nAnother one.\nA third."\n')

    def test_files_may_have_their_columns_in_another_order_but_not_others(self):
        self.write("a.csv", "text,y\na,1\n")
        self.write("b.csv", "y,text\n2,b\n")
        self.write("c.csv", "z,text\n3,c\n")
        corpus = self.load(train_file=["a.csv", "b.csv"], validation_split_percentage=0)
        self.assertEqual(corpus["train"].to_list(), [{"text": "a", "y": "1"}, {"text": "b", "y": "2"}])
        with self.assertRaisesRegex(
            ValueError, "c.csv has the columns 'z', 'text', but the first file has 'text', 'y'"
        ):
            self.load(train_file=["a.csv", "c.csv"], validation_split_percentage=0)


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
