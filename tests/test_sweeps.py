"""Sweeps, recipes and batch scripts, as the W&B agent and the parsers of the scripts read them."""

import os
import tempfile
from dataclasses import fields
from unittest import mock

import yaml
from absl.testing import parameterized
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser

from helpers import ROOT, load_script, script_arguments
from hf_depth.arguments.parser import parse_arguments
from hf_depth.evaluation.scoring import compute_task_metrics
from hf_depth.tasks.entries import BENCHMARKS
from hf_depth.tasks.registry import DATASET_VALS, get_task, register_task
from hf_depth.training.training_args import TaskTrainingArguments

SWEEPS = sorted((ROOT / "sweeps").rglob("*.yaml"))
RECIPES = sorted((ROOT / "examples/configs/recipes").glob("*.yaml"))
# https://docs.wandb.ai/models/sweeps/sweep-config-keys
SWEEP_KEYS = "program name project entity description method metric parameters early_terminate command run_cap".split()


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def named(paths):
    return [(str(path.relative_to(ROOT)).replace("/", "_").replace("-", "_"), path) for path in paths]


def choices(parameter):
    """The values that a sweep may give a parameter; of a range, its ends."""
    if "value" in parameter:
        return [parameter["value"]]
    return parameter.get("values") or [parameter["min"], parameter["max"]]


def agent_command(sweep, **values):
    """The command of the installed agent for values of the parameters; all others have their first value."""
    from wandb import wandb_agent  # takes a second to import

    parameters = {name: {"value": choices(parameter)[0]} for name, parameter in sweep["parameters"].items()}
    parameters |= {name: {"value": value} for name, value in values.items()}
    with tempfile.TemporaryDirectory() as folder:
        # The agent writes its settings to the environment.
        with mock.patch.dict(os.environ, {"WANDB_DIR": folder, "WANDB_SWEEP_ID": "s1"}):
            with mock.patch.object(wandb_agent, "AgentProcess") as process:
                agent = wandb_agent.Agent(api=None, queue=None, sweep_id="s1")
                agent._sweep_command = list(sweep["command"])  # as `Agent.run` does
                agent._command_run({"run_id": "r1", "program": sweep["program"], "args": parameters})
    return process.call_args.kwargs["command"]


class GeneratedFilesTest(parameterized.TestCase):
    def test_the_files_are_generated_from_the_table(self):
        generate = load_script("sweeps/generate.py")
        for paths, folder, texts in (
            (SWEEPS, ROOT / "sweeps", generate.all_sweeps()),
            (RECIPES, ROOT / generate.RECIPES_FOLDER, generate.all_recipes()),
        ):
            self.assertEqual({str(path.relative_to(folder)) for path in paths}, set(texts))
            for path, text in texts.items():
                self.assertEqual((folder / path).read_text(encoding="utf-8"), text, f"run sweeps/generate.py: {path}")

    def test_a_new_task_needs_a_recipe_and_gets_a_sweep(self):
        entry = {"text_column_name": "review", "prefix": "tone:", "labels": ["sad", "glad"]}
        generate = load_script("sweeps/generate.py")
        self.addCleanup(DATASET_VALS.pop, "mine", None)
        register_task(entry, "mine", "tone")
        self.enter_context(mock.patch.dict(BENCHMARKS, {"mine": {"tone": entry}}))
        with self.assertRaisesRegex(ValueError, "mine/tone has no recipe: add 'tone' or 'mine' to RECIPES"):
            generate.all_sweeps()
        self.enter_context(mock.patch.dict(generate.RECIPES, {"mine": ("Mine.", generate.FINE_TUNING, {})}))
        sweep = yaml.safe_load(generate.all_sweeps()["mine/tone.yaml"])
        self.assertIn("examples/configs/recipes/mine.yaml", sweep["command"])

    def test_every_task_with_training_data_has_a_sweep(self):
        swept = {
            (sweep["parameters"]["benchmark"]["value"], sweep["parameters"]["dataset_name"]["value"])
            for sweep in map(read, SWEEPS)
            if "benchmark" in sweep["parameters"]
        }
        expected = {(benchmark, name) for benchmark, entries in BENCHMARKS.items() for name in entries}
        expected -= {pair for pair in expected if pair[0] in ("discourse", "python")}  # made of any text
        self.assertEqual(swept, expected - {("glue", "ax")})  # which has no training data


