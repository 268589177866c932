"""What is checked before a run starts, and the folder that a run of a sweep gets."""

import logging
import os
import tempfile
from types import SimpleNamespace
from unittest import TestCase, mock

import torch
from absl.testing import parameterized
from transformers import Seq2SeqTrainingArguments

from helpers import run_in_two_processes
from hf_depth import DepthTrainingArguments
from hf_depth.arguments import launch
from hf_depth.arguments.launch import check_launch, check_run_arguments, set_up


def arguments(world_size, device="cpu", **changes):
    """What `check_launch` reads."""
    others = {"output_dir": "runs/1", "fsdp": None, "deepspeed": None} | changes
    return SimpleNamespace(world_size=world_size, device=SimpleNamespace(type=device), **others)


def launched(output_dir, **changes):
    """What `set_up` reads."""
    others = {"should_log": False, "log_level": "passive", "world_size": 1, "process_index": 0, "deepspeed": None}
    return mock.Mock(output_dir=output_dir, **others | changes)


def set_up_on_two_disks(folder):
    """One of two processes: a folder that only one of them sees is refused, unless nothing is read from it again."""
    rank = os.environ["RANK"]
    separate = {"output_dir": f"{folder}/{rank}", "do_train": True, "use_cpu": True}
    set_up(DepthTrainingArguments(**separate | {"output_dir": folder}))
    for harmless in ({"save_on_each_node": True}, {"save_strategy": "no"}, {"do_train": False}):
        set_up(DepthTrainingArguments(**separate | harmless))
    message = "not the same folder for all processes: 1 of 2 do not see.*`--save_on_each_node`"
    with mock.patch.object(launch, "MOST_DELAY", 0.3), TestCase().assertRaisesRegex(ValueError, message):
        set_up(DepthTrainingArguments(**separate))
    if rank == "1":
        os.rmdir(f"{folder}/1")
        open(f"{folder}/1", "w").close()
    with TestCase().assertRaisesRegex(ValueError, f"`--output_dir {folder}/1` cannot be written"):  # on both
        set_up(DepthTrainingArguments(**separate))
    torch.distributed.destroy_process_group()


