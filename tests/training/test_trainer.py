import json
import math
import multiprocessing
import threading
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from absl.testing import absltest, parameterized
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_deepspeed_cmd_env
from datasets import Dataset
from torch.distributed.fsdp import StateDictType
from transformers import GenerationConfig, Seq2SeqTrainer, Seq2SeqTrainingArguments

from helpers import ROOT, SENTENCES, tiny_tokenizer
from hf_depth import (
    DataCollatorForDepth,
    DataCollatorForT5SpanCorruption,
    DepthConfig,
    DepthForConditionalGeneration,
    DepthObjective,
    DepthTrainer,
    DepthTrainingArguments,
    TaskTrainer,
    add_sentence_tokens,
    load_model,
    train_tokenizer,
)
from hf_depth.training.compatibility import check_trainer
from hf_depth.training.trainer import OVERRIDDEN
from tiny_training import (
    WRAPPERS,
    ForgetfulWrapper,
    LabelTermTrainer,
    TrainingTestCase,
    Wrapper,
    parameters,
    rows,
    run_on_two_ranks,
    tiny_model,
    trainer,
)

ALL_KINDS = ("depth", "t5", "stock_t5")
HAS_DEEPSPEED = find_spec("deepspeed") is not None
ZERO = ("zero2", "zero3")
PERSISTENT = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}


class ByLength:
    """One of two collators for each batch."""

    def __init__(self, short, long):
        self.short, self.long = short, long

    def set_epoch(self, epoch):
        self.short.set_epoch(epoch)
        self.long.set_epoch(epoch)

    def __call__(self, examples):
        return (self.short if len(examples) < 4 else self.long)(examples)


