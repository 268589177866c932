"""docs/concepts: the code in the pages prints what they show."""

import contextlib
import io
import re
import tempfile
from pathlib import Path

from absl.testing import parameterized

from helpers import ROOT

FOLDER = ROOT / "docs/concepts"
BLOCK = re.compile(
    r"^<!-- test: (\w+) -->\n```python\n(.*?)^```$(?:\n\n<!-- shown: what it prints -->\n```text\n(.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)


def blocks():
    """Name, code and what it is said to print, of each block of a page that is marked as runnable."""
    return [match for path in sorted(FOLDER.glob("*.md")) for match in BLOCK.findall(path.read_text(encoding="utf-8"))]


class ConceptsTest(parameterized.TestCase):
    @parameterized.named_parameters(blocks())
    def test_a_block_prints_what_the_page_shows(self, code, expected):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(code, "page", "exec"), {"__name__": "page"})
        self.assertEqual(output.getvalue(), expected)

    def test_pictures_are_small_and_shown(self):
        pages = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md"))
        for path in FOLDER.glob("*.svg"):
            self.assertLess(path.stat().st_size, 60_000)
            self.assertIn(f"]({path.name})", pages)

    def test_the_blocks_were_found(self):
        names = [name for name, *_ in blocks()]
        self.assertContainsSubset(["concept_loss", "concept_noise", "concept_objective"], names)
