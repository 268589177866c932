"""
The built documentation: pages in Markdown, the reference from docstrings and from the dataclasses of flags.

    python -m sphinx -W --keep-going -n -b html docs docs/_build/html

Why Sphinx: MkDocs 1 is no longer maintained, its successor Zensical has not reached 1.0, and neither builds a
reference in which a name that does not exist is an error. MyST reads the pages as GitHub does.
"""

import configparser
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS / "extensions")]

import hf_depth  # noqa: E402 (found by the path above)

metadata = configparser.ConfigParser()
metadata.read(ROOT / "setup.cfg", encoding="utf-8")

project = "hf_depth"
author = metadata["metadata"]["author"]
copyright = f"{author}. hf_depth {hf_depth.__version__}"
version = release = hf_depth.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "markdown_docstrings",
    "directives",
    "links",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "README.md", "extensions"]  # index.rst includes README.md
smartquotes = False  # they make a dash of the two hyphens of a flag
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_title = f"hf_depth {version}"
html_show_sphinx = False
html_theme_options = {
    "footer_icons": [
        {"name": name, "url": url, "html": name, "class": ""}
        for name, url in (
            ("Paper", metadata["metadata"]["project_urls"].split(" = ")[1].strip()),
            ("License", "https://www.apache.org/licenses/LICENSE-2.0"),
        )
    ]
}
copybutton_exclude = ".linenos, .gp, .go"  # prompts of doctests and their output are not copied

myst_heading_anchors = 4  # links to headings, as GitHub has them
repository = metadata["metadata"].get("url")  # of links that lead out of this folder; without it they are plain text

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings state types, and shapes
autodoc_class_signature = "mixed"
autodoc_inherit_docstrings = False
nitpick_ignore_regex = [("py:class", r"(?!hf_depth\.).*")]  # annotations name classes of other packages
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_preprocess_types = False
