"""Parts of error messages: similar names ("Did you mean …?"), lists of names, advice on YAML."""

import difflib
from collections.abc import Iterable
from typing import Any


def near_matches(name: str, names: Iterable[str], count: int = 3, cutoff: float = 0.6) -> list[str]:
    """
    Return the known names that are similar to a mistyped one. Case is ignored.

    Args:
        name (`str`): the mistyped name.
        names (`Iterable[str]`): the known names.
        count (`int`, *optional*, defaults to 3): the maximum number of names to return.
        cutoff (`float`, *optional*, defaults to 0.6):
            The least similarity between 0 and 1, see `difflib.get_close_matches`.

    Returns:
        `list[str]`: the most similar name first.

    >>> near_matches("Lerning_rate", ["learning_rate", "max_steps"])
    ['learning_rate']
    """
    names = list(names)
    near = difflib.get_close_matches(str(name).lower(), {other.lower() for other in names}, n=count, cutoff=cutoff)
    return [other for lower in near for other in names if other.lower() == lower][:count]


def suggestion(name: str, names: Iterable[str], kind: str | None = None, cutoff: float = 0.6) -> str:
    """
    Return a sentence for an error message that suggests known names for a mistyped one.

    Args:
        name (`str`): the mistyped name.
        names (`Iterable[str]`): the known names.
        kind (`str`, *optional*):
            A word for the names, in the plural. With it, the sentence lists all names if none is similar.
        cutoff (`float`, *optional*, defaults to 0.6): the least similarity, see [`near_matches`].

    Returns:
        `str`: a sentence that begins with a space; empty if no name is similar and there is no `kind`.

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
    Return advice on a missing quotation mark in YAML, to append to an error; empty if the error is another one.

    >>> quotes_advice("mapping values are not allowed here")
    ': put quotes round a text with a colon'
    """
    return ": put quotes round a text with a colon" if "mapping values are not allowed" in str(problem) else ""


def listed(values: Iterable[Any]) -> str:
    """
    Return values as a list in an error message.

    >>> listed(["cola", "rte"]), listed([])
    ("'cola', 'rte'", 'none')
    """
    return ", ".join(map(repr, values)) or "none"
