import pickle
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from absl.testing import parameterized

from helpers import tiny_tokenizer
from hf_depth.arguments.task_args import TaskArguments, chosen_tasks
from hf_depth.tasks.registry import DATASET_VALS, as_task, get_task, load_task_file, register_task, task_names
from hf_depth.tasks.rows import read_class
from hf_depth.tasks.spec import UNLABELED, TaskSpec

ALL_TASKS = [(benchmark, name) for benchmark in DATASET_VALS for name in DATASET_VALS[benchmark]]
ENTRY = {"text_column_name": "review", "prefix": "tone review:", "labels": ["sad", "glad"]}

# A row as on the Hub, what T5 reads (Raffel et al. 2020, appendix D) and what it answers.
GLUE_EXAMPLES = {
    "cola": ({"sentence": "S."}, 1, "cola sentence: S.", "acceptable"),
    "sst2": ({"sentence": "S."}, 0, "sst2 sentence: S.", "negative"),
    "mrpc": ({"sentence1": "A.", "sentence2": "B."}, 1, "mrpc sentence1: A. sentence2: B.", "equivalent"),
    "qqp": ({"question1": "A?", "question2": "B?"}, 0, "qqp question1: A? question2: B?", "not_duplicate"),
    "stsb": ({"sentence1": "A.", "sentence2": "B."}, 3.25, "stsb sentence1: A. sentence2: B.", "3.2"),
    "mnli": ({"premise": "P.", "hypothesis": "H."}, 2, "mnli hypothesis: H. premise: P.", "contradiction"),
    "qnli": ({"question": "Q?", "sentence": "S."}, 0, "qnli question: Q? sentence: S.", "entailment"),
    "rte": ({"sentence1": "A.", "sentence2": "B."}, 1, "rte sentence1: A. sentence2: B.", "not_entailment"),
    "wnli": ({"sentence1": "A.", "sentence2": "B."}, 1, "wnli sentence1: A. sentence2: B.", "entailment"),
    "ax": ({"premise": "P.", "hypothesis": "H."}, 0, "mnli hypothesis: H. premise: P.", "entailment"),
}
GLUE_SERVER = {
    "cola": ("CoLA.tsv", "id", 1063),
    "sst2": ("SST-2.tsv", "id", 1821),
    "mrpc": ("MRPC.tsv", "id", 1725),
    "qqp": ("QQP.tsv", "id", 390_965),
    "stsb": ("STS-B.tsv", "number", 1379),
    "qnli": ("QNLI.tsv", "text", 5463),
    "rte": ("RTE.tsv", "text", 3000),
    "wnli": ("WNLI.tsv", "id", 146),
    "ax": ("AX.tsv", "text", 1104),
}
DISCO_EVAL_COUNTS = {  # columns, labels, the text of the last label
    "SSPabs": (1, 2, "Belongs to abstract"),
    "SParxiv": (5, 5, "Fifth sentence"),
    "SProcstory": (5, 5, "Fifth sentence"),
    "SPwiki": (5, 5, "Fifth sentence"),
    "BSOarxiv": (2, 2, "Correct order"),
    "BSOrocstory": (2, 2, "Correct order"),
    "BSOwiki": (2, 2, "Correct order"),
    "DCchat": (6, 2, "Coherent"),
    "DCwiki": (6, 2, "Coherent"),
    "PDTB-E": (2, 12, "Temporal.Synchrony"),
    "PDTB-I": (2, 11, "Temporal.Synchrony"),
    "RST": (2, 41, "NS-Manner-Means"),
}


class TasksTestCase(parameterized.TestCase):
    """Leaves the registry as it was."""

    def setUp(self):
        super().setUp()
        patch = mock.patch.dict(DATASET_VALS, {benchmark: dict(tasks) for benchmark, tasks in DATASET_VALS.items()})
        patch.start()
        self.addCleanup(patch.stop)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, text: str) -> Path:
        path = self.folder / "task.yaml"
        path.write_text(text, encoding="utf-8")
        return path


