"""Checks of the settings of training and evaluation, before anything is loaded: ranges, optimizer, schedule."""

import copy
import inspect
import json
import os
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

import torch
import torch.utils.checkpoint
from accelerate.utils import DynamoBackend
from torch.distributed.fsdp import StateDictType
from transformers import TrainingArguments
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.training_args import OptimizerNames

from ..ranges import AT_LEAST_ONE, NOT_NEGATIVE, WORKERS, Range
from ..suggestions import suggestion
from .optimizers import OptimizerName, get_optimizer_class_and_options
from .schedules import ScheduleName, make_schedule

SEED = Range(least=0, most=2**32 - 1)  # of numpy

# Of the numbers among the training arguments; `max_steps` may be -1, and `local_rank` is set by the launcher.
RANGES = {
    "learning_rate": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
    "adam_beta1": Range(least=0, below=1),
    "adam_beta2": Range(least=0, below=1),
    "adam_epsilon": Range(above=0),  # by which a gradient of 0 is divided
    "max_grad_norm": NOT_NEGATIVE,
    "warmup_steps": NOT_NEGATIVE,
    "label_smoothing_factor": Range(least=0, below=1),
    "neftune_noise_alpha": NOT_NEGATIVE,
    "num_train_epochs": Range(above=0),
    "per_device_train_batch_size": AT_LEAST_ONE,
    "per_device_eval_batch_size": AT_LEAST_ONE,
    "gradient_accumulation_steps": AT_LEAST_ONE,
    "eval_accumulation_steps": AT_LEAST_ONE,
    "torch_empty_cache_steps": AT_LEAST_ONE,
    "eval_delay": NOT_NEGATIVE,
    "logging_steps": NOT_NEGATIVE,
    "eval_steps": Range(above=0),  # 0 would be `logging_steps`
    "save_steps": NOT_NEGATIVE,
    "save_total_limit": AT_LEAST_ONE,
    "seed": SEED,
    "data_seed": SEED,
    "dataloader_num_workers": WORKERS,
    "dataloader_prefetch_factor": AT_LEAST_ONE,
    "ddp_bucket_cap_mb": AT_LEAST_ONE,
    "ddp_timeout": AT_LEAST_ONE,
    "generation_max_length": Range(least=2),  # with the start token
    "generation_num_beams": AT_LEAST_ONE,
    "sentence_loss_coefficient": NOT_NEGATIVE,
    "skip_bad_batches": NOT_NEGATIVE,
    "early_stopping_patience": AT_LEAST_ONE,
    "probe_layer": NOT_NEGATIVE,
    "early_stopping_threshold": NOT_NEGATIVE,
}
UNKNOWN_LENGTH = 1_000_000  # steps for which a schedule is tried where it is not known how long training takes


def check_options(args: TrainingArguments) -> None:
    """
    Check the mappings that libraries take, and the files, packages, backends and modes that are named.

    Raises:
        `ValueError`: naming the argument, and what there is instead.
    """
    _check_mappings(args)
    _check_extras(args)
    config = args.accelerator_config
    if isinstance(config, str) and not config.startswith("{") and not os.path.isfile(config):
        raise ValueError(f"`accelerator_config`: there is no file {config!r}.")
    generation = args.generation_config
    if isinstance(generation, str | os.PathLike) and not os.path.exists(generation):
        name = os.fspath(generation)
        if name.startswith(("/", ".", "~")) or name.endswith(".json"):  # otherwise it is looked for on the Hub
            raise ValueError(f"`generation_config`: there is no file or folder {name!r}.")
    backend, backends = args.torch_compile_backend, [each.value.lower() for each in DynamoBackend]
    if backend is not None and backend.lower() not in backends:
        raise ValueError(
            f"There is no `torch_compile_backend` {backend!r}.{suggestion(backend, backends, 'backends')}"
        )
    mode = args.torch_compile_mode
    if mode is not None and mode not in (modes := list(torch._inductor.list_mode_options())):
        raise ValueError(f"There is no `torch_compile_mode` {mode!r}.{suggestion(mode, modes, 'modes')}")
    if args.ddp_backend is not None and args.use_cpu and "RANK" not in os.environ:
        raise ValueError("`ddp_backend` is for several processes: start them by `accelerate launch`, or leave it out.")
    if args.dataloader_persistent_workers and not args.dataloader_num_workers:
        raise ValueError("`dataloader_persistent_workers` keeps workers: ask for some by `dataloader_num_workers`.")


