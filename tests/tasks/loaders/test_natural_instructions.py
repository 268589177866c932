import json
import os
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from absl.testing import parameterized
from datasets import Dataset

from helpers import tiny_tokenizer
from hf_depth.errors import UserError
from hf_depth.tasks.loaders.natural_instructions import (
    TK_INSTRUCT_PROMPTS,
    NaturalInstructionsOptions,
    instance_text,
    load,
    prompt,
)
from hf_depth.tasks.preprocessing import TaskPreprocessor
from hf_depth.tasks.reading import TaskFiles
from hf_depth.tasks.registry import get_task

CAPITALS = {
    "Name": "task1_capitals",
    "Definition": ["Name the capital of a country"],
    "Categories": ["Geography", "Other"],
    "Positive Examples": [
        {"input": "France", "output": "Paris", "explanation": "It is on the Seine."},
        {"input": "Peru?", "output": "Lima!", "explanation": "It is on the coast"},
        {"input": "Mali", "output": "Bamako", "explanation": "Not shown."},
    ],
    "Negative Examples": [
        {"input": "Italy", "output": "Milan", "explanation": "That is Rome"},
        {"input": "Spain", "output": "Seville"},
    ],
}
END = "Now complete the following example -\nInput: Chad.\nOutput: "
DEFINITION = "Definition: Name the capital of a country.\n\n"
POSITIVE = (
    " Positive Example 1 -\nInput: France.\n Output: Paris.\n\n Positive Example 2 -\nInput: Peru?\n Output: Lima!\n\n"
)
FIRST_NEGATIVE = " Negative Example 1 -\nInput: Italy.\n Output: Milan.\n\n"
NEGATIVE = FIRST_NEGATIVE + " Negative Example 2 -\nInput: Spain.\n Output: Seville.\n\n"
EXPLAINED = (
    " Positive Example 1 -\nInput: France.\n Output: Paris.\n Explanation: It is on the Seine.\n\n"
    " Positive Example 2 -\nInput: Peru?\n Output: Lima!\n Explanation: It is on the coast.\n\n"
)
# What Tk-Instruct's own collator makes of the task, in the order of TK_INSTRUCT_PROMPTS.
GOLDEN = [
    DEFINITION + END,
    POSITIVE + END,
    DEFINITION + POSITIVE + END,
    DEFINITION + POSITIVE + NEGATIVE + END,
    DEFINITION + EXPLAINED + END,
]


class PromptTest(parameterized.TestCase):
    @parameterized.parameters(*zip(TK_INSTRUCT_PROMPTS, GOLDEN, strict=True))
    def test_each_kind_of_prompt_is_that_of_tk_instruct(self, choices, expected):
        self.assertEqual(prompt(CAPITALS, "Chad", NaturalInstructionsOptions(**choices)), expected)

    @parameterized.parameters(" Chad\n", "Chad.")
    def test_white_space_and_a_missing_full_stop_are_put_right(self, text):
        self.assertEqual(instance_text(text), END)

    @parameterized.parameters(
        (0, DEFINITION + POSITIVE + NEGATIVE + END),
        (1, DEFINITION + POSITIVE + FIRST_NEGATIVE + END),
        (len(NEGATIVE), DEFINITION + POSITIVE + END),
        (len(POSITIVE + NEGATIVE), DEFINITION + END),
        (1000, DEFINITION + END),
    )
    def test_examples_that_do_not_fit_are_left_out_and_nothing_else(self, num_too_many, expected):
        limit = len(DEFINITION + POSITIVE + NEGATIVE + END) - num_too_many
        options = NaturalInstructionsOptions(num_neg_examples=2)
        shown = prompt(CAPITALS, "Chad", options, fits=lambda text: len(text) <= limit)
        self.assertEqual(shown, expected)


class NaturalInstructionsTestCase(parameterized.TestCase):
    """Works on a small copy of the repository: three training tasks, two test tasks."""

    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for part in ("tasks", "splits/default"):
            os.makedirs(self.folder / part)
        self.names = {"train": ["task1_a", "task2_b", "task3_c"], "test": ["task4_d", "task5_e"]}
        for split, names in self.names.items():
            self.write_list(split, names)
            for name in names:
                self.write_task(name)

    def write_list(self, split: str, names: list[str]):
        (self.folder / f"splits/default/{split}_tasks.txt").write_text("".join(f"{name}\n" for name in names))

    def write_task(self, name: str, num_instances: int = 50, **fields):
        instances = [
            {"id": f"{name}-{i}", "input": f"Country {i} of {name}", "output": [f"capital {i}", f"city {i}"]}
            for i in range(num_instances)
        ]
        task = {**CAPITALS, "Categories": [f"category of {name}"], "Instances": instances, **fields}
        task = {field: value for field, value in task.items() if field != "Name" and value is not None}
        (self.folder / "tasks" / f"{name}.json").write_text(json.dumps(task))

    def load(self, seed: int = 42, length=None, max_source_length=1024, **options) -> dict[str, Dataset]:
        task = replace(get_task("natural_instructions"), max_source_length=max_source_length)
        files = TaskFiles(dataset_dir=self.folder, cache_dir=str(self.folder / "cache"))
        return load(task, files, NaturalInstructionsOptions(**options), split_seed=seed, length=length)


