"""Products by oneDNN are those of torch, in values and gradients; they are chosen only where they are as precise."""

import contextlib
import math
import pickle
from unittest import mock

import torch
from absl.testing import parameterized
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_depth.models import layers_depth, loss_depth, matmul_depth, sdpa_depth
from hf_depth.models.layers_depth import DepthLinear
from hf_depth.models.loss_depth import linear_cross_entropy
from hf_depth.models.matmul_depth import BLOCKS, MULTIPLE, ONEDNN_IS_FASTER, linear, onednn, suits_onednn
from hf_depth.models.modeling_depth import DepthForConditionalGeneration, T5ForConditionalGeneration
from tiny_models import outputs_and_gradients, random_batch, tiny_config, tiny_model, tiny_t5_config

ZEN_5 = {"cpu_name": "AMD EPYC 9755", "avx512_f": True, "avx512_vp2intersect": True}
IN_FEATURES, OUT_FEATURES = 40, 24


def precision() -> str:
    return torch.backends.mkldnn.matmul.fp32_precision


class ProductsTestCase(parameterized.TestCase):
    """
    Products of any size take the way of those by oneDNN, as on a processor on which it is faster. On others MKL is at
    the end of it, which is as precise.
    """

    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.object(matmul_depth, "MIN_MULTIPLICATIONS", 1))
        self.enterContext(mock.patch.object(matmul_depth, "ONEDNN_IS_FASTER", True))
        self.chosen = []  # of each product, whether it is by oneDNN
        for module in (matmul_depth, loss_depth, sdpa_depth):
            self.enterContext(mock.patch.object(module, "onednn", self.recorded))

    @contextlib.contextmanager
    def recorded(self, is_chosen=True):
        self.chosen.append(bool(is_chosen))
        with onednn(is_chosen and ONEDNN_IS_FASTER):
            yield


class OnednnTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.addCleanup(setattr, torch.backends.mkldnn.matmul, "fp32_precision", precision())
        torch.backends.mkldnn.matmul.fp32_precision = "none"

    def test_the_setting_of_torch_is_as_before_behind_it(self):
        with self.assertRaisesRegex(ValueError, "^in the middle$"), onednn():
            self.assertEqual(precision(), "bf16")
            with onednn():
                self.assertEqual(precision(), "bf16")
            self.assertEqual(precision(), "bf16")
            raise ValueError("in the middle")
        self.assertEqual(precision(), "none")

    def test_nothing_changes_where_it_is_not_chosen(self):
        with onednn(False):
            self.assertEqual(precision(), "none")

    def test_it_lasts_until_the_last_of_several_threads_has_left_it(self):
        first, second = onednn(), onednn()  # entered and left as by two threads
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        self.assertEqual(precision(), "bf16")
        second.__exit__(None, None, None)
        self.assertEqual(precision(), "none")

    @parameterized.parameters("ieee", "tf32", "bf16")
    def test_what_the_user_has_set_is_left_alone(self, setting):
        torch.backends.mkldnn.matmul.fp32_precision = setting
        with onednn():
            self.assertEqual(precision(), setting)
        self.assertEqual(precision(), setting)


class ChoiceTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("zen_5", ZEN_5, True, 2**21),
        ("zen_4", ZEN_5 | {"avx512_vp2intersect": False}, True, 2**27),
        ("zen_3", {"cpu_name": "AMD EPYC 7763"}, True, math.inf),
        ("tiger_lake", ZEN_5 | {"cpu_name": "Intel(R) Core(TM) i7"}, True, math.inf),
        ("no_name", {"avx512_f": True, "avx512_vp2intersect": True}, True, math.inf),
        ("arm", {"architecture": "aarch64"}, True, math.inf),
        ("rounding", ZEN_5, False, math.inf),
    )
    def test_it_is_for_products_for_which_it_is_faster_and_precise(self, capabilities, is_precise, expected):
        with (
            mock.patch.object(torch.cpu, "get_capabilities", lambda: capabilities),
            mock.patch.object(torch.backends.mkl, "is_available", lambda: True),
            mock.patch.object(torch.backends.mkldnn, "is_available", lambda: True),
            mock.patch.object(matmul_depth, "_is_precise", lambda: is_precise),
        ):
            self.assertEqual(matmul_depth._least_multiplications(), expected)

    @parameterized.parameters(torch.backends.mkl, torch.backends.mkldnn)
    def test_torch_must_have_both_libraries(self, library):
        with (
            mock.patch.object(torch.cpu, "get_capabilities", lambda: ZEN_5),
            mock.patch.object(library, "is_available", lambda: False),
        ):
            self.assertEqual(matmul_depth._least_multiplications(), math.inf)

    @parameterized.parameters((torch.bfloat16, False), (torch.float32, True))
    def test_rounded_products_are_not_precise(self, dtype, expected):
        def product(left, right):
            return (left.to(dtype) @ right.to(dtype)).float()

        with mock.patch.object(torch, "mm", product):
            self.assertEqual(matmul_depth._is_precise(), expected)

    def test_it_can_be_found_out_within_any_mode_of_torch(self):
        before = matmul_depth._is_precise()
        modes = (torch.autocast("cpu", torch.bfloat16), torch.device("meta"), torch.inference_mode(), FakeTensorMode())
        for mode in modes:
            with mode, self.subTest(str(mode)):
                self.assertEqual(matmul_depth._is_precise(), before)

    @parameterized.parameters(
        ((64, 128, 256), {}, True),
        ((64, 128, 250), {}, False),  # of any length there would be too many kernels
        ((32, 32, 32), {}, False),  # slower than MKL
        ((64, 128, 256), {"dtype": torch.bfloat16}, False),
        ((64, 128, 256), {"device": torch.device("cuda")}, False),
        ((64, 128, 256), {"is_faster": False}, False),
    )
    def test_products_that_suit(self, sizes, changes, expected):
        options = {"dtype": torch.float32, "device": torch.device("cpu"), "is_faster": True} | changes
        with (
            mock.patch.object(matmul_depth, "ONEDNN_IS_FASTER", options["is_faster"]),
            mock.patch.object(matmul_depth, "MIN_MULTIPLICATIONS", 2**21),
        ):
            self.assertEqual(suits_onednn(options["device"], options["dtype"], *sizes), expected)


