"""Laws of the attention implementations of this package, in models: they compute what eager does, in less memory."""

import importlib
import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch
from absl.testing import parameterized
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging

from hf_depth.models import modeling_depth
from hf_depth.models.masking_depth import is_compact
from hf_depth.models.modeling_depth import (
    DepthForConditionalGeneration,
    T5ForConditionalGeneration,
    UMT5ForConditionalGeneration,
)
from tiny_models import (
    captured_masks,
    gradients,
    random_batch,
    tiny_config,
    tiny_model,
    tiny_t5_config,
    tiny_umt5_config,
)

IMPLEMENTATIONS = ("depth_sdpa",)
FOR_GPUS = ("depth_triton", "depth_flex")
MODELS = {
    "depth": (DepthForConditionalGeneration, tiny_config),
    "t5": (T5ForConditionalGeneration, tiny_t5_config),
    "umt5": (UMT5ForConditionalGeneration, tiny_umt5_config),
}


def model_of(kind, attn_implementation, **changes):
    model_class, config = MODELS[kind]
    return tiny_model(config(**changes), attn_implementation, model_class=model_class)


def batch_of(layout, seed=5):
    """A batch without padding, with padding at the right, with padding at the left of the source, or packed."""
    batch = random_batch(seed, source_length=13, target_length=9)
    if layout == "full":
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(3, 46, (3, 22), generator=generator)
        return {"input_ids": ids[:, :13], "labels": ids[:, 13:]}
    if layout == "left":
        return batch | {name: batch[name].flip(1) for name in ("input_ids", "attention_mask")}
    if layout == "packed":
        places = torch.arange(13)
        batch |= {
            "encoder_segment_ids": torch.where(batch["attention_mask"], 1 + (places > 5), 0),
            "decoder_segment_ids": torch.where(batch["labels"] != -100, 1, 0),
        }
    return batch


def assert_close(found, expected, **tolerance):
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **tolerance, msg=lambda text, name=name: f"{name}: {text}")


class EqualityTest(parameterized.TestCase):
    @parameterized.product(
        attn_implementation=IMPLEMENTATIONS, kind=list(MODELS), layout=("full", "right", "left", "packed")
    )
    def test_logits_losses_and_all_gradients_are_those_of_eager(self, attn_implementation, kind, layout):
        batch, reference = batch_of(layout), model_of(kind, "eager").train()
        model = model_of(kind, attn_implementation).train()
        # The states of padding differ in left padding: without a key they are 0 here, and any number in eager.
        expected, found = reference(**batch), model(**batch)
        torch.testing.assert_close(found.token_losses, expected.token_losses, rtol=1e-5, atol=1e-5)
        assert_close(gradients(model, batch), gradients(reference, batch), rtol=1e-4, atol=1e-6)

    @parameterized.product(attn_implementation=IMPLEMENTATIONS, kind=list(MODELS), dtype=(torch.bfloat16,))
    def test_under_autocast_errors_are_those_of_eager(self, attn_implementation, kind, dtype):
        batch = batch_of("right")
        exact = gradients(model_of(kind, "eager").double(), batch)
        errors = {}
        for name in ("eager", attn_implementation):
            model = model_of(kind, name)
            with torch.autocast("cpu", dtype):
                found = gradients(model, batch)
            squares = [(found[key] - value).pow(2).sum() / value.pow(2).sum() for key, value in exact.items()]
            errors[name] = torch.stack(squares).mean().sqrt().item()
        self.assertLess(errors[attn_implementation], 1.2 * errors["eager"])
        self.assertGreater(errors["eager"], 1e-4)  # it was in that dtype

    @parameterized.product(attn_implementation=IMPLEMENTATIONS, use_reentrant=(True, False))
    def test_gradient_checkpointing_gives_the_same_gradients(self, attn_implementation, use_reentrant):
        model, batch = model_of("depth", attn_implementation).train(), batch_of("right")
        expected = gradients(model, batch)
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        assert_close(gradients(model, batch), expected)

    @parameterized.product(attn_implementation=IMPLEMENTATIONS, case=(("depth", "packed"), ("umt5", "right")))
    def test_a_compiled_training_step_is_one_graph_and_changes_nothing(self, attn_implementation, case):
        kind, layout = case
        torch._dynamo.reset()
        model = model_of(kind, attn_implementation, num_layers=1, num_decoder_layers=1).train()
        batch = batch_of(layout)
        expected = gradients(model, batch)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=False)
        found = gradients(compiled, batch)
        assert_close({name.removeprefix("_orig_mod."): value for name, value in found.items()}, expected)

    @parameterized.product(attn_implementation=IMPLEMENTATIONS)
    def test_dropout_of_the_weights_is_that_of_sdpa(self, attn_implementation):
        batch, losses = batch_of("right"), []
        for name in ("sdpa", attn_implementation):
            model = model_of("depth", name, dropout_rate=0.3).train()
            torch.manual_seed(1)
            losses.append(model(**batch).loss.item())
        self.assertAlmostEqual(*losses, places=5)

    @parameterized.product(attn_implementation=FOR_GPUS, layout=("full", "packed"))
    def test_a_model_that_is_on_a_cpu_after_all_goes_the_way_of_depth_sdpa(self, attn_implementation, layout):
        batch = batch_of(layout)
        expected = gradients(model_of("depth", "depth_sdpa"), batch)
        found = gradients(model_of("depth", attn_implementation), batch)
        assert_close(found, expected, rtol=0, atol=0)