class SweepTest(parameterized.TestCase):
    def parse(self, program, args):
        """The arguments as the script reads them, on a machine without a GPU."""
        return parse_arguments(script_arguments(program), [*args, "--use_cpu", "true"])

    @parameterized.named_parameters(*named(SWEEPS))
    def test_wandb_accepts_the_file(self, path):
        sweep = read(path)
        self.assertContainsSubset(sweep, SWEEP_KEYS)
        self.assertTrue((ROOT / sweep["program"]).is_file())
        self.assertIn(sweep["method"], ("random", "grid", "bayes"))
        self.assertIn(sweep["metric"]["goal"], ("maximize", "minimize"))
        for parameter in sweep["parameters"].values():
            if "distribution" in parameter:
                self.assertEqual(parameter["distribution"], "log_uniform_values")
                for end in ("min", "max"):  # YAML reads 1e-5, without a point, as text
                    self.assertIsInstance(parameter[end], float)
            else:
                self.assertNotEmpty(choices(parameter))

    @parameterized.named_parameters(*named(SWEEPS))
    def test_the_script_accepts_the_command_of_the_agent(self, path):
        sweep = read(path)
        for place in (0, -1):  # the first and the last values
            values = {name: choices(parameter)[place] for name, parameter in sweep["parameters"].items()}
            env, *command = agent_command(sweep, **values)
            self.assertEqual((env, command[:2]), ("/usr/bin/env", ["accelerate", "launch"]))
            launch = launch_command_parser().parse_args(command[2:])
            self.assertEqual(launch.training_script, sweep["program"])
            # An agent has one GPU, whatever the configuration of the user says.
            self.assertEqual(load_config_from_file(str(ROOT / launch.config_file)).num_processes, 1)
            recipe, *flags = launch.training_script_args
            self.assertTrue((ROOT / recipe).is_file())
            self.assertLen(flags, len(sweep["parameters"]))
            parsed = self.parse(sweep["program"], [str(ROOT / recipe), *flags])
            arguments = {entry.name: getattr(part, entry.name) for part in parsed for entry in fields(part)}
            for name, value in values.items():
                with self.subTest(name):
                    self.assertIn(arguments[name], (value, [value]))

    @parameterized.named_parameters(*named(path for path in SWEEPS if path.stem != "pretrain"))
    def test_the_metric_is_the_one_that_the_task_optimizes(self, path):
        sweep = read(path)
        spec = get_task(sweep["parameters"]["dataset_name"]["value"], sweep["parameters"]["benchmark"]["value"])
        if spec.labels is None:
            row = {"references": ["a"]} | dict.fromkeys(spec.text_column_name, "text")
            metrics = compute_task_metrics(spec, [row], texts=["a"])
        else:
            rows = [{spec.label_column_name: label} for label in range(2)]
            metrics = compute_task_metrics(spec, rows, predicted_ids=[0, 1])
        folder, _, key = sweep["metric"]["name"].partition("/")
        self.assertEqual(folder, "eval")
        self.assertIn(key.removeprefix(f"{spec.validation_splits[0]}_"), metrics)
        self.assertEqual(sweep["metric"]["goal"], "maximize" if spec.greater_is_better else "minimize")
        several = len(spec.validation_splits) > 1
        self.assertEqual(key.startswith(f"{spec.validation_splits[0]}_"), several)


class RecipeTest(parameterized.TestCase):
    @parameterized.named_parameters(*named(RECIPES))
    def test_the_script_accepts_it(self, path):
        program = "examples/pretrain_t5.py" if path.stem.startswith("pretrain") else "examples/fine_tune_t5.py"
        *_, training_args = parse_arguments(script_arguments(program), [str(path), "--use_cpu", "true"])
        self.assertTrue(training_args.do_train and training_args.do_eval)
        self.assertLessEqual(training_args.save_total_limit, 3)  # a checkpoint of a T5 base has 3 GB
        # The comment shows the command that runs it.
        self.assertIn(f"accelerate launch {program} {path.relative_to(ROOT)}", path.read_text(encoding="utf-8"))

    @parameterized.parameters(
        # Lengths, batch size and steps of the SLURM scripts that the authors published.
        ("cola", 256, 16, 16, 3000),
        ("sst2", 272, 8, 128, 3000),
        ("mnli", 512, 8, 256, 10_000),
        ("qqp", 512, 8, 128, 10_000),
        ("qnli", 512, 16, 64, 10_000),
        ("rte", 256, 8, 128, 4000),
        ("mrpc", 512, 8, 32, 3000),
        ("stsb", 512, 8, 16, 3000),
        ("disco_eval", 512, 32, 64, 1500),
        ("natural_instructions", 512, 128, 64, -1),
    )
    def test_lengths_batches_and_steps_are_those_of_the_authors(self, name, source, target, batch, steps):
        path = str(ROOT / f"examples/configs/recipes/{name}.yaml")
        model, data, args = parse_arguments(script_arguments("examples/fine_tune_t5.py"), [path, "--use_cpu", "true"])
        self.assertEqual((data.max_source_length, data.max_target_length), (source, target))
        self.assertEqual(args.per_device_train_batch_size * args.gradient_accumulation_steps, batch)
        self.assertEqual((args.max_steps, model.dropout_rate), (steps, 0.0))
        default = TaskTrainingArguments("unused", use_cpu=True)
        for setting in ("optim", "learning_rate", "lr_scheduler_type", "warmup_steps"):
            self.assertEqual(getattr(args, setting), getattr(default, setting))

    @parameterized.parameters(("pretrain", None), ("pretrain_from_pretrained", "google/t5-v1_1-base"))
    def test_the_settings_of_pretraining_are_those_of_the_authors(self, name, base):
        path = str(ROOT / f"examples/configs/recipes/{name}.yaml")
        parts = parse_arguments(script_arguments("examples/pretrain_t5.py"), [path, "--use_cpu", "true"])
        values = {key: value for part in parts for key, value in vars(part).items()}
        self.assertEqual((values["model_type"], values["model_name_or_path"]), ("depth", base))
        self.assertEqual((values["mlm_probability"], values["sentence_shuffling_probability"]), (0.3, 0.5))
        batch = values["per_device_train_batch_size"] * values["gradient_accumulation_steps"]
        self.assertEqual((4 * batch, values["max_steps"]), (200, 1_000_000))
        self.assertEqual(values["dropout_rate"], 0.0)  # also from a checkpoint, whose own is 0.1
