"""Laws of mixtures of denoisers: nothing is lost, each denoiser comes as often and masks as much as it says."""

import numpy as np
from absl.testing import parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_depth.data.corruption import SpecialIds, mask_spans
from hf_depth.data.denoisers import (
    UL2_DENOISERS,
    Denoiser,
    denoiser_bounds,
    denoiser_counts,
    parse_denoisers,
)
from hf_depth.data.noise import ExampleRandom, example_keys, largest_raw_length
from rebuild import rebuild_t5

EOS = 1
SENTINELS = np.arange(40_000, 39_000, -1)
SPECIAL = SpecialIds(EOS, SENTINELS)
SUFFIX = Denoiser(0.25)


def random_for(lengths, seed=0):
    tokens = np.random.default_rng(seed).integers(2, 32_000, lengths.sum())
    return tokens, ExampleRandom(example_keys(tokens, lengths, seed, epoch=0))


def denoised(tokens, lengths, denoisers, random):
    """Pairs of input and target, as lists."""
    _, *counts = denoiser_counts(lengths, denoisers, random)
    parts = mask_spans(tokens, lengths, *counts, SPECIAL, random)
    return zip(*([p.tolist() for p in np.split(v, np.cumsum(n)[:-1])] for v, n in parts), strict=True)


class MixtureTest(parameterized.TestCase):
    @given(st.lists(st.integers(2, 300), min_size=1, max_size=6), st.sampled_from([UL2_DENOISERS, (SUFFIX,)]))
    @settings(max_examples=40, deadline=None)
    def test_input_and_target_rebuild_the_document_and_keep_the_bounds(self, lengths, denoisers):
        lengths = np.array(lengths)
        tokens, random = random_for(lengths)
        bounds = denoiser_bounds(lengths, denoisers, mode_tokens=False)
        texts = np.split(tokens, np.cumsum(lengths)[:-1])
        for text, pair, *bound in zip(texts, denoised(tokens, lengths, denoisers, random), *bounds[:2], strict=True):
            self.assertEqual(rebuild_t5(*pair, SENTINELS.tolist(), EOS), text.tolist())
            self.assertLessEqual([len(part) for part in pair], bound)

    @parameterized.parameters((UL2_DENOISERS,), ((Denoiser(0.1, 3.0), Denoiser(0.2, weight=3.0)),))
    def test_denoisers_come_in_proportion_to_their_weights(self, denoisers):
        _, random = random_for(np.full(20_000, 3))
        chosen, _, _ = denoiser_counts(np.full(20_000, 100), denoisers, random)
        weights = np.array([denoiser.weight for denoiser in denoisers])
        shares = np.bincount(chosen, minlength=len(denoisers)) / len(chosen)
        np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.01)

    def test_a_weight_of_zero_is_never_drawn_and_needs_no_room(self):
        denoisers = (Denoiser(0.9, 1.0, weight=0.0), Denoiser(0.15, 3.0), Denoiser(0.9, 1.0, weight=0.0))
        _, random = random_for(np.full(5000, 3))
        chosen, _, _ = denoiser_counts(np.full(5000, 100), denoisers, random)
        self.assertEqual(set(chosen.tolist()), {1})
        self.assertEqual(denoiser_bounds(568, denoisers)[2], 28)
        self.assertEqual(largest_raw_length(lambda n: denoiser_bounds(n, denoisers), 512), 568)

    @parameterized.parameters(0.25, 0.75)
    def test_a_span_at_the_end_has_any_length_equally_often_with_the_density_as_mean(self, density):
        lengths = np.full(8000, 40)
        tokens, random = random_for(lengths)
        _, num_noise, num_spans = denoiser_counts(lengths, [Denoiser(density)], random)
        self.assertEqual(set(num_spans.tolist()), {1})
        counts = np.bincount(num_noise)[num_noise.min() :]
        np.testing.assert_allclose(counts / 8000, 1 / len(counts), atol=0.02)
        self.assertAlmostEqual(num_noise.mean() / 40, density, delta=0.02)
        self.assertBetween(num_noise.max(), 1, 39)
        for inputs, _ in denoised(tokens[:400], lengths[:10], [Denoiser(density)], random_for(lengths[:10])[1]):
            self.assertEqual(inputs[-2:], [SENTINELS[0], EOS])

    def test_the_window_of_ul2_is_the_largest_that_fits(self):
        raw = largest_raw_length(lambda n: denoiser_bounds(n, UL2_DENOISERS), 512)
        self.assertEqual(raw, 510)
        self.assertEqual(denoiser_bounds(raw, UL2_DENOISERS)[2], 85)
        self.assertGreater(denoiser_bounds(raw + 1, UL2_DENOISERS)[0], 512)


class ParseTest(parameterized.TestCase):
    def test_mappings_texts_and_denoisers_are_the_same(self):
        arguments = {"density": 0.5, "mean_length": 8, "mode": "[X]", "weight": 2}
        texts = ['{"density": 0.5, "mean_length": 8, "mode": "[X]", "weight": 2}']
        texts += ["{density: 0.5, mean_length: 8, mode: '[X]', weight: 2}"]
        self.assertLen(set(parse_denoisers([arguments, Denoiser(**arguments), *texts])), 1)

    @parameterized.parameters(
        ("{mean_length: 3}", "is a mapping such as"),
        ("{density: 0.1, mean: 3}", "is a mapping such as"),
        ("{density: .nan}", "`density` must be .*finite number, got nan"),
        ("{density: 0.1, mean_length: 1000000000}", "`mean_length` must be between 1 and 10000, got"),
        ("{density: 0.1, mode: [R]}", "`mode` of a denoiser must be a token"),
        ("{density: 0.1, weight: 0}", "a `weight` above 0"),
    )
    def test_what_is_no_denoiser_is_named(self, text, message):
        with self.assertRaisesRegex(ValueError, message):
            parse_denoisers([text])