class LossTest(TrainingTestCase):
    @parameterized.product(kind=ALL_KINDS, accumulation=(1, 4))
    def test_coefficient_one_is_cross_entropy_whatever_the_accumulation(self, kind, accumulation):
        run = trainer(
            kind, self.folder, per_device_train_batch_size=8 // accumulation, gradient_accumulation_steps=accumulation
        )
        batches = []
        compute_loss = run.compute_loss

        def recorded(model, inputs, **more):
            batches.append(dict(inputs))
            return compute_loss(model, inputs, **more)

        run.compute_loss = recorded
        before = tiny_model(kind).eval()
        run.train()
        self.assertLen(batches, accumulation)
        total, number = 0.0, 0
        for batch in batches:
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
            logits = before(**inputs).logits
            total += torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100, reduction="sum"
            )
            number += (batch["labels"] != -100).sum()
        (total / number).backward()
        expected = {name: p.detach() - 1.0 * p.grad for name, p in before.named_parameters() if p.grad is not None}

        after = parameters(run.model)
        self.assert_close({name: after[name] for name in expected}, expected)
        self.assertAlmostEqual(run.state.log_history[0]["loss"], (total / number).item(), delta=1e-5)

    @parameterized.product(kind=ALL_KINDS, coefficient=(1.0, 5.0))
    def test_accumulation_changes_neither_loss_nor_gradients(self, kind, coefficient):
        runs = {}
        for name, batch_size, accumulation in (("8x1", 8, 1), ("2x4", 2, 4)):
            runs[name] = trainer(
                kind,
                self.folder,
                per_device_train_batch_size=batch_size,
                gradient_accumulation_steps=accumulation,
                sentence_loss_coefficient=coefficient,
            )
            runs[name].train()
        expected = runs["8x1"]
        self.assert_close(parameters(runs["2x4"].model), parameters(expected.model))
        for key in ("loss", "reconstruction_loss"):
            self.assertAlmostEqual(
                runs["2x4"].state.log_history[0][key], expected.state.log_history[0][key], delta=1e-5
            )

    @parameterized.parameters(*ALL_KINDS)
    def test_a_model_whose_forward_names_no_arguments_is_trained_alike(self, kind):
        runs = [trainer(kind, self.folder, sentence_loss_coefficient=3.0) for _ in range(2)]
        own = type(runs[1].model)
        forward = {"forward": lambda self, **inputs: own.forward(self, **inputs)}
        runs[1].model.__class__ = type(f"My{own.__name__}", (own,), forward)
        for run in runs:
            run.train()
        self.assert_close(parameters(runs[1].model), parameters(runs[0].model))
        losses = [run.evaluate()["eval_loss"] for run in runs]
        self.assertAlmostEqual(*losses, delta=1e-5)

    @parameterized.parameters("depth", "t5")
    def test_a_subclass_adds_terms_of_token_losses_and_logits_with_their_gradients(self, kind):
        def of_logits(outputs, labels):
            losses = torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="sum")
            return losses / 10

        def of_token_losses(outputs, labels):
            return outputs.token_losses.sum() / 10

        runs = []
        for term in (of_logits, of_token_losses):
            run = trainer(kind, self.folder, sentence_loss_coefficient=3.0)

            def compute_loss(model, inputs, return_outputs=False, run=run, term=term, **kwargs):
                inputs = {**inputs, "skip_logits": False} if term is of_logits else inputs
                loss, outputs = DepthTrainer.compute_loss(run, model, inputs, return_outputs=True, **kwargs)
                return loss + term(outputs, inputs["labels"])

            run.compute_loss = compute_loss
            run.train()
            runs.append(run)
        self.assert_close(parameters(runs[1].model), parameters(runs[0].model), 1e-4)

    @parameterized.parameters(*ALL_KINDS)
    def test_two_processes_are_one(self, kind):
        shape = {"sentence_loss_coefficient": 3.0, "per_device_eval_batch_size": 2}
        if kind == "depth":
            shape |= {"predict_with_generate": True, "constrain_sentence_order": True, "generation_max_length": 30}
        alone = trainer(kind, self.folder, per_device_train_batch_size=8, **shape)
        alone.train()
        metrics = alone.evaluate()
        shape |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
        together = run_on_two_ranks(kind, self.folder, shape)

        self.assert_close(together["parameters"], parameters(alone.model))
        train_log = alone.state.log_history[0]
        for key in ("loss", "sentence_loss", "reconstruction_loss", "shuffled_fraction"):
            if key in train_log:
                self.assertAlmostEqual(together["train"][key], train_log[key], delta=1e-5, msg=key)
        # 7 examples on 2 processes: the one that fills the last batch must not count.
        for key, value in metrics.items():
            if key.split("_")[-1] not in ("runtime", "second", "time", "fraction", "epoch"):
                self.assertAlmostEqual(together["eval"][key], value, delta=1e-5, msg=key)

    @parameterized.parameters("depth", "t5")
    def test_a_term_of_ones_own_for_each_label_is_the_same_in_two_processes(self, kind):
        # So many rows to evaluate on fill the batches of two processes.
        shape = {"number_of_rows": 16, "number_of_eval_rows": 6, "learning_rate": 0.01}
        shape["per_device_eval_batch_size"] = 1
        alone = trainer(kind, self.folder, per_device_train_batch_size=8, trainer_class=LabelTermTrainer, **shape)
        alone.train()
        shape |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "has_term": True}
        together = run_on_two_ranks(kind, self.folder, shape)
        self.assert_close(together["parameters"], parameters(alone.model))
        self.assertAlmostEqual(together["train"]["loss"], alone.state.log_history[0]["loss"], delta=1e-5)

    def test_a_mean_of_each_process_is_one_of_its_own_labels_where_that_is_asked_for(self):
        shape = {"per_device_train_batch_size": 4, "number_of_rows": 8}
        alone = trainer("t5", self.folder, gradient_accumulation_steps=2, **shape)
        batches = []
        alone.model.register_forward_pre_hook(lambda module, args, kwargs: batches.append(kwargs), with_kwargs=True)
        alone.train()
        before = tiny_model("t5").eval()
        for batch in batches:
            inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
            (before(**inputs).loss / 2).backward()  # a mean of the means
        expected = {name: p.detach() - p.grad for name, p in before.named_parameters()}
        self.assertGreater((parameters(alone.model)["lm_head.weight"] - expected["lm_head.weight"]).abs().max(), 1e-4)
        together = run_on_two_ranks("t5", self.folder, shape | {"average_tokens_across_devices": False})
        self.assert_close(together["parameters"], expected)

    def test_components_sum_to_the_loss(self):
        run = trainer("depth", self.folder, sentence_loss_coefficient=4.0)
        metrics = run.evaluate()
        sums = {"sentence": [0.0, 0], "eosen": [0.0, 0], "reconstruction": [0.0, 0]}
        first, eosen = run.model.config.first_sentence_token_id, run.model.config.eosen_token_id
        for batch in run.get_eval_dataloader():
            losses = run.model(**batch).token_losses
            for loss, label in zip(losses.flatten().tolist(), batch["labels"].flatten().tolist(), strict=True):
                if label != -100:
                    kind = (
                        "sentence" if first <= label < first + 20 else "eosen" if label == eosen else "reconstruction"
                    )
                    sums[kind] = [sums[kind][0] + loss, sums[kind][1] + 1]
        for kind, (loss, number) in sums.items():
            self.assertAlmostEqual(metrics[f"eval_{kind}_loss"], loss / number, delta=1e-5)
        total = sum(loss for loss, _ in sums.values()) + 3.0 * sums["sentence"][0]
        self.assertAlmostEqual(metrics["eval_loss"], total / sum(n for _, n in sums.values()), delta=1e-5)

    def test_coefficient_zero_gives_no_gradient_through_sentence_tokens(self):
        run = trainer("depth", self.folder, sentence_loss_coefficient=0.0)
        batch = next(iter(run.get_train_dataloader()))
        run.model.train()
        logits = []
        run.model.lm_head.register_forward_hook(lambda module, inputs, output: logits.append(output))
        loss = run.compute_loss(run.model, batch)
        (gradient,) = torch.autograd.grad(loss, logits[0])
        first = run.model.config.first_sentence_token_id
        sentence = (batch["labels"] >= first) & (batch["labels"] < first + 20)
        self.assertGreater(sentence.sum(), 0)
        self.assertEqual(gradient[sentence].abs().max(), 0)
        self.assertGreater(gradient[~sentence & (batch["labels"] != -100)].abs().min(dim=0).values.max(), 0)

    def test_bad_loss_stops_training(self):
        run = trainer("depth", self.folder)
        run.model.lm_head.weight.data.fill_(math.nan)
        with self.assertRaisesRegex(FloatingPointError, "nan at step 1.*learning_rate"):
            run.train()

    @parameterized.parameters(
        ({"sentence_loss_coefficient": -1.0}, "`sentence_loss_coefficient` must be at least 0, got -1.0"),
    )
    def test_bad_arguments_are_named(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            DepthTrainingArguments(self.folder, **arguments)


class EngineTest(TrainingTestCase):
    """AdamW over six steps of equal global batches; ZeRO by the shipped files, where DeepSpeed is installed."""

    SHAPE = {
        "max_steps": 6,
        "optim": "adamw_torch",
        "learning_rate": 0.01,
        "lr_scheduler_type": "linear",
        "max_grad_norm": 0.4,  # below the norms of these steps
        "sentence_loss_coefficient": 3.0,
    }

    @parameterized.parameters(
        {},
        *({"deepspeed": str(ROOT / f"examples/deepspeed/{name}.json")} for name in ZERO),
        *({"environment": f"examples/accelerate/{name}.yaml"} for name in ZERO),
    )
    def test_losses_of_two_processes_are_those_of_one(self, **engine):
        if engine and not HAS_DEEPSPEED:
            self.skipTest("DeepSpeed is not installed")
        if "environment" in engine:
            engine["environment"] = launch_environment(engine["environment"])
        alone = trainer("depth", self.folder, per_device_train_batch_size=8, **self.SHAPE)
        alone.train()
        shape = self.SHAPE | {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2} | engine
        together = run_on_two_ranks("depth", self.folder, shape)["losses"]
        expected = [log for log in alone.state.log_history if "loss" in log]
        self.assertLen(together, 6)
        for log, other in zip(expected, together, strict=True):
            for name in ("loss", "sentence_loss", "reconstruction_loss", "grad_norm", "learning_rate"):
                self.assertAlmostEqual(other[name], log[name], delta=1e-5, msg=f"{name} of step {log['step']}")


class CountingSGD(torch.optim.SGD):
    """With a warm-up of its own, whose steps it counts in its groups."""

    def __init__(self, params, lr):
        super().__init__(params, lr=lr)
        for group in self.param_groups:
            group["k"] = 0

    def step(self, closure=None):
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["k"] += 1
            group["lr"] *= min(1, group["k"] / 4)
        loss = super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate
        return loss


class OptionsSGD(torch.optim.SGD):
    """Whose arguments have no names of their own."""

    def __init__(self, params, **options):
        super().__init__(params, **options)


class ScaledOptimizer(torch.optim.Optimizer):
    """Its arguments are not those of the class that it inherits from either."""

    def __init__(self, params, lr, **options):
        super().__init__(params, {"lr": lr, **options})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad, alpha=group["lr"] * group["scale"])


