"""YAML without keys that are given twice, of which PyYAML takes the last without a word, and its errors in a line."""

from typing import Any

import yaml

from .errors import UserError


class UniqueKeyLoader(yaml.SafeLoader):
    """
    YAML's safe types; a key that occurs twice is an error.

    >>> yaml.load("{weight: 1, name: novels}", UniqueKeyLoader)
    {'weight': 1, 'name': 'novels'}
    """

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # Called perhaps repeatedly, also for what `<<` names. The first call puts keys of others before its own ones.
        keys = []  # no set: YAML allows keys that cannot be in one, for which there is an error elsewhere
        own = [] if hasattr(node, "has_unique_keys") else [key_node for key_node, _ in node.value]
        node.has_unique_keys = True
        for key_node in own:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if key in keys:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", key_node.start_mark)
            keys.append(key)
        super().flatten_mapping(node)


def yaml_problem(error: yaml.YAMLError) -> str:
    """
    What is wrong with a YAML file, in one line, to append to its name. (PyYAML's own text has several lines.)

    >>> try:
    ...     yaml.load("a: 1\\nb: c: 2", UniqueKeyLoader)
    ... except yaml.YAMLError as error:
    ...     yaml_problem(error)
    ', line 2: mapping values are not allowed here: put quotes round a text with a colon.'
    """
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    advice = ": put quotes round a text with a colon" if "mapping values are not allowed" in problem else ""
    return f"{f', line {mark.line + 1}' if mark else ''}: {problem}{advice}."


def load_yaml(text: str | bytes, source: str) -> Any:
    """What a YAML or JSON text holds; [`UserError`] that begins with `source`, the name of the text."""
    try:
        return yaml.load(text, UniqueKeyLoader)
    except yaml.YAMLError as error:
        raise UserError(f"{source}{yaml_problem(error)}") from error
