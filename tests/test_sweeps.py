"""Sweeps, recipes and batch scripts, as the W&B agent and the parsers of the scripts read them."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from unittest import mock

import yaml
from absl.testing import parameterized
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from datasets import concatenate_datasets

import tiny_training
from helpers import ROOT, load_script, script_arguments, tiny_tokenizer
from hf_depth.arguments.parser import parse_arguments
from hf_depth.data.corpus import load_corpus
from hf_depth.data.vocabulary import train_tokenizer
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


def tiny_run(folder, spec, number=8):
    """Writes a T5 of one layer and a few examples of a task; returns the flags to run a recipe of the task on them."""
    tiny_training.tiny_model("t5").save_pretrained(folder / "t5")
    tiny_tokenizer().save_pretrained(folder / "t5")
    for split in (spec.train_split, *spec.validation_splits):
        texts = [dict.fromkeys(spec.text_column_name, f"It is number {i}.") for i in range(number)]
        data = [text | {spec.label_column_name: i % 2} for i, text in enumerate(texts)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data), encoding="utf-8")
    return {
        "model_name_or_path": str(folder / "t5"),
        "dataset_dir": str(folder),
        "output_dir": str(folder / "runs"),
        "max_target_length": 32,  # the tiny vocabulary spells the labels out
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "max_steps": 2,
        "eval_steps": 2,
        "save_steps": 2,
        "bf16": False,
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
    }


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

    def test_every_task_with_training_data_has_a_sweep(self):
        swept = {
            (sweep["parameters"]["benchmark"]["value"], sweep["parameters"]["dataset_name"]["value"])
            for sweep in map(read, SWEEPS)
            if "benchmark" in sweep["parameters"]
        }
        expected = {(benchmark, name) for benchmark, entries in BENCHMARKS.items() for name in entries}
        expected -= {pair for pair in expected if pair[0] in ("discourse", "python")}  # made of any text
        self.assertEqual(swept, expected - {("glue", "ax")})  # which has no training data

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

    def test_sweeps_over_given_checkpoints(self):
        generate = load_script("sweeps/generate.py")
        with tempfile.TemporaryDirectory() as folder:
            generate.main(["--models", "runs/depth", "runs/t5", "--output_dir", f"{folder}/mine"])
            written = {str(path.relative_to(folder)): read(path) for path in Path(folder).rglob("*.yaml")}
        self.assertLen(written, len(SWEEPS) - 1)  # all but pre-training
        sweep = written["mine/glue/rte.yaml"]
        self.assertEqual(sweep["parameters"]["model_name_or_path"], {"values": ["runs/depth", "runs/t5"]})
        self.assertNotIn("model_type", sweep["parameters"])  # each checkpoint has its own
        self.assertEqual(sweep["parameters"]["output_dir"], {"value": "runs/mine/glue/rte"})

    def test_a_folder_without_checkpoints_is_refused(self):
        generate = load_script("sweeps/generate.py")
        with mock.patch.object(Path, "write_text") as write, self.assertRaises(SystemExit):
            generate.main(["--output_dir", "mine"])  # wrote over the recipes and sweeps of the repository
        write.assert_not_called()


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
        self.assertEqual(set(sweep["metric"]), {"name", "goal"})
        self.assertIn(sweep["metric"]["goal"], ("maximize", "minimize"))
        self.assertEqual(sweep["command"][:3], ["${env}", "accelerate", "launch"])
        self.assertEqual(sweep["command"][-1], "${args}")
        for name, parameter in sweep["parameters"].items():
            with self.subTest(name):
                if "distribution" in parameter:
                    self.assertEqual(parameter["distribution"], "log_uniform_values")
                    for end in ("min", "max"):  # YAML reads 1e-5, without a point, as text
                        self.assertIsInstance(parameter[end], float)
                else:
                    self.assertLen(parameter, 1)
                    self.assertNotEmpty(choices(parameter))

    @parameterized.named_parameters(*named(SWEEPS))
    def test_the_script_accepts_the_command_of_the_agent(self, path):
        sweep = read(path)
        most = max(len(choices(parameter)) for parameter in sweep["parameters"].values())
        for number in range(most):  # each value of each parameter at least once
            values = {name: choices(p)[min(number, len(choices(p)) - 1)] for name, p in sweep["parameters"].items()}
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

    @parameterized.parameters("rte", "mnli")
    def test_the_script_logs_the_metric(self, name):
        sweep = read(ROOT / f"sweeps/glue/{name}.yaml")
        with tempfile.TemporaryDirectory() as folder:
            changes = tiny_run(Path(folder), get_task(name, "glue"))
            command = agent_command(sweep, **changes, do_train=False)
            program, recipe, *flags = command[command.index(sweep["program"]) :]
            metrics = load_script(program).main([str(ROOT / recipe), *flags]).evaluate()
        self.assertIn(sweep["metric"]["name"].replace("/", "_", 1), metrics)

    @parameterized.parameters("depth", "t5")
    def test_pretraining_logs_its_metric_for_both_types_of_model(self, kind):
        name = read(ROOT / "sweeps/pretrain.yaml")["metric"]["name"]
        with tempfile.TemporaryDirectory() as folder:
            trainer = tiny_training.trainer(kind, folder, number_of_rows=4)
            metrics = trainer.evaluate(trainer.train_dataset)
        self.assertIn(name.replace("/", "_", 1), metrics)


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

    def test_the_settings_of_nanot5_are_those_that_it_publishes(self):
        path = str(ROOT / "examples/configs/recipes/pretrain_nanot5.yaml")
        parts = parse_arguments(script_arguments("examples/pretrain_t5.py"), [path, "--use_cpu", "true"])
        values = {key: value for part in parts for key, value in vars(part).items()}
        batch = values["per_device_train_batch_size"] * values["gradient_accumulation_steps"]
        self.assertEqual((batch, values["max_steps"], values["warmup_steps"]), (256, 53_332, 6666))
        self.assertEqual((values["optim"], values["learning_rate"]), ("adamw_scale", 2e-2))
        schedule = (values["lr_scheduler_type"], values["lr_scheduler_kwargs"])
        self.assertEqual(schedule, ("cosine_with_min_lr", {"min_lr": 1e-5}))
        self.assertEqual((values["max_source_length"], values["max_target_length"]), (512, 114))
        self.assertEqual((values["model_type"], values["mlm_probability"], values["dropout_rate"]), ("t5", 0.15, 0.0))

    def test_pythons_own_documentation_fills_the_vocabularies_of_the_cpu_recipes(self):
        documents = concatenate_datasets(list(load_corpus().values()))
        texts = documents["text"][::2]  # other versions of Python have less of it
        overrides = [read(recipe).get("config_overrides", {}) for recipe in RECIPES]
        sizes = [one["vocab_size"] for one in overrides if "vocab_size" in one]
        train_tokenizer(texts, max(sizes))  # what fills the largest one fills the others


class AgentTest(parameterized.TestCase):
    def test_the_command_of_the_agent_runs_and_logs_offline(self):
        sweep = read(ROOT / "sweeps/glue/rte.yaml")
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            changes = tiny_run(folder, get_task("rte", "glue")) | {"model_type": "depth", "report_to": "wandb"}
            environment = os.environ | {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                "OMP_NUM_THREADS": "1",
                "WANDB_MODE": "offline",
                "WANDB_DIR": str(folder),
                "WANDB_SWEEP_ID": "s1",
                "WANDB_RUN_ID": "r1",
            }
            command = agent_command(sweep, **changes)
            result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
            self.assertEqual(result.returncode, 0, result.stderr[-3000:])
            results = json.loads((folder / "runs/r1/all_results.json").read_text(encoding="utf-8"))
            (run,) = folder.glob("wandb/offline-run-*-r1/*.wandb")
            log = run.read_bytes()
        metric = sweep["metric"]["name"]
        self.assertIn(metric.replace("/", "_", 1), results)
        self.assertIn(metric.encode(), log)


class SlurmTest(parameterized.TestCase):
    """Runs the batch scripts with fakes of the commands of SLURM, of `accelerate` and of `wandb`."""

    def run_script(self, name, *args, srun='while [[ $1 == --* ]]; do shift; done\nexec "$@"', **environment):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        folder = Path(folder.name)
        commands = {
            "srun": srun,
            "scontrol": 'echo "$@" > "$RECORD.requeue"',
            "accelerate": 'printf "%s\\n" "$@" > "$RECORD"',
            "wandb": 'printf "%s\\n" "$@" > "$RECORD"',
        }
        for command, body in commands.items():
            (folder / command).write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
            (folder / command).chmod(0o755)
        environment = {
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "RECORD": str(folder / "record"),
            "SLURM_JOB_ID": "1234567",
            "SLURM_JOB_NAME": "fine_tune",
            "SLURM_CPUS_PER_TASK": "8",
            "SLURM_GPUS_ON_NODE": "1",
        } | environment
        script = ROOT / "examples/slurm" / name
        result = subprocess.run(["bash", script, *args], env=environment, cwd=ROOT, capture_output=True, text=True)
        return result, folder / "record"

    @parameterized.parameters(
        ("1", {}, "single.yaml", 1),
        ("4", {}, "multi_gpu.yaml", 4),
        ("1", {"ACCELERATE_CONFIG": "examples/accelerate/zero2.yaml"}, "zero2.yaml", 1),
        ("4", {"ACCELERATE_CONFIG": "examples/accelerate/zero2.yaml"}, "zero2.yaml", 4),
    )
    def test_fine_tuning_uses_the_gpus_of_the_job(self, gpus, environment, config, processes):
        args = ("examples/configs/recipes/rte.yaml", "--model_name_or_path", "runs/depth")
        result, record = self.run_script("fine_tune.sbatch", *args, SLURM_GPUS_ON_NODE=gpus, **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        command, *flags = record.read_text(encoding="utf-8").splitlines()
        self.assertEqual(command, "launch")
        launch = launch_command_parser().parse_args(flags)
        self.assertEqual(Path(launch.config_file), Path("examples/accelerate") / config)
        self.assertTrue((ROOT / launch.config_file).is_file())
        self.assertEqual(launch.num_processes, processes)
        self.assertEqual(launch.training_script, "examples/fine_tune_t5.py")
        self.assertEqual(tuple(launch.training_script_args), args)

    def test_each_job_of_an_array_has_its_seed_and_folder(self):
        array = {"SLURM_ARRAY_TASK_ID": "43", "SLURM_ARRAY_JOB_ID": "7"}
        _, record = self.run_script("fine_tune.sbatch", "examples/configs/recipes/rte.yaml", **array)
        flags = record.read_text(encoding="utf-8").splitlines()
        self.assertEqual(flags[-4:], ["--seed", "43", "--output_dir", "runs/fine_tune_7/seed-43"])
        launch = launch_command_parser().parse_args(flags[1:])
        types = script_arguments("examples/fine_tune_t5.py")
        *_, args = parse_arguments(types, [*launch.training_script_args, "--use_cpu", "true", "--bf16", "false"])
        self.assertEqual((args.seed, args.output_dir), (43, "runs/fine_tune_7/seed-43"))

    @parameterized.parameters((("--output_dir", "my runs/rte"),), (("--output-dir=my runs/rte", "--max_steps", "7"),))
    def test_an_array_is_written_to_the_folder_that_is_given(self, given):
        array = {"SLURM_ARRAY_TASK_ID": "43", "SLURM_ARRAY_JOB_ID": "7"}
        _, record = self.run_script("fine_tune.sbatch", "examples/configs/recipes/rte.yaml", *given, **array)
        self.assertEqual(record.read_text(encoding="utf-8").splitlines()[-1], "my runs/rte/seed-43")

    def test_of_an_array_only_the_job_that_was_interrupted_is_requeued(self):
        # Of the last task of an array the job has the id of the whole array.
        array = {"SLURM_ARRAY_TASK_ID": "46", "SLURM_ARRAY_JOB_ID": "1234567"}
        _, record = self.run_script("fine_tune.sbatch", "recipe.yaml", srun="exit 85", **array)
        self.assertEqual(record.with_suffix(".requeue").read_text(encoding="utf-8"), "requeue 1234567_46\n")

    def test_fine_tuning_is_requeued_before_its_time_limit(self):
        # As a run does that saves a checkpoint. A process that it left behind would keep the output of the job open.
        srun = "trap 'kill $!; exit 85' USR1\nkill -USR1 \"$PPID\"\nsleep 60 &\nwait $!"
        _, record = self.run_script("fine_tune.sbatch", "recipe.yaml", srun=srun)
        self.assertEqual(record.with_suffix(".requeue").read_text(encoding="utf-8"), "requeue 1234567\n")

    def test_a_failure_of_the_run_is_the_failure_of_the_job(self):
        result, _ = self.run_script("fine_tune.sbatch", "recipe.yaml", srun="exit 3")
        self.assertEqual(result.returncode, 3)

    def test_a_sweep_starts_agents(self):
        result, record = self.run_script("sweep.sbatch", "me/hf_depth/s1", "--count", "5")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(record.read_text(encoding="utf-8").split(), ["agent", "--count", "5", "me/hf_depth/s1"])

    def test_a_sweep_without_a_name_prints_the_usage(self):
        result, record = self.run_script("sweep.sbatch")
        self.assertEqual(result.returncode, 2)
        self.assertIn("ENTITY/PROJECT/ID", result.stderr)
        self.assertFalse(record.exists())
