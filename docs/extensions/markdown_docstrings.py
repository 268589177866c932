"""
Docstrings as transformers writes them, for Sphinx: Markdown becomes reStructuredText, and [`name`] a link.

What napoleon does not know of the style: code in single backticks, fences, lists without a blank line before them, and
cross references in brackets. A reference to a name that does not exist is a warning, hence an error of a strict build.
"""

import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any

import hf_depth

# What stays as it is: fenced code, and examples up to the next blank line.
CODE = re.compile(r"^ *```.*?^ *```$|^ *>>> .*?(?=^\s*$|\Z)", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)\n *```$", re.DOTALL)
REFERENCE = r"\[`(?P<reference>~?[\w.]+)`\](?!\()"
LINK = r"\[(?P<text>[^]`]+)\]\((?P<address>https?:[^)\s]+)\)"
LITERAL = r"`(?P<literal>[^`]+)`"
INLINE = re.compile(rf"(?P<before>\w?)(?:{REFERENCE}|{LINK}|{LITERAL})(?P<after>\w?)")
# The section of errors, and the types at the beginning of each of its entries.
RAISES = re.compile(r"^(?P<indent> *)Raises:\n(?:(?P=indent) +\S.*\n?|\s*\n)+", re.MULTILINE)
ERRORS = re.compile(r"^(?P<indent> +)(?P<names>\[?`[\w.]+`\]?(?:, \[?`[\w.]+`\]?)*):", re.MULTILINE)
ITEM = re.compile(r"^ *(?:- |\d+\. )")


def convert(docstring: str, resolve: Callable[[str], str | None]) -> str:
    """
    A docstring in Markdown as reStructuredText with the sections that napoleon reads.

    Args:
        docstring: without the indentation of the code around it.
        resolve: gives the full name to link for a name in brackets, `None` for one of another package.
    """
    docstring = _error_types(docstring, resolve)
    parts, end = [], 0
    for code in CODE.finditer(docstring):
        parts += [_prose(docstring[end : code.start()], resolve), _code(code.group())]
        end = code.end()
    return "".join([*parts, _prose(docstring[end:], resolve)])


def _code(text: str) -> str:
    fence = FENCE.match(text)
    if fence is None:
        return f"\n{text}"
    code = textwrap.indent(textwrap.dedent(fence["code"]), f"{fence['indent']}   ")
    return f"\n{fence['indent']}.. code-block:: {fence['language'] or 'text'}\n\n{code}\n"


def _prose(text: str, resolve: Callable[[str], str | None]) -> str:
    def inline(match: re.Match) -> str:
        if match["reference"]:
            name = match["reference"].lstrip("~")
            shown = name.rpartition(".")[2] if match["reference"].startswith("~") else name
            target = resolve(name)
            new = f":py:obj:`{shown} <{target}>`" if target else f"``{shown}``"
        elif match["address"]:
            new = f"`{match['text']} <{match['address']}>`__"
        else:
            new = f"``{match['literal']}``"
        # Markup inside of a word, such as the plural of a name, is marked off by an escaped space.
        before = match["before"] and f"{match['before']}\\ "
        return before + new + (match["after"] and f"\\ {match['after']}")

    return _lists(INLINE.sub(inline, text))


def _error_types(docstring: str, resolve: Callable[[str], str | None]) -> str:
    """Napoleon makes links of the types of errors by itself, if they are plain names."""

    def plain(errors: re.Match) -> str:
        names = [name.strip("[]`") for name in errors["names"].split(", ")]
        full = [resolve(name) or name for name in names]
        return f"{errors['indent']}{', '.join(f'~{name}' if '.' in name else name for name in full)}:"

    return RAISES.sub(lambda section: ERRORS.sub(plain, section.group()), docstring)


def _lists(text: str) -> str:
    """Markdown takes a list right below a paragraph, reStructuredText wants a blank line before it."""
    lines: list[str] = []
    for line in text.split("\n"):
        previous = lines[-1] if lines else ""
        indent = len(line) - len(line.lstrip())
        is_first = not ITEM.match(previous) and len(previous) - len(previous.lstrip()) <= indent
        if ITEM.match(line) and previous.strip() and is_first:
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


@cache
def _names() -> dict[str, Any]:
    """What stands in the modules of the package, by its name; what is public comes last and wins."""
    modules = [
        importlib.import_module(module.name) for module in pkgutil.walk_packages(hf_depth.__path__, "hf_depth.")
    ]
    names: dict[str, Any] = {}
    for module in modules:
        names |= {name: thing for name, thing in vars(module).items() if not name.startswith("__")}
    return names | {module.__name__.removeprefix("hf_depth."): module for module in modules} | vars(hf_depth)


def find(name: str, scopes: list[Any]) -> Any:
    """The object of a dotted name in the first scope that has it, or else in the package; `None` if there is none."""
    first, *rest = name.removeprefix("hf_depth.").split(".")
    for scope in [*scopes, None]:
        thing = _names().get(first) if scope is None else inspect.getattr_static(scope, first, None)
        for part in rest:
            thing = getattr(thing, part, None) or _names().get(part) if thing is not None else None
        if thing is not None:
            return thing
    module, _, last = name.rpartition(".")  # in a module: `tasks.reading.check_rows`
    candidates = [thing for key, thing in _names().items() if module and (key == module or key.endswith(f".{module}"))]
    return next((vars(thing)[last] for thing in candidates if inspect.ismodule(thing) and last in vars(thing)), None)


def documented_name(thing: Any) -> str | None:
    """The name under which the reference has an object; `None` if it is of another package, or a constant."""
    thing = getattr(thing, "__func__", thing)
    module, name = getattr(thing, "__module__", None) or "", getattr(thing, "__qualname__", None)
    if name is None or not module.startswith("hf_depth"):
        return None
    return f"hf_depth.{name}" if name.split(".")[0] in hf_depth.__all__ else f"{module}.{name}"


def resolver(scopes: list[Any]) -> Callable[[str], str | None]:
    """The function that finds names as a docstring in these scopes means them; an unknown one it returns as it is."""

    def resolve(name: str) -> str | None:
        thing = find(name, scopes)
        return name if thing is None else documented_name(thing)

    return resolve


def process_docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Convert a docstring before napoleon sees it."""
    thing = getattr(thing, "fget", thing)
    module = thing if inspect.ismodule(thing) else inspect.getmodule(thing)
    owner = thing if inspect.isclass(thing) else find(name.rpartition(".")[0].rpartition(".")[2], [])
    scopes = [scope for scope in (owner, module) if scope is not None]
    lines[:] = convert("\n".join(lines), resolver(scopes)).split("\n")
    if what in ("attribute", "data", "property"):
        lines[0] = f": {lines[0]}"  # napoleon takes what stands before a first colon for the type


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process_docstring, priority=100)  # napoleon has 500
    return {"parallel_read_safe": True}
