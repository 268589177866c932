"""Arguments of the scripts: dataclasses filled from a file, from flags, or from a file and flags that override it."""

import argparse
import difflib
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from transformers import HfArgumentParser
from transformers.hf_argparser import string_to_bool

CONFIG_SUFFIXES = (".yaml", ".yml", ".json")
DEFAULT_OUTPUT_DIR = "trainer_output"  # of the host

# Arguments with another name today: those renamed by transformers 5, and those of the earlier systems
# (zbambergerNLP/depth, zbambergerNLP/principled-pre-training). Sections count if the whole name is listed here.
_RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "no_cuda": "use_cpu",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_organization": "hub_model_id",
    "push_to_hub_token": "hub_token",
    "include_inputs_for_metrics": "include_for_metrics inputs",
    "include_tokens_per_second": "include_num_input_tokens_seen",
    "group_by_length": "train_sampling_strategy group_by_length",
    "adafactor": "optim adafactor",
    "torchdynamo": "torch_compile_backend",
    "base_lr": "learning_rate",
    "lr": "learning_rate",
    "total_steps": "max_steps",
    "epochs": "num_train_epochs",
    "lr_scheduler": "lr_scheduler_type",
    "optimizer": "optim",
    "optim.name": "optim",
    "grad_acc": "gradient_accumulation_steps",
    "training_accumulation_steps": "gradient_accumulation_steps",
    "grad_clip": "max_grad_norm",
    "compile": "torch_compile",
    "input_length": "max_source_length",
    "input_seq_length": "max_source_length",
    "max_seq_length": "max_source_length",
    "target_length": "max_target_length",
    "target_seq_length": "max_target_length",
    "noise_density": "mlm_probability",
    "merge_examples": "pack_examples",
    "buffer_size": "shuffle_buffer_size",
    "text_column_name": "text_column",
    "num_train_examples": "max_train_samples",
    "training_set.num_examples": "max_train_samples",
    "num_validation_examples": "max_eval_samples",
    "validation_set.num_examples": "max_eval_samples",
    "evaluate.steps": "max_eval_samples",
    "model_implementation": "model_type",
    "model.name": "model_name_or_path",
    "tokenizer": "tokenizer_name",
    "dataset.path": "dataset_name",
    "dataset.name": "dataset_config_name",
    "pre_training_dataset_paths": "dataset_name",
    "pre_training_dataset_names": "dataset_config_name",
    "num_beams": "generation_num_beams",
    "generation.max_length": "generation_max_length",
    "eval_with_beam_search": "generation_num_beams",
    "penalty_alpha": "generation_config",
    "benchmark_dataset": "dataset_name",
    "test_results_save_dir": "output_dir",
    "use_deepspeed": "deepspeed FILE",
    "deepspeed_config": "deepspeed FILE",
    "deepspeed_config_path": "deepspeed FILE",
    "wandb": "report_to wandb",
}

_ONE_MIXED_PRECISION = "leave it out: `--bf16` and `--fp16` always use PyTorch's own mixed precision"
_TWO_USES_OF_A_CHECKPOINT = "`--model_name_or_path` starts from its weights, `--resume_from_checkpoint` continues it"
_LAUNCHER_SETS_FSDP = "leave it out: the accelerate configuration describes the sharding"

