import json
from dataclasses import asdict

from absl.testing import parameterized
from datasets import Dataset

from hf_depth import get_task
from hf_depth.tasks.loaders.natural_instructions import NaturalInstructionsOptions, prompt
from hf_depth.tasks.new_examples import read_new_examples
from hf_depth.tasks.registry import as_task
from tiny_tasks import ENTRY, RTE, RTE_EXAMPLES, WRITERS, TaskFilesTestCase, write_natural_instructions

TONE = as_task(ENTRY | {"column_aliases": {"text": "review", "body": "review"}}, "tests", "tone")
TEXTS = {name: [row[name] for row in RTE_EXAMPLES] for name in RTE.text_column_name}
UNLABELED = [{name: row[name] for name in ("idx", *RTE.text_column_name)} for row in RTE_EXAMPLES]


class ColumnsTest(TaskFilesTestCase):
    def test_examples_are_read_of_any_kind(self):
        dataset = Dataset.from_list(UNLABELED)
        for examples in (
            UNLABELED,
            iter(UNLABELED),
            dataset,
            dataset.to_iterable_dataset(),
            dataset.with_format("torch"),
            dataset.to_pandas(),
        ):
            self.assertEqual(read_new_examples(examples, RTE), TEXTS)

    def test_a_transform_is_applied(self):
        dataset = Dataset.from_dict({"line": ["it rains", "it snows"]})
        transformed = dataset.with_transform(lambda batch: {"review": [f"{line}." for line in batch["line"]]})
        self.assertEqual(read_new_examples(transformed, TONE), {"review": ["it rains.", "it snows."]})

    @parameterized.product(ending=tuple(WRITERS), is_packed=(False, True))
    def test_files_of_unlabeled_examples_are_read(self, ending, is_packed):
        path = self.write(f"new.{ending}" + ".gz" * is_packed, WRITERS[ending](UNLABELED))
        self.assertEqual(read_new_examples(path, RTE, cache_dir=str(self.folder / "cache")), TEXTS)

    def test_labels_and_other_columns_are_left_out(self):
        rows = [row | {"label": "no label of the task", "source": 3} for row in UNLABELED]
        for examples in (rows, Dataset.from_list(rows), self.write("new.jsonl", WRITERS["jsonl"](rows))):
            found = read_new_examples(examples, RTE, cache_dir=str(self.folder / "cache"))
            self.assertEqual(found, TEXTS)

    @parameterized.parameters(list, Dataset.from_list)
    def test_columns_may_have_the_names_of_aliases(self, kind):
        self.assertEqual(read_new_examples(kind([{"body": "Good."}]), TONE), {"review": ["Good."]})
        both = kind([{"text": "Bad.", "review": "Good."}])
        self.assertEqual(read_new_examples(both, TONE), {"review": ["Good."]})

    def test_the_end_of_a_text_is_kept_where_the_task_says_so_only(self):
        rows = [{"prompt": "Repeat. Call me.", "review": "Call me.", "instance": "Call me."}]
        for examples in (rows, Dataset.from_list(rows)):
            self.assertEqual(read_new_examples(examples, TONE), {"review": ["Call me."]})
            found = read_new_examples(examples, get_task("natural_instructions"))
            self.assertEqual(found, {"prompt": ["Repeat. Call me."], "instance": ["Call me."]})

    @parameterized.parameters(list, Dataset.from_list)
    def test_a_list_of_texts_is_joined(self, kind):
        self.assertEqual(read_new_examples(kind([{"review": ["Good.", "Fine."]}]), TONE), {"review": ["Good. Fine."]})

    @parameterized.parameters(list, tuple, iter)
    def test_texts_are_examples_of_a_task_with_one_column(self, kind):
        self.assertEqual(read_new_examples(kind(["Good.", "Bad."]), TONE), {"review": ["Good.", "Bad."]})
        self.assertEqual(
            read_new_examples(kind(["Repeat."]), get_task("natural_instructions")), {"prompt": ["Repeat."]}
        )

    def test_nothing_gives_nothing(self):
        for examples in ([], iter(()), Dataset.from_dict({"review": []}), Dataset.from_dict({})):
            self.assertEqual(read_new_examples(examples, TONE), {"review": []})

    def test_empty_texts_are_reported(self):
        with self.assertLogs("hf_depth.tasks.new_examples", "WARNING") as logs:
            found = read_new_examples([{"review": "Good."}, {"review": ""}, {"review": " "}], TONE)
        self.assertEqual(found["review"], ["Good.", "", " "])
        self.assertIn("2 texts in the column 'review' are empty, the first in Example 1.", logs.output[0])

    @parameterized.parameters(
        ([{"review": "a"}, {"film": "b"}], "Example 1 has no column 'review'. The columns are: 'film'"),
        ([{"review": "a"}, {"review": None}], "Example 1: the column 'review' must hold text, but holds None"),
        ([{"review": 1984}], "Example 0: the column 'review' must hold text, but holds 1984"),
        ([{"review": ["a", 1]}], "the column 'review' must hold text"),
        ([1984], "Example 0 must be a text or a dictionary with the columns 'review', got 1984"),
        ({"review": "a"}, r"got dict. For one example, write `predictor\(\[example\]\)`"),
        ({"a", "b"}, "`examples` must be a list of examples, .*got set. A set has no order"),
        (None, "`examples` must be a list of examples, a Dataset, a DataFrame or a file, got NoneType"),
        (b"a", "got bytes"),
        (1984, "got int"),
    )
    def test_what_is_no_example_is_named(self, examples, message):
        with self.assertRaisesRegex(ValueError, message):
            read_new_examples(examples, TONE)

    def test_errors_list_all_columns(self):
        rows = [{"sentence1": "a", "second": "b"}]
        for examples in (rows, Dataset.from_list(rows)):
            with self.assertRaisesRegex(ValueError, "no column 'sentence2'. The columns are: 'sentence1', 'second'"):
                read_new_examples(examples, RTE)
            with self.assertRaisesRegex(ValueError, "no column 'prompt'. The columns are: 'sentence1', 'second'"):
                read_new_examples(examples, get_task("natural_instructions"))

    def test_errors_in_a_file_name_it_and_its_row(self):
        path = self.write("{new}.jsonl", '{"review": "a"}\n{"review": null}\n')
        with self.assertRaisesRegex(
            ValueError, r"{new}.jsonl, row 1 \(the first is row 0\): the column 'review' must"
        ):
            read_new_examples(path, TONE, cache_dir=str(self.folder / "cache"))
        with self.assertRaisesRegex(ValueError, "new.txt has an unknown extension. Known are .json, .*, .tsv"):
            read_new_examples(self.write("new.txt", "a"), TONE)
        with self.assertRaisesRegex(
            FileNotFoundError, "there is no file 'Good.'.*each example is a text or a dictionary"
        ):
            read_new_examples("Good.", TONE)
        with self.assertRaisesRegex(FileNotFoundError, "each example is a dictionary with the columns 'sentence1'"):
            read_new_examples("Good.", RTE)


