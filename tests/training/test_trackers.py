"""What trackers are told: the run, the same one after a restart, plots and predictions. None contacts a network."""

import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from unittest import mock

import wandb
from absl.testing import parameterized
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

from hf_depth.training.runs import Run
from hf_depth.training.trackers import (
    MAX_EXAMPLES,
    DepthTensorBoardCallback,
    DepthTrackioCallback,
    DepthWandbCallback,
    Outputs,
    check_wandb_key,
    run_name,
)
from tiny_training import RunTestCase, trainer

DESCRIPTION = {"objective": "span_corruption", "model_type": "t5", "max_source_length": 96, "seed": 42}
NAME = "t5 from scratch, span_corruption on Python's documentation, 96 tokens, seed 42"
INTEGRATIONS = "transformers.integrations.integration_utils"


def fake_wandb():
    """A module that records calls; `init` begins a run with the id that it is given or a new one."""
    wandb = mock.MagicMock(run=None, config={})
    wandb.config = mock.MagicMock()

    def init(**arguments):
        wandb.run = mock.MagicMock(id=arguments.get("id", f"new{wandb.init.call_count}"))

    wandb.init.side_effect = init
    wandb.finish.side_effect = lambda: setattr(wandb, "run", None)
    return wandb


class TrackersTestCase(RunTestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ))
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            del os.environ[name]

    def run_once(self, callback, patch=None, description=DESCRIPTION, **changes):
        """A run of a tiny model with the callback of a tracker; the callback that the trainer has in its place."""
        arguments = {"save_strategy": "steps", "save_steps": 1, "do_train": True, "do_eval": True, "do_predict": True}
        made = trainer("t5", self.folder, number_of_rows=8, **arguments | changes)
        made.add_callback(callback)
        (tracker,) = (one for one in made.callback_handler.callbacks if isinstance(one, type(callback)))
        run = Run.find(made.args, description)
        made.model = run.restore(made.model)
        run.execute(made, test_dataset=made.eval_dataset)
        made.end()
        return tracker


class WandbKeyTest(TrackersTestCase):
    """The key is looked for as the installed W&B does, without a terminal."""

    def check(self, process_index=0, report_to=("wandb",), is_terminal=False, **environment):
        os.environ.update(environment, WANDB_CONFIG_DIR=self.folder, NETRC=f"{self.folder}/netrc")
        with (
            mock.patch("wandb.sdk.wandb_setup._singleton", None),
            mock.patch("wandb.errors.term.can_use_terminput", return_value=is_terminal),
            mock.patch("socket.socket.connect", side_effect=AssertionError("no network")),
        ):
            try:
                check_wandb_key(mock.Mock(report_to=list(report_to), process_index=process_index))
            finally:
                wandb.teardown()  # reads the environment anew the next time

    def netrc(self, machine):
        Path(self.folder, "netrc").write_text(f"machine {machine}\n  login user\n  password {'a' * 40}\n")

    @parameterized.parameters({}, {"WANDB_MODE": "online"}, {"report_to": ("tensorboard", "wandb")})
    def test_a_run_that_could_not_log_is_refused_at_its_start(self, **settings):
        with self.assertRaisesRegex(ValueError, "no API key for https://.*`wandb login`.*WANDB_MODE=offline"):
            self.check(**settings)

    @parameterized.parameters(
        {"WANDB_API_KEY": "a" * 40},
        {"WANDB_MODE": "offline"},
        {"WANDB_MODE": "dryrun"},
        {"WANDB_MODE": "disabled"},
        {"process_index": 1},  # does not log
        {"report_to": ("tensorboard",)},
        {"report_to": ()},
        {"is_terminal": True},  # W&B asks
    )
    def test_what_needs_no_key_or_has_one_passes(self, **settings):
        self.check(**settings)

    def test_a_key_is_that_of_the_server(self):
        self.netrc("wandb.example.org:8080")
        self.check(WANDB_BASE_URL="http://wandb.example.org:8080")
        with self.assertRaisesRegex(ValueError, "no API key for https://other.example.org"):
            self.check(WANDB_BASE_URL="https://other.example.org")
        self.netrc("api.wandb.ai")
        self.check(WANDB_BASE_URL="https://api.wandb.ai")

    @parameterized.parameters(
        ({"WANDB_MODE": "onlin"}, "WANDB_MODE is 'onlin'. Input should be 'online', "),
        ({"WANDB_BASE_URL": "wandb.example.org"}, "WANDB_BASE_URL is 'wandb.example.org'. "),
    )
    def test_a_wrong_setting_of_wandb_is_named_in_one_line(self, environment, message):
        with self.assertRaises(ValueError) as raised:
            self.check(**environment)
        self.assertStartsWith(str(raised.exception), f"`--report_to wandb`: {message}")
        self.assertNotIn("\n", str(raised.exception))

    def test_settings_of_wandb_count(self):
        Path(self.folder, "settings").write_text("[default]\nmode = offline\n")
        self.check()

    def test_a_run_of_wandb_that_has_begun_is_used(self):
        with mock.patch("wandb.run", mock.Mock()):
            self.check()


