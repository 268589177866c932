"""Attention by torch's flex_attention with a compact bias and a compact mask: equal to the formula."""

import warnings
from unittest import mock

import torch
from absl.testing import parameterized

from hf_depth.kernels.flex import depth_flex, flex_block_mask
from hf_depth.kernels.masks import expand_mask
from interpreted_attention import eager, inputs, masks, relative_errors, results

KINDS = ("plain", "causal", "padded", "causal packed", "packed sentences", "sentences nothing")


class FlexTest(parameterized.TestCase):
    # torch refuses to differentiate it on a CPU, where only the compiled backward pass is missing.
    @parameterized.parameters(*KINDS)
    @mock.patch("torch.nn.attention.flex_attention._validate_device", lambda *tensors: None)
    def test_output_and_gradients_are_those_of_the_formula(self, kind):
        arguments = inputs(20, 20 if "causal" in kind else 31, 16, torch.float32)
        mask = masks(kind, 2, 20, arguments[1].shape[2])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            tensors = results(depth_flex, *arguments, mask)
        right = results(eager, *(tensor.double() for tensor in arguments), mask)
        for name, error in relative_errors(right, tensors).items():
            with self.subTest(name):
                self.assertLess(error, 2e-6)

    @parameterized.parameters(("causal", 300, 300), ("packed sentences", 300, 520), ("causal packed", 512, 512))
    def test_blocks_without_any_pair_are_skipped_and_no_other_is(self, kind, queries, keys):
        mask = masks(kind, 2, queries, keys)
        allowed = expand_mask(mask, queries)
        allowed = torch.nn.functional.pad(allowed, (0, -keys % 128, 0, -queries % 128))
        has_pair = allowed.unflatten(2, (-1, 128)).unflatten(-1, (-1, 128)).any(dim=-1).any(dim=3)
        dense = flex_block_mask(mask, queries).to_dense().bool()
        self.assertTrue((dense | ~has_pair).all(), "a block with a pair is skipped")
        self.assertFalse(dense.all(), "no block is skipped")

    def test_it_is_part_of_one_graph(self):
        *arguments, _ = inputs(140, 140, 16, torch.float32)
        mask = masks("causal packed", 2, 140, 140)
        compiled = torch.compile(depth_flex, fullgraph=True, dynamic=False, backend="aot_eager")
        with torch.no_grad():
            output = compiled(*arguments, mask)
        right = eager(*(tensor.double() for tensor in arguments), mask)
        torch.testing.assert_close(output.double(), right, atol=1e-5, rtol=1e-5)
