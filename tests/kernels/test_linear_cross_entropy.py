"""The loss without logits is the plain one, in values, gradients and precision; a training step holds no logits."""

from unittest import mock

import torch
from absl.testing import parameterized
from torch import nn
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_depth.kernels import linear_cross_entropy as kernel
from hf_depth.kernels.linear_cross_entropy import linear_cross_entropy
from hf_depth.models.modeling_depth import cross_entropy_per_token
from tiny_models import SIZE, V1_0, gradients, model_of, random_batch

NUM_LABELS, D_MODEL, NUM_IDS = 37, 16, 50
CHUNK = 8 * NUM_IDS * 4  # bytes: chunks of 8 rows, the last one of 5


def problem(ignored: str = "some", seed: int = 0) -> dict[str, torch.Tensor]:
    """Random arguments of the loss; of the labels, `none`, `some` or `all` are -100."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(NUM_IDS, (NUM_LABELS,), generator=generator)
    labels[{"none": slice(0), "some": slice(1, None, 3), "all": slice(None)}[ignored]] = -100
    return {
        "hidden": torch.randn(NUM_LABELS, D_MODEL, generator=generator),
        "weight": torch.randn(NUM_IDS, D_MODEL, generator=generator),
        "labels": labels,
        "loss_weights": torch.rand(NUM_LABELS, generator=generator) / NUM_LABELS,
    }


def plain(hidden, weight, labels, loss_weights):
    """The same by all logits at once."""
    token_losses = cross_entropy_per_token(nn.functional.linear(hidden, weight)[None], labels[None])[0]
    return (loss_weights * token_losses).sum(), token_losses


def results(function, arguments, scale=1.0, dtype=torch.float32) -> dict[str, torch.Tensor]:
    """Loss, token losses and the gradients of the loss, which is multiplied by `scale` as `GradScaler` does."""
    arguments = {name: value.clone() for name, value in arguments.items()}
    for name in ("hidden", "weight"):
        arguments[name] = arguments[name].to(dtype).requires_grad_()
    loss, token_losses = function(**arguments)
    (scale * loss).backward()
    found = {"loss": loss.detach(), "token_losses": token_losses.detach()}
    return found | {name: arguments[name].grad.double() / scale for name in ("hidden", "weight")}


def errors(found, exact) -> dict[str, float]:
    return {name: (found[name].double() - exact[name]).norm().item() for name in exact}


class Head(nn.Module):
    """What a model does at its end; returns loss and token losses."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, hidden, **arguments):
        return linear_cross_entropy(hidden.tanh(), self.weight, **arguments)


class Recorder(TorchDispatchMode):
    """Which operators ran, those inside of our own included, and the most elements of a tensor that one returned."""

    def __init__(self):
        super().__init__()
        self.names, self.largest = set(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function._opname)
        if function.namespace == "hf_depth":
            with self:
                output = OPDEFS[f"hf_depth::{function._opname}"]._init_fn(*args, **(kwargs or {}))
        else:
            output = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        self.largest = max(self.largest, *sizes, 0)
        return output


