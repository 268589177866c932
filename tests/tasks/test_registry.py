"""The registry: tasks are found by their names, and nothing replaces one by accident."""

from absl.testing import parameterized

from helpers import ROOT
from hf_depth.tasks.config import prompt_format
from hf_depth.tasks.registry import get_task, load_task_file, register_task
from hf_depth.tasks.spec import TaskSpec
from tiny_tasks import ENTRY, RegistryTestCase


class RegistryTest(RegistryTestCase):
    def test_a_task_is_found_by_its_name_with_or_without_its_benchmark(self):
        for arguments in (("rte",), ("rte", "glue"), ("glue/rte",)):
            self.assertEqual(get_task(*arguments).name, "rte")

    @parameterized.parameters(
        ("mnlli", None, "no task 'mnlli'. Did you mean 'mnli'"),
        ("rte", "gleu", "no benchmark 'gleu'. Did you mean 'glue'"),
        ("imdb", None, "no task 'imdb'.*[(]To use a data set of the Hub, make a task with its `path`"),
    )
    def test_an_unknown_name_is_answered_by_near_ones(self, name, benchmark, message):
        with self.assertRaisesRegex(ValueError, message):
            get_task(name, benchmark)

    def test_a_name_in_two_benchmarks_asks_for_the_benchmark(self):
        register_task(ENTRY, "mine", "rte")
        with self.assertRaisesRegex(ValueError, "Several benchmarks have a task 'rte': 'glue', 'mine'"):
            get_task("rte")
        self.assertEqual(get_task("rte", "mine").labels, {0: "sad", 1: "glad"})

    def test_no_task_is_replaced_by_accident(self):
        first = register_task(ENTRY, "mine", "tone")
        self.assertIs(register_task(first), first)  # the same again, as when a file is named twice
        with self.assertRaisesRegex(ValueError, "already has another task of that name.*overwrite=True"):
            register_task(ENTRY | {"version": 2}, "mine", "tone")
        self.assertEqual(get_task("tone").version, 1)
        register_task(ENTRY | {"version": 2}, "mine", "tone", overwrite=True)
        self.assertEqual(get_task("tone").version, 2)


class TaskFileTest(RegistryTestCase):
    def test_a_file_with_one_task(self):
        path = self.write("name: tone\ntext_column_name: review\nprefix: 'tone review:'\nlabels: [sad, glad]\n")
        (task,) = load_task_file(path)
        self.assertEqual(task, get_task("tone"))
        self.assertEqual(task, TaskSpec("custom", "tone", "review", "tone review:", labels=("sad", "glad")))
        self.assertEqual(load_task_file(path), [task])  # again

    def test_a_file_like_the_registry(self):
        entry = "    prefix: 'x:'\n    text_column_name: a\n    labels:\n      0: sad\n      1: glad\n"
        loaded = load_task_file(self.write(f"mine:\n  one:\n{entry}  two:\n{entry}"))
        self.assertEqual([(task.benchmark, task.name) for task in loaded], [("mine", "one"), ("mine", "two")])
        self.assertEqual(loaded[0].labels, {0: "sad", 1: "glad"})

    def test_the_file_of_the_published_depth_has_its_prompts(self):
        tasks = {task.name: task for task in load_task_file(ROOT / "examples/tasks/depth_paper.yaml")}
        self.assertLen(tasks, 22)
        expected = {
            "cola": "cola: sentence: {sentence}",
            "rte": "rte: sentence1: {sentence1} sentence2 {sentence2}",
            "mnli": "mnli hypothesis: {premise} premise: {hypothesis}",
            "BSOwiki": "BSOwiki: first_sentence: {first_sentence} second_sentence: {second_sentence}",
            "PDTB-E": "PDTB_E: first_sentence: {first_sentence} second_sentence: {second_sentence}",
        }
        self.assertEqual({name: prompt_format(tasks[name]) for name in expected}, expected)
        for name, task in tasks.items():
            own = get_task(name, task.benchmark.removeprefix("depth_"))
            self.assertEqual(task.labels, own.labels)
            self.assertEqual(task.splits, own.splits)

    @parameterized.parameters(
        ("labels: [yes, no]", ": Task 'tone', field `labels`: class 0 must be text, .* got True"),
        ("labels: [1, 2, 3]", ": .* class 0 must be text, .* got 1. Put quotes"),
        (
            "label_column_name: tone review:",
            ", line 4: mapping values are not .* here: put quotes round a text with a colon.$",
        ),
        ("lables: [sad, glad]", ": Task 'tone', field `lables`: there is no such field. Did you mean 'labels'"),
        ("prefix: y", ", line 4: 'prefix' is given twice"),
        ("labels: [sad, glad", ", line [45]: .*"),
    )
    def test_a_mistake_is_an_error_that_names_the_file_and_the_field_or_the_line(self, line, message):
        path = self.write(f"name: tone\ntext_column_name: review\nprefix: x\n{line}\n")
        with self.assertRaisesRegex(ValueError, f"{path}{message}"):
            load_task_file(path)

    def test_merge_keys_repeat_no_key(self):
        path = self.write(
            "mine:\n  tone: &a {text_column_name: review, prefix: x, labels: [sad, glad]}\n"
            "  mood: &b {<<: *a, prefix: y}\nother:\n  tone: {<<: *b, version: 2}\n"
        )
        self.assertEqual([task.prefix for task in load_task_file(path)], [("x",), ("y",), ("y",)])

    @parameterized.parameters("just text", "- 1\n", "# nothing\n", "tone: {text_column_name: review, prefix: x}\n")
    def test_a_file_without_a_task_is_an_error_that_says_what_a_task_is(self, content):
        with self.assertRaisesRegex(ValueError, "task.yaml: expected a task or several, .* `text_column_name`"):
            load_task_file(self.write(content))
