import functools
import json
import logging
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from absl.testing import absltest, parameterized
from datasets import Dataset

from helpers import tiny_tokenizer
from hf_depth import DepthTrainingArguments, SpanCorruptionObjective
from hf_depth.arguments.data_args import CorpusArguments, ObjectiveArguments
from hf_depth.arguments.model_args import ModelArguments
from hf_depth.data.mixture import Mixing, mix_examples
from hf_depth.data.shard_preparation import prepare_shards
from hf_depth.training.identity import check_same_run, describe_data, describe_run, describe_training
from hf_depth.training.runs import Run
from tiny_training import TrainingTestCase, parameters, tiny_model, trainer

ARGUMENTS = {
    "do_train": True,
    "max_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
    "optim": "adamw_torch",
    "learning_rate": 0.01,
    "lr_scheduler_type": "linear",
}


@functools.cache
def first_run() -> tempfile.TemporaryDirectory:
    """A folder with a run of two steps."""
    folder = tempfile.TemporaryDirectory()
    execute(folder.name, {"noise": 0.3})
    return folder


def execute(folder: str, describe: dict, number_of_rows: int = 8, **changes):
    run_trainer = trainer("depth", folder, number_of_rows=number_of_rows, **ARGUMENTS | changes)
    run = Run.find(run_trainer.args, describe)
    run_trainer.model = run.restore(run_trainer.model)
    with mock.patch("hf_depth.training.runs.plot_losses"):  # takes longer than these runs
        run.execute(run_trainer)
    return run_trainer


class ContinuedRunTest(TrainingTestCase):
    def setUp(self):
        super().setUp()
        shutil.copytree(first_run().name, self.folder, dirs_exist_ok=True)

    def find(self, describe=None, **changes):
        """What stands before the data are prepared, for one more step."""
        arguments = {"disable_tqdm": True, "use_cpu": True, "max_grad_norm": 0.0} | ARGUMENTS | {"max_steps": 3}
        return Run.find(DepthTrainingArguments(self.folder, **arguments | changes), {"noise": 0.3} | (describe or {}))

    def continued(self, **changes):
        return execute(self.folder, {"noise": 0.3}, **{"max_steps": 3} | changes)

    def rates(self, run_trainer):
        return [log["learning_rate"] for log in run_trainer.state.log_history if "learning_rate" in log]

    @parameterized.parameters(
        ({"seed": 1}, r"seed 42 \(now 1\)"),
        ({"sentence_loss_coefficient": 2.0}, r"sentence_loss_coefficient 1.0 \(now 2.0\)"),
        ({"gradient_accumulation_steps": 2}, r"gradient_accumulation_steps 1 \(now 2\)"),
        ({"per_device_train_batch_size": 4}, r"per_device_train_batch_size 8 \(now 4\)"),
        ({"learning_rate": 0.5}, r"learning_rate 0.01 \(now 0.5\)"),
        ({"weight_decay": 0.5}, r"weight_decay 0.0 \(now 0.5\)"),
        ({"lr_scheduler_type": "cosine", "warmup_steps": 1}, r"lr_scheduler_type linear \(now cosine\).*warmup_steps"),
        ({"describe": {"noise": 0.5}}, r"noise 0.3 \(now 0.5\)"),
    )
    def test_what_would_make_other_weights_is_refused_unless_it_is_allowed(self, changes, message):
        with self.assertRaisesRegex(ValueError, message + ".*--allow_changed_arguments true"):
            self.find(**changes)
        with self.assertLogs("hf_depth", logging.WARNING) as logs:
            self.find(**changes, allow_changed_arguments=True)
        self.assertRegex("".join(logs.output), message)

    def test_other_data_are_refused_unless_they_are_allowed(self):
        message = r"train_examples 8 \(now 9\), train_examples_hash"
        with self.assertRaisesRegex(ValueError, message + ".*--allow_changed_arguments true"):
            self.continued(number_of_rows=9)
        with self.assertLogs("hf_depth", logging.WARNING) as logs:
            continued = self.continued(number_of_rows=9, allow_changed_arguments=True)
        self.assertRegex("".join(logs.output), message)
        self.assertEqual(continued.state.global_step, 3)

    def test_another_optimizer_is_refused_before_anything_is_loaded(self):
        for allow in (False, True):
            with self.assertRaisesRegex(
                ValueError, "optim adamw_torch .now adafactor.*No flag allows another `optim`"
            ):
                self.find(optim="adafactor", allow_changed_arguments=allow)
        self.continued(optim="adamw_torch_fused")  # has the same state

    @parameterized.parameters({"learning_rate": 0.1}, {"weight_decay": 0.1}, {"warmup_steps": 1})
    def test_what_deepspeed_restores_is_refused_however_it_was_configured(self, **changes):
        args = self.find(**changes, allow_changed_arguments=True).args
        args.deepspeed_plugin = object()  # by `accelerate launch` there is no `args.deepspeed`
        (name,) = changes
        with self.assertRaisesRegex(ValueError, f"No flag allows another `{name}`"):
            Run.find(args, {"noise": 0.3})

    def test_a_schedule_with_a_state_of_its_own_is_refused(self):
        changes = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1}
        with self.assertRaisesRegex(ValueError, "No flag allows another `lr_scheduler_type`"):
            self.find(**changes, allow_changed_arguments=True)

    @parameterized.parameters(
        {"logging_steps": 2, "save_steps": 1, "save_total_limit": 1, "eval_strategy": "steps", "eval_steps": 1},
        {"dataloader_num_workers": 1, "per_device_eval_batch_size": 2, "predict_with_generate": True},
    )
    def test_what_does_not_change_the_weights_may_change(self, **changes):
        self.assertTrue(self.find(**changes).do_train)

    def test_a_run_whose_length_changes_says_so_and_follows_the_new_schedule(self):
        with self.assertLogs("hf_depth", logging.WARNING) as logs:
            continued = self.continued(max_steps=4)
        self.assertRegex("".join(logs.output), r"max_steps 2 \(now 4\).*schedule `linear` over the new length")
        # At 0.01 of 2 steps, then of 4.
        self.assertEqual(self.rates(continued), [0.01, 0.005, 0.005, 0.0025])

    def test_settings_of_the_optimizer_and_the_schedule_are_those_of_the_arguments(self):
        settings = {"learning_rate": 0.5, "weight_decay": 0.25, "adam_beta1": 0.8, "lr_scheduler_type": "constant"}
        continued = self.continued(**settings, allow_changed_arguments=True)
        self.assertEqual(self.rates(continued)[-1], 0.5)
        for group in continued.optimizer.param_groups:
            self.assertEqual((group["lr"], group["betas"][0]), (0.5, 0.8))
        self.assertEqual({group["weight_decay"] for group in continued.optimizer.param_groups}, {0.0, 0.25})

    def test_the_first_step_takes_the_new_learning_rate(self):
        before = parameters(tiny_model("depth").from_pretrained(self.folder))
        continued = self.continued(learning_rate=0.0, allow_changed_arguments=True)
        for name, value in parameters(continued.model).items():
            self.assertTrue(torch.equal(value, before[name]), name)

    def test_an_older_checkpoint_that_states_less_is_continued(self):
        Path(self.folder, "checkpoint-2", "run.json").write_text('{"noise": 0.3}')
        Path(self.folder, "checkpoint-2", "manifest.json").unlink()
        self.assertTrue(self.find(describe={"lengths": 5}, seed=7).do_train)
        with self.assertRaisesRegex(ValueError, "noise"):
            self.find(describe={"noise": None})

    def test_an_older_checkpoint_that_states_what_is_free_now_is_continued(self):
        run_file = Path(self.folder, "checkpoint-2", "run.json")
        run_file.write_text(json.dumps(json.loads(run_file.read_text()) | {"pad_to_max_length": False}))
        Path(self.folder, "checkpoint-2", "manifest.json").unlink()
        self.assertTrue(self.find(describe={"pad_to_max_length": None}).do_train)

    def test_other_masks_are_another_model(self):
        with self.assertRaisesRegex(ValueError, "hierarchical_encoder_mask True .now False"):
            self.find().restore(tiny_model("depth", hierarchical_encoder_mask=False))