class GlueTest(TasksTestCase):
    @parameterized.named_parameters((name, name, *example) for name, example in GLUE_EXAMPLES.items())
    def test_prompts_and_answers_are_those_of_t5(self, name, texts, label, prompt, answer):
        task, row = get_task(name, "glue"), {**texts, "label": label}
        self.assertEqual(task.prompt(row), prompt)
        self.assertEqual(task.targets(row), [answer])
        self.assertEqual(" ".join(task.input_texts(row)), prompt)
        self.assertLen(task.input_texts(row), len(texts))

    def test_there_are_ten_tasks(self):
        self.assertCountEqual(task_names("glue"), GLUE_EXAMPLES)

    def test_metrics_are_those_of_the_benchmark(self):
        own = {"cola": ("matthews_correlation",), "ax": ("matthews_correlation",), "stsb": ("pearson", "spearman")}
        own |= {"mrpc": ("f1", "accuracy"), "qqp": ("f1", "accuracy")}
        for name in task_names("glue"):
            self.assertCountEqual(get_task(name).metric_names, own.get(name, ("accuracy",)), name)

    @parameterized.named_parameters((name, name, *server) for name, server in GLUE_SERVER.items())
    def test_submissions_are_as_the_server_wants_them(self, name, file, labels, rows):
        task = get_task(name, "glue")
        self.assertEqual(
            (task.submission_names, task.submission_labels, task.submission_rows), ((file,), labels, (rows,))
        )

    def test_mnli_has_two_validation_sets_and_two_test_sets_with_a_file_each(self):
        task = get_task("mnli")
        self.assertEqual(task.validation_splits, ("validation_matched", "validation_mismatched"))
        self.assertEqual(task.test_splits, ("test_matched", "test_mismatched"))
        self.assertEqual(task.submission_names, ("MNLI-m.tsv", "MNLI-mm.tsv"))
        self.assertEqual(task.submission_rows, (9796, 9847))

    def test_the_diagnostic_set_is_only_tested_and_read_as_mnli(self):
        ax, mnli = get_task("ax"), get_task("mnli")
        self.assertEqual((ax.train_split, ax.validation_splits, ax.train_on), ("", (), "mnli"))
        row = {"premise": "P.", "hypothesis": "H."}
        self.assertEqual(ax.prompt(row), mnli.prompt(row))
        self.assertEqual(ax.labels, mnli.labels)


class NumbersTest(TasksTestCase):
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

    @parameterized.parameters(5.1, -0.5, "high", float("nan"))
    def test_a_number_outside_the_scale_is_an_error(self, value):
        with self.assertRaisesRegex(
            ValueError, r"'stsb'.*column 'label' holds .*none of its labels: numbers from 0.0"
        ):
            get_task("stsb").label_id({"label": value})


class DiscoEvalTest(TasksTestCase):
    @parameterized.named_parameters((name, name, *counts) for name, counts in DISCO_EVAL_COUNTS.items())
    def test_columns_and_labels(self, name, num_columns, num_labels, last_label):
        task = get_task(name, "disco_eval")
        self.assertEqual(task.text_column_name, tuple(f"sentence_{i + 1}" for i in range(num_columns)))
        self.assertEqual(task.num_labels, num_labels)
        self.assertEqual(task.labels[num_labels - 1], last_label)
        self.assertEqual(task.metric_names, ("accuracy",))

    def test_there_are_twelve_tasks_in_the_order_of_the_paper(self):
        self.assertEqual(task_names("disco_eval"), list(DISCO_EVAL_COUNTS))

    def test_prompts_name_the_task_and_each_sentence(self):
        row = {f"sentence_{i}": f"S{i} ." for i in range(1, 7)}
        self.assertEqual(
            get_task("SParxiv").prompt(row),
            "SParxiv sentence1: S1 . sentence2: S2 . sentence3: S3 . sentence4: S4 . sentence5: S5 .",
        )
        self.assertEqual(get_task("SSPabs").prompt(row), "SSPabs sentence1: S1 .")
        self.assertEqual(get_task("RST").prompt(row), "RST sentence1: S1 . sentence2: S2 .")

    def test_implicit_and_explicit_relations_differ_in_three_labels(self):
        explicit, implicit = (set(get_task(name).labels.values()) for name in ("PDTB-E", "PDTB-I"))
        self.assertEqual(explicit - implicit, {"Contingency.Condition", "Contingency.Pragmatic condition"})
        self.assertEqual(implicit - explicit, {"Contingency.Pragmatic cause"})

    def test_tasks_of_ones_own_corpus_have_the_labels_and_columns_of_disco_eval(self):
        pairs = {"sentence_position": "SPwiki", "sentence_ordering": "BSOwiki", "discourse_coherence": "DCwiki"}
        for own, published in pairs.items():
            self.assertEqual(get_task(own).labels, get_task(published).labels)
            self.assertEqual(get_task(own).text_column_name, get_task(published).text_column_name)
            self.assertEqual(get_task(own).config_name, own)


