"""The comparison of checkpoints: which runs it plans, executes, skips and refuses."""

import contextlib
import io
import json
import os
import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

from absl.testing import parameterized

from helpers import ROOT
from hf_depth.arguments.compare_args import CompareArguments
from hf_depth.evaluation import comparison as reports
from hf_depth.tasks.registry import get_task
from hf_depth.training import comparison
from hf_depth.training.comparison import Comparison, find_checkpoints, find_recipe
from tiny_training import save_pretraining, tiny_model

RECIPES = ROOT / "examples/configs/recipes"
# A stand-in for the fine-tuning process: it is given the script, the configuration file and the flags of a run.
LAUNCHER = """\
import json, pathlib, sys
flags = dict(zip(sys.argv[3::2], sys.argv[4::2]))
with open("calls.txt", "a") as file:
    file.write(flags["--output_dir"] + "\\n")
if pathlib.Path("broken").exists() and flags["--dataset_name"] in pathlib.Path("broken").read_text():
    sys.exit("a disk is full")
folder = pathlib.Path(flags["--output_dir"])
(folder / "checkpoint-2").mkdir(exist_ok=True)
(folder / "model.safetensors").write_text("weights")
step = int("".join(filter(str.isdigit, flags["--model_name_or_path"].rpartition("-")[2])) or 0)
results = {"eval_accuracy": step / 100 + int(flags["--seed"]) / 10}
(folder / "all_results.json").write_text(json.dumps(results))
"""
# What a probe leaves beside them.
RANDOM_WEIGHTS = """
(folder / "all_results.json").write_text(json.dumps(results | {"eval_random_weights_accuracy": 0.25}))
"""


class ComparisonTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        # Drawing takes longer than all the rest.
        self.enter_context(mock.patch.object(reports, "score_figure"))
        Path("launcher.py").write_text(LAUNCHER)
        save_pretraining(Path("runs/depth"), 10, 40, kind="depth")
        save_pretraining(Path("runs/t5"), 10, 40)

    def comparison(self, flags=(), tasks=("glue/rte", "disco_eval/SParxiv"), models=("depth", "t5"), **arguments):
        arguments = CompareArguments(
            checkpoints=[f"{name}=runs/{name}" for name in models],
            tasks=list(tasks),
            output_dir="out",
            launcher=shlex.join([sys.executable, "launcher.py"]),
            **arguments,
        )
        return Comparison(arguments, "fine_tune.py", RECIPES, ["--use_cpu", "true", *flags])

    def execute(self, *args, **kwargs):
        """Executes what is pending; returns the results and the number of failures."""
        comparison = self.comparison(*args, **kwargs)
        failed = comparison.execute(comparison.pending_runs())
        return comparison.collect(), len(failed)

    def calls(self):
        return Path("calls.txt").read_text().splitlines() if Path("calls.txt").exists() else []

    def test_every_checkpoint_meets_every_task(self):
        results, _ = self.execute(seeds=[3])
        self.assertLen(self.calls(), 8)
        self.assertLen(set(self.calls()), 8)
        scores = {(result.model, result.step, result.task): result.score for result in results}
        self.assertLen(scores, 8)
        self.assertAlmostEqual(scores["depth", 40, "glue/rte"], 0.7)
        self.assertAlmostEqual(scores["t5", 10, "disco_eval/SParxiv"], 0.4)
        self.assertTrue(Path("out/results.csv").is_file())

    def test_every_seed_has_a_run(self):
        comparison = self.comparison(seeds=[1, 2], tasks=["glue/rte"], models=["t5"])
        folders = [str(run.folder) for run in comparison.runs]
        self.assertEqual(folders, [f"out/t5/step-{n}/glue/rte/seed-{seed}" for n in (10, 40) for seed in (1, 2)])

    def test_the_command_fills_in_the_task(self):
        comparison = self.comparison(flags=["--dataset_dir", "my data/{benchmark}/{task}"])
        self.assertLen(comparison.runs, 8)
        for run in comparison.runs:
            _, _, script, recipe, *flags = comparison.command(run)
            self.assertEqual(script, "fine_tune.py")
            flags = dict(zip(flags[::2], flags[1::2], strict=True))
            task = flags["--benchmark"] + "/" + flags["--dataset_name"]
            self.assertEqual(flags["--dataset_dir"], f"my data/{task}")
            self.assertEqual(Path(recipe), RECIPES / {"glue/rte": "rte.yaml"}.get(task, "disco_eval.yaml"))
        steps = [run.checkpoint.step for run in comparison.runs]
        self.assertEqual(steps, sorted(steps))  # the first results are of all models

    def test_probes_are_runs_with_random_weights_as_step_0(self):
        with open("launcher.py", "a") as file:
            file.write(RANDOM_WEIGHTS)
        results, _ = self.execute(tasks=["glue/rte"], models=["t5"], prediction_mode="probe")
        self.assertLen(self.calls(), 2)
        for run in self.comparison(tasks=["glue/rte"], models=["t5"], prediction_mode="probe").runs:
            self.assertIn("--prediction_mode probe", " ".join(run.arguments))
        self.assertEqual([(result.step, result.score) for result in results][-1], (0, 0.25))
        self.assertLen(results, 3)

    def test_a_configuration_of_ones_own_fills_in_the_task(self):
        Path("own-rte.yaml").write_text((RECIPES / "rte.yaml").read_text())
        (run, _) = self.comparison(config="own-{task}.yaml", tasks=["glue/rte"], models=["t5"]).runs
        self.assertEqual(run.arguments[0], "own-rte.yaml")

    def test_finished_runs_are_not_run_again(self):
        self.execute(tasks=["glue/rte"], models=["t5"])
        results, _ = self.execute()
        self.assertLen(self.calls(), 8)
        self.assertLen(set(self.calls()), 8)
        self.assertLen(results, 8)

    def test_a_failed_run_does_not_stop_the_others_and_is_tried_again(self):
        Path("broken").write_text("rte")
        with self.assertLogs("hf_depth.training.comparison", "ERROR") as logs:
            results, failed = self.execute()
        self.assertIn("a disk is full", logs.output[0])
        self.assertEqual((len(results), failed), (4, 4))
        Path("broken").unlink()
        results, failed = self.execute()
        self.assertEqual((len(results), failed), (8, 0))
        self.assertLen(self.calls(), 12)

    def test_a_kill_while_a_record_is_written_leaves_the_comparison_readable(self):
        Path("broken").write_text("rte")
        self.execute(tasks=["glue/rte"], models=["t5"])
        Path("broken").unlink()
        before = [path.read_text() for path in Path("out").rglob("comparison.json")]
        with mock.patch("os.replace", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            self.execute(tasks=["glue/rte"], models=["t5"])
        self.assertEqual([path.read_text() for path in Path("out").rglob("comparison.json")], before)
        results, failed = self.execute(tasks=["glue/rte"], models=["t5"])
        self.assertEqual((len(results), failed), (2, 0))

    def test_other_arguments_do_not_mix_with_earlier_results(self):
        self.execute(tasks=["glue/rte"], models=["t5"])
        with self.assertRaisesRegex(ValueError, "out/t5/step-10/glue/rte/seed-42 holds a run with other arguments"):
            self.execute(tasks=["glue/rte"], models=["t5"], flags=["--max_steps", "7"])
        self.assertLen(self.calls(), 2)

    def test_scores_of_another_version_of_a_task_do_not_mix(self):
        arguments = {"tasks": ["glue/rte"], "models": ["t5"]}
        self.execute(**arguments)
        task = replace(get_task("glue/rte"), version=2)
        with mock.patch.object(comparison, "get_task", return_value=task):
            with self.assertRaisesRegex(ValueError, "holds a run with other task_version 1 .now 2."):
                self.execute(**arguments)
            self.execute(**arguments, seeds=[3])
            self.assertLen(self.calls(), 4)
            self.execute(**arguments, seeds=[3])
        self.assertLen(self.calls(), 4)

    def test_another_text_of_the_configuration_is_another_argument(self):
        Path("own.yaml").write_text((RECIPES / "rte.yaml").read_text())
        self.execute(config="own.yaml", tasks=["glue/rte"], models=["t5"])
        with open("own.yaml", "a") as file:
            file.write("seed: 7\n")
        with self.assertRaisesRegex(ValueError, "holds a run with other arguments"):
            self.comparison(config="own.yaml", tasks=["glue/rte"], models=["t5"]).pending_runs()

    def test_scores_of_other_weights_by_the_same_name_are_refused(self):
        self.execute(tasks=["glue/rte"], models=["t5"])
        Path("runs/t5/checkpoint-10/training_args.bin").touch()  # no weights
        self.assertEmpty(self.comparison(tasks=["glue/rte"], models=["t5"]).pending_runs())
        tiny_model("t5", seed=1).save_pretrained("runs/t5/checkpoint-10")
        with self.assertRaisesRegex(ValueError, "step-10/glue/rte/seed-42 holds a run with other weights"):
            self.comparison(tasks=["glue/rte"], models=["t5"]).pending_runs()

    @parameterized.parameters("--train_file", "--dataset_dir")
    def test_scores_on_other_data_by_the_same_name_are_refused(self, flag):
        Path("data/rte").mkdir(parents=True)
        file = Path("data/rte/train.jsonl")
        file.write_text("{}")
        given = {"flags": [flag, str(file if flag == "--train_file" else "data")]}
        self.execute(tasks=["glue/rte"], models=["t5"], **given)
        file.touch()
        Path("data/.cache").mkdir()
        Path("data/.cache/rte.metadata").write_text("when it was downloaded")
        self.assertEmpty(self.comparison(tasks=["glue/rte"], models=["t5"], **given).pending_runs())
        file.write_text("{ }")
        with self.assertRaisesRegex(ValueError, f"seed-42 holds a run with other files .*{flag[2:]}"):
            self.comparison(tasks=["glue/rte"], models=["t5"], **given).pending_runs()

    @parameterized.parameters("--train_file", "--dataset_dir")
    def test_tasks_that_would_read_the_same_file_are_refused(self, flag):
        Path("data/glue/rte").mkdir(parents=True)
        Path("data/glue/wnli").mkdir()
        file = Path("data/glue/rte/train.jsonl")
        file.write_text("{}")
        given = {"flags": [flag, str(file if flag == "--train_file" else file.parent)]}
        with self.assertRaisesRegex(
            ValueError, f"`{flag[2:]}`: the tasks 'glue/rte' and 'glue/wnli' would both .*rte"
        ):
            self.comparison(tasks=["glue/rte", "glue/wnli"], **given)
        Path("data/glue/wnli/train.jsonl").write_text("{}")
        for template in ("data/{benchmark}", "data/glue/{task}"):
            self.assertLen(self.comparison(tasks=["glue/rte", "glue/wnli"], flags=["--dataset_dir", template]).runs, 8)

    @parameterized.parameters(
        ("-1", "true", "labels of its test data"),
        ("1", "false", "test data that is predicted"),
        ("1", "true", None),
    )
    def test_a_task_without_a_score_is_refused_before_the_first_run(self, label, do_predict, message):
        Path("data").mkdir()
        Path("data/ax.jsonl").write_text(f'{{"premise": "A.", "hypothesis": "B.", "label": {label}}}')
        given = {"tasks": ["glue/ax"], "config": str(RECIPES / "mnli.yaml")}
        flags = ["--test_file", "data/ax.jsonl", "--cache_dir", "cache", "--do_predict", do_predict]
        if message is None:
            self.assertLen(self.comparison(flags=flags, **given).runs, 4)
            return
        with self.assertRaisesRegex(ValueError, f"`--tasks glue/ax`: there is no score .*{message}"):
            self.comparison(flags=flags, **given)

    def test_a_run_whose_score_cannot_be_read_does_not_stop_the_others(self):
        launcher = Path("launcher.py")
        launcher.write_text(
            LAUNCHER.replace("results = {", 'results = {"train_loss": 1.0} if flags["--dataset_name"] == "rte" else {')
        )
        with self.assertLogs(comparison.logger, "ERROR") as logs:
            results, failed = self.execute(models=["t5"])
        self.assertEqual([(result.task, failed) for result in results], [("disco_eval/SParxiv", 0)] * 2)
        self.assertIn("t5 at step 10 on glue/rte, seed 42: no accuracy in", logs.output[0])
        self.assertLen(self.calls(), 4)
        self.assertLen(self.execute(models=["t5"])[0], 2)
        self.assertLen(self.calls(), 4)

    def test_a_record_of_an_older_release_that_states_less_counts(self):
        self.execute(tasks=["glue/rte"], models=["t5"])
        for path in Path("out").rglob("comparison.json"):
            record = json.loads(path.read_text())
            record["run"] = {name: record["run"][name] for name in ("arguments", "config")}
            path.write_text(json.dumps(record))
        self.assertEmpty(self.comparison(tasks=["glue/rte"], models=["t5"]).pending_runs())

    def test_a_run_that_is_tried_again_has_no_metrics_of_before(self):
        folder = Path("out/t5/step-10/glue/rte/seed-42")
        folder.mkdir(parents=True)
        (folder / "all_results.json").write_text('{"predict_accuracy": 0.9}')
        adding = LAUNCHER.replace("results = {", 'path = folder / "all_results.json"\nresults = {').replace(
            "results))", "results | (json.loads(path.read_text()) if path.exists() else {})))"
        )
        Path("launcher.py").write_text(adding)
        results, _ = self.execute(tasks=["glue/rte"], models=["t5"], steps=[10])
        self.assertEqual([result.score for result in results], [0.1 + 4.2])

    def test_the_arguments_of_a_failed_run_can_be_corrected(self):
        Path("broken").write_text("rte")
        with self.assertLogs("hf_depth.training.comparison", "ERROR"):
            self.execute(tasks=["glue/rte"], models=["t5"])
        Path("broken").unlink()
        results, _ = self.execute(tasks=["glue/rte"], models=["t5"], flags=["--max_steps", "7"])
        self.assertLen(self.calls(), 4)
        self.assertLen(results, 2)

    def test_other_arguments_do_not_continue_the_training_of_a_failed_run(self):
        Path("broken").write_text("rte")
        with self.assertLogs("hf_depth.training.comparison", "ERROR"):
            self.execute(tasks=["glue/rte"], models=["t5"])
        Path("out/t5/step-40/glue/rte/seed-42/checkpoint-2").mkdir()
        with self.assertRaisesRegex(ValueError, "out/t5/step-40/glue/rte/seed-42 holds a run with other arguments"):
            self.execute(tasks=["glue/rte"], models=["t5"], flags=["--max_steps", "7"])
        self.assertLen(self.calls(), 2)

    def test_jobs_share_the_runs_and_each_reports_all(self):
        self.execute(shard="0/3")
        self.assertLen(self.calls(), 3)
        self.execute(shard="1/3")
        results, _ = self.execute(shard="2/3")
        self.assertLen(self.calls(), 8)
        self.assertLen(set(self.calls()), 8)
        self.assertLen(results, 8)

    @parameterized.parameters((False, set()), (True, {"model.safetensors"}))
    def test_models_are_kept_on_request(self, keep, expected):
        self.execute(keep_models=keep, tasks=["glue/rte"], models=["t5"])
        left = {path.name for path in Path("out/t5/step-10/glue/rte/seed-42").iterdir()}
        self.assertEqual(left - {"log.txt", "comparison.json", "all_results.json"}, expected)

    def test_chosen_steps(self):
        self.assertEqual({run.checkpoint.step for run in self.comparison(steps=[40]).runs}, {40})
        with self.assertRaisesRegex(ValueError, "--steps 30.*runs/depth has no such checkpoint, but 10, 40"):
            self.comparison(steps=[30])


class PlanErrorsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        save_pretraining(Path("runs/t5"), 10)
        Path("empty").mkdir()

    @parameterized.named_parameters(
        ("no_name", {"checkpoints": "runs/t5"}, "NAME=PATH.*'runs/t5'"),
        ("no_model", {"checkpoints": "t5=empty"}, "neither empty nor a checkpoint-N in it has a config.json"),
        ("no_folder", {"checkpoints": "t5=nowhere/t5"}, "nowhere/t5 is neither a folder nor a model of the Hub"),
        ("same_step_twice", {"checkpoints": "t5=runs/t5 t5=runs/t5"}, "both step 10 of 't5'.*different names"),
        ("no_benchmark", {"tasks": "rte"}, "BENCHMARK/TASK.*'rte'"),
        ("no_such_task", {"tasks": "glue/rtf"}, "(?s)rtf.*rte"),
        ("no_such_benchmark", {"tasks": "gleu/rte2"}, "no recipe for gleu/rte2 in .*`--config`.*'glue'"),
        (
            "no_recipe_for_a_task_of_ones_own",
            {"tasks": "custom/movie", "flags": "--task_file movie.yaml"},
            "give a `--config`. .If no `--task_file` behind `--` describes the task: There is no benchmark 'custom'",
        ),
        ("misspelt_flag", {"flags": "--max_step 3"}, "max_step.*did you mean `--max_steps`"),
        ("set_for_each_run", {"flags": "--output_dir x"}, "--output_dir.*is set for each run"),
        ("set_for_each_run_and_joined", {"flags": "--output-dir=x"}, "--output_dir.*is set for each run"),
        (
            "no_score",
            {"flags": "--eval_strategy no --load_best_model_at_end false --do_eval false"},
            "without `do_eval: true` there is no score",
        ),
    )
    def test_errors_come_before_anything_is_run(self, changes, message):
        values = {"checkpoints": "t5=runs/t5", "tasks": "glue/rte", "flags": ""} | changes
        arguments = CompareArguments(values["checkpoints"].split(), values["tasks"].split(), output_dir="out")
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            with self.assertRaises((ValueError, SystemExit)) as error:
                Comparison(arguments, "fine_tune.py", RECIPES, ["--use_cpu", "true", *values["flags"].split()])
        self.assertRegex(f"{error.exception} {stderr.getvalue()}", message)
        self.assertFalse(Path("out").exists())


class FindRecipeTest(parameterized.TestCase):
    @parameterized.parameters(("glue", "rte", "rte.yaml"), ("disco_eval", "DCwiki", "disco_eval.yaml"))
    def test_a_task_without_a_recipe_has_that_of_its_benchmark(self, benchmark, task, expected):
        self.assertEqual(find_recipe(benchmark, task, RECIPES), str(RECIPES / expected))


class FindCheckpointsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    @parameterized.parameters(
        ((100, 20, 3), None, [3, 20, 100]),
        ((2, 4), 4, [2, 4]),  # the model in the folder of the run is that of its last checkpoint
        ((2, 4), 5, [2, 4, 5]),
        ((), 7, [7]),
    )
    def test_a_folder_of_a_run_stands_for_its_checkpoints(self, steps, final, expected):
        save_pretraining(self.folder, *steps, final=final)
        (self.folder / "checkpoint-999").mkdir()  # was not written to its end
        found = find_checkpoints(f"mine={self.folder}")
        self.assertEqual([checkpoint.step for checkpoint in found], expected)
        self.assertEqual({checkpoint.series for checkpoint in found}, {"mine"})

    def test_a_checkpoint_without_a_state_has_the_step_of_its_name(self):
        save_pretraining(self.folder, 30)
        (self.folder / "checkpoint-30/trainer_state.json").unlink()
        (checkpoint,) = find_checkpoints(f"mine={self.folder}")
        self.assertEqual(checkpoint.step, 30)

    @parameterized.parameters((False, [2, 4]), (True, [2, 4, None]))
    def test_a_model_without_a_state_counts_once(self, is_another, expected):
        save_pretraining(self.folder, 2, 4, final=4)
        (self.folder / "trainer_state.json").unlink()  # as after `trainer.save_model()`
        if is_another:
            tiny_model("t5", seed=7).save_pretrained(self.folder)
        found = find_checkpoints(f"mine={self.folder}")
        self.assertEqual([checkpoint.step for checkpoint in found], expected)

    def test_a_model_with_an_unknown_number_of_steps(self):
        save_pretraining(self.folder, final=1)
        (self.folder / "trainer_state.json").unlink()
        (checkpoint,) = find_checkpoints(f"mine={self.folder}", steps=[5])
        self.assertIsNone(checkpoint.step)