class DescribeRunTest(TrainingTestCase):
    def describe(self, **corpus):
        arguments = (CorpusArguments(**corpus), ObjectiveArguments(mlm_probability=0.3))
        return describe_run(ModelArguments(), data_args=arguments, script="pretrain_t5.py")

    def test_it_holds_every_flag_that_concerns_training(self):
        described = self.describe()
        for name in ("mlm_probability", "max_source_length", "sentence_shuffling_probability", "max_train_samples"):
            self.assertIn(name, described)
        for name in ("max_eval_samples", "overwrite_cache", "d_model", "attn_implementation", "pad_to_max_length"):
            self.assertNotIn(name, described)

    def test_training_files_are_known_by_their_content_wherever_they_are(self):
        one, other = Path(self.folder, "one.txt"), Path(self.folder, "moved", "other.txt")
        one.write_text("It rains.")
        other.parent.mkdir()
        shutil.copy(one, other)
        self.assertEqual(self.describe(train_file=[str(one)]), self.describe(train_file=[str(other)]))
        for content in ("It rained.", "It snows."):
            other.write_text(content)
            self.assertNotEqual(self.describe(train_file=[str(one)]), self.describe(train_file=[str(other)]))

    def test_shards_are_known_by_their_content_and_stand_for_the_text(self):
        objective, described = SpanCorruptionObjective(tiny_tokenizer()), {}
        for name, text in (("one", "It rains."), ("same", "It rains."), ("other", "It snows.")):
            folder = str(Path(self.folder, name))
            prepare_shards({"train": Dataset.from_dict({"text": [text]})}, objective, folder)
            described[name] = self.describe(tokenized_dataset_dir=folder, shard_megabytes=len(name))
        self.assertEqual(described["one"], described["same"])
        self.assertNotEqual(described["one"], described["other"])
        self.assertNotIn("validation_split_percentage", described["one"])
        self.assertEqual(self.describe().get("tokenized_dataset_dir"), None)

    def test_each_setting_of_a_mixture_is_compared_by_its_name(self):
        first, second = Path(self.folder, "one.txt"), Path(self.folder, "two.txt")
        first.write_text("It rains.")
        second.write_text("It snows.")
        sources = [f"name=a,weight=2,train_file={first}", f"name=b,weight=1,train_file={second}"]
        saved = self.describe(dataset_mixture=sources)
        checkpoint = Path(self.folder, "checkpoint-2")
        checkpoint.mkdir()
        (checkpoint / "run.json").write_text(json.dumps(saved))
        check_same_run(checkpoint, self.describe(dataset_mixture=[*sources]))
        shutil.copy(first, Path(self.folder, "moved.txt"))
        for changes, difference in (
            ({"dataset_mixture": [sources[0].replace("=2", "=3"), sources[1]]}, r"weight of a 2\.0 \(now 3\.0\)"),
            (
                {"dataset_mixture": [sources[0] + ",text_column=body", sources[1]]},
                r"text_column of a None \(now body\)",
            ),
            ({"dataset_mixture": sources[:1]}, r"mixture_sources \['a', 'b'\] \(now \['a'\]\)"),
            ({"dataset_mixture": sources[::-1]}, r"mixture_sources \['a', 'b'\] \(now \['b', 'a'\]\)"),
            ({"dataset_mixture": sources, "mixture_temperature": 2.0}, r"mixture_temperature 1\.0 \(now 2\.0\)"),
            ({"dataset_mixture": [sources[0], f"name=b,weight=1,train_file={first}"]}, "train_file of b"),
            ({"train_file": [str(first)]}, r"train_file None \(now"),
        ):
            with self.assertRaisesRegex(ValueError, difference):
                check_same_run(checkpoint, self.describe(**changes))
        moved = [sources[0].replace("one", "moved"), sources[1] + ",validation_file=three.txt"]
        check_same_run(checkpoint, self.describe(dataset_mixture=moved))

    def test_a_mixture_of_examples_is_known_by_all_its_sources(self):
        def described(*sizes):
            parts = {str(i): Dataset.from_dict({"input_ids": [[i, 1]] * size}) for i, size in enumerate(sizes)}
            return describe_data(
                mix_examples(parts, Mixing({"0": 1, "1": 1}, 1.0, "all_exhausted_without_replacement"))
            )

        self.assertEqual(described(3, 4), described(3, 4))
        self.assertEqual(described(3, 4)["train_examples"], described(4, 3)["train_examples"])
        self.assertNotEqual(described(3, 4)["train_examples_hash"], described(4, 3)["train_examples_hash"])

    def test_the_number_of_processes_belongs_to_a_run(self):
        args = DepthTrainingArguments(self.folder, use_cpu=True)
        with mock.patch.object(DepthTrainingArguments, "world_size", 2):
            self.assertEqual(describe_training(args)["num_processes"], 2)

    def test_examples_are_known_by_their_content(self):
        examples = [{"input_ids": [i, 1]} for i in range(100)]
        dataset = Dataset.from_list(examples)
        self.assertEqual(describe_data(dataset), describe_data(examples))
        self.assertEqual(describe_data(dataset.with_format("numpy")), describe_data(examples))
        arrays = [{"input_ids": np.array([i, 1])} for i in range(100)]
        self.assertEqual(describe_data(arrays), describe_data(examples))
        self.assertNotEqual(describe_data(examples[::-1]), describe_data(examples))
        self.assertNotEqual(describe_data(examples[:-1]), describe_data(examples))
        self.assertEqual(describe_data(Dataset.from_list([])), {"train_examples": 0} | describe_data([]))
        self.assertEqual(describe_data(dataset.to_iterable_dataset()), {})


class LengthTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"max_steps": 0}, "`max_steps` must be at least 1, got 0.*num_train_epochs.*do_train"),
        ({"max_steps": -2}, "`max_steps` must be at least 1, got -2"),
        ({"num_train_epochs": 0}, "`num_train_epochs` must be above 0, got 0"),
        ({"num_train_epochs": -1.5}, "`num_train_epochs` must be above 0, got -1.5"),
        ({"num_train_epochs": float("nan")}, "`num_train_epochs` must be above 0 and finite, got nan"),
        ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint.*SIGTERM"),
    )
    def test_arguments_that_train_nothing_or_inexactly_are_refused(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            DepthTrainingArguments("unused", use_cpu=True, **arguments)


if __name__ == "__main__":
    absltest.main()