class SplitsTest(NaturalInstructionsTestCase):
    def test_rows_hold_what_training_and_evaluation_need(self):
        splits = self.load()
        self.assertEqual(list(splits), ["train", "validation", "test"])
        row = splits["test"][3]
        self.assertEqual(
            row,
            {
                "prompt": prompt(CAPITALS, "Country 3 of task4_d", NaturalInstructionsOptions()),
                "instance": instance_text("Country 3 of task4_d"),
                "references": ["capital 3", "city 3"],
                "task": "task4_d",
                "category": "category of task4_d",
                "id": "task4_d-3",
            },
        )
        task = get_task("natural_instructions")
        self.assertEqual((task.prompt(row), task.targets(row)), (row["prompt"], row["references"]))

    def test_test_tasks_are_the_official_ones_and_their_first_instances_are_taken(self):
        rows = self.load(max_num_instances_per_eval_task=7)["test"]
        self.assertEqual(rows["id"][:], [f"{name}-{i}" for name in self.names["test"] for i in range(7)])

    def test_validation_holds_out_instances_of_training_tasks(self):
        splits = self.load(max_num_instances_per_task=None)
        for split, number in (("train", 40), ("validation", 10)):
            self.assertEqual(Counter(splits[split]["task"]), Counter({name: number for name in self.names["train"]}))
        self.assertNoCommonElements(splits["train"]["id"], splits["validation"]["id"])

    def test_an_input_of_validation_is_not_trained_on_under_another_id(self):
        inputs = [{"id": f"x-{i}", "input": f"Country {i % 25} ", "output": "same"} for i in range(50)]
        self.write_task("task1_a", Instances=inputs)
        splits = self.load(max_num_instances_per_task=None)
        self.assertNoCommonElements(splits["train"]["instance"], splits["validation"]["instance"])
        self.assertIn(["same"], splits["validation"]["references"][:])

    def test_the_seed_chooses_instances_and_the_same_seed_the_same(self):
        ids = [
            {split: rows["id"][:] for split, rows in self.load(seed, max_num_instances_per_task=10).items()}
            for seed in (1, 1, 2)
        ]
        self.assertEqual(ids[0], ids[1])
        for split in ("train", "validation"):
            self.assertNotEqual(ids[0][split], ids[2][split])
        self.assertEqual(ids[0]["test"], ids[2]["test"])
        self.assertEqual(set(Counter(name.split("-")[0] for name in ids[0]["train"]).values()), {10})

    def test_the_choice_of_a_task_does_not_depend_on_the_others(self):
        before = self.load(max_num_instances_per_task=10)["train"]
        self.write_list("train", ["task2_b"])
        after = self.load(max_num_instances_per_task=10)["train"]
        self.assertEqual(after.to_list(), before.filter(lambda row: row["task"] == "task2_b").to_list())


class OptionsTest(NaturalInstructionsTestCase):
    def test_tk_instruct_mixes_five_kinds_of_prompt_in_training_only(self):
        splits = self.load(tk_instruct=True)
        kinds = Counter()
        for row in splits["train"]:
            text = row["instance"].removeprefix("Now complete the following example -\nInput: ").split(".\nOutput")[0]
            kinds_of_prompt = [NaturalInstructionsOptions(**choices) for choices in TK_INSTRUCT_PROMPTS]
            prompts = [prompt(CAPITALS, text, options) for options in kinds_of_prompt]
            kinds[prompts.index(row["prompt"])] += 1
        self.assertLen(kinds, 5)
        self.assertGreater(min(kinds.values()), 0.1 * len(splits["train"]))
        self.assertEqual(splits["train"].to_list(), self.load(tk_instruct=True)["train"].to_list())
        for split in ("validation", "test"):
            self.assertEqual(splits[split].to_list(), self.load()[split].to_list())

    @parameterized.product(sentence_tokens=[False, True], max_source_length=[200, 64])
    def test_the_instance_survives_whatever_the_length(self, sentence_tokens, max_source_length):
        task, tokenizer = get_task("natural_instructions"), tiny_tokenizer(sentence_tokens)
        preprocessor = TaskPreprocessor(tokenizer, task, sentence_tokens, max_source_length)
        rows = self.load(length=preprocessor.length, max_source_length=max_source_length, num_neg_examples=2)["test"]
        prepared = preprocessor(rows[:3])
        for row, input_ids in zip(rows.select(range(3)), prepared["input_ids"], strict=True):
            self.assertLessEqual(len(input_ids), max_source_length)
            words = tokenizer.decode(input_ids, skip_special_tokens=True).split()
            end = row["instance"].split()
            self.assertEqual(words[-len(end) :], end)
        # Whole examples were left out, instead of being cut in the middle.
        if max_source_length >= 130:
            self.assertEqual(prepared["num_cut_tokens"], [0, 0, 0])


class ErrorTest(NaturalInstructionsTestCase):
    @parameterized.parameters(
        ({"Definition": None}, "task4_d.json is no task .* KeyError.'Definition'"),
        ({"Instances": [{"id": "x", "input": "a"}]}, "task4_d.json is no task .* KeyError.'output'"),
        ({"Positive Examples": [{"input": "a"}]}, "task4_d.json is no task .* KeyError.'output'"),
    )
    def test_a_wrong_task_is_named_with_file_and_field(self, fields, message):
        self.write_task("task4_d", **fields)
        with self.assertRaisesRegex(UserError, message):
            self.load()

    def test_a_task_is_not_trained_and_tested(self):
        self.write_list("test", ["task1_a"])
        with self.assertRaisesRegex(UserError, "both lists name 'task1_a'"):
            self.load()

    @parameterized.parameters(
        ({}, "needs `dataset_dir`, .*git clone https://github.com/allenai/natural-instructions"),
        ({"train_file": "x.json", "dataset_dir": "x"}, "is read from the folder `dataset_dir`, not from `train_file`"),
        ({"dataset_dir": "nowhere"}, "there is no file nowhere/splits/default/train_tasks.txt"),
    )
    def test_other_sources_are_refused_with_the_remedy(self, arguments, message):
        with self.assertRaisesRegex(UserError, message):
            load(get_task("natural_instructions"), TaskFiles(**arguments), NaturalInstructionsOptions())
