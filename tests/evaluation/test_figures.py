"""Pictures wherever a script is started."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from absl.testing import absltest, parameterized

SAVE = """
import sys
from hf_depth.evaluation.figures import import_matplotlib
from hf_depth.evaluation.plots import plot_losses
plot_losses([{"loss": 2.0, "step": 1}, {"loss": 1.0, "step": 2}], sys.argv[1])
import_matplotlib()
import os
print(os.environ.get("MPLBACKEND"))
"""


class FiguresTest(parameterized.TestCase):
    @parameterized.parameters(None, "agg", "Qt4Agg", "module://matplotlib_inline.backend_inline")
    def test_a_picture_is_saved_whatever_backend_the_environment_names(self, backend):
        path = Path(self.enterContext(tempfile.TemporaryDirectory()), "losses.png")
        environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
        environment |= {} if backend is None else {"MPLBACKEND": backend}
        run = subprocess.run(
            [sys.executable, "-c", SAVE, str(path)], env=environment, capture_output=True, text=True, check=False
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout.strip(), str(backend))  # what is started from there has it as well
        self.assertStartsWith(path.read_bytes(), b"\x89PNG")


if __name__ == "__main__":
    absltest.main()