class WandbTest(TrackersTestCase):
    def wandb_run(self, **changes):
        """The fake module after a run."""
        callback = DepthWandbCallback()
        callback._wandb = fake_wandb()
        self.run_once(callback, **changes)
        return callback._wandb

    def config(self, wandb):
        return {name: value for call in wandb.config.update.call_args_list for name, value in call.args[0].items()}

    def test_the_configuration_says_what_the_run_is(self):
        config = self.config(self.wandb_run())
        expected = DESCRIPTION | {"train_examples": 8, "d_model": 16, "optim": "sgd"}
        self.assertEqual(config | expected, config)

    def test_a_run_gets_a_name_of_what_it_is_unless_the_user_gives_one(self):
        self.assertEqual(self.wandb_run().init.call_args.kwargs["name"], NAME)
        self.folder += "/named"
        self.assertEqual(self.wandb_run(run_name="mine").init.call_args.kwargs["name"], "mine")

    def test_an_interrupted_run_without_a_network_goes_on_under_its_id(self):
        # `wandb sync` uploads the folders of one id to one run.
        folder = self.folder
        os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": folder, "WANDB_SILENT": "true"}
        for steps in (1, 2):
            with self.subTest(f"{steps} steps"):
                self.run_once(DepthWandbCallback(), max_steps=steps)
        runs = sorted(Path(folder, "wandb").glob("offline-run-*"))
        self.assertLen(runs, 2)
        logs = [log for run in runs for log in run.glob("run-*.wandb")]
        self.assertLen(logs, 2)
        self.assertLen({log.name for log in logs}, 1)  # the name of a folder has more than the id
        for log in logs:
            until = time.monotonic() + 600  # its own process writes it, a moment after the end
            while b"train/loss" not in log.read_bytes() and time.monotonic() < until:
                time.sleep(0.1)
            self.assertIn(b"train/loss", log.read_bytes())

    @parameterized.parameters("WANDB_NAME", "WANDB_SWEEP_ID")
    def test_a_name_that_the_environment_gives_stays(self, variable):
        os.environ[variable] = "given"
        self.assertNotIn("name", self.wandb_run().init.call_args.kwargs)

    def test_a_restart_continues_the_same_run(self):
        first = self.wandb_run(max_steps=1)
        self.assertNotIn("id", first.init.call_args.kwargs)
        again = self.wandb_run(max_steps=2)
        self.assertContainsSubset({"id": "new1", "resume": "allow"}.items(), again.init.call_args.kwargs.items())
        evaluated = self.wandb_run(max_steps=2)  # a finished run
        self.assertEqual(evaluated.init.call_args.kwargs["id"], "new1")
        self.assertEqual(evaluated.init.call_count, 1)

    def test_a_run_that_starts_anew_is_another_one(self):
        self.wandb_run(max_steps=1)
        again = self.wandb_run(max_steps=1, resume_from_checkpoint="false")
        self.assertNotIn("id", again.init.call_args.kwargs)

    def test_a_checkpoint_without_a_tracker_is_continued_with_one(self):
        made = trainer("t5", self.folder, number_of_rows=8, save_strategy="steps", save_steps=1, do_train=True)
        Run.find(made.args, DESCRIPTION).execute(made)
        self.assertNotIn("id", self.wandb_run(max_steps=2).init.call_args.kwargs)
        state = json.loads(Path(self.folder, "checkpoint-2", "trainer_state.json").read_text())
        self.assertEqual(state["stateful_callbacks"]["DepthWandbCallback"]["attributes"], {"identity": "new1"})

    @parameterized.parameters(({"WANDB_RUN_ID": "mine"}, ()), ({"WANDB_RESUME": "must"}, ("id",)))
    def test_what_the_environment_says_of_the_run_is_respected(self, environment, expected):
        self.wandb_run(max_steps=1)
        os.environ.update(environment)
        arguments = self.wandb_run(max_steps=2).init.call_args.kwargs
        self.assertCountEqual(arguments.keys() & {"id", "resume"}, expected)

    def test_a_run_of_the_users_own_is_used_and_not_ended(self):
        callback = DepthWandbCallback()
        callback._wandb = fake_wandb()
        callback._wandb.run = mock.MagicMock(id="own")
        tracker = self.run_once(callback)
        callback._wandb.init.assert_not_called()
        callback._wandb.finish.assert_not_called()
        self.assertEqual(tracker.identity, "own")

    def test_plots_predictions_and_test_metrics_are_logged_at_the_end(self):
        self.draw_losses()
        lines = '{"input": "a", "scores": {"yes": 1.0}}\n' * 200
        for name in ("predictions_old.jsonl", "confusion_matrix_old.png"):  # of an earlier model
            Path(self.folder, name).write_text("{}\n")
            os.utime(Path(self.folder, name), (1.7e9, 1.7e9))
        path = Path(self.folder, "predictions_rte_test.jsonl")
        with mock.patch.object(Run, "report", side_effect=lambda _: path.write_text(lines)):
            wandb = self.wandb_run()
        wandb.Image.assert_called_once_with(f"{self.folder}/losses.png")
        table = wandb.Table.call_args.kwargs
        self.assertEqual(table["columns"], ["input", "scores"])
        self.assertEqual(table["data"], [["a", '{"yes": 1.0}']] * MAX_EXAMPLES)
        logged = {name for call in wandb.log.call_args_list for name in call.args[0]}
        self.assertContainsSubset(["losses", "predictions_rte_test", "eval/loss", "test/loss", "train/loss"], logged)
        self.assertNoCommonElements(["predictions_old", "confusion_matrix_old"], logged)
        self.assertFalse(any(name.startswith("train/predict") for name in logged))
        wandb.finish.assert_called_once()

    def test_another_process_than_the_first_logs_nothing(self):
        made = trainer("t5", self.folder)
        made.state.is_world_process_zero = False
        callback = DepthWandbCallback()
        callback._wandb = fake_wandb()
        callback.on_train_begin(made.args, made.state, made.control, model=made.model)
        callback.on_log(made.args, made.state, made.control, model=made.model, logs={"loss": 1.0})
        for name in ("init", "log"):
            getattr(callback._wandb, name).assert_not_called()

    def test_report_to_wandb_is_answered_by_our_callback(self):
        made = trainer("t5", self.folder, report_to="wandb")
        kinds = [type(one) for one in made.callback_handler.callbacks if isinstance(one, WandbCallback)]
        self.assertEqual(kinds, [DepthWandbCallback])

    def test_a_callback_of_the_users_own_stays(self):
        own = type("Own", (WandbCallback,), {})
        made = trainer("t5", self.folder)
        made.add_callback(own())
        self.assertTrue(any(type(one) is own for one in made.callback_handler.callbacks))


