import errno
import resource
import signal
import tempfile
from pathlib import Path
from unittest import mock

import torch
from absl.testing import parameterized
from safetensors.torch import save_file

from hf_depth.disk import is_full_disk, replace_text


class DiskTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_a_text_is_there_as_a_whole_or_as_it_was(self):
        path = self.folder / "all_results.json"
        replace_text(path, "before")
        with mock.patch("os.fsync", side_effect=OSError(errno.ENOSPC, "No space left on device")):
            with self.assertRaises(OSError):
                replace_text(path, "after")
        self.assertEqual([(one.name, one.read_text()) for one in path.parent.iterdir()], [(path.name, "before")])
        replace_text(path, "after")
        self.assertEqual([(one.name, one.read_text()) for one in path.parent.iterdir()], [(path.name, "after")])

    def test_two_processes_may_replace_a_text_at_the_same_time(self):
        path = self.folder / "all_results.json"

        def other_process(_):
            with mock.patch("os.getpid", return_value=1), mock.patch("os.fsync"):
                replace_text(path, "of the other one")

        with mock.patch("os.fsync", side_effect=other_process):
            replace_text(path, "of this one")
        self.assertEqual([(one.name, one.read_text()) for one in path.parent.iterdir()], [(path.name, "of this one")])

    @parameterized.parameters("safetensors", "text")
    def test_a_file_that_cannot_grow_is_told_from_other_errors(self, how):
        path = self.folder / "large"
        write = {
            "safetensors": lambda: save_file({"weight": torch.zeros(10_000)}, path),
            "text": lambda: path.write_text("0" * 40_000),
        }[how]
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(signal.signal, signal.SIGXFSZ, signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with self.assertRaises(Exception) as caught:
                write()
            self.assertTrue(is_full_disk(caught.exception, self.folder), caught.exception)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def test_other_errors_are_not_taken_for_a_full_disk(self):
        torch.save(torch.zeros(1000), self.folder / "whole.pt")
        (self.folder / "cut.pt").write_bytes((self.folder / "whole.pt").read_bytes()[:2000])
        for fail in (
            lambda: torch.load(self.folder / "cut.pt"),
            lambda: torch.save(torch.zeros(1), self.folder / "gone" / "file.pt"),
            lambda: Path(self.folder, "gone", "file").write_text("{}"),
        ):
            with self.assertRaises(Exception) as caught:
                fail()
            self.assertFalse(is_full_disk(caught.exception, self.folder), caught.exception)
        # What torch says when a file system fails for another reason.
        error = RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")
        self.assertFalse(is_full_disk(error, self.folder))
        with mock.patch("shutil.disk_usage", return_value=mock.Mock(free=4096)):
            self.assertTrue(is_full_disk(error, self.folder))
