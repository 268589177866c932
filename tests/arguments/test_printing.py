"""What is printed ends no script: full disks, readers that are gone, letters that an encoding lacks."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from absl.testing import absltest, parameterized

from helpers import ROOT
from hf_depth.arguments.exits import run_script
from hf_depth.training.checkpoints.stopping import end_on_signals

MODULE = ROOT / "hf_depth" / "arguments" / "printing.py"

# The module by itself: a start of Python without that of torch.
SCRIPT = """
import logging, os, runpy, sys, time
module, waits, done, status = sys.argv[1:]

with runpy.run_path(module)["lasting_output"]():
    logging.basicConfig(level="INFO")
    print("first", flush=True)
    while os.path.exists(waits):
        time.sleep(0.01)
    for number in range(2000):
        print(f"step {number}: gr\\u00f6\\u00dfer, \\u65e5\\u672c", flush=number % 2 == 0)
        logging.info("step %d", number)
    open(done, "w").close()
    sys.exit(int(status))
"""


class PrintingTest(parameterized.TestCase):
    def setUp(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.waits, self.done = Path(folder, "waits"), Path(folder, "done")

    def start(self, stdout, stderr, status=0, **variables):
        command = [sys.executable, "-c", SCRIPT, MODULE, self.waits, self.done, str(status)]
        environment = os.environ | variables
        return subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environment)

    def assert_ends(self, process, status=0):
        self.assertEqual(process.wait(timeout=60), status)
        self.assertTrue(self.done.exists())

    @parameterized.parameters("ascii", "latin-1", "ascii:strict")
    def test_letters_that_the_encoding_lacks_are_printed_as_escapes(self, encoding):
        process = self.start(subprocess.PIPE, subprocess.PIPE, PYTHONIOENCODING=encoding)
        out, _ = process.communicate(timeout=60)
        self.assert_ends(process)
        self.assertIn(b"\\u65e5\\u672c", out)

    @parameterized.product(status=(0, 3), goes=("stdout", "both"))
    def test_the_reader_of_a_pipe_may_go(self, status, goes):
        self.waits.touch()
        stderr = subprocess.PIPE if goes == "stdout" else subprocess.STDOUT
        process = self.start(subprocess.PIPE, stderr, status)
        self.assertEqual(process.stdout.readline().rstrip(), b"first")
        process.stdout.close()
        self.waits.unlink()
        errors = process.stderr.read().decode() if process.stderr else ""
        self.assert_ends(process, status)
        if goes == "stdout":
            process.stderr.close()
            self.assertEqual(errors.count("<stdout> cannot be written: [Errno 32]"), 1)
            self.assertIn("step 1999", errors)
            self.assertNotIn("Traceback", errors)
            self.assertNotIn("Exception ignored", errors)

    @parameterized.parameters(run_script, lambda main: end_on_signals()(main)())
    def test_scripts_run_with_it(self, run):
        with open(self.done, "w", encoding="ascii") as file, mock.patch.object(sys, "stdout", file):
            run(lambda: print("größer"))
        self.assertNotEmpty(self.done.read_text(encoding="ascii"))


if __name__ == "__main__":
    absltest.main()
