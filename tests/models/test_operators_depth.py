"""Counts of floating-point operations: torch's counter sees the operators of this package."""

import copy
from unittest import mock

import torch
from absl.testing import parameterized
from torch.utils.flop_counter import FlopCounterMode
from transformers import T5ForConditionalGeneration as StockT5

from hf_depth.models import layers_depth, matmul_depth, sdpa_depth, triton_depth
from hf_depth.models.modeling_depth import DepthForConditionalGeneration, T5ForConditionalGeneration
from tiny_models import random_batch, tiny_config, tiny_model, tiny_t5_config


def count(model, batch, backward, step=None):
    """Operations of a training step, or of its forward pass."""
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(backward):
        loss = (step or model)(**batch).loss
        if backward:
            loss.backward()
    return counter.get_total_flops()


class FlopsTest(parameterized.TestCase):
    @parameterized.product(
        model=((DepthForConditionalGeneration, tiny_config), (T5ForConditionalGeneration, tiny_t5_config)),
        backward=(False, True),
    )
    def test_a_step_has_those_of_stock_t5_and_what_is_computed_again(self, model, backward):
        model_class, config = model
        batch = random_batch(0)
        stock = tiny_model(tiny_t5_config(), "eager", model_class=StockT5).train()
        model = tiny_model(config(), "depth_sdpa", model_class=model_class).train()
        expected = count(stock, batch, backward)
        if backward:  # the scores of each attention
            batch_size, (source, target) = 3, (batch[name].shape[1] for name in ("input_ids", "labels"))
            pairs = source**2 + target**2 + target * source
            settings = model.config
            expected += 2 * batch_size * pairs * settings.num_layers * settings.num_heads * settings.d_kv
        self.assertEqual(count(model, batch, backward), expected)

    @parameterized.parameters("depth_sdpa", *(["depth_triton"] if triton_depth.triton else []))
    def test_attention_has_those_of_its_products(self, name):
        modules = {"depth_sdpa": sdpa_depth.depth_sdpa, "depth_triton": triton_depth.depth_triton}
        query, gradient = (torch.empty(2, 3, 7, 16, device="meta") for _ in range(2))
        key, value = (torch.empty(2, 3, 5, 16, device="meta") for _ in range(2))
        leaves = [tensor.requires_grad_() for tensor in (query, key, value, torch.empty(3, 11, device="meta"))]
        with FlopCounterMode(display=False) as counter:
            modules[name](*leaves, None, False).backward(gradient)
        self.assertEqual(counter.get_total_flops(), (2 + 5) * 2 * 2 * 3 * 7 * 5 * 16)

    def test_a_frozen_head_has_none_for_its_gradient(self):
        batch = random_batch(0)
        models = [
            tiny_model(tiny_t5_config(), "eager", model_class=StockT5).train(),
            tiny_model(tiny_t5_config(), "eager", model_class=T5ForConditionalGeneration).train(),
        ]
        for model in models:
            model.lm_head.requires_grad_(False)
        self.assertEqual(*(count(model, batch, backward=True) for model in models))

    @parameterized.parameters(False, True)
    def test_products_in_blocks_are_counted(self, is_compiled):
        with (
            mock.patch.object(matmul_depth, "ONEDNN_IS_FASTER", True),
            mock.patch.object(layers_depth, "ONEDNN_IS_FASTER", True),
            mock.patch.object(matmul_depth, "MIN_MULTIPLICATIONS", 0),
        ):
            layer = layers_depth.DepthLinear(32, 64, bias=False)
            states = torch.randn(70, 32, requires_grad=True)
            call = torch.compile(layer, backend="aot_eager") if is_compiled else layer
            with FlopCounterMode(display=False) as counter:
                call(states).sum().backward()
        self.assertEqual(counter.get_total_flops(), 3 * 2 * 70 * 32 * 64)

    def test_a_file_that_is_run_again_is_counted_once(self):
        model = tiny_model(tiny_t5_config(), "depth_sdpa", model_class=T5ForConditionalGeneration)
        expected = count(model, random_batch(0), backward=True)
        name = matmul_depth.operator_name("product", matmul_depth.__name__)
        matmul_depth.counts_flops(name)(matmul_depth._flops)
        self.assertEqual(count(copy.deepcopy(model), random_batch(0), backward=True), expected)