class BlocksTest(parameterized.TestCase):
    @parameterized.parameters(1, 2**21, 2**27)
    def test_each_row_is_in_one_block_and_there_are_few_sizes(self, least):
        others = 128, 256
        for number in (*range(200), 255, 2047, 2048, 4095, 10_000):
            with mock.patch.object(matmul_depth, "MIN_MULTIPLICATIONS", least):
                blocks = list(matmul_depth._blocks(number, *others))
            rows = [row for block, _ in blocks for row in range(block.start, block.stop)]
            self.assertEqual(rows, list(range(number)))
            for block, is_by_onednn in blocks:
                size = block.stop - block.start
                if is_by_onednn:
                    self.assertIn(size, (*range(MULTIPLE, BLOCKS[-1], MULTIPLE), *BLOCKS))
                    self.assertGreaterEqual(size * math.prod(others), least)
                else:
                    self.assertEqual(block.stop, number)
                    self.assertTrue(size < MULTIPLE or min(size, BLOCKS[0]) * math.prod(others) < least)


class LinearTest(ProductsTestCase):
    def inputs(self, *shape, seed=0, dtype=torch.float32):
        generator = torch.Generator().manual_seed(seed)
        states = torch.randn(*shape, IN_FEATURES, generator=generator, dtype=dtype)
        return states.requires_grad_(), torch.randn(OUT_FEATURES, IN_FEATURES, generator=generator).requires_grad_()

    def results(self, function, states, weight):
        output = function(states, weight)
        needed = [tensor for tensor in (states, weight) if tensor.requires_grad]
        # Not contiguous, as the gradient of a transposed output is.
        factors = torch.linspace(-1, 2, output.numel()).view(output.shape[::-1]).permute(*range(output.dim())[::-1])
        return output, *torch.autograd.grad(output, needed, factors)

    @parameterized.parameters(((32,),), ((63,),), ((95,),), ((300,),), ((2, 3, 50),), ((2113,),))
    def test_values_and_gradients_are_those_of_torch(self, shape):
        states, weight = self.inputs(*shape)
        with mock.patch.object(nn.functional, "linear", side_effect=AssertionError("MKL")):
            found = self.results(linear, states, weight)
        self.assertEqual(self.chosen[0], True)
        self.assertEqual(self.chosen.count(False), 0 if math.prod(shape) % MULTIPLE == 0 else 3)
        for result, expected in zip(found, self.results(nn.functional.linear, states, weight), strict=True):
            torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())

    def test_the_order_of_the_memory_does_not_matter(self):
        states, weight = self.inputs(5, 60)
        states, weight = states.detach().transpose(0, 1).requires_grad_(), weight.detach().t().contiguous().t()
        weight.requires_grad_()
        self.assertFalse(states.is_contiguous() or weight.is_contiguous())
        found = self.results(linear, states, weight)
        torch.testing.assert_close(found, self.results(nn.functional.linear, states, weight), rtol=1e-5, atol=1e-3)

    @parameterized.parameters((True, False), (False, True))
    def test_only_what_a_gradient_needs_is_kept(self, states_are, weight_is):
        states, weight = self.inputs(64)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each.shape), lambda each: each):
            linear(states.requires_grad_(states_are), weight.requires_grad_(weight_is))
        self.assertEqual(kept, [weight.shape if states_are else states.shape])

    @parameterized.parameters("ieee", "bf16")
    def test_nothing_is_done_in_blocks_where_the_user_has_chosen(self, setting):
        self.addCleanup(setattr, torch.backends.mkldnn.matmul, "fp32_precision", precision())
        torch.backends.mkldnn.matmul.fp32_precision = setting
        linear(*self.inputs(64))
        self.assertEmpty(self.chosen)

    def test_a_product_of_another_thread_is_no_choice_of_the_user(self):
        with onednn():
            linear(*self.inputs(64))
        self.assertEqual(self.chosen, [True])

    def test_a_pickled_layer_is_a_plain_one_on_another_processor(self):
        layer = pickle.loads(pickle.dumps(DepthLinear(IN_FEATURES, OUT_FEATURES, bias=False)))
        with mock.patch.object(matmul_depth, "ONEDNN_IS_FASTER", False):
            layer(self.inputs(64)[0]).sum().backward()
        self.assertEmpty(self.chosen)

    def test_equal_inputs_give_equal_bits(self):
        for _ in range(3):
            results = [self.results(linear, *self.inputs(333)) for _ in range(2)]
            torch.testing.assert_close(*results, rtol=0, atol=0)

    @parameterized.parameters((True, False), (False, True))
    def test_what_is_frozen_has_no_gradient(self, states_are, weight_is):
        states, weight = self.inputs(70)
        states.requires_grad_(states_are)
        weight.requires_grad_(weight_is)
        found = self.results(linear, states, weight)
        self.assertLen(found, 2)
        torch.testing.assert_close(found, self.results(nn.functional.linear, states, weight), rtol=1e-5, atol=1e-3)

    def test_second_derivatives_are_those_of_torch(self):
        results = []
        for function in (linear, nn.functional.linear):
            inputs = self.inputs(64)
            first = torch.autograd.grad(function(*inputs).sin().sum(), inputs, create_graph=True)
            results.append(torch.autograd.grad(sum(each.square().sum() for each in first), inputs))
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-2)

    def limit_of_rows(self, number):
        """From so many rows on oneDNN is faster, as on a Zen 4."""
        patch = mock.patch.multiple(
            matmul_depth, MIN_ON_ZEN_5=1, MIN_MULTIPLICATIONS=number * IN_FEATURES * OUT_FEATURES
        )
        self.enterContext(patch)

    def test_a_compiled_layer_of_changing_lengths_is_one_graph_on_both_sides_of_the_limit(self):
        self.limit_of_rows(2000)
        counter = CompileCounter()
        compiled = torch.compile(linear, backend=counter, dynamic=True)
        for number in (1500, 1900, 2100, 3000, 1600):
            states, weight = self.inputs(number)
            torch.testing.assert_close(compiled(states, weight), states @ weight.t(), rtol=1e-4, atol=1e-4)
        self.assertEqual(counter.frame_count, 1)

    @parameterized.parameters((1984, []), (2048, [True] * 3))
    def test_a_compiled_layer_of_one_length_is_by_onednn_from_the_limit_on(self, number, expected):
        self.limit_of_rows(2000)
        self.results(torch.compile(linear, backend="aot_eager", dynamic=False), *self.inputs(number))
        # Torch 2.11 says of every compilation that it is an export, and those are left to torch.
        exports = torch.compile(lambda tensor: tensor + torch.compiler.is_exporting(), backend="eager")
        self.assertEqual(self.chosen, [] if exports(torch.zeros(1)).item() else expected)

    def test_a_compiled_layer_is_one_graph_with_the_same_results(self):
        states, weight = self.inputs(2, 50)
        found = self.results(torch.compile(linear, fullgraph=True), states, weight)
        torch.testing.assert_close(found, self.results(linear, states, weight))

    def test_all_else_goes_the_way_of_torch(self):
        states, weight = self.inputs(64)
        partitioned = weight.detach().clone()
        partitioned.ds_id = 0
        with mock.patch.object(matmul_depth._Linear, "apply", side_effect=AssertionError("not plain")):
            linear(*self.inputs(31))
            linear(states[0], weight)
            linear(states[:0], weight)
            linear(states, partitioned)
            linear(states.double(), weight.double())
            linear(states.to("meta"), weight.to("meta"))
            with torch.autocast("cpu", torch.bfloat16):
                self.assertEqual(linear(states, weight).dtype, torch.bfloat16)
            torch.func.vmap(linear, (0, None))(states[None], weight)
            torch.jit.trace(linear, (states, weight), check_trace=False)
            torch.export.export(DepthLinear(IN_FEATURES, OUT_FEATURES, bias=False), (states.detach(),))
            DepthLinear(IN_FEATURES, OUT_FEATURES)(states)  # with a bias
        with self.assertRaisesRegex(AssertionError, "not plain"):
            with mock.patch.object(matmul_depth._Linear, "apply", side_effect=AssertionError("not plain")):
                linear(states, weight)


