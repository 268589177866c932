"""[`DepthTrainer`]: a `Seq2SeqTrainer` with a weighted loss, its components in the logs, and un-shuffling scores."""

import contextlib
import functools
import gc
import inspect
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import is_compiled_module
from huggingface_hub import ModelCard
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers import PreTrainedModel, TrainerState
from transformers.modeling_outputs import ModelOutput
from transformers.trainer_utils import EvalLoopOutput, SaveStrategy, TrainOutput

from ..credentials import without_credentials
from ..data.mixture import MixtureDataset, MixtureStream
from ..models.modeling_depth import cross_entropy_per_token, is_sentence_token
from ..suggestions import suggestion
from .callbacks import CollatorEpochCallback
from .card_code import Usage, name_in_code, pretrained_usage
from .console import install_console
from .evaluation import EvaluationTrainer
from .evaluation_order import by_name
from .fsdp import leave_precision_to_autocast, share_embedding
from .model_card import CardContent, check_metadata, is_adapter, pretraining_card
from .optimizers import OptimizerName, get_optimizer_class_and_options, muon_groups, setting_names
from .partitions import deepspeed_partitions
from .parts import check_packed_rows, check_parts, objective_collator, objective_name
from .residual import set_residual_dtype
from .schedules import make_schedule
from .settings import check_sharding, check_whole_weights
from .source_counts import SourceCounts
from .statistics import STATISTICS, added, example_statistics, summarize
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


class DepthTrainer(EvaluationTrainer):
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
        if self._saves_adapter and self.args.use_adapter_optimizer():
            logger.info(f"An adapter is trained by {self.args.optim.value}, unless an optimizer is given.")
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
        self.source_counts = self._new_source_counts()
        self.add_callback(CollatorEpochCallback(self._epoch_listeners))
        self._train_sums = None
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
        if name not in known and not self._may_report_more:
            raise ValueError(
                f"`metric_for_best_model` {name!r} is no metric of the evaluation.{suggestion(name, known, 'metrics')}"
            )

    @property
    def _may_report_more(self) -> bool:
        """Whether a subclass of someone else evaluates by its own methods. Then `Trainer` tells what it lacks."""
        package = __name__.partition(".")[0]
        methods = (getattr(type(self), name, None) for name in ("evaluate", "evaluation_loop", "evaluate_tasks"))
        return any(method.__module__.partition(".")[0] != package for method in methods if method is not None)

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
        the arguments again, which the loaded ones would replace, some for one step and some for good. What else an
        optimizer keeps in its groups, such as the number of its steps, is state, and stays as it was loaded.
        """
        names = setting_names(self.optimizer) - {"params", *IMPLEMENTATIONS}
        settings = [
            {name: value for name, value in group.items() if name in names} for group in self.optimizer.param_groups
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

        Returns:
            The sum over the labels of this batch divided by `num_items_in_batch`, of P processes that average tokens
            (`average_tokens_across_devices`) times P: gradients are added up over the batches that are accumulated,
            and averaged over the processes. A term that a subclass adds is to be scaled likewise, `P * term.sum() /
            num_items_in_batch`; a mean over a batch counts as often as batches are accumulated. Evaluation
            reports the mean over labels of what a subclass returns.
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
            if self._weights_losses:
                inputs.setdefault("skip_logits", False)  # without logits, token losses have no gradients
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
            self._train_sums = added(self._train_sums, statistics.sum(0))
        else:
            self._evaluated = statistics, loss.detach(), self._share_of_labels(labels, num_items_in_batch)
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
            is_sentence = is_sentence_token(labels, self.model.config)
            weights = weights.masked_fill(is_sentence, self.args.sentence_loss_coefficient)
        if num_items is None:
            return weights / (labels != -100).sum().clamp(min=1)
        if self.args.average_tokens_across_devices:
            # Gradients are averaged over the processes, but N already counts the labels of all of them.
            weights = weights * self.accelerator.num_processes
        return weights / num_items

    def _share_of_labels(self, labels: torch.Tensor, num_items: torch.Tensor | int | None) -> torch.Tensor | float:
        """By how many labels the loss of a batch was divided, as a share of those that this process has in it."""
        if num_items is None:
            return 1.0
        num_processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
        return num_items / num_processes / (labels != -100).sum().clamp(min=1)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> EvalLoopOutput:
        """As [`EvaluationTrainer.evaluation_loop`]; the rates of the training are without its time."""
        started = time.perf_counter()
        output = super().evaluation_loop(*args, **kwargs)
        if self._log_clock is not None:
            self._log_clock += time.perf_counter() - started
        return output

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
