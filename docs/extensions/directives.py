"""
Directives of the reference, which therefore needs no edit when a flag, a name or a module is added.

    .. flags:: examples/pretrain_t5.py      a table of flags for each dataclass in the script's `ARGUMENTS`
    .. public-names:: hf_depth.data         the names of `hf_depth.__all__` that come from a part of the package
    .. modules:: hf_depth.data              its modules, with what they hold beside the public names
"""

import re
from typing import Any

from contents import dataclasses_of, flags, home, modules, public_names
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

import hf_depth

CODE = re.compile(r"(`[^`]+`|(?<!\S)--\w+)")  # in texts of help


class Flags(SphinxDirective):
    """Tables of flags."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for kind in dataclasses_of(self.arguments[0]):
            found += [nodes.rubric(text=kind.__name__), self.table(list(flags(kind)))]
        return found

    def table(self, rows: list[tuple[str, str, str]]) -> nodes.table:
        group = nodes.tgroup(cols=3)
        group += [nodes.colspec(colwidth=width) for width in (30, 15, 55)]
        head, body = nodes.thead(), nodes.tbody()
        head += self.row([nodes.paragraph(text=text) for text in ("flag", "default", "")])
        for flag, value, text in rows:
            body += self.row([self.code(flag), self.code(value), self.text(text)])
        group += [head, body]
        return nodes.table("", group)

    @staticmethod
    def code(text: str) -> nodes.paragraph:
        return nodes.paragraph("", "", nodes.literal(text=text)) if text else nodes.paragraph()

    @staticmethod
    def text(text: str) -> nodes.paragraph:
        parts = enumerate(CODE.split(text))  # every second part is code
        return nodes.paragraph(
            "", "", *(nodes.literal(text=part.strip("`")) if i % 2 else nodes.Text(part) for i, part in parts)
        )

    @staticmethod
    def row(cells: list[nodes.Node]) -> nodes.row:
        return nodes.row("", *(nodes.entry("", cell) for cell in cells))


class PublicNames(SphinxDirective):
    """The documentation of public names, from their docstrings."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for name in public_names(self.arguments[0]):
            thing = getattr(hf_depth, name)
            if isinstance(thing, type):
                text = f".. autoclass:: hf_depth.{name}\n   :members:\n   :special-members: __call__\n"
            elif callable(thing):
                text = f".. autofunction:: hf_depth.{name}\n"
            else:  # a constant, whose text is a comment in its module
                text = f".. autodata:: {home(name)}.{name}\n   :no-value:\n"
            found += self.parse_text_to_nodes(text)
        return found


class Modules(SphinxDirective):
    """The documentation of modules, without the public names, which have a page of their own."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for name in modules(self.arguments[0]):
            title = f"{name}\n{'-' * len(name)}\n\n"
            options = "   :members:\n   :ignore-module-all:\n   :special-members: __call__\n"
            found += self.parse_text_to_nodes(f"{title}.. automodule:: {name}\n{options}", allow_section_headings=True)
        return found


def skip_public_names(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave a public name out of its module."""
    return True if what == "module" and name in hf_depth.__all__ else None


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("flags", Flags)
    app.add_directive("public-names", PublicNames)
    app.add_directive("modules", Modules)
    app.connect("autodoc-skip-member", skip_public_names)
    return {"parallel_read_safe": True}
