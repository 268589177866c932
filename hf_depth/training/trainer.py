"""[`DepthTrainer`]: a `Seq2SeqTrainer` with a weighted loss, its components in the logs, and un-shuffling scores."""

import contextlib
import functools
import gc
import inspect
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import has_compiled_regions, is_compiled_module
from datasets import Dataset
from huggingface_hub import ModelCard
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, Sampler
from transformers import PreTrainedModel, TrainerState
from transformers.modeling_outputs import ModelOutput
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput, SaveStrategy, TrainOutput, speed_metrics

from ..credentials import without_credentials
from ..data.metadata import has_metadata
from ..data.mixture import MixtureDataset, MixtureStream
from ..models.layers_depth import set_residual_dtype
from ..models.loss_depth import cross_entropy_per_token
from ..models.masking_depth import has_sentence_tokens, sentence_token_mask
from ..suggestions import suggestion
from .callbacks import CollatorEpochCallback, EvaluatedBatchCallback
from .card_code import Usage, name_in_code, pretrained_usage
from .console import install_console
from .evaluation_order import (
    LongestFirstSampler,
    by_name,
    input_lengths,
    metrics_in_order,
    outputs_in_order,
    places_of_examples,
)
from .fsdp import leave_precision_to_autocast, share_embedding
from .generation import GenerationTrainer
from .model_card import CardContent, check_metadata, is_adapter, pretraining_card
from .optimizers import OptimizerName, get_optimizer_class_and_options, muon_groups
from .partitions import deepspeed_partitions
from .parts import (
    check_packed_rows,
    check_parts,
    evaluation_collator,
    metadata_collators,
    objective_collator,
    objective_name,
)
from .schedules import make_schedule
from .settings import check_sharding, check_whole_weights
from .signals import without_signals
from .source_counts import SourceCounts
from .statistics import (
    STATISTICS,
    UNSHUFFLING_STATISTICS,
    example_statistics,
    summarize,
    summarize_order,
    unshuffling_accuracy,
    unshuffling_statistics,
    unshuffling_table,
)
from .trackers import install_trackers, run_trackers
from .training_args import DepthTrainingArguments

logger = logging.getLogger(__name__)

# What a batch of a mixture has beside the others.
COUNTED_OF_SOURCES = ("source", "num_documents", "num_examples", "num_tokens")
TRAINING_METRICS = (
    "sentence_loss",
    "reconstruction_loss",
    "eosen_loss",
    "shuffled_fraction",
    "padding_fraction",
    "tokens_cut",
)
# Settings of an optimizer that decide on which device its state must be: they stay those that it was loaded for.
IMPLEMENTATIONS = ("fused", "foreach", "capturable")
LOSS_SUM, TOKENS = STATISTICS.index("loss_sum"), STATISTICS.index("tokens")
WITH_METADATA = "with_metadata"  # in the names of metrics, behind `eval`