class SwitchingTest(parameterized.TestCase):
    @parameterized.product(attn_implementation=IMPLEMENTATIONS)
    def test_a_model_changes_from_one_implementation_to_another_and_back(self, attn_implementation):
        model, batch = model_of("depth", "sdpa"), batch_of("right")
        expected = gradients(model, batch)
        for name in (attn_implementation, "eager", attn_implementation, "sdpa"):
            model.set_attn_implementation(name)
            with captured_masks(model) as masks:
                assert_close(gradients(model, batch), expected, rtol=1e-4, atol=1e-6)
            for mask in sum(masks.values(), []):
                self.assertEqual(is_compact(mask), name == attn_implementation)

    @parameterized.product(attn_implementation=IMPLEMENTATIONS)
    def test_dense_masks_of_the_caller_are_obeyed(self, attn_implementation):
        batch, mask = batch_of("right"), torch.rand(3, 1, 9, 9) < 0.8
        mask |= torch.eye(9, dtype=torch.bool)
        expected = model_of("depth", "sdpa")(**batch, decoder_attention_mask=mask).logits
        found = model_of("depth", attn_implementation)(**batch, decoder_attention_mask=mask).logits
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    def test_whoever_asks_for_attention_weights_is_told_where_they_are(self):
        logging.get_logger().warning_once.cache_clear()
        with self.assertLogs("hf_depth", "WARNING") as logs:
            outputs = model_of("depth", "depth_sdpa")(**batch_of("right"), output_attentions=True)
        self.assertFalse(outputs.encoder_attentions)
        self.assertRegex(logs.output[0], '`depth_sdpa`.*set_attn_implementation."eager"')

    @parameterized.product(attn_implementation=("depth_sdpa", "depth_flex"), is_other_release=(False, True))
    def test_a_copy_of_the_files_from_the_hub_works_beside_the_package(self, attn_implementation, is_other_release):
        batch, model = batch_of("right"), model_of("depth", attn_implementation).train()
        expected = gradients(model, batch)
        # What the copy registers, for all models, goes with it.
        for functions in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
            self.enterContext(mock.patch.dict(functions._global_mapping))
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "hub_copy").mkdir()
            for path in Path(modeling_depth.__file__).parent.glob("*_depth.py"):
                shutil.copy(path, Path(folder, "hub_copy"))
            if is_other_release:  # its attention computes something else
                path = Path(folder, "hub_copy", "sdpa_depth.py")
                code = path.read_text()
                self.assertIn("    return _attend(", code)
                path.write_text(code.replace("    return _attend(", "    return 2 * _attend("))
            sys.path.insert(0, folder)
            try:
                copy = importlib.import_module("hub_copy.modeling_depth")
                other = tiny_model(
                    attn_implementation=attn_implementation, model_class=copy.DepthForConditionalGeneration
                )
                self.assertIsNot(copy.depth_sdpa, modeling_depth.depth_sdpa)
                assert_close(gradients(model, batch), expected)
                found = gradients(other.train(), batch)
                if is_other_release:
                    self.assertFalse(torch.allclose(found["lm_head.weight"], expected["lm_head.weight"]))
                    # The package is imported last.
                    modeling_depth.register_attention("depth_sdpa", modeling_depth.depth_sdpa)
                    assert_close(gradients(other, batch), found)
                else:
                    assert_close(found, expected)
            finally:
                sys.path.remove(folder)
                for name in [name for name in sys.modules if name.startswith("hub_copy")]:
                    del sys.modules[name]


def peak_memory(attn_implementation, batch_size, length):
    """The most bytes that torch's allocator holds in a training step, beyond those at its beginning."""
    config = tiny_config(num_heads=4, d_kv=2, d_model=8, d_ff=8, num_layers=1, num_decoder_layers=1)
    model = tiny_model(config, attn_implementation).train()
    batch = random_batch(0, batch_size, length, length)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        model(**batch).loss.backward()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


class MemoryTest(parameterized.TestCase):
    def growth(self, attn_implementation, length):
        """Bytes that eight more examples of a length take."""
        return peak_memory(attn_implementation, 10, length) - peak_memory(attn_implementation, 2, length)

    @parameterized.parameters(*((name, 2.5) for name in IMPLEMENTATIONS), ("sdpa", None))
    def test_memory_of_an_example_grows_with_its_length_and_not_with_its_square(self, attn_implementation, most):
        ratio = self.growth(attn_implementation, 256) / self.growth(attn_implementation, 128)
        if most is None:  # what the test would see if scores of a whole batch were there
            self.assertGreater(ratio, 3.5)
        else:
            self.assertLess(ratio, most)
