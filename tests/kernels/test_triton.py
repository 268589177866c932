"""Attention as Triton kernels: equal to the formula by Triton's interpreter, and compiled for GPUs without one."""

import functools
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import torch
import triton
from absl.testing import parameterized
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import interpreted_attention
from hf_depth.kernels import triton as triton_kernels

# (mask, queries, keys, head size, has a bias). Tiles are of 16 queries and 32 keys.
CASES = {
    "plain": ("none", 17, 33, 16, True),
    "causal": ("causal", 35, 35, 64, True),
    "padded": ("padded", 13, 13, 24, True),
    "causal_packed": ("causal packed", 34, 34, 16, True),
    "packed_sentences": ("packed sentences", 15, 15, 8, True),
    "cross": ("sentences", 9, 37, 16, False),
    "without_keys": ("causal sentences nothing", 9, 9, 16, True),
    "wide_heads": ("none", 5, 7, 128, True),
}


class InterpretedKernelsTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.process = interpreted_attention.start_interpreter()

    @classmethod
    def tearDownClass(cls):
        cls.process.shutdown()

    def run_there(self, function, *arguments):
        return self.process.submit(function, *arguments).result()

    @parameterized.named_parameters(*((name, *case) for name, case in CASES.items()))
    def test_output_and_gradients_are_those_of_the_formula(self, kind, queries, keys, head_dim, has_bias):
        errors, _ = self.run_there(
            interpreted_attention.errors_of_kernels, kind, queries, keys, head_dim, torch.float32, has_bias
        )
        for name, error in errors.items():
            with self.subTest(name):
                self.assertLess(error, 2e-6)

    @parameterized.product(dtype=[torch.bfloat16, torch.float16], case=["causal_packed", "cross"])
    def test_half_precision_is_as_close_to_the_formula_as_eager(self, dtype, case):
        kind, queries, keys, head_dim, has_bias = CASES[case]
        errors, of_eager = self.run_there(
            interpreted_attention.errors_of_kernels, kind, queries, keys, head_dim, dtype, has_bias
        )
        for name, error in errors.items():
            # The gradient of the values is a product with rounded weights in both: more or less by chance.
            bound = {"output": 0.85, "value": 1.1, "bias": 0.01}.get(name, 0.95)
            with self.subTest(name):
                self.assertLessEqual(error, bound * of_eager[name])

    def test_queries_without_any_key_get_nothing_and_give_nothing(self):
        self.assertTrue(all(self.run_there(interpreted_attention.zero_rows)))

    def test_vectors_may_lie_in_any_order_and_results_lie_as_the_model_wants(self):
        error, has_order = self.run_there(interpreted_attention.strided_inputs)
        self.assertEqual(error, 0)
        self.assertEqual(has_order, [True] * 4)

    def test_the_operator_is_one_call_in_a_compiled_graph(self):
        self.assertEqual(self.run_there(interpreted_attention.operators), 0)

    def test_the_gradient_of_the_bias_of_long_inputs_is_made_of_some_heads_at_a_time(self):
        heads_at_a_time = interpreted_attention.heads_at_a_time
        whole, heads = self.run_there(heads_at_a_time, "packed sentences", 2**28)
        one_by_one, single_heads = self.run_there(heads_at_a_time, "packed sentences", 1)
        self.assertEqual((heads, single_heads), ([2], [1, 1]))
        self.assertEqual(one_by_one, whole)

    def test_the_self_check_finds_right_kernels_right_and_wrong_ones_wrong(self):
        check = interpreted_attention.self_check
        self.assertIsNone(self.run_there(check, 16, torch.float16))
        self.assertIn("output", self.run_there(check, 16, torch.float16, "unbiased"))
        self.assertIn("up to 128", self.run_there(check, 256, torch.float32))
        self.assertIn("float64", self.run_there(check, 16, torch.float64))

    def test_the_check_for_devices_finds_right_kernels_right_and_wrong_ones_wrong(self):
        check = interpreted_attention.attention_check
        self.assertTrue(self.run_there(check, "causal sentences", True)[0])
        self.assertFalse(self.run_there(check, "causal sentences", True, 1.01)[0])

    def test_a_model_has_the_gradients_of_eager_attention(self):
        self.assertLess(self.run_there(interpreted_attention.model_differences), 1e-5)


class LaunchTest(parameterized.TestCase):
    def test_one_thread_launches_at_a_time(self):
        running, most = [], []

        class Kernel:
            def __getitem__(self, grid):
                return self.run

            def run(self, query, enable_fp_fusion):
                running.append(query)
                most.append((len(running), enable_fp_fusion))
                time.sleep(0.01)  # in which another thread would come in
                running.pop()

        with ThreadPoolExecutor(4) as threads:
            launches = [threads.submit(triton_kernels._launch, Kernel(), None, torch.zeros(1)) for _ in range(4)]
        self.assertEqual([launch.result() for launch in launches], [None] * 4)
        self.assertEqual(most, [(1, True)] * 4)


class BrokenDeviceTest(parameterized.TestCase):
    """After an illegal read, a GPU answers every call of the process with that error."""

    def check(self, synchronize):
        triton_kernels.check_triton_attention.cache_clear()
        self.addCleanup(triton_kernels.check_triton_attention.cache_clear)
        failing = mock.Mock(side_effect=RuntimeError("an illegal memory access was encountered"))
        with (
            mock.patch.object(triton_kernels, "_compare_with_formula", failing),
            mock.patch.object(torch.cuda, "is_available", return_value=True),
            mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)),
            mock.patch.object(torch.cuda, "synchronize", synchronize),
        ):
            return triton_kernels.check_triton_attention(torch.device("cuda:0"), 64, torch.bfloat16)

    def test_a_device_that_still_works_is_used_without_the_kernels(self):
        self.assertIn("illegal memory access", self.check(mock.Mock()))

    def test_a_device_that_does_not_is_an_error_that_says_what_to_do(self):
        with self.assertRaisesRegex(RuntimeError, "cuda:0 unusable.* Start it again .*sdpa") as raised:
            self.check(mock.Mock(side_effect=RuntimeError("an illegal memory access was encountered")))
        self.assertIn("illegal memory access", str(raised.exception.__cause__))


