"""A task: from an example to its prompt, its targets and its label id, and from a predicted text to a label id."""

import numpy as np
from absl.testing import parameterized
from datasets import Dataset

from hf_depth.tasks.registry import as_task, get_task
from hf_depth.tasks.spec import UNLABELED, UNPARSED
from tiny_tasks import ENTRY


class NumbersTest(parameterized.TestCase):
    def test_similarity_has_the_26_fifths_from_0_to_5(self):
        texts = list(get_task("stsb").labels.values())
        self.assertEqual(texts, [f"{tenths // 10}.{tenths % 10}" for tenths in range(0, 51, 2)])

    @parameterized.parameters((0, "0.0"), (0.1, "0.0"), (0.3, "0.4"), (0.7, "0.8"), (2.5, "2.4"), (4.9, "4.8"))
    def test_halfway_between_two_steps_the_even_multiple_wins_as_in_t5(self, value, text):
        task = get_task("stsb")
        for label in (value, float(np.float32(value)), str(value)):  # of a json file, of the Hub, of a csv file
            self.assertEqual(task.targets({"label": label}), [text])

    def test_every_number_goes_to_the_nearest_step(self):
        task = get_task("stsb")
        for value in np.random.default_rng(0).uniform(0, 5, 500):
            nearest = min(task.labels, key=lambda label_id: abs(float(task.labels[label_id]) - value))
            self.assertEqual(task.label_id({"label": value}), nearest)

    def test_the_number_itself_is_kept_for_the_metrics(self):
        task = get_task("stsb")
        self.assertEqual(task.label_value({"label": "3.333"}), 3.333)
        self.assertEqual(task.label_value({"label": -1.0}), -1.0)
        self.assertEqual(task.label_id({"label": -1.0}), UNLABELED)

    @parameterized.parameters(5.1, -0.5, "high", float("nan"), True)
    def test_a_number_outside_the_scale_is_an_error(self, value):
        with self.assertRaisesRegex(
            ValueError, r"'stsb'.*column 'label' holds .*none of its labels: numbers from 0.0"
        ):
            get_task("stsb").label_id({"label": value})


class ExamplesTest(parameterized.TestCase):
    def test_texts_outside_the_labels_are_of_class_minus_one(self):
        task = get_task("rte")
        for text in ("", "Entailment", "entailment.", "1", "not"):
            self.assertEqual(task.parse(text), UNPARSED)

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

    @parameterized.parameters(2, "yes", 0.5, -2, "2")
    def test_a_label_outside_the_set_is_an_error_that_names_task_column_and_value(self, label):
        with self.assertRaisesRegex(ValueError, f"'rte'.*'label' holds {label!r}, .*0 \\(entailment\\), 1"):
            get_task("rte").label_id({"label": label})

    def test_the_label_of_an_example_is_a_class_where_the_texts_are_numbers(self):
        task = as_task(ENTRY | {"labels": ["1", "2", "3"]}, "mine", "stars")
        self.assertEqual([task.targets({"label": label}) for label in range(3)], [["1"], ["2"], ["3"]])
        with self.assertRaisesRegex(ValueError, "holds 3"):
            task.targets({"label": 3})

    def test_the_label_ids_of_a_data_set_are_those_of_its_examples(self):
        task, labels = get_task("rte"), ["not_entailment", "entailment", "-1"]
        examples = Dataset.from_dict({"label": labels, "other": [0, 1, 2]})
        self.assertEqual(task.label_ids(examples), [task.label_id({"label": label}) for label in labels])

    def test_a_task_is_found_by_its_full_name(self):
        self.assertEqual(get_task(get_task("rte").full_name), get_task("rte"))


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
    def test_texts_are_parsed_to_the_classes_that_they_name(self):
        texts = ["entailment", " not_entailment ", "Entailment", "entail", ""]
        parsed = get_task("rte").parse_all(texts)
        self.assertEqual((parsed.tolist(), parsed.dtype), ([0, 1, UNPARSED, UNPARSED, UNPARSED], np.int64))

    @parameterized.parameters(
        ("5", "5.0"),
        (" 4.80 ", "4.8"),
        ("3.5", "3.6"),
        ("3.3", "3.2"),
        ("0.04", "0.0"),
        ("-0.0", "0.0"),
        ("4e0", "4.0"),
    )
    def test_a_number_on_the_scale_is_the_nearest_label(self, text, label):
        task = get_task("stsb")
        self.assertEqual(task.labels[task.parse(text)], label)

    @parameterized.parameters("5.2", "-0.2", "-1", "100", "nan", "inf", "3,5", "3.4 stars", "")
    def test_what_is_no_number_on_the_scale_is_none_of_the_labels(self, text):
        self.assertEqual(get_task("stsb").parse(text), UNPARSED)

    def test_classes_whose_texts_are_numbers_are_texts(self):
        task = as_task(ENTRY | {"labels": ["1", "2", "3"]}, "mine", "stars")
        self.assertEqual(task.parse_all(["2", "2.0"]).tolist(), [1, UNPARSED])

    def test_classes_stand_for_numbers_if_the_task_predicts_numbers(self):
        np.testing.assert_array_equal(get_task("stsb").label_values([0, 3, -1]), [0.0, 0.6, -1.0])
        np.testing.assert_array_equal(get_task("rte").label_values([1, 0, -1]), [1.0, 0.0, -1.0])
