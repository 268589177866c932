"""Task files in YAML; a mistake is named with its line."""

from absl.testing import parameterized

from hf_depth.tasks.registry import get_task, load_task_file
from hf_depth.tasks.spec import TaskSpec
from tiny_tasks import RegistryTestCase


class TaskFileTest(RegistryTestCase):
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
        ("labels: [1, 2, 3]", "line 4: .* class 0 must be text, .* got 1. Put quotes, as in '1'"),
        ("prefix_1: tone review:", "line 4: mapping values are not .* here: put quotes round a text with a colon.$"),
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
        with self.assertRaisesRegex(ValueError, "`task_file`: .* is no file, but a folder, a pipe or a device"):
            load_task_file(self.folder)
        with self.assertRaisesRegex(FileNotFoundError, "`task_file`: there is no file"):
            load_task_file(self.folder / "other.yaml")
