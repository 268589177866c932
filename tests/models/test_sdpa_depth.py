"""`depth_sdpa` computes the formula of attention: output and all gradients, for all that a mask can say."""

from unittest import mock

import torch
from absl.testing import parameterized

from hf_depth.models import sdpa_depth
from hf_depth.models.attention_depth import expand_bias
from hf_depth.models.masking_depth import compact_mask, expand_mask, own_sentence_groups

BATCH_SIZE, HEADS, HEAD_SIZE = 3, 5, 4


def formula(query, key, value, bias, mask, is_causal):
    """Attention as it is written, with output 0 for queries without keys."""
    queries, keys = query.shape[2], key.shape[2]
    allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool) if mask is None else expand_mask(mask, queries)
    if is_causal:
        allowed = allowed.tril()
    scores = query @ key.mT
    if bias.dim() == 2:
        scores = scores + expand_bias(bias, queries, keys)
    weights = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(dim=-1)
    return weights.masked_fill(~allowed, 0) @ value


def random_mask(kind, generator, queries, keys):
    """A compact mask, and whether attention is causal without one."""

    def random(low, high, length):
        return torch.randint(low, high, (BATCH_SIZE, length), generator=generator)

    lengths = random(0, keys + 1, 1)  # 0: a row of nothing but padding
    padding_mask = torch.arange(keys) < lengths
    shape = ((BATCH_SIZE, queries), keys, "cpu")
    few = torch.rand(BATCH_SIZE, queries, generator=generator) < 0.1
    masks = {
        "none": None,
        "causal": None,
        "right padding": compact_mask(*shape, padding_mask),
        "left padding": compact_mask(*shape, padding_mask.flip(1)),
        "padding and causality": compact_mask(*shape, padding_mask, is_causal=True),
        "segments": compact_mask(*shape, segments=(random(0, 3, queries), random(0, 3, keys))),
        "packed": compact_mask(
            *shape,
            padding_mask,
            is_causal=queries == keys,
            segments=tuple(random(0, 4, length).sort(dim=1).values for length in (queries, keys)),
            groups=(torch.where(few, 1, -1), random(0, 2, keys)),
        ),
        "groups": compact_mask(*shape, padding_mask, groups=(torch.where(few, 1, -1), random(0, 2, keys))),
        "groups and causality": compact_mask(*shape, None, True, groups=(torch.where(few, 1, -1), random(0, 2, keys))),
        "any numbers": torch.stack(
            [
                torch.cat([random(0, 3, queries), random(-1, 3, keys)], dim=1),
                torch.cat([random(-1, 2, queries), random(0, 2, keys)], dim=1),
                torch.cat([random(0, keys, queries), random(0, keys, keys)], dim=1),
            ],
            dim=1,
        )[:, None].int(),
    }
    return masks[kind], kind == "causal"


def random_inputs(generator, queries, keys, has_bias=True, dtype=torch.float64):
    vectors = [
        torch.randn(BATCH_SIZE, length, HEADS, HEAD_SIZE, generator=generator, dtype=torch.float64).transpose(1, 2)
        for length in (queries, keys, keys)
    ]
    bias = torch.randn(HEADS, queries + keys - 1, generator=generator, dtype=torch.float64)
    return [tensor.to(dtype) for tensor in (*vectors, bias if has_bias else bias.new_zeros(0))]


def outputs_and_gradients(function, inputs, mask, is_causal, grad):
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    output = function(*inputs, mask, is_causal)
    needed = [tensor for tensor in inputs if tensor.numel() > 0]
    return [output, *torch.autograd.grad(output, needed, grad.to(output.dtype))]


KINDS = (
    *("none", "causal", "right padding", "left padding", "padding and causality", "segments"),
    *("packed", "groups", "groups and causality", "any numbers"),
)


class FormulaTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.dict(sdpa_depth._plans, clear=True))

    @parameterized.product(kind=KINDS, on_cpu=(True, False), has_bias=(True, False))
    def test_output_and_gradients_equal_the_formula(self, kind, on_cpu, has_bias):
        self.check_formula(kind, on_cpu, has_bias, examples_at_once=2)

    @parameterized.product(kind=KINDS, has_bias=(True, False), examples_at_once=(1, 0.9, 0.2))
    def test_so_do_those_of_examples_or_some_heads_that_are_taken_one_by_one(self, kind, has_bias, examples_at_once):
        self.check_formula(kind, True, has_bias, examples_at_once)

    @parameterized.parameters((1, True, [2, 2, 1]), (2, True, [4, 1]), (64, True, [5]), (1, False, [5]))
    def test_a_long_example_goes_backward_by_heads_whose_scores_fit_the_cache(self, num_threads, on_cpu, expected):
        inputs = random_inputs(torch.Generator().manual_seed(0), 16, 16)
        inputs = [tensor[:1] if tensor.dim() == 4 else tensor for tensor in inputs]
        product, heads = sdpa_depth._product, []

        def record(name, left, *others):
            if name == "scores":
                heads.append(len(left))
            return product(name, left, *others)

        with (
            mock.patch.object(sdpa_depth, "MAX_CPU_SCORES", 4 * 16 * 16),
            mock.patch.object(sdpa_depth, "_on_cpu", lambda tensor: on_cpu),
            mock.patch.object(sdpa_depth, "_product", record),
            mock.patch.object(torch, "get_num_threads", lambda: num_threads),
        ):
            outputs_and_gradients(sdpa_depth.depth_sdpa, inputs, None, False, torch.ones(1, HEADS, 16, HEAD_SIZE))
        self.assertEqual(heads, expected)

    @parameterized.product(heads=(0, HEADS), on_cpu=(True, False))
    def test_nothing_to_attend_to_has_no_gradient(self, heads, on_cpu):
        inputs = [torch.zeros(BATCH_SIZE if heads == 0 else 0, heads, 3, HEAD_SIZE) for _ in range(3)]
        with mock.patch.object(sdpa_depth, "_on_cpu", lambda tensor: on_cpu):
            grads = sdpa_depth._attend_backward(inputs[0], *inputs, torch.ones(heads, 5), None, False)
        self.assertEqual([grad.shape for grad in grads], [*[inputs[0].shape] * 3, (heads, 5)])
        self.assertEqual(grads[3].abs().sum().item(), 0)

    def check_formula(self, kind, on_cpu, has_bias, examples_at_once):
        generator = torch.Generator().manual_seed(0)
        # On other devices than a CPU, nothing looks at the values of a mask.
        place = mock.patch.object(sdpa_depth, "_on_cpu", lambda tensor: on_cpu)
        for queries, keys in ((1, 1), (7, 7), (1, 5), (33, 12), (12, 33)):
            if "causal" in kind and queries != keys:
                keys = queries
            mask, is_causal = random_mask(kind, generator, queries, keys)
            inputs = random_inputs(generator, queries, keys, has_bias)
            grad = torch.randn(inputs[0].shape, generator=generator)
            expected = outputs_and_gradients(formula, inputs, mask, is_causal, grad)
            name = "MAX_CPU_SCORES" if on_cpu else "MAX_SCORES"
            limit = mock.patch.object(sdpa_depth, name, int(examples_at_once * HEADS * queries * keys))
            one_thread = mock.patch.object(torch, "get_num_threads", lambda: 1)  # more threads, more heads at a time
            with self.subTest(f"{queries} x {keys}"), place, limit, one_thread:
                found = outputs_and_gradients(sdpa_depth.depth_sdpa, inputs, mask, is_causal, grad)
                for value, right in zip(found, expected, strict=True):
                    torch.testing.assert_close(value, right, rtol=1e-9, atol=1e-9)

    @parameterized.product(dtype=(torch.bfloat16, torch.float16), on_cpu=(True, False))
    def test_errors_in_half_precision_are_at_most_those_of_eager(self, dtype, on_cpu):
        generator = torch.Generator().manual_seed(0)
        inputs = random_inputs(generator, 70, 70, dtype=dtype)
        mask, _ = random_mask("groups", generator, 70, 70)
        grad = torch.randn(inputs[0].shape, generator=generator).to(dtype)
        exact = outputs_and_gradients(formula, [tensor.double() for tensor in inputs], mask, False, grad.double())
        eager = outputs_and_gradients(formula, inputs, mask, False, grad)
        with mock.patch.object(sdpa_depth, "_on_cpu", lambda tensor: on_cpu):
            ours = outputs_and_gradients(sdpa_depth.depth_sdpa, inputs, mask, False, grad)
        for value, other, right in zip(ours, eager, exact, strict=True):
            self.assertEqual(value.dtype, dtype)
            error, bound = ((each.double() - right).norm() for each in (value, other))
            self.assertLessEqual(error, 1.05 * bound)

    def test_the_bias_may_be_of_float32_beside_other_dtypes(self):
        inputs = random_inputs(torch.Generator().manual_seed(0), 9, 9, dtype=torch.bfloat16)
        inputs[3] = inputs[3].float()
        grads = outputs_and_gradients(
            sdpa_depth.depth_sdpa, inputs, None, True, torch.ones(BATCH_SIZE, HEADS, 9, HEAD_SIZE)
        )
        self.assertEqual([grad.dtype for grad in grads[1:]], [tensor.dtype for tensor in inputs])

    @parameterized.parameters(True, False)
    def test_one_mask_may_be_that_of_all_examples(self, on_cpu):
        generator = torch.Generator().manual_seed(0)
        inputs = random_inputs(generator, 9, 9)
        mask, grad = random_mask("right padding", generator, 9, 9)[0][:1], torch.randn(BATCH_SIZE, HEADS, 9, HEAD_SIZE)
        with mock.patch.object(sdpa_depth, "_on_cpu", lambda tensor: on_cpu):
            found = outputs_and_gradients(sdpa_depth.depth_sdpa, inputs, mask, False, grad)
        expected = outputs_and_gradients(formula, inputs, mask, False, grad)
        for value, right in zip(found, expected, strict=True):
            torch.testing.assert_close(value, right.to(value.dtype), rtol=1e-9, atol=1e-9)

    @parameterized.product(kind=("none", "packed", "groups"), on_cpu=(True, False))
    def test_nothing_comes_of_no_examples(self, kind, on_cpu):
        generator = torch.Generator().manual_seed(0)
        mask, _ = random_mask(kind, generator, 5, 5)
        *vectors, bias = random_inputs(generator, 5, 5)
        inputs = [*(vector[:0] for vector in vectors), bias]
        with mock.patch.object(sdpa_depth, "_on_cpu", lambda tensor: on_cpu):
            output, *grads = outputs_and_gradients(
                sdpa_depth.depth_sdpa, inputs, None if mask is None else mask[:0], False, inputs[0]
            )
        self.assertEqual(output.shape, inputs[0].shape)
        self.assertEqual(grads[-1].abs().sum().item(), 0)

    @parameterized.parameters(1, 2)
    def test_what_is_kept_of_a_mask_is_not_taken_for_another_one(self, examples_at_once):
        generator = torch.Generator().manual_seed(0)
        limit = mock.patch.object(sdpa_depth, "MAX_CPU_SCORES", examples_at_once * HEADS * 9 * 9)
        memory = torch.empty(BATCH_SIZE, 1, 3, 18, dtype=torch.int32)  # of all masks, as in a compiled graph
        with limit:
            for kind in (*KINDS[2:], *KINDS[2:]):
                memory.copy_(random_mask(kind, generator, 9, 9)[0])
                inputs = random_inputs(generator, 9, 9)
                grad = torch.randn(inputs[0].shape, generator=generator)
                expected = outputs_and_gradients(formula, inputs, memory, False, grad)
                with torch.inference_mode(), self.subTest(kind):
                    torch.testing.assert_close(sdpa_depth.depth_sdpa(*inputs, memory, False).double(), expected[0])
                for _ in range(2):
                    found = outputs_and_gradients(sdpa_depth.depth_sdpa, inputs, memory, False, grad)
                    for value, right in zip(found, expected, strict=True):
                        torch.testing.assert_close(value, right, rtol=1e-9, atol=1e-9)

    def test_a_mask_is_looked_at_once_for_all_layers(self):
        generator = torch.Generator().manual_seed(0)
        inputs = random_inputs(generator, 9, 9)
        masks = [random_mask(kind, generator, 9, 9)[0] for kind in ("groups", "packed")]
        with mock.patch.object(sdpa_depth, "_plan", side_effect=sdpa_depth._plan) as plan:
            for mask in (masks[0], masks[0], masks[0].clone(), masks[1], masks[1]):
                outputs_and_gradients(sdpa_depth.depth_sdpa, inputs, mask, False, inputs[0])
        self.assertEqual(plan.call_count, 2)

    def test_little_is_kept(self):
        generator = torch.Generator().manual_seed(0)
        for length in range(1, 20):
            mask, _ = random_mask("groups", generator, length, length)
            sdpa_depth.depth_sdpa(*random_inputs(generator, length, length), mask, False)
            self.assertLessEqual(len(sdpa_depth._plans), sdpa_depth.MAX_PLANS)
        with mock.patch.object(sdpa_depth, "MAX_KEPT", BATCH_SIZE * 20 * 20 - 1):
            mask, _ = random_mask("groups", generator, 20, 20)
            sdpa_depth.depth_sdpa(*random_inputs(generator, 20, 20), mask, False)
        self.assertNotIn(20, [keys for _, keys in sdpa_depth._plans])

    def test_torch_accepts_the_operator(self):
        inputs = random_inputs(torch.Generator().manual_seed(0), 6, 6, dtype=torch.float32)
        sentence_mask = torch.rand(BATCH_SIZE, 6, generator=torch.Generator().manual_seed(1)) < 0.4
        mask = compact_mask((BATCH_SIZE, 6), 6, "cpu", groups=own_sentence_groups(sentence_mask))
        inputs = [tensor.requires_grad_() for tensor in inputs]
        torch.library.opcheck(sdpa_depth._attend, (*inputs, mask, False))
