import shutil
from pathlib import Path
from unittest import mock

import torch
from absl.testing import absltest, parameterized
from transformers import TrainingArguments

from hf_depth.disk import file_entries, list_files, write_manifest
from hf_depth.training.checkpoints.resuming import checkpoint_to_resume, last_complete_checkpoint
from tiny_training import TrainingTestCase, save_pretraining


class DamagedCheckpointTest(TrainingTestCase):
    def setUp(self):
        super().setUp()
        save_pretraining(Path(self.folder), 2, 4)
        for step in (2, 4):
            folder = self.checkpoint(step)
            write_manifest(folder, file_entries(folder, list_files(folder)), step=step)

    def checkpoint(self, step: int) -> Path:
        return Path(self.folder, f"checkpoint-{step}")

    def arguments(self, **changes) -> TrainingArguments:
        return TrainingArguments(self.folder, do_train=True, use_cpu=True, **changes)

    @parameterized.parameters("trainer_state.json", "model.safetensors")
    def test_the_previous_one_is_used_and_the_damage_named(self, name):
        self.assertEqual(checkpoint_to_resume(self.arguments()), str(self.checkpoint(4)))
        (self.checkpoint(4) / name).write_bytes(b"")
        with self.assertLogs("hf_depth.training.checkpoints.resuming", "WARNING") as caught:
            self.assertEqual(checkpoint_to_resume(self.arguments()), str(self.checkpoint(2)))
        self.assertRegex(caught.output[0], f"Skipping .*checkpoint-4: {name} has 0 bytes instead of")

    def test_one_that_is_asked_for_is_not_replaced_by_another(self):
        (self.checkpoint(4) / "config.json").unlink()
        with self.assertRaisesRegex(ValueError, "checkpoint-4 is no complete checkpoint: config.json is missing"):
            checkpoint_to_resume(self.arguments(resume_from_checkpoint=str(self.checkpoint(4))))

    @parameterized.parameters(None, "true")
    def test_where_none_is_whole_the_run_does_not_start_anew_by_itself(self, asked):
        for step in (2, 4):
            (self.checkpoint(step) / "model.safetensors").unlink()
        message = (
            r"checkpoint-4 \(model.safetensors is missing\), checkpoint-2 \(model.safetensors is missing\). .*replace "
            r"them.*`--resume_from_checkpoint`, .*`--output_dir`, .*`--resume_from_checkpoint false`"
        )
        with self.assertRaisesRegex(ValueError, message):
            checkpoint_to_resume(self.arguments(resume_from_checkpoint=asked))
        self.assertIsNone(checkpoint_to_resume(self.arguments(resume_from_checkpoint="false")))

    def test_a_run_that_was_killed_before_its_first_checkpoint_starts_anew(self):
        for step in (2, 4):
            shutil.rmtree(self.checkpoint(step))
        Path(self.folder, "_unfinished", "checkpoint-2").mkdir(parents=True)
        self.assertIsNone(checkpoint_to_resume(self.arguments()))

    def test_an_empty_disk_of_the_first_node_is_told(self):
        gathered = mock.patch(
            "hf_depth.training.checkpoints.resuming.gather_object", lambda mine: [*mine, *others(mine)]
        )
        for step in (2, 4):
            shutil.rmtree(self.checkpoint(step))

        def others(mine):  # what another node, which has checkpoint-2, says
            return [["checkpoint-2"]] if isinstance(mine[0], list) else [None]

        with gathered, self.assertRaisesRegex(ValueError, r"checkpoint-2 \(there is no such folder\)"):
            checkpoint_to_resume(self.arguments())

    def test_one_without_a_manifest_is_used_and_one_without_an_optimizer_with_a_warning(self):
        (self.checkpoint(4) / "manifest.json").unlink()
        with self.assertLogs("hf_depth.training.checkpoints.resuming", "WARNING") as caught:
            self.assertEqual(last_complete_checkpoint(self.folder), str(self.checkpoint(4)))
        self.assertRegex(caught.output[0], "checkpoint-4 has the model only")
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            torch.save({}, self.checkpoint(4) / name)
        with self.assertNoLogs("hf_depth.training.checkpoints.resuming", "WARNING"):
            last_complete_checkpoint(self.folder)


if __name__ == "__main__":
    absltest.main()