class EveryTaskTest(TasksTestCase):
    @parameterized.parameters(*ALL_TASKS)
    def test_labels_are_known_words_and_differ(self, benchmark, name):
        tokenizer, task = tiny_tokenizer(), get_task(name, benchmark)
        ids = [tuple(tokenizer(text).input_ids) for text in (task.labels or {}).values()]
        self.assertLen(set(ids), task.num_labels)
        for text_ids in ids:
            self.assertNotIn(tokenizer.unk_token_id, text_ids)

    @parameterized.parameters(*ALL_TASKS)
    def test_every_label_is_understood_as_number_text_and_number_in_text(self, benchmark, name):
        task = get_task(name, benchmark)
        for label_id, text in (task.labels or {}).items():
            self.assertEqual(task.parse(f" {text}\n"), label_id)
            if task.is_regression:
                self.assertEqual(task.label_id({"label": float(text)}), label_id)
            else:
                for label in (label_id, text):
                    self.assertEqual(task.label_id({"label": label}), label_id)
                for label in (label_id, str(label_id), float(label_id), text):
                    self.assertEqual(read_class(task, label), label_id)

    @parameterized.parameters(*ALL_TASKS)
    def test_a_task_survives_pickling_and_has_one_kind(self, benchmark, name):
        task = get_task(name, benchmark)
        self.assertEqual(pickle.loads(pickle.dumps(task)), task)
        self.assertEqual(hash(task), hash(pickle.loads(pickle.dumps(task))))
        self.assertEqual([task.is_classification, task.is_regression, task.labels is None].count(True), 1)


class RowsTest(TasksTestCase):
    def test_answers_outside_the_labels_are_of_class_minus_one(self):
        task = get_task("rte")
        for answer in ("", "Entailment", "entailment.", "1", "not"):
            self.assertEqual(task.parse(answer), UNLABELED)

    @parameterized.parameters(-1, None, "", "-1", -1.0)
    def test_hidden_labels_have_no_answer(self, label):
        task = get_task("rte")
        self.assertEqual(task.label_id({"label": label}), UNLABELED)
        self.assertEqual(read_class(task, label), UNLABELED)
        self.assertEqual(task.targets({"label": label}), [])
        self.assertEqual(task.targets({}), [])

    @parameterized.parameters(2, "yes", 0.5, -2, "2")
    def test_a_label_outside_the_set_is_an_error_that_names_task_column_and_value(self, label):
        with self.assertRaisesRegex(ValueError, f"'rte'.*'label' holds {label!r}, .*0 \\(entailment\\), 1"):
            get_task("rte").label_id({"label": label})
        with self.assertRaisesRegex(ValueError, f"'rte'.*'label' holds {label!r}, .*0 \\(entailment\\), 1"):
            read_class(get_task("rte"), label)

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

    def test_open_text_has_all_its_references_as_answers(self):
        task = get_task("natural_instructions")
        self.assertEqual(task.targets({"references": ["a", "b"]}), ["a", "b"])
        self.assertEqual(task.targets({"references": "a"}), ["a"])
        for hidden in (None, "", []):
            self.assertEqual(task.targets({"references": hidden}), [])
        self.assertEqual(task.prompt({"prompt": "Definition: x\nOutput: "}), "Definition: x\nOutput: ")

    def test_where_the_texts_are_numbers_a_number_in_the_data_is_a_text_and_the_label_of_a_row_is_a_class(self):
        task = as_task(ENTRY | {"labels": ["1", "2", "3"]}, "mine", "stars")
        self.assertEqual([read_class(task, label) for label in (1, "2", 3.0)], [0, 1, 2])
        with self.assertRaisesRegex(ValueError, "holds 0"):
            read_class(task, 0)
        self.assertEqual([task.targets({"label": label}) for label in range(3)], [["1"], ["2"], ["3"]])
        with self.assertRaisesRegex(ValueError, "holds 3"):
            task.targets({"label": 3})


