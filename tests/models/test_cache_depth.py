"""The key/value cache goes by either of its names in transformers, whichever is installed."""

import inspect

import torch
from absl.testing import parameterized
from transformers import T5ForConditionalGeneration as StockT5

from hf_depth.models.cache_depth import CACHE, takes_cache
from hf_depth.models.masking_depth import is_sentence_token
from hf_depth.models.modeling_depth import DepthForConditionalGeneration, T5ForConditionalGeneration
from tiny_models import cache_of, random_batch, tiny_config, tiny_model, tiny_t5_config

MODELS = ((DepthForConditionalGeneration, tiny_config), (T5ForConditionalGeneration, tiny_t5_config))


class CacheTest(parameterized.TestCase):
    def half_decoded(self, model_class, config):
        """A model, its inputs, its logits of seven tokens, and what it needs beside a cache of four for the rest."""
        model, batch = tiny_model(config(), model_class=model_class), random_batch(0)
        ids = model._shift_right(batch.pop("labels"))[:, :7]
        outputs = model(**batch, decoder_input_ids=ids[:, :4], use_cache=True)
        rest = {"decoder_input_ids": ids[:, 4:]}
        if model_class is DepthForConditionalGeneration:
            rest["decoder_sentence_mask"] = is_sentence_token(ids, model.config)
        return model, batch, model(**batch, decoder_input_ids=ids).logits, outputs, rest

    @parameterized.product(model=MODELS, name=("cache", "past_key_values"))
    def test_a_cache_is_continued_by_either_name(self, model, name):
        model, batch, expected, outputs, rest = self.half_decoded(*model)
        found = model(**batch, **rest, **{name: cache_of(outputs)})
        torch.testing.assert_close(found.logits, expected[:, 4:], rtol=1e-4, atol=1e-5)
        self.assertEqual(cache_of(found).get_seq_length(), 7)

    @parameterized.parameters(*MODELS)
    def test_a_name_without_a_value_does_not_hide_the_other(self, model_class, config):
        model, batch, expected, outputs, rest = self.half_decoded(model_class, config)
        found = model(**batch, **rest, cache=cache_of(outputs), past_key_values=None)
        torch.testing.assert_close(found.logits, expected[:, 4:], rtol=1e-4, atol=1e-5)

    @parameterized.product(model=MODELS, name=("cache", "past_key_values"))
    def test_by_either_name_generation_feeds_only_what_a_cache_lacks(self, model, name):
        model, batch, expected, outputs, rest = self.half_decoded(*model)
        ids = torch.cat([torch.zeros_like(expected[:, :4, 0], dtype=torch.long), rest["decoder_input_ids"]], dim=1)
        given = {"encoder_outputs": model.encoder(**batch), "attention_mask": batch["attention_mask"]}
        inputs = model.prepare_inputs_for_generation(ids, **{name: cache_of(outputs)}, **given, use_cache=True)
        self.assertEqual(inputs["decoder_input_ids"].tolist(), ids[:, 4:].tolist())
        found = model(**inputs | rest)
        torch.testing.assert_close(found.logits, expected[:, 4:], rtol=1e-4, atol=1e-5)

    def test_two_caches_are_refused(self):
        model, batch, _, outputs, rest = self.half_decoded(*MODELS[0])
        cache = cache_of(outputs)
        with self.assertRaisesRegex(ValueError, "`cache` and `past_key_values` are two names of one argument"):
            model(**batch, **rest, cache=cache, past_key_values=cache)

    @parameterized.parameters(*MODELS)
    def test_a_cache_by_a_name_of_a_later_transformers_is_not_ignored(self, model_class, config):
        model, batch, _, outputs, rest = self.half_decoded(model_class, config)
        with self.assertRaisesRegex(TypeError, f"`kv` is a cache, but no argument of {model_class.__name__}.forward"):
            model(**batch, **rest, kv=cache_of(outputs))

    def test_the_name_is_that_of_the_installed_transformers(self):
        self.assertIn(CACHE, inspect.signature(StockT5.forward).parameters)
        for model_class, config in MODELS:
            model = tiny_model(config(), model_class=model_class)
            for module in (model, model.encoder, model.decoder, model.decoder.block[0].layer[0].SelfAttention):
                names = inspect.signature(module.forward).parameters
                self.assertEqual([name for name in names if name in ("cache", "past_key_values")], [CACHE])

    def test_a_cache_by_position_stays_where_it_was(self):
        @takes_cache
        def forward(states, cache=None, *others):
            return states, cache, others

        self.assertEqual(forward(1, 2, 3), (1, 2, (3,)))
        self.assertEqual(forward(1, past_key_values=2), (1, 2, ()))
        self.assertEqual(list(inspect.signature(forward).parameters), ["states", CACHE, "others"])
