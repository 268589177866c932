import json
import tempfile
from dataclasses import replace
from pathlib import Path

from absl.testing import parameterized

from hf_depth import get_task
from hf_depth.tasks.config import (
    TASK_CONFIG_FILE,
    TaskConfig,
    find_task_config,
    prompt_format,
)
from tiny_tasks import QUESTIONS

TASKS = ("glue/rte", "glue/stsb", "disco_eval/SParxiv", "natural_instructions/natural_instructions", "glue/ax")


class TaskConfigTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def write(self, content: str):
        Path(self.folder, TASK_CONFIG_FILE).write_text(content)

    @parameterized.parameters(*TASKS)
    def test_a_saved_configuration_is_read_as_it_was(self, name):
        task = get_task(name)
        settings = {"sentence_language": "de", "length_normalize_scores": True, "generation_max_length": 9}
        options = {task.loader: {"num_pos_examples": 1}}
        config = TaskConfig((task, QUESTIONS), True, generation_num_beams=2, loader_options=options, **settings)
        config.save_pretrained(self.folder)
        self.assertEqual(TaskConfig.from_pretrained(self.folder), config)
        self.assertEqual(TaskConfig.from_pretrained(self.folder).tasks[0].labels, task.labels)

    def test_the_file_names_no_folder_of_this_machine(self):
        data = Path(self.folder, "secret", "texts")
        data.mkdir(parents=True)
        TaskConfig((replace(QUESTIONS, path=str(data)),), False).save_pretrained(self.folder)
        self.assertNotIn("secret", Path(self.folder, TASK_CONFIG_FILE).read_text())
        self.assertIsNone(TaskConfig.from_pretrained(self.folder).tasks[0].path)  # "texts" may be another's on the Hub

    @parameterized.parameters(*TASKS)
    def test_the_format_of_a_prompt_gives_the_prompt(self, name):
        task = get_task(name)
        texts = {column: f"Text {number}." for number, column in enumerate(task.text_column_name)}
        self.assertEqual(prompt_format(task).format(**texts), task.prompt(texts))

    def test_a_task_is_found_by_its_names(self):
        rte, questions = get_task("glue/rte"), QUESTIONS
        config = TaskConfig((rte, questions), True)
        self.assertEqual([config.task(name) for name in ("rte", "glue/rte", "tests/questions")], [rte, rte, questions])
        self.assertEqual(TaskConfig((questions,), True).task(), questions)
        with self.assertRaisesRegex(ValueError, "choose one by `task`. They are: 'glue/rte', 'tests/questions'"):
            config.task()
        with self.assertRaisesRegex(ValueError, "no task 'glue/rta'. Did you mean 'glue/rte'"):
            config.task("glue/rta")

    def test_a_folder_without_the_file_is_named(self):
        self.assertIsNone(find_task_config(self.folder))
        Path(self.folder, "config.json").touch()
        with self.assertRaisesRegex(ValueError, f"{self.folder} has no task_config.json.*Name its task by `task`"):
            TaskConfig.from_pretrained(self.folder)

    @parameterized.parameters(
        ("{", "Expecting"),
        (json.dumps({"tasks": []}), "a field is missing or wrong"),
        (json.dumps({"tasks": {"a/b": {"name": "b"}}}), "a field is missing or wrong.*benchmark"),
    )
    def test_a_file_that_cannot_be_read_is_named(self, content, message):
        self.write(content)
        with self.assertRaisesRegex(ValueError, f"task_config.json of {self.folder} cannot be read: .*{message}"):
            find_task_config(self.folder)
