import functools
import gzip
import json
import os
import re
import tempfile
import unicodedata
from pathlib import Path
from unittest import mock

import pyarrow
import pyarrow.parquet
import sentencepiece
from absl.testing import parameterized
from datasets import DatasetDict, IterableDatasetDict
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, T5Tokenizer

from helpers import DOCUMENTS, SENTENCES
from hf_depth.data import vocabulary
from hf_depth.data.corpus import load_corpus
from hf_depth.data.python_reference import MIN_DOCUMENT_SENTENCES, python_reference_documents
from hf_depth.data.sentences import get_sentence_splitter
from hf_depth.data.tokenization import TextEncoder, sentinel_token_ids
from hf_depth.data.vocabulary import train_tokenizer

TEXTS = [*DOCUMENTS, "None", "1984", "Two, with a comma.", "naïve “café”"]
ROWS = [{"text": text, "year": year} for year, text in enumerate(TEXTS)]


def write(path: str, content: str | bytes):
    content = content.encode() if isinstance(content, str) else content
    Path(path).write_bytes(gzip.compress(content) if path.endswith(".gz") else content)


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


@functools.cache
def small_tokenizer() -> T5Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return train_tokenizer(SENTENCES, 300, folder)


class CorpusTestCase(parameterized.TestCase):
    """Works in a folder of its own, with a cache of its own."""

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def load(self, **arguments):
        files = {
            name: self.path(value) if isinstance(value, str) else [self.path(file) for file in value]
            for name, value in arguments.items()
            if name.endswith("_file")
        }
        return load_corpus(**(arguments | files), cache_dir=self.path("cache"))

    def texts(self, documents) -> list[str]:
        return [row["text"] for row in documents]


class LoadFilesTest(CorpusTestCase):
    @parameterized.product(extension=list(CONTENTS), compression=["", ".gz"], streaming=[False, True])
    def test_every_kind_of_file_gives_the_same_documents(self, extension, compression, streaming):
        write(self.path(f"text.{extension}{compression}"), CONTENTS[extension])
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
        write(self.path("text.txt"), content)
        corpus = self.load(train_file="text.txt", validation_split_percentage=0)
        self.assertEqual([text.strip() for text in self.texts(corpus["train"]) if text], documents)

    def test_lists_and_globs_join_files(self):
        for number, text in enumerate(SENTENCES[:3]):
            write(self.path(f"part{number}.txt"), text)
        listed = self.load(train_file=["part2.txt", "part0.txt"], validation_split_percentage=0)["train"]
        self.assertEqual(self.texts(listed), [SENTENCES[2], SENTENCES[0]])
        globbed = self.load(train_file="part*.txt", validation_split_percentage=0)["train"]
        self.assertEqual(self.texts(globbed), SENTENCES[:3])

    def test_each_split_has_its_files_and_its_kind_of_file(self):
        write(self.path("a.txt"), DOCUMENTS[0])
        write(self.path("b.jsonl"), CONTENTS["jsonl"])
        write(self.path("c.csv"), CONTENTS["csv"])
        corpus = self.load(train_file="a.txt", validation_file="b.jsonl", test_file="c.csv")
        self.assertEqual(self.texts(corpus["train"]), DOCUMENTS[:1])
        self.assertEqual(self.texts(corpus["validation"]), TEXTS)
        self.assertEqual(self.texts(corpus["test"]), TEXTS)

    def test_the_text_may_stand_in_any_column(self):
        write(self.path("a.jsonl"), json.dumps({"content": "Some text."}))
        corpus = self.load(train_file="a.jsonl", text_column="content", validation_split_percentage=0)
        self.assertEqual(corpus["train"]["content"][:], ["Some text."])

    @parameterized.product(
        extension=["txt", "jsonl", "csv"], compression=["", ".gz"], streaming=[False, True], line=[1, 3, 70_000]
    )
    def test_an_undecodable_line_is_named(self, extension, compression, streaming, line):
        lines = [b'{"text": "good"}'] * 70_001
        lines[line - 1] = b'{"text": "caf\xe9"}'
        name = f"text.{extension}{compression}"
        write(self.path(name), b"\n".join(lines))
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
        write(self.path("train.jsonl"), CONTENTS["jsonl"])
        with self.assertRaisesRegex(FileNotFoundError, "`test_file`: there is no file .*Did you mean '.*train.jsonl'"):
            self.load(test_file="trian.jsonl")
        with self.assertRaisesRegex(FileNotFoundError, "there is no file '.*/no folder/x.txt'"):
            self.load(train_file="no folder/x.txt")
        with self.assertRaisesRegex(ValueError, "is a folder. Name its files"):
            self.load(train_file="")

    def test_kinds_of_files_do_not_mix_in_a_split(self):
        write(self.path("a.txt"), "Text.")
        write(self.path("b.csv"), CONTENTS["csv"])
        with self.assertRaisesRegex(ValueError, "mixes kinds of files, such as .*a.txt and .*b.csv"):
            self.load(train_file=["a.txt", "b.csv"])

    def test_files_and_a_named_data_set_exclude_each_other(self):
        with self.assertRaisesRegex(ValueError, "Give either `dataset_name` \\('some/data'\\) or files"):
            self.load(dataset_name="some/data", train_file="a.txt")


