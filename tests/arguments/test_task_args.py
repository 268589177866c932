"""Flags of tasks: which tasks they name, and what they become for the loaders."""

from absl.testing import parameterized

from hf_depth.arguments.task_args import TaskArguments, chosen_tasks
from hf_depth.tasks.loading import LOADERS
from hf_depth.tasks.registry import get_task
from tiny_tasks import RegistryTestCase


class ChosenTasksTest(RegistryTestCase):
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

    @parameterized.parameters(
        (["rte"], ["rte", "tone", "mood"]),
        (["rte", "tone"], ["rte", "tone"]),
        (["mood"], ["mood"]),
        (["all"], ["tone", "mood"]),
    )
    def test_a_task_file_beside_names_is_never_dropped(self, names, expected):
        entry = "text_column_name: review, prefix: x, labels: [sad, glad]"
        path = str(self.write(f"- {{name: tone, {entry}}}\n- {{name: mood, {entry}}}\n"))
        benchmark = "custom" if names == ["all"] else None
        chosen = chosen_tasks(TaskArguments(task_file=[path], benchmark=benchmark, dataset_name=names))
        self.assertEqual([task.name for task in chosen], expected)

    def test_an_unknown_benchmark_is_refused_beside_a_task_file(self):
        path = str(self.write("name: tone\ntext_column_name: review\nprefix: x\nlabels: [sad, glad]\n"))
        with self.assertRaisesRegex(ValueError, "no benchmark 'glu'. Did you mean 'glue'"):
            chosen_tasks(TaskArguments(task_file=[path], benchmark="glu"))


class LoadingTest(parameterized.TestCase):
    def test_flags_that_are_options_of_the_tasks_loaders_reach_them(self):
        arguments = TaskArguments(max_examples_per_document=3, text_column="body", num_pos_examples=1)
        options = arguments.for_loading([get_task("sentence_ordering")])["options"]
        expected = {"text_column": "body", "sentence_language": "en", "max_examples_per_document": 3}
        self.assertEqual(options, expected | {"test_split_percentage": 5})
        self.assertEqual(arguments.for_loading([get_task("natural_instructions")])["options"]["num_pos_examples"], 1)
        self.assertEmpty(arguments.for_loading([get_task("rte")])["options"])

    def test_every_option_has_a_flag_but_one(self):
        options = [name for loader in LOADERS.values() for name in loader.option_names]
        missing = [name for name in options if not hasattr(TaskArguments(), name)]
        self.assertEqual(missing, ["max_num_validation_instances_per_task"])

    @parameterized.parameters(
        ({"max_examples_per_document": 0}, "`max_examples_per_document` must be at least 1"),
        ({"num_neg_examples": -1}, "`num_neg_examples` must be at least 0"),
        ({"max_eval_samples": 0}, "`--max_eval_samples` must be at least 1"),
    )
    def test_wrong_values_are_refused_before_anything_is_loaded(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            TaskArguments(**arguments)
