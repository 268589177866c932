"""Prompts of Natural Instructions are those of Tk-Instruct; splits are the official ones, with a validation split."""

import json
from collections import Counter
from dataclasses import replace

from absl.testing import parameterized

from helpers import tiny_tokenizer
from hf_depth.tasks.loaders.natural_instructions import (
    TK_INSTRUCT_PROMPTS,
    NaturalInstructionsOptions,
    instance_text,
    prompt,
)
from hf_depth.tasks.preprocessing import TaskPreprocessor
from hf_depth.tasks.registry import get_task
from tiny_tasks import TaskFilesTestCase

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


class NaturalInstructionsTestCase(TaskFilesTestCase):
    """Works on a small copy of the repository: three training tasks, two test tasks."""

    def setUp(self):
        super().setUp()
        self.names = {"train": ["task1_a", "task2_b", "task3_c"], "test": ["task4_d", "task5_e"]}
        for split, names in self.names.items():
            self.write_list(split, names)
            for name in names:
                self.write_task(name)

    def write_list(self, split: str, names: list[str]):
        self.write(f"splits/default/{split}_tasks.txt", "".join(f"{name}\n" for name in names))

    def write_task(self, name: str, **fields):
        instances = [
            {"id": f"{name}-{i}", "input": f"Country {i} of {name}", "output": [f"capital {i}", f"city {i}"]}
            for i in range(50)
        ]
        task = {**CAPITALS, "Categories": [f"category of {name}"], "Instances": instances, **fields}
        task = {field: value for field, value in task.items() if field != "Name" and value is not None}
        self.write(f"tasks/{name}.json", json.dumps(task))

    def make(self, seed: int = 42, length=None, max_source_length=1024, **options) -> dict[str, list[dict]]:
        task = replace(get_task("natural_instructions"), max_source_length=max_source_length)
        return self.load_folder(task, options=options, split_seed=seed, length=length)


class SplitsTest(NaturalInstructionsTestCase):
    def test_rows_hold_what_training_and_evaluation_need(self):
        splits = self.make()
        self.assertEqual(list(splits), ["train", "validation", "test"])
        row = splits["test"][3]
        expected = {
            "prompt": prompt(CAPITALS, "Country 3 of task4_d", NaturalInstructionsOptions()),
            "instance": instance_text("Country 3 of task4_d"),
            "references": ["capital 3", "city 3"],
            "task": "task4_d",
            "category": "category of task4_d",
            "id": "task4_d-3",
        }
        self.assertEqual(row, expected)
        task = get_task("natural_instructions")
        self.assertEqual((task.prompt(row), task.targets(row)), (row["prompt"], row["references"]))

    def test_each_split_has_its_instances(self):
        splits = self.make(max_num_instances_per_task=None, max_num_instances_per_eval_task=7)
        for split, number in (("train", 40), ("validation", 10)):
            found = Counter(row["task"] for row in splits[split])
            self.assertEqual(found, Counter({name: number for name in self.names["train"]}))
        train, validation, test = ([row["id"] for row in splits[split]] for split in ("train", "validation", "test"))
        self.assertNoCommonElements(train, validation)
        self.assertEqual(test, [f"{name}-{i}" for name in self.names["test"] for i in range(7)])

    def test_an_input_of_validation_is_not_trained_on_under_another_id(self):
        inputs = [{"id": f"x-{i}", "input": f"Country {i % 25} ", "output": "same"} for i in range(50)]
        self.write_task("task1_a", Instances=inputs)
        splits = self.make(max_num_instances_per_task=None)
        self.assertNoCommonElements(*([row["instance"] for row in splits[name]] for name in ("train", "validation")))
        self.assertIn(["same"], [row["references"] for row in splits["validation"]])

    def test_the_seed_chooses_instances_and_the_same_seed_the_same(self):
        splits = [self.make(seed, max_num_instances_per_task=10) for seed in (1, 1, 2)]
        self.assertEqual(splits[0], splits[1])
        for split in ("train", "validation"):
            self.assertNotEqual(splits[0][split], splits[2][split])
        self.assertEqual(splits[0]["test"], splits[2]["test"])
        self.assertEqual(set(Counter(row["task"] for row in splits[0]["train"]).values()), {10})

    def test_the_choice_of_a_task_does_not_depend_on_the_others(self):
        before = self.make(max_num_instances_per_task=10)["train"]
        self.write_list("train", ["task2_b"])
        after = self.make(max_num_instances_per_task=10)["train"]
        self.assertEqual(after, [row for row in before if row["task"] == "task2_b"])


class OptionsTest(NaturalInstructionsTestCase):
    def test_tk_instruct_mixes_five_kinds_of_prompt_in_training_only(self):
        splits, plain = self.make(tk_instruct=True), self.make()
        kinds = Counter()
        for row in splits["train"]:
            text = row["instance"].removeprefix("Now complete the following example -\nInput: ").split(".\nOutput")[0]
            every = [NaturalInstructionsOptions(**choices) for choices in TK_INSTRUCT_PROMPTS]
            kinds[[prompt(CAPITALS, text, options) for options in every].index(row["prompt"])] += 1
        self.assertLen(kinds, 5)
        self.assertGreater(min(kinds.values()), 0.1 * len(splits["train"]))
        for split in ("validation", "test"):
            self.assertEqual(splits[split], plain[split])

    @parameterized.product(sentence_tokens=[False, True], max_source_length=[200, 64])
    def test_the_instance_survives_whatever_the_length(self, sentence_tokens, max_source_length):
        task, tokenizer = get_task("natural_instructions"), tiny_tokenizer(sentence_tokens)
        preprocessor = TaskPreprocessor(tokenizer, task, sentence_tokens, max_source_length)
        options = {"max_source_length": max_source_length, "num_neg_examples": 2}
        rows = self.make(length=preprocessor.length, **options)["test"][:3]
        prepared = preprocessor({name: [row[name] for row in rows] for name in rows[0]})
        for row, input_ids in zip(rows, prepared["input_ids"], strict=True):
            self.assertLessEqual(len(input_ids), max_source_length)
            words, end = tokenizer.decode(input_ids, skip_special_tokens=True).split(), row["instance"].split()
            self.assertEqual(words[-len(end) :], end)
        if max_source_length >= 130:  # whole examples were left out, instead of being cut in the middle
            self.assertEqual(prepared["num_cut_tokens"], [0, 0, 0])

    @parameterized.parameters(
        ({"Definition": None}, "Definition"),
        ({"Instances": [{"id": "x", "input": "a"}]}, "output"),
        ({"Positive Examples": [{"input": "a"}]}, "output"),
    )
    def test_a_wrong_task_is_named_with_file_and_field(self, fields, name):
        self.write_task("task4_d", **fields)
        with self.assertRaisesRegex(ValueError, f"task4_d.json is no task .* KeyError.'{name}'"):
            self.make()

    def test_a_task_is_not_trained_and_tested(self):
        self.write_list("test", ["task1_a"])
        with self.assertRaisesRegex(ValueError, "both lists name 'task1_a'"):
            self.make()

    @parameterized.parameters(
        ({}, "needs `dataset_dir`, .*git clone https://github.com/allenai/natural-instructions"),
        ({"train_file": "x.json", "dataset_dir": "x"}, "is read from the folder `dataset_dir`, not from `train_file`"),
        ({"dataset_dir": "nowhere"}, "there is no file nowhere/splits/default/train_tasks.txt"),
    )
    def test_other_sources_are_refused_with_the_remedy(self, arguments, message):
        self.assert_refused(message, "natural_instructions", **arguments)
