"""Ragged batches: places in them, and copies of runs."""

import numpy as np
from absl.testing import absltest, parameterized

from hf_depth.data.ragged import copy_runs, run_positions, run_starts


class RaggedTest(parameterized.TestCase):
    def test_places_of_runs_and_of_their_elements(self):
        self.assertEqual(run_starts(np.array([2, 3, 1])).tolist(), [0, 2, 5])
        self.assertEqual(run_positions(np.array([2, 3, 1])).tolist(), [0, 1, 0, 1, 2, 0])

    @parameterized.parameters(2, 5, 6, 40)  # short runs are copied in another way than long ones
    def test_runs_are_copied_one_after_the_other(self, most):
        rng = np.random.default_rng(0)
        values = rng.integers(0, 1000, 200)
        lengths = rng.integers(1, most + 1, 50)
        starts = rng.integers(0, len(values) - most, 50)
        copied = [values[start : start + length].tolist() for start, length in zip(starts, lengths, strict=True)]
        self.assertEqual(copy_runs(values, starts, lengths).tolist(), sum(copied, []))

    @parameterized.parameters(([3], [4]), ([1, 1, 3], [1, 1, 2]))
    def test_a_run_may_reach_beyond_the_values(self, starts, lengths):
        copied = copy_runs(np.arange(5), np.array(starts), np.array(lengths))
        self.assertLen(copied, sum(lengths))
        self.assertEqual(copied[: sum(lengths[:-1]) + 2].tolist(), [*starts[:-1], 3, 4])

    def test_of_no_values_room_is_left(self):
        self.assertEqual(copy_runs(np.array([], np.int64), np.array([0]), np.array([2])).shape, (2,))


if __name__ == "__main__":
    absltest.main()
