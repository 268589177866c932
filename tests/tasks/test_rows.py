"""Examples get the columns of their task, and each is checked."""

import re
from unittest import mock

from absl.testing import parameterized
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from helpers import tiny_tokenizer
from hf_depth.evaluation.scoring import compute_task_metrics
from hf_depth.tasks.dataset import TaskDataset
from hf_depth.tasks.loading import load_task
from hf_depth.tasks.preprocessing import TaskPreprocessor, prepare_task
from hf_depth.tasks.registry import as_task, get_task
from hf_depth.tasks.rows import check_rows
from hf_depth.tasks.rows import logger as rows_logger
from hf_depth.tasks.spec import TaskSpec
from tiny_tasks import (
    ENTRY,
    RTE,
    RTE_EXAMPLES,
    UNLABELED_EXAMPLES,
    WRITERS,
    TaskFilesTestCase,
    as_csv,
    as_jsonl,
    as_tsv,
)

FREE_FORM = as_task(
    {"text_column_name": "question", "prefix": "", "label_column_name": "answers"}, "mine", "free_form"
)


class ExamplesTest(TaskFilesTestCase):
    def test_labels_may_be_numbers_or_texts_and_become_numbers(self):
        rows = [row | {"label": label} for row, label in zip(RTE_EXAMPLES, ("entailment", "1", 0.0), strict=True)]
        path = self.write("a.tsv", as_tsv(rows))
        self.assertEqual([row["label"] for row in self.load("rte", train_file=path)["train"]], [0, 1, 0])

    @parameterized.parameters(
        (("1", "2", "3"), "jsonl", True), (("1", "0"), "csv", False), (("2", "0", "1"), "csv", True)
    )
    def test_labels_that_are_numbers_stay_those_of_the_data_up_to_the_score(self, texts, extension, numbers):
        task = as_task({"text_column_name": "review", "prefix": "stars:", "labels": texts}, "mine", "stars")
        rows = [{"review": f"Film {text}.", "label": int(text) if numbers else text} for text in texts]
        path = self.write(f"a.{extension}", WRITERS[extension](rows))
        loaded = load_task(task, train_file=path, cache_dir=str(self.folder / "cache"))["train"]
        self.assertEqual(loaded["label"][:], list(range(len(texts))))
        tokenizer = tiny_tokenizer()
        prepared = prepare_task(loaded, TaskPreprocessor(tokenizer, task))
        texts_read = tokenizer.batch_decode(prepared["labels"][:], skip_special_tokens=True)
        self.assertEqual([task.parse(answer) for answer in texts_read], list(range(len(texts))))
        self.assertEqual(compute_task_metrics(task, loaded, list(texts))["accuracy"], 1.0)
        self.assertEqual(compute_task_metrics(task, loaded, list(texts[1:] + texts[:1]))["accuracy"], 0.0)

    def test_each_example_has_its_number_or_else_its_place(self):
        numbered = self.load("rte", train_file=self.write("a.jsonl", as_jsonl(RTE_EXAMPLES)))["train"]
        self.assertEqual([row["idx"] for row in numbered], [7, 3, 5])
        for other in ({}, {"idx": 1}, {"idx": "a-1"}):  # no number, or none that tells the rows apart
            rows = [{key: row[key] for key in row if key != "idx"} | other for row in RTE_EXAMPLES]
            path = self.write(f"{len(other)}{other.get('idx')}.jsonl", as_jsonl(rows))
            self.assertEqual([row["idx"] for row in self.load("rte", train_file=path)["train"]], [0, 1, 2])

    def test_a_column_of_the_right_name_comes_before_another_name_for_it(self):
        path = self.write(
            "a.jsonl", as_jsonl([row | {"gold_label": "contradiction", "index": 0} for row in RTE_EXAMPLES])
        )
        self.assertEqual(self.load("rte", train_file=path)["train"], RTE_EXAMPLES)

    def test_labels_of_the_test_may_be_unpublished_or_missing_and_no_others(self):
        unlabelled = [{key: row[key] for key in row if key != "label"} for row in RTE_EXAMPLES]
        for rows in (UNLABELED_EXAMPLES, unlabelled):
            path = self.write("a.jsonl", as_jsonl(rows))
            self.assertEqual(self.load("rte", test_file=path), {"test": UNLABELED_EXAMPLES})
        self.assert_refused("a.jsonl: the task 'rte' needs a column 'label'", "rte", validation_file=path)
        path = self.write("b.jsonl", as_jsonl(UNLABELED_EXAMPLES))
        for argument in ("train_file", "validation_file"):
            self.assert_refused("b.jsonl, row 0 .*'label' holds -1, which is no label", "rte", **{argument: path})

    def test_a_free_form_task_keeps_all_its_references(self):
        rows = [{"question": "One?", "answers": ["a", "b"]}, {"question": "Two?", "answers": ["c"]}]
        loaded = self.load(FREE_FORM, train_file=self.write("a.jsonl", as_jsonl(rows)))["train"]
        self.assertEqual([row["answers"] for row in loaded], [["a", "b"], ["c"]])
        rows = [{"question": "One?", "answers": "a"}]
        loaded = self.load(FREE_FORM, train_file=self.write("b.csv", as_csv(rows)))["train"]
        self.assertEqual(loaded[0]["answers"], ["a"])

    @parameterized.parameters((None,), (-1,), ([],))
    def test_a_free_form_test_may_be_unlabeled_and_then_has_no_reference(self, label):
        path = self.write("a.jsonl", as_jsonl([{"question": "One?", "answers": label}]))
        self.assertEqual(self.load(FREE_FORM, test_file=path)["test"][0]["answers"], [])
        self.assert_refused("a.jsonl, row 0 .*'answers' holds .*which is no label", FREE_FORM, train_file=path)


