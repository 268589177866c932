"""Arguments of [`DepthTrainer`] and of [`TaskTrainer`]."""

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from accelerate.utils import DeepSpeedPlugin
from transformers import SchedulerType, Seq2SeqTrainingArguments
from transformers.training_args import OptimizerNames
from transformers.utils import ExplicitEnum

from ..errors import UserError
from ..ranges import check_ranges
from ..suggestions import suggestion
from ..tasks.checks import EVALUATION_MODES, check_prediction_mode
from .argument_checks import (
    GENERATION_CACHES,
    RANGES,
    UNSUPPORTED_IN_FINE_TUNING,
    check_arguments,
    check_json,
    check_supported,
)
from .optimizers import OptimizerName, check_optimizer, read_options
from .schedules import ScheduleName, check_schedule
from .sharding import check_whole_matrices, dividing_engine

if TYPE_CHECKING:
    from ..evaluation.probe_features import ProbeOptions

logger = logging.getLogger(__name__)

# The course of the learning rate: nanoT5's, but for the length of its warm-up.
DEFAULT_SCHEDULE = {"lr_scheduler_type": SchedulerType.COSINE, "warmup_steps": 0.05}
# Its peak from a checkpoint, and from scratch. With `adamw_scale`, and with Adafactor and `scale_parameter`, it is
# relative to the size of each matrix: from scratch that of nanoT5 and of T5 (Raffel et al. 2020, section 3.1.2); from
# a checkpoint what transferred best in docs/results.md.
RELATIVE_RATES = {OptimizerName.ADAMW_SCALE: (5e-3, 2e-2), OptimizerNames.ADAFACTOR: (5e-3, 1e-2)}
# A pre-trained T5 needs more of AdamW than the Trainer's 5e-5: 1e-4 to 3e-4, says its documentation in transformers.
ADAMW_RATES = (1e-4, 1e-3)
DEFAULT_OPTIMIZER = OptimizerName.ADAMW_SCALE
# The names that an argument may have: those of transformers, and those of this package.
NAMES = {"optim": (OptimizerNames, OptimizerName), "lr_scheduler_type": (SchedulerType, ScheduleName)}
BASELINES = ("bag_of_words", "from_scratch")
# Fifty lines in a run, but at least one in 500 steps: a loss that is not finite is noticed at the next log.
LOGGING_SHARE, MOST_STEPS_WITHOUT_LOG = 0.02, 500
POLLING_SECONDS = 0.2  # of the processes that wait for the first one
ADAM_EPSILON = {OptimizerName.ADAMW_SCALE: 1e-6}  # nanoT5's; of all others the Trainer's

_turns = itertools.count()  # of the first process, which all processes count alike


def _known_name(argument: str, value: str) -> ExplicitEnum:
    """The value of an argument as a member of the enumeration that has it."""
    value = getattr(value, "value", value)
    known = {member.value: member for kind in NAMES[argument] for member in kind}
    if value not in known:
        raise UserError(f"There is no `{argument}` {value!r}.{suggestion(value, known, 'names')}")
    return known[value]


