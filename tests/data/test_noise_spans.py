"""Which tokens are masked; whole units are in `test_corruption`."""

import numpy as np
from absl.testing import absltest, parameterized

from hf_depth.data.example_random import ExampleRandom, example_keys
from hf_depth.data.noise_spans import random_spans


class RandomSpansTest(parameterized.TestCase):
    def test_all_masks_are_equally_likely(self):
        # 7 tokens, 3 of them masked in 2 spans: 3 ways to cut 4 kept tokens in two, 2 ways to cut 3 masked ones.
        batch_size = 12_000
        lengths, num_noise, num_spans = (np.full(batch_size, count) for count in (7, 3, 2))
        keys = example_keys(np.arange(7 * batch_size), lengths, seed=0, epoch=0)
        kept, noise = random_spans(lengths, num_noise, num_spans, ExampleRandom(keys))
        masks, counts = np.unique(np.stack([kept, noise], 1).reshape(batch_size, 4), axis=0, return_counts=True)
        self.assertLen(masks, 6)
        np.testing.assert_allclose(counts / batch_size, 1 / 6, atol=0.015)

    def test_equal_draws_at_the_threshold_change_no_number_of_spans(self):
        class Constant(ExampleRandom):
            def bits(self, purpose, width):
                return np.full((len(self.keys), width), 2**32 - 1, np.uint32)

        lengths, num_noise, num_spans = np.array([20, 9, 2]), np.array([6, 3, 1]), np.array([3, 2, 1])
        kept, noise = random_spans(lengths, num_noise, num_spans, Constant(np.zeros(3, np.uint64)))
        np.testing.assert_array_equal(np.add.reduceat(noise, [0, 3, 5]), num_noise)
        np.testing.assert_array_equal(np.add.reduceat(kept, [0, 3, 5]), lengths - num_noise)
        self.assertGreater(min(kept.min(), noise.min()), 0)


if __name__ == "__main__":
    absltest.main()
