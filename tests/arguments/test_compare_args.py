"""Arguments of the comparison of checkpoints."""

from absl.testing import parameterized

from hf_depth.arguments.compare_args import CompareArguments
from hf_depth.arguments.parser import parse_arguments


class CompareArgumentsTest(parameterized.TestCase):
    @parameterized.parameters(([], (0, 1)), (["--shard", "2/3"], (2, 3)))
    def test_a_shard_is_an_index_and_a_number(self, flags, expected):
        required = ["--checkpoints", "t5=runs/t5", "--tasks", "glue/rte", "--output_dir", "out"]
        (arguments,) = parse_arguments([CompareArguments], [*required, *flags])
        self.assertEqual((arguments.shard_index, arguments.num_shards), expected)

    @parameterized.parameters("3/3", "1", "-1/2", "a/b")
    def test_any_other_shard_is_refused(self, shard):
        with self.assertRaisesRegex(ValueError, f"I/N with I below N, got '{shard}'"):
            CompareArguments(["t5=runs/t5"], ["glue/rte"], output_dir="out", shard=shard)
