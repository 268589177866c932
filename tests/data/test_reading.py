"""What the builders of `datasets` read otherwise than it is meant: the table of `data.reading`, row by row."""

import contextlib
import csv
import functools
import gzip
import http.server
import io
import json
import os
import threading
from pathlib import Path
from unittest import mock

import datasets
import pyarrow
import pyarrow.parquet
from absl.testing import parameterized
from datasets import DatasetDict, IterableDatasetDict

from helpers import DOCUMENTS, SENTENCES, CorpusTestCase
from hf_depth.data.reading import load_files, plain_copy

TEXTS = [*DOCUMENTS, "None", "1984", "Two, with a comma.", "naïve “café”"]
LONG = "A line. " * 100_000  # more than any buffer
ROWS = [{"text": text, "year": year} for year, text in enumerate(TEXTS)]


def parquet(rows: list[dict]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


def as_csv(rows: list[list]) -> str:
    output = io.StringIO()
    csv.writer(output).writerows(rows)
    return output.getvalue()


CONTENTS = {
    "txt": "\n\n".join(TEXTS),
    "json": json.dumps(ROWS),
    "jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "csv": as_csv([["year", "text"], *([row["year"], row["text"]] for row in ROWS)]),
    "parquet": parquet(ROWS),
}


class KindsTest(CorpusTestCase):
    @parameterized.product(extension=list(CONTENTS), compression=["", ".gz"], streaming=[False, True])
    def test_every_kind_of_file_gives_the_same_documents(self, extension, compression, streaming):
        self.write(f"text.{extension}{compression}", CONTENTS[extension])
        corpus = self.load(
            train_file=f"text.{extension}{compression}", streaming=streaming, validation_split_percentage=0
        )
        self.assertIsInstance(corpus, IterableDatasetDict if streaming else DatasetDict)
        self.assertEqual(list(corpus), ["train"])
        self.assertEqual(self.texts(corpus["train"]), TEXTS)

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

    def test_kinds_of_files_do_not_mix_in_a_split(self):
        self.write("a.txt", "Text.")
        self.write("b.csv", CONTENTS["csv"])
        with self.assertRaisesRegex(ValueError, "mixes kinds of files, such as .*a.txt and .*b.csv"):
            self.load(train_file=["a.txt", "b.csv"])

    def test_the_text_may_stand_in_any_column(self):
        self.write("a.jsonl", json.dumps({"content": "Some text."}))
        for streaming in (False, True):
            documents = load_files("train_file", [self.path("a.jsonl")], streaming, self.path("cache"), "content")
            self.assertEqual(list(documents), [{"content": "Some text."}])

    @parameterized.parameters("txt", "csv", "jsonl", "parquet")
    def test_a_stream_has_a_shard_for_each_file_and_goes_on_where_it_stopped(self, extension):
        self.write(f"a.{extension}", CONTENTS[extension])
        self.write(f"b.{extension}", CONTENTS[extension])
        files = [f"a.{extension}", f"b.{extension}"]
        stream = self.load(train_file=files, streaming=True, validation_split_percentage=0)["train"]
        self.assertEqual(stream.num_shards, 2)
        for _, _ in zip(range(len(TEXTS) + 2), stream, strict=False):
            state = stream.state_dict()
        stream.load_state_dict(state)
        self.assertEqual(self.texts(stream), TEXTS[2:])

    @parameterized.parameters(False, True)
    def test_an_address_may_have_a_query(self, streaming):
        for name in ("a.jsonl", "b.txt.gz"):
            self.write(name, CONTENTS[name.split(".")[1]])
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=self.folder)
        handler.func.log_message = lambda *_: None
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            with mock.patch.object(datasets.config, "HF_HUB_OFFLINE", False):
                for name in ("a.jsonl", "b.txt.gz"):
                    address = f"http://127.0.0.1:{server.server_port}/{name}?token=a.b/c"
                    documents = load_files("train_file", [address], streaming, self.path("cache"))
                    self.assertEqual(self.texts(documents), TEXTS)
            server.shutdown()


