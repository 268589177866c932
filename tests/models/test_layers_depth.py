"""The fast layers compute what T5's do, in values, gradients and precision; the residual stream in bfloat16."""

import copy
from unittest import mock

import torch
from absl.testing import parameterized
from torch import nn
from transformers.activations import GELUTanh, SiLUActivation
from transformers.models.t5.modeling_t5 import T5DenseActDense, T5DenseGatedActDense, T5LayerNorm

from hf_depth.models.layers_depth import DepthLayerNorm, is_plain_layer, set_residual_dtype, speed_up_layers
from hf_depth.models.modeling_depth import T5ForConditionalGeneration, UMT5ForConditionalGeneration
from tiny_models import gradients, random_batch, tiny_config, tiny_model, tiny_t5_config, tiny_umt5_config

D_MODEL = 24


def norms() -> tuple[T5LayerNorm, DepthLayerNorm]:
    """T5's layer norm and the fast one, with equal random weights."""
    stock = T5LayerNorm(D_MODEL)
    nn.init.normal_(stock.weight, generator=torch.Generator().manual_seed(0))
    fast = nn.ModuleList([copy.deepcopy(stock)])
    speed_up_layers(fast)
    return stock, fast[0]


def results(norm: nn.Module, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What a layer norm computes of hidden states, and the gradients of a sum of that."""
    states = states.clone().requires_grad_()
    output = norm(states)
    (output * torch.linspace(-1, 2, output.numel()).view_as(output)).sum().backward()
    return output.detach(), states.grad, norm.weight.grad


class LayerNormTest(parameterized.TestCase):
    @parameterized.product(
        dtype=(torch.float32, torch.bfloat16), shape=((3, 5, D_MODEL), (7, D_MODEL)), scale=(1.0, 1e-4, 1e4)
    )
    def test_values_and_gradients_are_those_of_t5(self, dtype, shape, scale):
        stock, fast = norms()
        self.assertIs(type(fast), DepthLayerNorm)
        states = (scale * torch.randn(shape, generator=torch.Generator().manual_seed(1))).to(dtype)
        for found, expected in zip(results(fast, states), results(stock, states), strict=True):
            self.assertEqual(found.dtype, expected.dtype)
            tolerance = 1e-2 if found.dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * expected.abs().max().item())

    def test_the_kernel_of_accelerators_computes_the_same(self):
        stock, fast = norms()
        states = torch.randn(3, 5, D_MODEL, generator=torch.Generator().manual_seed(2))
        kernel = nn.functional.rms_norm(states, fast.weight.shape, fast.weight, fast.variance_epsilon)
        torch.testing.assert_close(kernel, stock(states))

    def test_a_gradient_taken_under_autocast_is_not_rounded(self):
        stock, fast = norms()
        states = torch.randn(64, D_MODEL, generator=torch.Generator().manual_seed(3))
        with torch.autocast("cpu", torch.bfloat16):
            found = results(fast, states)
        torch.testing.assert_close(found, results(stock, states), rtol=1e-5, atol=1e-5)

    def test_vectors_may_lie_in_any_order(self):
        stock, fast = norms()
        states = torch.randn(5, 3, D_MODEL, generator=torch.Generator().manual_seed(4)).transpose(0, 1)
        gradient = torch.randn(5, 3, D_MODEL, generator=torch.Generator().manual_seed(5)).transpose(0, 1)
        found, expected = [], []
        for norm, result in ((fast, found), (stock, expected)):
            inputs = (states.detach().requires_grad_(), norm.weight)
            result += torch.autograd.grad(norm(inputs[0]), inputs, gradient)
        torch.testing.assert_close(found, expected)

    def test_second_derivatives_are_those_of_t5(self):
        results = []
        for norm in norms():
            states = torch.randn(5, D_MODEL, generator=torch.Generator().manual_seed(6)).requires_grad_()
            inputs = (states, norm.weight)
            first = torch.autograd.grad(norm(states).sin().sum(), inputs, create_graph=True)
            results.append(torch.autograd.grad(sum(each.square().sum() for each in first), inputs))
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)

    def test_frozen_weights_and_inputs_have_no_gradient(self):
        _, fast = norms()
        states = torch.randn(5, D_MODEL)
        fast(states).sum().backward()
        self.assertIsNone(states.grad)
        fast.weight.requires_grad_(False)
        weight_gradient, fast.weight.grad = fast.weight.grad, None
        fast(states.requires_grad_()).sum().backward()
        self.assertIsNone(fast.weight.grad)
        self.assertIsNotNone(weight_gradient)

    def test_weights_in_half_precision_take_the_casts_of_t5(self):
        stock, fast = norms()
        states = torch.randn(5, D_MODEL, dtype=torch.bfloat16)
        torch.testing.assert_close(fast.bfloat16()(states), stock.bfloat16()(states), rtol=0, atol=0)


class SpeedUpTest(parameterized.TestCase):
    @parameterized.parameters(
        ("relu", T5DenseActDense, nn.ReLU),
        ("gated-gelu", T5DenseGatedActDense, GELUTanh),
        ("gated-silu", T5DenseGatedActDense, SiLUActivation),
    )
    def test_only_the_slow_gelu_is_replaced(self, name, layer_class, activation):
        model = tiny_model(feed_forward_proj=name)
        layers = [module for module in model.modules() if type(module) is layer_class]
        self.assertLen(layers, 4)
        for layer in layers:
            self.assertIsInstance(layer.act, activation)

    @parameterized.parameters(
        (tiny_config, {}),
        (tiny_t5_config, {"model_class": T5ForConditionalGeneration}),
        (tiny_umt5_config, {"model_class": UMT5ForConditionalGeneration}),
    )
    def test_every_layer_norm_of_a_model_is_fast(self, config, options):
        model = tiny_model(config(), **options)
        kinds = {type(module) for module in model.modules() if isinstance(module, T5LayerNorm)}
        self.assertEqual(kinds, {DepthLayerNorm})


class PlainLayerTest(parameterized.TestCase):
    def test_a_matrix_is_plain(self):
        self.assertTrue(is_plain_layer(nn.Linear(2, 3), nn.Linear))

    def test_whatever_changes_what_a_call_computes_is_not(self):
        changed = {name: nn.Linear(2, 3) for name in ("hook", "forward", "zero3", "parametrized")}
        changed["hook"].register_forward_hook(lambda module, args, output: 2 * output)
        changed["forward"].forward = lambda states: states
        changed["zero3"].weight.ds_id = 0
        nn.utils.parametrizations.weight_norm(changed["parametrized"])
        changed["subclass"] = nn.modules.linear.NonDynamicallyQuantizableLinear(2, 3)
        for name, layer in changed.items():
            with self.subTest(name):
                self.assertFalse(is_plain_layer(layer, nn.Linear))


class EmbeddingTest(parameterized.TestCase):
    @parameterized.parameters(
        (tiny_config, {}),
        (tiny_t5_config, {"model_class": T5ForConditionalGeneration}),
    )
    def test_one_lookup_for_both_inputs_gives_the_gradients_of_two(self, config, options):
        model, batch = tiny_model(config(), **options).train(), random_batch(0)
        with mock.patch.object(nn.functional, "embedding", side_effect=nn.functional.embedding) as lookups:
            found = gradients(model, batch)
        sizes = [call.args[1].shape for call in lookups.call_args_list if call.args[1] is model.shared.weight]
        self.assertLen(sizes, 1)
        model.encoder.embed_tokens.register_forward_hook(lambda module, args, output: None)
        torch.testing.assert_close(found, gradients(model, batch))


class ResidualTest(parameterized.TestCase):
    def dtypes(self, model, batch, enabled: bool = True) -> set[torch.dtype]:
        found = set()
        hooks = [
            block.register_forward_hook(lambda module, args, output: found.add(output[0].dtype))
            for stack in (model.encoder, model.decoder)
            for block in stack.block
        ]
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            model(**batch).loss.backward()
        for hook in hooks:
            hook.remove()
        return found

    @parameterized.parameters(False, True)
    def test_the_residual_stream_has_the_dtype_asked_for_under_autocast(self, checkpointing):
        model, batch = tiny_model().train(), random_batch(1)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self.assertEqual(self.dtypes(model, batch), {torch.float32})
        set_residual_dtype(model, torch.bfloat16)
        self.assertEqual(self.dtypes(model, batch), {torch.bfloat16})
        self.assertEqual(self.dtypes(model, batch, enabled=False), {torch.float32})
        self.assertEqual(self.dtypes(copy.deepcopy(model), batch), {torch.bfloat16})
        set_residual_dtype(model, None)
        self.assertEqual(self.dtypes(model, batch), {torch.float32})