class CheckLaunchTest(parameterized.TestCase):
    @parameterized.parameters((None, 1), ("1", 1), ("2", 2), ("8", 8))
    def test_processes_of_one_group_pass(self, launched, world_size):
        environment = {} if launched is None else {"WORLD_SIZE": launched}
        with mock.patch.dict("os.environ", environment):
            check_launch(arguments(world_size=world_size))

    def test_processes_that_train_alone_are_stopped(self):
        with mock.patch.dict("os.environ", {"WORLD_SIZE": "2"}):
            with self.assertRaisesRegex(ValueError, "2 processes.*would write to runs/1.*`--use_cpu true`"):
                check_launch(arguments(world_size=1))

    @parameterized.parameters(({"ACCELERATE_USE_FSDP": "true"}, {}), ({}, {"fsdp": True}))
    def test_fsdp_on_a_cpu_is_refused(self, environment, changes):
        with mock.patch.dict("os.environ", {"WORLD_SIZE": "2"} | environment):
            check_launch(arguments(world_size=2, device="cuda", **changes))
            with self.assertRaisesRegex(ValueError, "FSDP.*CPUs.*ddp_cpu.yaml.*zero3.yaml"):
                check_launch(arguments(world_size=2, **changes))

    @parameterized.parameters("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    def test_deepspeed_without_a_launcher_is_refused(self, variable):
        with mock.patch.dict("os.environ", {variable: "0"}):
            check_launch(arguments(world_size=1, deepspeed="zero3.json"))
        with mock.patch.dict("os.environ"):
            os.environ.pop("RANK", None)
            with self.assertRaisesRegex(ValueError, "`--deepspeed` needs a launcher.*torchrun"):
                check_launch(arguments(world_size=1, deepspeed="zero3.json"))


class SetUpTest(parameterized.TestCase):
    def test_a_run_must_have_a_folder_of_its_own(self):
        with self.assertRaisesRegex(ValueError, "--output_dir"):
            set_up(Seq2SeqTrainingArguments(use_cpu=True))

    @parameterized.parameters(
        ({"WANDB_SWEEP_ID": "s1", "WANDB_RUN_ID": "r1"}, "runs/rte/r1"),
        ({"WANDB_RUN_ID": "r1"}, "runs/rte"),  # resumed by hand
        ({}, "runs/rte"),
    )
    def test_only_a_run_of_a_sweep_has_a_folder_of_its_own(self, environment, expected):
        with mock.patch.dict(os.environ, environment), tempfile.TemporaryDirectory() as folder:
            arguments = launched(f"{folder}/runs/rte")
            set_up(arguments)
            self.assertEqual(arguments.output_dir, f"{folder}/{expected}")

    @parameterized.parameters("{file}", "{file}/runs", "/proc/runs")
    def test_a_folder_that_cannot_be_written_is_refused(self, name):
        with tempfile.NamedTemporaryFile() as file:
            folder = name.format(file=file.name)
            with self.assertRaisesRegex(ValueError, f"`--output_dir {folder}` cannot be written: "):
                set_up(launched(folder))

    def test_processes_that_do_not_share_a_folder_are_stopped(self):
        with tempfile.TemporaryDirectory() as folder:
            run_in_two_processes(set_up_on_two_disks, folder)

    @parameterized.parameters(
        ("hf_depth.data.files", logging.WARNING, False, "warning", False),
        ("hf_depth.data.files", logging.WARNING, False, "info", True),
        ("hf_depth.data.files", logging.WARNING, True, "warning", True),
        ("hf_depth.data.files", logging.ERROR, False, "warning", True),
        ("hf_depth_of_mine", logging.WARNING, False, "warning", True),
    )
    def test_what_all_processes_would_warn_of_is_said_once(self, name, level, should_log, replica_level, expected):
        with tempfile.TemporaryDirectory() as folder, mock.patch("logging.basicConfig") as configure:
            set_up(launched(folder, should_log=should_log, log_level_replica=replica_level))
        (handler,) = configure.call_args.kwargs["handlers"]
        record = logging.LogRecord(name, level, "", 1, "short texts", (), None)
        self.assertEqual(bool(handler.filter(record)), expected)

    def test_logs_hold_no_password(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch("logging.basicConfig") as configure:
            set_up(launched(folder))
        (handler,) = configure.call_args.kwargs["handlers"]
        record = logging.LogRecord("", logging.INFO, "", 1, "reading %s", ("https://me:secret@host/a",), None)
        self.assertRegex(handler.format(record), "INFO reading https://[*]{3}@host/a$")


class CheckRunArgumentsTest(parameterized.TestCase):
    def check(self, model_name_or_path=None, **changes):
        names = ("do_train", "do_eval", "do_predict", "eval_on_start")
        training_args = SimpleNamespace(**dict.fromkeys(names, False) | {"hub_token": None} | changes)
        training_args.device = SimpleNamespace(type="cuda")
        training_args.use_scratch_learning_rate = lambda: False
        model_args = SimpleNamespace(model_name_or_path=model_name_or_path, use_peft=False)
        check_run_arguments(model_args, training_args)
        return training_args

    @parameterized.parameters(
        ({"do_eval": True}, "Without `--do_train`, name the model to evaluate by `--model_name_or_path`"),
        ({"do_train": True, "hub_token": "secret"}, "`--hub_token` would stay in logs.*`hf auth login`"),
    )
    def test_a_run_that_cannot_work_is_refused(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message) as error:
            self.check(**arguments)
        self.assertNotIn("secret", str(error.exception))

    @parameterized.parameters(
        ({"do_train": True}, False),
        ({"do_train": True, "eval_on_start": True}, True),
        ({"do_train": True, "do_eval": True}, True),
        ({"do_predict": True, "model_name_or_path": "runs/1"}, False),
    )
    def test_evaluation_at_the_start_is_evaluation(self, arguments, expected):
        self.assertEqual(self.check(**arguments).do_eval, expected)

    @parameterized.parameters((None, {}, 2e-2), ("runs/depth", {}, 5e-3), (None, {"learning_rate": 5e-3}, 5e-3))
    def test_a_model_from_scratch_has_its_own_learning_rate_unless_one_is_given(self, checkpoint, given, expected):
        training_args = DepthTrainingArguments("runs/x", do_train=True, use_cpu=True, **given)
        model_args = SimpleNamespace(model_name_or_path=checkpoint, use_peft=False)
        with self.assertLogs("hf_depth.arguments.launch", "INFO") as logs:
            logging.getLogger("hf_depth.arguments.launch").info("begin")
            check_run_arguments(model_args, training_args)
        self.assertEqual(training_args.learning_rate, expected)
        self.assertLen(logs.output, 1 + (expected == 2e-2))
        if expected == 2e-2:
            self.assertIn("learning rate of a model from scratch is 0.02", logs.output[-1])

    def test_an_adapter_has_adamw(self):
        training_args = DepthTrainingArguments("runs/x", do_train=True, use_cpu=True)
        check_run_arguments(SimpleNamespace(model_name_or_path="runs/base", use_peft=True), training_args)
        self.assertEqual((training_args.optim, training_args.learning_rate), ("adamw_torch_fused", 1e-4))