class TrapsTest(CorpusTestCase):
    def read(self, *names, streaming=False, **arguments):
        return self.texts(
            self.load(train_file=list(names), streaming=streaming, validation_split_percentage=0, **arguments)["train"]
        )

    @parameterized.product(extension=["txt", "json", "jsonl", "csv"], compression=["", ".gz"], streaming=[False, True])
    def test_a_byte_order_mark_is_no_text(self, extension, compression, streaming):
        # Of lists in JSON the builder of `datasets` refuses the mark in later files, with an error.
        files = [f"{index}.{extension}{compression}" for index in range(1 if extension == "json" else 2)]
        for file in files:
            self.write(file, b"\xef\xbb\xbf" + CONTENTS[extension].encode())
        self.assertEqual(self.read(*files, streaming=streaming), TEXTS * len(files))

    @parameterized.product(
        case=[
            ("One.\nTwo.\n\nThree.\n", ["One.\nTwo.", "Three."]),
            ("One.\r\nTwo.\r\n\r\nThree.\r\n", ["One.\nTwo.", "Three."]),
            ("One. Two.\nThree.\n", ["One. Two.", "Three."]),
            ("\n\nOne. Two.\nThree.\n\n\n", ["One. Two.", "Three."]),
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
    def test_blank_lines_separate_documents_and_lines_do_where_there_is_no_blank_one(self, case, streaming):
        content, documents = case
        self.write("text.txt", content)
        self.assertEqual(self.read("text.txt", streaming=streaming), documents)

    @parameterized.parameters(False, True)
    def test_each_text_file_says_by_itself_what_separates_its_documents(self, streaming):
        self.write("a.txt", "One.\nTwo.\n")
        self.write("b.txt", "Three.\nFour.\n\nFive.\n")
        self.assertEqual(self.read("a.txt", "b.txt", streaming=streaming), ["One.", "Two.", "Three.\nFour.", "Five."])

    @parameterized.parameters(False, True)
    def test_cells_of_csv_files_are_the_text_that_stands_there(self, streaming):
        texts = [
            '5" disk',
            'say "hi"',
            "a\nb, c\r\n\nd",
            '"""',
            "NA",
            "nan",
            "1984",
            "2020-01-01",
            " x ",
            "y" * 200_000,
        ]
        self.write("a.csv", as_csv([["id", "text"], *enumerate(texts)]))
        self.write("b.csv", as_csv([["text", "id"], ["1985", "7"]]))  # columns in another order
        corpus = self.load(train_file=["a.csv", "b.csv"], streaming=streaming, validation_split_percentage=0)
        self.assertEqual(self.texts(corpus["train"]), [*texts, "1985"])
        self.assertEqual([row["id"] for row in corpus["train"]], [*map(str, range(len(texts))), "7"])

    @parameterized.product(
        case=[
            ("text,y\na,1,2\nb,3,4\n", "the first row of .*a.csv has 3 cells, but there are 2 columns: 'text', 'y'"),
            ("text;y\na, b;0\n", "the first row .* only column is 'text;y': separate"),
            ("text,y\na,1\nb,3,4\n", "a.csv as csv: .* Expected 2 fields in line 3, saw 3"),
            ('text,y\na,0\n"b,1\n', "a.csv as csv: .* EOF inside string starting at row 2"),
            ("text,text\na,0\n", "several columns 'text': 'text', 'text'. Rename"),
            ("title,body\nx,y\n", "no column 'text'"),
        ],
        streaming=[False, True],
    )
    def test_a_csv_file_whose_rows_do_not_fit_its_header_is_refused(self, case, streaming):
        content, message = case
        self.write("a.csv", content)
        with self.assertRaisesRegex(ValueError, f"`train_file`.*{message}"):
            self.read("a.csv", streaming=streaming)

    @parameterized.product(
        case=[("txt", ""), ("txt", " \n\n\n"), ("jsonl", "\n"), ("csv", "text\n"), ("json", ""), ("parquet", None)],
        streaming=[False, True],
    )
    def test_an_empty_file_among_others_is_named(self, case, streaming):
        extension, content = case
        if content is None:
            sink = pyarrow.BufferOutputStream()
            pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], "string")}), sink)
            content = sink.getvalue().to_pybytes()
        self.write(f"a.{extension}", CONTENTS[extension])
        self.write(f"b.{extension}", content)
        with self.assertRaisesRegex(ValueError, f"`train_file`: .*b.{extension} (is empty|has no rows)"):
            self.read(f"a.{extension}", f"b.{extension}", streaming=streaming)

    @parameterized.parameters("jsonl", "parquet")
    def test_columns_that_differ_between_files_are_an_error_but_not_in_a_stream(self, extension):
        for name, row in (("a", {"text": "Text."}), ("b", {"text": "Text.", "id": 1})):
            content = parquet([row]) if extension == "parquet" else json.dumps(row)
            self.write(f"{name}.{extension}", content)
        files = [f"a.{extension}", f"b.{extension}"]
        with self.assertRaisesRegex(ValueError, "(?s)`train_file`: cannot read .*same columns.*`streaming`"):
            self.read(*files)
        self.assertEqual(self.read(*files, streaming=True), ["Text."] * 2)

    def test_a_file_or_a_row_without_the_text_is_reported(self):
        self.write("a.jsonl", '{"text": "One."}\n{"text": null}\n')
        self.write("b.jsonl", '{"body": "Two."}\n')
        with self.assertLogs("hf_depth.data.corpus", "WARNING") as logs:
            self.assertEqual(self.read("a.jsonl"), ["One.", None])
        self.assertIn("`train_file`: 1 of 2 rows have no 'text', or null", logs.output[0])
        with self.assertRaisesRegex(ValueError, "b.jsonl as json: there is no column 'text', only 'body'"):
            self.read("a.jsonl", "b.jsonl", streaming=True)

    @parameterized.product(
        case=[
            ('{"text": "5"}\n{"text": ["5"]}\n', "holds text in some rows, and numbers, lists|must hold text"),
            ('{"text": "a"}\n{"text": 2}\n', "holds text in some rows, and numbers, lists|must hold text"),
            ('{"text": ["a"]}\n', r"must hold text, but its row 0 holds \['a'\] \(list\)"),
            ('{"text": "2020-01-01"}\n', "must hold text, but its row 0 holds datetime"),
        ],
        streaming=[False, True],
    )
    def test_what_is_no_text_is_named(self, case, streaming):
        content, message = case
        self.write("a.jsonl", content)
        with self.assertRaisesRegex(ValueError, f"`train_file`.*a.jsonl.*column 'text' ({message})"):
            self.read("a.jsonl", streaming=streaming)

    @parameterized.product(
        extension=["txt", "jsonl", "csv"], compression=["", ".gz"], streaming=[False, True], line=[3, 70_000]
    )
    def test_a_line_that_is_not_utf_8_is_named(self, extension, compression, streaming, line):
        lines = {"txt": ["A text."], "jsonl": ['{"text": "good"}'], "csv": ["text", *["good"]]}[extension]
        lines = [lines[0].encode(), *[lines[-1].encode()] * 70_000]
        lines[line - 1] = lines[line - 1].replace(b"oo", b"\xe9").replace(b"tex", b"\xe9")
        name = f"text.{extension}{compression}"
        self.write(name, b"\n".join(lines))
        with self.assertRaisesRegex(ValueError, f"`train_file`: .*{name}, line {line}: it is not UTF-8 .*0xe9.*iconv"):
            self.read(name, streaming=streaming)

    @parameterized.product(encoding=["utf-16", "utf-16-le", "utf-16-be", "utf-32"], extension=["txt", "jsonl", "csv"])
    def test_another_encoding_of_unicode_is_named(self, encoding, extension):
        self.write(f"text.{extension}", CONTENTS[extension].encode(encoding))
        with self.assertRaisesRegex(ValueError, f"`train_file`: .*text.{extension} is no text in UTF-8.* `iconv -f"):
            self.read(f"text.{extension}")

    @parameterized.product(
        case=[
            ("text.jsonl", '{"text": "a"}\n\n{"text": "b\n', "text.jsonl, line 3, as json: "),
            ("text.json", '[{"text": "a"},\n {"text": 2 3}]', "text.json, line 2, as json: "),
            ("text.jsonl", '{"text": "a"}\n"b"\n', r"text.jsonl, line 2, as json: it is no object such as {.text.: "),
            ("text.parquet", b"no parquet", "text.parquet as parquet: "),
            ("text.txt.gz", gzip.compress(b"text " * 100_000)[:-100], "text.txt.gz as text: .*end-of-stream"),
            ("text.doc", "x", "text.doc has an unknown extension. Known are .txt, .json, .jsonl, .csv, .parquet"),
        ],
        streaming=[False, True],
    )
    def test_what_cannot_be_read_is_named(self, case, streaming):
        name, content, message = case
        Path(self.path(name)).write_bytes(content.encode() if isinstance(content, str) else content)
        with self.assertRaisesRegex(ValueError, f"`train_file`: .*{message}"):
            self.read(name, streaming=streaming)

    def test_a_stream_that_breaks_off_says_where(self):
        self.write("a.jsonl", CONTENTS["jsonl"])
        self.write("b.csv", "text\n" + "A line.\n" * 50_000 + "a,b\n")
        with self.assertRaisesRegex(
            ValueError, r"`train_file`: cannot read .*b.csv.* 50002, saw 2.*after \d\d,000 rows"
        ):
            self.read("b.csv", streaming=True)

    @parameterized.parameters(False, True)
    def test_a_packed_parquet_file_is_unpacked_once_and_anew_when_it_has_changed(self, streaming):
        for texts in (TEXTS, TEXTS[:2] * 2):
            self.write("text.parquet.gz", parquet([{"text": text} for text in texts]))
            self.assertEqual(self.read("text.parquet.gz", streaming=streaming), texts)
        with mock.patch("hf_depth.data.reading.gzip.open", side_effect=AssertionError):
            plain_copy(self.path("text.parquet.gz"), self.path("cache"))
        self.assertEqual(plain_copy(self.path("text.parquet")), self.path("text.parquet"))

    @parameterized.parameters(("a.doc", "unknown extension"), ("a.jsonl", "cannot read .* as json: \\w+"))
    def test_an_error_does_not_tell_the_credentials_of_an_address(self, name, message):
        address = f"http://me:secret@127.0.0.1:1/{name}?token=secret"
        with self.assertRaisesRegex(ValueError, f"`train_file`: .*{message}") as caught:
            load_files("train_file", [address], cache_dir=self.path("cache"))
        self.assertNotIn("secret", str(caught.exception))

    @parameterized.parameters("txt", "csv", "jsonl.gz")
    def test_a_file_is_read_once_and_again_when_it_has_changed(self, extension):
        cached = []
        for texts in (TEXTS, None, TEXTS[:2]):
            if texts:
                content = {
                    "txt": "\n\n".join(texts),
                    "csv": as_csv([["text"], *([text] for text in texts)]),
                    "jsonl.gz": "".join(json.dumps({"text": text}) + "\n" for text in texts),
                }
                self.write(f"text.{extension}", content[extension])
            corpus = self.load(train_file=f"text.{extension}", validation_split_percentage=0)
            cached.append((corpus["train"].cache_files, corpus["train"]._fingerprint))
        self.assertEqual(self.texts(corpus["train"]), TEXTS[:2])
        self.assertEqual(cached[0], cached[1])
        self.assertNotEqual(cached[0], cached[2])

    @parameterized.product(
        name=["texts[12]", "texts*", "folder[1]/texts"],
        extension=["jsonl", "jsonl.gz", "parquet", "csv", "txt"],
        streaming=[False, True],
    )
    def test_a_file_is_read_under_its_name_whatever_files_that_would_match_as_a_glob(self, name, extension, streaming):
        kind = extension.removesuffix(".gz")
        rows = {"jsonl": b'{"text": "%s"}', "csv": b"text\n%s\n", "txt": b"%s"}
        for folder in ("folder[1]", "folder1"):
            os.mkdir(self.path(folder))
        for other in (name, "texts1", "textss", "folder1/texts"):
            text = "right" if other == name else "wrong"
            content = parquet([{"text": text}]) if kind == "parquet" else rows[kind] % text.encode()
            self.write(f"{other}.{extension}", content)
        self.assertEqual(self.read(f"{name}.{extension}", streaming=streaming), ["right"])

    def test_a_name_in_the_current_folder_is_that_of_a_file_there(self):
        for folder in ("folder[1]", "folder1"):
            os.mkdir(self.path(folder))
            self.write(f"{folder}/texts.jsonl", json.dumps({"text": folder}))
        with contextlib.chdir(self.path("folder[1]")):
            documents = load_files("train_file", ["texts.jsonl"], cache_dir=self.path("cache"))
        self.assertEqual(self.texts(documents), ["folder[1]"])

    def test_a_cache_that_cannot_be_written_is_named(self):
        self.write("train.jsonl", CONTENTS["jsonl"])
        with self.assertRaisesRegex(ValueError, "Not a directory: '.*train.jsonl/cache"):
            load_files("train_file", [self.path("train.jsonl")], cache_dir=self.path("train.jsonl/cache"))