class TrackioTest(TrackersTestCase):
    def trackio_run(self, **changes):
        trackio = mock.MagicMock(spec=ModuleType("trackio"))
        for name in ("init", "config", "log", "finish", "context_vars", "Image", "Table"):
            setattr(trackio, name, mock.MagicMock())
        trackio.context_vars.current_space_id.get.return_value = None
        with (
            mock.patch(f"{INTEGRATIONS}.is_trackio_available", return_value=True),
            mock.patch.dict(sys.modules, trackio=trackio),
        ):
            self.run_once(DepthTrackioCallback(), **changes)
        return trackio

    def test_training_evaluations_and_restarts_are_one_run(self):
        first, again = self.trackio_run(max_steps=1), self.trackio_run(max_steps=2)
        names = {call.kwargs["name"] for module in (first, again) for call in module.init.call_args_list}
        self.assertLen(names, 1)
        self.assertStartsWith(names.pop(), NAME)
        self.assertGreater(first.init.call_count, 1)  # Trackio ends its run with the training

    def test_a_name_of_the_user_is_the_name(self):
        self.assertEqual(self.trackio_run(run_name="mine").init.call_args.kwargs["name"], "mine")

    def test_the_run_is_described_and_its_plots_are_logged(self):
        self.draw_losses()
        trackio = self.trackio_run()
        updates = [call.args[0] for call in trackio.config.update.call_args_list]
        self.assertTrue(any(update.get("objective") == "span_corruption" for update in updates))
        trackio.Image.assert_called_once_with(f"{self.folder}/losses.png")
        self.assertTrue(any("losses" in call.args[0] for call in trackio.log.call_args_list))


