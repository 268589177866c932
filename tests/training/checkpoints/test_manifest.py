import json
import tempfile
from pathlib import Path

import torch
from absl.testing import absltest, parameterized
from safetensors.torch import save_file

from hf_depth.disk import file_entries, list_files, read_manifest, write_manifest
from hf_depth.training.checkpoints.manifest import add_hashes, damage, write_sizes

FILES = ("config.json", "model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json")


class CheckpointTestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name, "checkpoint-3")

    def write_checkpoint(self, *names, manifest: str = "hashes"):
        self.folder.mkdir()
        for name in names or FILES:
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            if path.suffix == ".json":
                path.write_text(json.dumps({"global_step": 3}))
            elif path.suffix == ".safetensors":
                save_file({"weight": torch.arange(100.0)}, path)
            else:
                torch.save({"state": torch.arange(100.0)}, path)
        if manifest == "sizes":
            write_sizes(self.folder, step=3)
        elif manifest == "hashes":
            write_manifest(self.folder, file_entries(self.folder, list_files(self.folder)), step=3)

    def spoil(self, name: str, how: str):
        path = self.folder / name
        content = path.read_bytes()
        middle = len(content) // 2
        if how == "missing":
            path.unlink()
        else:
            flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            path.write_bytes({"empty": b"", "cut": content[:-1], "flipped": flipped}[how])


class DamageTest(CheckpointTestCase):
    @parameterized.product(name=FILES, how=("missing", "empty", "cut", "flipped"))
    def test_a_manifest_tells_every_change_of_a_file(self, name, how):
        self.write_checkpoint()
        self.assertIsNone(damage(self.folder))
        self.spoil(name, how)
        expected = {"missing": "is missing", "flipped": "another content"}.get(how, "bytes instead of")
        self.assertRegex(damage(self.folder), f"^{name} .*{expected}")

    @parameterized.product(name=FILES, how=("missing", "empty", "cut"))
    def test_without_hashes_files_are_there_and_whole(self, name, how):
        self.write_checkpoint(manifest="sizes")
        self.assertIsNone(damage(self.folder))
        self.spoil(name, how)
        self.assertStartsWith(damage(self.folder), name)

    def test_a_checkpoint_of_trainer_that_was_killed_has_empty_files_or_no_state(self):
        self.write_checkpoint(manifest="none")
        self.assertIsNone(damage(self.folder))
        self.spoil("optimizer.pt", "empty")
        self.assertEqual(damage(self.folder), "optimizer.pt is empty")
        self.spoil("trainer_state.json", "missing")
        self.assertEqual(damage(self.folder), "it has no trainer_state.json")

    @parameterized.parameters("", "{", "[]", '{"files": {"config.json": 3}}', '{"step": 3}')
    def test_a_manifest_that_cannot_be_read_is_damage(self, text):
        self.write_checkpoint()
        (self.folder / "manifest.json").write_text(text)
        self.assertIn("manifest.json cannot be read", damage(self.folder))

    def test_hashes_are_added_to_sizes(self):
        self.write_checkpoint(manifest="sizes")
        files = read_manifest(self.folder)["files"]
        self.assertEqual([list(entry) for entry in files.values()], [["size"]] * len(FILES))
        add_hashes(self.folder)
        manifest = read_manifest(self.folder)
        self.assertEqual(manifest, {"step": 3, "files": file_entries(self.folder, list_files(self.folder))})


if __name__ == "__main__":
    absltest.main()
