"""Model cards: what the Hub reads of them, and what a reader does."""

import re
import tempfile
from pathlib import Path
from unittest import mock

import torch
import yaml
from absl.testing import parameterized
from huggingface_hub import ModelCard
from huggingface_hub.utils import validate_repo_id
from transformers import Trainer, trainer_pt_utils

from helpers import tiny_tokenizer
from hf_depth.data.data_collator import DataCollatorForT5SpanCorruption
from hf_depth.evaluation.scoring import TaskResult
from hf_depth.models.modeling_depth import T5ForConditionalGeneration, UMT5ForConditionalGeneration
from hf_depth.tasks.registry import get_task
from hf_depth.training.card_code import Usage
from hf_depth.training.model_card import (
    CardContent,
    card_section,
    fine_tuning_card,
    is_hub_name,
    model_index,
    pretraining_card,
    pretraining_content,
    pretraining_results,
    run_settings,
)
from hf_depth.training.trainer import DepthTrainer
from hf_depth.training.training_args import DepthTrainingArguments
from tiny_models import tiny_config, tiny_model, tiny_t5_config, tiny_umt5_config
from tiny_tasks import task_results
from tiny_training import TrainingTestCase, trainer

MODELS = {
    "depth": lambda: tiny_model(tiny_config()),
    "t5": lambda: tiny_model(tiny_t5_config(), model_class=T5ForConditionalGeneration),
    "umt5": lambda: tiny_model(tiny_umt5_config(), model_class=UMT5ForConditionalGeneration),
}
ODD_NAMES = ['a: "b" #c', "- 'x' | y", "[z] & *w", "Grüße, 世界: !", "null", "1.0"]
SETTINGS = {"parameters": 1_200_000, "global batch size": 64}
LOGS = [
    {
        "step": 0,
        "eval_loss": 7.0,
        "eval_sentence_accuracy_shuffled": 0.1,
        "eval_sentence_accuracy_shuffled_chance": 0.2,
    },
    {"step": 5, "loss": 5.0},
    {
        "step": 9,
        "eval_loss": 4.0,
        "eval_sentence_accuracy_shuffled": 0.21,
        "eval_sentence_accuracy_shuffled_chance": 0.2,
        "eval_runtime": 3.0,
    },
]


def metadata(card: ModelCard) -> dict:
    """The head of a card as the Hub reads it."""
    return yaml.safe_load(re.match(r"---\n(.*?)\n---\n", str(card), re.DOTALL).group(1))


