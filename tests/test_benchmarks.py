"""Each benchmark runs, at sizes at which its figures mean nothing."""

import subprocess
import sys
import tempfile
from pathlib import Path

from absl.testing import absltest, parameterized

from helpers import ROOT, SENTENCES, process_environment

TINY_STEP = "--d_model 16 --d_kv 8 --d_ff 32 --num_heads 2 --num_layers 1 --vocab_size 256 --batch_size 2"
COMMANDS = {
    "collators": ("--batch_size 2 --rounds 1", "DEPTH"),
    "crash_resume": (
        "--kills 1 --kinds map --processes 2 --workers 0 --accumulation 2",
        "runs restored after 1 kills",
    ),
    "evaluation_memory": ("--examples 2 --length 16 --vocab_size 2100", "MB"),
    "label_scoring": ("--examples 4 --rounds 1 --d_model 16 --num_layers 1", "ratio"),
    "order_baselines": ("--max_length 96", "ranker on words"),
    "preparation": ("--runs 1 --megabytes 0.01", "DEPTH"),
    "process_exits": ("--starts 1 --steps 1", "clean exits: 1 / 1"),
    "training_step": (TINY_STEP + " --source_length 32 --target_length 16 --steps 1 --warmup_steps 0", "ratio"),
}


class BenchmarksTest(parameterized.TestCase):
    def test_every_benchmark_is_run(self):
        self.assertCountEqual(COMMANDS, [path.stem for path in (ROOT / "benchmarks").glob("*.py")])

    @parameterized.named_parameters((name, name, *command) for name, command in COMMANDS.items())
    def test_it_prints_its_figures(self, name, flags, expected):
        if name == "preparation":
            path = Path(self.enterContext(tempfile.TemporaryDirectory()), "texts.txt")
            path.write_text("\n\n".join(" ".join(SENTENCES) for _ in range(20)), encoding="utf-8")
            flags = f"{flags} --train_file {path}"
        result = subprocess.run(
            [sys.executable, str(ROOT / f"benchmarks/{name}.py"), *flags.split()],
            env=process_environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        self.assertIn(expected, result.stdout)


if __name__ == "__main__":
    absltest.main()
