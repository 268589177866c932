"""Dataclasses filled from a file, from flags, or from both, and what is said about wrong ones."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from absl.testing import parameterized
from transformers import Seq2SeqTrainingArguments

from helpers import process_environment, script_arguments
from hf_depth.arguments.parser import parse_arguments


@dataclass
class Arguments:
    """One field of each kind that the scripts use."""

    output_dir: str | None = None
    learning_rate: float = 1e-3
    max_steps: int = 10
    max_train_samples: int | None = None
    streaming: bool = False
    shuffle: bool = True
    tie: bool | None = None
    train_file: list[str] | None = None
    columns: list[str] = field(default_factory=lambda: ["text"])
    model_type: Literal["depth", "t5"] = "depth"
    padding: Literal["longest", "max_length"] | None = "longest"
    lr_scheduler_kwargs: dict | str | None = None
    report_to: None | str | list[str] = "none"
    dropout_rate: float | None = 0.1

    def __post_init__(self):
        if self.learning_rate <= 0:
            raise ValueError(f"`--learning_rate` must be above 0, got {self.learning_rate}")


@dataclass
class OptionArguments:
    """Fields that are options of a flag."""

    _argument_group_name = "model"
    option_groups = {"config_overrides": ("d_model", "tied", "gated", "layers")}

    model_type: str = "depth"
    d_model: int | None = field(default=None, metadata={"help": "Hidden size."})
    tied: bool | None = None
    gated: bool = True
    layers: list[str] | None = None


@dataclass
class RequiredArguments:
    dataset_name: str
    text_column: str = "text"


class ArgumentsTestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(self.enterContext(TemporaryDirectory()))

    def config(self, text, name="run.yaml"):
        path = self.folder / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return str(path)

    def message(self, args, types=(Arguments,)):
        """The error message for a rejected command line."""
        output = io.StringIO()
        with contextlib.redirect_stderr(output), self.assertRaises(SystemExit) as context:
            parse_arguments(types, args)
        self.assertEqual(context.exception.code, 2)
        self.assertNotIn("Traceback", output.getvalue())
        self.assertLess(len(output.getvalue()), 600)  # the message, not the usage of 150 flags
        return output.getvalue()


class ParseArgumentsTest(ArgumentsTestCase):
    def test_other_defaults_give_way_to_what_is_given(self):
        defaults = {"max_steps": 3, "model_type": "t5", "columns": ["body"]}
        (arguments,) = parse_arguments([Arguments], ["--max_steps", "10"], defaults=defaults)
        self.assertEqual((arguments.max_steps, arguments.model_type, arguments.columns), (10, "t5", ["body"]))

    @parameterized.named_parameters(
        ("nothing", [], {}),
        ("separate", ["--max_steps", "7"], {"max_steps": 7}),
        ("joined", ["--max_steps=7"], {"max_steps": 7}),
        ("bare_boolean", ["--streaming"], {"streaming": True}),
        ("boolean_with_value", ["--streaming=True"], {"streaming": True}),
        ("negated_boolean", ["--no_shuffle"], {"shuffle": False}),
        ("list", ["--train_file", "a.txt", "b.txt"], {"train_file": ["a.txt", "b.txt"]}),
        ("last_wins", ["--max_steps", "7", "--max_steps", "8"], {"max_steps": 8}),
        ("json", ["--lr_scheduler_kwargs", '{"min_lr": 1e-5}'], {"lr_scheduler_kwargs": '{"min_lr": 1e-5}'}),
        ("none_for_a_number", ["--max_train_samples=None"], {"max_train_samples": None}),
        ("none_for_a_list", ["--train_file=None"], {"train_file": None}),
    )
    def test_flags_fill_the_dataclass(self, args, expected):
        (arguments,) = parse_arguments([Arguments], args)
        self.assertEqual(arguments, Arguments(**expected))

    def test_a_tilde_is_the_home_folder(self):
        path = self.config("train_file: [~/a.txt, b~/c.txt]\noutput_dir: ~/runs\n")
        (arguments,) = parse_arguments([Arguments], [path])
        home = os.path.expanduser("~")
        self.assertEqual(arguments, Arguments(output_dir=f"{home}/runs", train_file=[f"{home}/a.txt", "b~/c.txt"]))

    def test_the_values_of_a_yaml_file(self):
        path = self.config("""\
            # every kind of value
            output_dir: runs/0123
            learning_rate: 1e-4
            max-steps: 1_000
            max_train_samples: null
            streaming: yes
            shuffle: false
            train_file: [a.txt, 'b c.txt']
            columns:
              - -leading-dash
            model_type: t5
            lr_scheduler_kwargs: {min_lr: 1e-5, cycles: 2, name: cosine, quoted: '3'}
            report_to: [wandb, tensorboard]
            """)
        with self.subTest("a list item that looks like a flag is refused"):
            self.assertIn("`--columns`", self.message([path]))
        path = self.config(Path(path).read_text().replace("-leading-dash", "leading"))
        (arguments,) = parse_arguments([Arguments], [path])
        kwargs = json.loads(arguments.lr_scheduler_kwargs)
        self.assertEqual(kwargs, {"min_lr": 1e-5, "cycles": 2, "name": "cosine", "quoted": "3"})
        expected = Arguments(
            output_dir="runs/0123",
            learning_rate=1e-4,
            max_steps=1000,
            streaming=True,
            shuffle=False,
            train_file=["a.txt", "b c.txt"],
            columns=["leading"],
            model_type="t5",
            lr_scheduler_kwargs=arguments.lr_scheduler_kwargs,
            report_to=["wandb", "tensorboard"],
        )
        self.assertEqual(arguments, expected)

    def test_mappings_in_a_list_are_passed_on_as_json(self):
        config = self.config("train_file:\n- {name: a, weight: 1e-1, train_file: [x.txt]}\n- y.txt\n")
        (arguments,) = parse_arguments([Arguments], [config])
        self.assertEqual(json.loads(arguments.train_file[0]), {"name": "a", "weight": 0.1, "train_file": ["x.txt"]})
        self.assertEqual(arguments.train_file[1], "y.txt")

    def test_yaml_booleans_stay_text_for_arguments_that_take_text(self):
        path = self.config("output_dir: unused\neval_strategy: no\nsave_strategy: 'no'\nuse_cpu: yes\n")
        (arguments,) = parse_arguments([Seq2SeqTrainingArguments], [path])
        self.assertEqual((arguments.eval_strategy, arguments.save_strategy, arguments.use_cpu), ("no", "no", True))

    def test_flags_override_the_file(self):
        path = self.config("max_steps: 5\nlearning_rate: 0.5\nstreaming: true\ntrain_file: [a.txt, b.txt]\n")
        flags = ["--max_steps", "9", "--streaming", "false", "--train_file", "c.txt"]
        (arguments,) = parse_arguments([Arguments], [path, *flags])
        self.assertEqual(arguments, Arguments(max_steps=9, learning_rate=0.5, train_file=["c.txt"]))

    def test_a_required_argument_may_come_from_the_file_or_a_flag(self):
        path = self.config("text_column: body\n")
        expected = (RequiredArguments("novels", "body"),)
        self.assertEqual(parse_arguments([RequiredArguments], [path, "--dataset_name", "novels"]), expected)
        self.assertIn("missing: `--dataset_name`", self.message([path], [RequiredArguments]))

    @parameterized.named_parameters(
        ("pairs", ["--config_overrides", "d_model=64,tied=false"], {"d_model": 64, "tied": False}),
        (
            "json",
            ["--config_overrides", '{"d_model": 64, "layers": ["a", "b"]}'],
            {"d_model": 64, "layers": ["a", "b"]},
        ),
        ("by_itself", ["--config_overrides.d_model", "64"], {"d_model": 64}),
        ("switched_off", ["--config_overrides", "gated=false"], {"gated": False}),
    )
    def test_options_of_a_flag_fill_their_fields(self, args, expected):
        self.assertEqual(parse_arguments([OptionArguments], args), (OptionArguments(**expected),))

    def test_options_of_a_flag_override_those_of_the_file_one_by_one(self):
        path = self.config("config_overrides:\n  d_model: 32\n  tied: no\n  layers: [a]\nmodel_type: t5\n")
        (arguments,) = parse_arguments([OptionArguments], [path, "--config_overrides", "d_model=64"])
        self.assertEqual(arguments, OptionArguments("t5", d_model=64, tied=False, layers=["a"]))

    def help(self, types, flag="--help"):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), self.assertRaises(SystemExit) as context:
            parse_arguments(types, [flag], description="Trains a model.")
        self.assertEqual(context.exception.code, 0)
        return output.getvalue()

    @parameterized.parameters(
        (Arguments, ("--max_train_samples", "{depth,t5}", "{longest,max_length}")),
        (Seq2SeqTrainingArguments, ("--save_total_limit", "--predict_with_generate")),
        (OptionArguments, ("--config_overrides.d_model INT", "Hidden size.")),
    )
    def test_all_arguments_are_explained_on_demand(self, dataclass_type, expected):
        for text in ("Trains a model.", "[CONFIG.yaml | CONFIG.json]", *expected):
            self.assertIn(text, self.help([dataclass_type], "--help_all"))

    @parameterized.parameters(
        "examples/pretrain_t5.py",
        "examples/fine_tune_t5.py",
        "examples/compare_checkpoints.py",
        "examples/build_pmi_vocabulary.py",
        "examples/evaluate_minimal_pairs.py",
    )
    def test_help_shows_our_flags_of_a_script_once_each_in_a_line_by_topic(self, script):
        types = script_arguments(script)
        text = self.help(types)
        ours = {item.name for kind in types for item in fields(kind) if item.init}
        is_training = any(issubclass(kind, Seq2SeqTrainingArguments) for kind in types)
        if is_training:
            ours -= {item.name for item in fields(Seq2SeqTrainingArguments)}
            self.assertIn("`--help_all` explains them", text)
        for group, names in (one for kind in types for one in getattr(kind, "option_groups", {}).items()):
            ours = ours - set(names) | {group}
            self.assertContainsSubset(names, [item.name for kind in types for item in fields(kind)])
        shown = re.findall(r"^  --(\w+)", text, re.MULTILINE)
        self.assertCountEqual([name for name in shown if name != "help_all"], ours)
        self.assertLessEqual(len(ours), 50)
        self.assertLess(text.count("\n"), 80)
        for kind in types:
            self.assertIn(f"\n{kind._argument_group_name}:\n", text)

    def test_help_and_a_typo_wait_for_no_model_and_no_data(self):
        """Each of these takes about as long to import as all that a parser needs."""
        # Where peft is installed, transformers imports it and models with its training arguments.
        code = "import sys; sys.modules['peft'] = None; import {0}; print({{'{1}'}} & sys.modules.keys())"
        heavy = "','".join(("datasets", "pandas", "scipy", "transformers.modeling_utils", "transformers.trainer"))
        modules = "hf_depth.arguments.data_args, hf_depth.arguments.task_args, hf_depth.training.training_args"
        modules += ", hf_depth.training.checkpoints.stopping"
        command = [sys.executable, "-c", code.format(modules, heavy)]
        process = subprocess.run(command, env=process_environment(), capture_output=True, text=True)
        self.assertEqual(process.stdout, "set()\n", process.stderr)


class ErrorTest(ArgumentsTestCase):
    @parameterized.named_parameters(
        ("misspelt", ["--lerning_rate", "1"], "unknown argument `--lerning_rate`; did you mean `--learning_rate`?"),
        ("nothing_near", ["--zzz"], "unknown argument `--zzz`; `--help_all` lists all"),
        ("hydra", ["--optim.base_lr=1"], "unknown argument `--optim.base_lr`: settings are flags, `--name VALUE`"),
        ("integer", ["--max_steps", "abc"], "argument `--max_steps` takes an integer, got 'abc'"),
        ("number", ["--learning_rate=fast"], "argument `--learning_rate` takes a number, got 'fast'"),
        ("boolean", ["--streaming", "maybe"], "argument `--streaming` takes true or false, got 'maybe'"),
        ("choice", ["--model_type", "bert"], "argument `--model_type` takes one of depth, t5, got 'bert'"),
        ("empty", ["--train_file", ""], "argument `--train_file` takes text, or is left out, got ''"),
        ("repeated", ["--train_file", "a", "--train_file", "b"], "put all its values after one `--train_file`"),
        ("no_value", ["--max_steps"], "argument `--max_steps`: expected one argument"),
        ("stray_value", ["--max_steps", "1", "2"], "unexpected value '2'"),
        ("late_file", ["--max_steps", "1", "a.yaml"], "'a.yaml' (a configuration file comes first)"),
        ("no_file", ["missing.yaml"], "cannot read the configuration file missing.yaml: No such file"),
        ("no_config", ["data.txt"], "expected a flag or a file that ends in .yaml, .yml, .json, got 'data.txt'"),
        ("refused_by_the_dataclass", ["--learning_rate=-1"], "`--learning_rate` must be above 0, got -1.0"),
    )
    def test_a_wrong_flag_is_named_with_advice(self, args, expected):
        self.assertIn(expected, self.message(args))

    @parameterized.named_parameters(
        (
            "as_a_flag",
            ["--d_model", "64"],
            "unknown argument `--d_model`; `--config_overrides d_model=VALUE` gives it",
        ),
        (
            "misspelt",
            ["--config_overrides", "d_modle=64"],
            "`--config_overrides.d_modle`; did you mean `--config_over",
        ),
        ("integer", ["--config_overrides", "d_model=big"], "`--config_overrides.d_model` takes an integer, got 'big'"),
        (
            "no_pair",
            ["--config_overrides", "64"],
            "`--config_overrides` takes KEY=VALUE,KEY=VALUE or a mapping, got '64'",
        ),
    )
    def test_a_wrong_option_of_a_flag_is_named(self, args, expected):
        self.assertIn(expected, self.message(args, [OptionArguments]))

    @parameterized.named_parameters(
        ("misspelt", "config_overrides: {d_modle: 64}", "`--config_overrides.d_modle` (in {}, line 1); did you mean"),
        (
            "integer",
            "config_overrides:\n  d_model: big\n",
            "`--config_overrides.d_model` (in {}, line 1) takes an int",
        ),
        ("twice", "config_overrides:\n  d_model: 1\n  d_model: 2\n", "{}, line 3: 'd_model' is given twice"),
    )
    def test_a_wrong_option_in_a_file_is_named(self, text, expected):
        path = self.config(text)
        self.assertIn(expected.replace("{}", path), self.message([path], [OptionArguments]))

    @parameterized.named_parameters(
        ("misspelt", "max_steps: 1\nlerning_rate: 1\n", "`--lerning_rate` (in {}, line 2); did you mean `--learning_"),
        ("integer", "\nmax_steps: abc\n", "argument `--max_steps` (in {}, line 2) takes an integer, got 'abc'"),
        ("list", "max_steps: [1, 2]\n", "argument `--max_steps` (in {}, line 1) takes one value, got a list"),
        ("twice", "max_steps: 1\nmax-steps: 2\n", "`--max_steps` is given twice: in {0}, line 1 and in {0}, line 2"),
        ("no_mapping", "- max_steps\n", "{} must hold `argument: value` lines, got sequence"),
        ("empty", "# nothing\n", "{} must hold `argument: value` lines, got nothing"),
        ("syntax", "max_steps: 1\ntrain_file: [a\n", "{}, line 3, is not YAML"),
    )
    def test_a_wrong_yaml_file_is_named_with_its_line(self, text, expected):
        path = self.config(text)
        self.assertIn(expected.format(path), self.message([path]))

    def test_a_json_file_may_escape_any_character(self):
        (arguments,) = parse_arguments(
            [Arguments], [self.config(json.dumps({"train_file": ["\U0001f600.txt"]}), "run.json")]
        )
        self.assertEqual(arguments.train_file, ["\U0001f600.txt"])

    @parameterized.named_parameters(
        ("misspelt", '{"lerning_rate": 1}', "`--lerning_rate` (in {}, line 1); did you mean `--learning_rate`?"),
        ("integer", '{"max_steps": 1.5}', "argument `--max_steps` (in {}, line 1) takes an integer, got '1.5'"),
        ("syntax", '{\n"max_steps": 1\n', "{}, line 3, is not JSON"),
    )
    def test_a_wrong_json_file_is_named(self, text, expected):
        path = self.config(text, "run.json")
        self.assertIn(expected.replace("{}", path), self.message([path]))

    def test_a_file_that_is_not_utf8_is_named(self):
        path = self.folder / "latin.yaml"
        path.write_bytes("output_dir: caf\u00e9\n".encode("latin-1"))
        self.assertIn(f"{path} is not UTF-8", self.message([str(path)]))

    def test_all_unknown_arguments_are_named_at_once(self):
        message = self.message(["--lerning_rate", "1", "--max_steps", "1", "--streamin"])
        self.assertIn("`--learning_rate`", message)
        self.assertIn("`--streaming`", message)
