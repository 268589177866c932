"""AdamWScale is nanoT5's update; what `--optim` and `--optim_args` say is what the optimizer has."""

import math
import re

import torch
from absl.testing import parameterized

from hf_depth import DepthTrainingArguments
from hf_depth.training.optimizers import AdamWScale, MuonWithAdamW
from tiny_training import TrainingTestCase, parameters, tiny_model, trainer

SHAPES = ((7, 5), (3, 1), (11,), (2, 3, 4), ())


def some_parameters(dtype=torch.float32, seed=0) -> list[torch.nn.Parameter]:
    """Matrices, vectors and a scalar of very different sizes; one of zeros."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=generator) * 10.0 ** (1 - i) for i, shape in enumerate(SHAPES)]
    return [torch.nn.Parameter(tensor.to(dtype)) for tensor in (*tensors, torch.zeros(4))]


def set_gradients(params, step: int) -> None:
    generator = torch.Generator().manual_seed(1000 + step)
    for p in params:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype) * (1 + step % 3)


class Reference:
    """The update as it is written down, element by element in float64."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.values = [p.detach().double().flatten().tolist() for p in params]
        self.m = [[0.0] * len(values) for values in self.values]
        self.v = [[0.0] * len(values) for values in self.values]
        self.t = 0

    def step(self, gradients):
        self.t += 1
        beta1, beta2 = self.betas
        for values, m, v, gradient in zip(self.values, self.m, self.v, gradients, strict=True):
            rms = math.sqrt(sum(value**2 for value in values) / len(values))
            alpha = self.lr * math.sqrt(1 - beta2**self.t) / (1 - beta1**self.t) * max(1e-3, rms)
            for i, g in enumerate(gradient.double().flatten().tolist()):
                m[i] = beta1 * m[i] + (1 - beta1) * g
                v[i] = beta2 * v[i] + (1 - beta2) * g * g
                values[i] -= alpha * m[i] / (math.sqrt(v[i]) + self.eps)
                values[i] -= self.lr * self.weight_decay * values[i]


class AdamWScaleTest(parameterized.TestCase):
    @parameterized.parameters(
        {"lr": 2e-2}, {"lr": 2e-2, "weight_decay": 0.1}, {"lr": 1e-3, "betas": (0.5, 0.9), "eps": 0.1}
    )
    def test_twenty_steps_are_those_of_the_formula(self, **options):
        params = some_parameters()
        optimizer, reference = AdamWScale(params, **options), Reference(params, **options)
        for step in range(20):
            set_gradients(params, step)
            reference.step([p.grad for p in params])
            optimizer.step()
        for p, values in zip(params, reference.values, strict=True):
            expected = torch.tensor(values, dtype=torch.float64)
            difference = (p.detach().double().flatten() - expected).abs().max().item()
            self.assertLess(difference, 1e-6 * expected.abs().max().item())

    def test_a_parameter_without_a_gradient_stays_and_does_not_count_the_step(self):
        params = some_parameters()
        optimizer = AdamWScale(params)
        for step in range(2):
            set_gradients(params, step)
            if step == 0:
                params[0].grad, old = None, params[0].detach().clone()
            optimizer.step()
            if step == 0:
                self.assertTrue(torch.equal(params[0], old))
        self.assertEqual([optimizer.state[p]["step"].item() for p in params[:2]], [1, 2])

    def test_bfloat16_parameters_move_as_those_of_float32_to_their_precision(self):
        params, halves = some_parameters(), some_parameters(torch.bfloat16)
        for each in (params, halves):
            optimizer = AdamWScale(each, lr=0.1)
            for step in range(3):
                set_gradients(each, step)
                optimizer.step()
        for p, half in zip(params, halves, strict=True):
            self.assertEqual(half.dtype, torch.bfloat16)
            torch.testing.assert_close(half.float(), p.float(), rtol=0.1, atol=0.02 * p.detach().abs().max().item())


class MuonWithAdamWTest(parameterized.TestCase):
    def test_each_kind_of_parameter_has_the_update_of_its_optimizer(self):
        shapes = {"matrix": (6, 4), "vector": (4,), "embedding": (9, 4)}
        first, second = ({name: self.parameter(shape) for name, shape in shapes.items()} for _ in range(2))
        groups = [{"params": [first["vector"], first["embedding"]]}, {"params": [first["matrix"]], "use_muon": True}]
        both = MuonWithAdamW(groups, lr=0.1, adamw_lr=0.05, momentum=0.8, betas=(0.8, 0.9), weight_decay=0.2)
        muon = torch.optim.Muon(
            [second["matrix"]], lr=0.1, momentum=0.8, weight_decay=0.2, adjust_lr_fn="match_rms_adamw"
        )
        rest = [second["vector"], second["embedding"]]
        adamw = torch.optim.AdamW(rest, lr=0.05, betas=(0.8, 0.9), weight_decay=0.2)
        for step in range(3):
            set_gradients(first.values(), step)
            set_gradients(second.values(), step)
            for optimizer in (both, muon, adamw):
                optimizer.step()
        for name, p in first.items():
            self.assertTrue(torch.equal(p, second[name]), name)

    @staticmethod
    def parameter(shape: tuple[int, ...]) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))))


class OptimFlagTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"optim": "adamw_scales"}, "There is no `optim` 'adamw_scales'. Did you mean 'adamw_scale'"),
        ({"optim_args": "min_rm=1"}, "'min_rm' is no option of adamw_scale. Did you mean 'min_rms'"),
        ({"optim_args": "min_rms=x"}, "min_rms is 'x'"),
        ({"optim_args": "min_rms=-1"}, "`optim` adamw_scale with .*`min_rms` must be at least 0"),
        ({"optim": "adafactor", "optim_args": "scale_parameter=maybe"}, "scale_parameter is 'maybe': invalid truth"),
        ({"optim": "muon", "optim_args": "adjust_lr_fn=fast"}, "`optim` muon with .*function fast is not supported"),
        ({"lr_scheduler_type": "t5_inverse_sqr"}, "no `lr_scheduler_type` .*Did you mean 't5_inverse_sqrt'"),
    )
    def test_what_there_is_not_is_refused_by_name(self, arguments, message):
        with self.assertRaisesRegex(ValueError, message):
            DepthTrainingArguments("unused", use_cpu=True, **{"optim": "adamw_scale"} | arguments)

    def test_adafactor_with_scaled_updates_has_learning_rates_of_t5(self):
        options = {"optim": "adafactor", "use_cpu": True}
        scaled = DepthTrainingArguments("unused", optim_args="scale_parameter=True", **options)
        self.assertEqual(scaled.learning_rate, 5e-3)
        self.assertTrue(scaled.use_scratch_learning_rate())
        self.assertEqual(scaled.learning_rate, 1e-2)
        plain = DepthTrainingArguments("unused", **options)
        self.assertEqual(
            (plain.learning_rate, plain.use_scratch_learning_rate(), plain.learning_rate), (1e-4, False, 1e-4)
        )


class OptimizersOfTheTrainerTest(TrainingTestCase):
    def trained(self, checkpoint: str | None = None, **arguments):
        """After four steps, with a checkpoint of the second; or from that checkpoint."""
        arguments = {"lr_scheduler_type": None, "learning_rate": None, "weight_decay": 0.1} | arguments
        arguments |= {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
        arguments |= {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
        trained = trainer("depth", self.folder, **arguments)
        trained.train(resume_from_checkpoint=checkpoint and f"{self.folder}/{checkpoint}")
        return trained

    @parameterized.parameters(
        {"optim": "adamw_scale"},
        {"optim": "adafactor", "optim_args": "scale_parameter=True,beta1=0.9", "lr_scheduler_type": "t5_inverse_sqrt"},
        {"optim": "muon", "lr_scheduler_type": "warmup_stable_decay"},
    )
    def test_a_resumed_run_is_the_run_bit_by_bit(self, **arguments):
        whole = self.trained(**arguments)
        resumed = self.trained("checkpoint-2", **arguments)
        start, expected, actual = parameters(tiny_model("depth")), parameters(whole.model), parameters(resumed.model)
        for name, value in actual.items():
            self.assertTrue(torch.equal(value, expected[name]), name)
            self.assertFalse(torch.equal(value, start[name]), name)

    def test_muon_has_the_matrices_of_the_blocks_and_adamw_all_else(self):
        made = trainer("depth", self.folder, optim="muon", weight_decay=0.1, optim_args="adamw_lr=0.25")
        optimizer = made.create_optimizer()
        names, seen = {p: name for name, p in made.model.named_parameters()}, []
        for group in optimizer.param_groups:
            for p in group["params"]:
                name, matrix = names[p], re.search(r"block.*\.(q|k|v|o|wi_0|wi_1|wo)\.weight", names[p])
                seen.append(name)
                self.assertEqual(group["use_muon"], matrix is not None, name)
                self.assertEqual(group["lr"], 1.0 if matrix else 0.25, name)
                exempt = any(part in name for part in ("layer_norm", "relative_attention_bias"))
                self.assertEqual(group["weight_decay"], 0.0 if exempt else 0.1, name)
        self.assertCountEqual(seen, names.values())
