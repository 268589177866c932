"""Arguments of the scripts: dataclasses filled from a file, from flags, or from a file and flags that override it."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

from ..suggestions import near_matches, quotes_advice
from .exits import stop
from .removed_flags import LOG_IN, REMOVED_FLAGS
from .topics import OTHER, TOPICS, topic_of

CONFIG_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class _Entry:
    """One `name: value` of a configuration file; a value is a string, a list of strings, a mapping or `None`."""

    name: str
    value: Any
    place: str


def _read_yaml(path: Path) -> list[_Entry]:
    """Entries of a YAML file. Scalars stay text until argparse converts them: `1e-4` is a number, `no` may be text."""
    root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"{path} must hold `argument: value` lines, got {'nothing' if root is None else root.id}")

    def name(key: yaml.Node) -> str:
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"{path}, line {key.start_mark.line + 1}, must begin with a name, got a {key.id}")
        return key.value

    def plain(node: yaml.Node, typed: bool) -> Any:
        if isinstance(node, yaml.MappingNode):  # is passed on as JSON, so its numbers must be numbers
            return {name(key): plain(value, True) for key, value in node.value}
        if isinstance(node, yaml.SequenceNode):
            return [plain(item, typed) for item in node.value]
        if node.style is not None:  # quoted: text, whatever it looks like
            return node.value
        if (word := node.value.lower()) in ("", "~", "null"):
            return None
        try:
            return json.loads(word if word in ("true", "false") else node.value) if typed else node.value
        except ValueError:
            return node.value

    place = "in {}, line {}".format
    return [_Entry(name(key), plain(value, False), place(path, key.start_mark.line + 1)) for key, value in root.value]


def _read_json(path: Path) -> list[_Entry]:
    """Entries of a JSON file, with JSON's own types."""

    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{path} gives {name!r} twice")
        return dict(pairs)

    values = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=without_repeats)
    if not isinstance(values, dict):
        raise ValueError(f'{path} must hold one JSON object, {{"argument": value, ...}}')
    return [_Entry(name, value, f"in {path}") for name, value in values.items()]