def _check_mappings(args: TrainingArguments) -> None:
    """Check that mappings given as flags are JSON, and the names and truth values in those that are known."""
    checkpointing = inspect.signature(torch.utils.checkpoint.checkpoint).parameters.values()
    checkpointing = {one.name: one.annotation for one in checkpointing if one.default is not one.empty}
    known = {
        "accelerator_config": {item.name: item.type for item in fields(AcceleratorConfig)},
        "activation_checkpointing_kwargs": checkpointing,
        "gradient_checkpointing_kwargs": checkpointing,
    }
    for argument in (*known, "deepspeed", "fsdp_config", "lr_scheduler_kwargs"):
        value = getattr(args, argument)
        if isinstance(value, str) and value.startswith("{"):  # a flag
            try:
                value = json.loads(value)
            except ValueError as error:
                raise ValueError(f"`{argument}` must be JSON, got {value!r}: {error}.") from error
        for name in value if isinstance(value, dict) and argument in known else ():
            if name not in known[argument]:
                raise ValueError(
                    f"`{argument}` has no setting {name!r}.{suggestion(name, known[argument], 'settings')}"
                )
            if isinstance(value[name], str) and "bool" in str(known[argument][name]):  # every text would be true
                raise ValueError(f"`{argument}`: {name} takes true or false, got {value[name]!r}.")


def _check_extras(args: TrainingArguments) -> None:
    """Check that a package which only some runs need is there if the arguments ask for it."""
    trackers = [args.report_to] if isinstance(args.report_to, str) else args.report_to or []
    for package, argument, is_asked_for in (
        ("deepspeed", "deepspeed", args.deepspeed),
        ("wandb", "report_to", "wandb" in trackers),
    ):
        if is_asked_for and find_spec(package) is None:
            raise ValueError(
                f'`{argument}` needs {package}, which is not installed: `pip install "hf_depth[{package}]"`, in a '
                f'clone `pip install -c constraints.txt -e ".[{package}]"`.'
            )


def check_optimizer(args: TrainingArguments) -> None:
    """
    Make the optimizer of the arguments for a single parameter, and check that it takes all of `optim_args`.

    Raises:
        `ValueError`: naming `optim` or `optim_args`.
    """
    given = [part.split("=", 1) for part in (args.optim_args or "").replace(" ", "").split(",") if part]
    if any(len(part) != 2 for part in given):
        raise ValueError(f"`optim_args` must be NAME=VALUE pairs with commas between them, got {args.optim_args!r}.")
    optim = getattr(args.optim, "value", args.optim)
    if any(name in optim for name in ("galore", "apollo", "lomo")):
        return  # are made for the layers of a model
    try:
        optimizer_class, arguments = get_optimizer_class_and_options(args)
        if optimizer_class.__module__.startswith(("torch.", "transformers.", "hf_depth.")):
            optimizer_class([torch.nn.Parameter(torch.zeros(1))], **arguments)
    except (AttributeError, ImportError, RuntimeError, TypeError, ValueError) as error:
        settings = f"`optim` {optim}" + (f" with `optim_args` {args.optim_args!r}" if given else "")
        raise ValueError(f"{settings}: {error}") from error
    for name, _ in given:
        if not _is_read(args, name):
            raise ValueError(
                f"`optim_args`: {name!r} is no option of `optim` {optim} in the Trainer, and would be without effect. "
                "Leave it out, or choose another optimizer."
            )


def _with_options(args: TrainingArguments, optim_args: str | None) -> tuple[type, dict[str, Any]]:
    """The optimizer of training arguments with other `optim_args`."""
    args = copy.copy(args)
    args.optim_args = optim_args
    return get_optimizer_class_and_options(args)


def _is_read(args: TrainingArguments, name: str) -> bool:
    """Whether an option changes anything: it gets a value that no option can have, so a reader fails or differs."""
    try:
        return _with_options(args, f"{name}=?") != _with_options(args, None)
    except (AttributeError, TypeError, ValueError):
        return True


