"""Random numbers of examples: the same on every machine, different for every key, balanced."""

import numpy as np
from absl.testing import absltest, parameterized

from hf_depth.data.example_random import Draw, ExampleRandom, example_keys


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

    def test_wider_draws_only_add_columns(self):
        random = ExampleRandom(np.array([1, 2, 3], np.uint64))
        for width in (1, 2, 7):
            np.testing.assert_array_equal(random.bits(Draw.PREFIX, 8)[:, :width], random.bits(Draw.PREFIX, width))

    def test_bits_are_balanced_and_streams_unrelated(self):
        random = ExampleRandom(np.arange(64, dtype=np.uint64))
        streams = [random.bits(purpose, 512) for purpose in Draw]
        for stream in streams:
            ones = np.unpackbits(stream.view(np.uint8)).reshape(-1, 32).mean(axis=0)
            np.testing.assert_allclose(ones, 0.5, atol=0.015)
        flat = np.stack([stream.ravel() for stream in streams]).astype(np.float64)
        np.testing.assert_allclose(np.corrcoef(flat), np.eye(len(Draw)), atol=0.03)

    @parameterized.parameters(1, 2, 3, 4, 20, 100)
    def test_permutations_are_permutations(self, size):
        orders = ExampleRandom(np.arange(50, dtype=np.uint64)).permutations(Draw.SENTINELS, size)
        np.testing.assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(size), (50, 1)))


if __name__ == "__main__":
    absltest.main()
