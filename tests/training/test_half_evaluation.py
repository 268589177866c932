"""Of an evaluation in half precision the weights are those of before, to the bit."""

import torch
from absl.testing import parameterized

from hf_depth.training.half_evaluation import weights_kept_on_cpu
from tiny_training import parameters, tiny_model


class HalfEvaluationTest(parameterized.TestCase):
    @parameterized.parameters(torch.bfloat16, torch.float16)
    def test_weights_are_restored_also_after_an_error(self, dtype):
        model = tiny_model("depth", tie_word_embeddings=True)
        before, objects = parameters(model), list(model.parameters())
        with self.assertRaisesRegex(RuntimeError, "in the evaluation"):
            with weights_kept_on_cpu(model):
                self.assertEqual(model.to(dtype).dtype, dtype)
                raise RuntimeError("in the evaluation")
        for name, weight in parameters(model).items():
            self.assertEqual(weight.dtype, torch.float32)
            self.assertTrue(torch.equal(weight, before[name]), name)
        self.assertEqual([id(p) for p in model.parameters()], [id(p) for p in objects])  # as the optimizer has them