def check_schedule(args: TrainingArguments) -> None:
    """
    Make the schedule of the arguments for a single parameter, and ask it for a few learning rates.

    Raises:
        `ValueError`: naming `lr_scheduler_type` and `lr_scheduler_kwargs`.
    """
    options = args.lr_scheduler_kwargs or {}
    if not isinstance(options, dict):
        raise ValueError(f"`lr_scheduler_kwargs` must be a mapping of names to values, got {options!r}.")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.learning_rate)
    steps = args.max_steps if args.max_steps > 0 else UNKNOWN_LENGTH
    kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    try:
        schedule = make_schedule(args, optimizer, steps)
        for step in (0, 1, steps // 2, steps):
            for rate in getattr(schedule, "lr_lambdas", ()):
                rate(step)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        given = f" {options}" if options else ""
        raise ValueError(f"`lr_scheduler_type` {kind} with `lr_scheduler_kwargs`{given}: {error}") from error


def check_sharding(args: TrainingArguments, deepspeed_config: dict[str, Any] | None, is_fsdp: bool) -> None:
    """
    Check that the optimizer and the schedule of the arguments are those that will train, and can.

    Args:
        args (`TrainingArguments`): with `optim` and `lr_scheduler_type`.
        deepspeed_config (`dict`, *optional*): the settings of DeepSpeed, under which parameters are divided.
        is_fsdp (`bool`): whether FSDP divides them.

    Raises:
        `ValueError`: naming the argument, and what to use instead.
    """
    optim = getattr(args.optim, "value", args.optim)
    needs_whole = (OptimizerName.MUON.value,)
    if is_fsdp:
        needs_whole += (OptimizerName.ADAMW_SCALE.value, OptimizerNames.ADAFACTOR.value)
    if optim in needs_whole and (is_fsdp or deepspeed_config is not None):
        others = "DeepSpeed ZeRO or " if is_fsdp and optim != OptimizerName.MUON else ""
        raise ValueError(
            f"`optim` {optim} needs whole matrices, of which each process has only a part under "
            f"{'FSDP' if is_fsdp else 'DeepSpeed ZeRO'}. Use data parallelism without sharding (`accelerate launch "
            f"--multi_gpu`), {others}`--optim adamw_torch`."
        )
    is_own_optimizer = optim in (OptimizerNames.ADAFACTOR.value, *(name.value for name in OptimizerName))
    is_own_schedule = args.lr_scheduler_type in list(ScheduleName)
    for section, argument, is_own in (
        ("optimizer", "optim", is_own_optimizer),
        ("scheduler", "lr_scheduler_type", is_own_schedule),
    ):
        if section in (deepspeed_config or {}) and is_own:
            value = getattr(getattr(args, argument), "value", getattr(args, argument))
            raise ValueError(
                f"`{argument}` {value} would have no effect: the settings of DeepSpeed have their own `{section}`. "
                "Remove it there, as in the files of examples/deepspeed"
                f"{', or give `--optim adamw_torch`' if argument == 'optim' else ''}."
            )


def check_whole_weights(deepspeed_config: dict[str, Any] | None, fsdp_plugin: Any | None) -> None:
    """
    Check that `Trainer` saves whole weights, not only the part of each process, from which no model is loaded.

    Args:
        deepspeed_config (`dict`, *optional*): the settings of DeepSpeed.
        fsdp_plugin (`FullyShardedDataParallelPlugin`, *optional*): those of FSDP.

    Raises:
        `ValueError`: naming the setting.
    """
    state_dict_type = getattr(fsdp_plugin, "state_dict_type", None)
    if fsdp_plugin is not None and state_dict_type != StateDictType.FULL_STATE_DICT:
        raise ValueError(
            f"`fsdp_state_dict_type` {state_dict_type.name}: the Trainer would save no model. Set it to "
            "FULL_STATE_DICT in the configuration of accelerate, as in `examples/accelerate/fsdp2.yaml`."
        )
    zero = (deepspeed_config or {}).get("zero_optimization", {})
    # accelerate takes "auto" for false.
    if zero.get("stage") == 3 and zero.get("stage3_gather_16bit_weights_on_model_save") is not True:
        raise ValueError(
            "ZeRO-3 without `stage3_gather_16bit_weights_on_model_save`: no model that can be loaded would be saved. "
            "Set it to true (in a configuration of accelerate, `zero3_save_16bit_model`), as in the files of "
            "`examples/deepspeed` and `examples/accelerate`."
        )


def check_devices(args: TrainingArguments) -> None:
    """
    Check that the precision is one of the device.

    Raises:
        `ValueError`: for float16 on a CPU, where `Trainer` would silently train in float32.
    """
    for name in ("fp16", "fp16_full_eval"):
        if getattr(args, name) and args.device.type == "cpu":
            raise ValueError(f"`{name}` has no effect on a CPU. Leave it out, or use `bf16`.")


def check_bad_batches(args: TrainingArguments) -> None:
    """
    Check that bad batches can be skipped, if they may be.

    Raises:
        `ValueError`: with float16 or DeepSpeed.
    """
    if args.skip_bad_batches and args.fp16:
        raise ValueError(
            "`skip_bad_batches` is not for `fp16`, whose loss scaling skips steps that overflow by itself, as many as "
            "it takes to find a scale. Use `bf16`, or leave it out."
        )
    if args.skip_bad_batches and args.deepspeed_plugin is not None:
        raise ValueError(
            "`skip_bad_batches` is not for DeepSpeed, whose optimizer has made its step before the gradient can be "
            "looked at. Train by data parallelism (`examples/accelerate/multi_gpu.yaml`), or leave it out."
        )


def check_intervals(args: TrainingArguments) -> None:
    """
    Check the numbers of steps between logs, evaluations and checkpoints, where there are any.

    Raises:
        `ValueError`: naming the one that is 0: nothing would be logged, evaluated or saved.
    """
    for name in ("logging", "eval", "save"):
        strategy = getattr(args, f"{name}_strategy")
        if getattr(strategy, "value", strategy) == "steps" and getattr(args, f"{name}_steps") == 0:
            raise ValueError(f"`{name}_steps` must be above 0, or `{name}_strategy` be no, got 0.")
