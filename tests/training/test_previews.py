"""What a run prints of documents put in order, and of metrics before and after training."""

import contextlib
import io
import re
from unittest import mock

from absl.testing import parameterized

from helpers import tiny_tokenizer
from hf_depth import order_sentences
from hf_depth.training.previews import print_unshuffled
from tiny_training import TrainingTestCase, rows, tiny_model

TOKENIZER = tiny_tokenizer(sentence_tokens=True)


class UnshuffledTest(TrainingTestCase):
    def printed(self, number_of_documents, order=None) -> list[str]:
        """What is printed by a model that finds the given order of the sentences that it reads."""
        output = io.StringIO()

        def find(model, tokenizer, documents, **kwargs):
            return [{"order": order(document)} for document in documents]

        finding = mock.patch("hf_depth.training.previews.order_sentences", find if order else order_sentences)
        with contextlib.redirect_stdout(output), finding:
            print_unshuffled(tiny_model("depth"), TOKENIZER, rows(number_of_documents))
        return output.getvalue().splitlines()

    def test_one_sentence_about_all_documents_and_three_of_them_are_shown(self):
        lines = self.printed(20)
        documents = [part.splitlines() for part in "\n".join(lines[3:]).split("\n\n")]
        self.assertLen([document for document in documents if document], 3)
        self.assertRegex(lines[1], r": \d+ of \d+ shuffled pairs put in order \(chance \d+\)\.")

    @parameterized.parameters(True, False)
    def test_right_pairs_are_counted(self, is_right):
        texts = [TOKENIZER.decode(row["input_ids"]) for row in rows(20)]

        def order(document):
            text = min((text for text in texts if all(sentence in text for sentence in document)), key=len)
            return sorted(range(len(document)), key=lambda i: text.index(document[i]), reverse=not is_right)

        right, total, chance = map(int, re.findall(r"\d+", self.printed(20, order)[1]))
        self.assertEqual(right, total if is_right else 0)
        self.assertLess(abs(chance - total / 2), 1)