@dataclass
class DepthTrainingArguments(Seq2SeqTrainingArguments):
    """
    [`Seq2SeqTrainingArguments`] with the weight of the sentence loss, and defaults that suit this package.

    Args:
        sentence_loss_coefficient (`float`, *optional*, defaults to 1.0):
            Weight `c` of the labels that are sentence tokens: the loss is
            `(sum of the other labels' cross-entropy + c * sum of the sentence tokens') / number of labels`.
        remove_unused_columns (`bool`, *optional*, defaults to `False`):
            The collators read columns (`sentence_lengths`) that are no argument of the model.
        logging_nan_inf_filter (`bool`, *optional*, defaults to `False`):
            The filter hides a NaN loss, and waits for the device at every step. Without it, training stops with an
            error at the next log.
        logging_steps (`float`, *optional*):
            Steps between two logs, or below 1 their share of all steps. By default 0.02, which is 50 logs in a run, or
            500 if `max_steps` are more than 25,000. `eval_steps` is then 500 by default.
        logging_first_step (`bool`, *optional*, defaults to `True`):
            Also log the first step.
        accelerator_config (*optional*, defaults to `{"dispatch_batches": False, "non_blocking": True}`):
            The defaults of accelerate let rank 0 read a stream for all, which needs batches of equal length, and wait
            at every batch for the device.
        skip_bad_batches (`int`, *optional*, defaults to 0):
            At most so many steps whose loss or gradient is not finite are skipped, see [`StepMonitor`]; with 0 the
            first one ends the run. The CPU then waits for the device in every step. Not for float16 nor DeepSpeed.
        constrain_sentence_order (`bool`, *optional*, defaults to `False`):
            With `predict_with_generate`, evaluation of a DEPTH model generates a second time, under the constraint
            that each sentence token comes exactly once ([`SentenceOrderLogitsProcessor`]). These scores of the order
            have `constrained` in their names.
        generation_cache_implementation (`str`, *optional*):
            The cache of `generate()` in evaluations: `"dynamic"`, or `"static"`, with which a GPU runs a compiled step
            of decoding. By default that of the generation configuration.
        learning_rate (`float`, *optional*):
            The peak. It defaults to 5e-3 with `adamw_scale`, and with `adafactor` and `scale_parameter`; to 1e-4 with
            others. For a model from scratch call [`~DepthTrainingArguments.use_scratch_learning_rate`].
        lr_scheduler_type, warmup_steps (*optional*, default to `"cosine"` and 0.05):
            The course, and the steps of the warm-up, below 1 a share of all steps. Besides transformers' schedules
            there is `"t5_inverse_sqrt"`, see [`t5_inverse_sqrt`].
        optim (`str`, *optional*, defaults to `"adamw_scale"`):
            [`AdamWScale`], `"muon"` ([`MuonWithAdamW`]) or one of transformers' `OptimizerNames`. T5 does not scale
            attention scores, and the updates of plain AdamW, the Trainer's default, saturate them (docs/results.md).
            An adapter of PEFT, and parameters that DeepSpeed or FSDP divide, are trained by AdamW unless an optimizer
            was given.
        adam_epsilon (`float`, *optional*, defaults to 1e-8; of `adamw_scale` to 1e-6):
            Added to the square root of the second moment.
        residual_dtype (`str`, *optional*, defaults to `"float32"`):
            What the model adds the outputs of its layers up in. `"bfloat16"`, with `bf16=True`, moves half as many
            bytes between layers; weights, layer norms, softmax and loss stay in float32.
        allow_changed_arguments (`bool`, *optional*, defaults to `False`):
            Continue a checkpoint although its run had other data or settings, which is otherwise an error of [`Run`].
        hub_license (`str`, *optional*):
            License of the model, for its card, as the Hub writes it: `"apache-2.0"`, `"mit"`, `"cc-by-4.0"`.

    A process uses one GPU, with a warning if there are more: `accelerate launch` starts a process for each. The
    precision that `accelerate launch` sets in the environment is taken for `bf16` or `fp16`.

    Raises:
        `ValueError`: naming the argument that is out of its range, contradicts another one, or would have no effect.

    >>> args = DepthTrainingArguments("runs/mine", sentence_loss_coefficient=3.0, learning_rate=2e-3, use_cpu=True)
    >>> args.remove_unused_columns
    False
    """

    _argument_group_name = "training"

    sentence_loss_coefficient: float = field(
        default=1.0, metadata={"help": "Weight of the cross-entropy of sentence tokens; 1.0 is plain cross-entropy."}
    )
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Remove columns that are no argument of the model; the collators need some."}
    )
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Hide NaN and infinite losses in the log. Off: training stops on them."}
    )
    logging_steps: float | None = field(
        default=None, metadata={"help": "Steps between two logs, below 1 their share of all steps (default: 0.02)."}
    )
    logging_first_step: bool = field(default=True, metadata={"help": "Also log the first step."})
    skip_bad_batches: int = field(
        default=0, metadata={"help": "Skip at most so many batches whose loss or gradient is not finite; then stop."}
    )
    constrain_sentence_order: bool = field(
        default=False,
        metadata={"help": "Also score the order that a DEPTH model generates if it must name each sentence once."},
    )
    generation_cache_implementation: str | None = field(
        default=None,
        metadata={
            "help": "Cache of generation in evaluations: static compiles the decoding on a GPU (default: that of the "
            "generation configuration, which is dynamic)."
        }
        | {"choices": list(GENERATION_CACHES)},
    )
    learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Peak learning rate (default with adamw_scale: 5e-3 from a checkpoint, 2e-2 from scratch; with "
            "AdamW 1e-4, 1e-3)."
        },
    )
    lr_scheduler_type: SchedulerType | str | None = field(
        default=None,
        metadata={"help": "Course of the learning rate (default: cosine)."}
        | {"choices": [*(kind.value for kind in SchedulerType), ScheduleName.T5_INVERSE_SQRT.value]},
    )
    warmup_steps: float | None = field(
        default=None,
        metadata={
            "help": "Steps over which the learning rate rises, or below 1 their share of all steps (default: 0.05)."
        },
    )
    optim: str | None = field(
        default=None,
        metadata={"help": "The optimizer (default: adamw_scale); docs/how_to/optimizers.md compares those for T5."}
        | {"choices": [*(name.value for name in OptimizerNames), *(name.value for name in OptimizerName)]},
    )
    adam_epsilon: float | None = field(
        default=None,
        metadata={"help": "Epsilon of AdamW and its kin (default: 1e-8; of adamw_scale 1e-6)."},
    )
    residual_dtype: str = field(
        default="float32",
        metadata={"help": "What outputs of layers are added up in; bfloat16 needs --bf16 and moves fewer bytes."}
        | {"choices": ["float32", "bfloat16"]},
    )
    allow_changed_arguments: bool = field(
        default=False, metadata={"help": "Continue a checkpoint although its run had other data or settings."}
    )
    hub_license: str | None = field(
        default=None, metadata={"help": "License of the model for its card, as the Hub writes it: apache-2.0, mit, …"}
    )

    def __post_init__(self):
        not_given = [name for name in (*DEFAULT_SCHEDULE, "learning_rate", "optim") if getattr(self, name) is None]
        check_ranges(self, RANGES)
        self._use_precision_of_launcher()
        self._fill_optimizer(not_given)
        self._fill_schedule(not_given)
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # T5 and DEPTH use all of them in every step
        if self.logging_steps is None:
            self._use_default_logging()
        uses_own_loading = self.accelerator_config is None
        if uses_own_loading:
            self.accelerator_config = {"dispatch_batches": False}
        self._convert()
        if self.device.type == "cpu":
            self.dataloader_pin_memory = False  # as with `use_cpu`: torch warns of it in each loop over batches
        if uses_own_loading:
            self.accelerator_config.non_blocking = self.dataloader_pin_memory
        self._defaults = {name: getattr(self, name) for name in not_given}
        if "optim" in not_given and self.optim != DEFAULT_OPTIMIZER and self.process_index == 0:
            logger.warning(
                f"`optim` is {self.optim.value}, with learning rates of its own: {DEFAULT_OPTIMIZER.value} needs "
                f"whole matrices, of which each process has only a part under {dividing_engine(self)}."
            )
        check_optimizer(self)
        check_schedule(self, max(self._default_rates if "learning_rate" in not_given else [self.learning_rate]))
        check_arguments(self)

    def _use_precision_of_launcher(self) -> None:
        """
        Take the precision that `accelerate launch` sets in the environment. The Trainer would train in it in any case,
        while the arguments, by which runs are described and compared, would say float32.
        """
        precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "").lower()
        if precision in ("", "no"):
            return
        if precision not in ("bf16", "fp16"):
            raise UserError(f"ACCELERATE_MIXED_PRECISION must be no, bf16 or fp16, got {precision}.")
        given = next((name for name in ("bf16", "fp16") if getattr(self, name)), precision)
        if given != precision:
            raise UserError(
                f"`{given}` contradicts ACCELERATE_MIXED_PRECISION={precision}, the `mixed_precision` of `accelerate "
                "launch` and its configuration: leave one of them out."
            )
        if not getattr(self, precision):
            logger.info(f"`{precision}` is true, as ACCELERATE_MIXED_PRECISION says.")
            setattr(self, precision, True)

    def _fill_optimizer(self, not_given: Collection[str]) -> None:
        """Take the default optimizer, one that parameters in parts allow, and its learning rate and epsilon."""
        engine = dividing_engine(self)
        if "optim" in not_given:
            self.optim = DEFAULT_OPTIMIZER if engine is None else OptimizerNames.ADAMW_TORCH
        self.optim = _known_name("optim", self.optim)
        check_whole_matrices(self, engine)
        if "learning_rate" in not_given:
            self.learning_rate = self._default_rates[0]
        elif "optim" in not_given and engine is not None:
            raise UserError(
                f"`learning_rate` {self.learning_rate} without `optim`: under {engine} the default is not "
                f"{DEFAULT_OPTIMIZER.value}, but adamw_torch, whose learning rates are lower. Give `--optim "
                "adamw_torch` as well, or leave the learning rate out."
            )
        if self.adam_epsilon is None:
            self.adam_epsilon = ADAM_EPSILON.get(self.optim, Seq2SeqTrainingArguments.adam_epsilon)

    def _fill_schedule(self, not_given: Collection[str]) -> None:
        """Take the default schedule and warm-up."""
        if "lr_scheduler_type" in not_given:
            self.lr_scheduler_type = DEFAULT_SCHEDULE["lr_scheduler_type"]
        self.lr_scheduler_type = _known_name("lr_scheduler_type", self.lr_scheduler_type)
        if "warmup_steps" in not_given:  # the schedules of this package have lengths of their own
            is_own = isinstance(self.lr_scheduler_type, ScheduleName)
            self.warmup_steps = 0 if is_own else DEFAULT_SCHEDULE["warmup_steps"]

    def _use_default_logging(self) -> None:
        """Log fifty times in a run; evaluate, if nothing is said, as often as `Trainer` does by default."""
        is_long = self.max_steps * LOGGING_SHARE > MOST_STEPS_WITHOUT_LOG
        self.logging_steps = MOST_STEPS_WITHOUT_LOG if is_long else LOGGING_SHARE
        if self.eval_strategy == "steps" and self.eval_steps is None:  # `Trainer` would take `logging_steps`
            self.eval_steps = Seq2SeqTrainingArguments.logging_steps

    def _convert(self) -> None:
        """Have transformers convert and check all arguments but the names that it does not know."""
        own_names = {name: getattr(self, name) for name in NAMES}
        own_names = {name: value for name, value in own_names.items() if isinstance(value, NAMES[name][1])}
        for name in own_names:
            setattr(self, name, getattr(Seq2SeqTrainingArguments, name))
        check_json(self)
        super().__post_init__()
        precision = {"tf32": "high", "ieee": "highest"}.get(torch.backends.fp32_precision)
        if precision is not None and (self.torch_compile or self.tf32 is not None):
            # transformers has set it. torch's compiler still reads the older setting in some places, which is an error
            # as long as the two differ (https://github.com/pytorch/pytorch/issues/196728).
            torch.set_float32_matmul_precision(precision)
        for name, value in own_names.items():
            setattr(self, name, value)
        self._use_one_gpu()

    def _use_one_gpu(self) -> None:
        """Without a launcher, use the first GPU: `nn.DataParallel`, which the Trainer takes, fails on our loss."""
        if self.n_gpu > 1:
            logger.warning(
                f"One of {self.n_gpu} GPUs is used. `accelerate launch --multi_gpu --num_processes {self.n_gpu} "
                "SCRIPT ...` uses them all, with one process for each. CUDA_VISIBLE_DEVICES=0 says that one is enough."
            )
            self._n_gpu = 1

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """
        As [`TrainingArguments.main_process_first`], whose barrier ends the run after `ddp_timeout` seconds; here the
        others wait as long as it takes, and heed signals meanwhile.
        """
        if not dist.is_initialized():
            with super().main_process_first(local, desc):
                yield
            return
        store = dist.distributed_c10d._get_default_store()
        first = self.process_index - self.local_process_index if local else 0
        key = f"hf_depth/main_process_first/{next(_turns)}/{first}"
        while self.process_index != first and not store.check([key]):
            time.sleep(POLLING_SECONDS)
        try:
            yield
        finally:
            if self.process_index == first:
                store.set(key, desc)

    @property
    def _default_rates(self) -> tuple[float, float]:
        """The peak of the learning rate from a checkpoint and from scratch."""
        if self.optim == OptimizerName.ADAMW_SCALE or read_options(self).get("scale_parameter", False):
            return RELATIVE_RATES[self.optim]
        is_adamw = any(name in self.optim.value for name in ("adamw", "muon"))
        return ADAMW_RATES if is_adamw else ADAMW_RATES[:1] * 2

    def use_scratch_learning_rate(self) -> bool:
        """
        Take the learning rate of a model from scratch in place of that for a pre-trained one, unless one was given:
        with `adamw_scale` 2e-2, with `adafactor` and `scale_parameter` 1e-2, with AdamW and Muon 1e-3.

        Returns:
            `bool`: whether it was taken.

        >>> args = DepthTrainingArguments("runs/mine", use_cpu=True)
        >>> args.learning_rate, args.use_scratch_learning_rate(), args.learning_rate
        (0.005, True, 0.02)
        >>> DepthTrainingArguments("runs/mine", learning_rate=1e-3, use_cpu=True).use_scratch_learning_rate()
        False
        """
        # Neither given to this class, nor set since, as by `set_training`.
        is_default = self._defaults.get("learning_rate") == self.learning_rate
        from_checkpoint, from_scratch = self._default_rates
        if not is_default or self.learning_rate != from_checkpoint or from_scratch == from_checkpoint:
            return False
        self.learning_rate = from_scratch
        if self.deepspeed:
            self._fill_deepspeed_config()
        return True

    def use_adapter_optimizer(self) -> bool:
        """
        Take AdamW in place of the default optimizer, for an adapter: half of its matrices begin at 0, and updates that
        are relative to their size would leave them there.

        Returns:
            `bool`: whether it was taken; not if an optimizer was given.
        """
        if "optim" not in self._defaults or self.optim != self._defaults["optim"]:
            return False
        self.optim = OptimizerNames.ADAMW_TORCH_FUSED
        self.adam_epsilon = Seq2SeqTrainingArguments.adam_epsilon
        if self._defaults.get("learning_rate") == self.learning_rate:
            self.learning_rate = ADAMW_RATES[0]
        return True

    def _fill_deepspeed_config(self) -> None:
        """Fill the "auto" values of the DeepSpeed file anew: `TrainingArguments` has done so when it was made."""
        from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

        self.hf_deepspeed_config = HfTrainerDeepSpeedConfig(self.deepspeed)
        self.hf_deepspeed_config.trainer_config_process(self)
        self.deepspeed_plugin = DeepSpeedPlugin(hf_ds_config=self.hf_deepspeed_config)


