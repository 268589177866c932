"""Arguments of the scripts: dataclasses filled from a file, from flags, or from a file and flags that override it."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from transformers.hf_argparser import string_to_bool

from ..errors import UserError
from ..suggestions import near_matches
from .config_files import CONFIG_SUFFIXES, Entry, read_config
from .exits import stop
from .help import ScriptParser

CUTOFF = 0.8  # of names that resemble each other: a wrong advice is worse than none
OTHER_CODE = (
    "settings are flags, `--name VALUE`, or lines `name: VALUE` of a file; docs/how_to/coming_from.md says what those "
    "of other code are called here"
)


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

    A dataclass may have

    - `_argument_group_name`, the topic of its flags in `--help`;
    - `option_groups`, which maps the name of a flag to fields that are options of it: of `{"config_overrides":
      ("d_model",)}`, `d_model` is given by `--config_overrides d_model=256`, by JSON, or in a file by a mapping;
    - `alternatives`, arguments of which one takes the place of another, each with those that belong to it: a flag for
      one of them also overrides the others in the file, `--train_file` its `dataset_name`;
    - `other_names`, which maps what a flag is called elsewhere to what to write here.

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
        if args and not args[0].startswith("-") and "=" not in args[0]:
            path = Path(args.pop(0))
            if path.suffix not in CONFIG_SUFFIXES:
                raise UserError(f"expected a flag or a file that ends in {', '.join(CONFIG_SUFFIXES)}, got '{path}'")
            parser.read_file(path)
        parser.step(args)
        parser.replace_alternatives()
        return parser.dataclasses()
    except ValueError as error:
        stop(str(error), usage=parser.parser.format_usage())


class _Parser:
    """
    Parses in steps (each entry of the file, then the flags) into one namespace, so that each error can name the place
    of the argument.
    """

    def __init__(self, dataclass_types: Sequence[type], description: str | None):
        self.parser = ScriptParser(list(dataclass_types), description)
        self.hints = {name: hint for kind in dataclass_types for name, hint in get_type_hints(kind).items()}
        self.alternatives = [one for kind in dataclass_types for one in getattr(kind, "alternatives", {}).items()]
        self.other_names = {
            name: advice for kind in dataclass_types for name, advice in getattr(kind, "other_names", {}).items()
        }
        self.groups = set(self.parser.group_of.values())
        self.namespace = argparse.Namespace()
        self.given: set[str] = set()  # the fields that the last step set
        self.required: list[str] = []
        self.actions: dict[str, argparse.Action] = {}  # by the name of the flag, `config_overrides.d_model`
        # argparse has no public list of its actions; this attribute exists since Python 2.7.
        for action in self.parser._actions:
            if action.required:  # checked after the last step, as the file or the flags may give it
                action.required, action.default = False, argparse.SUPPRESS
                self.required.append(action.dest)
            if action.type is not None and action.dest in self.hints:
                is_optional = type(None) in get_args(self.hints[action.dest])
                # Of transformers, some arguments take an empty text.
                action.type = _typed(action, is_optional, may_be_empty=action.dest in self.parser.stock_names)
                self.actions[action.option_strings[0][2:]] = action

    def read_file(self, path: Path) -> None:
        """Parse the entries of a configuration file as if they were flags."""
        entries = read_config(path)
        known = self.actions.keys() | self.groups
        unknown = [self.unknown(entry.name, f" ({entry.place})") for entry in entries if entry.name not in known]
        if unknown:
            raise UserError("\n".join(unknown))
        for entry in entries:
            self.read_entry(entry)

    def read_entry(self, entry: Entry) -> None:
        """Parse one entry of a configuration file, or one option of a flag."""
        value, place = entry.value, f" ({entry.place})" if entry.place else ""
        if entry.name in self.groups:
            if value is not None:
                self.read_options(entry.name, value, entry.place)
            return
        action = self.actions[entry.name]
        hint = self.hints[action.dest]
        kinds = {getattr(kind, "__origin__", kind) for kind in (hint, *get_args(hint))}
        if value is None and type(None) not in kinds:
            return  # not given
        if isinstance(value, dict):
            if dict not in kinds:
                raise UserError(f"argument `--{entry.name}`{place} takes one value, got a mapping")
            value = json.dumps(value)
        if not isinstance(value, list):
            self.parse([f"--{entry.name}={value}"], place)
        elif list not in kinds:
            raise UserError(f"argument `--{entry.name}`{place} takes one value, got a list")
        elif value and action.nargs == "+":
            texts = [json.dumps(item) if isinstance(item, dict) else str(item) for item in value]
            self.parse([f"--{entry.name}", *texts], place)
        else:  # an empty list, or a list for an argument such as `report_to`, whose flag takes one value
            setattr(self.namespace, action.dest, value)

    def read_options(self, group: str, value: Any, place: str = "") -> None:
        """Parse the options of a flag: a mapping, or `key=value,key=value`."""
        options = _options(value)
        if options is None:
            where = f" ({place})" if place else ""
            raise UserError(f"argument `--{group}`{where} takes KEY=VALUE,KEY=VALUE or a mapping, got {value!r}")
        for key, one in options.items():
            name = f"{group}.{key.replace('-', '_')}"
            if name not in self.actions:
                raise UserError(self.unknown(name, f" ({place})" if place else ""))
            self.read_entry(Entry(name, one, place))
            self.given.add(self.actions[name].dest)

    def step(self, args: Sequence[str]) -> None:
        """Parse the command line into the namespace, on top of what is there."""
        self.given = set()
        rest, texts = [], iter(args)
        for text in texts:
            name, equals, value = text[2:].partition("=") if text.startswith("--") else ("", "", "")
            if (group := name.replace("-", "_")) in self.groups:
                self.read_options(group, value if equals else next(texts, None))
            else:
                rest.append(text)
        flags = [text.partition("=")[0] for text in rest if text.startswith("--")]
        actions = [self.parser._option_string_actions[flag] for flag in flags if self._is_flag(flag)]
        self.given.update(action.dest for action in actions)
        for action in actions:
            if action.nargs == "+" and actions.count(action) > 1:  # argparse would take the last one alone
                flag = action.option_strings[0]
                raise UserError(f"argument `{flag}` is given twice: put all its values after one `{flag}`")
        self.parse(rest)

    def _is_flag(self, text: str) -> bool:
        return text in self.parser._option_string_actions

    def parse(self, args: Sequence[str], place: str = "") -> None:
        """Parse flags into the namespace, whose errors name the flag and its place."""
        try:
            _, rest = self.parser.parse_known_args(args, self.namespace)
        except argparse.ArgumentError as error:
            flag = f"argument `{(error.argument_name or '').split('/')[0]}`{place}"
            message = error.message
            raise UserError(f"{flag} {message}" if message.startswith("takes") else f"{flag}: {message}") from error
        unknown = [self.unknown(arg[2:].split("=", 1)[0], place) for arg in rest if arg.startswith("--")]
        if unknown:
            raise UserError("\n".join(unknown))
        if rest and "=" in rest[0]:  # as Hydra has it
            raise UserError(f"unexpected `{rest[0]}`: {OTHER_CODE}")
        if rest:
            file_note = " (a configuration file comes first)" if rest[0].endswith(CONFIG_SUFFIXES) else ""
            raise UserError(f"unexpected value {rest[0]!r}{place}{file_note}")

    def unknown(self, name: str, place: str = "") -> str:
        """The error message for an argument that does not exist."""
        message = f"unknown argument `--{name}`{place}"
        name = name.replace("-", "_")
        group = name.partition(".")[0]
        if "." in name and group not in self.groups:
            return f"{message}: {OTHER_CODE}"
        if name in self.parser.group_of:
            return f"{message}; {self._spelling(name)} gives it"
        if name.startswith("no_"):  # what is near is its contrary
            return f"{message}; `--help_all` lists all"
        if name in self.other_names:
            return f"{message}; {self.other_names[name]}"
        flags = {flag for flag in self.actions if "." not in flag} - {"hub_token"}  # which is refused
        options = {flag.rpartition(".")[2] for flag in self.actions if "." in flag}
        # An option, which is one of a single loader or model, is hardly ever meant where a flag is near.
        for names in [options] if "." in name else [flags, options]:
            near = near_matches(name.rpartition(".")[2], names, count=1, cutoff=CUTOFF)
            if near:
                return f"{message}; did you mean {self._spelling(near[0])}?"
        return f"{message}; `--help_all` lists all"

    def _spelling(self, name: str) -> str:
        group = self.parser.group_of.get(name)
        return f"`--{name}`" if group is None else f"`--{group} {name}=VALUE`"

    def replace_alternatives(self) -> None:
        """Forget what the file says of one source of data where a flag, already parsed, names another one."""
        defaults = {action.dest: action.default for action in self.actions.values()}
        for chosen, _ in self.alternatives:
            if chosen in self.given and getattr(self.namespace, chosen) not in (None, [None]):
                others = [name for other, its in self.alternatives if other != chosen for name in (other, *its)]
                for name in set(others) - self.given:
                    setattr(self.namespace, name, defaults[name])

    def dataclasses(self) -> tuple:
        """Instances of the dataclasses, after all steps; their own checks run here."""
        missing = [f"`--{name}`" for name in self.required if not hasattr(self.namespace, name)]
        if missing:
            raise UserError(f"missing: {', '.join(missing)}")
        # A list argument turns `None` into a list of one `None`.
        values = {name: None if value == [None] else value for name, value in vars(self.namespace).items()}
        return self.parser.parse_dict({name: values[name] for name in values if name in self.hints})


def _options(value: Any) -> dict[str, Any] | None:
    """The options of a flag by their names; `None` if they are not written as such."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return None
    if not isinstance(value, str):
        return value if isinstance(value, dict) else None
    pairs = [part.partition("=") for part in value.split(",")]
    if not all(key.strip() and equals for key, equals, _ in pairs):
        return None
    return {key.strip(): text.strip() for key, _, text in pairs}


def _typed(action: argparse.Action, is_optional: bool, may_be_empty: bool) -> Callable[[str], Any]:
    """The action's own conversion; takes `None` for an optional argument, and its errors say what is expected."""
    convert = action.type
    choices: Iterable[Any] | None = action.choices
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
