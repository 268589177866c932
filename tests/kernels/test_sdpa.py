"""The attention "depth_sdpa" has the bits of "sdpa", and one sum of mask and bias for all layers of a stack."""

import io
from unittest import mock

import torch
from absl.testing import parameterized
from transformers import T5ForConditionalGeneration as StockT5

from tiny_models import (
    V1_0,
    gradients,
    model_of,
    outputs_and_gradients,
    random_batch,
    random_ids,
    tiny_model,
    tiny_t5_config,
)


class SdpaTest(parameterized.TestCase):
    @parameterized.product(kind=("depth", "t5", "umt5"), way=("", "autocast", "checkpointing", "reentrant"))
    def test_outputs_and_gradients_are_those_of_sdpa_to_the_bit(self, kind, way):
        found = []
        for name in ("sdpa", "depth_sdpa"):
            model, batch = model_of(kind, name).train(), random_batch(7)
            if way in ("checkpointing", "reentrant"):
                model.activation_checkpointing_enable({"use_reentrant": way == "reentrant"})
                model.enable_input_require_grads()
            with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
                outputs, gradient = outputs_and_gradients(model, batch)
            found.append({"loss": outputs.loss.detach(), **gradient})
        torch.testing.assert_close(*found, rtol=0, atol=0)

    @parameterized.parameters(("depth", 3), ("t5", 3), ("umt5", 5))
    def test_layers_share_what_is_added_to_their_scores(self, kind, number):
        model, batch, added = model_of(kind, "depth_sdpa").train(), random_batch(7), []
        attend = torch.nn.functional.scaled_dot_product_attention

        def recorded(query, key, value, attn_mask, **options):
            self.assertEqual(attn_mask.dtype, query.dtype)
            added.append(attn_mask)
            return attend(query, key, value, attn_mask=attn_mask, **options)

        with mock.patch("torch.nn.functional.scaled_dot_product_attention", recorded):
            with torch.autocast("cpu", torch.bfloat16):
                model(**batch, decoder_attention_mask=batch["labels"] != -100)
        self.assertLen(added, 6)
        self.assertLen({mask.data_ptr() for mask in added}, number)

    @parameterized.parameters("depth", "t5")
    def test_a_traced_model_can_be_saved(self, kind):
        model, batch = model_of(kind, "depth_sdpa"), random_batch(7)
        ids = batch["input_ids"], torch.ones_like(batch["input_ids"]), batch["labels"].clamp(min=0)

        class Logits(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, *ids):
                return self.model(*ids, use_cache=False, return_dict=False)[0]

        with io.BytesIO() as file:
            torch.jit.save(torch.jit.trace(Logits(), ids, check_trace=False), file)
            file.seek(0)
            torch.testing.assert_close(torch.jit.load(file)(*ids), Logits()(*ids))


class NameTest(parameterized.TestCase):
    @parameterized.parameters("full", "padded")
    def test_it_works_for_a_stock_t5(self, layout):
        model = tiny_model(tiny_t5_config(**V1_0), model_class=StockT5).train()
        batch = random_batch(0)
        if layout == "full":
            del batch["attention_mask"]
        expected, expected_logits = gradients(model, batch), model(**batch).logits
        model.set_attn_implementation("depth_sdpa")
        torch.testing.assert_close(model(**batch).logits, expected_logits, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradients(model, batch), expected, rtol=1e-4, atol=1e-6)

    @parameterized.parameters("depth", "umt5")
    def test_a_model_goes_from_one_implementation_to_another_and_back(self, kind):
        model, batch = model_of(kind).train(), random_batch(1)
        expected = gradients(model, batch)
        for name in ("depth_sdpa", "eager", "depth_sdpa", "sdpa"):
            model.set_attn_implementation(name)
            torch.testing.assert_close(gradients(model, batch), expected, rtol=1e-4, atol=1e-6)

    def test_generated_ids_are_those_of_sdpa(self):
        model, ids = model_of("depth"), random_ids(torch.Generator().manual_seed(2), 3, 9)
        options = {"max_new_tokens": 8, "do_sample": False}
        expected = model.generate(ids, **options)
        model.set_attn_implementation("depth_sdpa")
        for cache in ("dynamic", "static"):
            self.assertEqual(
                model.generate(ids, cache_implementation=cache, **options).tolist(), expected.tolist(), cache
            )
