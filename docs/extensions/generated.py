"""
Directives of the reference, which therefore needs no edit when a flag, a name or a module is added.

    .. flags:: examples/pretrain_t5.py      a table of flags for each dataclass in the script's `ARGUMENTS`, or for one
                                            that is named: `hf_depth.arguments.compare_args.CompareArguments`
    .. public-names:: hf_depth.data         the names of `hf_depth.__all__` that come from a part of the package
    .. modules:: hf_depth.data              its modules, with what they hold beside the public names
"""

import dataclasses
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

import hf_depth

ROOT = Path(__file__).resolve().parents[2]


def default(field: dataclasses.Field) -> str:
    """The default of a flag as one would write it; nothing for `None`."""
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is None or value is dataclasses.MISSING:
        return ""
    value = getattr(value, "value", value)  # of an enumeration
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def flags(kind: type) -> Iterator[tuple[str, str, str]]:
    """Flag, default and help of each field of a dataclass of arguments."""
    for field in dataclasses.fields(kind):
        if field.init:
            yield f"--{field.name}", default(field), " ".join(field.metadata.get("help", "").split())


def public_names(package: str) -> list[str]:
    """The names of `hf_depth.__all__` that are defined in a part of the package."""
    return [name for name in hf_depth.__all__ if _home(name).startswith(f"{package}.")]


def _home(name: str) -> str:
    thing = getattr(hf_depth, name)
    modules = (module for module in pkgutil.walk_packages(hf_depth.__path__, "hf_depth."))
    if hasattr(thing, "__qualname__"):
        return thing.__module__
    return next(module.name for module in modules if name in vars(importlib.import_module(module.name)))


def modules(package: str) -> list[str]:
    """The modules of a part of the package."""
    path = importlib.import_module(package).__path__
    return [module.name for module in pkgutil.walk_packages(path, f"{package}.") if not module.ispkg]


def dataclasses_of(source: str) -> tuple[type, ...]:
    """The dataclasses that a script, named by its path, reads its arguments into, or the one of a dotted name."""
    path = ROOT / source
    if not path.is_file():
        module, _, name = source.rpartition(".")
        return (getattr(importlib.import_module(module), name),)
    specification = importlib.util.spec_from_file_location(path.stem, path)
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    return script.ARGUMENTS


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
            body += self.row([self.code(flag), self.code(value), nodes.paragraph(text=text)])
        group += [head, body]
        return nodes.table("", group)

    @staticmethod
    def code(text: str) -> nodes.paragraph:
        return nodes.paragraph("", "", nodes.literal(text=text)) if text else nodes.paragraph()

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
            kind = "class" if isinstance(thing, type) else "function" if callable(thing) else "data"
            members = "\n   :members:\n   :special-members: __call__" if kind == "class" else ""
            found += self.parse_text_to_nodes(f".. auto{kind}:: hf_depth.{name}{members}\n")
        return found


class Modules(SphinxDirective):
    """The documentation of modules, without the public names, which have a page of their own."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for name in modules(self.arguments[0]):
            title = f"{name}\n{'-' * len(name)}\n\n"
            found += self.parse_text_to_nodes(
                f"{title}.. automodule:: {name}\n   :members:\n   :ignore-module-all:\n   :special-members: __call__\n",
                allow_section_headings=True,
            )
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
