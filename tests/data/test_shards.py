import json
import shutil
from dataclasses import replace

from absl.testing import absltest, parameterized

from helpers import tiny_tokenizer
from hf_depth import DepthObjective
from hf_depth.data.mixture import DocumentMixture, Mixing, MixtureSource
from hf_depth.data.shard_preparation import prepare_shards
from hf_depth.data.shards import ShardFolder, differences, tokenizer_digest
from tiny_shards import OBJECTIVES, TOKENIZER, ShardsTestCase, documents, values


class ShardFolderTest(ShardsTestCase):
    def test_missing_and_damaged_files_are_named(self):
        folder = self.prepare().folder
        path = folder / "train" / "text" / "00001.arrow"
        path.write_bytes(path.read_bytes()[:-500])
        with self.assertRaisesRegex(
            ValueError, "^`tokenized_dataset_dir` .*text/00001.arrow is damaged: .* by `--prep"
        ):
            self.examples(ShardFolder.open(folder))
        path.unlink()
        with self.assertRaisesRegex(ValueError, "train/text/00001.arrow is missing. Prepare it"):
            ShardFolder.open(folder)
        for content in ('{"files": {}}', "{", "3"):
            (folder / "manifest.json").write_text(content)
            with self.assertRaisesRegex(ValueError, "manifest.json cannot be read"):
                ShardFolder.open(folder)
        with self.assertRaisesRegex(ValueError, "is no folder of shards: no manifest.json"):
            ShardFolder.open(self.path("nothing"))

    def test_shards_of_another_format_are_refused(self):
        folder = self.prepare().folder
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["versions"]["format"] = 1
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with self.assertRaisesRegex(ValueError, "has the format 1, but 2 is read here"):
            ShardFolder.open(folder)
        with self.assertRaisesRegex(ValueError, r"another preparation, with format 1 \(now 2\)"):
            self.prepare()

    @parameterized.parameters(
        ({"mlm_probability": 0.2}, r"mlm_probability 0.3 \(now 0.2\)"),
        ({"max_source_length": 80, "min_sentences": 2}, r"max_source_length 96 \(now 80\), .*min_sentences 1 \(now 2"),
        ({"sentence_language": "de"}, r"sentence_language en \(now de\)"),
    )
    def test_an_objective_with_other_settings_is_refused(self, changes, message):
        with self.assertRaisesRegex(ValueError, message):
            self.prepare().check(OBJECTIVES["depth"](**changes))

    def test_another_kind_of_model_or_tokenizer_is_refused(self):
        folder = self.prepare()
        with self.assertRaisesRegex(ValueError, r"model_type depth \(now t5\)"):
            folder.check(OBJECTIVES["t5"]())
        tokenizer = tiny_tokenizer(sentence_tokens=True)
        tokenizer.add_tokens(["Netherfield"])
        with self.assertRaisesRegex(ValueError, "tokenizer [0-9a-f]{12} .now [0-9a-f]{12}."):
            folder.check(DepthObjective(tokenizer, max_source_length=96))

    def test_what_a_collator_draws_may_be_another_and_the_saved_tokenizer_is_the_same(self):
        folder = self.prepare()
        folder.check(OBJECTIVES["depth"](sentence_shuffling_probability=0.9))
        folder.check(DepthObjective(folder.load_tokenizer(), max_source_length=96))
        self.assertEqual(tokenizer_digest(folder.load_tokenizer()), tokenizer_digest(TOKENIZER))

    def test_splits_are_loaded_as_the_objective_would_prepare_them(self):
        corpus = {"train": documents(), "validation": documents(7)}
        folder = prepare_shards(corpus, OBJECTIVES["depth"](), self.path("shards"))
        limits = {"train": 5, "validation": None}
        expected, expected_statistics = OBJECTIVES["depth"]().prepare_splits(corpus, max_samples=limits)
        data, statistics = folder.load_splits(OBJECTIVES["depth"](), corpus, max_samples=limits)
        for split in corpus:
            self.assertEqual(values(data[split]), values(expected[split]))
        self.assertEqual(statistics, expected_statistics)

    def test_a_mixture_from_shards_is_that_from_text(self):
        sources = [
            MixtureSource("a", train_file="a.txt", weight=1.0),
            MixtureSource("b", train_file="b.txt", weight=2.0),
        ]
        sources[1] = replace(sources[1], text_column="body")
        parts = {"a": documents(10), "b": documents(25).rename_column("text", "body")}
        mixing = Mixing({"a": 1.0, "b": 2.0})
        corpus = {split: DocumentMixture(parts, sources, mixing) for split in ("train", "validation")}
        folder = prepare_shards(corpus, OBJECTIVES["depth"](), self.path("shards"), shard_size=2000)
        self.assertEqual(folder.mixing, mixing)
        expected, expected_statistics = OBJECTIVES["depth"]().prepare_splits(corpus)
        data, statistics = folder.load_splits(OBJECTIVES["depth"](), corpus)
        self.assertEqual(values(data["train"]), values(expected["train"]))
        self.assertEqual(values(data["validation"]["b"]), values(expected["validation"]["b"]))
        self.assertEqual(statistics, expected_statistics)
        data, _ = folder.load_splits(OBJECTIVES["depth"](), ["train"], mixing=Mixing({"a": 9.0, "b": 1.0}))
        self.assertAlmostEqual(data["train"].probabilities["a"], 0.9)  # by the weights of the run

    def test_the_digest_is_that_of_the_content(self):
        digest = self.prepare().digest
        shutil.copytree(self.path("shards"), self.path("moved"))
        self.assertEqual(ShardFolder.open(self.path("moved")).digest, digest)
        self.assertNotEqual(self.prepare(number=39, name="other").digest, digest)

    def test_shards_with_the_units_of_another_vocabulary_are_refused(self):
        self.write("pmi.txt", "mr. bennet\n")
        objective = OBJECTIVES["depth"](pmi_vocab_file=self.path("pmi.txt"))
        folder = prepare_shards({"train": documents(7)}, objective, self.path("shards"))
        folder.check(objective)
        self.write("pmi.txt", "good fortune\n")
        with self.assertRaisesRegex(ValueError, "pmi_vocab_content 11 bytes.*now 13 bytes"):
            folder.check(objective)
        del folder.manifest["settings"]["pmi_vocab_content"]  # as in shards of an earlier release
        folder.check(objective)
        folder.manifest["settings"]["pmi_units_version"] = 1
        with self.assertRaisesRegex(ValueError, "pmi_units_version 1 .now 2"):
            folder.check(objective)
        del folder.manifest["settings"]["pmi_units_version"]  # before units had a version
        with self.assertRaisesRegex(ValueError, "pmi_units_version None"):
            folder.check(objective)

    def test_differences_are_named_however_deep(self):
        self.assertEqual(
            differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "d": 2}}), ["c 2 (now None)", "d None (now 2)"]
        )


if __name__ == "__main__":
    absltest.main()