# What to do about an argument that a script does not take. An argument that it does take is never looked up here.
REMOVED_FLAGS = {name: f"use `--{new_name}`" for name, new_name in _RENAMED.items()} | {
    "warmup_ratio": "give `--warmup_steps` a number below 1: 0.1 warms up over a tenth of all steps",
    "overwrite_output_dir": "a run continues the last checkpoint in its `--output_dir`; to start anew, name another",
    "logging_dir": "set the environment variable TENSORBOARD_LOGGING_DIR",
    "save_safetensors": "leave it out: weights are always saved as safetensors",
    "use_mps_device": "leave it out: an Apple GPU is used unless `--use_cpu` is given",
    "use_ipex": "leave it out: transformers 5 removed it",
    "jit_mode_eval": "use `--torch_compile`",
    "fp16_opt_level": _ONE_MIXED_PRECISION,
    "fp16_backend": _ONE_MIXED_PRECISION,
    "half_precision_backend": _ONE_MIXED_PRECISION,
    "tpu_num_cores": "give `--num_processes` to `accelerate launch`",
    "tpu_metrics_debug": "leave it out: transformers 5 removed it",
    "fsdp_min_num_params": _LAUNCHER_SETS_FSDP,
    "fsdp_transformer_layer_cls_to_wrap": _LAUNCHER_SETS_FSDP,
    "past_index": "leave it out: transformers 5 removed it",
    "mp_parameters": "leave it out: transformers 5 removed it",
    "ray_scope": "leave it out: transformers 5 removed it",
    "use_legacy_prediction_loop": "leave it out: transformers 5 removed it",
    "dispatch_batches": "use `--accelerator_config '{\"dispatch_batches\": false}'`",
    "split_batches": "use `--accelerator_config '{\"split_batches\": true}'`",
    "config": "put the file first and without a flag: SCRIPT CONFIG.yaml --max_steps 100",
    "config_file": "put the file first and without a flag: SCRIPT CONFIG.yaml --max_steps 100",
    "mode": "pre-training and fine-tuning are two scripts: pretrain_t5.py and fine_tune_t5.py",
    "device": "use `--use_cpu` for the CPU; a GPU is used where there is one",
    "num_gpus": "give `--num_processes` to `accelerate launch`",
    "num_cpus": "use `--dataloader_num_workers` and `--preprocessing_num_workers`",
    "num_workers": "use `--dataloader_num_workers` and `--preprocessing_num_workers`",
    "precision": "use `--bf16` or `--fp16`",
    "dtype": "use `--bf16` or `--fp16`; the weights stay in float32",
    "eval_only": "use `--do_eval` without `--do_train`",
    "predict_only": "use `--do_predict` without `--do_train`",
    "random_init": "leave out `--model_name_or_path`: without it the model starts from scratch",
    "from_scratch": "leave out `--model_name_or_path`: without it the model starts from scratch",
    "initialize_from_scratch": "leave out `--model_name_or_path`: without it the model starts from scratch",
    "batch_size": "use `--per_device_train_batch_size`: it counts per process and per accumulation step",
    "final_cosine": "use `--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs '{\"min_lr\": 1e-5}'`",
    "every_steps": "use `--logging_steps`, `--eval_steps` or `--save_steps`",
    "data_collator": "leave it out: it follows from `--model_type`",
    "columns_to_remove": "leave it out: only `--text_column` is read",
    "checkpoint_path": _TWO_USES_OF_A_CHECKPOINT,
    "local_checkpoint_path": _TWO_USES_OF_A_CHECKPOINT,
    "resume": "a run continues the last checkpoint in its `--output_dir` or that of `--resume_from_checkpoint`",
    "percent_of_dataset": "use `--max_train_samples`",
    "num_shards": "leave it out: a stream is divided by the files of the data set",
    "is_bf16": "use `--bf16`",
    "eval_with_teacher_forcing": "leave it out: fine-tuning never scores by teacher forcing, pre-training generates "
    "only with `--predict_with_generate`",
    "benchmark_constants": "give `--benchmark` to fine_tune_t5.py",
    "mnli_sub_dir": "leave it out: both validation sets of mnli are evaluated",
    "training_padding_token_id": "leave it out: labels are always padded with -100",
    "tokenized_dataset_dir": "leave it out: prepared text is kept in the datasets cache, see `--overwrite_cache`",
    "grad_l2": "leave it out: the gradient norm is always logged",
    "weights_l2": "leave it out: only the gradient norm is logged",
    "wandb_creds.project": "set the environment variable WANDB_PROJECT",
    "wandb_project": "set the environment variable WANDB_PROJECT",
    "last_run_id": "set the environment variable WANDB_RUN_ID",
    "neptune": "use `--report_to wandb`",
    "token": "log in once by `hf auth login`, or set HF_TOKEN: a flag would stay in logs",
    "use_auth_token": "log in once by `hf auth login`, or set HF_TOKEN: a flag would stay in logs",
}


@dataclass(frozen=True)
class _Entry:
    """One `name: value` of a configuration file; a value is a string, a list of strings, a mapping or `None`."""

    name: str
    value: Any
    place: str


def _read_yaml(path: Path) -> list[_Entry]:
    """Entries of a YAML file. Scalars stay text: argparse types them, so `1e-4` is a number and `no` no boolean."""
    root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"{path} must hold `argument: value` lines, got {'nothing' if root is None else root.id}")

    def name(key: yaml.Node) -> str:
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"{path}, line {key.start_mark.line + 1}, must begin with a name, got a {key.id}")
        return key.value

    def plain(node: yaml.Node, typed: bool) -> Any:
        if isinstance(node, yaml.MappingNode):  # goes on as JSON, so its numbers must be numbers
            return {name(key): plain(value, True) for key, value in node.value}
        if isinstance(node, yaml.SequenceNode):
            return [plain(item, typed) for item in node.value]
        if node.style is not None:  # quoted: text, whatever it looks like
            return node.value
        if node.value.lower() in ("", "~", "null"):
            return None
        try:
            return json.loads(node.value) if typed else node.value
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
        `ValueError`: naming the file, and the line where there is one, if it cannot be read, is no mapping from
        arguments to values, or gives an argument twice.
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
        raise ValueError(f"{path}{line} is not YAML: {getattr(error, 'problem', None) or error}") from error
    places: dict[str, str] = {}
    for index, entry in enumerate(entries):
        entries[index] = entry = _Entry(entry.name.replace("-", "_"), entry.value, entry.place)
        if entry.name in places:
            raise ValueError(f"argument `--{entry.name}` is given twice: {places[entry.name]} and {entry.place}")
        places[entry.name] = entry.place
    return entries


