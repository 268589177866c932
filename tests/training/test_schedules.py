"""Learning rates at the steps where schedules turn, after a resumption, and with another number of steps."""

import math

import torch
from absl.testing import parameterized

from hf_depth import DepthTrainingArguments
from hf_depth.training.schedules import make_schedule


def rates(steps: list[int], total: int = 100_000, **arguments) -> list[float]:
    """The learning rates before these steps."""
    args = DepthTrainingArguments("unused", use_cpu=True, max_steps=total, **arguments)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.learning_rate)
    schedule = make_schedule(args, optimizer, total)
    return [args.learning_rate * schedule.lr_lambdas[0](step) for step in steps]


class SchedulesTest(parameterized.TestCase):
    @parameterized.parameters(
        # T5's own: 1e-2 for 10,000 steps, 1 / sqrt(step), and 0 at the end; the last tenth is linear.
        (
            {"lr_scheduler_type": "t5_inverse_sqrt", "learning_rate": 1e-2},
            {0: 1e-2, 1: 1e-2, 10_000: 1e-2, 40_000: 5e-3, 90_000: 1 / 300, 95_000: 1 / 600, 100_000: 0.0},
        ),
        (
            {"lr_scheduler_type": "t5_inverse_sqrt", "learning_rate": 2.0, "warmup_steps": 100}
            | {"lr_scheduler_kwargs": {"num_decay_steps": 0}},
            {0: 2.0, 100: 2.0, 400: 1.0, 10_000: 0.2, 100_000: 2 / math.sqrt(1000)},
        ),
        (
            {"lr_scheduler_type": "warmup_stable_decay", "learning_rate": 1.0, "warmup_steps": 1000},
            {0: 0.0, 500: 0.5, 1000: 1.0, 89_999: 1.0, 90_000: 1.0, 95_000: 0.5, 100_000: 0.0},
        ),
        (
            {"lr_scheduler_type": "warmup_stable_decay", "learning_rate": 1.0, "warmup_steps": 0}
            | {"lr_scheduler_kwargs": {"num_decay_steps": 50_000, "decay_type": "linear", "min_lr_ratio": 0.2}},
            {0: 1.0, 50_000: 1.0, 75_000: 0.6, 100_000: 0.2},
        ),
        (
            {"lr_scheduler_type": "warmup_stable_decay", "learning_rate": 1.0, "warmup_steps": 0}
            | {"lr_scheduler_kwargs": {"num_stable_steps": 20_000, "decay_type": "linear"}},
            {20_000: 1.0, 60_000: 0.5, 100_000: 0.0},
        ),
    )
    def test_the_learning_rate_at_the_turns(self, arguments, expected):
        for step, rate in zip(expected, rates(list(expected), **arguments), strict=True):
            self.assertAlmostEqual(rate, expected[step], places=9, msg=f"step {step}")

    @parameterized.product(
        kind=("reduce_lr_on_plateau", "greedy"), metric=("loss", "sentence_accuracy"), direction=(1, -1)
    )
    def test_what_follows_a_metric_lowers_the_rate_where_it_gets_worse(self, kind, metric, direction):
        options = {"patience": 0, "factor": 0.5} | ({"min_lr": 1e-9} if kind == "greedy" else {})
        args = DepthTrainingArguments(
            "unused",
            use_cpu=True,
            eval_strategy="steps",
            metric_for_best_model=metric,
            lr_scheduler_type=kind,
            lr_scheduler_kwargs=options,
        )
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
        schedule = make_schedule(args, optimizer, 100)
        for value in (0.5, 0.5 + 0.1 * direction, 0.5 + 0.2 * direction):
            schedule.step(value)
        is_worse = (direction > 0) == (metric == "loss")
        self.assertEqual(optimizer.param_groups[0]["lr"] < 1e-3, is_worse)

    @parameterized.parameters(
        ("t5_inverse_sqrt", {"num_decay_steps": 101}, "num_decay_steps 101 are more than the 100 steps"),
        ("warmup_stable_decay", {"num_decay_steps": 91}, "warmup_steps 10 and num_decay_steps 91 are more than"),
        ("cosine", {"num_decay_steps": 101}, "unexpected keyword argument 'num_decay_steps'"),
        ("cosine_with_min_lr", {"min_lr": math.nan}, "min_lr must be finite, got nan"),
        ("cosine_with_min_lr", {"min_lr": 1.0}, "the learning rate of step 15 would be .* times its peak"),
    )
    def test_what_does_not_fit_into_the_run_is_refused(self, kind, options, message):
        with self.assertRaisesRegex(ValueError, f"`lr_scheduler_type` {kind} .*{message}"):
            rates([], 100, lr_scheduler_type=kind, lr_scheduler_kwargs=options, warmup_steps=10)

    def test_a_warm_up_that_is_longer_than_the_run_is_told(self):
        with self.assertLogs("hf_depth.training.schedules", "WARNING") as logs:
            rates([], 100, warmup_steps=101)
        self.assertIn("The warm-up of 101 steps is longer than the run of 100", logs.output[0])
