import errno
import os
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import TestCase, mock

import torch
from absl.testing import absltest, parameterized
from safetensors.torch import save_file

from helpers import run_in_two_processes
from hf_depth.disk import UNFINISHED_FOLDER, list_files, read_manifest
from hf_depth.training.checkpoints import writing
from hf_depth.training.checkpoints.manifest import damage
from hf_depth.training.checkpoints.writing import (
    completed_checkpoints,
    publish_files,
    publish_folder,
    replace_model,
    rotate,
    wait_until_on_disk,
    write_model_manifest,
    written_aside,
)
from tiny_training import trainer


class WritingTestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        arguments = SimpleNamespace(output_dir=str(self.folder), should_save=True)
        state = SimpleNamespace(global_step=0, best_model_checkpoint=None)
        self.trainer = SimpleNamespace(args=arguments, state=state, is_deepspeed_enabled=False, is_fsdp_enabled=False)
        self.trainer.save_total_limit, self.trainer.model_files = None, {}

    def save(self, step: int):
        """A checkpoint, as a trainer writes it."""
        self.trainer.state.global_step = step
        with written_aside(self.trainer, self.folder / f"checkpoint-{step}") as aside:
            save_file({"weight": torch.arange(10.0)}, aside / "model.safetensors")
            for name in ("optimizer.pt", "rng_state.pth", "scheduler.pt"):
                torch.save({}, aside / name)
            (aside / "trainer_state.json").write_text("{}")

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


class CheckpointTest(WritingTestCase):
    def test_training_does_not_wait_for_hashes(self):
        folder, may_go_on = self.folder / "checkpoint-1", threading.Event()
        add_hashes = writing.add_hashes
        with mock.patch.object(writing, "add_hashes", lambda folder: (may_go_on.wait(), add_hashes(folder))):
            self.save(1)
            # It is whole already, if the process is killed now.
            self.assertIsNone(damage(folder))
            self.assertNotIn("sha256", read_manifest(folder)["files"]["optimizer.pt"])
            may_go_on.set()
            wait_until_on_disk(self.trainer)
        manifest = read_manifest(folder)
        self.assertEqual(manifest["step"], 1)
        self.assertCountEqual(manifest["files"], list_files(folder))
        self.assertIn("sha256", manifest["files"]["optimizer.pt"])
        self.assertIsNone(damage(folder))

    def test_the_next_checkpoint_waits_for_the_one_before_and_surplus_goes_when_that_is_on_the_disk(self):
        self.trainer.save_total_limit = 1
        may_go_on = threading.Event()
        add_hashes = writing.add_hashes
        self.save(1)
        wait_until_on_disk(self.trainer)
        with mock.patch.object(writing, "add_hashes", lambda folder: (may_go_on.wait(), add_hashes(folder))):
            self.save(2)
            self.assertEqual(self.names(), ["checkpoint-1", "checkpoint-2"])
            threading.Timer(0.05, may_go_on.set).start()
            self.save(3)
            self.assertTrue(may_go_on.is_set())
            self.assertNotIn("checkpoint-1", self.names())
        wait_until_on_disk(self.trainer)
        self.assertEqual(self.names(), ["checkpoint-3"])

    def test_a_disk_that_is_full_when_the_files_reach_it_loses_nothing(self):
        self.trainer.save_total_limit = 1
        self.save(1)
        wait_until_on_disk(self.trainer)
        with mock.patch("hf_depth.disk.os.fsync", side_effect=OSError(errno.EDQUOT, "Disk quota exceeded")):
            self.save(2)
            with self.assertRaisesRegex(OSError, f"^The disk of {self.folder} is full .*step 3.*make room[^\n]*$"):
                self.save(3)
        self.assertEqual(self.names(), ["checkpoint-1"])
        self.assertIsNone(damage(self.folder / "checkpoint-1"))
        self.save(3)
        wait_until_on_disk(self.trainer)
        self.assertEqual(self.names(), ["checkpoint-3"])

    @parameterized.parameters(KeyboardInterrupt, SystemExit(85))
    def test_the_last_checkpoint_is_complete_however_training_ends(self, end):
        with self.assertRaises((KeyboardInterrupt, SystemExit)), completed_checkpoints(self.trainer):
            self.save(1)
            raise end
        self.assertIn("sha256", read_manifest(self.folder / "checkpoint-1")["files"]["optimizer.pt"])


