"""Arguments of [`DepthTrainer`] and of [`TaskTrainer`]."""

import contextlib
import itertools
import logging
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.distributed as dist
from accelerate.utils import DeepSpeedPlugin
from transformers import SchedulerType, Seq2SeqTrainingArguments
from transformers.training_args import OptimizerNames
from transformers.utils import ExplicitEnum

from ..evaluation.embeddings import POOLINGS
from ..evaluation.probing import NORMALIZATIONS, ProbeOptions
from ..ranges import check_ranges
from ..suggestions import listed, suggestion
from ..tasks.checks import EVALUATION_MODES, check_prediction_mode
from .optimizers import OptimizerName, read_options
from .schedules import RELATIVE_STEP_PEAK, ScheduleName
from .settings import (
    RANGES,
    check_bad_batches,
    check_devices,
    check_intervals,
    check_optimizer,
    check_options,
    check_schedule,
)

logger = logging.getLogger(__name__)

# The course of the learning rate: nanoT5's, but for the length of its warm-up.
DEFAULT_SCHEDULE = {"lr_scheduler_type": SchedulerType.COSINE, "warmup_steps": 0.05}
# Its peak from a checkpoint, and from scratch. With `adamw_scale`, and with Adafactor and `scale_parameter`, it is
# relative to the size of each matrix: from scratch that of nanoT5 and of T5 (Raffel et al. 2020, section 3.1.2); from
# a checkpoint what transferred best in docs/results.md.
RELATIVE_RATES = {OptimizerName.ADAMW_SCALE: (5e-3, 2e-2), OptimizerNames.ADAFACTOR: (5e-3, 1e-2)}
# A pre-trained T5 needs more of AdamW than the Trainer's 5e-5: 1e-4 to 3e-4, says its documentation in transformers.
ADAMW_RATES = (1e-4, 1e-3)
# What Adafactor computes under `relative_step`, with `warmup_init` and without.
RELATIVE_STEP_SCHEDULE = {
    "learning_rate": RELATIVE_STEP_PEAK,
    "lr_scheduler_type": ScheduleName.RELATIVE_STEP,
    "warmup_steps": 0,
}
DEFAULT_OPTIMIZER = OptimizerName.ADAMW_SCALE
# Of the values of an argument those of transformers, and those of this package.
NAMES = {"optim": (OptimizerNames, OptimizerName), "lr_scheduler_type": (SchedulerType, ScheduleName)}
BASELINES = ("bag_of_words", "from_scratch")
GENERATION_CACHES = ("dynamic", "static")
POLLING_SECONDS = 0.2  # of the processes that wait for the first one
ADAM_EPSILON = {OptimizerName.ADAMW_SCALE: 1e-6}  # nanoT5's; of all others the Trainer's

_turns = itertools.count()  # of the first process, which all processes count alike


def _known_name(argument: str, value: str) -> ExplicitEnum:
    """The value of an argument as a member of the enumeration that has it."""
    value = getattr(value, "value", value)
    known = {member.value: member for kind in NAMES[argument] for member in kind}
    if value not in known:
        raise ValueError(f"There is no `{argument}` {value!r}.{suggestion(value, known, 'names')}")
    return known[value]