KERNELS = ("_forward_kernel", "_query_gradient_kernel", "_key_value_gradient_kernel", "_score_gradient_kernel")
SHARED_MEMORY = 99 * 1024  # bytes, of a GPU of capability 8.6: the least that there are kernels for
VECTORS = {"query", "key", "value", "out", "out_gradient", "query_gradient", "key_gradient", "value_gradient"}
FLOAT32 = {"bias", "logsumexp", "delta", "score_gradient", "bias_gradient"}
# Numbers of which Triton makes constants where they are 1.
ONES = ("num_heads", "query_length", "query_class", "rows_class", "batch_size", "part_size", "parts")
# Kernel, configuration, capability, dtype, what differs from bias and mask, and what Triton knows of the lengths: that
# 16 divides them, nothing, or that some are 1.
VARIANTS = (
    ("_forward_kernel", 0, 90, torch.bfloat16, {"HAS_MASK": False, "IS_CAUSAL": True}, "uneven"),
    ("_query_gradient_kernel", 0, 90, torch.float32, {"HAS_MASK": False, "IS_CAUSAL": True}, "one"),
    ("_key_value_gradient_kernel", 0, 90, torch.bfloat16, {"HAS_MASK": False, "IS_CAUSAL": True}, "uneven"),
    ("_score_gradient_kernel", 0, 90, torch.bfloat16, {"HAS_MASK": False, "IS_CAUSAL": True}, "uneven"),
    ("_diagonal_sum_kernel", 0, 90, torch.float32, {}, "uneven"),
)


@functools.cache
def compile_kernel(
    name: str,
    capability: int,
    config_index: int = 0,
    dtype: torch.dtype = torch.bfloat16,
    lengths: str = "even",
    **changes: bool,
) -> triton.compiler.CompiledKernel:
    """Compile a kernel, by default for bfloat16, bias and mask, without a GPU."""
    kernel, is_even = getattr(triton_kernels, name), lengths == "even"
    if isinstance(kernel, triton.runtime.Autotuner):
        configs = triton_kernels._fitting_configs(kernel.configs, {"query": torch.empty(0, dtype=dtype)}, BLOCK_D=64)
        function, config = kernel.fn.fn, configs[config_index]
        constants = {"HAS_BIAS": True, "HAS_MASK": True, "IS_CAUSAL": False, "HEAD_DIM": 64, "BLOCK_D": 64}
        constants |= {"EVEN_QUERIES": is_even, "EVEN_KEYS": is_even, "PRECISION": "ieee"} | changes
    else:
        function, config, constants = kernel, triton.Config({}), {"ROWS": 64, "DIAGONALS": 64}
    constants |= config.kwargs | ({name: 1 for name in ONES} if lengths == "one" else {})
    vector = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}[dtype]
    types = dict.fromkeys(VECTORS, vector) | dict.fromkeys(FLOAT32, "*fp32") | dict.fromkeys(constants, "constexpr")
    types["mask"] = "*i32" if constants.get("HAS_MASK") else vector  # the queries stand in its place
    signature = {argument: types.get(argument, "i32") for argument in function.arg_names}
    attributes = {
        (index,): [["tt.divisibility", 16]]
        for index, kind in enumerate(signature.values())
        if kind.startswith("*") or (kind == "i32" and is_even)
    }
    constants = {argument: constants[argument] for argument in signature if argument in constants}
    source = ASTSource(function, signature, constants, attributes)
    settings = {"num_warps": config.num_warps, "num_stages": config.num_stages, "enable_fp_fusion": True}
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"TRITON_CACHE_DIR": folder}):
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=settings)


class CompiledKernelsTest(parameterized.TestCase):
    """What the interpreter does not check: types, layouts, and machine code by the assembler that Triton brings."""

    @parameterized.parameters(*zip(KERNELS, (90, 80, 80, 90), strict=True))
    def test_kernels_compile_and_fit_into_shared_memory(self, name, capability):
        compiled = compile_kernel(name, capability)
        self.assertGreater(len(compiled.asm["cubin"]), 0)
        self.assertLess(compiled.metadata.shared, SHARED_MEMORY)

    @parameterized.parameters(*VARIANTS)
    def test_kernels_compile_for_all_that_they_may_get(self, name, config_index, capability, dtype, changes, lengths):
        compiled = compile_kernel(name, capability, config_index, dtype, lengths, **changes)
        self.assertGreater(len(compiled.asm["cubin"]), 0)
        self.assertLess(compiled.metadata.shared, SHARED_MEMORY)

    @parameterized.product(name=KERNELS, head_dim=(64, 128), dtype=(torch.float32, torch.bfloat16))
    def test_every_head_size_has_tiles_that_any_gpu_has_memory_for(self, name, head_dim, dtype):
        query = torch.empty(0, dtype=dtype)
        configs = triton_kernels._fitting_configs(
            getattr(triton_kernels, name).configs, {"query": query}, BLOCK_D=head_dim
        )
        # At most two tensors of a tile's queries, and two of its keys, are there in each stage.
        rows = [2 * (config.kwargs["BLOCK_Q"] + config.kwargs["BLOCK_K"]) * config.num_stages for config in configs]
        self.assertLess(min(rows) * head_dim * query.element_size(), SHARED_MEMORY)
