"""The registry: tasks are found by their names, and nothing replaces one by accident."""

from absl.testing import parameterized

from hf_depth.tasks.registry import DATASET_VALS, get_task, register_task, training_tasks
from tiny_tasks import ENTRY, RegistryTestCase


class RegistryTest(RegistryTestCase):
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
        ("imdb", None, "no task 'imdb'.*[(]A data set of the Hub is the `path` of a task of your own"),
        ("stanfordnlp/imdb", None, "no benchmark 'stanfordnlp'.*[(]A data set of the Hub is the `path` of a task"),
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

    @parameterized.parameters("tone", [[ENTRY]])
    def test_what_is_no_entry_is_refused_with_the_order_of_the_arguments(self, entry):
        with self.assertRaisesRegex(TypeError, "must be a `TaskSpec` or a dictionary.*register_task"):
            register_task(entry, "mine", "tone")

    def test_no_task_is_replaced_by_accident(self):
        first = register_task(ENTRY, "mine", "tone")
        self.assertIs(register_task(first), first)  # the same again, as when a file is named twice
        with self.assertRaisesRegex(ValueError, "already has another task of that name.*overwrite=True"):
            register_task(ENTRY | {"version": 2}, "mine", "tone")
        self.assertEqual(get_task("tone").version, 1)
        register_task(ENTRY | {"version": 2}, "mine", "tone", overwrite=True)
        self.assertEqual(get_task("tone").version, 2)

    def test_a_task_without_training_data_is_trained_on_another(self):
        names = [task.name for task in training_tasks([get_task("ax"), get_task("rte"), get_task("mnli")])]
        self.assertEqual(names, ["mnli", "rte"])
