"""What the error messages of the whole package append: the nearest known names ("did you mean"), lists, remedies."""

import difflib
from collections.abc import Iterable
from typing import Any


def near_matches(name: str, names: Iterable[str], count: int = 3, cutoff: float = 0.6) -> list[str]:
    """
    The known names that resemble a mistyped one.

    Args:
        name (`str`): the mistyped name.
        names (`Iterable[str]`): the known names. Case does not count in the comparison.
        count (`int`, *optional*, defaults to 3): return at most so many.
        cutoff (`float`, *optional*, defaults to 0.6): least similarity, between 0 and 1, as
            `difflib.get_close_matches` measures it.

    Returns:
        `list[str]`: the nearest first.

    >>> near_matches("Lerning_rate", ["learning_rate", "max_steps"])
    ['learning_rate']
    """
    names = list(names)
    near = difflib.get_close_matches(str(name).lower(), {other.lower() for other in names}, n=count, cutoff=cutoff)
    return [other for lower in near for other in names if other.lower() == lower][:count]


def suggestion(name: str, names: Iterable[str], kind: str | None = None, cutoff: float = 0.6) -> str:
    """
    The known names nearest to a mistyped one, as a sentence to append to an error message.

    Args:
        name (`str`): the mistyped name.
        names (`Iterable[str]`): the known names.
        kind (`str`, *optional*): what the names are names of, in the plural. If it is given and no name is near, the
            sentence lists all names.
        cutoff (`float`, *optional*, defaults to 0.6): least similarity, as in [`near_matches`].

    Returns:
        `str`: a sentence that begins with a space; empty if no name is near and there is no `kind`.

    >>> suggestion("cols", ["cola", "rte"], "tasks")
    " Did you mean 'cola'?"
    >>> suggestion("xnli", ["cola", "rte"], "tasks")
    " The tasks are: 'cola', 'rte'."
    """
    names = list(names)
    near = near_matches(name, names, cutoff=cutoff)
    if near:
        return f" Did you mean {' or '.join(map(repr, near))}?"
    return "" if kind is None else f" The {kind} are: {listed(names)}."


def quotes_advice(problem: Any) -> str:
    """
    The remedy for the usual mistake in YAML, to append to what its reader says; empty if it is another one.

    >>> quotes_advice("mapping values are not allowed here")
    ': put quotes round a text with a colon'
    """
    return ": put quotes round a text with a colon" if "mapping values are not allowed" in str(problem) else ""


def listed(values: Iterable[Any]) -> str:
    """
    Values as an enumeration in an error message.

    >>> listed(["cola", "rte"]), listed([])
    ("'cola', 'rte'", 'none')
    """
    return ", ".join(map(repr, values)) or "none"
