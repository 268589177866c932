"""Checks of training arguments that transformers, torch and datasets make late or never."""

import json
import logging
from typing import Any

from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from ..errors import UserError
from ..ranges import AT_LEAST_ONE, NOT_NEGATIVE, WORKERS, Range
from ..suggestions import listed, suggestion

logger = logging.getLogger(__name__)

GENERATION_CACHES = ("dynamic", "static")
NOT_ALWAYS_LISTED = ("azure_ml", "flyte", "kubeflow")  # transformers may not list these trackers as available
# Ranges that transformers, torch and datasets do not check, or only after data and model are loaded.
RANGES = {
    "learning_rate": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
    "adam_epsilon": Range(above=0),  # a gradient of 0 is divided by it
    "max_grad_norm": NOT_NEGATIVE,
    "num_train_epochs": Range(above=0),
    "per_device_train_batch_size": AT_LEAST_ONE,
    "per_device_eval_batch_size": AT_LEAST_ONE,
    "gradient_accumulation_steps": AT_LEAST_ONE,
    "eval_steps": Range(above=0),  # transformers takes 0 for `logging_steps`
    "save_steps": NOT_NEGATIVE,
    "save_total_limit": AT_LEAST_ONE,
    "seed": Range(least=0, most=2**32 - 1),  # the limits of numpy
    "dataloader_num_workers": WORKERS,
    "generation_max_length": Range(least=2),  # the start token counts
    "generation_num_beams": AT_LEAST_ONE,
    "sentence_loss_coefficient": NOT_NEGATIVE,
    "skip_bad_batches": NOT_NEGATIVE,
    "early_stopping_patience": AT_LEAST_ONE,
    "early_stopping_threshold": NOT_NEGATIVE,
    "probe_layer": NOT_NEGATIVE,
}
# Arguments of transformers that would have no effect or a wrong one: the values they may have, and why.
UNSUPPORTED = {
    "label_smoothing_factor": ((0.0,), "the trainers weight one cross-entropy for each label"),
    "neftune_noise_alpha": (
        (None, 0.0),
        "it adds noise to the output of the model's embedding, but encoder and decoder of a T5 have modules of their "
        "own",
    ),
    **dict.fromkeys(
        ("bf16_full_eval", "fp16_full_eval"),
        ((False,), "it rounds the weights for good. `bf16` evaluates in half precision, too"),
    ),
    "eval_do_concat_batches": ((True,), "predictions are kept by example, not by batch"),
    "restore_callback_states_from_checkpoint": (
        (False,),
        "it would replace the callbacks that continue the run, which restore their states themselves",
    ),
    "enable_jit_checkpoint": (
        (False,),
        "it saves in the middle of a step, so a resumed run would give another result. On SIGTERM and SIGUSR1 a `Run` "
        "saves a checkpoint at the end of the step",
    ),
}
UNSUPPORTED_IN_FINE_TUNING = {
    "predict_with_generate": (
        (True,),
        "scores of fine-tuning never come from teacher forcing. For scores without generating, use `prediction_mode` "
        "score_labels",
    ),
    "constrain_sentence_order": ((False,), "it is for pre-training: predictions of tasks name no sentences"),
    "batch_eval_metrics": ((False,), "the metrics are those of the task, which read all predictions"),
}


def check_json(args: TrainingArguments) -> None:
    """Raise `ValueError` if a flag that holds a mapping is not valid JSON. The error of transformers names no flag."""
    for name in args._VALID_DICT_FIELDS:
        value = getattr(args, name)
        if isinstance(value, str) and value.startswith("{"):  # otherwise it names a file
            try:
                json.loads(value)
            except ValueError as error:
                raise UserError(f"`{name}` must be JSON, got {value!r}: {error}.") from error


def check_arguments(args: TrainingArguments) -> None:
    """Raise `ValueError` if a training argument is wrong. Optimizer and schedule are not checked here."""
    check_supported(args, UNSUPPORTED)
    check_bad_batches(args)
    _check_precision(args)
    _check_evaluation(args)
    _check_saving(args)
    _check_trackers(args)


def check_supported(args: TrainingArguments, unsupported: dict[str, tuple[tuple[Any, ...], str]]) -> None:
    """
    Raise `ValueError` if an argument has a value that is not supported.

    Args:
        args (`TrainingArguments`): the arguments.
        unsupported (`dict`): maps an argument to the values it may have and the reason.

    Raises:
        `ValueError`: names the argument.
    """
    for name, (allowed, reason) in unsupported.items():
        if (value := getattr(args, name)) not in allowed:
            raise UserError(f"`{name}` {value!r} is not supported: {reason}. Leave it out.")