class FineTuningCardTest(parameterized.TestCase):
    def card(self, kind="depth", results=(), content=None, **arguments) -> ModelCard:
        return fine_tuning_card("my-model", MODELS[kind](), results, content or CardContent(), **arguments)

    def test_card_states_results_in_the_form_of_the_hub(self):
        content = CardContent(
            {"Data": {"train_file": "rte.jsonl", "rte train": {"examples": 3200}}, "Settings": {"seed": 42}},
            base_model="google/t5-v1_1-base",
            datasets=["nyu-mll/glue"],
            language="en",
            license="apache-2.0",
        )
        card = self.card("depth", task_results(), content)
        data = metadata(card)
        self.assertEqual((data["base_model"], data["datasets"]), ("google/t5-v1_1-base", ["nyu-mll/glue"]))
        self.assertEqual((data["language"], data["license"]), ("en", "apache-2.0"))
        self.assertEqual((data["library_name"], data["tags"]), ("transformers", sorted(data["tags"])))
        self.assertContainsSubset(["depth", "hf_depth", "glue", "natural_instructions"], data["tags"])
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
        for text in ("| rte train | 3,200 |", "| seed | 42 |", "| majority |", "from google/t5-v1_1-base on"):
            self.assertIn(text, card.text)
        self.assertIn("its accuracy on glue/rte (validation), 0.6667, is not above", card.text.replace("Its", "its"))

    def test_what_is_not_known_is_not_in_the_metadata(self):
        self.assertEqual(metadata(self.card("t5")), {"library_name": "transformers", "tags": ["hf_depth", "t5"]})

    @parameterized.parameters(*ODD_NAMES)
    def test_odd_names_survive(self, name):
        content = CardContent({"Data": {name: name}}, datasets=[name], language=name, license=name, tags=[name])
        card = fine_tuning_card(name, MODELS["t5"](), task_results(), content)
        data = metadata(ModelCard(str(card)))
        self.assertEqual(data["model-index"][0]["name"], name)
        self.assertEqual((data["language"], data["license"], data["datasets"]), (name, name, [name]))
        self.assertIn(name, data["tags"])
        self.assertIn(f"\n# {name}\n", card.text)
        cell = name.replace("|", "\\|")
        self.assertIn(f"\n| {cell} | {cell} |\n", card.text)

    @parameterized.parameters("here", "/not/here/t5-run", "../t5-run", "not/here/t5-run")
    def test_card_names_no_folder_of_this_machine(self, name):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory())) / "t5-run"
        folder.mkdir()
        card = self.card("t5", task_results(), CardContent(base_model=str(folder) if name == "here" else name))
        self.assertNotIn(str(folder.parent), str(card))
        self.assertNotIn("/t5-run", str(card))
        self.assertIn("fine-tuned with hf_depth from t5-run on", card.text)
        self.assertNotIn("base_model", str(card))

    def test_the_code_stands_in_the_card_with_what_it_needs(self):
        usage = Usage("a = 1\n", "b = 2\n", ["torch", "nupunkt==0.8.0"], "<eosen>  in\nput", "out</s>", "It is so.")
        text = self.card("depth", usage=usage).text
        self.assertIn("With hf_depth installed:\n\n```python\na = 1\n```\n", text)
        self.assertIn("Without it, after `pip install torch nupunkt==0.8.0`:\n\n```python\nb = 2\n```\n", text)
        self.assertIn("It is so.\n\n```text\ninput:  <eosen> in put\ntarget: out</s>\n```\n", text)

    def test_limits_say_what_the_run_shows(self):
        result = TaskResult(get_task("rte"), "test", {"accuracy": 0.7, "majority_accuracy": 0.5})
        content = CardContent({"Settings": SETTINGS})
        good = self.card("t5", [result], content, num_steps=1500).text
        self.assertIn("1.2 million parameters and was trained for 1,500 steps of 64 examples. A model of this", good)
        self.assertNotIn("do not rely on", good)
        self.assertIn("It was evaluated on data like", good)
        unlabeled = TaskResult(get_task("rte"), "test", {})
        for results in ([], [unlabeled]):
            text = self.card("t5", results).text
            self.assertIn("It was not evaluated on labeled examples.", text)
            self.assertIn("It reads the prompts of its `task_config.json`", text)  # no format stands above it
            self.assertNotIn("It was evaluated", text)

    def test_kendall_tau_is_not_that_of_a_model_without_an_order(self):
        tau = {"eval_order_kendall_tau": -1.0, "eval_order_kendall_tau_shuffled": 0.1}
        exact = {"eval_order_exact": 0.0, "eval_order_exact_chance": 0.3, "eval_order_exact_constrained": 0.4}
        before, after = LOGS[0] | dict.fromkeys(tau, -1.0), LOGS[2] | tau | exact
        results = pretraining_results([before, after])
        self.assertNotIn("order_kendall_tau", results)
        self.assertEqual(results["order_kendall_tau_shuffled"], {"after": 0.1})
        self.assertEqual(results["order_exact_constrained"], {"after": 0.4, "chance": 0.3})

    def test_a_model_that_copies_pairs_has_an_order_of_shuffled_ones(self):
        tau = {"eval_order_kendall_tau": 0.1, "eval_order_kendall_tau_shuffled": -1.0}
        results = pretraining_results([LOGS[2] | tau])
        self.assertEqual(results["order_kendall_tau_shuffled"], {"after": -1.0})

    def test_card_without_results_is_valid(self):
        card = self.card("t5", [TaskResult(get_task("rte"), "test", {})])
        self.assertNotIn("model-index", metadata(card))

    def test_the_card_of_an_adapter_says_how_to_load_it(self):
        model = MODELS["depth"]()
        model.peft_config = {}
        for card in (fine_tuning_card("m", model, [], CardContent()), pretraining_card("m", model, CardContent())):
            self.assertEqual(metadata(card)["library_name"], "peft")
            self.assertIn("holds a PEFT adapter, not a whole model", card.text)

    def test_examples_from_files_do_not_pass_for_those_of_the_hub(self):
        score, *_ = model_index(task_results())
        self.assertEqual((score.dataset_type, score.dataset_config), ("glue/rte", None))
        score, *_ = model_index(task_results(), ["nyu-mll/glue"])
        self.assertEqual((score.dataset_type, score.dataset_config), ("nyu-mll/glue", "rte"))

    def test_scores_that_are_no_numbers_are_left_out_of_the_index(self):
        self.assertEmpty(model_index([TaskResult(get_task("rte"), "test", {"accuracy": float("nan")})]))


