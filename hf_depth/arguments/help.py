"""What `--help` prints: our flags by topic, a line for each; with `--help_all` those of transformers as well."""

import argparse
import textwrap
from dataclasses import Field, fields
from typing import Any

from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

WIDTH = 120
OPTIONS = "KEY=VALUE,..."
TRANSFORMERS = "transformers' Seq2SeqTrainingArguments"
MORE = f"""\
Beside these there are all flags of {TRANSFORMERS}, such as --output_dir, --do_train, --do_eval,
--max_steps, --learning_rate, --per_device_train_batch_size, --eval_strategy, --save_total_limit, --bf16, --report_to.
`--help_all` explains them, and each KEY."""


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows each flag once, in one spelling, with a word for its value, and its choices and default in the text."""

    WORDS = {int: "INT", float: "FLOAT", string_to_bool: "BOOL"}
    MAX_CHOICES = 24  # characters of choices that stand beside the flag

    def __init__(self, prog: str, **kwargs: Any):
        super().__init__(prog, max_help_position=42, width=WIDTH, **kwargs)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        word = f"[{self._word(action)}]" if action.nargs == "?" else self._word(action)
        return f"{action.option_strings[0]} {word}{' ...' if action.nargs == '+' else ''}"

    def _word(self, action: argparse.Action) -> str:
        choices = self._choices(action)
        if choices and len(",".join(choices)) <= self.MAX_CHOICES:
            return f"{{{','.join(choices)}}}"
        return action.metavar or self.WORDS.get(getattr(action.type, "convert", action.type), "TEXT")

    def _choices(self, action: argparse.Action) -> list[str]:
        return [str(choice) for choice in action.choices or () if choice is not None]

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        choices = self._choices(action)
        if len(",".join(choices)) > self.MAX_CHOICES:
            text += f" One of {', '.join(choices)}."
        if action.metavar == OPTIONS or action.nargs == 0 or "default" in text.lower():
            return text
        if action.default is argparse.SUPPRESS:
            return f"{text} (required)"
        return text if action.default in (None, False) else f"{text} (default: %(default)s)"


class BriefHelpFormatter(HelpFormatter):
    """A line for each flag."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [textwrap.shorten(text, width, placeholder=" …")]


class _HelpAll(argparse.Action):
    """`--help_all`."""

    def __init__(self, option_strings: list[str], dest: str):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="show all flags, and exit")

    def __call__(self, parser: "ScriptParser", *_: Any) -> None:
        for action, text in parser.hidden.items():
            action.help = text
        parser.epilog, parser.formatter_class = None, HelpFormatter
        parser.print_help()
        parser.exit()


class ScriptParser(HfArgumentParser):
    """
    An `HfArgumentParser` for dataclasses with a topic (`_argument_group_name`), and with options: `option_groups` maps
    the name of a flag to those of fields that are options of it. The field `d_model` among the options of
    `config_overrides` is the flag `--config_overrides.d_model`.

    Args:
        dataclass_types: as for `HfArgumentParser`.
        description: the first lines of `--help`.
    """

    def __init__(self, dataclass_types: list[type], description: str | None):
        self.hidden: dict[argparse.Action, str] = {}  # from `--help`, with their texts
        stock = [
            base for kind in dataclass_types for base in kind.__mro__ if base.__module__.startswith("transformers.")
        ]
        self.stock_names = {name for base in stock for name in base.__dict__.get("__annotations__", {})}
        groups = [one for kind in dataclass_types for one in getattr(kind, "option_groups", {}).items()]
        self.group_of = {name: group for group, names in groups for name in names}
        super().__init__(
            dataclass_types,
            description=description,
            epilog=MORE if self.stock_names else None,
            usage="%(prog)s [CONFIG.yaml | CONFIG.json] [--argument VALUE ...]",  # instead of 150 flags
            formatter_class=BriefHelpFormatter,
            allow_abbrev=False,  # otherwise `--max_tr` would be taken as `--max_train_samples`
            exit_on_error=False,
        )
        self.add_argument("--help_all", action=_HelpAll)
        self._action_groups.sort(key=lambda group: group.title == TRANSFORMERS)

    def _add_dataclass_arguments(self, dtype: type) -> None:
        inherited = [item for item in fields(dtype) if item.name in self.stock_names]
        self.stock = self.add_argument_group(TRANSFORMERS) if inherited else None
        super()._add_dataclass_arguments(dtype)
        title = getattr(dtype, "_argument_group_name", None)
        parser = next((group for group in self._action_groups if group.title == title), self)
        for group, names in getattr(dtype, "option_groups", {}).items():
            options = ", ".join(names)
            parser.add_argument(f"--{group}", metavar=OPTIONS, dest=argparse.SUPPRESS, default=None, help=options)

    def _parse_dataclass_field(self, parser: argparse.ArgumentParser, field: Field) -> None:
        """Add the flags of a field, made by transformers: to its topic, to those of transformers, or as an option."""
        made = argparse.ArgumentParser(add_help=False)
        super()._parse_dataclass_field(made, field)
        action, *negations = made._actions
        if field.type == bool | None and field.default is None:  # else of `--flag` and `--no_flag` there is neither
            action.nargs, action.const = "?", True
            names = dict.fromkeys((f"--no_{field.name}", f"--no-{field.name.replace('_', '-')}"))
            negations = [made.add_argument(*names, action="store_false", dest=field.name, default=None)]
        group = self.group_of.get(field.name)
        if group is not None:
            action.option_strings, negations = [f"--{group}.{field.name}"], []
        if group is not None or field.name in self.stock_names:
            self.hidden[action], action.help = action.help, argparse.SUPPRESS
        for negation in negations:
            negation.help = argparse.SUPPRESS
        for each in (action, *negations):
            (self.stock if field.name in self.stock_names else parser)._add_action(each)
