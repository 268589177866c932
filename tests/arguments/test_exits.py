"""How a script ends: which errors are a user's, what is printed of them, and by which of several processes."""

import contextlib
import importlib
import io
import json
import os
import tempfile
from pathlib import Path
from unittest import mock

import torch
from absl.testing import parameterized
from datasets import Dataset, load_dataset
from torch.utils.data import DataLoader
from transformers import AutoConfig

from hf_depth.arguments import exits
from hf_depth.arguments.exits import run_script
from hf_depth.arguments.launch import check_launch
from hf_depth.arguments.parser import parse_arguments
from hf_depth.data.corpus import load_corpus
from hf_depth.errors import user_message
from hf_depth.ranges import Range, check_ranges
from hf_depth.training.training_args import DepthTrainingArguments


def refuse(row) -> None:
    """Raises by a check of the package; for worker processes."""
    check_ranges(mock.Mock(number=-1), {"number": Range(least=0)})


def unpack(pair):
    first, second = pair  # raises a ValueError, but by no check


def call_with_a_bug():
    """A bug inside the package: `Range` compares what cannot be compared."""
    return 2 in Range(least="zero")


def launched_apart():
    with mock.patch.dict(os.environ, WORLD_SIZE="2"):
        check_launch(mock.Mock(world_size=1))


def out_of_memory():
    raise torch.OutOfMemoryError("CUDA out of memory.")


def connection_lost():
    raise ConnectionResetError("the other process is gone")


class Refused(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        refuse(index)


class ExitsTest(parameterized.TestCase):
    def run_in(self, main, **environment):
        """What a script prints, and its exit status."""
        stderr = io.StringIO()
        with mock.patch.dict(os.environ, environment), contextlib.redirect_stderr(stderr):
            with self.assertRaises(SystemExit) as context:
                run_script(main)
        return stderr.getvalue(), context.exception.code

    @parameterized.named_parameters(
        ("a_check", lambda: load_corpus(validation_split_percentage=-1), "validation_split_percentage.*got -1"),
        ("a_missing_file", lambda: load_corpus(train_file="/nowhere/a.txt"), "there is no file '/nowhere/a.txt'"),
        ("the_launch", launched_apart, "2 processes were launched"),
        ("a_data_set", lambda: load_dataset("/nowhere/at/all"), "/nowhere/at/all"),
        ("a_model", lambda: AutoConfig.from_pretrained("no-one/has-this"), "connect"),
        ("a_package", lambda: importlib.import_module("no_such_package"), "No module named 'no_such_package'"),
        ("memory", out_of_memory, "(?s)CUDA out of memory.*`--per_device_train_batch_size`"),
        ("a_preparing_process", lambda: Dataset.from_dict({"a": [1, 2]}).map(refuse, num_proc=2), "`number` must be"),
        ("a_loading_process", lambda: next(iter(DataLoader(Refused(), num_workers=1))), "`number` must be .*got -1"),
    )
    def test_a_mistake_is_one_message_and_status_2(self, main, message):
        output, status = self.run_in(main)
        self.assertEqual(status, 2)
        self.assertRegex(output, message)
        self.assertNotIn("Traceback", output)
        self.assertEqual(output.count("error: "), 1)

    @parameterized.parameters(
        (lambda: {}["labels"], KeyError),
        (lambda: unpack((1, 2, 3)), ValueError),
        (call_with_a_bug, TypeError),
        (lambda: torch.ones(2) @ torch.ones(3), RuntimeError),
        (connection_lost, ConnectionResetError),
        (lambda: DepthTrainingArguments.no_such_name, AttributeError),
    )
    def test_a_bug_stays_an_exception(self, main, kind):
        with self.assertRaises(kind) as context:
            run_script(main)
        self.assertIsNone(user_message(context.exception))

    def test_the_traceback_can_be_asked_for(self):
        with mock.patch.dict(os.environ, HF_DEPTH_TRACEBACK="1"), self.assertRaisesRegex(ValueError, "got -1"):
            run_script(lambda: load_corpus(validation_split_percentage=-1))

    def test_passwords_and_tokens_are_masked(self):
        output, _ = self.run_in(lambda: load_corpus(train_file="https://me:secret@example.org/a.exe?token=secret"))
        self.assertIn("https://***@example.org/a.exe?***", output)
        self.assertNotIn("secret", output)

    @parameterized.named_parameters(
        ("after_the_start", lambda: load_corpus(validation_split_percentage=-1), "got -1"),
        ("of_an_argument", lambda: parse_arguments([DepthTrainingArguments], ["--max_step", "3"]), "max_steps"),
    )
    def test_the_launched_processes_leave_the_message_to_the_first(self, main, message):
        with tempfile.TemporaryDirectory() as folder:
            for rank in (1, 0, 2):
                file = Path(folder, str(rank), "error.json")
                file.parent.mkdir()
                with mock.patch.object(exits.time, "sleep") as sleep:  # meanwhile the launcher ends the others
                    output, status = self.run_in(main, LOCAL_RANK=str(rank), TORCHELASTIC_ERROR_FILE=str(file))
                self.assertEqual((sleep.call_count, status), (int(rank > 0), 2))
                self.assertIn(message, output)
                self.assertIn(message, json.loads(file.read_text())["message"])  # for the table of the launcher

    @parameterized.parameters("0", "1")
    def test_who_loses_another_process_leaves_the_message_to_that_one(self, rank):
        def lose():
            raise RuntimeError("[…/gloo/transport/tcp/pair.cc:553] Connection closed by peer")

        with mock.patch.object(exits.time, "sleep") as sleep, mock.patch.dict(os.environ, LOCAL_RANK=rank):
            with self.assertRaises(RuntimeError):
                run_script(lose)
        sleep.assert_called_once_with(exits.PATIENCE)
