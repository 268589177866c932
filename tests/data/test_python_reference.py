from absl.testing import parameterized

from hf_depth.data.python_reference import MIN_DOCUMENT_SENTENCES, python_reference_documents
from hf_depth.data.sentences import get_sentence_splitter


class PythonReferenceTest(parameterized.TestCase):
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
