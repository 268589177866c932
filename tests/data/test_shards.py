import json
import shutil
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
from absl.testing import absltest, parameterized
from torch.utils.data import DataLoader

from helpers import tiny_tokenizer
from hf_depth import DepthObjective
from hf_depth.data import shard_preparation
from hf_depth.data.mixture import DocumentMixture, Mixing, MixtureSource
from hf_depth.data.shard_preparation import prepare_shards
from hf_depth.data.shards import ShardFolder, differences, tokenizer_digest
from tiny_shards import OBJECTIVES, TOKENIZER, ShardsTestCase, documents, values


class ShardFolderTest(ShardsTestCase):
    def test_missing_and_damaged_files_are_named(self):
        folder = self.prepare().folder
        path = folder / "train" / "text" / "00001.parquet"
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b"?")
        ShardFolder.open(folder)  # the size is the same
        with self.assertRaisesRegex(ValueError, "is damaged: train/text/00001.parquet has another content"):
            ShardFolder.open(folder, check_hashes=True)
        path.write_bytes(content[:-1])
        with self.assertRaisesRegex(ValueError, "00001.parquet has [0-9,]+ bytes instead of [0-9,]+. Prepare it"):
            ShardFolder.open(folder)
        path.unlink()
        with self.assertRaisesRegex(ValueError, "train/text/00001.parquet is missing"):
            ShardFolder.open(folder)
        (folder / "manifest.json").write_text('{"files": {}}')
        with self.assertRaisesRegex(ValueError, "is damaged: manifest.json has no 'settings'. Prepare it"):
            ShardFolder.open(folder)
        (folder / "manifest.json").write_text("{")
        with self.assertRaisesRegex(ValueError, "manifest.json cannot be read"):
            ShardFolder.open(folder)
        with self.assertRaisesRegex(ValueError, "is no folder of shards: no manifest.json"):
            ShardFolder.open(self.path("nothing"))

    @parameterized.parameters(False, True)
    def test_a_shard_whose_footer_is_damaged_is_named_in_one_line(self, streaming):
        folder = self.prepare()
        path = folder.folder / "train" / "text" / "00001.parquet"
        path.write_bytes(path.read_bytes()[:-4] + b"????")
        with self.assertRaisesRegex(
            ValueError, "^`tokenized_dataset_dir` .*train/text cannot be read: .* by `--prepr"
        ):
            examples = self.examples(folder, streaming=streaming)
            list(examples.one_pass() if streaming else examples)

    @parameterized.parameters(False, True)
    def test_shards_are_those_of_the_folder_whatever_its_name_would_match_as_a_glob(self, streaming):
        self.prepare(number=7, name="shards1")
        folder = self.prepare(number=12, name="shards[1]")
        examples = self.examples(folder, streaming=streaming)
        found = list(examples.one_pass() if streaming else examples)
        self.assertLen(found, folder.counts["train"]["text"]["examples"])

    def test_shards_of_another_format_are_refused(self):
        folder = self.prepare().folder
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["versions"]["format"] = 99
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with self.assertRaisesRegex(ValueError, "has the format 99, but 1 is read here"):
            ShardFolder.open(folder)

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
        for streaming in (False, True):  # a stream with a limit is held in memory
            data, statistics = folder.load_splits(
                OBJECTIVES["depth"](), corpus, max_samples=limits, streaming=streaming, cache_dir=self.path("cache")
            )
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
        data, statistics = folder.load_splits(OBJECTIVES["depth"](), corpus, cache_dir=self.path("cache"))
        self.assertEqual(values(data["train"]), values(expected["train"]))
        self.assertEqual(values(data["validation"]["b"]), values(expected["validation"]["b"]))
        self.assertEqual(statistics, expected_statistics)
        options = {"streaming": True, "cache_dir": self.path("cache"), "mixing": Mixing({"a": 9.0, "b": 1.0})}
        data, _ = folder.load_splits(OBJECTIVES["depth"](), ["train"], **options)
        drawn = Counter(example["source"] for example in islice(data["train"], 500))
        self.assertBetween(drawn[0] / 500, 0.85, 0.95)  # by the weights of the run

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


class StreamedShardsTest(ShardsTestCase):
    def counts(self, stream, num_processes: int, num_workers: int) -> dict[int, Counter]:
        """How often each example comes, by pass."""
        divided, counts = stream.divided(num_processes * num_workers), {0: Counter(), 1: Counter()}
        for rank in range(num_processes):
            shard = divided.shard(num_shards=num_processes, index=rank) if num_processes > 1 else divided
            unfinished = set(range(num_workers))
            for number, batch in enumerate(DataLoader(shard, 4, num_workers=num_workers, collate_fn=list)):
                for example in batch:
                    tokens = tuple(np.asarray(example["input_ids"]).tolist())
                    counts.setdefault(example["stream_epoch"], Counter())[tokens] += 1
                if batch[-1]["stream_epoch"] > 1:
                    unfinished.discard(number % num_workers)
                if not unfinished:
                    break
        return counts

    @parameterized.parameters(10_000, 3)
    def test_two_processes_with_two_workers_read_every_example_once_per_pass(self, row_group_size):
        with mock.patch.object(
            shard_preparation, "ROW_GROUP_SIZE", row_group_size
        ):  # a group for all of a shard, or several
            corpus, objective = {"train": documents(43)}, OBJECTIVES["depth"]()
            folder = prepare_shards(corpus, objective, self.path("shards"), shard_size=4000)
        stream = self.examples(folder, streaming=True, shuffle_buffer_size=4)
        expected = Counter(tuple(example["input_ids"]) for example in values(self.examples(folder)))
        counts = self.counts(stream, num_processes=2, num_workers=2)
        self.assertEqual(counts[0], expected)
        self.assertEqual(counts[1], expected)

    def test_consumers_read_row_groups_of_their_own(self):
        folder = self.prepare()
        stream = self.examples(folder, streaming=True, shuffle_buffer_size=2)
        files = Path(folder.folder, "train", "text").iterdir()
        self.assertEqual(stream.num_shards, sum(pq.ParquetFile(path).num_row_groups for path in files))
        groups = []
        read = stream._read
        stream._read = lambda shard: groups.append(shard) or read(shard)
        for _ in islice(stream.consumer_examples([0], 4), len(self.examples(folder)) // 8):
            pass
        self.assertLess(len(groups), stream.num_shards // 3)

    @parameterized.parameters(1, 5, 40)
    def test_a_consumer_goes_on_where_it_was(self, number):
        folder = self.prepare()
        stream = self.examples(folder, streaming=True, shuffle_buffer_size=4)
        everything = list(islice(stream.consumer_examples([1], 2), number + 30))
        resumed = self.examples(folder, streaming=True, shuffle_buffer_size=4)
        consumer, position = everything[number - 1]["stream_position"]
        resumed.starts = {consumer: position}
        found = list(islice(resumed.consumer_examples([1], 2), number + 30))
        self.assertEqual(values(found[number:]), values(everything[number:]))

    def test_a_batch_of_a_stream_is_a_batch_of_the_collator(self):
        folder = self.prepare()
        collator = OBJECTIVES["depth"]().collator()
        found = {tuple(example["input_ids"]): example for example in self.examples(folder, streaming=True).one_pass()}
        examples = [self.examples(folder)[i] for i in range(4)]
        streamed = collator([found[tuple(example["input_ids"].tolist())] for example in examples])
        for name, tensor in collator(examples).items():
            self.assertEqual(streamed[name].tolist(), tensor.tolist())


if __name__ == "__main__":
    absltest.main()