class ResumeTest(TrainingTestCase):
    @parameterized.parameters((OptionsSGD, "momentum"), (ScaledOptimizer, "scale"))
    def test_arguments_without_names_are_those_of_the_resumed_run(self, optimizer_class, name):
        value = 0.1

        class OwnTrainer(DepthTrainer):
            @staticmethod
            def get_optimizer_cls_and_kwargs(args, model=None):
                return optimizer_class, {"lr": args.learning_rate, name: value}

        arguments = {"trainer_class": OwnTrainer, "save_strategy": "steps", "save_steps": 1}
        trainer("t5", self.folder, max_steps=1, **arguments).train()
        value = 0.9
        resumed = trainer("t5", self.folder, max_steps=2, **arguments)
        resumed.train(resume_from_checkpoint=True)
        self.assertEqual({group[name] for group in resumed.optimizer.param_groups}, {0.9})

    @parameterized.product(kind=("depth", "t5"), workers=(0, 2))
    def test_resumed_run_equals_uninterrupted_run_to_the_bit(self, kind, workers):
        arguments = {
            "optim": "adamw_torch",
            "learning_rate": 1e-3,
            "lr_scheduler_type": "linear",
            "max_grad_norm": 1.0,
            "max_steps": 6,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "dataloader_num_workers": workers,
            "save_strategy": "steps",
            "save_steps": 3,
        }
        # 12 rows are 3 steps an epoch; 16 put the checkpoint into the middle of one.
        for number_of_rows in (12, 16):
            folder = Path(self.folder, str(number_of_rows))
            model = {"model": tiny_model(kind, dropout_rate=0.1)}
            whole = trainer(kind, str(folder), number_of_rows, **model, **arguments)
            whole.train()
            model = {"model": tiny_model(kind, seed=1, dropout_rate=0.1)}
            resumed = trainer(kind, str(folder), number_of_rows, **model, **arguments)
            resumed.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
            for name, value in parameters(whole.model).items():
                self.assertTrue(torch.equal(value, parameters(resumed.model)[name]), name)

    def test_another_implementation_of_the_optimizer_takes_the_state_as_it_was_saved(self):
        arguments = {"learning_rate": 1e-3, "save_strategy": "steps"}
        trainer("t5", self.folder, optim="adamw_torch", **arguments).train()
        resumed = trainer(
            "t5",
            self.folder,
            optim="adamw_torch_fused",
            max_steps=2,
            weight_decay=0.1,
            **arguments | {"learning_rate": 2e-3},
        )
        resumed.train(resume_from_checkpoint=True)
        group = resumed.optimizer.param_groups[0]
        self.assertFalse(group["fused"])  # on a GPU its steps are on the CPU, where the fused one does not take them
        self.assertEqual((group["lr"], group["weight_decay"]), (2e-3, 0.1))

    @parameterized.parameters(False, True)
    def test_what_an_optimizer_keeps_in_its_groups_is_resumed(self, is_made_by_the_trainer):
        class OwnTrainer(DepthTrainer):
            @staticmethod
            def get_optimizer_cls_and_kwargs(args, model=None):
                return CountingSGD, {"lr": args.learning_rate}

        def made(**changes):
            arguments = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 0.5} | changes
            run = trainer("t5", self.folder, trainer_class=OwnTrainer, **arguments)
            if not is_made_by_the_trainer:
                run.optimizer = CountingSGD(run.model.parameters(), lr=arguments["learning_rate"])
            return run

        whole, resumed = made(), made()
        whole.train()
        resumed.train(resume_from_checkpoint=f"{self.folder}/checkpoint-2")
        self.assertEqual({group["k"] for group in resumed.optimizer.param_groups}, {4})
        for name, value in parameters(whole.model).items():
            self.assertTrue(torch.equal(value, parameters(resumed.model)[name]), name)
        changed = made(learning_rate=0.25, lr_scheduler_type="constant")
        changed.train(resume_from_checkpoint=f"{self.folder}/checkpoint-2")
        self.assertEqual({group["lr"] for group in changed.optimizer.param_groups}, {0.25})

    @parameterized.parameters(False, True)
    def test_every_epoch_corrupts_anew_and_every_evaluation_the_same(self, streaming):
        run = trainer("depth", self.folder, number_of_rows=2, max_steps=6, per_device_train_batch_size=2)
        if streaming:
            run.train_dataset = Dataset.from_list(run.train_dataset).to_iterable_dataset()
        seen = []
        run.model.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append((module.training, sorted(kwargs["input_ids"].tolist()))),
            with_kwargs=True,
        )
        run.train()
        run.evaluate()
        run.evaluate()
        trained = [ids for training, ids in seen if training]
        evaluated = [ids for training, ids in seen if not training]
        self.assertLen({json.dumps(ids) for ids in trained}, 6)
        self.assertEqual(evaluated[0], evaluated[1])

    def test_a_collator_that_replaces_another_is_told_of_epochs(self):
        run = trainer("depth", self.folder, 8, max_steps=2)
        run.train()
        run.data_collator = replace(run.data_collator, mlm_probability=0.3)
        run.data_collator.set_epoch = mock.Mock(wraps=run.data_collator.set_epoch)
        run.train()
        self.assertEqual(run.data_collator.set_epoch.mock_calls, [mock.call(0), mock.call(1)])

    @parameterized.parameters("depth", "t5")
    def test_a_collator_from_an_earlier_run_is_evaluated_on_the_same_noise(self, kind):
        first = trainer(kind, self.folder)
        first.data_collator.set_epoch(2)  # as the first run leaves it
        second = DepthTrainer(model=first.model, args=first.args, data_collator=first.data_collator)
        one, other = (run.eval_data_collator(rows(3)) for run in (first, second))
        self.assertTrue(torch.equal(one["input_ids"], other["input_ids"]))
        self.assertFalse(torch.equal(second.data_collator(rows(3))["input_ids"], one["input_ids"]))

    @parameterized.product(kind=("depth", "t5"), wrapper=tuple(WRAPPERS))
    def test_all_seeds_are_evaluated_on_the_same_noise(self, kind, wrapper):
        run = trainer(kind, self.folder)
        same = [self.evaluated_with(run, seed, WRAPPERS[wrapper]) for seed in (42, 1, 2)]
        self.assertEqual(same[0], same[1])
        self.assertEqual(same[0], same[2])
        self.assertEqual(same[0], self.evaluated_with(run, 1, WRAPPERS["none"]))

    def evaluated_with(self, run, seed, wrapper):
        """The inputs of an evaluation by a trainer whose collator has a seed."""
        collator = replace(run.data_collator, seed=seed)
        other = type(run)(run.model, run.args, wrapper(collator), eval_dataset=run.eval_dataset)
        self.assertEqual(collator.seed, seed)
        return [batch["input_ids"].tolist() for batch in other.get_eval_dataloader()]

    def test_all_collators_of_one_are_evaluated_on_the_same_noise_without_metadata(self):
        run = trainer("depth", self.folder)
        collators = [replace(run.data_collator, seed=seed, metadata_probability=0.5) for seed in (1, 2)]
        both = ByLength(*collators)
        both.set_epoch(3)
        other = DepthTrainer(run.model, run.args, both, eval_dataset=run.eval_dataset)
        one, another = vars(other.eval_data_collator).values()
        for collator in (one, another):
            self.assertEqual((collator.seed, collator.metadata_probability), (42, 0.0))
            self.assertTrue(torch.equal(collator(rows(3))["input_ids"], run.eval_data_collator(rows(3))["input_ids"]))


