"""What noise is made of: its amounts, its places and random numbers; the noise itself is in `test_corruption`."""

import numpy as np
from absl.testing import parameterized

from hf_depth.data.noise import Draw, ExampleRandom, example_keys, largest_raw_length, random_spans, t5_bounds


class LengthsTest(parameterized.TestCase):
    @parameterized.product(source=(3, 128, 512), target=(None, 100), density=(0.05, 0.5, 0.9), mean=(1.0, 3.0))
    def test_one_more_token_than_the_longest_text_would_not_fit(self, source, target, density, mean):
        def fits(num_tokens):
            lengths = t5_bounds(num_tokens, density, mean)
            return lengths[0] <= source and lengths[1] <= (target or np.inf)

        raw = largest_raw_length(lambda n: t5_bounds(n, density, mean), source, target)
        self.assertTrue(fits(raw))
        self.assertFalse(fits(raw + 1))

    def test_no_room_for_two_tokens_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "`max_source_length`=2 .* two tokens of text need 3"):
            largest_raw_length(lambda n: t5_bounds(n, 0.15, 3.0), 2)


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


class ExampleKeysTest(parameterized.TestCase):
    def test_seed_epoch_and_every_token_and_place_change_the_key(self):
        base = [5, 6, 7, 8]

        def key(tokens, seed=0, epoch=0):
            return int(example_keys(np.array(tokens), np.array([len(tokens)]), seed, epoch)[0])

        others = [key([5, 6, 8, 7]), key([5, 6, 7]), key([5, 6, 7, 8, 0]), key([0, 5, 6, 7, 8]), key([5, 6, 7, 9])]
        others += [key(base, seed=1), key(base, epoch=1), key(base, seed=-1), key(base, seed=2**70 + 3)]
        self.assertLen({key(base), *others}, 10)
        self.assertEqual(key(base), key(base))


class ExampleRandomTest(parameterized.TestCase):
    def test_numbers_are_the_same_on_every_machine(self):
        keys = example_keys(np.array([5, 6, 7, 8, 9]), np.array([2, 3]), seed=42, epoch=3)
        self.assertEqual(keys.tolist(), [5706306480105317387, 3228250556422000546])
        bits = [[1871042168, 2308416929, 4248859035], [1710300580, 970796855, 1195069731]]
        self.assertEqual(ExampleRandom(keys).bits(Draw.PREFIX, 3).tolist(), bits)

    def test_bits_are_balanced_and_streams_unrelated(self):
        random = ExampleRandom(np.arange(64, dtype=np.uint64))
        streams = [random.bits(purpose, 512) for purpose in Draw]
        for stream in streams:
            ones = np.unpackbits(stream.view(np.uint8)).reshape(-1, 32).mean(axis=0)
            np.testing.assert_allclose(ones, 0.5, atol=0.015)
        flat = np.stack([stream.ravel() for stream in streams]).astype(np.float64)
        np.testing.assert_allclose(np.corrcoef(flat), np.eye(len(Draw)), atol=0.03)
