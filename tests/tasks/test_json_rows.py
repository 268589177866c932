"""Examples in JSON have the values that are written there, whatever the other rows hold."""

import json
from dataclasses import replace

from absl.testing import parameterized

from hf_depth.tasks.json_rows import json_features, json_rows, json_types
from hf_depth.tasks.sources import read_tables
from tiny_tasks import QUESTIONS, RTE, RTE_EXAMPLES, TaskFilesTestCase, as_jsonl

ROWS = [{"a": 1, "b": ["x"]}, {"a": 2, "b": None}]
CELLS = ["5", '"quoted"', '["x"]', "null", "true", "2020-01-01", "", " 1.0", "Naïve\u2028\x00 \U0001f600"]


class RowsTest(TaskFilesTestCase):
    @parameterized.parameters(
        as_jsonl(ROWS),
        as_jsonl(ROWS).replace("\n", "\r\n"),
        "\ufeff\n" + as_jsonl(ROWS).replace("\n", "\n \n"),
        json.dumps(ROWS),
        "\ufeff \n" + json.dumps(ROWS, indent=1),
        "".join(json.dumps(row, indent=1) for row in ROWS),
        json.dumps(ROWS[0]) + json.dumps(ROWS[1]),
    )
    def test_every_layout_gives_the_same_rows(self, content):
        for name in ("a.json", "b.jsonl.gz"):
            self.assertEqual(list(json_rows(self.write(name, content))), ROWS)

    def test_a_value_in_the_place_of_an_object_is_a_text(self):
        self.assertEqual(list(json_rows(self.write("a.json", '["x", "y"]'))), [{"text": "x"}, {"text": "y"}])

    @parameterized.parameters(
        ('{"a": 1}\n\n{"a": \n', "cannot read .*a.json, line 3, as json: Expecting value"),
        ('[\n{"a": 1},\n{"a": }]', "cannot read .*a.json, line 3, as json: Expecting value"),
        ('{"a": 1}\n{"a": 1, "a": 2}\n', "a.json, line 2, as json: an object names 'a' several times"),
        ('[\n{"a": 1, "a": 2}]', "cannot read .*a.json as json: an object names 'a' several times"),
        ('{"a": 1}\n{"a": "\\ud800"}\n', "a.json, line 2, holds half of a surrogate pair"),
        ('[\n{"a": "\\ud800"}]', "a.json, line 2, holds half of a surrogate pair"),
        ('{"a": 1}\n' + "[" * 100_000, "cannot read .*a.json, line 2, as json: "),
        (b'{"a": 1}\n{"a": "\xff"}', "line 2, is not UTF-8"),
    )
    def test_a_bad_line_is_named(self, content, message):
        with self.assertRaisesRegex(ValueError, message):
            list(json_rows(self.write("a.json", content)))

    @parameterized.parameters(
        (["x", None], "string"),
        ([None], "null"),
        ([1, 2], "int64"),
        ([True, None], "bool"),
        ([1, 0.5], "float64"),
        ([1, 2**63], "float64"),
        ([1, True], None),
        (["x", 1], None),
        (["x", ["x"]], None),
        ([{"y": 1}], None),
    )
    def test_a_column_has_one_type_or_is_json(self, values, expected):
        types = json_types(self.write("a.jsonl", as_jsonl([{"a": value} for value in values])))
        self.assertEqual(getattr(json_features(types)["a"], "dtype", None), expected)


class TablesTest(TaskFilesTestCase):
    def read(self, *rows_of_files, spec=RTE):
        files = [self.write(f"{number}.jsonl", as_jsonl(rows)) for number, rows in enumerate(rows_of_files)]
        return read_tables("train_file", files, spec, str(self.folder / "cache"))

    @parameterized.parameters(
        (CELLS,),
        ([*CELLS, ["a", "b"], [], None],),
        ([*CELLS, 5, -1, 0.1, 0.1 + 0.2, True, {"x": [None, "5", {}]}],),
        ([None, None],),
        ([{"a": 1}, {"b": "x"}],),
    )
    def test_values_are_those_that_are_written(self, values):
        self.assertEqual(self.read([{"a": value} for value in values])["a"][:], values)
        self.assertEqual(self.read([{"a": value} for value in values[:1]], [{"a": values[1]}])["a"][:], values[:2])

    def test_a_column_that_a_row_or_a_file_lacks_is_empty_there(self):
        rows = self.read([{"a": "x"}, {"b": 1}], [{"c": ["y"]}]).to_list()
        expected = [
            {"a": "x", "b": None, "c": None},
            {"a": None, "b": 1, "c": None},
            {"a": None, "b": None, "c": ["y"]},
        ]
        self.assertEqual(rows, expected)

    def test_text_stays_text_beside_dates_and_lists(self):
        dates = [row | {"sentence1": f"2020-01-0{day}"} for day, row in enumerate(RTE_EXAMPLES, start=1)]
        path = self.write("dates.jsonl", as_jsonl(dates))
        self.assertEqual(self.load("rte", train_file=path), {"train": dates})
        answers = ["5", '"quoted"', '["x"]', ["null", "b"], "null"]
        path = self.write("answers.jsonl", as_jsonl([{"question": "Q", "answers": answer} for answer in answers]))
        read = self.load(QUESTIONS, train_file=path)["train"]
        self.assertEqual([row["answers"] for row in read], [["5"], ['"quoted"'], ['["x"]'], ["null", "b"], ["null"]])

    def test_labels_of_several_types_are_read_in_one_column(self):
        labels = [0, "not_entailment", "1", 1.0, ["entailment"]]
        rows = [{"sentence1": ["A.", "B."], "sentence2": "C.", "label": label} for label in labels]
        path = self.write("a.jsonl", as_jsonl(rows[:-1]))
        read = self.load("rte", train_file=path)["train"]
        self.assertEqual([row["label"] for row in read], [0, 1, 1, 1])
        self.assertEqual(read[0]["sentence1"], "A. B.")
        spec = replace(RTE, name="truth", labels=("no", "True"))
        truths = [row | {"label": truth} for row, truth in zip(rows, ["no", True], strict=False)]
        read = self.load(spec, train_file=self.write("b.jsonl", as_jsonl(truths)))["train"]
        self.assertEqual([row["label"] for row in read], [0, 1])
        path = self.write("c.jsonl", as_jsonl(rows))
        self.assert_refused("c.jsonl, row 4 .*holds .'entailment'., which is none", "rte", train_file=path)
