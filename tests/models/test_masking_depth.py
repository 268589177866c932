"""Compact masks say what dense ones say."""

from itertools import product
from types import SimpleNamespace

import torch
from absl.testing import parameterized
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from hf_depth.models.masking_depth import (
    compact_mask,
    create_mask,
    depth_mask,
    expand_mask,
    is_compact,
    own_sentence_groups,
    sentence_to_sentence_groups,
)

CONFIGS = [SimpleNamespace(_attn_implementation=name) for name in ("depth_sdpa", "sdpa")]


class CompactMaskTest(parameterized.TestCase):
    def test_each_channel_means_what_it_says(self):
        generator = torch.Generator().manual_seed(0)
        rules = [(0, 3, -1, 3), (-1, 3, 0, 3), (0, 9, 0, 9)]  # of queries and of keys
        channels = []
        for low, high, key_low, key_high in rules:
            parts = ((low, high, 6), (key_low, key_high, 8))
            channels.append(torch.cat([torch.randint(a, b, (2, n), generator=generator) for a, b, n in parts], dim=1))
        mask = torch.stack(channels, dim=1)[:, None].int()
        chosen = ((0, 1, 2), (0,), (1,), (2,), (0, 2))
        found = {numbers: expand_mask(mask, 6, numbers) for numbers in chosen}
        for row, q, k in product(range(2), range(6), range(8)):
            segment, group, place = mask[row, 0, :, q].tolist()
            key_segment, key_group, key_place = mask[row, 0, :, 6 + k].tolist()
            rights = (
                key_segment != -1 and segment in (0, key_segment),
                group in (-1, key_group),
                key_place <= place,
            )
            for numbers in chosen:
                self.assertEqual(found[numbers][row, 0, q, k].item(), all(rights[number] for number in numbers))

    @parameterized.product(is_packed=(False, True), is_padded=(False, True), kind=("encoder", "decoder", "cross"))
    def test_compact_and_dense_masks_of_all_rules_are_the_same(self, is_packed, is_padded, kind):
        generator = torch.Generator().manual_seed(0)
        source, target = (torch.rand(3, length, generator=generator) < 0.4 for length in (11, 7))
        segments = [torch.sort(torch.randint(1, 4, (3, length), generator=generator))[0] for length in (11, 7)]
        query, key = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}[kind]
        query_segments, key_segments = {"encoder": (0, 0), "decoder": (1, 1), "cross": (1, 0)}[kind]
        pair = (segments[query_segments], segments[key_segments]) if is_packed else None
        if kind == "encoder":
            groups = own_sentence_groups(source, segments[0] if is_packed else None)
        else:
            groups = sentence_to_sentence_groups(query, key, *(pair or ()))
        padding_mask = torch.rand(key.shape, generator=generator) < 0.7 if is_padded else None
        compact, dense = (
            create_mask(
                config,
                padding_mask,
                query.shape,
                key.shape[1],
                dtype=torch.float32,
                device=torch.device("cpu"),
                is_causal=kind == "decoder",
                segments=pair,
                groups=groups,
            )
            for config in CONFIGS
        )
        self.assertTrue(is_compact(compact))
        self.assertFalse(is_compact(dense))
        self.assertEqual(expand_mask(compact, query.shape[1]).tolist(), dense.tolist())

    @parameterized.parameters((3,), (torch.tensor(3),))
    def test_queries_behind_a_cache_are_those_at_their_offset(self, offset):
        sentence_mask = torch.rand(2, 9, generator=torch.Generator().manual_seed(0)) < 0.5
        compact, dense = (
            create_mask(
                config,
                None,
                (2, 4),
                9,
                dtype=torch.float32,
                device=torch.device("cpu"),
                query_offset=offset,
                is_causal=True,
                groups=sentence_to_sentence_groups(sentence_mask, sentence_mask),
            )
            for config in CONFIGS
        )
        self.assertEqual(expand_mask(compact, 4).tolist(), dense.tolist())


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
            "allow_is_bidirectional_skip": not is_causal,
        }
        found, expected = depth_mask(**arguments), sdpa_mask(**arguments)
        if expected is None:
            self.assertIsNone(found)
        else:
            self.assertEqual(is_compact(found), queries > 1)
            dense = expand_mask(found, queries) if is_compact(found) else found
            self.assertEqual(dense.expand(expected.shape).tolist(), expected.tolist())

    def test_rules_that_are_not_known_are_evaluated(self):
        def odd(batch_idx, head_idx, q_idx, kv_idx):
            return (q_idx + kv_idx) % 2 == 1

        arguments = {
            "batch_size": 1,
            "q_length": 4,
            "kv_length": 4,
            "mask_function": odd,
            "allow_is_causal_skip": False,
        }
        self.assertEqual(depth_mask(**arguments).tolist(), sdpa_mask(**arguments).tolist())

    def test_without_padding_there_is_no_mask(self):
        arguments = {"batch_size": 1, "q_length": 4, "kv_length": 4}
        self.assertIsNone(depth_mask(**arguments))
        is_causal = compact_mask((1, 4), 4, "cpu", is_causal=True)
        self.assertEqual(depth_mask(**arguments, allow_is_causal_skip=False).tolist(), is_causal.tolist())