@dataclass
class TaskTrainingArguments(DepthTrainingArguments):
    """
    [`DepthTrainingArguments`] for fine-tuning: how predictions are made, and how the best model is chosen.

    Args:
        prediction_mode (`str`, *optional*, defaults to `"generate"`):
            `"generate"` generates text, which may be none of the labels; `"score_labels"` takes the most probable
            label; `"probe"`, for [`evaluation.probing.run_probe`] and not for [`TaskTrainer`], fits a small classifier
            on frozen sentence embeddings.
        length_normalize_scores (`bool`, *optional*, defaults to `False`):
            With `"score_labels"`, divide the log-probability of a label by its number of tokens.
        probe_layer, probe_pooling, probe_normalization, probe_read_together (*optional*):
            With `"probe"`, the fields of [`ProbeOptions`]; the layer counts from the token embeddings, 0.
        early_stopping_patience (`int`, *optional*):
            Stop after this many evaluations without a better score. Sets `load_best_model_at_end`.
        early_stopping_threshold (`float`, *optional*, defaults to 0.0):
            By how much a score must be better to count.
        baselines (`list[str]`, *optional*):
            What the scores are compared with: `"bag_of_words"`, `"from_scratch"`, see [`fit_baselines`].
        metric_for_best_model (`str`, *optional*, defaults to `"score"`):
            `score` is the mean of the tasks' `metric_to_optimize` on their first validation sets.
        predict_with_generate (`bool`, *optional*, defaults to `True`):
            Scores of fine-tuning never come from teacher forcing.

    Raises:
        `ValueError`: for values out of range, or that contradict each other.

    >>> args = TaskTrainingArguments(
    ...     "runs/rte", eval_strategy="steps", eval_steps=10, save_steps=10, early_stopping_patience=3, use_cpu=True
    ... )
    >>> args.load_best_model_at_end, args.metric_for_best_model
    (True, 'score')
    """

    predict_with_generate: bool = field(
        default=True, metadata={"help": "Always true here: scores never come from teacher forcing."}
    )
    prediction_mode: str = field(
        default="generate",
        metadata={
            "help": "generate: free text; score_labels: the most probable of the task's labels; probe: a small "
            "classifier of frozen sentence embeddings, the model is not trained."
        }
        | {"choices": list(EVALUATION_MODES)},
    )
    length_normalize_scores: bool = field(
        default=False, metadata={"help": "score_labels: divide by the number of a label's tokens."}
    )
    probe_layer: int | None = field(
        default=None, metadata={"help": "probe: hidden states of this encoder layer (0: embeddings; default: last)."}
    )
    probe_pooling: str | None = field(
        default=None,
        metadata={"help": "probe: state of the sentence token (default of DEPTH) or mean of the tokens (of T5)."}
        | {"choices": ["sentence_token", "mean"]},
    )
    probe_normalization: str = field(
        default="standardize",
        metadata={"help": "probe: of the embeddings, by the training examples."}
        | {"choices": ["standardize", "whiten", "none"]},
    )
    probe_read_together: bool = field(
        default=False, metadata={"help": "probe: read the sentences of an example as one document, not one by one."}
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after this many evaluations without a better score."}
    )
    early_stopping_threshold: float = field(
        default=0.0, metadata={"help": "By how much a score must be better to count."}
    )
    baselines: list[str] | None = field(
        default=None,
        metadata={"help": "Beside the scores, those of a bag of words, and of the same training from scratch."}
        | {"choices": list(BASELINES)},
    )
    metric_for_best_model: str | None = field(
        default="score",
        metadata={"help": "By which evaluations compare: score is the mean of the tasks' metric_to_optimize."},
    )

    def __post_init__(self):
        if self.early_stopping_patience is not None:
            if self.eval_strategy == "no":
                raise UserError(
                    "`early_stopping_patience` counts evaluations while training: ask for some by `--eval_strategy "
                    "steps --eval_steps 500`, or by `--eval_strategy epoch --save_strategy epoch`."
                )
            self.load_best_model_at_end = True
        super().__post_init__()
        check_prediction_mode([], self.prediction_mode, EVALUATION_MODES)
        check_supported(self, UNSUPPORTED_IN_FINE_TUNING)
        if self.prediction_mode == "probe":
            self._check_probe()

    @property
    def probe_options(self) -> "ProbeOptions":
        """How a probe embeds examples."""
        from ..evaluation.probe_features import ProbeOptions  # `--help` does not wait for it

        return ProbeOptions(
            layer=-1 if self.probe_layer is None else self.probe_layer,
            pooling=self.probe_pooling,
            read_together=self.probe_read_together,
            normalization=self.probe_normalization,
            batch_size=self.per_device_eval_batch_size,
        )

    def _check_probe(self) -> None:
        """Stop on what a probe, which trains no model, cannot do."""
        folder = Path(self.output_dir)
        has_model = (folder / "config.json").is_file() or any(folder.glob("checkpoint-*"))
        for is_wrong, message in (
            (not self.do_train, "needs `do_train`: it is fitted on the training examples; the model is not changed"),
            (not (self.do_eval or self.do_predict), "needs `do_eval` or `do_predict`: what should it predict?"),
            (self.world_size > 1, f"runs in one process, not in {self.world_size}: start it by `python`"),
            (self.push_to_hub, "leaves no model to push: leave out `push_to_hub`"),
            (has_model, f"would replace results of the model in `output_dir` {folder}: name another one"),
        ):
            if is_wrong:
                raise UserError(f"`prediction_mode` probe {message}.")