def check_bad_batches(args: TrainingArguments) -> None:
    """Raise `ValueError` if `skip_bad_batches` is used with float16 or DeepSpeed, which do not support it."""
    if args.skip_bad_batches and args.fp16:
        raise UserError(
            "`skip_bad_batches` is not for `fp16`, whose loss scaling already skips steps that overflow. Use `bf16`, "
            "or leave it out."
        )
    if args.skip_bad_batches and args.deepspeed_plugin is not None:
        raise UserError(
            "`skip_bad_batches` is not for DeepSpeed, whose optimizer makes its step before the gradient can be "
            "checked. Train by data parallelism (`examples/accelerate/multi_gpu.yaml`), or leave it out."
        )


def _check_precision(args: TrainingArguments) -> None:
    """Raise if the device or the residual stream does not support the precision."""
    if args.fp16 and args.device.type == "cpu":
        raise UserError("`fp16` has no effect on a CPU. Leave it out, or use `bf16`.")
    if args.residual_dtype != "float32" and not (args.residual_dtype == "bfloat16" and args.bf16):
        raise UserError(
            f"`residual_dtype` {args.residual_dtype!r} with `bf16`={args.bf16} is not supported: give "
            '`residual_dtype="bfloat16"` with `bf16=True`, or leave it at "float32".'
        )


def _check_evaluation(args: TrainingArguments) -> None:
    """Raise if a setting of evaluation would have no effect."""
    if args.eval_steps is not None and args.eval_strategy != IntervalStrategy.STEPS:
        logger.warning(
            f"`eval_steps` {args.eval_steps} has no effect with `eval_strategy` {args.eval_strategy.value}: add "
            "`--eval_strategy steps`, or leave it out."
        )
    if args.generation_cache_implementation not in (None, *GENERATION_CACHES):
        raise UserError(
            f"`generation_cache_implementation` must be one of {listed(GENERATION_CACHES)}, got "
            f"{args.generation_cache_implementation!r}."
        )
    for name in ("constrain_sentence_order", "generation_cache_implementation"):
        if getattr(args, name) and not args.predict_with_generate:
            raise UserError(
                f"`{name}` is for evaluations that generate: add `--predict_with_generate`, or leave it out."
            )


def _check_saving(args: TrainingArguments) -> None:
    """Raise if the settings would train nothing or save nothing."""
    if args.max_steps < 1 and args.max_steps != -1:
        raise UserError(
            f"`max_steps` must be at least 1, got {args.max_steps}. Leave it out (-1) to train for "
            "`num_train_epochs`. To evaluate without training, leave out `--do_train`."
        )
    if not args.output_dir.strip():
        raise UserError(f"`output_dir` must name a folder, got {args.output_dir!r}.")
    if args.save_strategy == SaveStrategy.STEPS and args.save_steps == 0:
        raise UserError("`save_steps` must be above 0, or `save_strategy` be no, got 0.")
    keeps_best = args.save_strategy == SaveStrategy.BEST
    if (keeps_best or args.load_best_model_at_end) and args.eval_strategy == IntervalStrategy.NO:
        name = "save_strategy` best" if keeps_best else "load_best_model_at_end`"
        raise UserError(
            f"`{name} compares evaluations while training: ask for some by `eval_strategy`, or leave it out."
        )
    if keeps_best and args.metric_for_best_model is None:
        raise UserError("`save_strategy` best needs a `metric_for_best_model`, such as loss.")
    _report_metric_without_effect(args)
    if args.hub_model_id is not None:
        try:
            validate_repo_id(args.hub_model_id)
        except HFValidationError as error:
            raise UserError(f"`hub_model_id` {args.hub_model_id!r} is no name of a repository: {error}") from error


def _report_metric_without_effect(args: TrainingArguments) -> None:
    """Warn of a metric that is named, by which no model is chosen."""
    default = type(args).__dataclass_fields__["metric_for_best_model"].default
    chooses = args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST
    follows = args.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy")
    if chooses or follows or args.metric_for_best_model in (None, default):
        return
    logger.warning(
        f"`metric_for_best_model` {args.metric_for_best_model} chooses no model: the run ends with the last weights. "
        "Add `--load_best_model_at_end` and an `--eval_strategy`, or leave it out."
    )


def _check_trackers(args: TrainingArguments) -> None:
    """Raise if a tracker is unknown or not installed. `Trainer` would say so only after data and model are loaded."""
    if not args.report_to:
        return
    # Imported here, as it takes seconds and `--help` must be fast.
    from transformers.integrations.integration_utils import (
        INTEGRATION_TO_CALLBACK,
        get_available_reporting_integrations,
    )

    installed = get_available_reporting_integrations()
    for name in args.report_to:
        if name not in INTEGRATION_TO_CALLBACK:
            raise UserError(
                f"There is no `report_to` {name!r}.{suggestion(name, INTEGRATION_TO_CALLBACK, 'trackers')}"
            )
        if name not in installed and name not in NOT_ALWAYS_LISTED:
            raise UserError(f"`report_to` {name} needs a package that is not installed: `pip install {name}`.")
