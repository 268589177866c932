"""What a run prints of a document put in order."""

import contextlib
import functools
import io
from unittest import mock

import torch
from absl.testing import parameterized
from transformers import TrainerState

from helpers import WithoutFloat64, tiny_tokenizer
from hf_depth import DataCollatorForDepth
from hf_depth.training.previews import before_and_after, print_unshuffled
from hf_depth.training.statistics import is_shuffled
from tiny_training import TrainingTestCase, rows, tiny_model

TOKENIZER = tiny_tokenizer(sentence_tokens=True)


class UnshuffledTest(TrainingTestCase):
    def printed(self, model, wrapper=None, **settings) -> str:
        output, collator = io.StringIO(), DataCollatorForDepth(TOKENIZER, **settings)
        collator = collator if wrapper is None else wrapper(collator)
        with contextlib.redirect_stdout(output):
            print_unshuffled(model, TOKENIZER, rows(3), collator, max_length=50)
        return output.getvalue()

    def test_a_collator_of_ones_own_shows_what_the_one_in_it_does(self):
        model = tiny_model("depth")
        self.assertEqual(
            self.printed(model, functools.partial, sentence_shuffling_probability=0.0), self.printed(model)
        )

    def test_the_true_order_of_a_prefix_is_that_of_the_sentences_that_are_read(self):
        lists = [
            [line.split(". ", 1)[1] for line in part.splitlines() if line.startswith("    ")]
            for part in self.printed(tiny_model("depth"), objective="prefix_lm").split("order:")[1:]
        ]
        given, predicted, true = map(sorted, lists)
        self.assertEqual(given, true)
        self.assertEqual(predicted, true)
        self.assertNotEqual(lists[0], lists[2])

    def test_a_model_that_writes_no_order_has_no_kendall_tau_of_it(self):
        model = tiny_model("depth")
        generate = model.generate

        def write_nothing(*args, logits_processor=None, **kwargs):
            """Unless it must write an order."""
            if logits_processor is None:
                return torch.tensor([[0, 1]])
            return generate(*args, logits_processor=logits_processor, **kwargs)

        with mock.patch.object(model, "generate", write_nothing):
            text = self.printed(model)
        given, predicted, true = (
            sorted(line[7:] for line in part.splitlines() if line.startswith("    "))
            for part in text.split("order:")[1:]
        )
        self.assertEqual(given, true)
        self.assertEqual(predicted, true)  # each sentence once
        self.assertEqual(text.count("Kendall's tau"), 1)
        self.assertIn("Generated without this constraint (it does not name each sentence once): </s>", text)

    def test_documents_that_stay_in_order_are_no_preview(self):
        in_order = mock.patch("hf_depth.training.previews.is_shuffled", return_value=torch.tensor([False]))
        with in_order, self.assertLogs("hf_depth", "WARNING") as logs:
            self.assertEqual(self.printed(tiny_model("depth")), "")
        self.assertIn("No evaluation example has its sentences in another order", logs.output[0])

    def test_a_device_needs_no_float64(self):
        expected = self.printed(tiny_model("depth"))
        with WithoutFloat64():
            self.assertEqual(self.printed(tiny_model("depth")), expected)

    def test_an_order_written_freely_has_its_kendall_tau(self):
        model = tiny_model("depth")
        generate, written = model.generate, []

        def write_an_order(*args, logits_processor=None, **kwargs):
            """The same under the constraint and without it."""
            if logits_processor is None:
                return torch.tensor([[0, *written]])
            return generate(*args, logits_processor=logits_processor, **kwargs)

        batch = DataCollatorForDepth(TOKENIZER, sentence_shuffling_probability=1.0)(rows(3))
        first = is_shuffled(batch["input_ids"], batch["labels"], model.config).tolist().index(True)
        written += batch["labels"][first].clamp(min=0).tolist()  # the target
        with mock.patch.object(model, "generate", write_an_order):
            text = self.printed(model)
            written += [written[0]] * model.config.num_sentence_tokens
            too_many = self.printed(model)
        self.assertIn("Generated without this constraint (Kendall's tau 1.00): ", text)
        self.assertIn("Generated without this constraint (it does not name each sentence once): ", too_many)


class BeforeAndAfterTest(parameterized.TestCase):
    @parameterized.parameters((-1.0, ["none", "none"]), (0.1, ["0.1000", "-1.0000"]))
    def test_a_model_that_copies_the_order_of_pairs_has_written_one(self, tau, expected):
        metrics = {"eval_order_kendall_tau": tau, "eval_order_kendall_tau_shuffled": -1.0}
        table = before_and_after(TrainerState(), metrics, list(metrics))
        self.assertEqual([line.split()[1] for line in table.splitlines()[1:3]], expected)
        self.assertEqual("no generated text orders" in table, tau == -1)