class ValidationSplitTest(CorpusTestCase):
    def splits(self, number: int, **arguments) -> dict[str, list[str]]:
        write(self.path("text.txt"), "\n".join(f"Document {i}." for i in range(number)))
        corpus = self.load(train_file="text.txt", **arguments)
        return {split: self.texts(documents) for split, documents in corpus.items()}

    @parameterized.product(number=[2, 10, 400], streaming=[False, True])
    def test_whole_documents_move_to_validation_at_least_one_and_always_the_same(self, number, streaming):
        splits = self.splits(number, streaming=streaming)
        documents = splits["train"] + splits["validation"]
        self.assertSameElements(documents, [f"Document {i}." for i in range(number)])
        self.assertLen(documents, number)
        self.assertBetween(len(splits["validation"]), 1, max(2, 0.1 * number))
        self.assertNotEmpty(splits["train"])
        self.assertEqual(self.splits(number, streaming=streaming), splits)

    @parameterized.parameters(False, True)
    def test_seed_and_percentage_choose_them(self, streaming):
        splits = self.splits(400, streaming=streaming, validation_split_percentage=50)
        self.assertBetween(len(splits["validation"]), 160, 240)
        other = self.splits(400, streaming=streaming, validation_split_percentage=50, seed=7)
        self.assertNotEqual(set(other["validation"]), set(splits["validation"]))

    @parameterized.parameters(-1, 100)
    def test_a_percentage_that_leaves_nothing_to_train_on_is_refused(self, percentage):
        with self.assertRaisesRegex(
            ValueError, f"`validation_split_percentage` must be in \\[0, 100\\), got {percentage}"
        ):
            load_corpus(validation_split_percentage=percentage)


class DefaultCorpusTest(parameterized.TestCase):
    def test_it_is_what_is_loaded_without_a_source(self):
        for streaming in (False, True):
            corpus = load_corpus(streaming=streaming)
            loaded = [dict(row) for documents in corpus.values() for row in documents]
            self.assertCountEqual(loaded, python_reference_documents())

    def test_documents_are_prose_of_several_sentences(self):
        documents = python_reference_documents()
        sentences = [get_sentence_splitter()(document["text"]) for document in documents]
        self.assertBetween(len(documents), 150, 300)
        self.assertGreaterEqual(min(map(len, sentences)), MIN_DOCUMENT_SENTENCES - 1)
        self.assertGreaterEqual(sum(map(len, sentences)), 1500)
        for document in documents:
            self.assertNotRegex(document["text"], '"|>>>|::=|[*=~-]{4}|  | \\[\\d+\\]|^\\s*[*•]|Changed in version')
            self.assertRegex(document["title"], '^[^"`]+$')

    def test_no_paragraph_stands_in_two_documents(self):
        paragraphs = [line for document in python_reference_documents() for line in document["text"].splitlines()]
        self.assertLen(set(paragraphs), len(paragraphs))


