"""Ranges of numbers: a table of arguments is checked in one place, with one kind of message."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any


@dataclass(frozen=True)
class Range:
    """
    The finite numbers that an argument may have.

    Args:
        least (`float`, *optional*), above (`float`, *optional*): lower limit, itself allowed or not.
        most (`float`, *optional*), below (`float`, *optional*): upper limit, itself allowed or not.

    >>> 0.5 in Range(least=0, below=1), float("nan") in Range(least=0)
    (True, False)
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def __contains__(self, value: Any) -> bool:
        return (
            isinstance(value, Real)
            and math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            return f"between {self.least} and {self.most}"
        limits = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(f"{words} {limit}" for words, limit in limits.items() if limit is not None)


NOT_NEGATIVE = Range(least=0)
AT_LEAST_ONE = Range(least=1)
# Of processes that one process starts: more of them are a slip of the keyboard, which would fill the memory.
WORKERS = Range(least=0, most=1024)


def check_ranges(arguments: Any, ranges: Mapping[str, Range], prefix: str = "") -> None:
    """
    Check attributes that are numbers.

    Args:
        arguments: the object. An attribute that is `None`, or that it does not have, passes.
        ranges: name of an attribute -> what it may be.
        prefix: of the names in the message, `--` for flags.

    Raises:
        `ValueError`: naming the attribute, its range and its value.

    >>> from types import SimpleNamespace
    >>> check_ranges(SimpleNamespace(learning_rate=-1.0), {"learning_rate": Range(least=0)}, "--")
    Traceback (most recent call last):
    ValueError: `--learning_rate` must be at least 0, got -1.0.
    """
    for name, allowed in ranges.items():
        value = getattr(arguments, name, None)
        if value is not None and value not in allowed:
            is_number = isinstance(value, Real)
            finite = "" if is_number and abs(value) < math.inf else " and finite" if is_number else ", a number"
            raise ValueError(f"`{prefix}{name}` must be {allowed}{finite}, got {value!r}.")
