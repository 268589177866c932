"""The script that makes a vocabulary of collocations, from its command line to its file."""

import contextlib
import io
import json

from absl.testing import parameterized

from helpers import DOCUMENTS, CorpusTestCase, load_script
from hf_depth.data.pmi import build_pmi_vocabulary, read_pmi_vocabulary

script = load_script("examples/build_pmi_vocabulary.py")


class BuildTest(CorpusTestCase):
    def run_script(self, *flags):
        texts = "".join(json.dumps({"text": text}) + "\n" for text in [*DOCUMENTS, "a b " * 50])
        self.write("texts.jsonl", texts)
        files = ["--train_file", self.path("texts.jsonl"), "--output_file", self.path("pmi.txt")]
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(output):
            script.main([*files, "--validation_split_percentage", "0", "--min_count", "2", *flags])
        return output.getvalue()

    @parameterized.parameters([], ["--streaming"])
    def test_the_vocabulary_of_a_file_is_written(self, *flags):
        output = self.run_script("--pmi_vocab_size", "40", "--max_train_samples", "2", *flags)
        expected = build_pmi_vocabulary(DOCUMENTS, size=40, min_count=2)
        self.assertEqual(read_pmi_vocabulary(self.path("pmi.txt")), expected)
        self.assertIn(f"{len(expected)} n-grams in", output)
        self.assertNotIn("a b", expected)

    @parameterized.parameters([], ["--streaming"])
    def test_the_vocabulary_of_a_mixture_is_that_of_all_its_sources(self, *flags):
        sources = []
        for name, column in (("a", "text"), ("b", "body")):
            self.write(f"{name}.jsonl", (json.dumps({column: f"{name} {name}{name}."}) + "\n") * 5)
            source = {"name": name, "weight": 0.5, "train_file": self.path(f"{name}.jsonl"), "text_column": column}
            sources.append(json.dumps(source))
        files = ["--dataset_mixture", *sources, "--output_file", self.path("pmi.txt"), "--min_count", "2"]
        with contextlib.redirect_stdout(io.StringIO()):
            script.main([*files, "--validation_split_percentage", "0", *flags])
        self.assertCountEqual(read_pmi_vocabulary(self.path("pmi.txt")), ["a aa", "b bb"])
