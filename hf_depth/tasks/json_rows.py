"""
Examples in JSON, with the values that are written there.

The builder of `datasets` guesses types: dates become timestamps, and where a column holds a text in some rows and a
list in others, texts are parsed once more (`"5"` is then 5).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from datasets import Features, Json, Value

from ..data.files import lone_surrogate_line
from ..data.readers import lines_of

TYPE_FEATURES = Features({"column": Value("string"), "type": Value("string")})

_SPACE = re.compile(r"[ \t\r\n]*")
_TYPES = {type(None): "null", str: "string", bool: "bool", int: "int64", float: "float64"}


def json_rows(file: str) -> Iterator[dict[str, Any]]:
    """
    The objects of a JSON file, one after the other: one a line, or a list of them, or in any other layout. In the
    place of an object, another value is a `text`.

    Raises:
        `ValueError`: naming the file and the line that is no JSON, or names a column twice in an object, or holds half
            of a surrogate pair.
    """
    for number, text in _parts(file):
        try:
            values = list(_values(text.rstrip()))
        except (ValueError, RecursionError) as error:
            is_located = hasattr(error, "lineno") or "\n" not in text.strip()
            place = f"{file}, line {number + getattr(error, 'lineno', 1) - 1}," if is_located else file
            raise ValueError(f"cannot read {place} as json: {getattr(error, 'msg', error)}.") from error
        line = lone_surrogate_line(text.encode()) if "\\u" in text else None
        if line:
            raise ValueError(
                f"{file}, line {number + line - 1}, holds half of a surrogate pair (such as \\ud800 alone), which is "
                "no character. Repair the text."
            )
        for value in values:
            for row in value if isinstance(value, list) else [value]:
                yield row if isinstance(row, dict) else {"text": row}


def _parts(file: str) -> Iterable[tuple[int, str]]:
    """Each line with its number, or the whole file if its first line is not JSON by itself."""
    first = next(filter(str.strip, lines_of(file)), "")
    try:
        list(_values(first))
    except (ValueError, RecursionError):
        return [(1, "".join(lines_of(file)))]
    return enumerate(lines_of(file), start=1)


def _values(text: str) -> Iterator[Any]:
    place = _SPACE.match(text).end()
    while place < len(text):
        value, place = _DECODER.raw_decode(text, place)
        yield value
        place = _SPACE.match(text, place).end()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object names {max(names, key=names.count)!r} several times")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def json_types(file: str, *_: Any) -> Iterator[dict[str, str]]:
    """The names of the columns, in their order, each with a type that it holds: rows of `TYPE_FEATURES`."""
    found: dict[tuple[str, str], None] = {}
    for row in json_rows(file):
        for name, value in row.items():
            found[name, _type(value)] = None
    for name, kind in found:
        yield {"column": name, "type": kind}


def _type(value: Any) -> str:
    kind = _TYPES.get(type(value), "json")
    return "float64" if kind == "int64" and not -(2**63) <= value < 2**63 else kind


def json_features(types: Iterable[Mapping[str, str]]) -> Features:
    """
    The features of columns by what [`json_types`] found: `Json` where there are lists, objects, or several types.

    >>> types = [("a", "string"), ("b", "int64"), ("a", "null"), ("b", "string")]
    >>> json_features({"column": column, "type": kind} for column, kind in types)
    {'a': Value('string'), 'b': Json(decode=True)}
    """
    kinds: dict[str, set[str]] = {}
    for row in types:
        kinds.setdefault(row["column"], set()).add(row["type"])
    return Features({column: _feature(of_column - {"null"}) for column, of_column in kinds.items()})


def _feature(kinds: set[str]) -> Value | Json:
    if kinds == {"int64", "float64"}:
        return Value("float64")
    if len(kinds) > 1 or "json" in kinds:
        return Json()
    return Value(*kinds or {"null"})


def json_cells(file: str, _: Any, features: Features) -> Iterator[dict[str, Any]]:
    """The rows of a file with all columns, as a data set of these features stores them."""
    for row in json_rows(file):
        cells = {name: row.get(name) for name in features}
        # As JSON: of a text, `Json` would store what the text says.
        encoded = (name for name, value in cells.items() if value is not None and isinstance(features[name], Json))
        yield cells | {name: json.dumps(cells[name]) for name in encoded}
