"""The data of tasks, from files to what a trainer takes."""

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized
from datasets import Dataset, DatasetDict

from helpers import SENTENCES, tiny_tokenizer
from hf_depth import TaskDataset, TaskFiles, TaskSpec, TaskSplits, get_task
from hf_depth.arguments.task_args import TaskArguments, chosen_tasks
from hf_depth.data.tokenization import TextEncoder
from hf_depth.tasks import splits as splits_module
from hf_depth.tasks.loaders.discourse import DiscourseOptions
from hf_depth.tasks.splits import mix_tasks, mixing_rates
from tiny_tasks import QUESTIONS, RTE, TaskFilesTestCase, as_jsonl, prepared, rte_rows, write_natural_instructions

TOKENIZER = tiny_tokenizer(sentence_tokens=True)


class SplitsTestCase(TaskFilesTestCase):
    def examples(self, name: str, number: int, seed: int = 0) -> str:
        return self.write(f"{name}.jsonl", as_jsonl(rte_rows(number, seed).to_list()))

    def load_rte(self, number: int = 6, **arguments) -> TaskSplits:
        files = {
            f"{split}_file": self.examples(split, number, seed) for seed, split in enumerate(("train", "validation"))
        }
        return self.load_splits("rte", **files | arguments)

    def load_splits(self, tasks, **arguments) -> TaskSplits:
        return TaskSplits.load(tasks, cache_dir=str(self.folder / "cache"), **arguments)

    def names(self, splits: TaskSplits) -> list[str]:
        return [f"{part.spec.name} {split}" for part in splits.parts for split in part.examples]


