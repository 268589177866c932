"""Each task has its loader, and each loader its options."""

from unittest import mock

from absl.testing import parameterized
from datasets import Dataset

from hf_depth.tasks.loaders.discourse import DiscourseOptions
from hf_depth.tasks.loaders.natural_instructions import NaturalInstructionsOptions
from hf_depth.tasks.loading import LOADERS, Loader, build_options, load_task
from hf_depth.tasks.registry import as_task, get_task
from hf_depth.tasks.sources import TaskFiles
from hf_depth.tasks.splits import TaskSplits
from tiny_tasks import RTE_EXAMPLES, TaskFilesTestCase, as_jsonl


class LoadTaskTest(TaskFilesTestCase):
    def test_names_and_tasks_files_and_keyword_arguments_load_the_same(self):
        path, cache_dir = self.write("a.jsonl", as_jsonl(RTE_EXAMPLES)), str(self.folder / "cache")
        for task in ("rte", "glue/rte", get_task("rte")):
            for arguments in (
                {"files": TaskFiles(train_file=path, cache_dir=cache_dir)},
                {"train_file": path, "cache_dir": cache_dir},
                {"files": TaskFiles(train_file="nowhere.jsonl", cache_dir=cache_dir), "train_file": path},
            ):
                self.assertEqual(load_task(task, **arguments)["train"].to_list(), RTE_EXAMPLES)


ROWS = Dataset.from_dict({"a": ["A"], "label": [0], "idx": [0]})


class OwnLoaderTest(parameterized.TestCase):
    TASK = as_task({"text_column_name": "a", "prefix": "", "labels": ["x", "y"], "loader": "own"}, "mine", "t")

    def refuses(self, loader, error, message):
        with mock.patch.dict(LOADERS, {"own": loader}):
            for load in (load_task, TaskSplits.load):
                with self.assertRaisesRegex(error, message):
                    load(self.TASK)

    @parameterized.parameters(
        ({"dev": ROWS}, ValueError, "^`LOADERS.'own'..load.….`: the task 'mine/t' has no split 'dev'. The splits"),
        ({"train": ROWS.to_list()}, TypeError, "^`LOADERS.'own'..load.…..'train'.` must be a .*Dataset`, got list"),
        (ROWS, TypeError, "^`LOADERS.'own'..load.….` must map the names of splits to data sets, got Dataset"),
    )
    def test_a_loader_returns_data_sets_by_the_names_of_the_splits(self, loaded, error, message):
        self.refuses(Loader(lambda *args, **kwargs: loaded), error, message)


class OptionsTest(parameterized.TestCase):
    @parameterized.parameters(
        (
            "sentence_ordering",
            "text_colum",
            "no option `text_colum` of the loader 'discourse'. Did you mean 'text_column'",
        ),
        ("rte", "text_column", "no option `text_column` of the loader 'table'. The options are: none"),
    )
    def test_a_misspelt_option_is_answered_by_near_ones(self, name, option, message):
        with self.assertRaisesRegex(ValueError, message):
            load_task(name, options={option: 1})

    def test_options_are_given_by_name_or_as_their_dataclass(self):
        task = get_task("sentence_ordering")
        options = DiscourseOptions(max_examples_per_document=3)
        self.assertEqual(build_options(task, options), options)
        self.assertEqual(build_options(task, {"max_examples_per_document": 3}), options)
        self.assertEqual(build_options(task), DiscourseOptions())
        with self.assertRaisesRegex(ValueError, "no option `add_task_definition` of the loader 'discourse'"):
            build_options(task, NaturalInstructionsOptions())