class TrainTokenizerTest(CorpusTestCase):
    TEXTS = [document["text"] for document in python_reference_documents()]

    def train(self, texts=TEXTS, vocab_size=1000, **arguments) -> T5Tokenizer:
        return train_tokenizer(texts, vocab_size, self.path("tokenizer"), **arguments)

    def test_ids_are_those_of_t5(self):
        tokenizer = self.train()
        self.assertIsInstance(tokenizer, T5Tokenizer)
        self.assertLen(tokenizer, 1000)
        self.assertEqual(tokenizer.convert_ids_to_tokens([0, 1, 2]), ["<pad>", "</s>", "<unk>"])
        self.assertEqual((tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id), (0, 1, 2))
        self.assertEqual(sentinel_token_ids(tokenizer).tolist(), list(range(999, 899, -1)))
        self.assertIsNone(tokenizer.bos_token)

    def test_the_saved_tokenizer_is_the_returned_one_and_training_repeats(self):
        tokenizer = self.train()
        saved = AutoTokenizer.from_pretrained(self.path("tokenizer"))
        self.assertEqual(saved.backend_tokenizer.to_str(), tokenizer.backend_tokenizer.to_str())
        self.assertEqual(self.train().backend_tokenizer.to_str(), tokenizer.backend_tokenizer.to_str())

    def test_ids_are_those_of_sentencepiece_and_decode_to_the_text(self):
        ids = self.train()(self.TEXTS, add_special_tokens=False)["input_ids"]
        model = sentencepiece.SentencePieceProcessor(model_file=self.path("tokenizer/spiece.model"))
        self.assertEqual(ids, model.encode(self.TEXTS))
        for text, decoded in zip(self.TEXTS, model.decode(ids), strict=True):
            self.assertEqual(decoded, unicodedata.normalize("NFKC", " ".join(text.split())))

    def test_a_new_tokenizer_replaces_an_older_one(self):
        self.train()
        self.assertLen(self.train(vocab_size=800), 800)

    @given(st.text("aZ9 <>_/[]{}!?.,;:'\"\\%&*()@#$^+=|~`-"))
    def test_printable_ascii_is_always_known(self, text):
        tokenizer = small_tokenizer()
        ids = TextEncoder(tokenizer)([text])[0]
        self.assertNotIn(tokenizer.unk_token_id, ids)
        self.assertEqual(tokenizer.decode(ids), " ".join(text.split()))

    def test_special_tokens_in_the_text_are_not_learnt(self):
        special = ["<extra_id_0>", "<sent_3>", "<eosen>", "</s>", "<pad>", "<unk>"]
        tokenizer = self.train([*SENTENCES, *special * 1000], 300)
        self.assertEqual(tokenizer.get_vocab(), self.train(SENTENCES, 300).get_vocab())

    def test_training_is_quiet(self):
        with tempfile.TemporaryFile() as log:
            stdout, stderr = os.dup(1), os.dup(2)
            try:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                self.train(SENTENCES, 300)
            finally:
                os.dup2(stdout, 1)
                os.dup2(stderr, 2)
            log.seek(0)
            self.assertEqual(log.read(), b"")

    @parameterized.parameters(
        (SENTENCES, 10_000, "`vocab_size`=10000 cannot be trained on this text: it gives at most \\d+ ids. Lower"),
        (SENTENCES, 150, "`vocab_size`=150 .* its characters alone need \\d+ ids. Raise `vocab_size`"),
        (SENTENCES, 100, "`vocab_size` must be larger than its 100 sentinels, got 100"),
        ([], 1000, "There is no text to train a vocabulary on"),
        (["", None], 1000, "There is no text to train a vocabulary on"),
    )
    def test_a_vocabulary_that_does_not_fit_the_text_is_refused_with_the_number_that_does(self, texts, size, message):
        with self.assertRaisesRegex(ValueError, message):
            self.train(texts, size)

    def test_a_smaller_vocabulary_is_taken_when_allowed(self):
        with self.assertRaises(ValueError) as refused:
            self.train(SENTENCES, 10_000)
        most = int(re.search("at most (\\d+)", str(refused.exception))[1])
        self.assertLen(self.train(SENTENCES, 10_000, allow_fewer=True), most)

    def test_a_long_text_is_sampled_evenly(self):
        with mock.patch.object(vocabulary, "MAX_TRAINING_SIZE", 1000):
            lines = list(vocabulary._training_lines(f"text {i:03}" for i in range(512)))
        self.assertEqual(lines, [f"text {i:03}" for i in range(0, 512, 8)])