def _typed(action: argparse.Action, is_optional: bool) -> Callable[[str], Any]:
    """The action's own conversion, with `None` for optional arguments and errors that say what is expected."""
    convert = action.type
    choices = action.choices
    expected = {int: "an integer", float: "a number", string_to_bool: "true or false"}.get(convert, "another value")
    if choices is not None:
        expected = "one of " + ", ".join(str(choice) for choice in choices)
        action.choices = [*choices, None] if is_optional else choices  # argparse checks the result once more

    def parse(text: str) -> Any:
        if is_optional and text in ("None", "null"):  # how a W&B sweep writes a null
            return None
        try:
            value = convert(text)
            if choices is None or value in choices:
                return value
        except (ValueError, TypeError, argparse.ArgumentTypeError):
            pass
        raise argparse.ArgumentTypeError(f"takes {expected}, got {text!r}")

    return parse


class _Parser:
    """
    An `HfArgumentParser` read in steps (the file, then the flags) into one namespace, so that each complaint can say
    where the argument stands.
    """

    def __init__(self, dataclass_types: Sequence[type], removed_flags: Mapping[str, str], description: str | None):
        self.parser = HfArgumentParser(
            dataclass_types,
            description=description,
            usage="%(prog)s [CONFIG.yaml | CONFIG.json] [--argument VALUE ...]",  # not some 150 flags
            allow_abbrev=False,  # `--lr` is no flag by being the beginning of one
            exit_on_error=False,
        )
        self.removed_flags = removed_flags
        self.hints = {name: hint for cls in dataclass_types for name, hint in get_type_hints(cls).items()}
        self.namespace = argparse.Namespace()
        self.required = []
        self.actions = {}
        # argparse has no public list of its actions; this attribute has been there since Python 2.7.
        for action in self.parser._actions:
            if action.required:  # checked after the last step: the file or the flags may give it
                action.required, action.default = False, argparse.SUPPRESS
                self.required.append(action.dest)
            if action.type is not None and action.dest in self.hints:
                action.type = _typed(action, is_optional=type(None) in get_args(self.hints[action.dest]))
                self.actions[action.dest] = action

    def unknown(self, name: str, place: str) -> str:
        """What to say of an argument that does not exist."""
        parts = name.replace("-", "_").split(".")  # the earlier DEPTH code wrote `optim.base_lr`
        last_part = parts[-1]
        message = f"unknown argument `--{name}`{place}"
        for start in range(len(parts)):
            advice = self.removed_flags.get(".".join(parts[start:]))
            if advice is not None:
                return f"{message}: {advice}"
        near = difflib.get_close_matches(last_part, self.actions, n=1)
        return f"{message}; did you mean `--{near[0]}`?" if near else f"{message}; `--help` lists all arguments"

    def step(self, args: Sequence[str], place: str = "") -> None:
        """Parse `args` into the namespace, on top of what is there."""
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
            self.step([f"--{entry.name}", *map(str, value)], place)
        else:  # an empty list, or a list for an argument such as `report_to`, whose flag takes one value
            setattr(self.namespace, entry.name, value)

    def dataclasses(self) -> tuple:
        """The dataclasses, after all steps; their own checks run here."""
        missing = [f"`--{name}`" for name in self.required if not hasattr(self.namespace, name)]
        if missing:
            raise ValueError(f"missing: {', '.join(missing)}")
        # A list argument turns `None` into a list of one `None`.
        values = {name: None if value == [None] else value for name, value in vars(self.namespace).items()}
        return self.parser.parse_dict(values)


