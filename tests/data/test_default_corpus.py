"""The documentation of Python as a corpus."""

import textwrap
from pathlib import Path

from absl.testing import parameterized

from helpers import CorpusTestCase
from hf_depth.data.corpus import load_corpus
from hf_depth.data.default_corpus import (
    MIN_DOCSTRING_SENTENCES,
    MIN_DOCUMENT_SENTENCES,
    python_docstring_documents,
    python_reference_documents,
)
from hf_depth.data.sentences import get_sentence_splitter

PROSE = "The {} file is opened. Then its first line is read. It is compared with the others. At last it is closed."


class PythonDocstringsTest(CorpusTestCase):
    def read(self, **files: str) -> list[dict[str, str]]:
        for name, text in files.items():
            path = Path(self.path("library"), name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return python_docstring_documents(self.path("library"))

    def test_a_docstring_is_known_by_its_place(self):
        code = f'class A:\n    def f(self):\n        """\n        {PROSE.format("red")}\n        """\n'
        (document,) = self.read(package__module=code)
        self.assertEqual(document, {"text": PROSE.format("red"), "title": "package.module.A.f", "source": "package"})

    def test_each_docstring_of_two_sentences_is_a_document_and_repeated_paragraphs_are_taken_once(self):
        docstrings = ["The red file is opened. It is read at once.", "Only one sentence is here."]
        functions = [f'def f{i}():\n    """{text}"""\n' for i, text in enumerate(2 * docstrings)]
        documents = self.read(module="".join(functions))
        self.assertEqual([document["text"] for document in documents], docstrings[:1])

    def test_headings_and_terms_of_numpydoc_are_no_prose(self):
        docstring = "It sorts an array. It takes some time.\n\nParameters\n----------\na : array\n    This is what is "
        docstring += "sorted. It is not changed.\naxis, order : int\n    This says along which axis. It is the last."
        code = f'def sort():\n    """{textwrap.indent(docstring, "    ").strip()}"""\n'
        self.read(module=code)
        documents = python_docstring_documents(self.path("library"), "numpy")
        prose = "It sorts an array. It takes some time.\nThis is what is sorted. It is not changed.\n"
        prose += "This says along which axis. It is the last."
        self.assertEqual("\n".join(document["text"] for document in documents), prose)
        self.assertEqual({document["source"] for document in documents}, {"numpy"})
        self.assertEqual(documents[0]["title"], "numpy.module.sort")

    @parameterized.parameters("test__module", "package__tests__module", "site-packages__module", "_sysconfigdata_x")
    def test_what_is_not_in_every_python_is_skipped(self, name):
        self.assertEmpty(self.read(**{name: f'"""{PROSE.format("red")}"""'}))

    def test_a_file_that_is_not_python_is_left_out_with_a_warning(self):
        with self.assertLogs("hf_depth.data.default_corpus", "WARNING") as logs:
            self.assertLen(self.read(bad="def f(:", good=f'"""{PROSE.format("red")}"""'), 1)
        self.assertIn("bad.py is left out", logs.output[0])


class ProseTest(parameterized.TestCase):
    def assert_prose(self, documents, markup='"|>>>|::=|[*=~-]{4}|  '):
        for document in documents:
            self.assertNotRegex(document["text"], markup)
            self.assertRegex(document["title"], '^[^"`]+$')

    def assert_no_paragraph_comes_twice(self, documents):
        paragraphs = [line for document in documents for line in document["text"].splitlines()]
        self.assertLen(set(paragraphs), len(paragraphs))

    def test_it_is_prose_of_several_sentences_from_many_modules_each_paragraph_once_in_a_part(self):
        corpus = load_corpus()
        documents = [document for documents in corpus.values() for document in documents]
        self.assertBetween(sum(len(document["text"]) for document in documents), 700_000, 1_500_000)
        self.assertGreater(len({document["source"] for document in documents}), 150)
        docstrings = [document for document in documents if document["source"] != "reference"]
        self.assert_no_paragraph_comes_twice(docstrings)
        self.assert_prose(documents)
        numbers = [len(get_sentence_splitter()(document["text"])) for document in docstrings]
        # Where a paragraph ends with what is an abbreviation too ("code.", "call."), nupunkt sees no end.
        num_short = sum(number < MIN_DOCSTRING_SENTENCES for number in numbers)
        self.assertLess(num_short, 0.01 * len(docstrings))

    def test_documents_of_the_reference_are_prose_of_several_sentences_each_paragraph_once(self):
        documents = python_reference_documents()
        sentences = [get_sentence_splitter()(document["text"]) for document in documents]
        self.assertBetween(len(documents), 150, 300)
        self.assertGreaterEqual(min(map(len, sentences)), MIN_DOCUMENT_SENTENCES - 1)
        self.assertGreaterEqual(sum(map(len, sentences)), 1500)
        self.assert_prose(documents, '"|>>>|::=|[*=~-]{4}|  | \\[\\d+\\]|^\\s*[*•]|Changed in version')
        self.assert_no_paragraph_comes_twice(documents)
