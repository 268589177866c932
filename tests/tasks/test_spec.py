"""A task: from an example to its prompt, its targets and its label id, and from a predicted text to a label id."""

import numpy as np
from absl.testing import parameterized

from hf_depth.tasks.registry import as_task, get_task
from hf_depth.tasks.spec import UNLABELED, UNPARSED
from tiny_tasks import ENTRY


class NumbersTest(parameterized.TestCase):
    def test_similarity_has_the_26_fifths_from_0_to_5(self):
        texts = list(get_task("stsb").labels.values())
        self.assertEqual(texts, [f"{tenths // 10}.{tenths % 10}" for tenths in range(0, 51, 2)])

    @parameterized.parameters((0, "0.0"), (0.3, "0.4"), (2.5, "2.4"))
    def test_halfway_between_two_steps_the_even_multiple_wins_as_in_t5(self, value, text):
        task = get_task("stsb")
        for label in (value, float(np.float32(value)), str(value)):  # of a json file, of the Hub, of a csv file
            self.assertEqual(task.targets({"label": label}), [text])

    @parameterized.parameters(5.1, "high", float("nan"), True)
    def test_a_number_outside_the_scale_is_an_error(self, value):
        with self.assertRaisesRegex(
            ValueError, r"'stsb'.*column 'label' holds .*none of its labels: numbers from 0.0"
        ):
            get_task("stsb").label_id({"label": value})


class ExamplesTest(parameterized.TestCase):
    @parameterized.parameters(({}, "None. The columns are: 'other'"), ({"review": 5}, "holds 5"))
    def test_a_missing_text_is_an_error_that_names_the_column(self, row, message):
        with self.assertRaisesRegex(ValueError, f"'tone': the column 'review' must hold text, but.*{message}"):
            as_task(ENTRY, "mine", "tone").prompt({"other": "x", **row})

    def test_a_prefix_is_set_off_by_one_space_and_an_empty_one_by_none(self):
        for prefix in ("tone review:", "tone review: ", " tone review:"):
            self.assertEqual(
                as_task(ENTRY | {"prefix": prefix}, "mine", "tone").prompt({"review": " A."}), "tone review: A."
            )
        self.assertEqual(as_task(ENTRY | {"prefix": ""}, "mine", "tone").prompt({"review": "A: "}), "A: ")

    def test_a_free_form_task_has_all_its_references_as_targets(self):
        task = get_task("natural_instructions")
        self.assertEqual(task.targets({"references": ["a", "b"]}), ["a", "b"])
        self.assertEqual(task.targets({"references": "a"}), ["a"])
        for unlabeled in (None, "", []):
            self.assertEqual(task.targets({"references": unlabeled}), [])
        self.assertEqual(task.prompt({"prompt": "Definition: x\nOutput: "}), "Definition: x\nOutput: ")

    @parameterized.parameters(-1, None, "", "-1", -1.0)
    def test_an_unlabeled_example_has_no_target(self, label):
        task = get_task("rte")
        self.assertEqual(task.label_id({"label": label}), UNLABELED)
        self.assertEqual(task.targets({"label": label}), [])
        self.assertEqual(task.targets({}), [])


class MetricsTest(parameterized.TestCase):
    def test_usual_metrics_follow_from_the_kind_of_label(self):
        kinds = [["a", "b"], None, ["1.0", "1.5"]]
        steps = [None, None, 0.5]
        tasks = [as_task(ENTRY | {"labels": k, "label_step": s}, "m", "t") for k, s in zip(kinds, steps, strict=True)]
        self.assertEqual(
            [task.metric_names for task in tasks], [("accuracy",), ("rougeL", "exact_match"), ("pearson", "spearman")]
        )
        self.assertEqual([task.metric_to_optimize for task in tasks], ["accuracy", "rougeL", "pearson"])


class PredictionsTest(parameterized.TestCase):
    @parameterized.parameters(
        *((" 4.80 ", "4.8"), ("3.5", "3.6"), ("-0.0", "0.0"), ("4e0", "4.0")),
    )
    def test_a_number_on_the_scale_is_the_nearest_label(self, text, label):
        task = get_task("stsb")
        self.assertEqual(task.labels[task.parse(text)], label)

    @parameterized.parameters("5.2", "-1", "nan", "3,5", "")
    def test_what_is_no_number_on_the_scale_is_none_of_the_labels(self, text):
        self.assertEqual(get_task("stsb").parse(text), UNPARSED)

    def test_classes_whose_texts_are_numbers_are_texts(self):
        task = as_task(ENTRY | {"labels": ["1", "2", "3"]}, "mine", "stars")
        self.assertEqual(task.parse_all(["2", "2.0"]).tolist(), [1, UNPARSED])
