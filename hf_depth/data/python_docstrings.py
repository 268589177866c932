"""
More text without a download: the docstrings of Python's standard library, and of the packages that hf_depth requires,
read from their source files.
"""

import ast
import logging
import re
import sysconfig
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path, PurePath

from .python_reference import blocks, prose_documents

logger = logging.getLogger(__name__)

# Tests, what is not Python's own, and what some distributions leave out or put into packages of their own.
SKIPPED_FOLDERS = frozenset(
    "__pycache__ dist-packages distutils ensurepip idlelib lib2to3 pydoc_data site-packages test tests tkinter "
    "turtledemo".split()
)
SKIPPED_PREFIXES = ("_sysconfigdata", "config-", "sitecustomize", "usercustomize")

# The packages whose docstrings are read, by the names that they are imported and installed by: what hf_depth requires,
# and what its requirements require, if it has much prose.
PACKAGES = {
    "accelerate": "accelerate",
    "datasets": "datasets",
    "huggingface_hub": "huggingface_hub",
    "matplotlib": "matplotlib",
    "networkx": "networkx",
    "nltk": "nltk",
    "numpy": "numpy",
    "pandas": "pandas",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "sympy": "sympy",
    "torch": "torch",
    "transformers": "transformers",
}

# Fewer have no order. Many docstrings have two: what a function does, and more about it.
MIN_DOCSTRING_SENTENCES = 2

# In the docstrings of numpy and its kin, a heading or a term (a parameter, say) stands right above its text.
_NUMPYDOC_HEADING = re.compile(r"(?m)^(\w.*)\n([-=~]{3,})[ ]*\n")
_NUMPYDOC_TERM = re.compile(r"(?m)^(?=[*]{0,2}\w[\w.*]*(?:, [*]{0,2}\w[\w.*]*)*(?: : .*)?\n[ ]+\S)")

_NAMED = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_QUOTED = re.compile(r"`([^`'\n]+)'")


def standard_library() -> str:
    """The folder with the source files of the standard library, if this Python has them."""
    return sysconfig.get_paths()["stdlib"]


def find_packages() -> dict[str, tuple[str, str]]:
    """Version and folder of those of `PACKAGES` that are installed, by name. None of them is imported."""
    found = {}
    for name, distribution in PACKAGES.items():
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            try:
                found[name] = version(distribution), next(iter(spec.submodule_search_locations))
            except PackageNotFoundError:  # a folder of this name, which is no installed package
                continue
    return found


def python_docstring_documents(
    folder: str, package: str | None = None, seen: set[str] | None = None
) -> list[dict[str, str]]:
    """
    The prose of the docstrings of source files, of which none is imported.

    A docstring with two sentences of prose or more is a document; a long one is cut as the Python reference is. A
    paragraph that several docstrings have is taken once. The text depends on the files and the version of nupunkt
    only.

    Args:
        folder (`str`): with source files, see [`standard_library`] and [`find_packages`].
        package (`str`, *optional*): the package whose folder it is; by default it holds several.
        seen (`set[str]`, *optional*): the paragraphs of documents that were read before; grows.

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
    names = [name for name in names if is_read(PurePath(name))]
    if not names:
        logger.warning(f"{folder} has no source files of {package or 'the standard library'}: none is read.")
    seen = set() if seen is None else seen
    return [document for name in names for document in _module_documents(root / name, name, package, seen)]


def is_read(path: PurePath) -> bool:
    """Whether a source file, named from the folder on, is one of the library and no test of it."""
    return SKIPPED_FOLDERS.isdisjoint(path.parts) and not path.parts[0].startswith(SKIPPED_PREFIXES)


def _module_documents(file: Path, place: str, package: str | None, seen: set[str]) -> Iterator[dict[str, str]]:
    """Yield the documents of one file; `place` is where it is in the folder."""
    parts = PurePath(package or "", place).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    try:
        module = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        logger.warning(f"{file} is left out: {error}.")
        return
    for title, docstring in _docstrings(module, name):
        if package is not None:  # the standard library writes none of these
            docstring = _NUMPYDOC_TERM.sub("\n", _NUMPYDOC_HEADING.sub(r"\n\1\n\2\n\n", docstring))
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