def _read_config(path: Path) -> list[_Entry]:
    """
    Entries of a configuration file in their order, names spelt with underscores.

    Raises:
        `ValueError`: if the file cannot be read, is not a mapping from arguments to values, or gives an argument
            twice.
    """
    try:
        entries = _read_json(path) if path.suffix == ".json" else _read_yaml(path)
    except OSError as error:
        raise ValueError(f"cannot read the configuration file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the configuration file {path} is not UTF-8 text: {error}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}, is not JSON: {error.msg}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}," if mark else ""
        problem = getattr(error, "problem", None) or error
        raise ValueError(f"{path}{line} is not YAML: {problem}{quotes_advice(problem)}") from error
    places: dict[str, str] = {}
    for index, entry in enumerate(entries):
        entries[index] = entry = _Entry(entry.name.replace("-", "_"), entry.value, entry.place)
        if entry.name in places:
            raise ValueError(f"argument `--{entry.name}` is given twice: {places[entry.name]} and {entry.place}")
        places[entry.name] = entry.place
    return entries


def _typed(action: argparse.Action, is_optional: bool, may_be_empty: bool) -> Callable[[str], Any]:
    """The action's own conversion; takes `None` for an optional argument, and its errors say what is expected."""
    convert = action.type
    choices = action.choices
    texts = {int: "an integer", float: "a number", string_to_bool: "true or false", str: "text, or is left out"}
    expected = texts.get(convert, "another value")
    if choices is not None:
        expected = "one of " + ", ".join(str(choice) for choice in choices)
        action.choices = [*choices, None] if is_optional else choices  # argparse checks the converted value again

    def parse(text: str) -> Any:
        if is_optional and text in ("None", "null"):  # how a W&B sweep writes a null
            return None
        try:
            value = convert(text)
            if convert is str and value.startswith("~/"):  # which no shell replaces in a configuration file
                value = os.path.expanduser(value)
            # What is not set is an empty text in a shell, and in Python as good as not given: something else is read.
            if (choices is None or value in choices) and (value != "" or may_be_empty):
                return value
        except (ValueError, TypeError, argparse.ArgumentTypeError):
            pass
        raise argparse.ArgumentTypeError(f"takes {expected}, got {text!r}")

    parse.convert = convert  # which `--help` names
    return parse


def _flags(args: Sequence[str]) -> list[str]:
    """The names of the flags on a command line, in whatever spelling, as the fields have them."""
    return [arg[2:].split("=", 1)[0].replace("-", "_") for arg in args if arg.startswith("--")]


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows each flag once, in one spelling, with one word for its value, and its choices and default in the text."""

    WORDS = {int: "INT", float: "FLOAT", string_to_bool: "BOOL"}
    MAX_CHOICES = 40  # characters of choices that stand beside the flag

    def __init__(self, prog: str, **kwargs: Any):
        super().__init__(prog, max_help_position=10, **kwargs)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        flag = action.option_strings[0]
        if action.nargs == "?":  # true without a value
            word = self._word(action)
            has_no = action.default is True or action.default is None and word == "BOOL"
            return f"{flag} [{word}]" + (f", --no_{flag[2:]}" if has_no else "")
        return f"{flag} {self._word(action)}{' ...' if action.nargs == '+' else ''}"

    def _word(self, action: argparse.Action) -> str:
        choices = self._choices(action)
        if choices and len(",".join(choices)) <= self.MAX_CHOICES:
            return f"{{{','.join(choices)}}}"
        return self.WORDS.get(getattr(action.type, "convert", action.type), "TEXT")

    def _choices(self, action: argparse.Action) -> list[str]:
        return [str(choice) for choice in action.choices or () if choice is not None]  # see `_typed`

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        choices = self._choices(action)
        if len(",".join(choices)) > self.MAX_CHOICES:
            text += f" One of {', '.join(choices)}."
        if action.default is argparse.SUPPRESS and action.nargs != 0:
            return f"{text} (required)"
        says_it = "(default:" in text or action.default is None and "default" in text.lower()
        return text if says_it or action.nargs == 0 else f"{text} (default: %(default)s)"


class _TopicParser(HfArgumentParser):
    """An `HfArgumentParser` whose flags stand in `--help` by topic."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.topics: dict[str, argparse._ArgumentGroup] = {}
        super().__init__(*args, formatter_class=_HelpFormatter, **kwargs)

    def _parse_dataclass_field(self, parser: argparse.ArgumentParser, field: Field) -> None:
        if not self.topics:
            self.topics = {topic: self.add_argument_group(topic) for topic in (*TOPICS, OTHER)}
        group = self.topics[topic_of(field.name)]
        super()._parse_dataclass_field(group, field)
        if field.type == bool | None and field.default is None:  # else of `--flag` and `--no_flag` there is neither
            action = next(action for action in group._group_actions if action.dest == field.name)
            action.nargs, action.const = "?", True
            no_flag = (f"--no_{field.name}", f"--no-{field.name.replace('_', '-')}")
            group.add_argument(*dict.fromkeys(no_flag), action="store_false", dest=field.name, default=None)


class _Parser:
    """
    An `HfArgumentParser` that parses in steps (the file, then the flags) into one namespace, so that each error can
    name the place of the argument.
    """

    def __init__(self, dataclass_types: Sequence[type], description: str | None):
        self.parser = _TopicParser(
            dataclass_types,
            description=description,
            usage="%(prog)s [CONFIG.yaml | CONFIG.json] [--argument VALUE ...]",  # instead of 150 flags
            allow_abbrev=False,  # otherwise `--max_tr` would be taken as `--max_train_samples`
            exit_on_error=False,
        )
        self.hints = {name: hint for cls in dataclass_types for name, hint in get_type_hints(cls).items()}
        # Of transformers, some arguments take an empty text.
        stock = [
            base for cls in dataclass_types for base in cls.__mro__ if base.__module__.startswith("transformers.")
        ]
        stock_names = {name for cls in stock for name in cls.__dict__.get("__annotations__", {})}
        self.alternatives = [one for cls in dataclass_types for one in getattr(cls, "alternatives", {}).items()]
        self.namespace = argparse.Namespace()
        self.required: list[str] = []
        self.actions: dict[str, argparse.Action] = {}
        # argparse has no public list of its actions; this attribute exists since Python 2.7.
        for action in self.parser._actions:
            if action.required:  # checked after the last step, as the file or the flags may give it
                action.required, action.default = False, argparse.SUPPRESS
                self.required.append(action.dest)
            if action.type is not None and action.dest in self.hints:
                is_optional = type(None) in get_args(self.hints[action.dest])
                action.type = _typed(action, is_optional, may_be_empty=action.dest in stock_names)
                self.actions[action.dest] = action
            elif isinstance(action, argparse._StoreFalseAction):
                action.help = argparse.SUPPRESS  # `--no_flag` stands beside `--flag`

    def unknown(self, name: str, place: str) -> str:
        """The error message for an argument that does not exist."""
        parts = name.replace("-", "_").split(".")  # the earlier DEPTH code wrote `optim.base_lr`
        last_part = parts[-1]
        message = f"unknown argument `--{name}`{place}"
        for start in range(len(parts)):
            advice = REMOVED_FLAGS.get(".".join(parts[start:]))
            if advice is not None:
                return f"{message}: {advice}"
        near = near_matches(last_part, self.actions, count=1)
        if near == ["hub_token"]:  # which is refused
            return f"{message}: {LOG_IN}"
        return f"{message}; did you mean `--{near[0]}`?" if near else f"{message}; `--help` lists all arguments"

    def step(self, args: Sequence[str], place: str = "") -> None:
        """Parse `args` into the namespace, on top of what is there."""
        flags = _flags(args)
        for name, action in self.actions.items():
            if action.nargs == "+" and flags.count(name) > 1:  # argparse would take the last one alone
                raise ValueError(f"argument `--{name}`{place} is given twice: put all its values after one `--{name}`")
        try:
            _, rest = self.parser.parse_known_args(args, self.namespace)
        except argparse.ArgumentError as error:
            flag = f"argument `{(error.argument_name or '').split('/')[0]}`{place}"
            message = error.message
            raise ValueError(f"{flag} {message}" if message.startswith("takes") else f"{flag}: {message}") from error
        unknown = [self.unknown(arg[2:].split("=", 1)[0], place) for arg in rest if arg.startswith("--")]
        if unknown:
            raise ValueError("\n".join(unknown))
        if rest:
            file_note = " (a configuration file comes first)" if rest[0].endswith(CONFIG_SUFFIXES) else ""
            raise ValueError(f"unexpected value {rest[0]!r}{place}{file_note}")

    def read_file(self, path: Path) -> None:
        """Parse the entries of a configuration file as if they were flags."""
        entries = _read_config(path)
        unknown = [self.unknown(e.name, f" ({e.place})") for e in entries if e.name not in self.actions]
        if unknown:
            raise ValueError("\n".join(unknown))
        for entry in entries:
            self.read_entry(entry)

    def read_entry(self, entry: _Entry) -> None:
        """Parse one entry of a configuration file."""
        hint, value, place = self.hints[entry.name], entry.value, f" ({entry.place})"
        kinds = {getattr(kind, "__origin__", kind) for kind in (hint, *get_args(hint))}
        if value is None and type(None) not in kinds:
            return  # not given
        if isinstance(value, dict):
            if dict not in kinds:
                raise ValueError(f"argument `--{entry.name}`{place} takes one value, got a mapping")
            value = json.dumps(value)
        if not isinstance(value, list):
            self.step([f"--{entry.name}={value}"], place)
        elif list not in kinds:
            raise ValueError(f"argument `--{entry.name}`{place} takes one value, got a list")
        elif value and self.actions[entry.name].nargs == "+":
            texts = [json.dumps(item) if isinstance(item, dict) else str(item) for item in value]
            self.step([f"--{entry.name}", *texts], place)
        else:  # an empty list, or a list for an argument such as `report_to`, whose flag takes one value
            setattr(self.namespace, entry.name, value)

    def replace_alternatives(self, args: Sequence[str]) -> None:
        """Forget what the file says of one source of data where a flag, already parsed, names another one."""
        flags = set(_flags(args))
        for chosen, _ in self.alternatives:
            if chosen in flags and getattr(self.namespace, chosen) not in (None, [None]):
                others = [name for other, its in self.alternatives if other != chosen for name in (other, *its)]
                for name in set(others) - flags:
                    setattr(self.namespace, name, self.actions[name].default)

    def dataclasses(self) -> tuple:
        """Instances of the dataclasses, after all steps; their own checks run here."""
        missing = [f"`--{name}`" for name in self.required if not hasattr(self.namespace, name)]
        if missing:
            raise ValueError(f"missing: {', '.join(missing)}")
        # A list argument turns `None` into a list of one `None`.
        values = {name: None if value == [None] else value for name, value in vars(self.namespace).items()}
        return self.parser.parse_dict(values)


def parse_arguments(
    dataclass_types: Sequence[type],
    args: Sequence[str] | None = None,
    description: str | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> tuple:
    """
    Fill dataclasses from a YAML or JSON file, from flags, or from a file followed by flags that override it.

    The file maps argument names to values: `null` means `None` for an argument that may be `None` and "not given" for
    any other, a list gives an argument several values, a mapping goes to arguments that take JSON. Plain values are
    read as on the command line, so that `learning_rate: 1e-4` is a number and `eval_strategy: no` is the strategy.

    A dataclass may have `alternatives`: arguments of which one takes the place of another, each with those that belong
    to it. Then a flag for one of them also overrides the others in the file: `--train_file` its `dataset_name`.

    Args:
        dataclass_types (`Sequence[type]`): dataclasses as for `transformers.HfArgumentParser`, no field name twice.
        args (`Sequence[str]`, *optional*): the command line without the program's name; `sys.argv[1:]` by default.
        description (`str`, *optional*): first lines of `--help`.
        defaults (`Mapping[str, Any]`, *optional*): other defaults of arguments than those of the dataclasses.

    Returns:
        `tuple`: one instance of each dataclass, in their order.

    Raises:
        `SystemExit`: with code 2 if the file cannot be read, an argument is unknown or has a wrong value, or a
            dataclass refuses its values by a `ValueError`; a message on stderr names file, line, argument and value,
            and says what to do. With code 0 after `--help`.

    >>> from dataclasses import make_dataclass
    >>> parse_arguments([make_dataclass("Arguments", [("max_steps", int, 10)])], ["--max_steps", "100"])
    (Arguments(max_steps=100),)
    """
    args = list(sys.argv[1:] if args is None else args)
    parser = _Parser(dataclass_types, description)
    parser.parser.set_defaults(**(defaults or {}))
    try:
        if args and not args[0].startswith("-"):
            path = Path(args.pop(0))
            if path.suffix not in CONFIG_SUFFIXES:
                raise ValueError(f"expected a flag or a file that ends in {', '.join(CONFIG_SUFFIXES)}, got '{path}'")
            parser.read_file(path)
        parser.step(args)
        parser.replace_alternatives(args)
        return parser.dataclasses()
    except ValueError as error:
        stop(str(error), usage=parser.parser.format_usage())
