"""Parts of error messages: similar names ("Did you mean …?") and lists of names."""

import difflib
from collections.abc import Iterable
from typing import Any


def suggestion(name: str, names: Iterable[str], kind: str | None = None) -> str:
    """
    Return a sentence, behind a space, that suggests known names for a mistyped one, in any case. If none is similar,
    it lists all as names of that `kind`, or is empty.

    >>> suggestion("Cols", ["cola", "rte"], "tasks")
    " Did you mean 'cola'?"
    >>> suggestion("xnli", ["cola", "rte"], "tasks")
    " The tasks are: 'cola', 'rte'."
    """
    known = {other.lower(): other for other in names}
    near = [known[lower] for lower in difflib.get_close_matches(str(name).lower(), known)]
    if near:
        return f" Did you mean {' or '.join(map(repr, near))}?"
    return "" if kind is None else f" The {kind} are: {listed(known.values())}."


def listed(values: Iterable[Any]) -> str:
    """
    Return values as a list in an error message.

    >>> listed(["cola", "rte"]), listed([])
    ("'cola', 'rte'", 'none')
    """
    return ", ".join(map(repr, values)) or "none"