class DepthTrainer(GenerationTrainer):
    """
    A [`Seq2SeqTrainer`] for DEPTH and T5 models.

    - The loss is `(sum of reconstruction losses + sentence_loss_coefficient * sum of sentence losses) / N`, with N the
      number of labels of the whole global batch: gradient accumulation and the number of processes do not change it.
      Stock T5 classes are trained with the same loss; by themselves they ignore N.
    - Training logs have the losses of sentence tokens and of all other labels, the fraction of shuffled examples, of
      padding, tokens per second and the number of tokens cut. Evaluation adds accuracies and their chance levels; its
      loss is a mean over labels, not over batches. What is kept does not grow with examples or vocabulary.
    - With `predict_with_generate`, a DEPTH model also un-shuffles the evaluation examples by `generate()`; exact order
      and Kendall's tau are reported, by number of sentences and by position in the attribute `unshuffling`. With
      `constrain_sentence_order`, the same again under the constraint that each sentence token comes exactly once.
    - Evaluation corrupts the same way each time, in another copy of the collator, so that its results compare. Its
      batches are of examples of similar length, the longest first; predictions come in the order of the examples.
    - Examples with metadata are evaluated without them, and once more with them: `eval_with_metadata_loss`, ….

    Args:
        model (`PreTrainedModel`): a DEPTH model or a T5, such as [`load_model`] gives.
        args (`DepthTrainingArguments`): how to train and evaluate.
        data_collator (`Callable`): that of an objective, `objective.collator()`.
        more, kwargs: the other arguments of [`Seq2SeqTrainer`].
        card ([`CardContent`], *optional*): what the model card states beside the results; by default it is the card of
            `Trainer`.

    Raises:
        `TypeError`: if `args` is of another class.
        `ValueError`: if an argument is missing or would be without effect, or if the model, the tokenizer and the
            collator do not fit each other: training would go on without sentence tokens.

    >>> from datasets import Dataset
    >>> from hf_depth import DepthObjective, DepthTrainer, DepthTrainingArguments
    >>> from hf_depth import add_sentence_tokens, load_model, train_tokenizer
    >>> documents = Dataset.from_dict({"text": ["The dog barked. The cat slept.", "It rained. We stayed in."]})
    >>> tokenizer = add_sentence_tokens(train_tokenizer(documents["text"], vocab_size=300, allow_fewer=True))
    >>> objective = DepthObjective(tokenizer, max_source_length=64)
    >>> trainer = DepthTrainer(
    ...     model=load_model(None, tokenizer, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2),
    ...     args=DepthTrainingArguments("unused", use_cpu=True, disable_tqdm=True, report_to="none"),
    ...     data_collator=objective.collator(),
    ...     eval_dataset=objective.prepare(documents),
    ... )
    >>> metrics = trainer.evaluate()  # doctest: +ELLIPSIS
    step 0 | evaluation: loss ...
    >>> "eval_sentence_accuracy" in metrics
    True
    """

    args: DepthTrainingArguments
    args_class = DepthTrainingArguments
    training_metrics = TRAINING_METRICS  # besides the loss, in the training logs

    def __init__(
        self,
        model: PreTrainedModel | torch.nn.Module | None = None,
        args: DepthTrainingArguments | None = None,
        data_collator: Callable[[list[Any]], dict[str, Any]] | None = None,
        *more: Any,
        card: CardContent | None = None,
        **kwargs: Any,
    ):
        if not isinstance(args, self.args_class):
            raise TypeError(
                f"`args` must be `{self.args_class.__name__}(output_dir, ...)`, got {type(args).__name__}: "
                f"{type(self).__name__} reads settings that it does not have."
            )
        if data_collator is None:
            raise ValueError("`data_collator` is missing: give that of the objective, `objective.collator()`.")
        super().__init__(model, args, data_collator, *more, **kwargs)
        install_console(self)
        install_trackers(self)
        self._check_settings()
        check_parts(
            self.accelerator.unwrap_model(self.model),
            self.processing_class,
            self.data_collator,
            constrains_order=self.args.constrain_sentence_order,
        )
        if self.is_fsdp_enabled:
            leave_precision_to_autocast(self.accelerator.state.fsdp_plugin)
        self._set_up(self.model)
        self.card = card
        if card is not None and self.args.push_to_hub and self.is_world_process_zero():
            check_metadata(card)
        self._num_logs_before_best: int | None = None  # when the best model was loaded
        # Our loss is always normalised by the number of labels, whatever the model's `forward` can do with that.
        self.model_accepts_loss_kwargs = True
        self.eval_data_collator = evaluation_collator(self.data_collator)
        self.source_counts = self._new_source_counts()
        self.add_callback(CollatorEpochCallback(self._epoch_listeners))
        self.add_callback(EvaluatedBatchCallback(self._add_evaluated))
        self._train_sums = None
        self._eval_sums = None
        self._evaluated: tuple[torch.Tensor, torch.Tensor] | None = None  # statistics and loss of the latest batch
        self._eval_dataloaders: dict[str, DataLoader] = {}  # with persistent workers, kept by `Trainer`
        self._kept_datasets: dict[str, Any] = {}  # which these read
        self._unshuffling: dict[str, torch.Tensor] = {}  # `unshuffling_table`s by the way of generating
        self._sums_of: dict[str, tuple[Any, Any]] = {}  # `_eval_sums` and `_unshuffling` of the latest evaluations
        # [`unshuffling_accuracy`] of the latest evaluations, by the prefix of their metrics and the way of generating.
        self.unshuffling: dict[str, dict[str, Any]] = {}
        self._returns_generated = False
        self._log_clock = None
        self._packing_is_checked = False
        self._flops_per_token: int | None = None

    def call_model_init(self, trial: Any = None) -> PreTrainedModel:
        """As [`Trainer.call_model_init`], which makes another model for each training."""
        model = super().call_model_init(trial)
        self._set_up(model)
        return model

    def _set_up(self, model: torch.nn.Module) -> None:
        """What the arguments ask for in the model itself."""
        if self.is_fsdp_enabled:
            share_embedding(model)
        # Also undoes what an earlier trainer of the same model has set.
        dtype = torch.bfloat16 if self.args.residual_dtype == "bfloat16" else None
        set_residual_dtype(self._without_wrappers(model), dtype)

    def _check_settings(self):
        """Stop on arguments that would be without effect, or with a wrong one."""
        if self.compute_loss_func is not None:
            raise ValueError(
                "`compute_loss_func` would never be called: the loss is weighted by `sentence_loss_coefficient`. "
                f"Override `compute_loss` in a subclass of {type(self).__name__}."
            )
        if is_compiled_module(self.model):
            raise ValueError(
                "`model` is the result of `torch.compile`, in which the Trainer finds no labels. Give the model as it "
                "is, and `torch_compile=True` to the training arguments."
            )
        is_function = inspect.isroutine(self.data_collator) or isinstance(self.data_collator, functools.partial)
        is_told = hasattr(self.data_collator, "set_epoch")
        if is_function or (not is_told and hasattr(objective_collator(self.data_collator), "set_epoch")):
            logger.warning(
                f"`data_collator` is {'a function' if is_function else f'of {type(self.data_collator).__name__}'}, "
                "which is not told of new epochs: if it calls a collator of an objective, every epoch has the same "
                "noise. Make it a class with a method `set_epoch(epoch)`, which passes the epoch on."
            )
        halves = {p.dtype for p in self.model.parameters() if p.requires_grad} & {torch.float16, torch.bfloat16}
        if halves and not self.is_deepspeed_enabled:  # which casts parameters itself, and updates them in float32
            logger.warning(
                f"Parameters to train are {', '.join(map(str, halves))}, in which small updates are lost. "
                "`load_model` loads a checkpoint in float32; then give `bf16=True` to the training arguments."
            )
        state = self.accelerator.state
        deepspeed_config = state.deepspeed_plugin.deepspeed_config if self.is_deepspeed_enabled else None
        check_sharding(self.args, deepspeed_config, self.is_fsdp_enabled)
        check_whole_weights(deepspeed_config, state.fsdp_plugin if self.is_fsdp_enabled else None)
        if self.args.n_gpu > 1:
            raise ValueError(
                f"`args.n_gpu` is {self.args.n_gpu}: `nn.DataParallel` is not supported. Start one process per GPU by "
                f"`accelerate launch`, or make `args` a `{DepthTrainingArguments.__name__}`, which uses one GPU."
            )

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """As [`Seq2SeqTrainer.train`], after a check that the best model can be told by `metric_for_best_model`."""
        self._num_logs_before_best = None
        name = "loss" if self.args.metric_for_best_model is None else self.args.metric_for_best_model
        name = name.removeprefix("eval_")
        needs_it = self.args.load_best_model_at_end or self.args.save_strategy == SaveStrategy.BEST
        # A search over hyperparameters leaves no model between its trials, of which the first one was checked.
        needs_it = needs_it and self.model is not None
        if needs_it and self.compute_metrics is None and self.eval_dataset is not None:
            self._check_metric_for_best_model(name)
        return super().train(*args, **kwargs)

    def _check_metric_for_best_model(self, name: str) -> None:
        known = self._evaluation_metric_names()
        if name not in known:
            raise ValueError(
                f"`metric_for_best_model` {name!r} is no metric of the evaluation.{suggestion(name, known, 'metrics')}"
            )

    def _evaluation_metric_names(self) -> list[str]:
        """The metrics that an evaluation can report, without `eval_`."""
        is_depth = has_sentence_tokens(self.model.config)
        # Of sentences in order and of shuffled ones, or of none.
        kinds = {"sentence_tokens": 2 * is_depth, "shuffled_sentence_tokens": is_depth, "eosen_tokens": is_depth}
        names = list(summarize(torch.tensor([kinds.get(name, 1) for name in STATISTICS])))
        if self.args.predict_with_generate and is_depth:
            table = torch.ones(2, 1, len(UNSHUFFLING_STATISTICS))
            names += summarize_order(table)
            if self.args.constrain_sentence_order:
                names += summarize_order(table, constrained=True)
        with_metadata = names + [f"{WITH_METADATA}_{name}" for name in names]
        names_of = {
            key: with_metadata if self._takes_metadata and has_metadata(data) else names
            for key, data in by_name(self.eval_dataset).items()
        }
        together = names if names in names_of.values() else with_metadata
        return together + [f"{key}_{name}" for key, own in names_of.items() if key for name in own]

    # ---- Optimizer --------------------------------------------------------------------------------------------------

    @staticmethod
    def get_optimizer_cls_and_kwargs(
        args: DepthTrainingArguments, model: PreTrainedModel | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """As [`Trainer.get_optimizer_cls_and_kwargs`], also for the optimizers of this package."""
        return get_optimizer_class_and_options(args, model)

    def create_optimizer(self, model: torch.nn.Module | None = None) -> Optimizer:
        """As [`Trainer.create_optimizer`]; Muon gets the matrices of the blocks only."""
        if self.optimizer is None and self.args.optim == OptimizerName.MUON:
            model = self.model if model is None else model
            optimizer_class, options = self.get_optimizer_cls_and_kwargs(self.args)
            groups = muon_groups(model, self.get_decay_parameter_names(model), self.args.weight_decay)
            self.optimizer = optimizer_class(groups, **options)
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """As [`Trainer.create_scheduler`], also for the schedules of this package."""
        if self.lr_scheduler is None:
            optimizer = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = make_schedule(self.args, optimizer, num_training_steps)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """
        As `Trainer` does; then the learning rate, the schedule and the other settings of the optimizer are those of
        the arguments again, which the loaded ones would replace, some for one step and some for good.
        """
        settings = [
            {name: value for name, value in group.items() if name not in ("params", *IMPLEMENTATIONS)}
            for group in self.optimizer.param_groups
        ]
        super()._load_optimizer_and_scheduler(checkpoint)
        scheduler = self.lr_scheduler
        if not isinstance(scheduler, LambdaLR):  # has a state, or is that of DeepSpeed
            return
        scheduler.base_lrs = [group["initial_lr"] for group in settings]
        rates = [
            rate * factor(scheduler.last_epoch)
            for rate, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        ]
        for group, own, rate in zip(self.optimizer.param_groups, settings, rates, strict=True):
            group.update(own, lr=rate)
        scheduler._last_lr = rates

    def _divide_optimizer(self) -> None:
        """Tell an optimizer whose updates depend on whole parameters what it has of them under DeepSpeed ZeRO."""
        outer = self.deepspeed.optimizer
        optimizer = getattr(outer, "optimizer", outer)
        if optimizer is not outer and hasattr(optimizer, "set_partitions"):
            optimizer.set_partitions(deepspeed_partitions(outer))

    # ---- Data -------------------------------------------------------------------------------------------------------

    def _prepare_for_training(self, max_steps, train_dataloader, resume_from_checkpoint):
        self._packing_is_checked, self._flops_per_token = False, None  # the model may be another one
        # What an earlier training, or a try of larger batches, has left.
        self._train_sums, self._log_clock, self.current_flos = None, None, 0
        self.unshuffling = {}
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        if self.is_deepspeed_enabled:
            self._divide_optimizer()
        self.source_counts = self._new_source_counts()
        return prepared

    def _new_source_counts(self) -> SourceCounts | None:
        """Of a mixture."""
        if not isinstance(self.train_dataset, MixtureDataset | MixtureStream):
            return None
        return SourceCounts(self.train_dataset, self._sums_device)

    def _epoch_listeners(self) -> list[Any]:
        """What is to be told of each epoch, also if it has replaced what the trainer was made with."""
        listeners = [self.data_collator] if hasattr(self.data_collator, "set_epoch") else []
        return listeners + [self.train_dataset] * isinstance(self.train_dataset, MixtureDataset)

    def get_eval_dataloader(self, eval_dataset: Dataset | str | None = None) -> DataLoader:
        """As `Trainer` does, but persistent workers are those of the data set, whatever was read under its name."""
        if isinstance(eval_dataset, str):
            name, dataset = eval_dataset, self.eval_dataset[eval_dataset]
        elif eval_dataset is None or eval_dataset is self.eval_dataset:
            name, dataset = "eval", self.eval_dataset  # as `Trainer` names it
        else:
            return self.get_test_dataloader(eval_dataset)
        if self._kept_datasets.get(name) is not dataset:
            self._kept_datasets[name] = dataset
            self._eval_dataloaders.pop(name, None)
        with self._evaluation_settings(keeps_workers=True):
            return without_signals(super().get_eval_dataloader(eval_dataset))

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        """As `Trainer` does, but no worker is persistent: the loader is made anew for each evaluation."""
        with self._evaluation_settings(keeps_workers=False):
            return without_signals(super().get_test_dataloader(test_dataset))

    def _get_eval_sampler(self, eval_dataset: Dataset) -> Sampler | None:
        """As `Trainer` does, but the longest examples come first where their lengths are known."""
        lengths = input_lengths(eval_dataset)
        return super()._get_eval_sampler(eval_dataset) if lengths is None else LongestFirstSampler(lengths)

    @contextlib.contextmanager
    def _evaluation_settings(self, keeps_workers: bool):
        """What data loaders for evaluation are made with."""
        args, collator = self.args, self.data_collator
        drops, persists = args.dataloader_drop_last, args.dataloader_persistent_workers
        self.data_collator = self.eval_data_collator
        args.dataloader_drop_last = False  # each example counts
        args.dataloader_persistent_workers = persists and keeps_workers
        try:
            yield
        finally:
            self.data_collator = collator
            args.dataloader_drop_last, args.dataloader_persistent_workers = drops, persists

    # ---- Loss -------------------------------------------------------------------------------------------------------

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, ModelOutput]:
        """
        The weighted loss of a batch.

        Args:
            inputs (`dict`): `input_ids` (B, S), `attention_mask` (B, S), `labels` (B, T) padded with -100, and
                optionally `num_cut_tokens` (B,) and, of a mixture, `source`, `num_documents`, `num_examples` and
                `num_tokens` (B,), which are only counted; for rows of several examples also `decoder_input_ids` (B, T)
                and the segment ids (B, S) and (B, T). A model of this package returns its logits in training with
                `skip_logits=False`.
            num_items_in_batch (`torch.Tensor` or `int`, *optional*): labels in the global batch; by default in this.

        Evaluation reports the mean over labels of what a subclass returns.
        """
        inputs = dict(inputs)
        num_cut_tokens = inputs.pop("num_cut_tokens", None)
        counted = {name: inputs.pop(name) for name in COUNTED_OF_SOURCES if name in inputs}
        if counted and model.training and self.source_counts is not None:
            self.source_counts.add(**counted)
        labels = inputs["labels"]
        if "encoder_segment_ids" in inputs and not self._packing_is_checked:
            check_packed_rows(self._base_model, self.data_collator)
            self._packing_is_checked = True
        loss_weights = self._loss_weights(labels, num_items_in_batch)
        # In training only a subclass asks for outputs: then `token_losses`, for terms of its own, have gradients.
        if self._weights_losses and not (return_outputs and model.training):
            outputs = model(**inputs, use_cache=False, loss_weights=loss_weights)
            token_losses = outputs["token_losses"]
            loss = outputs["loss"]
        else:
            if self._weights_losses and model.training and has_compiled_regions(model):
                inputs.setdefault("skip_logits", False)  # without logits, token losses have no gradients there
            outputs = model(**inputs, use_cache=False)
            token_losses = outputs.get("token_losses")
            if token_losses is None:
                token_losses = cross_entropy_per_token(outputs["logits"], labels)
            loss = (loss_weights * token_losses).sum()
        predictions = None
        if not model.training:
            predictions = outputs.get("predictions")
            predictions = outputs["logits"].argmax(-1) if predictions is None else predictions

        config = self.model.config  # `model` may be wrapped (DDP, FSDP, compiled)
        tensors = {
            "input_ids": inputs["input_ids"],
            "attention_mask": inputs.get("attention_mask"),
            "labels": labels,
            "token_losses": token_losses,
            "predictions": predictions,
            "num_cut_tokens": num_cut_tokens,
            "decoder_segment_ids": inputs.get("decoder_segment_ids"),
        }
        if labels.device.type == "mps":  # has no float64, in which the statistics are added up
            tensors = {name: tensor if tensor is None else tensor.cpu() for name, tensor in tensors.items()}
        statistics = example_statistics(
            **tensors, config=config, sentence_loss_coefficient=self.args.sentence_loss_coefficient
        )
        if model.training:
            self._train_sums = _add(self._train_sums, statistics.sum(0))
        else:
            self._evaluated = statistics, loss.detach()
        return (loss, outputs) if return_outputs else loss

    def compute_loss_context_manager(self) -> contextlib.ExitStack:
        """As `Trainer` does; under FSDP with autocast, see [`leave_precision_to_autocast`]."""
        contexts = super().compute_loss_context_manager()
        if self.is_fsdp_enabled:
            contexts.enter_context(self.accelerator.autocast())
        return contexts

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """As `Trainer.floating_point_ops`, which walks through all parameters, at every step, to count them."""
        if "input_ids" not in inputs:
            return 0
        if self._flops_per_token is None:
            self._flops_per_token = super().floating_point_ops({"input_ids": inputs["input_ids"].new_zeros(1)})
        return inputs["input_ids"].numel() * self._flops_per_token

    def _loss_weights(self, labels: torch.Tensor, num_items: torch.Tensor | int | None) -> torch.Tensor:
        """The weight of each label (B, T) in the loss, float32."""
        weights = torch.ones(labels.shape, device=labels.device)
        if self.args.sentence_loss_coefficient != 1.0:
            is_sentence_token = sentence_token_mask(labels, self.model.config)
            weights = weights.masked_fill(is_sentence_token, self.args.sentence_loss_coefficient)
        if num_items is None:
            return weights / (labels != -100).sum().clamp(min=1)
        if self.args.average_tokens_across_devices:
            # Gradients are averaged over the processes, but N already counts the labels of all of them.
            weights = weights * self.accelerator.num_processes
        return weights / num_items

    @functools.cached_property
    def _weights_losses(self) -> bool:
        """Whether the model weights the losses of its labels itself, and computes them without all logits."""
        return "loss_weights" in inspect.signature(type(self._base_model).forward).parameters

    @property
    def _base_model(self) -> PreTrainedModel:
        """The model without what is wrapped around it, PEFT included."""
        return self._without_wrappers(self.model)

    def _without_wrappers(self, model: torch.nn.Module) -> PreTrainedModel:
        model = self.accelerator.unwrap_model(model)
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    # ---- Evaluation -------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        eval_dataset: Dataset | Mapping[str, Dataset] | str | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, float]:
        """
        As [`Seq2SeqTrainer.evaluate`]; several data sets, such as the sources of a mixture, are evaluated one by one
        (`eval_novels_loss`) and all together (`eval_loss`, a mean over their labels), with one log for all. Where
        all have metadata, there are both once more with these.
        """
        datasets = self.eval_dataset if eval_dataset is None else eval_dataset
        if not isinstance(datasets, Mapping):
            gen_kwargs = self._completed(gen_kwargs)
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)
        self._memory_tracker.start()
        metrics = self._evaluate_all(datasets, ignore_keys, metric_key_prefix, gen_kwargs)
        self._report_evaluation(metrics)
        self._memory_tracker.stop_and_update_metrics(metrics)
        return metrics

    def _report_evaluation(self, metrics: dict[str, float]) -> None:
        """One log and one event, as after an evaluation by `Trainer`."""
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)

    def _evaluate_all(
        self, datasets: Mapping[str, Dataset], ignore_keys: list[str] | None, prefix: str, gen_kwargs: dict[str, Any]
    ) -> dict[str, float]:
        """The metrics of each data set, and of all together."""
        self._gen_kwargs = self._completed(gen_kwargs)
        metrics, num_samples, started = {}, 0, time.time()
        sums = {"": [], f"_{WITH_METADATA}": []}
        self._sums_of = {}
        for own, _, output in self._evaluate_each(datasets, ignore_keys, prefix):
            metrics |= output.metrics
            num_samples += output.num_samples
            for suffix, parts in sums.items():
                parts.append(self._sums_of.get(own + suffix))
        together = {}
        for suffix, parts in sums.items():
            if None not in parts:  # with metadata only if all have them: means of a part would not compare
                together |= {f"{prefix}{suffix}_{name}": value for name, value in self._metrics_of_all(parts).items()}
        return together | speed_metrics(prefix, started, num_samples=num_samples) | metrics

    def _metrics_of_all(self, parts: list[tuple[torch.Tensor, dict[str, torch.Tensor]]]) -> dict[str, float]:
        """The metrics from the sums of several evaluations."""
        self._eval_sums = sum(part for part, _ in parts)
        decodings = dict.fromkeys(decoding for _, part in parts for decoding in part)
        self._unshuffling = {name: sum(part[name] for _, part in parts if name in part) for name in decodings}
        metrics, self._eval_sums = self._evaluation_metrics(), None
        return metrics

    def _evaluate_each(
        self, datasets: Dataset | Mapping[str, Dataset], ignore_keys: list[str] | None, prefix: str
    ) -> Iterator[tuple[str, Dataset, EvalLoopOutput]]:
        """Evaluate data sets one by one: the prefix of the metrics of each, the data set, what came of it."""
        is_own = datasets is self.eval_dataset
        for name, dataset in by_name(datasets).items():
            own, started = f"{prefix}_{name}" if name else prefix, time.time()
            output = self.evaluation_loop(
                self.get_eval_dataloader(name if name and is_own else dataset),
                description="Evaluation",
                prediction_loss_only=True if self.compute_metrics is None else None,
                ignore_keys=ignore_keys,
                metric_key_prefix=own,
            )
            output.metrics.update(speed_metrics(own, started, num_samples=output.num_samples))
            yield own, dataset, output

    def predict(
        self,
        test_dataset: Dataset,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """As [`Seq2SeqTrainer.predict`]; with `predict_with_generate`, `predictions` are the generated ids."""
        gen_kwargs = self._completed(gen_kwargs)
        self._returns_generated = True
        try:
            return super().predict(test_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)
        finally:
            self._returns_generated = False

    def evaluation_loop(
        self, dataloader: DataLoader, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any
    ) -> EvalLoopOutput:
        """
        As `Trainer.evaluation_loop`, without the examples that fill up the last batch of several processes. Examples
        with metadata are read without them; the metrics are those of this, and of another loop that reads them.
        Amid a training, random numbers go on behind it as before: when a run is evaluated does not change its dropout.
        """
        devices = [] if self.args.device.type in ("cpu", "mps") else [self.args.device]
        with torch.random.fork_rng(devices, enabled=self.is_in_train):
            return self._evaluation_loops(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)

    def _evaluation_loops(
        self, dataloader: DataLoader, *args: Any, metric_key_prefix: str, **kwargs: Any
    ) -> EvalLoopOutput:
        output = self._evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
        if self._takes_metadata and has_metadata(dataloader.dataset):
            prefix = f"{metric_key_prefix}_{WITH_METADATA}"
            collators = metadata_collators(self.eval_data_collator)
            for collator in collators:
                collator.set_metadata_probability(1.0)
            try:
                metrics = self._evaluation_loop(dataloader, *args, metric_key_prefix=prefix, **kwargs).metrics
            finally:
                for collator in collators:
                    collator.set_metadata_probability(0.0)
            metrics.pop(f"{prefix}_model_preparation_time", None)
            output.metrics.update(metrics)
        return output

    @property
    def _takes_metadata(self) -> bool:
        """Whether the collator puts the metadata of examples before their inputs."""
        return bool(metadata_collators(self.eval_data_collator))

    def _evaluation_loop(
        self, dataloader: DataLoader, *args: Any, metric_key_prefix: str, **kwargs: Any
    ) -> EvalLoopOutput:
        started = time.perf_counter()
        places, compute_metrics = places_of_examples(dataloader), self.compute_metrics
        if places is not None and compute_metrics is not None and not self.args.batch_eval_metrics:
            self.compute_metrics = metrics_in_order(compute_metrics, places)
        self.gather_function = self.accelerator.gather_for_metrics
        self._eval_sums = torch.zeros(len(STATISTICS), dtype=torch.float64, device=self._sums_device)
        self._unshuffling = {}
        try:
            output = super().evaluation_loop(dataloader, *args, metric_key_prefix=metric_key_prefix, **kwargs)
            metrics = self._evaluation_metrics()
            self._sums_of[metric_key_prefix] = self._eval_sums, self._unshuffling
        finally:
            self._eval_sums, self.compute_metrics = None, compute_metrics
        if places is not None:
            output = outputs_in_order(output, places)
        if self._unshuffling:
            tables = self._unshuffling.items()
            self.unshuffling[metric_key_prefix] = {name: unshuffling_accuracy(table) for name, table in tables}
        if f"{metric_key_prefix}_loss" in output.metrics:
            output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        if self._log_clock is not None:
            self._log_clock += time.perf_counter() - started
        return output

    def _evaluation_metrics(self) -> dict[str, float]:
        """The metrics from the sums of an evaluation."""
        metrics = summarize(self._eval_sums)
        for decoding, table in self._unshuffling.items():
            metrics |= summarize_order(table, constrained=decoding == "constrained")
        return metrics

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """
        As [`Seq2SeqTrainer.prediction_step`], with the weighted loss. Without `compute_metrics` it returns no logits,
        which would pile up. With `predict_with_generate`, the un-shuffling scores of the batch are added to the sums
        of the evaluation.

        Raises:
            `ValueError`: if rows hold several examples.
        """
        if "encoder_segment_ids" in inputs:
            raise ValueError(
                "The evaluation data are packed, but metrics count examples and `generate()` takes one per row. "
                "Prepare them by `objective.prepare(documents, packing=False)`."
            )
        if self.compute_metrics is not None and not self.args.predict_with_generate:
            outputs = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
            self._add_evaluated(outputs[0])
            return outputs

        loss = self._loss(model, inputs, ignore_keys)
        scores_order = has_sentence_tokens(self.model.config)
        returns_generated = self._returns_generated or self.compute_metrics is not None
        if self.args.predict_with_generate and (scores_order or returns_generated):
            inputs = self._prepare_inputs(inputs)
            generated = self._generated_ids(model, inputs, ignore_keys, **gen_kwargs)
            if scores_order:
                self._score_order("free", generated, inputs)
                if self.args.constrain_sentence_order:
                    constrained = self._constrained_ids(model, inputs, ignore_keys, **gen_kwargs)
                    self._score_order("constrained", constrained, inputs)
            if returns_generated:
                return loss, generated, inputs["labels"]
        return loss, None, None

    def _loss(self, model, inputs, ignore_keys=None) -> torch.Tensor:
        """The loss of a batch, whose statistics are added to the sums of the evaluation."""
        if self._weights_losses:
            inputs = {**inputs, "skip_logits": True}
        loss = super().prediction_step(model, inputs, True, ignore_keys)[0]
        self._add_evaluated(loss)
        return loss

    def _add_evaluated(self, loss: torch.Tensor | None = None) -> None:
        """
        Add the statistics of a batch to the sums of the evaluation, unless they are in them, with what a subclass has
        added to its loss.
        """
        evaluated, self._evaluated = self._evaluated, None
        if evaluated is None or self._eval_sums is None:
            return
        statistics, own_loss = evaluated
        if loss is not None:
            more = torch.where(loss == own_loss, 0.0, loss - own_loss)  # per label; also where both are infinite
            more = more.to(statistics.device).to(statistics.dtype)
            statistics[:, LOSS_SUM] += more * statistics[:, TOKENS]
        self._eval_sums += self.accelerator.gather_for_metrics(statistics).sum(0)

    def _score_order(self, decoding: str, generated: torch.Tensor, inputs: dict[str, Any]) -> None:
        """Add the scores of generated ids (B, G) to the sums of the evaluation."""
        tensors = (generated, inputs["input_ids"], inputs["labels"])
        if generated.device.type == "mps":
            tensors = tuple(tensor.cpu() for tensor in tensors)
        rows = self.accelerator.gather_for_metrics(unshuffling_statistics(*tensors, self.model.config))
        self._unshuffling[decoding] = _add(self._unshuffling.get(decoding), unshuffling_table(rows))

    # ---- Model card -------------------------------------------------------------------------------------------------

    def create_model_card(self, model_name: str | None = None, **kwargs: Any) -> None:
        """
        Write `README.md` with code, data, settings, results and limits, or without `card` that of `Trainer`.

        Args:
            model_name (`str`, *optional*): its title; by default its name on the Hub, or that of its folder.
            kwargs: `language`, `license`, `tags`, `finetuned_from`, `dataset_tags`, `dataset`, as for `Trainer`; what
                is not given is that of `card`. [`Trainer.push_to_hub`] passes them on.
        """
        if self.card is None:
            return super().create_model_card(model_name=model_name, **kwargs)
        content = self.card = self.card.updated(**kwargs)
        if self.is_world_process_zero():
            folder = Path(self.args.output_dir)
            content = self._with_training(content)
            card = self._model_card(self.hub_model_id or model_name or folder.resolve().name, content)
            (folder / "README.md").write_text(without_credentials(str(card)), encoding="utf-8")

    def _with_training(self, content: CardContent) -> CardContent:
        """With the settings that only the training shows: the batch size that was found, the step of the weights."""
        settings = dict(content.sections.get("Settings", {}))
        if "global batch size" in settings:
            settings["global batch size"] = self.get_total_train_batch_size(self.args)
        if self._num_logs_before_best is not None:
            settings["weights of step"] = f"{self._weights_step:,} of {self.state.global_step:,}, the best one"
        return replace(content, sections={**content.sections, "Settings": settings})

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self._num_logs_before_best = len(self.state.log_history)

    @property
    def _weights_step(self) -> int:
        """The step of the training that the weights of the model are from: the best one, once that was loaded."""
        return self.state.global_step if self._num_logs_before_best is None else self.state.best_global_step

    def _own_evaluations(self) -> list[dict[str, float]]:
        """The logs of the first evaluation and of the last one of the present weights; none without the latter."""
        logs, before = self.state.log_history, self._num_logs_before_best
        own = [log for log in logs if log["step"] == self._weights_step] + ([] if before is None else logs[before:])
        own = [log for log in own if "eval_loss" in log]
        return [next(log for log in logs if "eval_loss" in log), own[-1]] if own else []

    def _model_card(self, model_name: str, content: CardContent) -> ModelCard:
        if self.source_counts is not None:
            data = {**content.sections.get("Data", {}), **self.source_counts.table()}
            content = replace(content, sections={**content.sections, "Data": data})
        return pretraining_card(
            model_name,
            self._unwrapped_model,
            content,
            self._own_evaluations(),
            self._usage(),
            self._weights_step,
        )

    @property
    def _unwrapped_model(self) -> PreTrainedModel:
        return self.accelerator.unwrap_model(self.model)

    @property
    def _saves_adapter(self) -> bool:
        return is_adapter(self._unwrapped_model)

    def _usage(self) -> Usage | None:
        """The code of the card; `None` without a tokenizer, with noise of one's own, and of an adapter."""
        objective = objective_name(self.data_collator)
        if self.processing_class is None or objective is None or self._saves_adapter:
            return None
        # Not of the training data: a stream would be read once more.
        dataset = next((data for data in by_name(self.eval_dataset).values() if data is not None), None)
        model, collator = self._unwrapped_model, objective_collator(self.data_collator)
        return pretrained_usage(
            name_in_code(self.hub_model_id, self.args.output_dir),
            model,
            self.processing_class,
            dataset,
            objective=objective,
            max_length=self.generation_max_length or model.generation_config.max_length,
            prefix=getattr(collator, "input_prefix", ""),
            revision=self.args.hub_revision if self.hub_model_id else None,
        )

    # ---- Logs -------------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """
        Adds the components of the training loss to a training log, and of a mixture what was seen of each source;
        stops on a loss that is not finite.
        """
        if "loss" in logs:
            logs.update(self._train_metrics())
        if self.source_counts is not None and ("loss" in logs or "train_loss" in logs):
            positions = self._stream_positions.values()
            logs.update(self.source_counts.metrics(self.accelerator, positions, self._num_consumers))
        super().log(logs, start_time)

    def _state_before_step(self) -> dict[str, Any]:
        before = super()._state_before_step()
        counts = None if self.source_counts is None else self.source_counts.sums
        return before and before | {"sums": self._train_sums, "source_counts": counts}

    def _restore_state(self, before: Mapping[str, Any]) -> None:
        super()._restore_state(before)
        self._train_sums = before["sums"]
        if self.source_counts is not None:
            self.source_counts.sums = before["source_counts"]

    def _log_state(self) -> dict[str, Any]:
        sums = None if self._train_sums is None else self._train_sums.tolist()
        state = super()._log_state() | {"sums": sums}
        if self.source_counts is not None:
            state |= {"source_counts": self.source_counts.state(), "source_names": list(self.source_counts.names)}
        return state

    def _merged_log_state(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """What is added up over the processes goes to the first one."""
        merged, share = super()._merged_log_state(states), float(self.args.process_index == 0)
        for name in ("sums", "source_counts"):
            parts = [state[name] for state in states if state.get(name) is not None]
            merged[name] = (share * np.sum(parts, axis=0)).tolist() if parts else None
        return merged

    def _restore_log_state(self, saved: dict[str, Any]) -> None:
        super()._restore_log_state(saved)
        if saved["sums"] is not None:
            self._train_sums = torch.tensor(saved["sums"], dtype=torch.float64, device=self._sums_device)
        if self.source_counts is not None and saved.get("source_counts") is not None:
            counts, names = saved["source_counts"], saved.get("source_names", self.source_counts.names)
            if len(names) == len(counts):  # an earlier release did not state the names
                self.source_counts.restore(counts, names)

    @property
    def _sums_device(self) -> torch.device:
        device = self.accelerator.device
        return torch.device("cpu") if device.type == "mps" else device  # which has no float64

    def _train_metrics(self) -> dict[str, float]:
        sums, self._train_sums = self._train_sums, None
        if sums is None:
            return {}
        sums = self.accelerator.reduce(sums, "sum")
        # The loss itself is in the log already, and accuracies take predictions, which training does not make.
        metrics = {name: value for name, value in summarize(sums).items() if name in self.training_metrics}
        now = time.perf_counter()
        if self._log_clock is not None:
            statistics = dict(zip(STATISTICS, sums.tolist(), strict=True))
            tokens = statistics["input_tokens"] + statistics["tokens"]
            metrics["tokens_per_second"] = tokens / (now - self._log_clock)
        self._log_clock = now
        return metrics

    # ---- State and end ----------------------------------------------------------------------------------------------

    def load_state(self, checkpoint: str | os.PathLike) -> None:
        """
        Take the step count and the logs of a checkpoint, as after the training that led to it. The weights stay.

        Args:
            checkpoint: a folder with `trainer_state.json`.
        """
        self.state = TrainerState.load_from_json(Path(checkpoint, "trainer_state.json"))
        if self.args.auto_find_batch_size and self.state.train_batch_size:
            self._train_batch_size = self.state.train_batch_size
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._num_logs_before_best = len(self.state.log_history)

    def end(self) -> None:
        """
        End trackers and process group; the last line of a script. Several processes cannot go on with this trainer.
        """
        self.accelerator.wait_for_everyone()
        for tracker in run_trackers(self):
            tracker.end()
        self._end_workers()
        if self.args.world_size > 1:
            # `DistributedDataParallel` must be gone before its process group (torch 2.13): if the interpreter frees it
            # at exit, the destructor of gloo waits for a thread that waits for the GIL, and the process hangs. See
            # https://github.com/pytorch/pytorch/issues/56297 (destructors that wait) and .../issues/190489 (at exit).
            self.model_wrapped = self.model
            self.accelerator.free_memory()
            gc.collect()
        self.accelerator.end_training()

    def _end_workers(self) -> None:
        """
        End the persistent workers of all data loaders. Freed with the trainer, which holds them in a cycle of
        references, their queues are closed before they are told (torch 2.13), and each is waited for for five seconds.
        """
        for loader in self.accelerator._dataloaders:
            iterator = getattr(getattr(loader, "base_dataloader", loader), "_iterator", None)
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()


def _add(total: torch.Tensor | None, part: torch.Tensor) -> torch.Tensor:
    return part if total is None else total + part
