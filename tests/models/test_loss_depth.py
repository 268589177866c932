"""The loss without logits is the plain one, in values, gradients and precision; a training step holds no logits."""

import math
from unittest import mock

import torch
from absl.testing import parameterized
from torch import nn
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_depth.models import loss_depth
from hf_depth.models.loss_depth import cross_entropy_per_token, linear_cross_entropy
from hf_depth.models.modeling_depth import (
    DepthForConditionalGeneration,
    T5ForConditionalGeneration,
    UMT5ForConditionalGeneration,
)
from tiny_models import (
    SIZE,
    V1_0,
    VOCAB_SIZE,
    gradients,
    random_batch,
    tiny_config,
    tiny_model,
    tiny_t5_config,
    tiny_umt5_config,
)

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


def results(function, arguments, objective="loss", scale=1.0, dtype=torch.float32) -> dict[str, torch.Tensor]:
    """Loss, token losses and the gradients of `objective`, which is multiplied by `scale` as `GradScaler` does."""
    arguments = {name: value.clone() for name, value in arguments.items()}
    for name in ("hidden", "weight"):
        arguments[name] = arguments[name].to(dtype).requires_grad_()
    loss, token_losses = function(**arguments)
    other = (token_losses * torch.linspace(0, 1, NUM_LABELS)).sum()
    objectives = {"loss": loss, "token_losses": other, "both": 2 * loss + other}
    (scale * objectives[objective]).backward()
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
    @parameterized.product(
        ignored=("none", "some", "all"), objective=("loss", "token_losses", "both"), chunk_bytes=(CHUNK, 2**20)
    )
    def test_values_and_gradients_are_those_of_all_logits_at_once(self, ignored, objective, chunk_bytes):
        arguments = problem(ignored)
        expected = results(plain, arguments, objective)
        with mock.patch.object(loss_depth, "CPU_CHUNK_BYTES", chunk_bytes):
            found = results(linear_cross_entropy, arguments, objective)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=name)
        if ignored == "all":
            self.assertEqual(sum(value.abs().sum() for value in found.values()).item(), 0.0)

    @parameterized.product(dtype=(torch.bfloat16, torch.float16), autocast=(False, True), objective=("loss", "both"))
    def test_half_precision_errs_no_more_than_the_plain_loss_does(self, dtype, autocast, objective):
        arguments = problem()
        exact = results(plain, arguments | {"hidden": arguments["hidden"].double()}, objective, dtype=torch.float64)
        options = {"scale": 2.0**10, "dtype": torch.float32 if autocast else dtype}
        with torch.autocast("cpu", dtype, enabled=autocast), mock.patch.object(loss_depth, "CPU_CHUNK_BYTES", CHUNK):
            ours = errors(results(linear_cross_entropy, arguments, objective, **options), exact)
            theirs = errors(results(plain, arguments, objective, **options), exact)
        for name, error in ours.items():
            self.assertLess(error, 1.25 * theirs[name] + 1e-6, name)

    @parameterized.product(offset=(0, 30), spread=(1, 40), dtype=(torch.float32, torch.bfloat16))
    def test_logits_far_from_zero_and_from_each_other_cost_no_precision(self, offset, spread, dtype):
        arguments = problem("none")
        arguments["hidden"] *= spread
        for name in ("hidden", "weight"):
            arguments[name][:, 0] += offset
            arguments[name] = arguments[name].to(dtype)
        exact = results(plain, arguments, dtype=torch.float64)
        ours, theirs = (errors(results(each, arguments, dtype=dtype), exact) for each in (linear_cross_entropy, plain))
        for name, error in ours.items():
            self.assertLess(error, 1.25 * theirs[name] + 1e-7 * exact[name].norm().item(), name)

    @parameterized.parameters(1, 30, 1e3, 1e10, 1e37)
    def test_a_loss_is_neither_negative_nor_infinite(self, largest):
        hidden = torch.full((NUM_LABELS, 1), float(largest), requires_grad=True)
        weight = torch.rand(NUM_IDS, 1).index_fill_(0, torch.tensor([3, 5]), 1).requires_grad_()
        labels = torch.arange(NUM_LABELS).clamp(max=3)
        loss, token_losses = linear_cross_entropy(hidden, weight, labels)
        loss.backward()
        self.assertGreaterEqual(token_losses.min().item(), 0)
        torch.testing.assert_close(token_losses, plain(hidden, weight, labels, torch.ones(NUM_LABELS))[1].detach())
        self.assertTrue(all(tensor.isfinite().all() for tensor in (token_losses, hidden.grad, weight.grad)))

    @parameterized.product(dtype=(torch.bfloat16, torch.float16, torch.float32), under=(torch.bfloat16, torch.float16))
    def test_hidden_states_of_any_dtype_are_taken_under_autocast_of_any(self, dtype, under):
        arguments = problem()
        arguments["hidden"] = arguments["hidden"].to(dtype)
        with torch.autocast("cpu", under):
            loss, _ = linear_cross_entropy(**arguments)
        torch.testing.assert_close(
            loss, plain(**(arguments | {"hidden": arguments["hidden"].float()}))[0], rtol=0.02, atol=0
        )

    def test_tiny_weights_keep_the_precision_of_half_floats(self):
        # 1 / (number of labels) of a large batch, in which a float16 has few bits left; `GradScaler` scales it back.
        arguments = problem("none")
        tiny = arguments | {"loss_weights": arguments["loss_weights"] * 2.0**-14}
        found = results(linear_cross_entropy, arguments, scale=2.0**4, dtype=torch.float16)
        found_of_tiny = results(linear_cross_entropy, tiny, scale=2.0**18, dtype=torch.float16)
        for name in ("hidden", "weight"):
            torch.testing.assert_close(found_of_tiny[name] * 2.0**14, found[name], rtol=2e-3, atol=1e-5)

    def test_weights_of_labels_are_differentiated(self):
        arguments = problem()
        arguments["loss_weights"].requires_grad_()
        loss, token_losses = linear_cross_entropy(**arguments)
        loss.backward()
        torch.testing.assert_close(arguments["loss_weights"].grad, token_losses)

    def test_in_float64_nothing_is_rounded_to_float32(self):
        arguments = problem()
        arguments["loss_weights"] = arguments["loss_weights"].double() + 1e-12
        for objective in ("loss", "both"):
            expected = results(plain, arguments, objective, dtype=torch.float64)
            found = results(linear_cross_entropy, arguments, objective, dtype=torch.float64)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

    @parameterized.parameters(-1, NUM_IDS)
    def test_a_label_that_is_no_id_is_an_error(self, label):
        arguments = problem()
        arguments["labels"][0] = label
        for function in (linear_cross_entropy, plain):
            with self.assertRaisesRegex((IndexError, RuntimeError), f"{label} is out of bounds"):
                function(**arguments)

    def test_the_gradient_may_be_asked_for_twice(self):
        arguments = problem()
        weight = arguments["weight"].requires_grad_()
        loss, _ = linear_cross_entropy(**arguments)
        loss.backward(retain_graph=True)
        first = weight.grad.clone()
        weight.grad *= 3.0  # in place, as the clipping of gradients does
        loss.backward()
        torch.testing.assert_close(weight.grad, 4 * first)

    def test_second_derivatives_are_refused(self):
        arguments = problem()
        weight = arguments["weight"].requires_grad_()
        loss, _ = linear_cross_entropy(**arguments)
        with self.assertRaisesRegex(RuntimeError, "second derivatives"):
            torch.autograd.grad(loss, weight, create_graph=True)

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

    def test_predictions_are_the_largest_logits(self):
        arguments = problem()
        *losses, predictions = linear_cross_entropy(**arguments, with_predictions=True)
        expected = (arguments["hidden"] @ arguments["weight"].T).argmax(1)
        self.assertEqual(
            predictions.tolist(), expected.where(arguments["labels"] != -100, torch.tensor(-100)).tolist()
        )
        torch.testing.assert_close(losses, [*plain(**arguments)])

    @parameterized.parameters(False, True)
    def test_a_compiled_graph_is_whole_and_computes_logits_once(self, autocast):
        arguments = problem()
        head = Head(arguments.pop("weight"))
        compiled = torch.compile(head, backend="aot_eager", fullgraph=True, dynamic=False)
        found = {}
        real = loss_depth._fill
        with mock.patch.object(loss_depth, "_fill", side_effect=real) as runs:
            for name, model in (("eager", head), ("compiled", compiled)):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss, token_losses = model(**arguments)
                head.weight.grad = None
                loss.backward()
                found[name] = loss, token_losses, head.weight.grad
        self.assertEqual(runs.call_count, 2)
        torch.testing.assert_close(found["compiled"], found["eager"])

    def test_a_gradient_that_a_compiled_graph_does_not_have_is_an_error(self):
        arguments = problem()
        head = Head(arguments.pop("weight"))
        compiled = torch.compile(head, backend="aot_eager", fullgraph=True, dynamic=False)
        loss, token_losses = compiled(**arguments)
        with self.assertRaisesRegex(RuntimeError, "skip_logits=False"):
            (loss + token_losses.square().sum()).backward()

    def test_the_operator_is_right_about_itself(self):
        arguments = problem()
        settings = (torch.float32, True, True, True)
        torch.library.opcheck(loss_depth._linear_cross_entropy, (*arguments.values(), *settings))


