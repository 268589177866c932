"""The comparison of checkpoints: what it runs, what it skips, and the tables it makes of the scores."""

import contextlib
import csv
import importlib.util
import io
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from unittest import mock

from absl.testing import parameterized

import tiny_training
from helpers import ROOT, process_environment, tiny_tokenizer

# Stands for a process that fine-tunes: what is run is the launcher, this script, and the arguments of the run.
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
score = step / 100 + int(flags["--seed"]) / 10
results = {"eval_accuracy": score, "eval_majority_accuracy": 0.6, "eval_chance_accuracy": 0.5}
if flags["--dataset_name"] == "SParxiv":
    results |= {"predict_accuracy": score + 0.05, "predict_chance_accuracy": 0.2, "predict_unparsed_fraction": 0.1}
(folder / "all_results.json").write_text(json.dumps(results))
"""
NO_EVALUATION = "--do_eval false --eval_strategy no --load_best_model_at_end false"


def load_script():
    specification = importlib.util.spec_from_file_location("compare_checkpoints", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    sys.modules["compare_checkpoints"] = module  # dataclasses look it up
    specification.loader.exec_module(module)
    return module


SCRIPT = ROOT / "examples/compare_checkpoints.py"
compare = load_script()


def save_run(folder, *steps, kind="t5", final=None):
    """Checkpoints as pre-training leaves them, of one tiny model."""
    model, tokenizer = tiny_training.tiny_model(kind), tiny_tokenizer(sentence_tokens=kind == "depth")
    places = {folder / f"checkpoint-{step}": step for step in steps}
    if final is not None:
        places[folder] = final
    for place, step in places.items():
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)
        (place / "trainer_state.json").write_text(json.dumps({"global_step": step}))


class CompareTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        # Drawing takes longer than all the rest.
        self.figure = self.enter_context(mock.patch.object(compare, "score_figure"))
        Path("launcher.py").write_text(LAUNCHER)
        save_run(Path("runs/depth"), 10, 40, kind="depth")
        save_run(Path("runs/t5"), 10, 40)

    def run_script(self, *args, flags=(), tasks=("glue/rte", "disco_eval/SParxiv"), models=("depth", "t5")):
        own = ["--checkpoints", *(f"{name}=runs/{name}" for name in models), "--tasks", *tasks, "--output_dir", "out"]
        launcher = shlex.join([sys.executable, "launcher.py"])
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(output):
            flags = ["--", "--use_cpu", "true", *flags]
            self.results = compare.main([*own, "--launcher", launcher, *args, *flags])
        return output.getvalue()

    def calls(self):
        return Path("calls.txt").read_text().splitlines() if Path("calls.txt").exists() else []

    def table(self):
        with open("out/results.csv", newline="") as file:
            return list(csv.DictReader(file))

    def test_every_checkpoint_meets_every_task(self):
        self.run_script()
        self.assertLen(self.calls(), 8)
        self.assertLen(set(self.calls()), 8)
        scores = {(row["model"], row["step"], row["task"]): row for row in self.table()}
        self.assertLen(scores, 8)
        row = scores["depth", "40", "glue/rte"]
        self.assertEqual((row["split"], row["metric"], row["seed"]), ("validation", "accuracy", "42"))
        self.assertAlmostEqual(float(row["score"]), 4.6)
        self.assertEqual((row["majority"], row["chance"], row["unparsed_fraction"]), ("0.6", "0.5", ""))
        row = scores["t5", "10", "disco_eval/SParxiv"]  # its test data have labels
        self.assertEqual((row["split"], row["chance"], row["unparsed_fraction"]), ("test", "0.2", "0.1"))
        self.assertAlmostEqual(float(row["score"]), 4.35)
        self.figure.assert_called_with(self.results)
        self.assertEqual(self.figure().savefig.call_args.args, (Path("out/scores.png"),))

    def test_the_table_has_t5_beside_depth_and_chance_below(self):
        self.run_script("--seeds", "1", "2")
        lines = Path("out/results.md").read_text().splitlines()
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
        tasks = ("glue/rte", "disco_eval/SParxiv")
        self.assertEqual(head, ["steps", *(f"{task}<br>{model}" for task in tasks for model in ("depth", "t5"))])
        self.assertEqual([row[0] for row in rows], ["10", "40", "majority", "chance"])
        self.assertEqual(rows[0][1], "0.2500 ± 0.0707")  # seeds 1 and 2: 0.2 and 0.3
        self.assertEqual(rows[2][1:], ["0.6000", "0.6000", "", ""])
        self.assertEqual(rows[3][1:], ["0.5000", "0.5000", "0.2000", "0.2000"])

    def test_finished_runs_are_not_run_again(self):
        self.run_script(tasks=["glue/rte"], models=["t5"])
        self.run_script(tasks=["glue/rte", "disco_eval/SParxiv"])
        self.assertLen(self.calls(), 8)
        self.assertLen(set(self.calls()), 8)
        self.assertLen(self.results, 8)

    def test_a_failed_run_does_not_stop_the_others_and_is_tried_again(self):
        Path("broken").write_text("rte")
        with self.assertLogs("compare_checkpoints", "ERROR") as logs:
            with self.assertRaisesRegex(SystemExit, "4 of 8 runs failed"):
                self.run_script()
        self.assertIn("a disk is full", logs.output[0])
        self.assertLen(self.table(), 4)
        Path("broken").unlink()
        self.run_script()
        self.assertLen(self.calls(), 12)
        self.assertLen(self.table(), 8)

    def test_other_arguments_do_not_mix_with_earlier_results(self):
        self.run_script()
        with self.assertRaisesRegex(ValueError, "out/depth/step-10/glue/rte/seed-42 holds a run with other arguments"):
            self.run_script(flags=["--max_steps", "7"])
        self.assertLen(self.calls(), 8)

    def test_the_arguments_of_a_failed_run_can_be_corrected(self):
        Path("broken").write_text("rte")
        with self.assertLogs("compare_checkpoints", "ERROR"), self.assertRaises(SystemExit):
            self.run_script(tasks=["glue/rte"], models=["t5"])
        Path("broken").unlink()
        self.run_script(tasks=["glue/rte"], models=["t5"], flags=["--max_steps", "7"])
        self.assertLen(self.calls(), 4)
        self.assertLen(self.table(), 2)

    def test_other_arguments_do_not_go_on_with_the_training_of_a_failed_run(self):
        Path("broken").write_text("rte")
        with self.assertLogs("compare_checkpoints", "ERROR"), self.assertRaises(SystemExit):
            self.run_script(tasks=["glue/rte"], models=["t5"])
        Path("out/t5/step-40/glue/rte/seed-42/checkpoint-2").mkdir()
        with self.assertRaisesRegex(ValueError, "out/t5/step-40/glue/rte/seed-42 holds a run with other arguments"):
            self.run_script(tasks=["glue/rte"], models=["t5"], flags=["--max_steps", "7"])
        self.assertLen(self.calls(), 2)

    def test_jobs_share_the_runs_and_each_reports_all(self):
        self.run_script("--shard", "0/3")
        self.assertLen(self.calls(), 3)
        self.run_script("--shard", "1/3")
        self.run_script("--shard", "2/3")
        self.assertLen(set(self.calls()), 8)
        self.assertLen(self.calls(), 8)
        self.assertLen(self.table(), 8)

    @parameterized.parameters((False, set()), (True, {"model.safetensors"}))
    def test_models_are_kept_on_request(self, keep, expected):
        self.run_script("--keep_models", str(keep), tasks=["glue/rte"], models=["t5"])
        left = {path.name for path in Path("out/t5/step-10/glue/rte/seed-42").iterdir()}
        self.assertEqual(left - {"log.txt", "comparison.json", "all_results.json"}, expected)

    def test_a_dry_run_prints_commands_that_a_shell_can_run(self):
        output = self.run_script("--dry_run", flags=["--dataset_dir", "my data/{benchmark}/{task}"])
        self.assertEmpty(self.calls())
        self.assertFalse(Path("out").exists())
        commands = [shlex.split(line) for line in output.splitlines()]
        self.assertLen(commands, 8)
        for command in commands:
            self.assertEqual(command[2], str(compare.SCRIPT))
            flags = dict(zip(command[4::2], command[5::2], strict=True))
            task = flags["--benchmark"] + "/" + flags["--dataset_name"]
            self.assertEqual(flags["--dataset_dir"], f"my data/{task}")
            recipe = {"glue/rte": "rte.yaml", "disco_eval/SParxiv": "disco_eval.yaml"}[task]
            self.assertEqual(Path(command[3]).name, recipe)
        steps = [int(command[command.index("--model_name_or_path") + 1].rpartition("-")[2]) for command in commands]
        self.assertEqual(steps, sorted(steps))  # the first results are of all models

    def test_chosen_steps(self):
        self.run_script("--steps", "40", tasks=["glue/rte"])
        self.assertEqual({row["step"] for row in self.table()}, {"40"})
        with self.assertRaisesRegex(ValueError, "--steps 30.*runs/depth has no such checkpoint, but 10, 40"):
            self.run_script("--steps", "30")

    @parameterized.named_parameters(
        ("no_name", {"checkpoints": "runs/t5"}, "NAME=PATH.*'runs/t5'"),
        ("no_model", {"checkpoints": "t5=out"}, "neither out nor a checkpoint-N in it has a config.json"),
        ("no_folder", {"checkpoints": "t5=nowhere/t5"}, "nowhere/t5 is neither a folder nor a model of the Hub"),
        ("same_step_twice", {"checkpoints": "t5=runs/t5 t5=runs/t5"}, "both step 10 of 't5'.*different names"),
        ("no_benchmark", {"tasks": "rte"}, "BENCHMARK/TASK.*'rte'"),
        ("no_such_task", {"tasks": "glue/rtf"}, "(?s)rtf.*rte"),
        ("misspelt_flag", {"flags": "--max_step 3"}, "max_step.*did you mean `--max_steps`"),
        ("set_for_each_run", {"flags": "--output_dir x"}, "--output_dir.*is set for each run"),
        ("wrong_shard", {"shard": "3/3"}, "I/N with I below N, got '3/3'"),
        (
            "no_score",
            {"flags": "--eval_strategy no --load_best_model_at_end false --do_eval false"},
            "without `do_eval: true` there is no score",
        ),
    )
    def test_errors_come_before_anything_is_run(self, changes, message):
        Path("out").mkdir()
        values = {"checkpoints": "t5=runs/t5", "tasks": "glue/rte", "shard": "0/1", "flags": ""} | changes
        args = ["--checkpoints", *values["checkpoints"].split(), "--tasks", *values["tasks"].split()]
        args += ["--output_dir", "out", "--shard", values["shard"], "--", "--use_cpu", "true"]
        args += values["flags"].split()
        offline = mock.patch.dict(os.environ, {"HF_HUB_OFFLINE": "1"})
        with offline, contextlib.redirect_stderr(io.StringIO()) as stderr:
            with self.assertRaises((ValueError, SystemExit)) as error:
                compare.main(args)
        self.assertRegex(f"{error.exception} {stderr.getvalue()}", message)
        self.assertEmpty(self.calls())


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
        save_run(self.folder, *steps, final=final)
        (self.folder / "checkpoint-999").mkdir()  # was not written to its end
        found = compare.find_checkpoints(f"mine={self.folder}")
        self.assertEqual([checkpoint.step for checkpoint in found], expected)
        self.assertEqual({checkpoint.series for checkpoint in found}, {"mine"})

    def test_a_model_whose_steps_nobody_knows(self):
        save_run(self.folder, final=1)
        (self.folder / "trainer_state.json").unlink()
        (checkpoint,) = compare.find_checkpoints(f"mine={self.folder}", steps=[5])
        self.assertIsNone(checkpoint.step)


class FigureTest(parameterized.TestCase):
    def results(self, task, model, scores, **changes):
        fields = {"checkpoint": "c", "split": "test", "metric": "accuracy", "majority": 0.6, "chance": 0.5}
        fields |= {"unparsed_fraction": None, "folder": "f"} | changes
        return [
            compare.Result(model=model, task=task, step=step, seed=seed, score=score, **fields)
            for step, seeds in scores.items()
            for seed, score in enumerate(seeds)
        ]

    def test_a_panel_for_each_task_and_a_line_for_each_model(self):
        results = self.results("glue/rte", "depth", {1000: [0.7, 0.8], 10: [0.5]})
        results += self.results("glue/rte", "t5", {10: [0.4], 0: [0.2]})
        results += self.results("glue/cola", "t5", {10: [0.1], None: [0.9]}, majority=None, chance=None)
        figure = compare.score_figure(results)
        rte, cola = figure.axes
        self.assertEqual([panel.get_title() for panel in figure.axes], ["glue/rte", "glue/cola"])
        self.assertEqual([panel.get_xscale() for panel in figure.axes], ["log", "log"])
        lines = {bars.get_label(): bars.lines[0].get_xydata().tolist() for bars in rte.containers}
        self.assertEqual(lines, {"depth": [[10, 0.5], [1000, 0.75]], "t5": [[10, 0.4]]})
        (depth, _) = rte.containers
        low, high = depth.lines[2][0].get_segments()[1][:, 1]
        self.assertAlmostEqual((low, high), (0.7, 0.8))
        across = {line.get_label(): line.get_ydata()[0] for line in rte.lines if line.get_linestyle() != "None"}
        self.assertContainsSubset({"majority": 0.6, "chance": 0.5, "t5": 0.2}, across)
        self.assertIn(0.9, [line.get_ydata()[0] for line in cola.lines])
        (legend,) = figure.legends
        self.assertCountEqual([text.get_text() for text in legend.texts], ["depth", "t5", "majority", "chance"])


class WholeTest(parameterized.TestCase):
    def test_tiny_checkpoints_are_fine_tuned_and_compared(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            save_run(folder / "depth", 3, kind="depth")
            rows = [{"sentence1": f"It is {i}.", "sentence2": "No.", "label": i % 2} for i in range(6)]
            (folder / "rte").mkdir()
            for split in ("train", "validation"):
                (folder / f"rte/{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            args = f"--checkpoints depth={folder}/depth --tasks glue/rte --output_dir {folder}/out -- "
            args += f"--dataset_dir {folder}/{{task}} --do_predict false --max_steps 1 --max_target_length 32 "
            args += "--bf16 false --use_cpu true --report_to none --per_device_train_batch_size 4"
            environment = mock.patch.dict(os.environ, process_environment())
            with environment, contextlib.redirect_stdout(io.StringIO()):
                compare.main(args.split())
            with (folder / "out/results.csv").open(newline="") as file:
                (row,) = csv.DictReader(file)
        self.assertEqual((row["model"], row["step"], row["task"]), ("depth", "3", "glue/rte"))
        self.assertBetween(float(row["score"]), 0, 1)
        self.assertEqual((row["majority"], row["chance"]), ("0.5", "0.5"))
