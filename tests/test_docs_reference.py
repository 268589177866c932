"""The reference of the documentation: docstrings as Sphinx reads them, tables of flags, names and modules, links."""

import re
import runpy
import sys
import textwrap
from unittest import mock

from absl.testing import parameterized

import hf_depth
from helpers import ROOT, load_script, script_arguments
from hf_depth import TaskSplits
from hf_depth.training.runs import Run

docstrings = load_script("docs/extensions/markdown_docstrings.py")
contents = load_script("docs/extensions/contents.py")
links = load_script("docs/extensions/links.py")
DOCS = ROOT / "docs"


def convert(text, *scopes):
    return docstrings.convert(textwrap.dedent(text).strip(), docstrings.resolver(list(scopes)))


class DocstringsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("a `list[int]` of ids", "a ``list[int]`` of ids"),
        ("two `Dataset`s", r"two ``Dataset``\ s"),
        ("on two `lines\nof` text", "on two ``lines\nof`` text"),
        ("see [the paper](https://arxiv.org/abs/2405.07788)", "see `the paper <https://arxiv.org/abs/2405.07788>`__"),
        ("[`load_model`]", ":py:obj:`load_model <hf_depth.load_model>`"),
        ("[`hf_depth.load_model`]", ":py:obj:`hf_depth.load_model <hf_depth.load_model>`"),
        ("[`~TaskSpec.label_id`]", ":py:obj:`label_id <hf_depth.TaskSpec.label_id>`"),
        ("[`tasks.rows.check_rows`]", ":py:obj:`tasks.rows.check_rows <hf_depth.tasks.rows.check_rows>`"),
        ("[`Seq2SeqTrainer.predict`]", "``Seq2SeqTrainer.predict``"),  # of transformers
        ("[`no_such_name`]", ":py:obj:`no_such_name <no_such_name>`"),  # which Sphinx reports
    )
    def test_markdown_becomes_restructured_text(self, markdown, expected):
        self.assertEqual(convert(markdown), expected)

    def test_a_name_is_first_looked_for_where_the_docstring_stands(self):
        self.assertEqual(convert("[`prepare`]", TaskSplits), ":py:obj:`prepare <hf_depth.TaskSplits.prepare>`")
        self.assertEqual(convert("[`find`]", Run), ":py:obj:`find <hf_depth.Run.find>`")

    def test_code_stays_as_it_is(self):
        text = """
        Text:
        >>> print("`one`")
        `one`

        ```python
        print("`two`")
        ```
        """
        lines = convert(text).splitlines()
        self.assertEqual(lines[lines.index('>>> print("`one`")') - 1], "")
        self.assertContainsSubset(["`one`", ".. code-block:: python", '   print("`two`")'], lines)

    def test_a_list_below_a_paragraph_is_a_list(self):
        self.assertEqual(convert("Two:\n- one\n  more\n- two").splitlines(), ["Two:", "", "- one", "  more", "- two"])

    def test_errors_are_names_that_napoleon_links(self):
        converted = convert("Raises:\n    `ValueError`, `OSError`: for `x`.\n    [`FieldError`]: else.")
        self.assertEqual(
            converted.splitlines()[1:],
            ["    ValueError, OSError: for ``x``.", "    ~hf_depth.tasks.checks.FieldError: else."],
        )
        self.assertEqual(convert("Returns:\n    `list`: of it."), "Returns:\n    ``list``: of it.")


class ContentsTest(parameterized.TestCase):
    def arguments(self, page, directive):
        return re.findall(rf"^\.\. {directive}:: (\S+)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)

    def test_every_public_name_is_in_the_reference_once(self):
        parts = self.arguments("reference/python.rst", "public-names")
        self.assertCountEqual([name for part in parts for name in contents.public_names(part)], hf_depth.__all__)

    def test_every_part_of_the_package_has_a_page_of_modules(self):
        parts = [self.arguments(page, "modules") for page in (DOCS / "reference/modules").iterdir()]
        folders = [path.parent.name for path in (ROOT / "hf_depth").glob("*/__init__.py")]
        self.assertCountEqual(sum(parts, []), [f"hf_depth.{name}" for name in folders])
        self.assertIn("hf_depth.tasks.loaders.disco_eval", contents.modules("hf_depth.tasks"))

    def test_every_flag_of_a_script_has_a_help_text_and_stands_in_the_tables(self):
        named = self.arguments("reference/flags.rst", "flags")
        for script in ("examples/pretrain_t5.py", "examples/fine_tune_t5.py"):
            self.assertIn(script, named)
            self.assertEqual(
                [kind.__name__ for kind in contents.dataclasses_of(script)],
                [kind.__name__ for kind in script_arguments(script)],
            )
        for source in named:
            for kind in contents.dataclasses_of(source):
                for flag, _, text in contents.flags(kind):
                    with self.subTest(f"{source} {flag}"):
                        self.assertTrue(text)

    def test_defaults_are_written_as_on_the_command_line(self):
        found = {
            flag: value
            for kind in contents.dataclasses_of("examples/pretrain_t5.py")
            for flag, value, _ in contents.flags(kind)
        }
        self.assertEqual(found["--streaming"], "false")
        self.assertEqual(found["--sentence_loss_coefficient"], "1.0")
        self.assertEqual(found["--train_file"], "")


class ConfigurationTest(parameterized.TestCase):
    @mock.patch.object(sys, "path", [*sys.path])
    def test_the_site_has_the_version_and_the_author_of_the_package(self):
        names = runpy.run_path(str(DOCS / "conf.py"))
        self.assertEqual(names["html_title"], f"hf_depth {hf_depth.__version__}")
        self.assertEqual(names["author"], "The hf_depth developers")


class LinksTest(parameterized.TestCase):
    @parameterized.parameters(
        ("[text](../../examples/slurm)", "[text](https://host/us/hf_depth/tree/main/examples/slurm)"),
        ("[`a`](../../README.md#in-python)", "[`a`](https://host/us/hf_depth/blob/main/README.md)"),
        ("[page](../results.md#crashes)", "[page](../results.md#crashes)"),
        ("[index](../README.md)", "[index](../index.md)"),
        ("[near](slurm.md)", "[near](slurm.md)"),
    )
    def test_links_out_of_the_pages_lead_into_the_repository(self, text, expected):
        page = DOCS / "how_to/page.md"
        self.assertEqual(links.outward_links(text, page, DOCS, "https://host/us/hf_depth/"), expected)

    def test_without_an_address_such_a_link_is_text(self):
        page = DOCS / "how_to/page.md"
        self.assertEqual(links.outward_links("See [`here`](../../setup.cfg).", page, DOCS, None), "See `here`.")
