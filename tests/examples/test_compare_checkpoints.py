"""The script that compares checkpoints, from its command line to its files."""

import contextlib
import csv
import io
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from unittest import mock

from absl.testing import parameterized

from helpers import ROOT, load_script, process_environment
from tiny_training import save_pretraining

compare = load_script("examples/compare_checkpoints.py")


class CompareTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        save_pretraining(self.folder / "depth", 3, kind="depth")

    def run_script(self, *own, task="glue/rte", flags=()):
        args = ["--checkpoints", f"depth={self.folder}/depth", "--tasks", task, "--output_dir", f"{self.folder}/out"]
        with contextlib.redirect_stdout(io.StringIO()) as output:
            self.results = compare.main([*args, *own, "--", "--use_cpu", "true", *flags])
        return output.getvalue()

    def test_tiny_checkpoints_are_fine_tuned_and_compared(self):
        rows = [{"sentence1": f"It is {i}.", "sentence2": "No.", "label": i % 2} for i in range(6)]
        (self.folder / "rte").mkdir()
        for split in ("train", "validation"):
            (self.folder / f"rte/{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        flags = f"--dataset_dir {self.folder}/{{task}} --do_predict false --max_steps 1 --max_target_length 32 "
        flags += "--bf16 false --report_to none --per_device_train_batch_size 4"
        with mock.patch.dict(os.environ, process_environment()):
            output = self.run_script(flags=flags.split())
        with (self.folder / "out/results.csv").open(newline="") as file:
            (row,) = csv.DictReader(file)
        self.assertEqual((row["model"], row["step"], row["task"]), ("depth", "3", "glue/rte"))
        self.assertBetween(float(row["score"]), 0, 1)
        self.assertEqual((row["majority"], row["chance"]), ("0.5", "0.5"))
        self.assertEqual([result.score for result in self.results], [float(row["score"])])
        self.assertIn((self.folder / "out/results.md").read_text(encoding="utf-8"), output)
        self.assertTrue((self.folder / "out/scores.png").is_file())

    @parameterized.parameters(("glue/rte", "rte"), ("disco_eval/SParxiv", "disco_eval"))
    def test_a_dry_run_prints_commands_that_a_shell_can_run(self, task, recipe):
        output = self.run_script("--dry_run", task=task, flags=["--dataset_dir", "my data/{task}"])
        self.assertFalse((self.folder / "out").exists())
        (line,) = output.splitlines()
        python, script, config, *flags = shlex.split(line)
        self.assertEqual((python, script), (sys.executable, str(ROOT / "examples/fine_tune_t5.py")))
        self.assertEqual(config, str(ROOT / f"examples/configs/recipes/{recipe}.yaml"))
        flags = dict(zip(flags[::2], flags[1::2], strict=True))
        self.assertEqual(f"{flags['--benchmark']}/{flags['--dataset_name']}", task)
        self.assertEqual(flags["--dataset_dir"], f"my data/{flags['--dataset_name']}")

    def test_failed_runs_are_counted_in_the_exit_message(self):
        launcher = shlex.join([sys.executable, "-c", "raise SystemExit('a disk is full')"])
        with self.assertLogs("hf_depth.training.comparison", "ERROR") as logs:
            with self.assertRaisesRegex(SystemExit, "2 of 2 runs failed; started again, they are tried once more"):
                self.run_script("--launcher", launcher, "--seeds", "1", "2")
        self.assertIn("a disk is full", logs.output[0])
