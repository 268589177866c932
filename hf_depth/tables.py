"""Tables as text: aligned for a terminal, or in Markdown."""

from collections.abc import Sequence
from typing import Any


def aligned(rows: Sequence[Sequence[str]], num_text_columns: int = 1) -> str:
    """
    A table as lines of text: the first columns to the left, numbers to the right.

    Args:
        rows (`Sequence[Sequence[str]]`): the cells, those of the head first.
        num_text_columns (`int`, *optional*, defaults to 1): how many columns hold text.

    >>> print(aligned([["", "before"], ["loss", "6.5"], ["accuracy", "0.25"]]))
              before
    loss         6.5
    accuracy    0.25
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        texts = map(str.ljust, row[:num_text_columns], widths)
        numbers = map(str.rjust, row[num_text_columns:], widths[num_text_columns:])
        lines.append("  ".join([*texts, *numbers]).rstrip())
    return "\n".join(lines)


def markdown_table(rows: Sequence[Sequence[Any]], num_text_columns: int = 1) -> str:
    """
    A table in Markdown, whatever stands in its cells.

    Args:
        rows (`Sequence[Sequence]`): the cells, those of the head first.
        num_text_columns (`int`, *optional*, defaults to 1): how many columns hold text; the others hold numbers.

    >>> print(markdown_table([["", "loss"], ["novels | news", 6.5]]))
    |  | loss |
    | --- | ---: |
    | novels \\| news | 6.5 |
    """
    head, *others = ([" ".join(str(cell).split()).replace("|", "\\|") for cell in row] for row in rows)
    marks = ["---" if column < num_text_columns else "---:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, marks, *others])
