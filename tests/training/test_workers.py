import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from absl.testing import parameterized
from transformers import TrainerCallback

from helpers import process_environment
from tiny_training import TrainingTestCase, trainer


class SignalWorkers(TrainerCallback):
    """Signals the workers of all data loaders at the beginning of each step."""

    def __init__(self):
        self.signalled = set()

    def on_step_begin(self, *args, **kwargs):
        for worker in torch.multiprocessing.active_children():
            self.signalled.add(worker.pid)
            for each in (signal.SIGINT, signal.SIGUSR1):
                os.kill(worker.pid, each)
            if os.fork() == 0:  # a launcher, not the process that reads from them
                os.kill(worker.pid, signal.SIGTERM)
                os._exit(0)
            os.wait()


class WorkerTest(TrainingTestCase):
    def test_workers_of_a_loader_leave_signals_to_the_run(self):
        signals = SignalWorkers()
        arguments = {"per_device_train_batch_size": 2, "max_steps": 3, "eval_strategy": "steps", "eval_steps": 2}
        one_trainer = trainer("depth", self.folder, number_of_rows=8, dataloader_num_workers=2, **arguments)
        one_trainer.add_callback(signals)
        one_trainer.train()
        self.assertEqual(one_trainer.state.global_step, 3)
        self.assertGreaterEqual(len(signals.signalled), 2)


# A process that reads from a worker, and a shell that sends signals to both while the worker imports torch.
STARTING_WORKER = """\
import multiprocessing, signal, subprocess, sys
from torch.utils.data import DataLoader
from hf_depth.training.workers import without_signals

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(signum, lambda signum, frame: print(signal.Signals(signum).name))
    loader = without_signals(DataLoader(list(range(100_000)), batch_size=50_000, num_workers=1))
    command = "trap '' TERM USR1 INT; sleep 0.2; for name in TERM USR1 INT; do kill -$name 0; sleep 0.1; done"
    shell = subprocess.Popen(["sh", "-c", command])
    print(sum(batch.sum().item() for batch in loader))
    shell.wait()
"""


class StartingWorkerTest(parameterized.TestCase):
    def test_signals_while_a_worker_starts_leave_it_alive(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "script.py")
            script.write_text(STARTING_WORKER)
            result = subprocess.run(
                [sys.executable, script, "spawn"],  # the default of macOS
                env=process_environment(),
                start_new_session=True,
                capture_output=True,
                text=True,
                timeout=120,
            )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertContainsSubset(["SIGTERM", "SIGUSR1", "SIGINT", "4999950000"], result.stdout.split())
