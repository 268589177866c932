"""Settings of training and evaluation that cannot work are refused when the arguments are made, or before training."""

from absl.testing import parameterized

from hf_depth import DepthTrainer, DepthTrainingArguments, TaskTrainingArguments
from hf_depth.errors import UserError
from hf_depth.training.runs import Run
from tiny_tasks import rte_rows, task_dataset
from tiny_tasks import trainer as task_trainer
from tiny_training import TrainingTestCase, trainer

EVERY_TWO_STEPS = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}


class ArgumentsTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"optim": "adamw_bnb_8bit"}, "`optim` adamw_bnb_8bit: .*bitsandbytes"),
        ({"learning_rate": -1.0}, "`learning_rate` must be at least 0, got -1.0"),
        ({"optim": "adamw_torch", "optim_args": "foo"}, "`optim` adamw_torch with `optim_args` 'foo'"),
        ({"lr_scheduler_kwargs": {"foo": 1}}, "`lr_scheduler_type` cosine with `lr_scheduler_kwargs` .'foo': 1"),
        ({"lr_scheduler_kwargs": "[1]"}, "`lr_scheduler_type` cosine with `lr_scheduler_kwargs`"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "`lr_scheduler_type` cosine_with_min_lr .*min_lr"),
        ({"lr_scheduler_kwargs": "{'min_lr': 1}"}, "`lr_scheduler_kwargs` must be JSON, got \"{'min_lr': 1}\""),
        ({"dataloader_num_workers": 100_000}, "`dataloader_num_workers` must be between 0 and 1024, got 100000"),
        ({"max_steps": 0}, "`max_steps` must be at least 1, got 0.*num_train_epochs.*do_train"),
        ({"num_train_epochs": 0}, "`num_train_epochs` must be above 0, got 0"),
        ({"report_to": "wanb"}, "`report_to` wanb: wanb is not supported, only .*wandb"),
        ({"save_steps": 0}, "`save_steps` must be above 0, got 0"),
        ({"fp16": True, "skip_bad_batches": 1}, "`skip_bad_batches` is neither for `fp16`"),
        ({"hub_model_id": "a/b/c"}, "`hub_model_id` 'a/b/c' is no name of a repository: .*'namespace/repo_name'"),
        ({"bf16_full_eval": True}, "`bf16_full_eval` True is not supported: it rounds the weights"),
        ({"restore_callback_states_from_checkpoint": True}, "`restore_callback_states_from_checkpoint` True is not"),
        ({"save_strategy": "best", "metric_for_best_model": "loss"}, "`save_strategy` best compares evaluations"),
        ({"label_smoothing_factor": 0.1}, "`label_smoothing_factor` 0.1 is not supported: the trainers weight"),
    )
    def test_what_cannot_work_is_refused_by_name(self, arguments, message):
        for kind in (DepthTrainingArguments, TaskTrainingArguments):
            with self.assertRaisesRegex(ValueError, message):
                kind(**{"output_dir": "unused", "use_cpu": True} | arguments)

    def test_the_best_model_of_pretraining_needs_a_metric(self):
        with self.assertRaisesRegex(ValueError, "`save_strategy` best needs a `metric_for_best_model`"):
            DepthTrainingArguments("unused", use_cpu=True, save_strategy="best", eval_strategy="steps")

    def test_a_metric_that_chooses_no_model_is_reported(self):
        for kind, metric in ((DepthTrainingArguments, "loss"), (TaskTrainingArguments, "accuracy")):
            with self.assertLogs("hf_depth", "WARNING") as logs:
                kind("unused", use_cpu=True, metric_for_best_model=metric)
            self.assertIn(f"`metric_for_best_model` {metric} chooses no model", logs.output[0])
            with self.assertNoLogs("hf_depth", "WARNING"):
                every = {"eval_strategy": "steps", "save_strategy": "steps", "load_best_model_at_end": True}
                kind("unused", use_cpu=True, metric_for_best_model=metric, **every)
                kind("unused", use_cpu=True)

    @parameterized.parameters(
        {},
        {"optim": "adafactor"},
        {"optim": "sgd", "optim_args": "momentum=0.9, nesterov=true"},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-6}, "warmup_steps": 0.1},
        {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 5}, "max_steps": 9},
        {"bf16": True},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
        {"accelerator_config": {"split_batches": True}},
        {"torch_compile_backend": "inductor"},
    )
    def test_what_works_is_accepted(self, **arguments):
        self.assertIsNotNone(DepthTrainingArguments("unused", use_cpu=True, **arguments))


class TrainerTest(TrainingTestCase):
    def test_an_unknown_metric_is_a_mistake_of_the_user(self):
        arguments = {"metric_for_best_model": "acuracy", "max_steps": 2, **EVERY_TWO_STEPS}
        pre_trained = trainer("depth", self.folder, lr_scheduler_type="reduce_lr_on_plateau", **arguments)
        dataset = task_dataset(rte_rows(4), "t5")
        fine_tuned = task_trainer("t5", self.folder, rte_rows(4), dataset, load_best_model_at_end=True, **arguments)
        for each, known in ((pre_trained, "eval_loss"), (fine_tuned, "eval_accuracy")):
            with self.assertRaisesRegex(UserError, f"`metric_for_best_model` .*'eval_acuracy'.*not found.*{known}"):
                each.train()

    def test_the_best_model_may_be_that_of_a_metric_of_ones_own_trainer(self):
        class Own(DepthTrainer):
            def evaluation_loop(self, *args, **kwargs):
                output = super().evaluation_loop(*args, **kwargs)
                output.metrics["eval_mine"] = float(self.state.global_step == 2)
                return output

        arguments = EVERY_TWO_STEPS | {"max_steps": 4, "metric_for_best_model": "mine", "load_best_model_at_end": True}
        run = trainer("t5", self.folder, trainer_class=Own, **arguments)
        run.train()
        self.assertEqual((run.state.best_metric, run.state.best_global_step), (1.0, 2))

    def test_every_example_is_evaluated_although_training_drops_the_last_batch(self):
        arguments = {"dataloader_drop_last": True, "per_device_eval_batch_size": 4}
        metrics = trainer("depth", self.folder, **arguments).evaluate()
        expected = trainer("depth", self.folder, per_device_eval_batch_size=4).evaluate()
        self.assertEqual(metrics["eval_loss"], expected["eval_loss"])
        self.assertEqual(metrics["eval_tokens_cut"], expected["eval_tokens_cut"])
        fine_tuned = task_trainer("t5", self.folder, rte_rows(4), task_dataset(rte_rows(7), "t5"), **arguments)
        fine_tuned.evaluate()
        (evaluation,) = fine_tuned.evaluations.values()
        self.assertLen(evaluation.predictions.texts, 7)
        self.assertTrue(fine_tuned.args.dataloader_drop_last)

    def test_a_run_records_no_password(self):
        arguments = DepthTrainingArguments(self.folder, use_cpu=True)
        run = Run(arguments, {"model_name_or_path": "https://me:secret@host/model"})
        self.assertEqual(run.description, {"model_name_or_path": "https://***@host/model"})
