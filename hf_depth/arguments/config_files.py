"""YAML and JSON files of arguments: each entry with its place in the file."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError
from ..suggestions import quotes_advice

CONFIG_SUFFIXES = (".yaml", ".yml", ".json")
# A character beyond 16 bits as JSON escapes it, which YAML reads as two that are none.
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")


@dataclass(frozen=True)
class Entry:
    """One `name: value` of a configuration file; a value is a string, a list of strings, a mapping or `None`."""

    name: str
    value: Any
    place: str = ""


def read_config(path: Path) -> list[Entry]:
    """
    Entries of a configuration file in their order, names spelt with underscores.

    Raises:
        `ValueError`: if the file cannot be read, is not a mapping from arguments to values, or gives an argument
            twice.
    """
    try:
        entries = _read(path)
    except OSError as error:
        raise UserError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the configuration file {path} is not UTF-8 text: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}," if mark else ""
        problem = getattr(error, "problem", None) or error
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise UserError(f"{path}{line} is not {kind}: {problem}{quotes_advice(problem)}") from error
    places: dict[str, str] = {}
    for entry in entries:
        if entry.name in places:
            raise UserError(f"argument `--{entry.name}` is given twice: {places[entry.name]} and {entry.place}")
        places[entry.name] = entry.place
    return entries


def _read(path: Path) -> list[Entry]:
    """
    Entries of a YAML file, or of a JSON file, which is YAML. Scalars stay text until argparse converts them: `1e-4` is
    a number, `no` may be text.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        text = text.replace("\t", " ")  # which may indent JSON, but no YAML
        text = _PAIR.sub(lambda pair: json.loads(f'"{pair[0]}"'), text)
    root = yaml.compose(text, Loader=yaml.BaseLoader)
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{path} must hold `argument: value` lines, got {'nothing' if root is None else root.id}")

    def name(key: yaml.Node) -> str:
        if not isinstance(key, yaml.ScalarNode):
            raise UserError(f"{path}, line {key.start_mark.line + 1}, must begin with a name, got a {key.id}")
        return key.value

    def mapping(node: yaml.MappingNode) -> dict[str, Any]:
        """What is passed on as JSON, so that its numbers must be numbers."""
        values: dict[str, Any] = {}
        for key, value in node.value:
            if name(key) in values:
                raise UserError(f"{path}, line {key.start_mark.line + 1}: {key.value!r} is given twice")
            values[key.value] = plain(value, is_typed=True)
        return values

    def plain(node: yaml.Node, is_typed: bool = False) -> Any:
        if isinstance(node, yaml.MappingNode):
            return mapping(node)
        if isinstance(node, yaml.SequenceNode):
            return [plain(item, is_typed) for item in node.value]
        if node.style is not None:  # quoted: text, whatever it looks like
            return node.value
        if (word := node.value.lower()) in ("", "~", "null"):
            return None
        try:
            return json.loads(word if word in ("true", "false") else node.value) if is_typed else node.value
        except ValueError:
            return node.value

    place = "in {}, line {}".format
    return [
        Entry(name(key).replace("-", "_"), plain(value), place(path, key.start_mark.line + 1))
        for key, value in root.value
    ]
