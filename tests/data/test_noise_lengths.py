"""How much noise there is, and how long examples become by it; that they do, is in `test_corruption`."""

import math

import numpy as np
from absl.testing import absltest, parameterized

from hf_depth.data.noise_lengths import check_noise, noise_counts, t5_input_and_target_lengths, t5_raw_length


class CheckNoiseTest(parameterized.TestCase):
    @parameterized.parameters(-0.1, 0, 0.0009, 0.9991, 1, 15, math.inf, math.nan)
    def test_a_density_out_of_range_is_named_with_the_range(self, density):
        with self.assertRaisesRegex(ValueError, f"`mlm_probability` must be between 0.001 and 0.999, got {density}"):
            check_noise(density, 3.0)

    @parameterized.parameters(-3, 0, 0.99, math.inf, math.nan)
    def test_a_span_length_out_of_range_is_named_with_the_range(self, length):
        with self.assertRaisesRegex(ValueError, f"`mean_noise_span_length` must be at least 1 .* got {length}"):
            check_noise(0.15, length)

    @parameterized.product(density=(0.001, 0.15, 0.999), length=(1, 3.0, 1000))
    def test_the_ends_of_the_ranges_are_allowed(self, density, length):
        check_noise(density, length)


class NoiseCountsTest(parameterized.TestCase):
    def test_masked_spans_never_outnumber_the_kept_tokens_before_them(self):
        for density in (0.5, 0.7, 0.95):
            num_noise, num_spans = noise_counts(np.arange(2, 600), density, 1.0)
            self.assertTrue((num_spans <= np.arange(2, 600) - num_noise).all())


class LengthsTest(parameterized.TestCase):
    @parameterized.parameters((512, 0.15, 568, 114), (512, 0.3, 639, 257))
    def test_t5_raw_text_fills_the_input(self, source, density, raw, target):
        self.assertEqual(t5_raw_length(source, density, 3.0), raw)
        self.assertEqual(t5_input_and_target_lengths(raw, density, 3.0), (source, target))

    @parameterized.product(source=(3, 17, 128, 512), density=(0.05, 0.15, 0.5, 0.9), mean=(1.0, 3.0, 8.5))
    def test_one_more_token_would_not_fit(self, source, density, mean):
        raw = t5_raw_length(source, density, mean)
        self.assertLessEqual(t5_input_and_target_lengths(raw, density, mean)[0], source)
        self.assertGreater(t5_input_and_target_lengths(raw + 1, density, mean)[0], source)

    def test_a_maximal_target_length_is_kept_too(self):
        raw = t5_raw_length(512, 0.3, 3.0, max_target_length=100)
        self.assertLessEqual(t5_input_and_target_lengths(raw, 0.3, 3.0)[1], 100)
        self.assertGreater(t5_input_and_target_lengths(raw + 1, 0.3, 3.0)[1], 100)

    def test_no_room_for_two_tokens_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "`max_source_length`=2 .* two tokens of text need 3"):
            t5_raw_length(2, 0.15, 3.0)

    def test_units_of_one_token_need_no_room(self):
        lengths = np.arange(2, 700)
        for density in (0.05, 0.15, 0.3, 0.5):
            noise, spans = noise_counts(lengths, density, 3.0)
            inputs, targets = t5_input_and_target_lengths(lengths, density, 3.0)
            np.testing.assert_array_equal(inputs, lengths - noise + spans + 1)
            np.testing.assert_array_equal(targets, noise + spans + 1)


if __name__ == "__main__":
    absltest.main()