class DeviceTest(TrainingTestCase):
    def test_nothing_is_copied_from_a_device_whose_number_accelerate_does_not_say(self):
        # As with one GPU: accelerate has `cuda`, a tensor `cuda:0`. Here it is the other way round.
        run = trainer("depth", self.folder, max_steps=2, predict_with_generate=True, generation_max_length=16)
        copied = mock.patch("torch.Tensor.cpu", side_effect=AssertionError("copied to the CPU"))
        with mock.patch.object(DepthTrainer, "sums_device", torch.device("cpu", 0)):
            inputs = run.data_collator(rows(2))
            with copied:
                run.compute_loss(run.model.train(), inputs)
                run.compute_loss(run.model.eval(), inputs)
            generated = inputs["labels"].clamp(min=0)
            with run.evaluated.loop("eval") as sums, copied:
                run.evaluated.add_order("free", generated, inputs)
        self.assertGreater(sums.orders["free"].sum(), 0)


class LogsTest(TrainingTestCase):
    def test_logs_have_the_components(self):
        run = trainer("depth", self.folder, max_steps=2)
        run.train()
        log = run.state.log_history[1]
        for key in ("loss", "sentence_loss", "reconstruction_loss", "shuffled_fraction", "padding_fraction"):
            self.assertIn(key, log)
        self.assertEmpty([key for key in log if "accuracy" in key], "not measured in training")
        self.assertGreater(log["tokens_per_second"], 0)
        self.assertEqual(log["tokens_cut"], 0)

    def assert_same_logs(self, run, expected):
        logs, others = (
            [
                {k: v for k, v in log.items() if "second" not in k and "runtime" not in k}
                for log in one.state.log_history
            ]
            for one in (run, expected)
        )
        self.assertEqual(logs, others)
        for log, other in zip(run.state.log_history, expected.state.log_history, strict=True):
            self.assertEqual(log.keys(), other.keys())

    def test_a_batch_size_that_did_not_fit_leaves_nothing_in_the_logs(self):
        arguments = {"max_steps": 4, "logging_steps": 2, "learning_rate": 0.0, "per_device_train_batch_size": 8}
        found = trainer("depth", self.folder, auto_find_batch_size=True, **arguments)
        compute_loss = found.compute_loss

        def too_large(model, inputs, **more):
            loss = compute_loss(model, inputs, **more)
            if found.state.global_step == 3 and len(inputs["labels"]) == 8:  # after a log
                raise RuntimeError("CUDA out of memory.")
            return loss

        found.compute_loss = too_large
        found.train()
        self.assertLess(found._train_batch_size, 8)
        arguments["per_device_train_batch_size"] = found._train_batch_size
        expected = trainer("depth", self.folder, **arguments)
        expected.train()
        self.assert_same_logs(found, expected)

    def test_a_second_training_logs_as_a_first_one(self):
        arguments = {"max_steps": 3, "logging_steps": 2, "learning_rate": 0.0}  # a step after the last log
        twice, once = (trainer("depth", self.folder, **arguments) for _ in range(2))
        twice.train()
        for run in (twice, once):
            run.train()
        self.assert_same_logs(twice, once)

    @parameterized.parameters({}, {"predict_with_generate": True, "generation_max_length": 9})
    def test_an_evaluation_is_no_time_of_training(self, **arguments):
        speeds = []
        for strategy in ("no", "steps"):
            run = trainer("depth", self.folder, max_steps=3, eval_strategy=strategy, eval_steps=1, **arguments)
            run.eval_dataset = rows(3)
            spent = []  # seconds for each batch
            run.model.encoder.register_forward_pre_hook(
                lambda module, args, spent=spent: spent.append(10 if module.training else 1000)
            )
            with mock.patch("time.perf_counter", lambda spent=spent: float(sum(spent))):
                run.train()
            self.assertEqual(1000 in spent, strategy == "steps")
            speeds.append([log["tokens_per_second"] for log in run.state.log_history if "tokens_per_second" in log])
        self.assertLen(speeds[0], 2)
        self.assertEqual(*speeds)