def parse_arguments(
    dataclass_types: Sequence[type],
    args: Sequence[str] | None = None,
    removed_flags: Mapping[str, str] = REMOVED_FLAGS,
    description: str | None = None,
) -> tuple:
    """
    Fill dataclasses from a YAML or JSON file, from flags, or from a file followed by flags that override it.

    The file maps argument names to values: `null` means `None` for an argument that may be `None` and "not given" for
    any other, a list gives an argument several values, a mapping goes to arguments that take JSON. Plain values are
    read as on the command line, so `learning_rate: 1e-4` and `eval_strategy: no` mean what they say.

    Args:
        dataclass_types (`Sequence[type]`): dataclasses as for `transformers.HfArgumentParser`, no field name twice.
        args (`Sequence[str]`, *optional*): the command line without the program's name; `sys.argv[1:]` by default.
        removed_flags (`Mapping[str, str]`): argument name -> advice for names that no dataclass has.
        description (`str`, *optional*): first lines of `--help`.

    Returns:
        `tuple`: one instance of each dataclass, in their order.

    Raises:
        `SystemExit`: with code 2 after a message on stderr that names file, line, argument, value and remedy, if the
        file cannot be read, an argument is unknown or has a wrong value, or a dataclass refuses its values by a
        `ValueError`; with code 0 after `--help`.

    >>> from dataclasses import make_dataclass
    >>> parse_arguments([make_dataclass("Arguments", [("max_steps", int, 10)])], ["--max_steps", "100"])
    (Arguments(max_steps=100),)
    """
    args = list(sys.argv[1:] if args is None else args)
    parser = _Parser(dataclass_types, removed_flags, description)
    try:
        if args and not args[0].startswith("-"):
            path = Path(args.pop(0))
            if path.suffix not in CONFIG_SUFFIXES:
                raise ValueError(f"expected a flag or a file that ends in {', '.join(CONFIG_SUFFIXES)}, got '{path}'")
            parser.read_file(path)
        parser.step(args)
        return parser.dataclasses()
    except ValueError as error:
        parser.parser.error(str(error))


def check_launch(training_args) -> None:
    """
    Stop processes that were launched together but do not know of each other.

    `accelerate launch --multi_gpu` on a machine without GPUs starts several processes, each of which trains alone as
    rank 0 and writes to the same `output_dir`, unless `--use_cpu true` is given to the script.

    Args:
        training_args (`transformers.TrainingArguments`): already set up for the launched processes.

    Raises:
        `RuntimeError`: if the launcher announced several processes and `training_args.world_size` is 1.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched > 1 and training_args.world_size == 1:
        raise RuntimeError(
            f"{launched} processes were launched (WORLD_SIZE={launched}), but this one trains alone, so all of them "
            f"would write to {training_args.output_dir}. On CPUs add `--use_cpu true` to the script's arguments; "
            "for GPUs check that each process sees one (CUDA_VISIBLE_DEVICES)."
        )


def set_up(training_args):
    """
    The first thing a script does: logging, the check of the launch, and a folder for a run of a W&B sweep.

    Args:
        training_args (`transformers.TrainingArguments`): already set up for the launched processes.

    Raises:
        `ValueError`: if no `output_dir` was named. Runs that share the host's default would continue each other.
    """
    if training_args.output_dir == DEFAULT_OUTPUT_DIR:
        raise ValueError("Name the folder of the run by `--output_dir`.")
    # All runs of a sweep have one `output_dir`, in which each would go on from the last checkpoint of another. A W&B
    # agent names its runs in the environment: alike for all processes, and again for a run that it resumes.
    if "WANDB_SWEEP_ID" in os.environ and "WANDB_RUN_ID" in os.environ:
        training_args.output_dir = os.path.join(training_args.output_dir, os.environ["WANDB_RUN_ID"])
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
        level=logging.INFO if training_args.should_log else logging.WARNING,
    )
    logging.getLogger("absl").setLevel(logging.WARNING)  # rouge-score tells of its tokenizer at every evaluation
    check_launch(training_args)


def check_run_arguments(model_args, training_args) -> None:
    """
    What both scripts ask of a run before anything is loaded; `--eval_on_start` is taken as `--do_eval` as well.

    Args:
        model_args (`model_args.ModelArguments`): which model.
        training_args (`transformers.TrainingArguments`): what to do with it.

    Raises:
        `ValueError`: if there is nothing to do or no model to do it with, or if a token of the Hub was given.
    """
    if not (training_args.do_train or training_args.do_eval or training_args.do_predict):
        raise ValueError("Nothing to do: give `--do_train`, `--do_eval` or `--do_predict`.")
    if not training_args.do_train and model_args.model_name_or_path is None:
        raise ValueError("Without `--do_train`, name the model to evaluate by `--model_name_or_path`.")
    if training_args.hub_token is not None:
        raise ValueError(
            "`--hub_token` would stay in logs and checkpoints. Log in once by `hf auth login`, or set HF_TOKEN."
        )
    training_args.do_eval |= training_args.eval_on_start
