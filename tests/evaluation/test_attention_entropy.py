import math

import torch
from absl.testing import parameterized
from transformers import BartConfig, BartForConditionalGeneration, T5ForConditionalGeneration

from hf_depth.evaluation.attention_entropy import KINDS, MIN_KEYS, attention_entropy
from tiny_models import captured_masks, dense_mask, random_batch, tiny_model, tiny_t5_config


def batch_of(length: int = 20, seed: int = 0) -> dict[str, torch.Tensor]:
    batch = random_batch(seed, source_length=length, target_length=length)
    return {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}


class AttentionEntropyTest(parameterized.TestCase):
    def test_it_is_the_mean_over_queries_that_are_no_padding_and_have_enough_keys(self):
        model, batch = tiny_model(attn_implementation="eager"), batch_of()
        with captured_masks(model) as masks:
            outputs = model(**batch, output_attentions=True, use_cache=False)
        for kind, name in KINDS.items():
            shares = []
            allowed = dense_mask(masks[kind][0], kind, *outputs[name][0][:, 0].shape)  # (B, Q, K)
            for row, mask in enumerate(allowed):
                queries = batch["attention_mask"] if kind == "encoder" else batch["labels"] != -100
                for query, keys in enumerate(mask.sum(-1).tolist()):
                    if queries[row, query] and keys >= MIN_KEYS:
                        weights = outputs[name][1][row, :, query]  # (H, K)
                        shares += (-(weights * weights.clamp(min=1e-30).log()).sum(-1) / math.log(keys)).tolist()
            found = attention_entropy(model, batch)[f"attention_entropy_{kind}_1"]
            self.assertAlmostEqual(found, sum(shares) / len(shares), delta=1e-5)

    @parameterized.parameters("sdpa", "depth_sdpa")
    def test_the_model_has_its_implementation_and_its_outputs_again(self, implementation):
        model, batch = tiny_model(attn_implementation=implementation), batch_of()
        before = model(**batch).logits
        attention_entropy(model, batch)
        stacks = (model, model.encoder, model.decoder)
        self.assertEqual({stack.config._attn_implementation for stack in stacks}, {implementation})
        self.assertTrue(torch.equal(model(**batch).logits, before))

    def test_any_encoder_decoder_has_one(self):
        size = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 32}
        heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16}
        bart = BartConfig(vocab_size=50, decoder_ffn_dim=16, **size, **heads)
        for model in (T5ForConditionalGeneration(tiny_t5_config()), BartForConditionalGeneration(bart)):
            metrics = attention_entropy(model.eval(), batch_of())
            self.assertEqual(metrics.pop("attention_entropy"), min(metrics.values()))
            self.assertEqual({name.split("_")[2] for name in metrics}, set(KINDS))
            self.assertTrue(math.isnan(attention_entropy(model, batch_of(length=4))["attention_entropy"]))
