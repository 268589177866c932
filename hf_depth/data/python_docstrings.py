"""More text that every CPython has: the docstrings of its standard library, read from the source files."""

import ast
import logging
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path, PurePath

from .python_reference import blocks, prose_documents

logger = logging.getLogger(__name__)

# Tests, what is not Python's own, and what some distributions leave out or put into packages of their own.
SKIPPED_FOLDERS = frozenset(
    "__pycache__ dist-packages distutils ensurepip idlelib lib2to3 pydoc_data site-packages test tests tkinter "
    "turtledemo".split()
)
SKIPPED_PREFIXES = ("_sysconfigdata", "config-", "sitecustomize", "usercustomize")

# Fewer have no order. Many docstrings have two: what a function does, and more about it.
MIN_DOCSTRING_SENTENCES = 2

_NAMED = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_QUOTED = re.compile(r"`([^`'\n]+)'")


def standard_library() -> str:
    """The folder with the source files of the standard library, if this Python has them."""
    return sysconfig.get_paths()["stdlib"]


def python_docstring_documents(folder: str) -> list[dict[str, str]]:
    """
    The prose of the docstrings of source files, of which none is imported.

    A docstring with two sentences of prose or more is a document; a long one is cut as the Python reference is. A
    paragraph that several docstrings have is taken once. The text depends on the files and the version of nupunkt
    only.

    Args:
        folder (`str`): with source files, see [`standard_library`].

    Returns:
        `list[dict]`: documents of several sentences, with `text` (paragraphs, separated by newlines), `title` (the
        module, class or function, such as `"email.message.Message.get_payload"`, or a heading in its docstring) and
        `source` (the module or package, such as `"email"`). None if there are no source files, as where the standard
        library is a zip file, which is logged.

    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> text = "This is one sentence. This is another one."
    >>> _ = pathlib.Path(folder.name, "module.py").write_text(f'def call():\\n    "{text}"')
    >>> python_docstring_documents(folder.name) == [{"text": text, "title": "module.call", "source": "module"}]
    True
    """
    root = Path(folder)
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    names = [name for name in names if _is_read(PurePath(name))]
    if not names:
        logger.warning(f"{folder} has no source files of the standard library: their docstrings are not read.")
    seen: set[str] = set()
    return [document for name in names for document in _module_documents(root / name, PurePath(name), seen)]


def _is_read(path: PurePath) -> bool:
    return SKIPPED_FOLDERS.isdisjoint(path.parts) and not path.parts[0].startswith(SKIPPED_PREFIXES)


def _module_documents(file: Path, path: PurePath, seen: set[str]) -> Iterator[dict[str, str]]:
    """Yield the documents of one file; `path` is its place in the folder."""
    parts = path.with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    try:
        module = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        logger.warning(f"{file} is left out: {error}.")
        return
    for title, docstring in _docstrings(module, name):
        prose = (_QUOTED.sub(r"\1", block) for block in blocks(docstring) if ">>>" not in block)
        for document in prose_documents(prose, title, seen, MIN_DOCSTRING_SENTENCES):
            yield document | {"source": parts[0]}


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Yield the docstrings below a node with the names of what they document, in the order of the file."""
    docstring = ast.get_docstring(node) if isinstance(node, ast.Module | _NAMED) else None
    if docstring:
        yield name, docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _docstrings(child, f"{name}.{child.name}" if isinstance(child, _NAMED) else name)