class OverriddenTest(parameterized.TestCase):
    def test_what_is_overridden_is_listed_with_its_reason_and_is_little(self):
        found = set()
        for kind in (DepthTrainer, TaskTrainer):
            found |= {name for name in vars(kind) if not name.startswith("__") and hasattr(Seq2SeqTrainer, name)}
        self.assertEqual(found - {"args"}, set(OVERRIDDEN))
        self.assertLessEqual(len(OVERRIDDEN), 15)
        self.assertLessEqual(sum(name.startswith("_") for name in OVERRIDDEN), 4)
        self.assertEqual((DepthTrainer.__bases__, TaskTrainer.__bases__), ((Seq2SeqTrainer,), (DepthTrainer,)))


class PartsTest(TrainingTestCase):
    """A model, a tokenizer and a collator that do not fit would train something else without any other sign."""

    def test_the_end_is_that_of_persistent_workers_too(self):
        others = {*multiprocessing.active_children()}
        trained = trainer("t5", self.folder, number_of_rows=8, max_steps=1, eval_strategy="steps", **PERSISTENT)
        trained.train()
        self.assertLen({*multiprocessing.active_children()} - others, 1)  # those of an evaluation end with it
        trained.end()
        self.assertEmpty({*multiprocessing.active_children()} - others)

    def trainer(self, model, tokenizer=None, collator=DataCollatorForDepth, **arguments):
        tokenizer = tokenizer or tiny_tokenizer(sentence_tokens=True)
        arguments = DepthTrainingArguments(self.folder, use_cpu=True, report_to="none", **arguments)
        return DepthTrainer(model=model, args=arguments, data_collator=collator(tokenizer), train_dataset=rows(2))

    def test_any_t5_is_no_depth_model_for_this_tokenizer(self):
        tiny_model("t5", vocab_size=32_128).save_pretrained(self.folder)
        model = DepthForConditionalGeneration.from_pretrained(self.folder)
        with self.assertRaisesRegex(
            ValueError, r"first_sentence_token_id.* 32100.*load_model\(.*model_type=\"depth\""
        ):
            self.trainer(model)
        tokenizer = tiny_tokenizer(sentence_tokens=True)
        self.trainer(load_model(self.folder, tokenizer, model_type="depth"), tokenizer)

    def test_a_fresh_configuration_is_none_for_this_tokenizer(self):
        config = DepthConfig(vocab_size=32_128, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
        with self.assertRaisesRegex(ValueError, "load_model"):
            self.trainer(DepthForConditionalGeneration(config))
        self.trainer(load_model(config, tiny_tokenizer(sentence_tokens=True)))

    @parameterized.parameters("encoder", "decoder")
    def test_all_three_configurations_are_compared(self, part):
        model = tiny_model("depth")
        getattr(model, part).config.eosen_token_id += 1
        with self.assertRaisesRegex(ValueError, f"{part}.*eosen_token_id"):
            self.trainer(model)

    def test_the_tokenizer_that_is_saved_is_compared_too(self):
        with self.assertRaisesRegex(ValueError, "sentence tokens"):
            DepthTrainer(
                model=tiny_model("depth"),
                args=DepthTrainingArguments(self.folder, use_cpu=True),
                data_collator=DataCollatorForDepth(tiny_tokenizer(sentence_tokens=True)),
                processing_class=tiny_tokenizer(),
            )

    def test_one_vocabulary_serves_collator_and_trainer(self):
        tokenizer = tiny_tokenizer(sentence_tokens=True)
        texts = [*SENTENCES, *(sentence.swapcase() for sentence in SENTENCES)]
        other = add_sentence_tokens(train_tokenizer(texts, vocab_size=len(tokenizer) - 21))
        self.assertLen(other, len(tokenizer))
        with self.assertRaisesRegex(ValueError, "different vocabularies"):
            DepthTrainer(
                model=tiny_model("depth"),
                args=DepthTrainingArguments(self.folder, use_cpu=True),
                data_collator=DataCollatorForDepth(tokenizer),
                processing_class=other,
            )

    def test_a_collator_must_be_given(self):
        with self.assertRaisesRegex(ValueError, "`data_collator` is missing.*objective.collator"):
            DepthTrainer(model=tiny_model("t5"), args=DepthTrainingArguments(self.folder, use_cpu=True))

    def test_a_collator_that_cannot_be_copied_is_refused(self):
        def locked(tokenizer):
            wrapper = ForgetfulWrapper(DataCollatorForDepth(tokenizer))
            wrapper.lock = threading.Lock()
            return wrapper

        with self.assertRaisesRegex(TypeError, "`data_collator` cannot be copied.*lock"):
            self.trainer(tiny_model("depth"), collator=locked)

    def test_a_compiled_model_is_refused(self):
        with self.assertRaisesRegex(ValueError, "torch_compile=True"):
            self.trainer(torch.compile(tiny_model("depth")))

    def test_a_loss_that_would_never_be_called_is_refused(self):
        collator = DataCollatorForDepth(tiny_tokenizer(sentence_tokens=True))
        arguments = DepthTrainingArguments(self.folder, use_cpu=True)
        with self.assertRaisesRegex(ValueError, "`compute_loss_func` would never be called"):
            DepthTrainer(tiny_model("depth"), arguments, collator, compute_loss_func=lambda *args, **kwargs: 0)

    @parameterized.parameters(
        ({"model": tiny_model("depth").bfloat16()}, "torch.bfloat16.*bf16=True"),
        (
            {"collator": lambda tokenizer: DataCollatorForDepth(tokenizer).__call__},
            "function.*the same noise.*set_epoch",
        ),
        (
            {"collator": lambda tokenizer: ForgetfulWrapper(DataCollatorForDepth(tokenizer))},
            "of ForgetfulWrapper.*noise",
        ),
        ({"predict_with_generate": True}, "stops after 20 tokens.*`max_target_length`.*`generation_max_length`"),
    )
    def test_what_may_be_meant_is_reported(self, parts, message):
        with self.assertLogs("hf_depth.training", "WARNING") as logs:
            self.trainer(**{"model": tiny_model("depth")} | parts)
        self.assertRegex(logs.output[0], message)

    def test_parameters_that_deepspeed_has_cast_are_not_reported(self):
        run = self.trainer(tiny_model("depth"), optim="adamw_torch")
        run.model.bfloat16()  # as `zero.Init` does
        run.is_deepspeed_enabled = True
        run.accelerator.state = SimpleNamespace(deepspeed_plugin=SimpleNamespace(deepspeed_config={}))
        with self.assertNoLogs("hf_depth.training.compatibility", "WARNING"):
            check_trainer(run)

    def test_an_engine_that_would_save_no_model_is_refused(self):
        run = self.trainer(tiny_model("depth"), optim="adamw_torch")
        run.is_fsdp_enabled = True
        plugin = SimpleNamespace(state_dict_type=StateDictType.SHARDED_STATE_DICT)
        run.accelerator.state = SimpleNamespace(fsdp_plugin=plugin)
        with self.assertRaisesRegex(ValueError, "`fsdp_state_dict_type` SHARDED_STATE_DICT.*FULL_STATE_DICT"):
            check_trainer(run)

    def test_what_is_said_of_the_collator_is_not_said_of_a_wrapper_that_passes_epochs_on(self):
        with self.assertNoLogs("hf_depth.training.compatibility", "WARNING"):
            self.trainer(tiny_model("depth"), collator=lambda tokenizer: Wrapper(DataCollatorForDepth(tokenizer)))
            generation = {"predict_with_generate": True, "generation_config": GenerationConfig(max_new_tokens=9)}
            self.trainer(tiny_model("depth"), **generation)

    @parameterized.product(
        parts=(
            ("depth", DataCollatorForT5SpanCorruption, "DepthObjective"),
            ("t5", DataCollatorForDepth, "SpanCorruptionObjective"),
        ),
        wrapper=tuple(WRAPPERS),
    )
    def test_a_collator_of_the_other_kind_is_refused(self, parts, wrapper):
        kind, collator, objective = parts
        with self.assertRaisesRegex(ValueError, objective):
            self.trainer(tiny_model(kind), collator=lambda tokenizer: WRAPPERS[wrapper](collator(tokenizer)))

    def test_arguments_of_another_class_are_refused(self):
        with self.assertRaisesRegex(TypeError, "`args` must be `DepthTrainingArguments.*Seq2SeqTrainingArguments"):
            DepthTrainer(tiny_model("t5"), Seq2SeqTrainingArguments(self.folder, use_cpu=True))

    def test_sentences_are_generated_in_order_by_the_tokenizer_of_a_wrapped_collator(self):
        arguments = {"constrain_sentence_order": True, "predict_with_generate": True, "generation_max_length": 30}
        scores = []
        for wrapper in (WRAPPERS["none"], Wrapper):
            run = self.trainer(
                tiny_model("depth"), collator=lambda each, it=wrapper: it(DataCollatorForDepth(each)), **arguments
            )
            metrics = run.evaluate(rows(3))
            scores.append({name: metrics[name] for name in metrics if "order" in name or name.endswith("loss")})
        self.assertIn("eval_order_exact_constrained", scores[0])
        self.assertEqual(*scores)

    @parameterized.parameters(*WRAPPERS)
    def test_generation_is_as_long_as_the_longest_target(self, wrapper):
        tokenizer = tiny_tokenizer(sentence_tokens=True)
        collator = WRAPPERS[wrapper](DepthObjective(tokenizer, max_target_length=77).collator())
        config = {"generation_config": GenerationConfig(max_new_tokens=5)}
        for given, expected in (({}, 78), ({"generation_max_length": 30}, 30), (config, None)):
            arguments = DepthTrainingArguments(self.folder, use_cpu=True, **given)
            made = DepthTrainer(model=tiny_model("depth"), args=arguments, data_collator=collator)
            self.assertEqual(made.generation_max_length, expected)
            self.assertEqual(arguments.generation_max_length, given.get("generation_max_length"))

    def test_a_collator_of_ones_own_is_evaluated_without_metadata(self):
        class Own:
            probability = 0.5

            def set_epoch(self, epoch):
                pass

            def set_metadata_probability(self, probability):
                self.probability = probability

        run = trainer("depth", self.folder)
        other = DepthTrainer(run.model, run.args, Own(), eval_dataset=run.eval_dataset)
        self.assertEqual((other.data_collator.probability, other.eval_data_collator.probability), (0.5, 0.0))

    def test_generation_is_as_long_as_the_targets_of_each_trainer_with_the_same_arguments(self):
        arguments = DepthTrainingArguments(self.folder, use_cpu=True)
        trainers = {}
        for length, expected in ((177, 178), (199, 200), (None, None)):
            collator = DataCollatorForDepth(tiny_tokenizer(sentence_tokens=True), max_target_length=length)
            trainers[expected] = DepthTrainer(model=tiny_model("depth"), args=arguments, data_collator=collator)
        for expected, run in trainers.items():  # also if another one was made since
            self.assertEqual(run.generation_max_length, expected)

    @parameterized.parameters(
        ({}, {}, {"max_length": 100}),
        ({"generation_max_length": 9}, {}, {"max_length": 9}),
        ({"generation_max_length": 9}, {"max_length": 7}, {"max_length": 7}),
        ({"generation_max_length": 9}, {"max_length": None}, {"max_length": 9}),
        ({"generation_max_length": 9}, {"max_new_tokens": 5}, {"max_new_tokens": 5}),
        ({"generation_config": GenerationConfig(max_new_tokens=5)}, {}, {}),
        ({"generation_config": GenerationConfig(max_new_tokens=5)}, {"max_length": 7}, {"max_length": 7}),
        ({"generation_config": GenerationConfig(max_length=5)}, {}, {"max_length": 5}),
    )
    def test_every_evaluation_generates_up_to_the_length(self, arguments, gen_kwargs, expected):
        collator = DataCollatorForDepth(tiny_tokenizer(sentence_tokens=True), max_target_length=99)
        arguments = DepthTrainingArguments(self.folder, use_cpu=True, predict_with_generate=True, **arguments)
        run = DepthTrainer(model=tiny_model("depth"), args=arguments, data_collator=collator)
        with mock.patch.object(run.model, "generate", wraps=run.model.generate) as generate:
            for evaluate in (run.evaluate, run.predict, lambda data, **kwargs: run.evaluate({"a": data}, **kwargs)):
                evaluate(rows(2), **gen_kwargs)
        self.assertLen(generate.call_args_list, 3)
        for call in generate.call_args_list:
            given = {name: value for name, value in call.kwargs.items() if name in ("max_length", "max_new_tokens")}
            self.assertEqual(given, expected)

    @parameterized.parameters(
        {},
        {"eval_on_start": True, "dataloader_num_workers": 1},
        {"predict_with_generate": True, "generation_max_length": 9, "constrain_sentence_order": True},
    )
    def test_evaluations_do_not_change_the_dropout_of_the_training(self, **arguments):
        trained = []
        for evaluated in ({}, {"eval_strategy": "steps", "eval_steps": 1, **arguments}):
            torch.manual_seed(0)
            model = tiny_model("depth", dropout_rate=0.2)
            run = trainer("depth", self.folder, model=model, max_steps=3, learning_rate=0.1, **evaluated)
            run.eval_dataset = rows(4)
            run.train()
            trained.append(parameters(run.model))
        self.assertEqual(trained[0].keys(), trained[1].keys())
        for name, values in trained[0].items():
            torch.testing.assert_close(trained[1][name], values, rtol=0, atol=0)

    def test_an_evaluation_has_its_metrics_where_a_subclass_steps_by_itself(self):
        class Stepping(DepthTrainer):
            def prediction_step(self, model, inputs, *args, **kwargs):
                with torch.no_grad():
                    return self.compute_loss(model, self._prepare_inputs(inputs)), None, None

        run = trainer("depth", self.folder, per_device_eval_batch_size=2)
        own = Stepping(run.model, run.args, run.data_collator, eval_dataset=run.eval_dataset).evaluate()
        expected = run.evaluate()
        for name in ("eval_loss", "eval_reconstruction_loss", "eval_sentence_accuracy"):
            self.assertAlmostEqual(own[name], expected[name], delta=1e-5)

    def test_a_model_that_is_made_for_each_training_is_as_the_arguments_ask_for(self):
        arguments = {"use_cpu": True, "max_steps": 1, "save_strategy": "no", "disable_tqdm": True}
        arguments |= {"bf16": True, "residual_dtype": "bfloat16"}
        arguments["generation_config"] = GenerationConfig(max_new_tokens=5)
        run = DepthTrainer(
            model_init=lambda: tiny_model("depth"),
            args=DepthTrainingArguments(self.folder, **arguments),
            data_collator=DataCollatorForDepth(tiny_tokenizer(sentence_tokens=True)),
            train_dataset=rows(4),
        )
        dtypes = []
        for _ in range(2):
            model = run.model
            model.encoder.block[0].layer[0].register_forward_pre_hook(
                lambda module, arguments: dtypes.append(arguments[0].dtype)
            )
            with torch.autocast("cpu", torch.bfloat16):
                run.compute_loss(model, run.data_collator(rows(2)))
            self.assertEqual(dtypes[-1], torch.bfloat16)
            found = model.generation_config
            self.assertEqual((found.max_new_tokens, found.decoder_start_token_id), (5, 0))
            run.train()
            self.assertIsNot(run.model, model)

    def test_a_search_goes_on_without_the_model_of_the_trial_before(self):
        best = {"save_strategy": "best", "metric_for_best_model": "loss", "eval_strategy": "steps", "eval_steps": 1}
        run = trainer("t5", self.folder, **best)
        run.model_init, run.model = lambda: tiny_model("t5"), None  # as after a trial
        run.train()
        self.assertEqual(run.state.best_global_step, 1)


def launch_environment(config):
    """What `accelerate launch` with a configuration of DeepSpeed tells the processes that it starts."""
    args = launch_command_parser().parse_args(["--config_file", str(ROOT / config), "script.py"])
    args, config, _ = _validate_launch_command(args)
    args.deepspeed_fields_from_accelerate_config = ",".join(config.deepspeed_config)
    _, environment = prepare_deepspeed_cmd_env(args)
    return {name: value for name, value in environment.items() if name.startswith("ACCELERATE_")}


if __name__ == "__main__":
    absltest.main()
