import errno
import json
import resource
import shutil
import signal
import tempfile
from pathlib import Path
from unittest import mock

import torch
from absl.testing import absltest, parameterized
from safetensors.torch import save_file

from hf_depth.manifests import (
    damage,
    file_entries,
    is_full_disk,
    list_files,
    publish_files,
    publish_folder,
    read_manifest,
    replace_text,
    write_manifest,
)

FILES = ("config.json", "model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json")


class ManifestTestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name, "checkpoint-3")

    def write_checkpoint(self, *names, manifest: bool = True):
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
        if manifest:
            write_manifest(self.folder, file_entries(self.folder, list_files(self.folder), sync=True), step=3)

    def spoil(self, name: str, how: str):
        path = self.folder / name
        content = path.read_bytes()
        middle = len(content) // 2
        if how == "missing":
            path.unlink()
        else:
            flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            path.write_bytes({"empty": b"", "cut": content[:-1], "flipped": flipped}[how])


class DamageTest(ManifestTestCase):
    @parameterized.product(name=FILES, how=("missing", "empty", "cut", "flipped"))
    def test_a_manifest_tells_every_change_of_a_file(self, name, how):
        self.write_checkpoint()
        self.assertIsNone(damage(self.folder))
        self.spoil(name, how)
        expected = {"missing": "is missing", "flipped": "another content"}.get(how, "bytes instead of")
        self.assertRegex(damage(self.folder), f"^{name} .*{expected}")

    @parameterized.product(name=FILES, how=("missing", "empty", "cut"))
    def test_without_a_manifest_files_are_there_and_readable(self, name, how):
        self.write_checkpoint(manifest=False)
        self.assertIsNone(damage(self.folder))
        self.spoil(name, how)
        self.assertIn(name, damage(self.folder))

    @parameterized.parameters("optimizer.pt", "rng_state.pth", "scheduler.pt")
    def test_without_a_manifest_a_flipped_bit_is_found_where_the_format_has_a_checksum(self, name):
        self.write_checkpoint(manifest=False)
        self.spoil(name, "flipped")
        self.assertRegex(damage(self.folder), f"{name} (is damaged|cannot be read)")

    def test_without_a_manifest_each_process_needs_its_random_state(self):
        self.write_checkpoint(*FILES[:3], "rng_state_0.pth", "rng_state_1.pth", *FILES[4:], manifest=False)
        self.assertIsNone(damage(self.folder, num_processes=2))
        self.spoil("rng_state_1.pth", "missing")
        self.assertEqual(damage(self.folder, num_processes=2), "rng_state_1.pth is missing")

    def test_a_model_alone_is_a_checkpoint_of_save_only_model(self):
        self.write_checkpoint("config.json", "model.safetensors", "trainer_state.json", manifest=False)
        self.assertIsNone(damage(self.folder))

    @parameterized.parameters("model.safetensors", "optimizer.pt", "rng_state.pth", "scheduler.pt")
    def test_a_manifest_without_a_part_is_that_of_no_checkpoint(self, name):
        self.write_checkpoint(*[file for file in FILES if file != name])
        self.assertEqual(damage(self.folder), f"{name.removesuffix('.pth')} is missing")

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

    def test_files_that_came_later_do_not_matter(self):
        self.write_checkpoint()
        (self.folder / "notes.txt").write_text("a user's own")
        self.assertIsNone(damage(self.folder))

    @parameterized.parameters("", "{", "[]", '{"files": {"config.json": 3}}', '{"step": 3}')
    def test_a_manifest_that_cannot_be_read_is_damage(self, text):
        self.write_checkpoint()
        (self.folder / "manifest.json").write_text(text)
        self.assertIn("manifest.json cannot be read", damage(self.folder))

    def test_a_folder_that_is_not_there(self):
        self.assertEqual(damage(self.folder), "there is no such folder")


