import functools
import tempfile
from collections import Counter
from pathlib import Path

import torch
from absl.testing import absltest, parameterized

from tiny_training import TrainingTestCase, parameters, run_on_two_ranks, trainer

ADAM = {"optim": "adamw_torch", "learning_rate": 1e-3}


def read_by(run) -> list[int]:
    """Fills up, while a trainer trains, with the places of the examples that it reads."""
    seen, collate = [], run.data_collator
    places = {id(row): place for place, row in enumerate(run.train_dataset)}

    class Noting(type(collate)):
        def __call__(self, features):
            seen.extend(places[id(feature)] for feature in features)
            return super().__call__(features)

    collate.__class__ = Noting
    return seen


def read(folder: str, resumes=None, **arguments):
    """A trainer that has trained, and the numbers of the examples of its steps: it collates one batch more."""
    run, numbers = trainer("t5", folder, **{"logging_steps": 100} | arguments), []
    for number, row in enumerate(run.train_dataset):
        row["num_cut_tokens"] = number  # which the collator passes on
    compute_loss = run.compute_loss

    def noted(model, inputs, *args, **kwargs):
        numbers.extend(inputs["num_cut_tokens"].tolist())
        return compute_loss(model, inputs, *args, **kwargs)

    run.compute_loss = noted
    run.train(resume_from_checkpoint=resumes)
    return run, numbers


@functools.cache
def order_of_two_epochs() -> list[int]:
    """What a run of two epochs reads that nothing interrupts."""
    with tempfile.TemporaryDirectory() as folder:
        return read(folder, num_train_epochs=2, max_steps=-1, per_device_train_batch_size=4)[1]


class ResumedOrderTest(TrainingTestCase):
    @parameterized.product(
        strategy=("random", "sequential", "group_by_length", "batch_rebalance"), accumulation=(1, 2)
    )
    def test_a_run_resumed_within_a_later_epoch_reads_what_is_left_of_it(self, strategy, accumulation):
        arguments = ADAM | {"train_sampling_strategy": strategy, "gradient_accumulation_steps": accumulation}
        arguments |= {"per_device_train_batch_size": 4 // accumulation, "save_strategy": "steps", "save_steps": 6}
        whole, resumed = (trainer("t5", self.folder, 16, max_steps=12, **arguments) for _ in range(2))
        seen = read_by(whole)
        whole.train()
        for epoch in range(3):
            self.assertCountEqual(seen[16 * epoch : 16 * (epoch + 1)], range(16))
        self.assertEqual(seen[:16] == seen[16:32], strategy == "sequential")
        again = read_by(resumed)
        resumed.train(resume_from_checkpoint=str(Path(self.folder, "checkpoint-6")))
        self.assertEqual(Counter(again), Counter(seen[24:]))
        for name, value in parameters(whole.model).items():
            self.assertTrue(torch.equal(value, parameters(resumed.model)[name]), name)

    @parameterized.parameters("group_by_length", "batch_rebalance")
    def test_two_processes_go_on_with_the_order_of_the_epoch(self, strategy):
        shape = ADAM | {"train_sampling_strategy": strategy, "per_device_train_batch_size": 4, "max_steps": 8}
        whole = run_on_two_ranks("t5", self.folder, shape)
        resumed = run_on_two_ranks("t5", self.folder, shape | {"interrupted_at": 6})  # of 4 steps an epoch
        self.assertEqual([log["loss"] for log in resumed["losses"]], [log["loss"] for log in whole["losses"]])

    @parameterized.parameters(({"data_seed": 3}, {"data_seed": 4}), ({"seed": 3}, {"seed": 4}))
    def test_the_order_by_length_is_that_of_the_seed_whatever_was_drawn_before(self, first, second):
        orders = []
        for draws, arguments in ((0, first), (5, first), (0, second)):
            run = trainer("t5", self.folder, train_sampling_strategy="group_by_length", **arguments)
            torch.rand(draws)
            orders.append(list(run._get_train_sampler()))
        self.assertEqual(orders[0], orders[1])
        self.assertNotEqual(orders[0], orders[2])


class OtherBatchesTest(TrainingTestCase):
    @parameterized.parameters(
        # Batch size and accumulation of the run, the step at which it stops, those of the next one, all steps.
        (4, 1, 4, 8, 1, 4 + 2 + 4),
        (4, 1, 4, 2, 1, 4 + 8 + 16),
        (8, 1, 4, 2, 2, 4 + 8),  # at the end of an epoch
        (4, 1, 10, 8, 1, 10 + 3),  # in the second one
        (4, 1, 4, 4, 2, 4 + 2 + 4),
        (4, 2, 3, 8, 1, 3 + 1 + 4),
        (4, 3, 2, 4, 1, 2 + 2 + 8),
        (4, 1, 4, 4, 1, 16),
    )
    def test_other_batches_go_on_behind_the_examples_that_were_read(self, size, accumulation, at, new, its, steps):
        whole = order_of_two_epochs()
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation}
        _, before = self.read(**settings, max_steps=at, save_strategy="steps", save_steps=at)
        settings = {"per_device_train_batch_size": new, "gradient_accumulation_steps": its}
        run, after = self.read(True, **settings, num_train_epochs=2, max_steps=-1, save_strategy="steps")
        self.assertEqual(before + after, whole)
        self.assertEqual((run.state.global_step, run.state.max_steps, run.state.epoch), (steps, steps, 2.0))
        self.assertEqual(run.data_collator._epoch.item(), 1)
        again, more = self.read(True, **settings, num_train_epochs=2, max_steps=-1)  # is over
        self.assertEqual((again.state.global_step, more), (steps, []))

    def test_other_data_begin_where_the_steps_of_before_would_be(self):
        settings = {"num_train_epochs": 1, "max_steps": -1, "per_device_train_batch_size": 4}
        self.read(**settings, save_strategy="steps", save_steps=8)
        run, after = self.read(True, **settings, number_of_rows=64)
        self.assertEqual((run.state.global_step, len(after)), (16, 64 - 32))

    @parameterized.parameters((1, 40), (8, 20))
    def test_other_batches_leave_the_number_of_steps_as_it_is(self, new, max_steps):
        self.read(per_device_train_batch_size=4, max_steps=12, save_strategy="steps", save_steps=12)
        run, after = self.read(True, per_device_train_batch_size=new, max_steps=max_steps)
        self.assertEqual(run.state.global_step, max_steps)
        self.assertLen(after, new * (max_steps - 12))

    def test_batches_that_do_not_end_where_the_others_did_are_read_from_the_step_before(self):
        _, before = self.read(per_device_train_batch_size=4, max_steps=3, save_strategy="steps", save_steps=3)
        with (
            self.assertLogs("hf_depth", "WARNING") as logs,
            self.assertNoLogs("transformers.trainer_utils", "WARNING"),  # which would say it as well
        ):
            _, after = self.read(True, per_device_train_batch_size=8, num_train_epochs=1, max_steps=-1)
        self.assertIn("goes on in epoch 0 behind 1 of its 4 steps", "".join(logs.output))
        self.assertEqual(before[8:], after[:4])
        self.assertCountEqual([*before[:8], *after], range(32))

    def read(self, resumes=None, **arguments):
        return read(self.folder, resumes, **arguments)


if __name__ == "__main__":
    absltest.main()
