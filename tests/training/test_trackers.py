"""What trackers are told: one run, the same after a restart, plots and predictions. None contacts a network."""

import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from unittest import mock

import wandb
from absl.testing import parameterized
from transformers.integrations import WandbCallback

from hf_depth.training.runs import Run
from hf_depth.training.trackers import TrackedRun, check_trackers
from tiny_training import RunTestCase, trainer

DESCRIPTION = {"objective": "span_corruption", "model_type": "t5", "max_source_length": 96, "seed": 42}
INTEGRATIONS = "transformers.integrations.integration_utils"


class TrackersTestCase(RunTestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ))
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            del os.environ[name]

    def run_once(self, tracker, **changes):
        """A run of a tiny model that reports to a tracker."""
        arguments = {"save_strategy": "steps", "save_steps": 1, "do_train": True, "do_eval": True, "do_predict": True}
        made = trainer("t5", self.folder, number_of_rows=8, report_to=tracker, **arguments | changes)
        run = Run.find(made.args, DESCRIPTION)
        made.model = run.restore(made.model)
        run.execute(made, test_dataset=made.eval_dataset)
        made.end()
        return made


class CheckTest(TrackersTestCase):
    """A key of W&B is looked for as the installed W&B does, without a terminal."""

    def check(self, process_index=0, report_to=("wandb",), **environment):
        os.environ.update(environment, WANDB_CONFIG_DIR=self.folder, NETRC=f"{self.folder}/netrc")
        with mock.patch("wandb.sdk.wandb_setup._singleton", None):
            try:
                check_trackers(mock.Mock(report_to=list(report_to), process_index=process_index))
            finally:
                wandb.teardown()  # reads the environment anew the next time

    @parameterized.parameters({}, {"WANDB_MODE": "online"})
    def test_a_run_that_could_not_log_is_refused_at_its_start(self, **settings):
        with self.assertRaisesRegex(ValueError, "`--report_to wandb`: No API key .*`wandb login`.*WANDB_MODE=offline"):
            self.check(**settings)

    @parameterized.parameters(
        {"WANDB_MODE": "offline"},
        {"WANDB_MODE": "dryrun"},
        {"WANDB_MODE": "disabled"},
        {"process_index": 1},  # does not log
        {"report_to": ()},
    )
    def test_what_needs_no_key_passes(self, **settings):
        self.check(**settings)

    def test_settings_of_wandb_count(self):
        Path(self.folder, "settings").write_text("[default]\nmode = offline\n")
        self.check()

    def test_a_run_of_wandb_that_has_begun_is_used(self):
        with mock.patch("wandb.run", mock.Mock()):
            self.check()

    def test_a_wrong_setting_of_wandb_is_named_in_one_line(self):
        with self.assertRaises(ValueError) as raised:
            self.check(WANDB_MODE="onlin")
        self.assertRegex(str(raised.exception), "^`--report_to wandb`: .*mode Input should be 'online', ")
        self.assertNotIn("\n", str(raised.exception))

    def test_a_tracker_that_is_unknown_or_not_installed_is_named(self):
        with self.assertRaisesRegex(ValueError, "`--report_to weights`: weights is not supported"):
            self.check(report_to=["weights"])
        with mock.patch(f"{INTEGRATIONS}.is_trackio_available", return_value=False):
            with self.assertRaisesRegex(ValueError, "requires trackio to be installed"):
                self.check(report_to=["trackio"])


