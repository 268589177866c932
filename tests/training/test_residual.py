"""The residual stream in bfloat16 under autocast."""

import copy

import torch
from absl.testing import parameterized
from transformers import T5ForConditionalGeneration as StockT5

from hf_depth.training.residual import set_residual_dtype
from tiny_models import V1_0, model_of, random_batch, tiny_model, tiny_t5_config


class ResidualTest(parameterized.TestCase):
    def dtypes(self, model, batch, enabled: bool = True) -> set[torch.dtype]:
        found = set()
        hooks = [
            block.register_forward_hook(lambda module, args, output: found.add(output[0].dtype))
            for stack in (model.encoder, model.decoder)
            for block in stack.block
        ]
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            model(**batch).loss.backward()
        for hook in hooks:
            hook.remove()
        return found

    @parameterized.parameters(("depth", False), ("stock", True))
    def test_the_residual_stream_has_the_dtype_asked_for_under_autocast(self, kind, checkpointing):
        model = tiny_model(tiny_t5_config(**V1_0), model_class=StockT5) if kind == "stock" else model_of(kind)
        model, batch = model.train(), random_batch(1)
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        self.assertEqual(self.dtypes(model, batch), {torch.float32})
        set_residual_dtype(model, torch.bfloat16)
        self.assertEqual(self.dtypes(model, batch), {torch.bfloat16})
        self.assertEqual(self.dtypes(model, batch, enabled=False), {torch.float32})
        self.assertEqual(self.dtypes(copy.deepcopy(model), batch), {torch.bfloat16})
        set_residual_dtype(model, None)
        self.assertEqual(self.dtypes(model, batch), {torch.float32})
