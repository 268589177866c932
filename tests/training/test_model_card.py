"""Model cards."""

import tempfile
from pathlib import Path

import yaml
from absl.testing import parameterized
from huggingface_hub import ModelCard

from hf_depth.evaluation.scoring import TaskResult
from hf_depth.tasks.registry import get_task
from hf_depth.training.model_card import CardContent, fine_tuning_card, model_card, model_index
from tiny_tasks import task_results


class FineTuningCardTest(parameterized.TestCase):
    def test_card_states_results_in_the_form_of_the_hub(self):
        card = ModelCard(
            fine_tuning_card(
                "my-model",
                "depth",
                task_results(),
                CardContent(
                    {"Data": {"train": "rte.jsonl", "rows": 32}, "Settings": {"learning_rate": 1e-4}},
                    base_model="google/t5-v1_1-base",
                    datasets=["nyu-mll/glue"],
                ),
            )
        )
        data = yaml.safe_load(card.data.to_yaml())
        self.assertEqual((data["base_model"], data["datasets"]), ("google/t5-v1_1-base", ["nyu-mll/glue"]))
        (index,) = data["model-index"]
        self.assertEqual(index["name"], "my-model")
        found = {
            (entry["dataset"].get("config"), entry["dataset"]["split"], metric["type"]): metric["value"]
            for entry in index["results"]
            for metric in entry["metrics"]
        }
        self.assertEqual(
            found,
            {
                ("rte", "validation", "accuracy"): 0.666667,
                ("mrpc", "validation", "f1"): 0.857143,
                ("mrpc", "validation", "accuracy"): 0.75,
                (None, "test", "rouge"): 41.256,
                (None, "test", "exact_match"): 0.25,
            },
        )
        self.assertEqual([score.metric_value for score in card.data.eval_results], list(found.values()))
        for text in ("trust_remote_code=True", "| rows | 32 |", "| learning_rate | 0.0001 |", "| majority |"):
            self.assertIn(text, card.text)

    def test_card_names_no_folder_of_this_machine(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory())) / "t5-run"
        folder.mkdir()
        text = fine_tuning_card("m", "t5", task_results(), CardContent(base_model=str(folder)))
        self.assertNotIn(str(folder.parent), text)
        self.assertIn("from t5-run on", text)
        self.assertNotIn("base_model", text)
        self.assertNotIn("trust_remote_code", text)
        text = fine_tuning_card("m", "t5", task_results(), CardContent(base_model="/not/here/t5-run"))
        self.assertNotIn("/not/here", text)

    def test_examples_from_files_do_not_pass_for_those_of_the_hub(self):
        score, *_ = model_index(task_results())
        self.assertEqual((score.dataset_type, score.dataset_config), ("glue/rte", None))
        score, *_ = model_index(task_results(), ["nyu-mll/glue"])
        self.assertEqual((score.dataset_type, score.dataset_config), ("nyu-mll/glue", "rte"))

    def test_card_without_results_is_valid(self):
        card = ModelCard(fine_tuning_card("m", "t5", [TaskResult(get_task("rte"), "test", {})], CardContent()))
        self.assertNotIn("model-index", card.data.to_dict())

    def test_scores_that_are_no_numbers_are_left_out_of_the_index(self):
        self.assertEmpty(model_index([TaskResult(get_task("rte"), "test", {"accuracy": float("nan")})]))


class PretrainingCardTest(parameterized.TestCase):
    @parameterized.parameters(("depth", True), ("t5", False), ("umt5", False))
    def test_each_kind_of_model_has_a_card(self, model_type, needs_code):
        card = model_card("m", model_type, {"Data": {"source": "novels"}})
        self.assertIn(f"tags: [{model_type}, ", card)
        self.assertIn("| source | novels |", card)
        self.assertEqual("trust_remote_code=True" in card, needs_code)
