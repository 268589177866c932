import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

from transformers import TrainingArguments

from hf_depth.training.checkpoints import lock
from hf_depth.training.checkpoints.lock import LOCK_FILE, alone_in_output_dir
from tiny_training import RunTestCase, trainer

HOLD = "import filelock, sys, time; lock = filelock.FileLock(sys.argv[1]); lock.acquire()"
WAIT = "print('held', flush=True); time.sleep(600)"
FORK = "import os; os.fork() or time.sleep(600)"


def end_group(process: subprocess.Popen):
    """End a process and those that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class LockTest(RunTestCase):
    def setUp(self):
        super().setUp()
        self.path = Path(self.folder, LOCK_FILE)
        self.arguments = TrainingArguments(self.folder, use_cpu=True)
        self.enterContext(mock.patch.object(lock, "LOCK_TIMEOUT", 0.05))

    def other_run(self, *code: str) -> subprocess.Popen:
        """A process that holds the lock."""
        command = [sys.executable, "-c", "; ".join([HOLD, *code, WAIT]), str(self.path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(end_group, process)
        self.assertEqual(process.stdout.readline(), "held\n")
        return process

    def test_a_run_does_not_train_beside_another_one(self):
        unfinished = Path(self.folder, "_unfinished", "checkpoint-1", "optimizer.pt")
        unfinished.parent.mkdir(parents=True)
        unfinished.touch()
        other = self.other_run()
        self.path.write_text(f"process {other.pid} on node17")
        one_trainer = trainer("t5", self.folder, number_of_rows=8)
        message = rf"Another run \(process {other.pid} on node17\) trains in {self.folder}.*choose another `--output_d"
        with self.assertRaisesRegex(ValueError, message):
            one_trainer.train()
        self.assertTrue(unfinished.is_file())
        other.kill()
        other.wait()
        one_trainer.train()
        self.assertFalse(unfinished.exists() or self.path.exists())

    def test_it_waits_for_the_end_of_the_other_one(self):
        other = self.other_run()
        warn = mock.Mock(side_effect=lambda _: (other.kill(), other.wait()))
        with mock.patch.object(lock, "LOCK_TIMEOUT", 60), mock.patch.object(lock.logger, "warning", warn):
            with alone_in_output_dir(self.arguments):
                self.assertIn(f"process {os.getpid()} on ", self.path.read_text())
        self.assertIn("Waiting for another run", warn.call_args.args[0])

    def test_a_killed_process_holds_nothing_though_its_workers_live(self):
        other = self.other_run(FORK)
        other.kill()
        other.wait()
        os.killpg(other.pid, 0)  # its worker is there
        with alone_in_output_dir(self.arguments):
            self.assertTrue(self.path.is_file())

    def test_blocks_of_one_process_may_be_nested_and_follow_each_other(self):
        for _ in range(2):
            with alone_in_output_dir(self.arguments):
                with alone_in_output_dir(TrainingArguments(f"{self.folder}/.", use_cpu=True)):
                    self.assertTrue(self.path.is_file())
                self.assertTrue(self.path.is_file())
            self.assertFalse(self.path.exists())
