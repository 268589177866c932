"""Examples get the columns of their task, and each is checked."""

from absl.testing import parameterized

from helpers import tiny_tokenizer
from hf_depth.evaluation.scoring import compute_task_metrics
from hf_depth.tasks.loading import load_task
from hf_depth.tasks.preprocessing import TaskPreprocessor, prepare_task
from hf_depth.tasks.registry import as_task, get_task
from hf_depth.tasks.rows import read_class
from hf_depth.tasks.spec import UNLABELED
from tiny_tasks import (
    ENTRY,
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

    @parameterized.product(
        texts=[("1", "2", "3"), ("1", "0"), ("2", "0", "1")], extension=["jsonl", "csv"], numbers=[False, True]
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

    def test_a_number_to_predict_stays_as_it_is(self):
        rows = [{"sentence1": "A.", "sentence2": "B.", "score": score} for score in (3.8, 0.25)]
        (loaded,) = self.load("stsb", validation_file=self.write("a.csv", as_csv(rows))).values()
        self.assertEqual([row["label"] for row in loaded], [3.8, 0.25])

    def test_each_example_has_its_number_or_else_its_place(self):
        numbered = self.load("rte", train_file=self.write("a.jsonl", as_jsonl(RTE_EXAMPLES)))["train"]
        self.assertEqual([row["idx"] for row in numbered], [7, 3, 5])
        for other in ({}, {"idx": 1}, {"idx": "a-1"}):  # no number, or none that tells the rows apart
            rows = [{key: row[key] for key in row if key != "idx"} | other for row in RTE_EXAMPLES]
            path = self.write(f"{len(other)}{other.get('idx')}.jsonl", as_jsonl(rows))
            self.assertEqual([row["idx"] for row in self.load("rte", train_file=path)["train"]], [0, 1, 2])

    def test_only_the_columns_of_the_task_are_left(self):
        path = self.write("a.jsonl", as_jsonl([row | {"genre": "news"} for row in RTE_EXAMPLES]))
        self.assertEqual(self.load("rte", train_file=path)["train"], RTE_EXAMPLES)

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
            self.assert_refused("b.jsonl, row 0 .*'label' holds -1, hence no label", "rte", **{argument: path})

    def test_a_free_form_task_keeps_all_its_references(self):
        rows = [{"question": "One?", "answers": ["a", "b"]}, {"question": "Two?", "answers": ["c"]}]
        loaded = self.load(FREE_FORM, train_file=self.write("a.jsonl", as_jsonl(rows)))["train"]
        self.assertEqual([row["answers"] for row in loaded], [["a", "b"], ["c"]])
        rows = [{"question": "One?", "answers": "a"}]
        loaded = self.load(FREE_FORM, train_file=self.write("b.csv", as_csv(rows)))["train"]
        self.assertEqual(loaded[0]["answers"], ["a"])

    @parameterized.parameters((None,), ("",), (" ",), (-1,), ([],))
    def test_a_free_form_test_may_be_unlabeled_and_then_has_no_reference(self, label):
        path = self.write("a.jsonl", as_jsonl([{"question": "One?", "answers": label}]))
        self.assertEqual(self.load(FREE_FORM, test_file=path)["test"][0]["answers"], [])
        self.assert_refused("a.jsonl, row 0 .*'answers' holds .*hence no label", FREE_FORM, train_file=path)


class BadExamplesTest(TaskFilesTestCase):
    def assert_rows_refused(self, message: str, rows: list[dict], extension: str = "jsonl", task="rte"):
        path = self.write(f"bad.{extension}", WRITERS[extension](rows))
        self.assert_refused(f"bad.{extension}.*{message}", task, train_file=path)

    @parameterized.parameters("jsonl", "csv", "tsv")
    def test_a_label_outside_the_set_names_file_row_and_value(self, extension):
        rows = [*RTE_EXAMPLES, RTE_EXAMPLES[0] | {"label": 2, "idx": 9}]
        self.assert_rows_refused("row 3 .*'label' holds .?2.?, which is none of its labels: 0", rows, extension)

    def test_a_missing_column_names_those_that_there_are(self):
        rows = [{"sentence_1": "A.", "sentence2": "B.", "label": 1}]
        self.assert_rows_refused("needs a column 'sentence1'. Did you mean 'sentence_1' or 'sentence2'", rows)

    @parameterized.parameters("", "  \n", None)
    def test_an_empty_text_names_file_row_and_column(self, text):
        rows = [RTE_EXAMPLES[0], RTE_EXAMPLES[1] | {"sentence2": text}]
        self.assert_rows_refused("row 1 .*: the column 'sentence2' is empty", rows)

    def test_text_that_is_no_text_names_file_row_and_column(self):
        self.assert_rows_refused(
            "row 0 .*'sentence1' must hold text, but holds 5", [RTE_EXAMPLES[0] | {"sentence1": 5}]
        )

    @parameterized.parameters((5,), (2.5,), ({"text": ["a"]},), ([None],), ([["x"]],), (["a", " "],), (True,))
    def test_a_reference_that_is_no_text_names_file_row_and_column(self, answers):
        rows = [{"question": "One?", "answers": answers}]
        self.assert_rows_refused("row 0 .*: the column 'answers' must hold a text or a list", rows, task=FREE_FORM)


class ReadClassTest(parameterized.TestCase):
    @parameterized.parameters(-1, None, "", "-1", -1.0)
    def test_what_stands_for_no_label_is_unlabeled(self, label):
        self.assertEqual(read_class(get_task("rte"), label), UNLABELED)

    @parameterized.parameters(2, "yes", 0.5, -2, "2")
    def test_a_label_outside_the_set_is_an_error_that_names_task_column_and_value(self, label):
        with self.assertRaisesRegex(ValueError, f"'rte'.*'label' holds {label!r}, .*0 \\(entailment\\), 1"):
            read_class(get_task("rte"), label)

    def test_where_the_texts_are_numbers_a_number_in_the_data_is_a_text(self):
        task = as_task(ENTRY | {"labels": ["1", "2", "3"]}, "mine", "stars")
        self.assertEqual([read_class(task, label) for label in (1, "2", 3.0)], [0, 1, 2])
        with self.assertRaisesRegex(ValueError, "holds 0"):
            read_class(task, 0)
