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

    @parameterized.product(name=FILES[1:], how=("missing", "empty", "cut"), manifest=("none", "sizes"))
    def test_without_hashes_files_are_there_and_readable(self, name, how, manifest):
        self.write_checkpoint(manifest=manifest)
        self.assertIsNone(damage(self.folder))
        self.spoil(name, how)
        self.assertIn(name.removesuffix(".pth"), damage(self.folder))

    @parameterized.product(name=("optimizer.pt", "rng_state.pth", "scheduler.pt"), manifest=("none", "sizes"))
    def test_without_hashes_a_flipped_bit_is_found_where_the_format_has_a_checksum(self, name, manifest):
        self.write_checkpoint(manifest=manifest)
        self.spoil(name, "flipped")
        self.assertRegex(damage(self.folder), f"{name} (is damaged|cannot be read)")

    @parameterized.parameters("model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt")
    def test_a_manifest_without_a_part_is_that_of_no_checkpoint(self, name):
        self.write_checkpoint(*[file for file in FILES if file != name])
        self.assertEqual(damage(self.folder), f"{name.removesuffix('.pth')} is missing")
        with self.assertRaisesRegex(OSError, "of checkpoint-3 is missing after everything was written"):
            write_sizes(self.folder, step=3)

    @parameterized.parameters(
        ("config.json", "model.safetensors", "trainer_state.json"),  # with `save_only_model`
        ("config.json", "model.safetensors", "rng_state_1.pth", "optimizer.pt", "scheduler.pt", "trainer_state.json"),
        ("config.json", "global_step3", "rng_state_0.pth", "trainer_state.json"),  # DeepSpeed
        ("pytorch_model_fsdp.bin", "optimizer.bin", "rng_state_0.pth", "scheduler.pt", "trainer_state.json"),
        (
            "mine/adapter_model.safetensors",
            "optimizer.pt",
            "rng_state.pth",
            "scheduler.pt",
            "trainer_state.json",
        ),  # PEFT
        ("config.json", "model.safetensors"),  # the final model
    )
    def test_a_manifest_has_the_parts_that_its_kind_of_checkpoint_has(self, *names):
        self.write_checkpoint(*names)
        self.assertIsNone(damage(self.folder))

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

    def test_a_file_that_is_not_on_the_disk_as_it_was_written_gets_no_hash(self):
        self.write_checkpoint(manifest="sizes")
        self.spoil("optimizer.pt", "cut")
        with self.assertRaisesRegex(OSError, "optimizer.pt of .*checkpoint-3 has another size on the disk"):
            add_hashes(self.folder)


if __name__ == "__main__":
    absltest.main()