class LoadersTest(TaskFilesTestCase):
    @parameterized.parameters("DCchat", "BSOarxiv")
    def test_disco_eval_is_read_as_it_is_published_and_without_labels(self, name):
        task = get_task(name, "disco_eval")
        columns = task.text_column_name
        rows = [[f"A {number} {i}." for i in range(len(columns))] for number in range(2)]
        expected = {column: [row[i] for row in rows] for i, column in enumerate(columns)}
        cache = str(self.folder / "cache")
        lines = "".join("\t".join(row) + "\n" for row in rows)
        self.assertEqual(read_new_examples(self.write("new.txt", lines), task, cache_dir=cache), expected)
        labeled = "".join("\t".join(["?", *row]) + "\n" for row in rows)
        self.assertEqual(read_new_examples(self.write("old.txt", labeled), task, cache_dir=cache), expected)
        with self.assertRaisesRegex(ValueError, "line 1: expected a label and"):
            read_new_examples(self.write("bad.txt", "One text.\n"), task, cache_dir=cache)

    @parameterized.parameters("disco_eval/BSOarxiv", "discourse/sentence_ordering")
    def test_sentences_are_given_as_columns(self, name):
        task = get_task(name)
        rows = [dict(zip(task.text_column_name, texts, strict=True)) for texts in (["A.", "B."], ["C.", "D."])]
        expected = dict(zip(task.text_column_name, (["A.", "C."], ["B.", "D."]), strict=True))
        self.assertEqual(read_new_examples(rows, task), expected)
        path = self.write("new.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        self.assertEqual(read_new_examples(path, task, cache_dir=str(self.folder / "cache")), expected)

    def test_disco_eval_knows_the_columns_of_its_copies(self):
        task = get_task("disco_eval/BSOarxiv")
        for kind in (list, Dataset.from_list):
            found = read_new_examples(kind([{"first_sentence": "A.", "second_sentence": "B."}]), task)
            self.assertEqual(list(found.values()), [["A."], ["B."]])

    def test_natural_instructions_get_their_prompt(self):
        write_natural_instructions(self.folder / "ni", ["Call me Ishmael."])
        content = json.loads((self.folder / "ni" / "tasks" / "task1_repeat.json").read_text())
        spec = get_task("natural_instructions")
        options = NaturalInstructionsOptions(num_pos_examples=1)
        example = {name: content[name] for name in ("Definition", "Positive Examples")} | {"input": "Call me Ishmael."}
        expected = prompt(content, "Call me Ishmael.", num_pos_examples=1)
        for examples in ([example], Dataset.from_list([example])):
            found = read_new_examples(examples, spec, options=asdict(options))
            self.assertEqual(found["prompt"], [expected])
            self.assertTrue(expected.endswith(found["instance"][0]))
        self.assertEqual(read_new_examples([{"prompt": "Repeat."}], spec), {"prompt": ["Repeat."]})
        short = read_new_examples([example], spec, options=options, length=lambda text: len(text) * 20)
        self.assertEqual(short["prompt"], [prompt(content, "Call me Ishmael.", num_pos_examples=0)])
        with self.assertRaisesRegex(ValueError, "has no 'Definition'"):
            read_new_examples([{"input": "Call me Ishmael."}], spec)
        with self.assertRaisesRegex(ValueError, r"'Positive Examples'\[0\] of an example must have a text 'output'"):
            read_new_examples([example | {"Positive Examples": [{"input": "A."}]}], spec)