class LinearCrossEntropyTest(parameterized.TestCase):
    @parameterized.product(ignored=("none", "some", "all"), chunk_bytes=(CHUNK, 2**20))
    def test_values_and_gradients_are_those_of_all_logits_at_once(self, ignored, chunk_bytes):
        arguments = problem(ignored)
        expected = results(plain, arguments)
        with mock.patch.object(kernel, "CPU_CHUNK_BYTES", chunk_bytes):
            found = results(linear_cross_entropy, arguments)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)
        if ignored == "all":
            self.assertEqual(sum(value.abs().sum() for value in found.values()).item(), 0.0)

    @parameterized.product(dtype=(torch.bfloat16, torch.float16), autocast=(False, True))
    def test_half_precision_errs_no_more_than_the_plain_loss_does(self, dtype, autocast):
        arguments = problem()
        exact = results(plain, arguments, dtype=torch.float64)
        options = {"scale": 2.0**10, "dtype": torch.float32 if autocast else dtype}
        with torch.autocast("cpu", dtype, enabled=autocast), mock.patch.object(kernel, "CPU_CHUNK_BYTES", CHUNK):
            ours = errors(results(linear_cross_entropy, arguments, **options), exact)
            theirs = errors(results(plain, arguments, **options), exact)
        for name, error in ours.items():
            self.assertLess(error, 1.25 * theirs[name] + 1e-6, name)

    @parameterized.product(spread=(1, 40), dtype=(torch.float32, torch.bfloat16))
    def test_logits_far_from_zero_and_from_each_other_cost_no_precision(self, spread, dtype):
        arguments = problem("none")
        arguments["hidden"] *= spread
        for name in ("hidden", "weight"):
            arguments[name][:, 0] += 30
            arguments[name] = arguments[name].to(dtype)
        exact = results(plain, arguments, dtype=torch.float64)
        ours, theirs = (errors(results(each, arguments, dtype=dtype), exact) for each in (linear_cross_entropy, plain))
        for name, error in ours.items():
            self.assertLess(error, 1.25 * theirs[name] + 1e-7 * exact[name].norm().item(), name)

    @parameterized.parameters(1, 1e3, 1e37)
    def test_a_loss_is_neither_negative_nor_infinite(self, largest):
        hidden = torch.full((NUM_LABELS, 1), float(largest), requires_grad=True)
        weight = torch.rand(NUM_IDS, 1).index_fill_(0, torch.tensor([3, 5]), 1).requires_grad_()
        labels = torch.arange(NUM_LABELS).clamp(max=3)
        loss, token_losses = linear_cross_entropy(hidden, weight, labels)
        loss.backward()
        self.assertGreaterEqual(token_losses.min().item(), 0)
        torch.testing.assert_close(token_losses, plain(hidden, weight, labels, torch.ones(NUM_LABELS))[1].detach())
        self.assertTrue(all(tensor.isfinite().all() for tensor in (token_losses, hidden.grad, weight.grad)))

    def test_in_float64_gradients_are_those_of_finite_differences(self):
        arguments = {
            name: value.double().requires_grad_() if value.is_floating_point() else value
            for name, value in problem().items()
        }
        torch.autograd.gradcheck(lambda *values: linear_cross_entropy(*values)[0], tuple(arguments.values()))

    def test_the_gradient_may_be_asked_for_twice(self):
        arguments = problem()
        weight = arguments["weight"].requires_grad_()
        loss, _ = linear_cross_entropy(**arguments)
        loss.backward(retain_graph=True)
        first = weight.grad.clone()
        weight.grad *= 3.0  # in place, as the clipping of gradients does
        loss.backward()
        torch.testing.assert_close(weight.grad, 4 * first)

    def test_a_frozen_head_and_evaluation_cost_no_gradient_of_the_head(self):
        arguments = problem()
        arguments["hidden"].requires_grad_()
        with Recorder() as frozen:
            linear_cross_entropy(**arguments)[0].backward()
        arguments["weight"].requires_grad_()
        with Recorder() as evaluation, torch.no_grad():
            linear_cross_entropy(**arguments)
        with Recorder() as training:
            linear_cross_entropy(**arguments)
        self.assertEqual(["addmm_" in run.names for run in (frozen, evaluation, training)], [False, False, True])
        self.assertNotIn("scatter_add_", evaluation.names)

    def test_a_compiled_graph_is_whole_and_computes_logits_once(self):
        arguments = problem()
        head = Head(arguments.pop("weight"))
        compiled = torch.compile(head, backend="aot_eager", fullgraph=True, dynamic=False)
        found = {}
        real = kernel._fill
        with mock.patch.object(kernel, "_fill", side_effect=real) as runs:
            for name, model in (("eager", head), ("compiled", compiled)):
                with torch.autocast("cpu", torch.bfloat16, enabled=True):
                    loss, token_losses = model(**arguments)
                head.weight.grad = None
                loss.backward()
                found[name] = loss, token_losses, head.weight.grad
        self.assertEqual(runs.call_count, 2)
        torch.testing.assert_close(found["compiled"], found["eager"])


class HeadTest(parameterized.TestCase):
    """In a model."""

    @parameterized.parameters(("depth", {}), ("t5", V1_0), ("umt5", {}))
    def test_no_tensor_of_a_step_grows_with_labels_times_vocabulary(self, kind, shape):
        for vocab_size in (2048, 4096):
            model = model_of(kind, **shape, vocab_size=vocab_size).train()
            batch = random_batch(5, batch_size=8, source_length=16, target_length=32)
            with mock.patch.object(kernel, "CPU_CHUNK_BYTES", 64 * 1024), Recorder() as step:
                model(**batch).loss.backward()
            # A gradient of the embedding is the largest there is; logits of all 256 labels are 16 times as large.
            self.assertLessEqual(step.largest, vocab_size * SIZE["d_model"])
        with Recorder() as step:
            model(**batch, skip_logits=False).loss.backward()
        self.assertGreaterEqual(step.largest, 256 * 4096)

    @parameterized.parameters("bias", "layer", "hook")
    def test_a_head_that_is_more_than_its_weight_is_called(self, kind):
        model, batch = model_of("t5").train(), random_batch(6)
        if kind == "bias":
            model.lm_head.bias = nn.Parameter(torch.linspace(0, 3, NUM_IDS))
        elif kind == "layer":
            model.lm_head = nn.Sequential(model.lm_head, nn.Tanh())
        else:
            model.lm_head.register_forward_hook(lambda module, args, output: output.tanh())
        expected = gradients(model, batch, skip_logits=False)
        with mock.patch.object(kernel, "linear_cross_entropy", side_effect=AssertionError):
            torch.testing.assert_close(gradients(model, batch), expected)