class ModelTest(ProductsTestCase):
    """Models on a processor on which oneDNN is faster."""

    def model(self, config, is_faster=True, **options):
        with mock.patch.object(layers_depth, "ONEDNN_IS_FASTER", is_faster):
            return tiny_model(config, **options)

    @parameterized.parameters(True, False)
    def test_all_layers_but_the_head_are_fast_where_it_is_faster(self, is_faster):
        model = self.model(tiny_config(), is_faster)
        expected = DepthLinear if is_faster else nn.Linear
        kinds = {name: type(module) for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        self.assertIs(kinds.pop("lm_head"), nn.Linear)
        self.assertEqual(set(kinds.values()), {expected})

    @parameterized.product(
        attention=("sdpa", "depth_sdpa"),
        config=(tiny_config, tiny_t5_config),
        num_labels=(64, 50),  # a multiple of what chunks of labels are made of, and another number
        ignored=(False, True),
    )
    def test_losses_and_gradients_are_those_of_plain_products(self, attention, config, num_labels, ignored):
        changes = {"d_kv": 32, "d_model": 32, "vocab_size": 64}
        model_class = T5ForConditionalGeneration if config is tiny_t5_config else DepthForConditionalGeneration
        batch = random_batch(1, batch_size=2, source_length=64, target_length=num_labels)
        if not ignored:
            batch["labels"].clamp_(min=0)
        plain = self.model(config(**changes), is_faster=False, model_class=model_class, attn_implementation="eager")
        expected = outputs_and_gradients(plain.train(), batch, skip_logits=False)
        fast = self.model(config(**changes), model_class=model_class, attn_implementation=attention).train()
        self.chosen.clear()
        with mock.patch.object(nn.functional, "linear", side_effect=AssertionError("MKL")):
            found = outputs_and_gradients(fast, batch)
        self.assertIn(True, self.chosen)
        torch.testing.assert_close(found[0].token_losses, expected[0].token_losses, rtol=1e-5, atol=1e-5)
        self.assertCountEqual(found[1], expected[1])
        for name, gradient in expected[1].items():
            torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-5, msg=name)

    def test_evaluation_has_the_losses_and_predictions_of_training(self):
        model = self.model(tiny_config(vocab_size=64))
        batch = random_batch(2, batch_size=2, source_length=64, target_length=50)
        with torch.no_grad():
            fused, plain = (model(**batch, skip_logits=skip) for skip in (True, False))
        torch.testing.assert_close(fused.token_losses, plain.token_losses, rtol=1e-5, atol=1e-5)
        is_label = batch["labels"] != -100
        self.assertTrue(torch.equal(fused.predictions[is_label], plain.logits.argmax(-1)[is_label]))

    def test_attention_and_loss_are_by_onednn(self):
        vectors = [torch.randn(1, 2, 64, 32, requires_grad=True) for _ in range(3)]
        for length, expected in ((64, True), (63, False)):
            parts = [vector[:, :, :length] for vector in vectors]
            self.chosen.clear()
            sdpa_depth.depth_sdpa(*parts, torch.zeros(2, 2 * length - 1), None, False).sum().backward()
            self.assertEqual(set(self.chosen), {expected})
        weight = torch.randn(96, 32, requires_grad=True)
        for dtype, expected in ((torch.float32, True), (torch.float64, False)):
            self.chosen.clear()
            linear_cross_entropy(torch.randn(50, 32, dtype=dtype), weight.to(dtype), torch.arange(50))
            self.assertEqual(self.chosen, [expected])

    @parameterized.parameters(32, 384, 2048)
    def test_any_number_of_labels_is_multiplied_in_few_sizes(self, vocab_size):
        sizes = set()

        def mm(left, right, **options):
            sizes.add(len(left))
            return torch.matmul(left, right, **options)

        weight = torch.randn(vocab_size, 32)
        with mock.patch.object(torch, "mm", mm):
            for number in (*range(1, 40), *range(40, 4000, 111)):
                linear_cross_entropy(torch.randn(number, 32), weight, torch.zeros(number, dtype=torch.long))
        self.assertContainsSubset(sizes, range(MULTIPLE, loss_depth.MAX_ONEDNN_ROWS + 1, MULTIPLE))

    def test_a_model_that_is_moved_between_dtypes_and_devices_goes_on(self):
        model = self.model(tiny_config())
        batch = random_batch(3, batch_size=2, source_length=64)
        for dtype in (torch.float64, torch.bfloat16, torch.float32):
            self.assertTrue(model.to(dtype)(**batch).loss.isfinite())
        self.assertEqual(model.to("meta")(**{name: each.to("meta") for name, each in batch.items()}).loss.shape, ())