@dataclass
class DepthTrainingArguments(Seq2SeqTrainingArguments):
    """
    [`Seq2SeqTrainingArguments`] with the weight of the sentence loss, and defaults that suit this package.

    Args:
        sentence_loss_coefficient (`float`, *optional*, defaults to 1.0):
            Weight `c` of the labels that are sentence tokens: the loss is
            `(sum of the other labels' cross-entropy + c * sum of the sentence tokens') / number of labels`.
            1.0 is plain cross-entropy.
        remove_unused_columns (`bool`, *optional*, defaults to `False`):
            The collators read columns (`sentence_lengths`) that are no argument of the model.
        logging_nan_inf_filter (`bool`, *optional*, defaults to `False`):
            The filter hides a NaN loss, and synchronizes the CPU with the device at every step. Without it, training
            stops with an error at the next log.
        accelerator_config (*optional*, defaults to `{"dispatch_batches": False, "non_blocking": True}`):
            The defaults of accelerate let rank 0 read a stream for all, which needs batches of equal length, and wait
            at every batch until the device has done all work before it. (`non_blocking` is `dataloader_pin_memory`.)
        skip_bad_batches (`int`, *optional*, defaults to 0):
            At most so many batches of the run whose loss or gradient is not finite are skipped, as if they had not
            been read, see [`HealthTrainer`]; with 0 the first one ends the run. The CPU waits for the device once in
            every step to know it. Not for float16 nor DeepSpeed.
        constrain_sentence_order (`bool`, *optional*, defaults to `False`):
            With `predict_with_generate`, evaluation of a DEPTH model generates twice: freely, and under the constraint
            that each sentence token comes exactly once ([`SentenceOrderLogitsProcessor`]). The scores of the order are
            those of free generation; those under the constraint have `constrained` in their names.
        generation_cache_implementation (`str`, *optional*):
            The cache of `generate()` in evaluations: `"dynamic"`, or `"static"`, with which a GPU runs a compiled step
            of decoding. By default that of the generation configuration, in which `"dynamic"` is the default.
        learning_rate (`float`, *optional*):
            The peak of the learning rate. It defaults to 5e-3 with `adamw_scale`, and with `adafactor` and
            `scale_parameter`; to 1e-4 with others. For a model from scratch call
            [`~DepthTrainingArguments.use_scratch_learning_rate`], as the scripts do.
        lr_scheduler_type, warmup_steps (*optional*, default to `"cosine"` and 0.05):
            Its course, and the steps of the warm-up, below 1 a share of all steps. Besides transformers' schedules
            there is `"t5_inverse_sqrt"`, see [`t5_inverse_sqrt`].
        optim (`str`, *optional*, defaults to `"adamw_scale"`):
            [`AdamWScale`], `"muon"` ([`MuonWithAdamW`]) or one of transformers' `OptimizerNames`. Of Adafactor,
            `optim_args` may have all options, with T5's own: `"scale_parameter=True,relative_step=True"`. T5 does not
            scale attention scores, and updates that are not relative to the size of the weights saturate them (see
            docs/results.md); so the Trainer's own default, plain AdamW, is not that of this class. An adapter of PEFT
            is trained by AdamW, unless an optimizer was given.
        adam_epsilon (`float`, *optional*, defaults to 1e-8; of `adamw_scale` to 1e-6):
            Added to the square root of the second moment.
        residual_dtype (`str`, *optional*, defaults to `"float32"`):
            What the model adds the outputs of its layers up in. `"bfloat16"`, with `bf16=True`, moves half as many
            bytes between layers; weights, layer norms, softmax and loss stay in float32.
        allow_changed_arguments (`bool`, *optional*, defaults to `False`):
            Continue a checkpoint although its run had other data or settings, which is otherwise an error of [`Run`].
        hub_license (`str`, *optional*):
            License of the model, for its card, as the Hub writes it: `"apache-2.0"`, `"mit"`, `"cc-by-4.0"`.

    A process uses one GPU, the first one that it sees, with a warning if there are more: `accelerate launch` starts a
    process for each.

    Raises:
        `ValueError`: for a number out of its range (a negative coefficient, a learning rate of NaN), `max_steps` that
            train nothing, an optimizer or a schedule that cannot be made, float16 on a CPU, `skip_bad_batches` with
            float16 or DeepSpeed, a `residual_dtype` without autocast to it, a setting of evaluation that would be
            without effect, a `label_smoothing_factor` (the weighted loss has none), a `neftune_noise_alpha` (which T5
            and DEPTH do not heed), and for `enable_jit_checkpoint`.

    >>> args = DepthTrainingArguments("runs/mine", sentence_loss_coefficient=3.0, learning_rate=2e-3, use_cpu=True)
    >>> args.remove_unused_columns
    False
    """

    sentence_loss_coefficient: float = field(
        default=1.0, metadata={"help": "Weight of the cross-entropy of sentence tokens; 1.0 is plain cross-entropy."}
    )
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Remove columns that are no argument of the model; the collators need some."}
    )
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Hide NaN and infinite losses in the log. Off: training stops on them."}
    )
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
        if "optim" in not_given:
            self.optim = DEFAULT_OPTIMIZER
        if "lr_scheduler_type" in not_given:
            self.lr_scheduler_type = DEFAULT_SCHEDULE["lr_scheduler_type"]
        for argument in NAMES:
            setattr(self, argument, _known_name(argument, getattr(self, argument)))
        if "learning_rate" in not_given:
            self.learning_rate = self._default_rates[0]
        if "warmup_steps" in not_given:  # the schedules of this package have lengths of their own
            is_own = isinstance(self.lr_scheduler_type, ScheduleName)
            self.warmup_steps = 0 if is_own else DEFAULT_SCHEDULE["warmup_steps"]
        if read_options(self).get("relative_step"):
            self._use_relative_step(not_given)
        elif self.lr_scheduler_type == ScheduleName.RELATIVE_STEP:
            raise ValueError(
                "`lr_scheduler_type` relative_step is what Adafactor computes by itself: give `--optim adafactor "
                "--optim_args relative_step=True`, or another schedule."
            )
        if self.adam_epsilon is None:
            self.adam_epsilon = ADAM_EPSILON.get(self.optim, Seq2SeqTrainingArguments.adam_epsilon)
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # T5 and DEPTH use all of them in every step
        check_ranges(self, RANGES)
        check_options(self)
        if self.output_dir is not None and not self.output_dir.strip():
            raise ValueError(f"`output_dir` must name a folder, got {self.output_dir!r}.")
        uses_own_loading = self.accelerator_config is None
        if uses_own_loading:
            self.accelerator_config = {"dispatch_batches": False}
        self._convert()
        if self.device.type == "cpu":
            self.dataloader_pin_memory = False  # as with `use_cpu`: torch warns of it in each loop over batches
        if uses_own_loading:
            self.accelerator_config.non_blocking = self.dataloader_pin_memory
        self._defaults = {name: getattr(self, name) for name in not_given}
        for check in (check_intervals, check_devices, check_bad_batches, check_optimizer, check_schedule):
            check(self)
        self._check_evaluation()
        if self.label_smoothing_factor:
            raise ValueError(
                f"`label_smoothing_factor`={self.label_smoothing_factor} is not supported: DepthTrainer weights one "
                "cross-entropy per label. Leave it at 0.0."
            )
        if self.neftune_noise_alpha:
            raise ValueError(
                f"`neftune_noise_alpha`={self.neftune_noise_alpha} would have no effect: it adds noise to the output "
                "of the model's embedding, but encoder and decoder of a T5 have modules of their own. Leave it out."
            )
        if self.residual_dtype != "float32" and not (self.residual_dtype == "bfloat16" and self.bf16):
            raise ValueError(
                f"`residual_dtype` {self.residual_dtype!r} with `bf16`={self.bf16} is not supported: give "
                '`residual_dtype="bfloat16"` with `bf16=True`, or leave it at "float32".'
            )
        self._check_length()
        if self.enable_jit_checkpoint:
            raise ValueError(
                "`enable_jit_checkpoint` saves in the middle of a step, and the run that continues is another one. "
                "Leave it out: on SIGTERM and SIGUSR1 a `Run` saves a checkpoint at the end of the step."
            )

    def _use_relative_step(self, not_given: Collection[str]) -> None:
        """Take the schedule that Adafactor computes by itself; stop on another one that was given."""
        for name, value in RELATIVE_STEP_SCHEDULE.items():
            given = getattr(self, name)
            if name not in not_given and given != value:
                raise ValueError(
                    f"`{name}` {getattr(given, 'value', given)} has no effect with `optim_args` {self.optim_args!r}: "
                    "under relative_step Adafactor computes the learning rate by itself. Leave one of them out."
                )
            setattr(self, name, value)

    def _convert(self) -> None:
        """Have transformers convert and check all arguments but the names that it does not know."""
        own_names = {name: getattr(self, name) for name in NAMES}
        own_names = {name: value for name, value in own_names.items() if isinstance(value, NAMES[name][1])}
        for name in own_names:
            setattr(self, name, getattr(Seq2SeqTrainingArguments, name))
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

    def set_optimizer(self, name: str = "adamw_torch", *args: Any, **kwargs: Any) -> Self:
        """
        As [`TrainingArguments.set_optimizer`], also for the optimizers of this package, and with the checks of this
        class. Under `relative_step` the learning rate and the schedule are Adafactor's own.
        """
        super().set_optimizer(OptimizerNames.ADAMW_TORCH, *args, **kwargs)
        self.optim = _known_name("optim", name)
        check_optimizer(self)
        if read_options(self).get("relative_step"):
            for argument, value in RELATIVE_STEP_SCHEDULE.items():
                setattr(self, argument, value)
        return self

    def set_lr_scheduler(self, name: str = "linear", *args: Any, **kwargs: Any) -> Self:
        """As [`TrainingArguments.set_lr_scheduler`], also for the schedules of this package, and with its checks."""
        super().set_lr_scheduler(SchedulerType.LINEAR, *args, **kwargs)
        self.lr_scheduler_type = _known_name("lr_scheduler_type", name)
        check_schedule(self)
        return self

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
        with `adamw_scale` 2e-2, with `adafactor` and `scale_parameter` 1e-2, with AdamW and Muon 1e-3. Other
        optimizers keep theirs.

        Returns:
            `bool`: whether it was taken.

        >>> args = DepthTrainingArguments("runs/mine", use_cpu=True)
        >>> args.learning_rate, args.use_scratch_learning_rate(), args.learning_rate
        (0.005, True, 0.02)
        >>> DepthTrainingArguments("runs/mine", learning_rate=1e-3, use_cpu=True).use_scratch_learning_rate()
        False
        """
        # Neither given to this class, nor set since, by `set_optimizer` or `set_training`.
        is_default = self._defaults.get("learning_rate") == self.learning_rate
        from_checkpoint, from_scratch = self._default_rates
        if not is_default or self.learning_rate != from_checkpoint or from_scratch == from_checkpoint:
            return False
        if self.lr_scheduler_type == ScheduleName.RELATIVE_STEP:
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

    def _check_length(self):
        """Stop on a length at which the Trainer would train for another one, or not at all."""
        if self.max_steps < 1 and self.max_steps != -1:
            raise ValueError(
                f"`max_steps` must be at least 1, got {self.max_steps}. Leave it out (-1) to train for "
                "`num_train_epochs`. To evaluate without training, leave out `--do_train`."
            )

    def _check_evaluation(self):
        """Stop on settings of evaluation that would be without effect, or with a wrong one."""
        if self.label_names not in (None, [], ["labels"]):
            raise ValueError(
                f"`label_names` {self.label_names}: the labels of all collators are 'labels'. Leave it out."
            )
        if self.eval_steps is not None and self.eval_strategy != "steps":
            logger.warning(
                f"`eval_steps` {self.eval_steps} has no effect with `eval_strategy` {self.eval_strategy.value}: add "
                "`--eval_strategy steps`, or leave it out."
            )
        if self.load_best_model_at_end and self.eval_strategy == "no":
            raise ValueError(
                "`load_best_model_at_end` compares evaluations while training: ask for some by `eval_strategy`, or "
                "leave it out."
            )
        if not self.eval_do_concat_batches:
            raise ValueError("`eval_do_concat_batches` must be true: predictions are kept by example, not by batch.")
        if self.prediction_loss_only and self.predict_with_generate:
            raise ValueError(
                "`prediction_loss_only` contradicts `predict_with_generate`, without which there is no fine-tuning: "
                "leave one of them out."
            )
        if self.constrain_sentence_order and not self.predict_with_generate:
            raise ValueError(
                "`constrain_sentence_order` is a way to generate: add `--predict_with_generate`, or leave it out."
            )
        if self.generation_cache_implementation not in (None, *GENERATION_CACHES):
            raise ValueError(
                f"`generation_cache_implementation` must be one of {listed(GENERATION_CACHES)}, got "
                f"{self.generation_cache_implementation!r}."
            )
        if self.generation_cache_implementation is not None and not self.predict_with_generate:
            raise ValueError(
                "`generation_cache_implementation` is for evaluations that generate: add `--predict_with_generate`, "
                "or leave it out."
            )


@dataclass
class TaskTrainingArguments(DepthTrainingArguments):
    """
    [`DepthTrainingArguments`] for fine-tuning: how predictions are made, and how the best model is chosen.

    Args:
        prediction_mode (`str`, *optional*, defaults to `"generate"`):
            `"generate"` generates text, which may be none of the labels; `"score_labels"` takes the most probable
            label; `"probe"`, for [`run_probe`] and not for [`TaskTrainer`], fits a small classifier on frozen
            sentence embeddings.
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
        | {"choices": list(POOLINGS)},
    )
    probe_normalization: str = field(
        default=ProbeOptions.normalization,
        metadata={"help": "probe: of the embeddings, by the training examples.", "choices": list(NORMALIZATIONS)},
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
        check_ranges(self, RANGES)  # what is out of range is named first
        if self.early_stopping_patience is not None:
            if self.eval_strategy == "no":
                raise ValueError(
                    "`early_stopping_patience` counts evaluations while training: ask for some by `--eval_strategy "
                    "steps --eval_steps 500`, or by `--eval_strategy epoch --save_strategy epoch`."
                )
            self.load_best_model_at_end = True
        super().__post_init__()
        check_prediction_mode([], self.prediction_mode, EVALUATION_MODES)
        if not self.predict_with_generate:
            raise ValueError(
                "`predict_with_generate` must be true: scores of fine-tuning never come from teacher forcing. For "
                "scores without generating, use `prediction_mode` score_labels."
            )
        if self.constrain_sentence_order:
            raise ValueError("`constrain_sentence_order` is for pre-training: predictions of tasks name no sentences.")
        for name in ("batch_eval_metrics", "include_for_metrics"):
            if getattr(self, name):
                raise ValueError(f"`{name}` has no effect: the metrics are those of the task. Leave it out.")