class TensorBoardTest(TrackersTestCase):
    def tensorboard_run(self, **changes):
        """The writers of a run, and the folders of logs that they were made for."""
        writers = []

        def make(log_dir):
            writers.append(mock.MagicMock(log_dir=log_dir))
            return writers[-1]

        tensorboard = mock.MagicMock(SummaryWriter=make)
        with (
            mock.patch(f"{INTEGRATIONS}.is_tensorboard_available", return_value=True),
            mock.patch.dict(sys.modules, {"torch.utils.tensorboard": tensorboard}),
        ):
            self.run_once(DepthTensorBoardCallback(), **changes)
        return writers

    def test_training_evaluations_and_restarts_are_one_run(self):
        writers = self.tensorboard_run(max_steps=1) + self.tensorboard_run(max_steps=2)
        (folder,) = {writer.log_dir for writer in writers}
        self.assertStartsWith(folder, f"{self.folder}/runs/")

    def test_the_run_is_described_and_its_plots_are_logged(self):
        self.draw_losses()
        writers = self.tensorboard_run()
        texts = {call.args[0]: call.args[1] for writer in writers for call in writer.add_text.call_args_list}
        self.assertIn("| objective | span_corruption |", texts["run"])
        (call,) = (call for writer in writers for call in writer.add_image.call_args_list)
        self.assertEqual((call.args[0], call.args[1].ndim, call.kwargs), ("losses", 3, {"dataformats": "HWC"}))


class NamesTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"tasks": ["glue/rte version 1", "glue/cola version 1"]}, "depth on 2 tasks, seed 42"),
        ({"objective": "prefix_lm", "train_file": ["3 bytes (0a)"]}, "depth, prefix_lm on 1 file, seed 42"),
        ({"objective": "prefix_lm", "dataset_name": "org/novels"}, "depth, prefix_lm on org/novels, seed 42"),
    )
    def test_the_name_of_a_run_tells_its_model_and_data(self, description, expected):
        described = {"model_name_or_path": "/data/runs/depth", "seed": 42} | description
        self.assertEqual(run_name(described, "runs/1"), expected)

    def test_a_folder_without_results_has_no_outputs(self):
        self.assertEqual(Outputs.read("/nowhere"), Outputs({}, {}, {}))

    @parameterized.parameters(
        (DepthWandbCallback, WandbCallback),
        (DepthTrackioCallback, TrackioCallback),
        (DepthTensorBoardCallback, TensorBoardCallback),
    )
    def test_our_callbacks_are_those_of_transformers(self, own, host):
        self.assertTrue(issubclass(own, host))
