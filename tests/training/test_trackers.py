"""What trackers are told: one run, the same after a restart, plots and predictions. None contacts a network."""

import json
import os
from pathlib import Path
from unittest import mock

import wandb

from hf_depth.training.runs import Run
from tiny_training import RunTestCase, trainer

DESCRIPTION = {"objective": "span_corruption", "model_type": "t5", "max_source_length": 96, "seed": 42}


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

    def test_a_restart_continues_the_same_run(self):
        first, again = self.init(max_steps=1), self.init(max_steps=2)
        self.assertEqual((again["id"], again["resume"]), (first["id"], "allow"))
        finished = self.init(max_steps=2)  # only evaluated
        self.assertEqual(finished["id"], first["id"])

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