class ModelLossTest(parameterized.TestCase):
    MODELS = (
        ("depth", DepthForConditionalGeneration, tiny_config, {}),
        ("t5_v1_0", T5ForConditionalGeneration, tiny_t5_config, V1_0),
        ("umt5", UMT5ForConditionalGeneration, tiny_umt5_config, {}),
    )

    @parameterized.named_parameters(*MODELS)
    def test_training_has_no_logits_unless_they_are_asked_for_and_the_same_gradients(self, model_class, config, shape):
        model, batch = tiny_model(config(**shape), model_class=model_class).train(), random_batch(0)
        self.assertIsNone(model(**batch).logits)
        self.assertIsNone(model(**batch).predictions)
        self.assertIsNotNone(model(**batch, skip_logits=False).logits)
        expected = gradients(model, batch, skip_logits=False)
        torch.testing.assert_close(gradients(model, batch), expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(model(**batch).loss, model(**batch, skip_logits=False).loss)

    @parameterized.named_parameters(*MODELS)
    def test_evaluation_has_logits_or_else_the_likeliest_ids(self, model_class, config, shape):
        model, batch = tiny_model(config(**shape), model_class=model_class), random_batch(1)
        whole, skipped = model(**batch), model(**batch, skip_logits=True)
        self.assertIsNone(whole.predictions)
        self.assertIsNone(skipped.logits)
        torch.testing.assert_close(skipped.token_losses, whole.token_losses)
        expected = whole.logits.argmax(-1).masked_fill(batch["labels"] == -100, -100)
        self.assertEqual(skipped.predictions.tolist(), expected.tolist())

    @parameterized.product(train=(True, False), skip_logits=(True, False))
    def test_labels_may_be_int32(self, train, skip_logits):
        model, batch = tiny_model().train(train), random_batch(1)
        loss = model(**batch | {"labels": batch["labels"].int()}, skip_logits=skip_logits).loss
        torch.testing.assert_close(loss, model(**batch).loss)

    @parameterized.product(model=MODELS, plain_head=(True, False))
    def test_weights_of_labels_make_the_loss(self, model, plain_head):
        _, model_class, config, shape = model
        model, batch = tiny_model(config(**shape), model_class=model_class).train(), random_batch(2)
        weights = torch.rand(batch["labels"].shape)
        outputs = model(**batch, skip_logits=False)
        (weights * outputs.token_losses).sum().backward()
        expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        if not plain_head:
            model.lm_head.register_forward_hook(lambda module, args, output: output.clone())
        weighted = model(**batch, loss_weights=weights)
        self.assertIsNone(weighted.logits)
        self.assertFalse(weighted.token_losses.requires_grad)
        torch.testing.assert_close(weighted.loss, (weights * outputs.token_losses).sum())
        torch.testing.assert_close(model(**batch, loss_weights=weights, num_items_in_batch=3).loss, weighted.loss / 3)
        found = gradients(model, batch, loss_weights=weights)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    def test_a_head_that_is_hooked_to_is_called(self):
        model, batch = tiny_model().train(), random_batch(3)
        model.lm_head.register_forward_hook(lambda module, args, output: 0 * output)
        self.assertAlmostEqual(model(**batch).loss.item(), math.log(VOCAB_SIZE), places=5)
        model.eval()
        self.assertLess(model(**batch, skip_logits=True).predictions.max().item(), 1)

    @parameterized.parameters(({"skip_logits": True},), ({"loss_weights": torch.ones(3, 9)},))
    def test_there_is_no_loss_without_labels(self, arguments):
        batch = random_batch(4)
        decoder_ids = batch.pop("labels").clamp(min=0)
        with self.assertRaisesRegex(ValueError, "needs `labels`"):
            tiny_model()(**batch, decoder_input_ids=decoder_ids, **arguments)

    @parameterized.parameters((None,), (7,), (torch.tensor(49),))
    def test_a_model_in_float64_has_a_loss_of_that_precision(self, num_items):
        model, batch = tiny_model().double(), random_batch(5)
        losses = [model(**batch, skip_logits=skip, num_items_in_batch=num_items).loss for skip in (True, False)]
        torch.testing.assert_close(*losses, rtol=1e-12, atol=0)

    @parameterized.parameters((0,), (torch.tensor(0),))
    def test_the_loss_of_no_labels_is_zero(self, num_items):
        model, batch = tiny_model(), random_batch(5)
        batch["labels"] = torch.full_like(batch["labels"], -100)
        for skip in (True, False):
            loss = model(**batch, skip_logits=skip, num_items_in_batch=num_items).loss
            self.assertEqual(loss.item(), 0)

    @parameterized.named_parameters(*MODELS)
    def test_no_tensor_of_a_step_grows_with_labels_times_vocabulary(self, model_class, config, shape):
        for vocab_size in (2048, 4096):
            changes = {**shape, "vocab_size": vocab_size}
            model = tiny_model(config(**changes), model_class=model_class).train()
            batch = random_batch(5, batch_size=8, source_length=16, target_length=32)
            with mock.patch.object(loss_depth, "CPU_CHUNK_BYTES", 64 * 1024), Recorder() as step:
                model(**batch).loss.backward()
            # A gradient of the embedding is the largest there is; logits of all 256 labels are 16 times as large.
            self.assertLessEqual(step.largest, vocab_size * SIZE["d_model"])
        with Recorder() as step:
            model(**batch, skip_logits=False).loss.backward()
        self.assertGreaterEqual(step.largest, 256 * 4096)