class BadExamplesTest(TaskFilesTestCase):
    def assert_rows_refused(self, message: str, rows: list[dict], extension: str = "jsonl", task="rte"):
        path = self.write(f"bad.{extension}", WRITERS[extension](rows))
        self.assert_refused(f"bad.{extension}.*{message}", task, train_file=path)

    @parameterized.parameters(
        ({"label": 2}, "'label' holds 2, which is none of its labels: 0"),
        ({"label": "Not_Entailment"}, "holds 'Not_Entailment', .* Did you mean 'not_entailment'"),
        ({"sentence2": " \n"}, "the column 'sentence2' is empty"),
        ({"sentence2": None}, "the column 'sentence2' is empty"),
        ({"sentence1": 5}, "'sentence1' must hold text, but holds 5"),
    )
    def test_a_wrong_value_is_named_with_file_and_row(self, values, message):
        self.assert_rows_refused(f"row 0 .*{message}", [RTE_EXAMPLES[0] | values])

    def test_a_missing_column_names_those_that_there_are(self):
        rows = [{"sentence_1": "A.", "sentence2": "B.", "label": 1}]
        self.assert_rows_refused("needs a column 'sentence1'. Did you mean 'sentence_1' or 'sentence2'", rows)

    @parameterized.parameters((5,), ({"text": ["a"]},), ([None],), (["a", " "],))
    def test_a_reference_that_is_no_text_names_file_row_and_column(self, answers):
        rows = [{"question": "One?", "answers": answers}]
        self.assert_rows_refused("row 0 .*: the column 'answers' must hold a text or a list", rows, task=FREE_FORM)


def class_label_rows(names: list[str], labels: list[int], task: str | TaskSpec = "rte") -> Dataset:
    task = get_task(task) if isinstance(task, str) else task
    texts = {column: ["A."] * len(labels) for column in task.text_column_name}
    features = Features({**dict.fromkeys(texts, Value("string")), "label": ClassLabel(names=names)})
    return Dataset.from_dict({**texts, "label": labels}, features=features)