class PretrainingCardTest(parameterized.TestCase):
    @parameterized.parameters(*MODELS)
    def test_each_kind_of_model_has_a_card(self, kind):
        content = CardContent({"Data": {"source": "novels"}, "Settings": SETTINGS | {"max_source_length": 128}})
        card = pretraining_card("m", MODELS[kind](), content, LOGS, num_steps=9)
        self.assertContainsSubset([kind, "pre-training", "hf_depth"], metadata(card)["tags"])
        self.assertIn("pre-trained on novels with hf_depth.", card.text)
        self.assertIn("| loss | 7 | 4 |  |", card.text)
        self.assertIn("| sentence_accuracy_shuffled | 0.1 | 0.21 | 0.2 |", card.text)
        self.assertIn("21.0% right from the true ones before them, no better than 20.0% by chance", card.text)
        self.assertIn("inputs of at most 128 tokens", card.text)
        self.assertNotIn("runtime", card.text)
        values = {score.metric_name: score.metric_value for score in card.data.eval_results}
        self.assertEqual(values, {"loss": 4.0, "sentence_accuracy_shuffled": 0.21})

    def test_a_card_without_an_evaluation_has_no_results(self):
        card = pretraining_card("m", MODELS["t5"](), CardContent())
        self.assertNotIn("## Results", card.text)
        self.assertNotIn("model-index", metadata(card))
        self.assertIn("It was not evaluated.", card.text)
        self.assertNotIn("It was evaluated", card.text)

    def test_a_model_that_orders_nothing_has_no_rank_correlation(self):
        log = {"step": 9, "eval_loss": 4.0, "eval_order_kendall_tau": -1.0, "eval_order_kendall_tau_shuffled": -0.5}
        text = pretraining_card("m", MODELS["depth"](), CardContent(), [log]).text
        self.assertNotIn("| order_kendall_tau |", text)
        self.assertIn("| order_kendall_tau_shuffled | -0.5 |", text)

    def test_times_are_no_results(self):
        times = dict.fromkeys(("runtime", "model_preparation_time", "with_metadata_model_preparation_time"), 0.1)
        log = {"step": 9, "eval_loss": 4.0} | {f"eval_{name}": value for name, value in times.items()}
        self.assertEqual(pretraining_results([log]), {"loss": {"after": 4.0}})

    def test_the_parameters_of_all_processes_are_counted(self):
        args, model = DepthTrainingArguments("run", use_cpu=True), MODELS["t5"]()
        expected = run_settings(args, model)["parameters"]
        for parameter in model.parameters():  # as DeepSpeed ZeRO-3 leaves them
            parameter.ds_numel, parameter.data = parameter.numel(), torch.empty(0)
        with mock.patch.object(trainer_pt_utils, "is_deepspeed_zero3_enabled", return_value=True):
            self.assertEqual(run_settings(args, model)["parameters"], expected)

    @parameterized.parameters(("allenai/c4", ["allenai/c4"]), ("/data/c4", []), (None, []))
    def test_a_data_set_of_the_hub_is_named_in_the_metadata(self, dataset_name, expected):
        args = DepthTrainingArguments("run", hub_license="mit", use_cpu=True)
        settings = {"objective": "span_corruption", "sentence_language": "de"}
        statistics = {"train": {"examples": 5}}
        content = pretraining_content("c4", statistics, settings, args, MODELS["depth"](), dataset_name=dataset_name)
        self.assertEqual((list(content.datasets), content.language, content.license), (expected, "de", "mit"))
        found = content.sections["Data"]["sentences split by"]
        self.assertRegex(found, r"^sentencex [\d.]+, line rules \d+, language de$")
        content = pretraining_content("c4", statistics, settings, args, MODELS["t5"](), "/runs/base")
        self.assertIsNone(content.language)
        self.assertEqual(content.sections["Settings"]["initialised from"], "base")


