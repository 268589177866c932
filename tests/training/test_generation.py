import json
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from absl.testing import absltest, parameterized
from transformers import CompileConfig, GenerationConfig, StaticCache

from hf_depth import DepthTrainingArguments
from tiny_training import TrainingTestCase, rows, tiny_model, trainer

ARGUMENTS = {"predict_with_generate": True, "generation_max_length": 16, "per_device_eval_batch_size": 3}


class StaticCacheTest(TrainingTestCase):
    def run_of(self, kind="depth", cache="static", attn_implementation="sdpa", **arguments):
        model = tiny_model(kind)
        model.set_attn_implementation(attn_implementation)
        arguments = ARGUMENTS | {"generation_cache_implementation": cache} | arguments
        return trainer(kind, self.folder, model=model, **arguments)

    @parameterized.parameters(("depth", "sdpa"), ("t5", "eager"))
    def test_predictions_are_those_of_a_dynamic_cache(self, kind, attn_implementation):
        dynamic, static = (self.run_of(kind, cache, attn_implementation) for cache in (None, "static"))
        expected = dynamic.predict(rows(7))
        with mock.patch("transformers.generation.utils.StaticCache", side_effect=StaticCache) as made:
            found = static.predict(rows(7))
        self.assertTrue(made.called)
        np.testing.assert_array_equal(found.predictions, expected.predictions)

    def test_batches_of_several_widths_are_decoded_by_one_graph(self):
        torch.compiler.reset()
        graphs = []

        def backend(graph, example_inputs):
            graphs.append(graph)
            return graph.forward

        run = self.run_of("t5")
        config = CompileConfig(backend=backend, fullgraph=True, mode=None, dynamic=False)
        config._compile_all_devices = True  # on a CPU `generate` does not compile by itself
        run.model.generation_config.compile_config = config
        data = [{"input_ids": list(range(3, 3 + length))} for length in (40, 40, 40, 60, 60, 60, 80, 80, 80)]
        run.predict(data)
        self.assertLen(graphs, 1)

    @parameterized.parameters(
        ({"generation_cache_implementation": "statik"}, "must be one of 'dynamic', 'static', got 'statik'"),
        ({"predict_with_generate": False}, "is for evaluations that generate"),
    )
    def test_what_would_have_no_effect_is_refused(self, changes, message):
        arguments = {"predict_with_generate": True, "generation_cache_implementation": "static", "use_cpu": True}
        with self.assertRaisesRegex(ValueError, f"`generation_cache_implementation` {message}"):
            DepthTrainingArguments(self.folder, **arguments | changes)


class ConfigurationTest(TrainingTestCase):
    @parameterized.parameters(("depth", {}), ("t5", {"max_new_tokens": 8, "num_beams": 2}))
    def test_an_evaluation_leaves_the_configuration_of_the_model_as_it_is(self, kind, settings):
        constrains = {"constrain_sentence_order": kind == "depth"}
        run = trainer(kind, self.folder, generation_config=GenerationConfig(**settings), **ARGUMENTS, **constrains)
        before, config = run.model.generation_config.to_dict(), run.model.config.to_dict()
        run.evaluate()
        run.predict(rows(3))
        self.assertEqual(run.model.generation_config.to_dict(), before)
        self.assertEqual(run.model.config.to_dict(), config)
        run.save_model()
        saved = json.loads(Path(self.folder, "generation_config.json").read_text())
        self.assertEqual({**before, **saved}, before)
        self.assertNotIn("max_length", saved)


if __name__ == "__main__":
    absltest.main()
