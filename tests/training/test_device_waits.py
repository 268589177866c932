"""Between two logs, no training step waits for the device: neither for a number of it nor for a shape."""

import unittest
from unittest import mock

import torch
from absl.testing import absltest, parameterized
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainerCallback

from hf_depth.models import modeling_depth
from hf_depth.training.optimizers import AdamWScale
from tiny_training import TrainingTestCase, poison, tiny_model, trainer

# What a CPU must know before it goes on: numbers of a device (`item`, `bool`), and shapes that depend on them.
WAITING = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "repeat_interleave")
FIRST, LAST = 2, 5  # steps without a log before or after them
RUNS = (
    ("depth", "depth", {}),
    ("t5", "t5", {}),
    ("weighted", "depth", {"sentence_loss_coefficient": 3.0}),
    ("accumulated", "depth", {"gradient_accumulation_steps": 2}),
    ("clipped", "depth", {"max_grad_norm": 0.1}),
    ("mixture", "depth", {"mixed": True}),
    ("stream", "depth", {"streaming": True}),
    ("adamw", "depth", {"optim": "adamw_torch_fused"}),
    ("adamw_scale", "depth", {"optim": "adamw_scale"}),
    ("muon", "depth", {"optim": "muon"}),
    ("checkpointing", "depth", {"gradient_checkpointing": True}),
)


class Waiting(AssertionError):
    """An operation for which a CPU would wait for its device."""


class NoWaiting(TorchDispatchMode):
    """Raises where a CPU would wait for the device that the tensors were on."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        indices = args[1] if name.startswith("index") and len(args) > 1 and isinstance(args[1], list | tuple) else ()
        by_mask = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
        if name.strip("_") in {waiting.strip("_") for waiting in WAITING} or by_mask:
            raise Waiting(f"{name} needs a number of the device")
        return function(*args, **(kwargs or {}))


class BetweenLogs(TrainerCallback):
    """Enters a context when a step begins, and leaves it when another one ends."""

    def __init__(self, enter, leave):
        self.enter, self.leave = enter, leave
        self.steps = 0

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == FIRST:
            self.enter()

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += FIRST <= state.global_step <= LAST
        if state.global_step == LAST:
            self.leave()


def run_between_logs(folder, kind, enter, leave, prepare=None, **arguments) -> int:
    """Train some steps with a log at the end, and return the number of those in the context."""
    model = tiny_model(kind, dropout_rate=0.1)
    settings = {"max_steps": LAST + 1, "logging_steps": LAST + 1, "per_device_train_batch_size": 2}
    one_trainer = trainer(kind, folder, model=model, **{"learning_rate": 0.01, "max_grad_norm": 1.0, **settings, **arguments})
    callback = BetweenLogs(enter, leave)
    one_trainer.add_callback(callback)
    if prepare is not None:
        prepare(one_trainer)
    one_trainer.train()
    return callback.steps


class NoWaitingTest(TrainingTestCase):
    """On a CPU, by the operations."""

    def run_without_waiting(self, kind, prepare=None, **arguments):
        mode = NoWaiting()
        # What is looked at on a CPU only.
        self.enterContext(mock.patch.object(modeling_depth, "check_segment_ids"))
        leave = lambda: mode.__exit__(None, None, None)  # noqa: E731
        return run_between_logs(self.folder, kind, mode.__enter__, leave, prepare, **arguments)

    @parameterized.named_parameters(RUNS)
    def test_no_step_between_logs_waits(self, kind, arguments):
        self.assertEqual(self.run_without_waiting(kind, **arguments), LAST - FIRST + 1)

    @parameterized.parameters("item", "nonzero", "mask")
    def test_a_step_that_waits_is_noticed(self, what):
        actions = {
            "item": lambda loss: loss.item(),
            "nonzero": lambda loss: loss[None].nonzero(),
            "mask": lambda loss: loss[None][loss[None] > 0],
        }

        def prepare(one_trainer):
            compute_loss = one_trainer.compute_loss

            def waiting(*args, **kwargs):
                loss = compute_loss(*args, **kwargs)
                actions[what](loss)
                return loss

            one_trainer.compute_loss = waiting

        with self.assertRaises(Waiting):
            self.run_without_waiting("depth", prepare)
