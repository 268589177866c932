"""Tables as text: aligned for a terminal, or in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any


def aligned(rows: Sequence[Sequence[str]], num_text_columns: int = 1) -> str:
    """Return a table as lines of text: so many columns of text, then those of numbers. The first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        texts = map(str.ljust, row[:num_text_columns], widths)
        numbers = map(str.rjust, row[num_text_columns:], widths[num_text_columns:])
        lines.append("  ".join([*texts, *numbers]).rstrip())
    return "\n".join(lines)


def markdown_table(rows: Sequence[Sequence[Any]], num_text_columns: int = 1) -> str:
    """A table in Markdown, see [`aligned`]. Special characters in its cells are escaped."""
    head, *others = ([" ".join(str(cell).split()).replace("|", "\\|") for cell in row] for row in rows)
    marks = ["---" if column < num_text_columns else "---:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, marks, *others])


def markdown_tables(values: Mapping[str, Any]) -> str:
    """Named values as tables in Markdown: one table of single values, and one with a row for each mapping."""
    single = [[name, readable(value)] for name, value in values.items() if not isinstance(value, Mapping)]
    several = {name: value for name, value in values.items() if isinstance(value, Mapping) and value}
    columns = list(dict.fromkeys(column for value in several.values() for column in value))
    rows = [[name, *(readable(value.get(column, "")) for column in columns)] for name, value in several.items()]
    tables = [markdown_table([["", ""], *single], num_text_columns=2)] if single else []
    tables += [markdown_table([["", *(column.replace("_", " ") for column in columns)], *rows])] if rows else []
    return "\n\n".join(tables)


def readable(value: Any) -> str:
    """
    A value as one line of text for readers.

    >>> readable(12345), readable(1e-4), readable([True, None]), readable("two\\nlines")
    ('12,345', '0.0001', 'yes, none', 'two lines')
    """
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) and value >= 1000 else f"{value:.4g}"
    if isinstance(value, Sequence | set) and not isinstance(value, str):
        return ", ".join(map(readable, value))
    return " ".join(str(value).split())