class RegistryTest(TasksTestCase):
    def test_a_task_is_found_by_name_by_benchmark_and_by_its_names_on_the_hub(self):
        for arguments in (("rte",), ("rte", "glue"), ("glue/rte",), ("nyu-mll/glue/rte",), ("rte", "nyu-mll/glue")):
            self.assertEqual(get_task(*arguments).name, "rte")
        self.assertEqual(get_task("PDTB_E", "OfekGlick/DiscoEval"), get_task("PDTB-E"))
        self.assertEqual(get_task("PDTB_I"), get_task("PDTB-I"))

    @parameterized.parameters(
        ("mnlli", None, "no task 'mnlli'. Did you mean 'mnli'"),
        ("sparxiv2", None, "Did you mean 'SParxiv'"),
        ("RTE", "glue", "The benchmark 'glue' has no task 'RTE'. Did you mean 'rte'"),
        ("rte", "gleu", "no benchmark 'gleu'. Did you mean 'glue'"),
        ("qqqqqqqq", "natural_instructions", "The tasks are: 'natural_instructions'"),
    )
    def test_an_unknown_name_is_answered_by_near_ones(self, name, benchmark, message):
        with self.assertRaisesRegex(ValueError, message):
            get_task(name, benchmark)

    def test_a_name_in_two_benchmarks_asks_for_the_benchmark(self):
        register_task(ENTRY, "mine", "rte")
        with self.assertRaisesRegex(ValueError, "Several benchmarks have a task 'rte': 'glue', 'mine'"):
            get_task("rte")
        self.assertEqual(get_task("rte", "mine").labels, {0: "sad", 1: "glad"})

    def test_plain_entries_as_in_the_earlier_code_are_accepted(self):
        DATASET_VALS["mine"] = {
            "pairs": {
                "prefix_1": "pairs one: ",
                "prefix_2": "two: ",
                "text_column_name_1": "first",
                "text_column_name_2": "second",
                "label_column_name": "gold",
                "metric_to_optimize": "mcc",
                "greater_is_better": True,
                "metric_names": ["accuracy", "mcc"],
                "labels": {"1": "yes", 0: "no", -1: "other"},
            }
        }
        task = get_task("pairs", "mine")
        self.assertEqual(task.prompt({"first": "A", "second": "B"}), "pairs one: A two: B")
        self.assertEqual(task.targets({"gold": 1}), ["yes"])
        self.assertEqual(list(task.labels.items()), [(0, "no"), (1, "yes")])
        self.assertEqual(task.metric_names, ("accuracy", "matthews_correlation"))
        self.assertEqual(task.metric_to_optimize, "matthews_correlation")

    def test_usual_metrics_follow_from_the_kind_of_answer(self):
        kinds = [["a", "b"], None, ["1.0", "1.5"]]
        steps = [None, None, 0.5]
        tasks = [as_task(ENTRY | {"labels": k, "label_step": s}, "m", "t") for k, s in zip(kinds, steps, strict=True)]
        self.assertEqual(
            [task.metric_names for task in tasks], [("accuracy",), ("rougeL", "exact_match"), ("pearson", "spearman")]
        )
        self.assertEqual([task.metric_to_optimize for task in tasks], ["accuracy", "rougeL", "pearson"])

    def test_no_task_is_replaced_by_accident(self):
        first = register_task(ENTRY, "mine", "tone")
        self.assertIs(register_task(first), first)  # the same again, as when a file is named twice
        with self.assertRaisesRegex(ValueError, "already has another task of that name.*overwrite=True"):
            register_task(ENTRY | {"version": 2}, "mine", "tone")
        self.assertEqual(get_task("tone").version, 1)
        register_task(ENTRY | {"version": 2}, "mine", "tone", overwrite=True)
        self.assertEqual(get_task("tone").version, 2)

    @parameterized.parameters(
        ({"metric_name": "f1"}, "field `metric_name`: there is no such field. Did you mean 'metric_names'"),
        ({"labels": [True, False]}, "field `labels`: class 0 must be text, got True. YAML reads yes"),
        ({"labels": {1: "a", 2: "b"}}, "field `labels`: .* numbered 0, 1, 2, …, got 1, 2"),
        ({"labels": {"sad": 0}}, "field `labels`: must map class numbers to texts"),
        ({"labels": ["sad", "sad"]}, "field `labels`: several classes have the text 'sad'"),
        ({"labels": ["sad", " "]}, "field `labels`: class 1 must be text"),
        ({"labels": ["sad"]}, "field `labels`: there must be two classes"),
        ({"labels": ["-1", "1"]}, "field `labels`: '-1' stands for a hidden label"),
        ({"prefix": ["a", "b"]}, "field `prefix`: there must be one for each of the 1 text columns"),
        ({"prefix_1": "a"}, "field `prefix`: give either `prefix` or `prefix_1`"),
        ({"text_column_name": []}, "field `text_column_name`: must name one or several"),
        ({"label_column_name": "review"}, "field `label_column_name`: must name another column"),
        ({"metric_names": ["acuracy"]}, "field `metric_names`: there is no metric 'acuracy'. Did you mean 'accuracy'"),
        ({"metric_names": ["pearson"]}, "field `metric_names`: 'pearson' does not suit answers that are a class"),
        ({"metric_names": ["f1"], "metric_to_optimize": "accuracy"}, "field `metric_to_optimize`: 'accuracy' is none"),
        ({"label_step": 0.5}, "field `labels`: with a `label_step`, they must be numbers"),
        ({"label_step": 0.5, "labels": ["0", "1"]}, "field `label_step`: the labels must be numbers in steps of 0.5"),
        ({"max_source_length": "512"}, "field `max_source_length`: must be of type `int`, got '512'"),
        ({"max_target_length": 0}, "field `max_target_length`: must be at least 1"),
        ({"greater_is_better": "yes"}, "field `greater_is_better`: must be of type `bool`"),
        ({"train_split": ""}, "field `train_on`: a task without `train_split` needs another"),
        ({"validation_splits": ["test"]}, "field `train_split`: the splits must have different names"),
        ({"submission_names": ["a.tsv", "b.tsv"]}, "field `submission_names`: there must be one for each test split"),
        ({"submission_labels": "ids"}, "field `submission_labels`: got 'ids'. Did you mean 'id'"),
        ({"column_aliases": {"stars": "lable"}}, "field `column_aliases`: .* 'lable'.* Did you mean 'label'"),
        ({"name": "my task"}, "field `name`: must be letters"),
        ({"metric_names": [["f1"]]}, "field `metric_names`: must hold texts, but holds .'f1'."),
        ({"metric_to_optimize": ["f1"]}, "field `metric_to_optimize`: must be of type `str`, got .'f1'."),
        ({"column_aliases": {"stars": ["label"]}}, "field `column_aliases`: must map names to names"),
        ({"submission_rows": ["many"]}, "field `submission_rows`: must be numbers of rows .* holds 'many'"),
        ({"submission_rows": [-3]}, "field `submission_rows`: must be numbers of rows .* holds -3"),
        ({"submission_rows": [True]}, "field `submission_rows`: must be numbers of rows .* holds True"),
        ({"loader": ""}, "field `loader`: must name a loader"),
        ({"validation_splits": [""]}, "field `validation_splits`: must hold names"),
        ({"test_splits": ["test", ""]}, "field `test_splits`: must hold names"),
        ({"submission_names": [""]}, "field `submission_names`: must hold names"),
    )
    def test_a_wrong_field_is_an_error_that_names_it(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            register_task({"name": "tone", "benchmark": "mine"} | ENTRY | fields)
        self.assertNotIn("mine", [b for b, entries in DATASET_VALS.items() if "tone" in entries])

    @parameterized.parameters("text_column_name", "prefix", "name")
    def test_a_missing_field_is_an_error_that_names_it(self, field):
        entry = {"name": "tone", "benchmark": "mine"} | ENTRY
        del entry[field]
        with self.assertRaisesRegex(ValueError, f"field `{field}`: it is missing"):
            register_task(entry)


class ChosenTasksTest(TasksTestCase):
    @parameterized.parameters(
        ("disco_eval", ["PDTB-E", "PDTB_E", "PDTB-E"], ["PDTB-E"]),
        (None, ["rte", "glue/rte", "cola", "nyu-mll/glue/rte"], ["rte", "cola"]),
    )
    def test_a_task_under_several_names_is_taken_once(self, benchmark, names, expected):
        chosen = chosen_tasks(TaskArguments(benchmark=benchmark, dataset_name=names))
        self.assertEqual([task.name for task in chosen], expected)

    def test_a_task_file_that_is_named_twice_is_taken_once(self):
        path = str(self.write("name: tone\ntext_column_name: review\nprefix: x\nlabels: [sad, glad]\n"))
        self.assertEqual(chosen_tasks(TaskArguments(task_file=[path, path])), [get_task("tone")])


class TaskFileTest(TasksTestCase):
    def test_a_file_with_one_task(self):
        path = self.write("name: tone\ntext_column_name: review\nprefix: 'tone review:'\nlabels: [sad, glad]\n")
        (task,) = load_task_file(path)
        self.assertEqual(task, get_task("tone"))
        self.assertEqual(task, TaskSpec("custom", "tone", "review", "tone review:", labels=("sad", "glad")))
        self.assertEqual(load_task_file(path), [task])  # again

    def test_a_file_with_a_list_of_tasks(self):
        entry = "  text_column_name: review\n  prefix: 'x:'\n  labels: [sad, glad]\n"
        loaded = load_task_file(self.write(f"- name: one\n{entry}- name: two\n  benchmark: mine\n{entry}"))
        self.assertEqual([(task.benchmark, task.name) for task in loaded], [("custom", "one"), ("mine", "two")])

    def test_a_file_like_the_registry(self):
        entry = "    prefix: 'x:'\n    text_column_name: a\n    labels:\n      0: sad\n      1: glad\n"
        loaded = load_task_file(self.write(f"mine:\n  one:\n{entry}  two:\n{entry}"))
        self.assertEqual([(task.benchmark, task.name) for task in loaded], [("mine", "one"), ("mine", "two")])
        self.assertEqual(loaded[0].labels, {0: "sad", 1: "glad"})

    @parameterized.parameters(
        ("labels: [yes, no]", "line 4: Task 'tone', field `labels`: class 0 must be text, got True"),
        ("lables: [sad, glad]", "line 4: Task 'tone', field `lables`: there is no such field. Did you mean 'labels'"),
        ("label_column_name: review", "line 4: Task 'tone', field `label_column_name`"),
        ("metric_names:\n  - rougeL\nmetric_to_optimize: f1", "line 6: .*field `metric_to_optimize`"),
        ("prefix: y", "line 4: 'prefix' is given twice"),
        ("labels: [sad, glad", "line [45]: .*"),
        ("benchmark: [a]", "line 4: .*field `benchmark`"),
        ("metric_names: [[f1]]", "line 4: .*field `metric_names`"),
        ("metric_names: {f1: accuracy}", "line 4: .*field `metric_names`"),
        ("metric_to_optimize: [f1]", "line 4: .*field `metric_to_optimize`"),
        ("? [a]\n: b", "line 4: found unhashable key"),
    )
    def test_a_mistake_is_an_error_that_names_file_and_line(self, line, message):
        path = self.write(f"name: tone\ntext_column_name: review\nprefix: x\n{line}\n")
        with self.assertRaisesRegex(ValueError, f"{path}, {message}"):
            load_task_file(path)

    @parameterized.parameters("", "just text", "- 1\n", "# nothing\n")
    def test_a_file_without_a_task_is_an_error_that_shows_one(self, content):
        with self.assertRaisesRegex(ValueError, "task.yaml(.|\n)*such as|for example(.|\n)*text_column_name: review"):
            load_task_file(self.write(content))

    def test_a_file_with_the_name_of_a_task_that_there_is_names_the_line(self):
        path = self.write("\nname: rte\nbenchmark: glue\ntext_column_name: a\nprefix: x\nlabels: [a, b]\n")
        with self.assertRaisesRegex(ValueError, "line 2: .*'glue' already has another task"):
            load_task_file(path)

    def test_a_missing_file_is_an_error(self):
        with self.assertRaisesRegex(FileNotFoundError, "`task_file`: there is no file"):
            load_task_file(self.folder / "other.yaml")