def fail_on_one_process(folder: str):
    """One of two processes, of which the second cannot write its part."""
    rank = int(os.environ["RANK"])
    one_trainer = trainer("t5", folder)
    before = Path(folder, "checkpoint-1")
    for error, kind, message in (
        (OSError(errno.ENOSPC, "No space left on device"), OSError, "The disk of .* is full .*step 0 could not"),
        (KeyError("cuda"), RuntimeError if rank == 0 else KeyError, "cuda"),
    ):
        with TestCase().assertRaisesRegex(kind, message), written_aside(one_trainer, before) as aside:
            (aside / f"part-{rank}").touch()
            if rank == 1:
                raise error
        assert not before.exists()
    with written_aside(one_trainer, before) as aside:
        (aside / f"part-{rank}").touch()
    wait_until_on_disk(one_trainer)
    assert list(read_manifest(before)["files"]) == ["part-0", "part-1"]
    one_trainer.end()


class SeveralProcessesTest(WritingTestCase):
    def test_a_failure_of_one_process_ends_all_of_them(self):
        run_in_two_processes(fail_on_one_process, str(self.folder))
        self.assertEqual(self.names(), ["checkpoint-1"])


class RotateTest(WritingTestCase):
    @parameterized.parameters(
        (None, None, [2, 4, 6, 8, 10]),
        (0, None, [2, 4, 6, 8, 10]),
        (3, None, [6, 8, 10]),
        (1, None, [10]),
        (3, 2, [2, 8, 10]),
        (1, 2, [2, 10]),  # the best and the newest one stay
        (2, 10, [8, 10]),
        (9, None, [2, 4, 6, 8, 10]),
    )
    def test_the_smallest_steps_go_whatever_the_clock_says(self, limit, best, left):
        for number, step in enumerate((2, 4, 6, 8, 10)):
            folder = self.folder / f"checkpoint-{step}"
            folder.mkdir()
            then = time.time() - 1000 * number  # the clock goes backwards
            os.utime(folder, (then, then))
        (self.folder / "checkpoint-best").mkdir()  # a user's own
        (self.folder / "checkpoint-1").touch()
        rotate(self.folder / "checkpoint-10", limit, best and f"/elsewhere/checkpoint-{best}")
        expected = ["checkpoint-1", "checkpoint-best", *(f"checkpoint-{step}" for step in left)]
        self.assertCountEqual(self.names(), expected)

    def test_those_of_a_run_that_was_there_before_go_first(self):
        for step in (1, 2, 9):
            (self.folder / f"checkpoint-{step}").mkdir()
        rotate(self.folder / "checkpoint-2", 2, None)
        self.assertEqual(self.names(), ["checkpoint-1", "checkpoint-2"])


class ModelTest(WritingTestCase):
    def write(self, folder: str):
        Path(folder).mkdir(parents=True)
        save_file({"weight": torch.arange(10.0)}, Path(folder, "model.safetensors"))
        Path(folder, "config.json").write_text("{}")

    def test_files_replace_files_and_leave_the_others(self):
        (self.folder / "notes.txt").write_text("a user's own")
        (self.folder / "config.json").write_text("old")
        replace_model(self.trainer, self.write)
        write_model_manifest(self.trainer)
        self.assertEqual(self.names(), ["config.json", "manifest.json", "model.safetensors", "notes.txt"])
        self.assertEqual((self.folder / "config.json").read_text(), "{}")
        self.assertCountEqual(read_manifest(self.folder)["files"], ["config.json", "model.safetensors"])
        self.assertIsNone(damage(self.folder))

    def test_what_others_write_aside_stays(self):
        other = self.folder / UNFINISHED_FOLDER / "checkpoint-4"
        for name in ("checkpoint-3", "model"):
            folder = other.with_name(name)
            folder.mkdir(parents=True)
            other.mkdir(exist_ok=True)
            (folder / "config.json").touch()
        publish_folder(other.with_name("checkpoint-3"), self.folder / "checkpoint-3")
        publish_files(other.with_name("model"), self.folder)
        self.assertEqual([path.name for path in other.parent.iterdir()], ["checkpoint-4"])


if __name__ == "__main__":
    absltest.main()
