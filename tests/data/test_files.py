import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
from absl.testing import parameterized
from datasets import Dataset, DatasetDict, IterableDatasetDict

from helpers import DOCUMENTS, SENTENCES, CorpusTestCase
from hf_depth.data.files import check_text_column, column_texts, file_names

TEXTS = [*DOCUMENTS, "None", "1984", "Two, with a comma.", "naïve “café”"]
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
        ("text.jsonl", '{"text": ["a"]}\n', "column 'text' must hold text, but its row 0 holds \\['a'\\] \\(list\\)"),
        ("text.csv", "title,body\nx,y\n", "no column 'text'. The columns are: 'title', 'body'. Name the one"),
        ("text.parquet", parquet([{"text": 1}]), "column 'text' must hold text"),
        ("text.parquet", b"no parquet", "cannot read .*text.parquet as parquet"),
        ("text.txt", "", "text.txt is empty"),
        ("text.txt", " \n\n\n", "text.txt is empty"),
        ("text.csv", "text\n", "text.csv as csv: it has no rows"),
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

    def test_a_missing_file_is_named_with_those_near_to_it(self):
        self.write("train.jsonl", CONTENTS["jsonl"])
        with self.assertRaisesRegex(FileNotFoundError, "`test_file`: there is no file .*Did you mean '.*train.jsonl'"):
            self.load(test_file="trian.jsonl")
        with self.assertRaisesRegex(FileNotFoundError, "there is no file '.*/no folder/x.txt'"):
            self.load(train_file="no folder/x.txt")
        with self.assertRaisesRegex(ValueError, "is a folder. Name its files"):
            self.load(train_file="")

    def test_kinds_of_files_do_not_mix_in_a_split(self):
        self.write("a.txt", "Text.")
        self.write("b.csv", CONTENTS["csv"])
        with self.assertRaisesRegex(ValueError, "mixes kinds of files, such as .*a.txt and .*b.csv"):
            self.load(train_file=["a.txt", "b.csv"])


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
    def test_the_names_of_all_columns_are_returned(self):
        dataset = Dataset.from_dict({"title": ["a"], "text": ["b"]})
        self.assertEqual(check_text_column(dataset, "text"), ["title", "text"])

    def test_a_batch_gives_its_texts_a_missing_one_as_an_empty_one(self):
        self.assertEqual(column_texts({"text": ["a", None, ""], "year": [1, 2, 3]}, "text"), ["a", "", ""])

    def test_what_is_no_text_is_named(self):
        with self.assertRaisesRegex(ValueError, "column 'year' must hold text, but its row 1 holds 2 \\(int\\)"):
            column_texts({"year": [None, 2]}, "year")