class ClassLabelTest(TaskFilesTestCase):
    """A `ClassLabel` has numbers of its own."""

    def checked(self, names, labels, task="rte", **arguments) -> list:
        spec = get_task(task) if isinstance(task, str) else task
        return check_rows(class_label_rows(names, labels, spec), spec, "here", **arguments)["label"][:]

    @parameterized.parameters(
        (["not_entailment", "entailment"], [1, 0, 1]),
        (["1", "0"], [1, 0, 1]),
        (["0", "1"], [0, 1, 0]),
    )
    def test_names_that_are_labels_of_the_task_or_their_numbers_tell_the_class(self, names, expected):
        with self.assertNoLogs(rows_logger, "WARNING"):
            self.assertEqual(self.checked(names, [0, 1, 0]), expected)

    def test_names_may_be_some_of_the_labels_and_stand_for_unlabeled_examples(self):
        names = ["-1", "contradiction", "neutral"]
        self.assertEqual(self.checked(names, [2, 1, 0], "mnli", needs_labels=False), [1, 2, -1])

    def test_files_and_data_sets_of_the_hub_are_read_by_the_names_too(self):
        rows = class_label_rows(["not_entailment", "entailment"], [1, 0])
        path = str(self.folder / "a.parquet")
        rows.to_parquet(path)
        self.assertEqual([row["label"] for row in self.load("rte", train_file=path)["train"]], [0, 1])
        hub = DatasetDict(train=rows, validation=rows)
        with mock.patch("hf_depth.tasks.sources.load_dataset", return_value=hub):
            self.assertEqual([row["label"] for row in self.load("rte")["validation"]], [0, 1])

    @parameterized.parameters((["LABEL_0", "LABEL_1"],), (["1", "2"],))
    def test_other_names_keep_their_numbers_with_a_warning_that_names_both(self, names):
        with self.assertLogs(rows_logger, "WARNING") as logs:
            self.assertEqual(self.checked(names, [0, 1]), [0, 1])
        self.assertRegex(
            logs.output[0],
            f"names {names[0]!r}, {names[1]!r}, .* no labels of the task 'rte'. These are: 'entailment', 'not_entail",
        )

    def test_where_the_labels_are_numbers_the_names_tell_them(self):
        stars = as_task(ENTRY | {"labels": ["1", "2", "3"]}, "mine", "stars")
        self.assertEqual(self.checked(["3", "1", "2"], [0, 1, 2], stars), [2, 0, 1])
        with self.assertRaisesRegex(ValueError, "Task 'stars': the column 'label' holds '0', which is none"):
            self.checked(["0", "1", "2"], [0, 1, 2], stars)
        self.assertEqual(self.checked(["3.8", "0.25"], [0, 1], "stsb"), [3.8, 0.25])

    def test_examples_that_nothing_has_read_are_refused_where_their_numbers_mean_other_classes(self):
        swapped, same = (class_label_rows(names, [0, 1]) for names in (list(RTE.labels.values())[::-1], ["a", "b"]))
        preprocessor = TaskPreprocessor(tiny_tokenizer(), RTE)
        ids = prepare_task(same, preprocessor)
        self.assertLen(TaskDataset(RTE, "validation", same, ids), 2)
        message = (
            "'label' is a ClassLabel in which 0 is 'not_entailment', but in the task 'rte' it is 'entailment'.*from_d"
        )
        with self.assertRaisesRegex(ValueError, message):
            prepare_task(swapped, preprocessor)
        with self.assertRaisesRegex(ValueError, message):
            TaskDataset(RTE, "validation", swapped, ids)

    # Those of nyu-mll/glue.


class ReadLabelTest(parameterized.TestCase):
    @parameterized.parameters("Favor", float("nan"), 0.5)
    def test_a_class_called_none_takes_no_other_label(self, label):
        task = as_task(ENTRY | {"labels": ["None", "For", "Against"]}, "mine", "stance")
        self.assertEqual([task.read_label(text) for text in ("None", "For", "Against", "1", 2.0)], [0, 1, 2, 1, 2])
        with self.assertRaisesRegex(ValueError, f"holds {re.escape(repr(label))}, .*0 \\(None\\)"):
            task.read_label(label)

    @parameterized.parameters((["False", "True"],), (["true", "false"],))
    def test_a_truth_value_is_a_class_of_its_name(self, texts):
        task = as_task(ENTRY | {"labels": texts}, "mine", "truth")
        self.assertEqual([texts[task.read_label(value)].lower() for value in (True, False)], ["true", "false"])
        self.assertEqual([texts[task.read_label(text)].lower() for text in ("TRUE", "False")], ["true", "false"])

    def test_where_the_texts_are_numbers_a_number_in_the_data_is_a_text(self):
        task = as_task(ENTRY | {"labels": ["1", "2", "3"]}, "mine", "stars")
        self.assertEqual([task.read_label(label) for label in (1, "2", 3.0)], [0, 1, 2])
        with self.assertRaisesRegex(ValueError, "holds 0"):
            task.read_label(0)