class PublishTest(ManifestTestCase):
    def test_a_folder_takes_the_place_of_another(self):
        target = self.folder.with_name("checkpoint-9")
        target.mkdir()
        (target / "old.pt").touch()
        self.folder = self.folder.parent / "_unfinished" / "checkpoint-9"
        self.folder.parent.mkdir()
        self.write_checkpoint()
        publish_folder(self.folder, target)
        self.assertCountEqual([path.name for path in target.iterdir()], [*FILES, "manifest.json"])
        self.assertEqual([path.name for path in target.parent.iterdir()], ["checkpoint-9"])
        self.assertEqual(read_manifest(target)["step"], 3)

    def test_files_replace_files_and_leave_the_others(self):
        target = self.folder.parent
        (target / "notes.txt").write_text("a user's own")
        (target / "config.json").write_text("old")
        self.folder = target / "_unfinished" / "model"
        self.folder.parent.mkdir()
        self.write_checkpoint(manifest=False)
        publish_files(self.folder, target)
        self.assertCountEqual([path.name for path in target.iterdir()], [*FILES, "notes.txt"])
        self.assertNotEqual((target / "config.json").read_text(), "old")

    def test_a_manifest_lists_files_of_folders(self):
        self.write_checkpoint()
        shutil.copytree(self.folder, self.folder / "global_step3")
        described = file_entries(self.folder, list_files(self.folder))
        self.assertEqual(described["global_step3/config.json"], described["config.json"])

    def test_what_others_write_aside_stays(self):
        other = self.folder.parent / "_unfinished" / "checkpoint-4"
        other.mkdir(parents=True)
        self.folder = other.with_name("checkpoint-3")
        self.write_checkpoint()
        publish_folder(self.folder, self.folder.parent.with_name("checkpoint-3"))
        self.folder = other.with_name("model")
        self.write_checkpoint(manifest=False)
        publish_files(self.folder, self.folder.parent.parent)
        self.assertEqual([path.name for path in other.parent.iterdir()], ["checkpoint-4"])

    def test_a_text_is_there_as_a_whole_or_as_it_was(self):
        path = self.folder.with_name("all_results.json")
        replace_text(path, "before")
        with mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, "No space left on device")):
            with self.assertRaises(OSError):
                replace_text(path, "after")
        self.assertEqual([(one.name, one.read_text()) for one in path.parent.iterdir()], [(path.name, "before")])
        replace_text(path, "after")
        self.assertEqual([(one.name, one.read_text()) for one in path.parent.iterdir()], [(path.name, "after")])

    def test_two_processes_may_replace_a_text_at_the_same_time(self):
        path = self.folder.with_name("all_results.json")

        def other_process(_):
            with mock.patch("os.getpid", return_value=1), mock.patch("os.fsync"):
                replace_text(path, "of the other one")

        with mock.patch("os.fsync", side_effect=other_process):
            replace_text(path, "of this one")
        self.assertEqual([(one.name, one.read_text()) for one in path.parent.iterdir()], [(path.name, "of this one")])


class FullDiskTest(ManifestTestCase):
    @parameterized.parameters("torch", "safetensors", "text")
    def test_a_file_that_cannot_grow_is_told_from_other_errors(self, how):
        self.folder.mkdir()
        path = self.folder / "large"
        write = {
            "torch": lambda: torch.save(torch.zeros(10_000), path),
            "safetensors": lambda: save_file({"weight": torch.zeros(10_000)}, path),
            "text": lambda: path.write_text("0" * 40_000),
        }[how]
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(signal.signal, signal.SIGXFSZ, signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with self.assertRaises(Exception) as caught:
                write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        self.assertTrue(is_full_disk(caught.exception), caught.exception)
        with self.assertRaises(OSError) as caught:
            Path(self.folder, "gone", "file").write_text("{}")
        self.assertFalse(is_full_disk(caught.exception))


if __name__ == "__main__":
    absltest.main()