class SectionTest(parameterized.TestCase):
    def test_values_are_written_for_readers(self):
        values = {"a": None, "b": True, "c": 12345, "d": 1e-4, "e": ["x", 2], "f": "p|q\nr", "g": "seed"}
        text = card_section("Settings", values)
        for line in ("a | none", "b | yes", "c | 12,345", "d | 0.0001", "e | x, 2", "f | p\\|q r"):
            self.assertIn(f"| {line} |", text)

    @parameterized.parameters(
        ("google/t5-v1_1-base", True),
        ("t5-small", True),
        ("/a/b", False),
        ("./a", False),
        ("a/b/c", False),
        ("https://me:secret@example.org/a", False),
    )
    def test_names_of_the_hub_are_told_from_paths(self, name, expected):
        self.assertEqual(is_hub_name(name), expected)


class CreateModelCardTest(TrainingTestCase):
    """`Trainer.create_model_card` and `push_to_hub` are heeded as those of transformers are."""

    def card(self, trainer_, **arguments) -> dict:
        trainer_.create_model_card(**arguments)
        return metadata(ModelCard.load(Path(self.folder, "README.md")))

    def test_arguments_win_over_the_content_and_stay(self):
        made = trainer("t5", self.folder, number_of_rows=8)
        made.card = CardContent({"Data": {"source": "novels"}}, language="en", tags=["first"])
        given = {"language": ["de", "fr"], "license": "mit", "tags": "second", "finetuned_from": "google/t5-v1_1-base"}
        for arguments in (given | {"dataset_tags": "me/texts", "dataset": "My texts"}, {}):
            data = self.card(made, model_name="Named", **arguments)
            self.assertEqual((data["language"], data["license"]), (["de", "fr"], "mit"))
            self.assertEqual((data["base_model"], data["datasets"]), ("google/t5-v1_1-base", ["me/texts"]))
            self.assertContainsSubset(["first", "second"], data["tags"])
            text = Path(self.folder, "README.md").read_text()
            self.assertIn("\n# Named\n", text)
            self.assertIn("| source | My texts |", text)
        for name in (data["base_model"], *data["datasets"]):
            validate_repo_id(name)

    def trained(self, **arguments):
        steps = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
        made = trainer("t5", self.folder, number_of_rows=8, **steps | arguments)
        made.card = CardContent({"Settings": dict(SETTINGS)})
        made.train()
        return made

    def test_scores_and_steps_are_those_of_the_best_weights(self):
        made = self.trained(load_best_model_at_end=True, metric_for_best_model="loss", greater_is_better=True)
        first, *_ = [log for log in made.state.log_history if "eval_loss" in log]
        for _ in range(2):  # without an evaluation of what was loaded, and with one
            card = self.card(made)
            (results,) = card["model-index"][0]["results"]
            self.assertAlmostEqual(results["metrics"][0]["value"], first["eval_loss"], delta=1e-5)
            text = Path(self.folder, "README.md").read_text()
            self.assertIn("was trained for 1 steps of", text)
            self.assertIn("| weights of step | 1 of 4, the best one |", text)
            made.evaluate()

    def test_scores_of_other_weights_are_left_out(self):
        made = self.trained(eval_strategy="no", eval_on_start=True)
        self.assertNotIn("model-index", self.card(made))
        self.assertIn("It was not evaluated.", Path(self.folder, "README.md").read_text())
        made.evaluate()
        self.assertIn("model-index", self.card(made))

    def test_the_batch_size_is_the_one_that_was_found(self):
        made = self.trained(eval_strategy="no")
        made._train_batch_size = 2  # as `auto_find_batch_size` leaves it
        self.card(made)
        self.assertIn("| global batch size | 2 |", Path(self.folder, "README.md").read_text())

    def test_the_batch_size_that_was_found_is_that_of_a_finished_run_too(self):
        made = self.trained(eval_strategy="no")
        made.state.train_batch_size = 2
        made.state.save_to_json(str(Path(self.folder, "trainer_state.json")))
        again = trainer("t5", self.folder, number_of_rows=8, auto_find_batch_size=True)
        again.card = CardContent({"Settings": dict(SETTINGS)})
        again.load_state(self.folder)
        self.card(again)
        self.assertIn("| global batch size | 2 |", Path(self.folder, "README.md").read_text())

    def test_a_trainer_that_trained_nothing_tells_of_no_training(self):
        made = trainer("t5", self.folder, number_of_rows=8)
        made.card = CardContent({"Settings": dict(SETTINGS)})
        self.card(made)
        self.assertIn("It has 1.2 million parameters. A model", Path(self.folder, "README.md").read_text())

    @parameterized.parameters(
        (ValueError("'license' must be one of\n[mit]"), r"refuse the model card: 'license' must be one of \[mit\]"),
        (ConnectionError("offline"), None),
    )
    def test_the_hub_is_asked_before_training_whether_it_takes_the_card(self, error, message):
        asked = []

        def validate(card):
            asked.append(metadata(card))
            raise error

        made = trainer("t5", self.folder, number_of_rows=8)
        made.args.push_to_hub = True
        arguments = {"model": made.model, "data_collator": made.data_collator, "card": CardContent(license="Apache-2")}
        with mock.patch.object(Trainer, "init_hf_repo"), mock.patch.object(ModelCard, "validate", validate):
            with self.assertRaisesRegex(ValueError, message) if message else self.assertLogs(level="WARNING"):
                DepthTrainer(args=made.args, **arguments)
        self.assertEqual(asked[0]["license"], "Apache-2")

    def test_an_argument_that_a_card_cannot_heed_is_named(self):
        made = trainer("t5", self.folder, number_of_rows=8)
        made.card = CardContent()
        with self.assertRaisesRegex(TypeError, "`tasks` is no argument of this model card. There are: language"):
            made.create_model_card(tasks="translation")

    @parameterized.named_parameters(
        ("subclass", type("Reversed", (DataCollatorForT5SpanCorruption,), {"_corrupt": lambda self, *batch: batch})),
        ("collator_of_another_kind", lambda tokenizer, **_: lambda examples: {}),
    )
    def test_of_noise_of_ones_own_the_card_says_nothing(self, kind):
        made = trainer("t5", self.folder, number_of_rows=8)
        made.card, made.processing_class = CardContent(), tiny_tokenizer(sentence_tokens=True)
        made.data_collator = kind(made.processing_class, max_source_length=32)
        self.card(made)
        text = Path(self.folder, "README.md").read_text()
        self.assertIn("It is pre-trained only", text)
        for other in ("```python", "## Input format", "mask"):
            self.assertNotIn(other, text)

    def test_without_a_tokenizer_the_card_has_no_code(self):
        made = trainer("t5", self.folder, number_of_rows=8)
        made.card = CardContent()
        self.card(made)
        self.assertNotIn("```python", Path(self.folder, "README.md").read_text())
        made.processing_class = tiny_tokenizer(sentence_tokens=True)
        self.card(made)
        self.assertIn("```python", Path(self.folder, "README.md").read_text())
        made.model.peft_config = {}  # an adapter is not loaded by that code
        self.card(made)
        self.assertNotIn("```python", Path(self.folder, "README.md").read_text())
