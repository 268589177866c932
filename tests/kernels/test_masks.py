"""Compact masks say what dense ones say."""

from types import SimpleNamespace

import torch
from absl.testing import parameterized
from transformers import DynamicCache
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from hf_depth.kernels.masks import expand_mask, is_compact, mask_for
from hf_depth.models.modeling_depth import MaskRule, make_mask, own_sentence_groups, sentence_to_sentence_groups
from tiny_models import tiny_config

on_cpu = mask_for(("cpu",))


class CompactMaskTest(parameterized.TestCase):
    @parameterized.product(is_packed=(False, True), is_padded=(False, True), kind=("encoder", "decoder", "cross"))
    def test_compact_and_dense_masks_of_all_rules_are_the_same(self, is_packed, is_padded, kind):
        generator = torch.Generator().manual_seed(0)
        source, target = (torch.rand(3, length, generator=generator) < 0.4 for length in (11, 7))
        segments = [torch.sort(torch.randint(1, 4, (3, length), generator=generator))[0] for length in (11, 7)]
        query, key = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}[kind]
        query_segments, key_segments = {"encoder": (0, 0), "decoder": (1, 1), "cross": (1, 0)}[kind]
        pair = (segments[query_segments], segments[key_segments]) if is_packed else None
        if kind == "encoder":
            groups = own_sentence_groups(source, pair)
        else:
            groups = sentence_to_sentence_groups(query, key, pair)
        padding = torch.rand(key.shape, generator=generator) < 0.7 if is_padded else None
        rule = MaskRule(padding, pair, groups, is_causal=kind == "decoder")
        self.check(rule, query.shape[1], key.shape[1])

    def test_queries_behind_a_cache_are_those_at_their_offset(self):
        sentence_mask = torch.rand(3, 9, generator=torch.Generator().manual_seed(0)) < 0.5
        rule = MaskRule(groups=sentence_to_sentence_groups(sentence_mask, sentence_mask), is_causal=True)
        self.check(rule, 4, 9, q_offset=torch.tensor(3))

    def check(self, rule, queries, keys, **others):
        arguments = {"batch_size": 3, "q_length": queries, "kv_length": keys, "mask_function": rule, **others}
        compact, dense = on_cpu(**arguments), sdpa_mask(**arguments, allow_is_causal_skip=False)
        self.assertTrue(is_compact(compact))
        self.assertFalse(is_compact(dense))
        self.assertEqual(expand_mask(compact, queries).tolist(), dense.tolist())
        self.assertEqual(mask_for(("cuda",))(**arguments, allow_is_causal_skip=False).tolist(), dense.tolist())


class TransformersMaskTest(parameterized.TestCase):
    @parameterized.product(is_causal=(False, True), is_padded=(False, True), queries=(1, 5), offset=(0, 2))
    def test_masks_that_transformers_asks_for_are_those_of_sdpa(self, is_causal, is_padded, queries, offset):
        keys = queries + offset
        arguments = {
            "batch_size": 2,
            "q_length": queries,
            "kv_length": keys,
            "q_offset": offset,
            "mask_function": causal_mask_function if is_causal else bidirectional_mask_function,
            "attention_mask": torch.arange(keys) < torch.tensor([[keys], [1]]) if is_padded else None,
            "allow_is_causal_skip": False,
        }
        found, expected = on_cpu(**arguments), sdpa_mask(**arguments)
        self.assertEqual(is_compact(found), queries > 1)
        dense = expand_mask(found, queries) if is_compact(found) else found
        self.assertEqual(dense.expand(expected.shape).tolist(), expected.tolist())


class SlidingWindowTest(parameterized.TestCase):
    """Layers of a stack may differ, as in T5Gemma: then there is a mask for each kind of them."""

    @parameterized.parameters(False, True)
    def test_each_kind_of_layers_has_a_mask(self, is_decoder):
        config = tiny_config(is_decoder=is_decoder)
        config.layer_types, config.sliding_window = ["full_attention", "sliding_attention"], 3
        config._attn_implementation = "sdpa"
        stack, ids = SimpleNamespace(config=config, dtype=torch.float32), torch.zeros(1, 6, dtype=torch.long)
        masks = make_mask(stack, ids, 6, segments=(ids, ids), is_causal=is_decoder)
        expected = {"full_attention": [], "sliding_attention": []}
        for query in range(6):
            is_past = [key <= query or not is_decoder for key in range(6)]
            expected["full_attention"].append(is_past)
            near = range(query - 2, query + 1) if is_decoder else range(query - 1, query + 2)
            expected["sliding_attention"].append([key in near for key in range(6)])
        self.assertEqual({kind: mask[0, 0].tolist() for kind, mask in masks.items()}, expected)

    def test_keys_in_a_cache_come_before_the_queries(self):
        config, cache = tiny_config(), DynamicCache()
        config._attn_implementation = "sdpa"
        cache.update(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8), 0)
        stack, ids = SimpleNamespace(config=config, dtype=torch.float32), torch.zeros(1, 5, dtype=torch.long)
        mask = make_mask(stack, ids[:, 3:], 5, segments=(ids, ids), is_causal=True, cache=cache)
        self.assertEqual(mask[0, 0].int().tolist(), [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
