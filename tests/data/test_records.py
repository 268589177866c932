import gzip
import json
from unittest import mock

import pyarrow
import pyarrow.parquet
from absl.testing import parameterized

from helpers import CorpusTestCase, tiny_tokenizer
from hf_depth.data.objectives import SpanCorruptionObjective
from hf_depth.data.records import _report


def parquet(rows: list[dict]) -> bytes:
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


GOOD = [json.dumps({"text": f"Document {number}.", "year": number}).encode() for number in range(6)]
BAD = {
    "null": (b'{"text": null}', "the column 'text' holds None, which is no text"),
    "number": (b'{"text": 3}', "the column 'text' holds 3, which is no text"),
    "list": (b'["a"]', "it is no JSON object, but list"),
    "text": (b'"A text."', "it is no JSON object, but str"),
    "broken": (b'{"text": "a', r"it is not JSON \(Unterminated string"),
    "missing": (b'{"body": "a"}', r"there is no column 'text' \(`text_column`\), its columns are: 'body'"),
    "half": (b'{"text": "a \\ud83d b"}', r"the column 'text' holds half of a surrogate pair \(\\ud83d alone\)"),
    "long number": (b'{"text": "a", "id": ' + b"9" * 5000 + b"}", r"it is not JSON \(Exceeds the limit"),
    "deep": (b'{"text": "a", "tree": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", r"it is not JSON \(maximum recurs"),
    "latin": (b'{"text": "caf\xe9"}', r"it is not UTF-8 text \(byte 0xe9\)"),
}


class BadRecordTest(CorpusTestCase):
    def setUp(self):
        super().setUp()
        _report.cache_clear()
        # What is checked before training is but the beginning.
        for module in ("files", "records"):
            patch = mock.patch(f"hf_depth.data.{module}.check_utf8")
            patch.start()
            self.addCleanup(patch.stop)

    def stream(self, files, **arguments):
        return self.load(train_file=files, streaming=True, validation_split_percentage=0, **arguments)["train"]

    @parameterized.product(kind=list(BAD), name=("b.jsonl", "b.jsonl.gz", "b.json"))
    def test_file_and_line_are_named(self, kind, name):
        record, problem = BAD[kind]
        self.write("a.json", b"\n".join(GOOD))
        self.write(name, b"\n".join([*GOOD, b"", record, *GOOD]))
        stream = self.stream(["a.json", name])
        with self.assertRaisesRegex(ValueError, f"`train_file`: .*{name}, line 8: {problem}.*`on_bad_record` skip"):
            list(stream)

    def test_the_argument_of_the_first_record_is_named_once(self):
        self.write("a.jsonl", BAD["text"][0])
        with self.assertRaisesRegex(ValueError, "^`train_file`: [^`]*a.jsonl, line 1: it is no JSON object"):
            self.stream("a.jsonl")

    @parameterized.parameters("b.jsonl", "b.jsonl.gz")
    def test_they_are_skipped_on_request_and_counted_per_file(self, name):
        self.write("a.jsonl", b"\n".join([BAD["null"][0], *GOOD]))
        self.write(name, b"\n".join([*GOOD[:3], *(record for record, _ in BAD.values()), *GOOD[3:]]))
        stream = self.stream(["a.jsonl", name], on_bad_record="skip")
        with self.assertLogs("hf_depth.data.records", "WARNING") as logs:
            self.assertEqual([row["year"] for row in stream], [*range(6), *range(6)])
            list(stream)
        # Not once more for the second pass; that of the first line was told when the file was opened.
        first, at_once, second = logs.output
        self.assertRegex(at_once, rf"{name}: skipping a bad record: line 4 ")
        self.assertRegex(first, r"a.jsonl: skipped 1 bad records: line 1 \(the column 'text' holds None")
        self.assertRegex(second, rf"{name}: skipped 10 bad records: line 4 .*, line 8 .*, …$")

    def test_what_follows_a_broken_gzip_block_is_one_bad_record(self):
        content = gzip.compress(b"\n".join(GOOD * 10_000))
        with open(self.path("a.jsonl.gz"), "wb") as file:
            file.write(content[:-2000])
        with self.assertRaisesRegex(ValueError, r"a.jsonl.gz, line \d{5}: the gzip file is broken from here on"):
            list(self.stream("a.jsonl.gz"))
        with self.assertLogs("hf_depth.data.records", "WARNING") as logs:
            self.assertGreater(len(list(self.stream("a.jsonl.gz", on_bad_record="skip"))), 10_000)
        self.assertIn("skipped 1 bad records", logs.output[1])

    def test_rows_of_parquet_are_named_and_skipped(self):
        self.write("a.parquet", parquet([{"text": text} for text in ("a", None, "b")]))
        with self.assertRaisesRegex(ValueError, "a.parquet, row 2: the column 'text' holds None"):
            list(self.stream("a.parquet"))
        self.assertEqual(self.texts(self.stream("a.parquet", on_bad_record="skip")), ["a", "b"])

    def test_a_csv_row_that_cannot_be_read_is_named_with_its_line(self):
        lines = ["text"] + [f"Document {number}." for number in range(20_000)]
        self.write("a.csv", "\n".join([*lines, 'a,b,c,"d', "e"]))
        with self.assertRaisesRegex(ValueError, "`train_file`: .*a.csv, line 20002: the row that begins here"):
            list(self.stream("a.csv"))

    def test_training_stops_at_the_record_or_goes_on_without_it(self):
        self.write("a.jsonl", b"\n".join([*GOOD, BAD["broken"][0], *GOOD]))
        objective = SpanCorruptionObjective(tiny_tokenizer(), max_source_length=32)
        with self.assertRaisesRegex(ValueError, "a.jsonl, line 7: it is not JSON"):
            objective.prepare_splits({"train": self.stream("a.jsonl")})
        data, _ = objective.prepare_splits({"validation": self.stream("a.jsonl", on_bad_record="skip")})
        self.assertLen(data["validation"], 12)

    @parameterized.parameters(
        ({"on_bad_record": "ignore", "streaming": True}, "must be error or skip, got 'ignore'"),
        ({"on_bad_record": "skip"}, "skip is for files that are streamed"),
        ({"on_bad_record": "skip", "streaming": True, "train_file": "a.txt"}, "skip would be .* names .*a.txt"),
    )
    def test_what_would_be_without_effect_is_refused(self, arguments, message):
        for file in ("a.jsonl", "a.txt"):
            self.write(file, b"\n".join(GOOD))
        with self.assertRaisesRegex(ValueError, f"`on_bad_record` {message}"):
            self.load(**{"train_file": "a.jsonl", **arguments})