class LoadTest(SplitsTestCase):
    def test_splits_that_there_are_are_taken(self):
        self.assertEqual(self.names(self.load_rte()), ["rte train", "rte validation"])
        self.assertEqual(self.names(self.load_rte(validation_file=None)), ["rte train"])

    @parameterized.parameters(
        ({"do_train": False}, ["rte validation"]),
        ({"do_eval": False}, ["rte train"]),
        ({"do_train": False, "do_eval": False}, []),
    )
    def test_splits_that_are_not_needed_are_left_out(self, needs, expected):
        self.assertEqual(self.names(self.load_rte(**needs)), expected)

    @parameterized.parameters(
        ({"do_eval": True, "validation_file": None}, "no 'validation' data for `do_eval`, only 'train': name `valid"),
        (
            {"do_train": True, "train_file": None},
            "no 'train' data for `do_train`, only 'validation': name `train_file`",
        ),
        ({"do_predict": True}, "No task has test data: name `test_file`, or leave out `do_predict`"),
    )
    def test_splits_that_are_needed_but_missing_are_named(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            self.load_rte(**arguments)

    def test_a_task_without_validation_splits_cannot_be_evaluated(self):
        task, file = replace(RTE, validation_splits=()), self.examples("train", 4)
        self.assertEqual(self.names(self.load_splits(task, train_file=file)), ["rte train"])
        with self.assertRaisesRegex(ValueError, "`do_eval`: there are no `validation_splits` of 'rte'. Name those"):
            self.load_splits(task, train_file=file, do_eval=True)

    def test_one_of_several_validation_splits_may_be_missing_and_is_reported(self):
        pairs = rte_rows(4).rename_columns({"sentence1": "premise", "sentence2": "hypothesis"})
        file = self.write("dev.jsonl", as_jsonl(pairs.to_list()))
        with self.assertLogs(splits_module.logger, "WARNING") as logs:
            splits = self.load_splits("mnli", validation_file=file, do_train=False, do_eval=True)
        self.assertEqual(self.names(splits), ["mnli validation_matched"])
        self.assertIn("no 'validation_mismatched' data for `do_eval`, only 'validation_matched'", logs.output[0])

    def test_limits_take_random_subsets_in_the_order_of_the_data(self):
        chosen = []
        for seed, split_seed in ((1, 1), (1, 1), (2, 1), (1, 2)):
            splits = self.load_rte(20, max_train_samples=8, max_eval_samples=4, seed=seed, split_seed=split_seed)
            examples = splits.parts[0].examples
            chosen.append({split: rows["idx"][:] for split, rows in examples.items()})
        self.assertEqual(chosen[0], chosen[1])
        for seed, (changed, same) in {2: ("train", "validation"), 3: ("validation", "train")}.items():
            self.assertNotEqual(chosen[0][changed], chosen[seed][changed])
            self.assertEqual(chosen[0][same], chosen[seed][same])
        self.assertEqual([len(numbers) for numbers in chosen[0].values()], [8, 4])
        for numbers in chosen[0].values():
            self.assertEqual(numbers, sorted(numbers))
        whole = self.load_rte(20, max_train_samples=99)
        self.assertLen(whole.parts[0].examples["train"], 20)

    def test_it_is_told_that_all_training_examples_have_one_label(self):
        rows = rte_rows(4).to_list()
        for labels, number in (([1, 1, 1, 1], 1), ([1, 0, 1, 1], 0)):
            examples = Dataset.from_list([row | {"label": label} for row, label in zip(rows, labels, strict=True)])
            splits = TaskSplits.from_datasets(RTE, {"train": examples})
            check = self.assertLogs if number else self.assertNoLogs
            with check(splits_module.logger, "WARNING") as logs:
                splits.prepare(TOKENIZER)
            if number:
                self.assertIn("rte: all training examples have the label 'not_entailment', one of 2", logs.output[0])

    @parameterized.parameters("max_train_samples", "max_eval_samples", "max_predict_samples")
    def test_a_limit_of_none_at_all_is_refused(self, name):
        with self.assertRaisesRegex(ValueError, f"`{name}` must be at least 1, got 0"):
            self.load_rte(**{name: 0})

    def test_a_task_that_is_named_twice_is_taken_once(self):
        file = self.examples("train", 4)
        self.assertEqual(self.names(self.load_splits(["rte", "glue/rte"], train_file=file)), ["rte train"])

    def test_lengths_become_those_of_the_tasks(self):
        splits = self.load_rte(max_source_length=20, max_target_length=12)
        self.assertEqual((splits.tasks[0].max_source_length, splits.tasks[0].max_target_length), (20, 12))
        splits.prepare(TOKENIZER)
        self.assertEqual(max(map(len, splits.train_dataset()["input_ids"][:])), 20)

    def test_a_task_without_training_data_brings_the_one_that_it_is_trained_on(self):
        pairs = rte_rows(4).rename_columns({"sentence1": "premise", "sentence2": "hypothesis"})
        names = ("train_file", "validation_file", "test_file")
        files = {name: self.write(f"{name}.jsonl", as_jsonl(pairs.to_list())) for name in names}
        splits = self.load_splits("glue/ax", **files, max_source_length=99)
        self.assertEqual(self.names(splits), ["mnli train", "mnli validation_matched", "ax test"])
        self.assertEqual([task.max_source_length for task in splits.tasks], [99, 99])

    def test_several_tasks_are_read_from_a_folder_and_not_from_one_file(self):
        for name in ("rte", "wnli"):
            self.examples(f"{name}/train", 4)
        splits = self.load_splits(["rte", get_task("wnli")], dataset_dir=self.folder / "data")
        self.assertEqual(self.names(splits), ["rte train", "wnli train"])
        with self.assertRaisesRegex(ValueError, "`train_file`: the tasks 'glue/rte' and 'glue/wnli' would both have"):
            self.load_splits(["rte", "wnli"], train_file="a.jsonl")

    @parameterized.parameters(
        (("glue/rte", "glue/mrpc", "glue/wnli"),), (("disco_eval/SParxiv", "disco_eval/SPwiki"),)
    )
    def test_a_folder_of_one_task_is_not_that_of_several(self, tasks):
        rows = as_jsonl([{f"sentence_{i}": f"{i}" for i in range(1, 6)} | rte_rows(1)[0]])
        for name in ("train", "validation"):
            self.write(f"{name}.jsonl", rows)
        arguments = {"dataset_dir": self.folder / "data", "do_predict": False}
        message = (
            f"`dataset_dir`: the tasks '{tasks[0]}' and '{tasks[1]}' would both .*train.jsonl.* a folder for each"
        )
        with self.assertRaisesRegex(ValueError, message):
            self.load_splits(tasks, **arguments)
        self.assertLen(self.names(self.load_splits(tasks[0], **arguments)), 2)

    def test_tasks_may_share_a_table_that_has_labels_for_each(self):
        tone = TaskSpec("mine", "tone", "text", "", labels=("sad", "glad"), label_column_name="tone")
        topic = replace(tone, name="topic", labels=("a", "b"), label_column_name="topic")
        self.write("train.jsonl", as_jsonl([{"text": "A.", "tone": "sad", "topic": "b"}]))
        splits = self.load_splits([tone, topic], dataset_dir=self.folder / "data")
        labels = [part.spec.label_ids(part.examples["train"]) for part in splits.parts]
        self.assertEqual(labels, [[0], [1]])

    def test_discourse_tasks_share_one_corpus(self):
        texts = [" ".join(f"In text {i} this is sentence {j}." for j in range(9)) for i in range(60)]
        file = self.write("train.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
        arguments = TaskArguments(benchmark="discourse", dataset_name=["all"], train_file=[file])
        loading = arguments.for_loading(chosen_tasks(arguments), str(self.folder / "cache"))
        splits = TaskSplits.load(**loading)
        tested = [set(part.examples["test"]["document"]) for part in splits.parts]
        self.assertLen(tested, 3)
        self.assertEqual(tested, tested[:1] * 3)

    def test_files_are_given_in_one_piece_or_by_name(self):
        files = TaskFiles(train_file=self.examples("a", 4), cache_dir=str(self.folder / "cache"))
        for splits in (TaskSplits.load("rte", files), TaskSplits.load("rte", files, train_file=self.examples("b", 4))):
            self.assertEqual(self.names(splits), ["rte train"])

    def test_a_misspelt_option_is_answered_by_near_ones(self):
        with self.assertRaisesRegex(
            ValueError, "`text_colum` of the loader 'table', the loader 'discourse'.*'text_column'"
        ):
            self.load_splits(["rte", "sentence_ordering"], options={"text_colum": "body"})

    def test_each_loader_takes_the_options_that_it_has(self):
        documents = [f"In text {i} this is sentence one. In text {i} this is sentence two." for i in range(12)]
        self.write("train.jsonl", "".join(json.dumps({"body": text}) + "\n" for text in documents))
        self.examples("rte/train", 4)
        splits = self.load_splits(
            ["sentence_ordering", "rte"], dataset_dir=self.folder / "data", options={"text_column": "body"}
        )
        self.assertContainsSubset(["sentence_ordering train", "rte train"], self.names(splits))

    def test_options_of_one_loader_leave_the_others_theirs(self):
        documents = [f"In text {i} this is sentence one. In text {i} this is sentence two." for i in range(12)]
        self.write("train.jsonl", "".join(json.dumps({"body": text}) + "\n" for text in documents))
        self.examples("rte/train", 4)
        splits = self.load_splits(
            ["sentence_ordering", "rte"],
            dataset_dir=self.folder / "data",
            options=DiscourseOptions(text_column="body"),
        )
        self.assertContainsSubset(["sentence_ordering train", "rte train"], self.names(splits))
        with self.assertRaisesRegex(ValueError, "there is no option `text_column` of the loader 'table'"):
            self.load_splits("rte", options=DiscourseOptions())

    def test_files_are_given_as_paths(self):
        splits = self.load_splits("rte", train_file=self.folder / self.examples("train", 4))
        self.assertEqual(self.names(splits), ["rte train"])

    def test_the_language_of_sentences_is_given_once(self):
        documents = [f"这是文档{i}里面的第一个句子啊。这是文档{i}里面的第二个句子啊。" for i in range(12)]
        file = self.write("train.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in documents))
        splits = self.load_splits("sentence_ordering", train_file=file, sentence_language="zh")
        self.assertEqual(sum(map(len, splits.parts[0].examples.values())), 2 * 12)

    def test_every_process_but_the_first_waits_while_data_is_made(self):
        waited = []

        @contextlib.contextmanager
        def main_process_first(desc):
            waited.append(desc)
            yield

        self.load_rte(main_process_first=main_process_first).prepare(TOKENIZER)
        self.assertEqual(waited, ["loading rte", "preparing rte train", "preparing rte validation"])


class FromDatasetsTest(parameterized.TestCase):
    def test_data_sets_in_memory_become_splits(self):
        data = DatasetDict(train=rte_rows(4), validation=rte_rows(2, 1))
        splits = TaskSplits.from_datasets("rte", data).prepare(TOKENIZER)
        self.assertLen(splits.train_dataset(), 4)
        self.assertEqual(splits.eval_dataset().rows.to_list(), rte_rows(2, 1).to_list())

    @parameterized.parameters("torch", "numpy", "pandas", "arrow")
    def test_their_format_does_not_matter(self, kind):
        splits = TaskSplits.from_datasets("rte", {"train": rte_rows(4).with_format(kind, ["label"])})
        self.assertEqual(splits.parts[0].examples["train"].to_list(), rte_rows(4).to_list())

    @parameterized.parameters(
        ({"dev": rte_rows(2)}, "'glue/rte' has no split 'dev'. The splits are: 'train', 'validation', 'test'"),
        (
            {"train": rte_rows(2).rename_column("sentence1", "sentence_1")},
            "split 'train'.* needs a column 'sentence1'",
        ),
        (
            {"train": Dataset.from_dict({"sentence1": ["A"], "sentence2": ["B"], "label": [7]})},
            "row 0.*'label' holds 7",
        ),
        ({"train": rte_rows(2), "validation": rte_rows(2).select([])}, "split 'validation' has no rows"),
    )
    def test_wrong_data_is_named(self, data, message):
        with self.assertRaisesRegex(ValueError, message):
            TaskSplits.from_datasets("rte", data)

    @parameterized.parameters(
        (rte_rows(2), "`datasets` must map the names of splits to data sets, got Dataset: write `{'train': dataset}`"),
        (rte_rows(2).to_list(), "`datasets` must map .* got list"),
        ({"train": rte_rows(2).to_list()}, r"`datasets\['train'\]` must be a `datasets.Dataset`, got list.*from_list"),
        ({"train": rte_rows(2).to_iterable_dataset()}, "must be .* got IterableDataset.*`Dataset.from_generator`"),
    )
    def test_what_is_no_data_set_by_its_split_is_refused_with_the_remedy(self, data, message):
        with self.assertRaisesRegex(TypeError, message):
            TaskSplits.from_datasets("rte", data)


class PrepareTest(SplitsTestCase):
    @parameterized.parameters("t5-small", None)
    def test_what_is_no_tokenizer_is_refused_with_the_remedy(self, tokenizer):
        splits = TaskSplits.from_datasets("rte", {"train": rte_rows(2)})
        message = f"`tokenizer` must be a tokenizer .*got {type(tokenizer).__name__}: {tokenizer!r}. `load_tokenizer"
        with self.assertRaisesRegex(TypeError, message):
            splits.prepare(tokenizer)

    @parameterized.parameters((None, "depth"), (True, "depth"), (False, "t5"))
    def test_examples_become_the_ids_of_the_preprocessor(self, sentence_tokens, kind):
        splits = self.load_rte().prepare(TOKENIZER, sentence_tokens=sentence_tokens)
        expected = prepared(rte_rows(6), kind)
        for name in ("input_ids", "labels"):
            ids, others = (data.with_format(None)[name][:] for data in (splits.train_dataset(), expected))
            self.assertEqual(ids, others)

    def test_what_is_not_prepared_is_refused_with_the_remedy(self):
        splits = self.load_rte()
        for method in (splits.train_dataset, splits.eval_dataset, splits.test_datasets, splits.preview):
            with self.assertRaisesRegex(ValueError, r"call `splits.prepare\(tokenizer\)` first"):
                method()

    def test_what_was_cut_or_is_unknown_is_counted_and_reported(self):
        rows = rte_rows(4).map(lambda row: {"sentence1": "犬 犬 犬 " + row["sentence1"]})
        splits = TaskSplits.from_datasets("rte", {"train": rows}, max_source_length=40)
        with self.assertLogs(splits_module.logger, "WARNING") as logs:
            splits.prepare(TOKENIZER)
        statistics = splits.statistics["rte train"]
        self.assertEqual((statistics["examples"], statistics["cut_examples"]), (4, 4))
        self.assertGreater(statistics["unknown_tokens"], 0)
        self.assertRegex(logs.output[0], "rte train: 4 of 4 examples were too long, and lost .*`max_source_length`")
        self.assertRegex(logs.output[1], "of the tokens are unknown to the tokenizer")

    @parameterized.parameters((512, 6), (24, 64), (24, 6))
    def test_what_targets_lost_is_told_from_what_inputs_lost(self, max_source_length, max_target_length):
        rows = Dataset.from_dict({"question": SENTENCES[9:13], "answers": [[text] for text in SENTENCES[9:13]]})
        lengths = {"max_source_length": max_source_length, "max_target_length": max_target_length}
        splits = TaskSplits.from_datasets(QUESTIONS, {"train": rows}, **lengths)
        with self.assertLogs(splits_module.logger, "WARNING") as logs:
            splits.prepare(TOKENIZER)
        (message,) = logs.output
        lost = {}
        for name, length in (("inputs", "max_source_length"), ("targets", "max_target_length")):
            found = re.search(rf"([\d,]+) tokens of {name} \(`{length}`\)", message)
            lost[name] = int(found[1].replace(",", "")) if found else 0
        expected = [max(len(ids) + 1 - max_target_length, 0) for ids in TextEncoder(TOKENIZER)(SENTENCES[9:13])]
        self.assertEqual(lost["targets"], sum(expected))
        self.assertEqual(lost["inputs"] > 0, max_source_length == 24)
        self.assertEqual(splits.statistics["questions train"]["tokens_cut"], sum(lost.values()))

    def test_a_choice_that_depends_on_the_tokenizer_is_made_with_it(self):
        write_natural_instructions(self.folder / "ni", SENTENCES)
        splits = self.load_splits("natural_instructions", dataset_dir=self.folder / "ni", max_source_length=64)
        whole = splits.parts[0].examples["test"]["prompt"][:]
        splits.prepare(TOKENIZER)
        fitting = splits.parts[0].examples["test"]["prompt"][:]
        self.assertTrue(all("Positive Example 2" in prompt for prompt in whole))
        self.assertFalse(any("Positive Example 2" in prompt for prompt in fitting))

    @parameterized.parameters(None, False)
    def test_such_a_choice_is_made_once_if_the_tokenizer_is_known(self, sentence_tokens):
        write_natural_instructions(self.folder / "ni", SENTENCES)
        arguments = {"dataset_dir": self.folder / "ni", "max_source_length": 64}
        later = self.load_splits("natural_instructions", **arguments)
        later.prepare(TOKENIZER, sentence_tokens=sentence_tokens)
        with mock.patch.object(splits_module, "load_task", wraps=splits_module.load_task) as load:
            splits = self.load_splits(
                "natural_instructions", **arguments, tokenizer=TOKENIZER, sentence_tokens=sentence_tokens
            )
            splits.prepare(TOKENIZER, sentence_tokens=sentence_tokens)
            self.assertEqual(load.call_count, 1)
            splits.prepare(tiny_tokenizer())  # counts in another way
            self.assertEqual(load.call_count, 2)
            splits.prepare(TOKENIZER, sentence_tokens=sentence_tokens)
        for split, examples in splits.parts[0].examples.items():
            self.assertEqual(examples["prompt"][:], later.parts[0].examples[split]["prompt"][:])

    def test_a_vocabulary_is_trained_on_prompts_and_targets_of_the_training_examples(self):
        splits = self.load_rte()
        expected = [f"{RTE.prompt(row)} {RTE.targets(row)[0]}" for row in rte_rows(6)]
        self.assertEqual(list(splits.training_texts()), expected)


class DataSetsTest(SplitsTestCase):
    def folder_of_tasks(self, **arguments) -> TaskSplits:
        for name, number in (("rte", 12), ("wnli", 4)):
            for seed, split in enumerate(("train", "validation", "test")):
                self.examples(f"{name}/{split}", number, seed)
        splits = self.load_splits(["rte", "wnli"], dataset_dir=self.folder / "data", **arguments)
        return splits.prepare(TOKENIZER)

    def test_one_split_is_a_data_set_and_several_have_names(self):
        one = self.load_rte().prepare(TOKENIZER)
        self.assertIsInstance(one.eval_dataset(), TaskDataset)
        self.assertIsNone(one.test_datasets())
        several = self.folder_of_tasks()
        self.assertEqual(list(several.eval_dataset()), ["rte", "wnli"])
        self.assertEqual([dataset.split for dataset in several.test_datasets().values()], ["test", "test"])

    def test_evaluation_knows_the_classes_of_the_training_examples(self):
        splits = self.load_rte().prepare(TOKENIZER)
        self.assertEqual(splits.eval_dataset().train_label_ids, rte_rows(6)["label"][:])
        examples = {"train": Dataset.from_dict({"question": ["Who?"], "answers": [["me"]]})}
        free_form = TaskSplits.from_datasets(QUESTIONS, examples | {"validation": examples["train"]})
        self.assertIsNone(free_form.prepare(TOKENIZER).eval_dataset().train_label_ids)

    def test_the_training_examples_of_several_tasks_are_mixed(self):
        splits = self.folder_of_tasks(seed=3)
        parts = [part.prepared["train"] for part in splits.parts]
        for arguments in ({}, {"mixing_maximum": 4}, {"mixing_temperature": 9.0}, {"seed": 8}):
            values = {"mixing_maximum": 65_536, "mixing_temperature": 1.0, "seed": 3} | arguments
            expected = mix_tasks(parts, values["seed"], values["mixing_maximum"], values["mixing_temperature"])
            mixed = splits.train_dataset(**arguments)
            self.assertEqual(*(data.with_format(None)["input_ids"][:] for data in (mixed, expected)))

    def test_without_training_data_there_is_nothing_to_train_on(self):
        splits = self.load_rte(train_file=None).prepare(TOKENIZER)
        with self.assertRaisesRegex(ValueError, "No task has training data: name `train_file`"):
            splits.train_dataset()


class ReportsTest(SplitsTestCase):
    def test_a_preview_shows_what_the_model_reads_and_writes(self):
        splits = self.load_rte().prepare(TOKENIZER)
        lines = splits.preview(number=2).split("\n")
        self.assertEqual([line.split(":")[0] for line in lines], ["input", "target", ""] * 2)
        self.assertIn("<sent_0> rte sentence1: 0: ", lines[0])
        self.assertRegex(lines[1], "target: (not_)?entailment</s>")

    def test_a_task_without_data_has_no_preview(self):
        self.examples("rte/test", 4)
        self.examples("wnli/train", 4)
        arguments = {"do_train": False, "do_eval": False, "do_predict": True}
        splits = self.load_splits(["rte", "wnli"], dataset_dir=self.folder / "data", **arguments)
        self.assertEqual(splits.prepare(TOKENIZER).preview(number=1).count("input:"), 1)

    def test_the_sources_are_files_without_their_folders(self):
        splits = self.load_rte()
        self.assertEqual(splits.sources, {"train_file": "train.jsonl", "validation_file": "validation.jsonl"})
        self.assertEmpty(splits.hub_datasets)

    def test_tasks_of_one_name_are_told_apart(self):
        splits = self.load_rte()
        other = replace(RTE, benchmark="tests", path="somewhere/rte")
        splits.parts += TaskSplits.from_datasets(other, {"train": rte_rows(4)}).parts
        splits.prepare(TOKENIZER)
        counts = {name: counts["examples"] for name, counts in splits.statistics.items()}
        self.assertEqual(counts, {"glue/rte train": 6, "glue/rte validation": 6, "tests/rte train": 4})
        splits.files = TaskFiles()
        self.assertEqual(splits.sources, {"glue/rte": "nyu-mll/glue", "tests/rte": "somewhere/rte"})

    def test_data_of_the_hub_is_named(self):
        rows = {split: rte_rows(2) for split in ("train", "validation", "test")}
        with mock.patch.object(splits_module, "load_task", return_value=rows):
            splits = TaskSplits.load("rte").prepare(TOKENIZER)
        self.assertEqual(splits.hub_datasets, ["nyu-mll/glue"])
        self.assertEqual(splits.sources, {"rte": "nyu-mll/glue"})

    def test_data_of_a_folder_is_not_that_of_the_hub_and_its_path_is_not_told(self):
        rows = {split: rte_rows(2) for split in ("train", "validation", "test")}
        with mock.patch.object(splits_module, "load_task", return_value=rows):
            splits = TaskSplits.load(replace(RTE, path=str(self.folder))).prepare(TOKENIZER)
        self.assertEmpty(splits.hub_datasets)
        self.assertEqual(splits.sources["rte"], Path(self.folder).name)


class MixtureTest(parameterized.TestCase):
    @parameterized.parameters(
        ([100, 300], 1000, 1.0, [0.25, 0.75]),
        ([100, 10_000], 300, 1.0, [0.25, 0.75]),
        ([100, 10_000], 300, 1e9, [0.5, 0.5]),
        ([16, 81], 1000, 4.0, [0.4, 0.6]),
    )
    def test_rates(self, sizes, maximum, temperature, expected):
        np.testing.assert_allclose(mixing_rates(sizes, maximum, temperature), expected, rtol=1e-6)

    @parameterized.parameters((0, 1.0, "mixing_maximum"), (10, 0.5, "mixing_temperature"))
    def test_rates_without_a_meaning_are_refused(self, maximum, temperature, message):
        with self.assertRaisesRegex(ValueError, message):
            mixing_rates([1, 2], maximum, temperature)

    def test_a_mixture_holds_every_example_in_the_proportions_asked_for(self):
        parts = [Dataset.from_dict({"x": list(range(start, start + n))}) for start, n in ((0, 40), (1000, 400))]
        mixed = mix_tasks(parts, seed=1, maximum=80)["x"][:]
        self.assertEqual(set(mixed), {*range(40), *range(1000, 1400)})
        self.assertAlmostEqual(np.mean(np.array(mixed) < 1000), 1 / 3, delta=0.06)
        self.assertEqual(mixed, mix_tasks(parts, seed=1, maximum=80)["x"][:])
        self.assertNotEqual(mixed, mix_tasks(parts, seed=2, maximum=80)["x"][:])
        self.assertIs(mix_tasks(parts[:1], seed=1), parts[0])


if __name__ == "__main__":
    absltest.main()
