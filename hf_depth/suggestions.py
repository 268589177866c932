"""'did you mean' for all error messages."""

import difflib
from collections.abc import Iterable
from typing import Any


def suggestion(name: str, names: Iterable[str], kind: str) -> str:
    """The names nearest to a mistyped one, or all of them, as a sentence to put behind an error."""
    names = list(names)
    by_lower = {other.lower(): other for other in names}
    near = [by_lower[key] for key in difflib.get_close_matches(str(name).lower(), by_lower, n=3)]
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else f" The {kind} are: {listed(names)}."


def listed(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, names)) or "none"