class WandbTest(TrackersTestCase):
    def wandb_run(self, own=None, **changes):
        """What a run calls of W&B; `init` begins a run with the id that it is given."""
        with mock.patch.multiple(
            wandb, run=own, init=mock.DEFAULT, config=mock.DEFAULT, log=mock.DEFAULT, define_metric=mock.DEFAULT,
            finish=mock.DEFAULT,
        ) as fakes:  # fmt: skip
            fakes["init"].side_effect = lambda **given: setattr(wandb, "run", mock.MagicMock(id=given["id"]))
            self.run_once("wandb", **changes)
        return mock.Mock(**fakes)

    def init(self, **changes):
        """The arguments of the one `init` of a run."""
        (call,) = self.wandb_run(**changes).init.call_args_list
        return call.kwargs

    def test_the_configuration_says_what_the_run_is(self):
        calls = self.wandb_run().config.update.call_args_list
        config = {name: value for call in calls for name, value in call.args[0].items()}
        expected = DESCRIPTION | {"train_examples": 8, "d_model": 16, "optim": "sgd"}
        self.assertEqual(config | expected, config)

    def test_a_run_is_named_by_its_folder_unless_the_user_gives_a_name(self):
        self.assertEqual(self.init()["name"], self.folder)
        self.folder += "/named"
        self.assertEqual(self.init(run_name="mine")["name"], "mine")

    @parameterized.parameters("WANDB_NAME", "WANDB_SWEEP_ID")
    def test_a_name_that_the_environment_gives_stays(self, variable):
        os.environ[variable] = "given"
        self.assertIsNone(self.init()["name"])

    def test_an_interrupted_run_without_a_network_goes_on_under_its_id(self):
        # `wandb sync` uploads the folders of one id to one run.
        folder = self.folder
        os.environ |= {"WANDB_MODE": "offline", "WANDB_DIR": folder, "WANDB_SILENT": "true"}
        for steps in (1, 2):
            with self.subTest(f"{steps} steps"):
                self.run_once("wandb", max_steps=steps)
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

    def test_a_restart_continues_the_same_run(self):
        first, again = self.init(max_steps=1), self.init(max_steps=2)
        self.assertEqual((again["id"], again["resume"]), (first["id"], "allow"))
        finished = self.init(max_steps=2)  # only evaluated
        self.assertEqual(finished["id"], first["id"])

    def test_a_run_that_starts_anew_is_another_one(self):
        first = self.init(max_steps=1)
        self.assertNotEqual(self.init(max_steps=1, resume_from_checkpoint="false")["id"], first["id"])

    def test_a_checkpoint_without_a_tracker_is_continued_with_one(self):
        self.run_once("none", max_steps=1)
        identity = self.init(max_steps=2)["id"]
        state = json.loads(Path(self.folder, "checkpoint-2", "trainer_state.json").read_text())
        self.assertEqual(state["stateful_callbacks"]["TrackedRun"]["attributes"], {"identity": identity})

    @parameterized.parameters(({"WANDB_RUN_ID": "mine"}, "id", "mine"), ({"WANDB_RESUME": "must"}, "resume", "must"))
    def test_what_the_environment_says_of_the_run_is_respected(self, environment, name, expected):
        os.environ.update(environment)
        self.assertEqual(self.init(max_steps=1)[name], expected)

    def test_a_run_of_the_users_own_is_used_and_not_ended(self):
        fakes = self.wandb_run(own=mock.MagicMock(id="own"))
        fakes.init.assert_not_called()
        fakes.finish.assert_not_called()

    def test_the_metrics_of_test_data_are_logged_and_the_run_is_ended(self):
        fakes = self.wandb_run()
        logged = {name for call in fakes.log.call_args_list for name in call.args[0]}
        self.assertContainsSubset(["eval/loss", "test/loss", "train/loss"], logged)
        self.assertFalse(any("predict_" in name for name in logged))
        fakes.finish.assert_called_once()
        results = json.loads(Path(self.folder, "all_results.json").read_text())
        self.assertIn("predict_loss", results)  # the files keep their names

    def test_another_process_than_the_first_begins_nothing(self):
        made = trainer("t5", self.folder, report_to="wandb")
        made.state.is_world_process_zero = False
        with mock.patch.object(wandb, "init") as init:
            made.log({"loss": 1.0})
        init.assert_not_called()

    def test_the_callback_of_transformers_logs(self):
        kinds = [type(one) for one in trainer("t5", self.folder, report_to="wandb").callback_handler.callbacks]
        self.assertIn(WandbCallback, kinds)
        self.assertLess(kinds.index(TrackedRun), kinds.index(WandbCallback))


class TrackioTest(TrackersTestCase):
    def names(self, **changes):
        """The names that Trackio is given in a run."""
        trackio = mock.MagicMock(spec=ModuleType("trackio"))
        for name in ("init", "config", "log", "finish", "context_vars"):
            setattr(trackio, name, mock.MagicMock())
        trackio.context_vars.current_space_id.get.return_value = None
        with (
            mock.patch(f"{INTEGRATIONS}.is_trackio_available", return_value=True),
            mock.patch.dict(sys.modules, trackio=trackio),
        ):
            self.run_once("trackio", **changes)
        return {call.kwargs["name"] for call in trackio.init.call_args_list}

    def test_training_evaluations_and_restarts_are_one_run(self):
        first = self.names(max_steps=1)
        self.assertEqual(self.names(max_steps=2), first)
        self.assertStartsWith(*first, f"{self.folder} ")

    def test_a_name_of_the_user_is_the_name(self):
        self.assertEqual(self.names(run_name="mine"), {"mine"})
