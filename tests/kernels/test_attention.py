"""Attention functions by name: for any T5 of transformers, with the logits and gradients of sdpa."""

from itertools import product

import torch
from absl.testing import parameterized
from transformers import T5ForConditionalGeneration as StockT5

from hf_depth.kernels.attention import bias_by_distance, expand_bias, register_attention
from hf_depth.kernels.masks import is_compact
from interpreted_attention import eager as formula
from tiny_models import (
    V1_0,
    captured_masks,
    gradients,
    model_of,
    random_batch,
    random_ids,
    tiny_model,
    tiny_t5_config,
)

NAMES = ("depth_sdpa", "depth_flex", "depth_triton")


class BiasTest(parameterized.TestCase):
    @parameterized.parameters((1, 1), (3, 7), (7, 3))
    def test_the_bias_by_distance_is_the_inverse_of_its_expansion(self, queries, keys):
        compact = torch.randn(2, queries + keys - 1, requires_grad=True)
        dense = expand_bias(compact, keys)
        for query in range(queries):
            for key in range(keys):
                torch.testing.assert_close(dense[0, :, query, key], compact[:, key - query + queries - 1])
        torch.testing.assert_close(bias_by_distance(dense), compact)
        (gradient,) = torch.autograd.grad(bias_by_distance(dense).sum(), compact)
        self.assertTrue((gradient == 1).all())


class NameTest(parameterized.TestCase):
    @parameterized.product(name=NAMES, layout=("full", "padded"))
    def test_a_stock_t5_goes_the_way_of_sdpa_on_a_cpu(self, name, layout):
        model = tiny_model(tiny_t5_config(**V1_0), model_class=StockT5).train()
        batch = random_batch(0)
        if layout == "full":
            del batch["attention_mask"]
        expected, expected_logits = gradients(model, batch), model(**batch).logits
        model.set_attn_implementation(name)
        torch.testing.assert_close(model(**batch).logits, expected_logits, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradients(model, batch), expected, rtol=1e-4, atol=1e-6)

    @parameterized.product(name=NAMES, kind=("depth", "umt5"))
    def test_so_do_our_models_from_one_implementation_to_another_and_back(self, name, kind):
        model, batch = model_of(kind).train(), random_batch(1)
        expected = gradients(model, batch)
        for other in (name, "eager", name, "sdpa"):
            model.set_attn_implementation(other)
            with captured_masks(model) as found:
                torch.testing.assert_close(gradients(model, batch), expected, rtol=1e-4, atol=1e-6)
            self.assertFalse(any(map(is_compact, sum(found.values(), []))))

    @parameterized.parameters(*NAMES)
    def test_generated_ids_are_those_of_sdpa(self, name):
        model, ids = model_of("depth"), random_ids(torch.Generator().manual_seed(2), 3, 9)
        options = {"max_new_tokens": 8, "do_sample": False}
        expected = model.generate(ids, **options)
        model.set_attn_implementation(name)
        for cache in ("dynamic", "static"):
            self.assertEqual(
                model.generate(ids, cache_implementation=cache, **options).tolist(), expected.tolist(), cache
            )


class RegisteredTest(parameterized.TestCase):
    """A function of one's own, on a CPU."""

    def setUp(self):
        super().setUp()
        self.calls = []

        def function(query, key, value, bias, mask):
            self.calls.append((query.shape[2], key.shape[2]))
            return formula(query, key, value, bias, mask)

        register_attention("of_the_test", function, ("cpu",))

    @parameterized.parameters(
        *product(("depth", "umt5"), ("full", "padded", "packed")), ("stock", "full"), ("stock", "padded")
    )
    def test_it_gets_compact_masks_and_biases_and_gives_the_gradients_of_eager(self, kind, layout):
        model = tiny_model(tiny_t5_config(**V1_0), model_class=StockT5) if kind == "stock" else model_of(kind)
        model.train()
        batch = random_batch(4)
        if layout == "full":
            del batch["attention_mask"]
        elif layout == "packed":
            batch["encoder_segment_ids"] = torch.where(batch["attention_mask"], 1 + (torch.arange(12) > 5), 0)
            batch["decoder_segment_ids"] = torch.where(batch["labels"] != -100, 1, 0)
        model.set_attn_implementation("eager")
        expected = gradients(model, batch)
        model.set_attn_implementation("of_the_test")
        torch.testing.assert_close(gradients(model, batch), expected, rtol=1e-4, atol=1e-6)
        self.assertEqual(self.calls, [(12, 12)] * 2 + [(9, 9), (9, 12)] * 2)

    def test_dense_masks_of_the_caller_are_obeyed(self):
        model, batch = model_of("depth"), random_batch(5)
        mask = (torch.rand(3, 1, 9, 9) < 0.8) | torch.eye(9, dtype=torch.bool)
        expected = model(**batch, decoder_attention_mask=mask).logits
        model.set_attn_implementation("of_the_test")
        found = model(**batch, decoder_attention_mask=mask).logits
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        self.assertNotIn((9, 9), self.calls)

    def test_what_it_cannot_do_is_refused(self):
        model = model_of("depth", dropout_rate=0.1).train()
        model.set_attn_implementation("of_the_test")
        with self.assertRaisesRegex(ValueError, "`of_the_test` is for a T5 without dropout.*`sdpa`"):
            model(**random_batch(6))
