"""Checks of training arguments which would otherwise train something else than was asked for, without a word."""

import json
import logging

from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import SchedulerType, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from ..errors import UserError
from ..ranges import AT_LEAST_ONE, NOT_NEGATIVE, WORKERS, Range

logger = logging.getLogger(__name__)

# Ranges that transformers, torch and datasets do not check, or only after data and model are loaded.
RANGES = {
    "learning_rate": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
    "max_grad_norm": NOT_NEGATIVE,
    "num_train_epochs": Range(above=0),
    "per_device_train_batch_size": AT_LEAST_ONE,
    "per_device_eval_batch_size": AT_LEAST_ONE,
    "gradient_accumulation_steps": AT_LEAST_ONE,
    "eval_steps": Range(above=0),
    "save_steps": Range(above=0),
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
    "neftune_noise_alpha": ((None, 0.0), "it finds no embedding of encoder and decoder of a T5"),
    **dict.fromkeys(
        ("bf16_full_eval", "fp16_full_eval"),
        ((False,), "it rounds the weights for good. `bf16` evaluates in half precision, too"),
    ),
    "restore_callback_states_from_checkpoint": ((False,), "callbacks of this package restore their states themselves"),
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
    """Raise `ValueError` if an argument would be without effect. Optimizer and schedule are not checked here."""
    for name, (allowed, reason) in UNSUPPORTED.items():
        if (value := getattr(args, name)) not in allowed:
            raise UserError(f"`{name}` {value!r} is not supported: {reason}. Leave it out.")
    if args.max_steps < 1 and args.max_steps != -1:
        raise UserError(
            f"`max_steps` must be at least 1, got {args.max_steps}. Leave it out (-1) to train for "
            "`num_train_epochs`. To evaluate without training, leave out `--do_train`."
        )
    if args.skip_bad_batches and (args.fp16 or args.deepspeed_plugin is not None):
        raise UserError(
            "`skip_bad_batches` is neither for `fp16` nor for DeepSpeed. Loss scaling already skips steps that "
            "overflow, and DeepSpeed makes its step before the gradient can be checked. Leave it out."
        )
    if args.save_strategy == SaveStrategy.BEST and args.metric_for_best_model is None:
        raise UserError("`save_strategy` best needs a `metric_for_best_model`, such as loss.")
    if args.save_strategy == SaveStrategy.BEST and args.eval_strategy == IntervalStrategy.NO:
        raise UserError("`save_strategy` best compares evaluations while training: ask for some by `eval_strategy`.")
    if args.hub_model_id is not None:
        try:
            validate_repo_id(args.hub_model_id)
        except HFValidationError as error:
            raise UserError(f"`hub_model_id` {args.hub_model_id!r} is no name of a repository: {error}") from error
    _check_trackers(args)
    default = type(args).__dataclass_fields__["metric_for_best_model"].default
    follows = args.lr_scheduler_type in (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
    is_used = args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST or follows
    if args.metric_for_best_model not in (None, default) and not is_used:
        logger.warning(
            f"`metric_for_best_model` {args.metric_for_best_model} chooses no model: the run ends with the last "
            "weights. Add `--load_best_model_at_end` and an `--eval_strategy`, or leave it out."
        )


def _check_trackers(args: TrainingArguments) -> None:
    """Make the callbacks of the trackers, which stop on an unknown name and on a package that is missing."""
    if args.report_to:
        from transformers.integrations import get_reporting_integration_callbacks  # takes seconds; `--help` is fast

        try:
            for callback in get_reporting_integration_callbacks(args.report_to):
                callback()
        except (ValueError, RuntimeError, ImportError) as error:
            raise UserError(f"`report_to` {' '.join(args.report_to)}: {error}") from error
