"""Attention as Triton kernels: equal to the formula by Triton's interpreter, and compiled for GPUs without one."""

import os
import tempfile
from unittest import mock

import torch
import triton
from absl.testing import parameterized
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import interpreted_attention
from hf_depth.kernels import triton as triton_kernels

# (mask, queries, keys, head size). Tiles are of 16 queries and 32 keys.
CASES = {
    "plain": ("plain", 17, 33, 16),
    "causal": ("causal", 35, 35, 64),
    "padded": ("padded", 13, 13, 24),
    "causal_packed": ("causal packed", 34, 34, 16),
    "packed_sentences": ("packed sentences", 15, 15, 8),
    "cross": ("sentences", 9, 37, 16),
    "without_keys": ("causal sentences nothing", 9, 9, 16),
    "wide_heads": ("plain", 5, 7, 128),
    "even": ("packed sentences", 32, 64, 16),
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
    def test_output_and_gradients_are_those_of_the_formula(self, kind, queries, keys, head_dim):
        errors, _ = self.run_there(
            interpreted_attention.errors_of_kernels, kind, queries, keys, head_dim, torch.float32
        )
        for name, error in errors.items():
            with self.subTest(name):
                self.assertLess(error, 2e-6)

    @parameterized.product(dtype=[torch.bfloat16, torch.float16], case=["causal_packed", "cross"])
    def test_half_precision_is_as_close_to_the_formula_as_eager(self, dtype, case):
        kind, queries, keys, head_dim = CASES[case]
        errors, of_eager = self.run_there(
            interpreted_attention.errors_of_kernels, kind, queries, keys, head_dim, dtype
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

    def test_the_check_for_devices_finds_right_kernels_right_and_wrong_ones_wrong(self):
        check = interpreted_attention.attention_check
        self.assertTrue(self.run_there(check, "causal sentences")[0])
        self.assertFalse(self.run_there(check, "causal sentences", 1.01)[0])

    def test_a_model_has_the_gradients_of_eager_attention(self):
        self.assertLess(self.run_there(interpreted_attention.model_differences), 1e-5)


class RefusalTest(parameterized.TestCase):
    @parameterized.parameters((torch.float64, 64, "float64"), (torch.float32, 256, "256"))
    def test_what_the_kernels_cannot_take_is_refused(self, dtype, head_dim, named):
        query = torch.zeros(1, 1, 4, head_dim, dtype=dtype)
        with self.assertRaisesRegex(ValueError, f'heads of up to 128 numbers .*{named}.*: use "sdpa"'):
            triton_kernels.depth_triton(query, query, query, torch.zeros(1, 7), torch.zeros(1, 1, 3, 8).int())


KERNELS = ("forward", "query_gradient", "key_value_gradient", "score_gradient")
SHARED_MEMORY = 99 * 1024  # bytes, of a GPU of capability 8.6: the least that there are tiles for
VECTORS = {"query", "key", "value", "out", "out_gradient", "query_gradient", "key_gradient", "value_gradient"}
FLOAT32 = {"bias", "logsumexp", "delta", "score_gradient", "bias_gradient"}
# Numbers of which Triton makes constants where they are 1.
ONES = ("num_heads", "query_length", "batch_size", "part_size", "parts")


def compile_kernel(
    name: str, capability: int, dtype: torch.dtype = torch.bfloat16, lengths: str = "even", head_dim: int = 64
) -> triton.compiler.CompiledKernel:
    """Compile a kernel without a GPU. What Triton knows of lengths: 16 divides them, nothing, or some are 1."""
    function, is_even = getattr(triton_kernels, f"_{name}_kernel"), lengths == "even"
    query = torch.empty(1, 1, 128, head_dim, dtype=dtype)
    constants, settings = triton_kernels._constants(name, query, query)
    constants |= {"EVEN_QUERIES": is_even, "EVEN_KEYS": is_even}
    constants |= {argument: 1 for argument in ONES if argument in function.arg_names and lengths == "one"}
    vector = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}[dtype]
    types = dict.fromkeys(VECTORS, vector) | dict.fromkeys(FLOAT32, "*fp32") | dict.fromkeys(constants, "constexpr")
    types["mask"] = "*i32"
    signature = {argument: types.get(argument, "i32") for argument in function.arg_names}
    attributes = {
        (index,): [["tt.divisibility", 16]]
        for index, kind in enumerate(signature.values())
        if kind.startswith("*") or (kind == "i32" and is_even)
    }
    source = ASTSource(function, signature, constants, attributes)
    options = settings | {"enable_fp_fusion": True}
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, {"TRITON_CACHE_DIR": folder}):
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


class CompiledKernelsTest(parameterized.TestCase):
    """What the interpreter does not check: types, layouts, and machine code by the assembler that Triton brings."""

    @parameterized.parameters(
        *zip(KERNELS, (90, 80, 80, 90), strict=True),
        ("forward", 90, torch.bfloat16, "uneven"),
        ("query_gradient", 90, torch.float32, "one"),
        ("key_value_gradient", 90, torch.float32, "uneven", 128),
    )
    def test_kernels_compile_and_fit_into_shared_memory(self, *arguments):
        compiled = compile_kernel(*arguments)
        self.assertGreater(len(compiled.asm["cubin"]), 0)
        self.assertLess(compiled.metadata.shared, SHARED_MEMORY)
