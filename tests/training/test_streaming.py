import json

import torch
from absl.testing import absltest, parameterized
from datasets import Dataset

from helpers import tiny_tokenizer
from hf_depth import DataCollatorForDepth, DepthTrainer, DepthTrainingArguments
from tiny_training import TrainingTestCase, parameters, rows, run_on_two_ranks, tiny_model, trainer


class StreamTest(TrainingTestCase):
    def run_of(self, steps, workers=0, **arguments):
        batches = []
        run = trainer(
            "depth",
            self.folder,
            streaming=True,
            model=tiny_model("depth", dropout_rate=0.1),
            max_steps=steps,
            dataloader_num_workers=workers,
            learning_rate=0.1,
            **{"save_strategy": "steps", "save_steps": 3, "gradient_accumulation_steps": 2}
            | {"per_device_train_batch_size": 2}
            | arguments,
        )
        run.model.register_forward_pre_hook(
            lambda module, args, kwargs: batches.append(kwargs["input_ids"].tolist()), with_kwargs=True
        )
        return run, batches

    @parameterized.parameters((0, 4), (2, 6))
    def test_resumed_and_extended_runs_equal_an_uninterrupted_one_to_the_bit(self, workers, first):
        whole, seen = self.run_of(12, workers, save_strategy="no")
        whole.train()
        # More than one pass, each with noise of its own.
        self.assertGreater(len({json.dumps(batch) for batch in seen}), 20)
        self.run_of(first, workers)[0].train()
        resumed, rest = self.run_of(12, workers)
        resumed.train(resume_from_checkpoint=True)
        self.assertEqual(rest, seen[-2 * (12 - first) :])
        for name, value in parameters(whole.model).items():
            self.assertTrue(torch.equal(value, parameters(resumed.model)[name]), name)
        losses = [[log["loss"] for log in run.state.log_history if "loss" in log] for run in (whole, resumed)]
        self.assertEqual(*losses)

    def test_another_number_of_workers_reads_anew_and_says_so(self):
        self.run_of(3)[0].train()
        resumed, rest = self.run_of(4, workers=2)
        with self.assertLogs("hf_depth.training.streaming", "WARNING") as logs:
            resumed.train(resume_from_checkpoint=True)
        self.assertRegex(logs.output[0], r"num_consumers 1 \(now 2\)")
        self.assertLen(rest, 2)

    def test_a_position_in_another_stream_or_of_other_batches_does_not_hold(self):
        self.run_of(3)[0].train()
        for arguments, changes, message in (
            ({"per_device_train_batch_size": 1}, {}, r": batch_size 2 \(now 1\)\. "),
            ({"gradient_accumulation_steps": 1}, {}, r": batches 6 \(now 3\)\. "),
            ({}, {"seed": 1}, r": seed 42 \(now 1\)\. "),
            ({}, {"buffer_size": 4}, r": buffer_size 8 \(now 4\)\. "),
        ):
            with self.subTest(message):
                resumed, _ = self.run_of(4, save_strategy="no", **arguments)
                vars(resumed.train_dataset).update(changes)
                with self.assertLogs("hf_depth.training.streaming", "WARNING") as logs:
                    resumed.train(resume_from_checkpoint=True)
                self.assertRegex("".join(logs.output), "does not hold any more" + message)

    def test_two_processes_that_are_interrupted_are_one_with_two_workers(self):
        arguments = {"max_steps": 6, "streaming": True, "per_device_train_batch_size": 2, "learning_rate": 0.1}
        together = run_on_two_ranks("depth", self.folder, arguments | {"interrupted_at": 4})
        alone = trainer("depth", self.folder, **arguments, dataloader_num_workers=2, gradient_accumulation_steps=2)
        alone.train()
        self.assert_close(parameters(alone.model), together["parameters"])

    @parameterized.parameters({"dispatch_batches": True}, {"dispatch_batches": False, "split_batches": True}, {})
    def test_another_division_of_batches_is_refused(self, **config):
        with self.assertRaisesRegex(ValueError, "`dispatch_batches` false and `split_batches` false"):
            trainer("t5", self.folder, streaming=True, accelerator_config=config | {"even_batches": True})

    def test_a_stream_as_it_is_is_reported(self):
        arguments = DepthTrainingArguments(self.folder, use_cpu=True, report_to="none", max_steps=1)
        collator = DataCollatorForDepth(tiny_tokenizer(sentence_tokens=True))
        with self.assertLogs("hf_depth.training.streaming", "WARNING") as logs:
            data = Dataset.from_list(rows(2)).to_iterable_dataset()
            DepthTrainer(tiny_model("depth"), arguments, collator, train_dataset=data)
        self.assertRegex(logs.output[0], "noise repeats.*prepare_splits")


if __name__ == "__main__":
    absltest.main()
