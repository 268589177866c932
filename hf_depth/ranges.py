"""Ranges of numbers, and a check of arguments against them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from .errors import UserError


@dataclass(frozen=True)
class Range:
    """
    A range of finite numbers that an argument may have.

    Args:
        least, above (`float`, *optional*): the lower limit. `least` itself is allowed, `above` is not.
        most, below (`float`, *optional*): the upper limit. `most` itself is allowed, `below` is not.

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
# The number of worker processes. A higher number is a typing error and would fill the memory.
WORKERS = Range(least=0, most=1024)
# Of what a model reads or writes at once: tables of noise grow with it.
LENGTH = Range(least=1, most=2**17)
LENGTHS = ("max_source_length", "max_target_length", "packed_source_length", "packed_target_length")


def check_ranges(arguments: Any, ranges: Mapping[str, Range], prefix: str = "") -> None:
    """
    Raise `ValueError` if an attribute is outside of its range.

    Args:
        arguments: the object with the attributes. A missing attribute or `None` passes.
        ranges: the name of an attribute -> its range.
        prefix: put before names in the message, such as `--` for flags.

    Raises:
        `ValueError`: names the attribute, its range and its value.

    >>> from types import SimpleNamespace
    >>> check_ranges(SimpleNamespace(learning_rate=-1.0), {"learning_rate": Range(least=0)}, "--")
    Traceback (most recent call last):
    hf_depth.errors.UserError: `--learning_rate` must be at least 0, got -1.0.
    """
    for name, allowed in ranges.items():
        value = getattr(arguments, name, None)
        if value is not None and value not in allowed:
            is_number = isinstance(value, Real)
            finite = "" if is_number and abs(value) < math.inf else " and finite" if is_number else ", a number"
            raise UserError(f"`{prefix}{name}` must be {allowed}{finite}, got {value!r}.")
