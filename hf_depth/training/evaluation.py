"""Evaluation: what it adds up over all examples, its loops over data sets, what the model generates, the order."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset
from torch import nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from transformers import Seq2SeqTrainer, Trainer

from ..errors import UserError
from ..evaluation.attention_entropy import attention_entropy, warn_of_saturation
from ..evaluation.ordering import SentenceOrderLogitsProcessor
from ..tasks.dataset import TaskDataset
from .inputs import objective_collator
from .statistics import STATISTICS, summarize, summarize_order, unshuffling_statistics

WITH_METADATA = "with_metadata"  # in the names of metrics, behind `eval`
# Widths of the encoder inputs with a static cache, which is as wide: each other width is compiled anew.
STATIC_MULTIPLE = 128


class EvaluationMetrics:
    """What evaluations add up over the examples of all processes, by prefix, and how the model attends."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.statistics: dict[str, torch.Tensor] = {}
        # `unshuffling_statistics` of each batch, by prefix and way of generating: "free", "constrained".
        self.orders: dict[str, dict[str, list[torch.Tensor]]] = {}
        self.prefix: str | None = None  # of the present loop
        self.attention: dict[str, float] | None = {}  # `None`: to be measured in the next batch
        self._warned_of_attention = False

    def begin(self) -> None:
        """Forget the evaluation before."""
        self.statistics, self.orders, self.attention = {}, {}, None

    def begin_loop(self, prefix: str) -> None:
        """Add up what comes from now on for metrics of this prefix."""
        self.statistics[prefix] = torch.zeros(len(STATISTICS), dtype=torch.float64, device=self.trainer.sums_device)
        self.prefix, self.orders[prefix] = prefix, {}

    def add(self, statistics: torch.Tensor, inputs: Mapping[str, Any]) -> None:
        """Count a batch by its [`example_statistics`]; look at the attention of the first one."""
        if self.prefix is None:  # no evaluation, but a user's own call
            return
        trainer = self.trainer
        self.statistics[self.prefix] += trainer.accelerator.gather_for_metrics(statistics).sum(0)
        if self.attention is None:
            with trainer.autocast():
                self.attention = attention_entropy(trainer.plain_model, inputs)
            if trainer.is_in_train and not self._warned_of_attention and trainer.is_world_process_zero():
                self._warned_of_attention = warn_of_saturation(self.attention, trainer.state.global_step)

    def add_order(self, decoding: str, generated: torch.Tensor, inputs: Mapping[str, Any]) -> None:
        """Count the order in generated ids (B, G), that were generated freely or under the constraint."""
        rows = unshuffling_statistics(generated, inputs["input_ids"], inputs["labels"], self.trainer.model.config)
        rows = self.trainer.accelerator.gather_for_metrics(rows)
        self.orders[self.prefix].setdefault(decoding, []).append(rows)

    def metrics(self, *prefixes: str) -> dict[str, float]:
        """See [`summarize`] and [`summarize_order`]: the metrics of all examples of some loops."""
        metrics = summarize(sum(self.statistics[prefix] for prefix in prefixes))
        for decoding in self.orders[prefixes[0]]:
            rows = torch.cat([batch for prefix in prefixes for batch in self.orders[prefix].get(decoding, ())])
            metrics |= summarize_order(rows.cpu().numpy(), constrained=decoding == "constrained")
        names = self.trainer.evaluation_metrics
        return metrics if names is None else {name: metrics[name] for name in names if name in metrics}

    def metrics_of_all(self, names: Iterable[str], prefix: str) -> dict[str, float]:
        """The metrics of several data sets together; those with metadata only if all have them."""
        metrics = {}
        for suffix in ("", f"_{WITH_METADATA}"):
            prefixes = [f"{prefix}_{name}{suffix}" for name in names]
            if self.statistics.keys() >= {*prefixes}:
                metrics |= {f"{prefix}{suffix}_{name}": value for name, value in self.metrics(*prefixes).items()}
        return metrics


def longest_first(dataset: Any) -> list[int] | None:
    """The order in which an evaluation reads: the longest first, for little padding; `None` if lengths are unknown."""
    if isinstance(dataset, TaskDataset):
        dataset = dataset.prepared
    if isinstance(dataset, Dataset) and "input_ids" in dataset.column_names:
        ids = dataset.select_columns("input_ids").with_format("arrow")[:]["input_ids"]
        lengths = pc.list_value_length(ids).to_numpy()
    elif isinstance(dataset, list | tuple) and all(isinstance(row, Mapping) and "input_ids" in row for row in dataset):
        lengths = np.array([len(row["input_ids"]) for row in dataset])
    else:
        return None
    return np.argsort(-lengths, kind="stable").tolist()


def _settings(trainer: Trainer, gen_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `generate()`: those given, else those of the trainer."""
    args = trainer.args
    own = {"num_beams": args.generation_num_beams, "cache_implementation": args.generation_cache_implementation}
    if gen_kwargs.get("max_new_tokens") is None:  # `generate()` warns of both
        own["max_length"] = trainer.generation_max_length
    return {name: value for each in (own, gen_kwargs) for name, value in each.items() if value is not None}


def gather_in_generation(model: nn.Module) -> None:
    """Let `generate()`, which calls the encoder by itself, gather sharded parameters as `forward()` does."""
    if isinstance(model, FSDPModule) and "generate" not in vars(model):
        register_fsdp_forward_method(model, "generate")


def generate(trainer: Trainer, model: nn.Module, inputs: Mapping[str, Any], **gen_kwargs: Any) -> torch.Tensor:
    """What a model generates for a batch: ids of shape `(B, G)`. Each example has one prediction."""
    gather_in_generation(trainer.model)
    # Without the labels, for whose loss `Seq2SeqTrainer.prediction_step` would run a second forward pass.
    prompt = {name: inputs[name] for name in ("input_ids", "attention_mask") if name in inputs}
    generation, settings = trainer.model.generation_config, _settings(trainer, gen_kwargs)
    number = settings.get("num_return_sequences") or generation.num_return_sequences
    if number not in (None, 1):
        raise UserError(f"`num_return_sequences={number}` is not supported: an example has one prediction.")
    if (settings.get("cache_implementation") or generation.cache_implementation) == "static":
        width = -prompt["input_ids"].shape[1] % STATIC_MULTIPLE
        fillings = {"input_ids": trainer.model.config.pad_token_id, "attention_mask": 0}
        prompt = {name: nn.functional.pad(ids, (0, width), value=fillings[name]) for name, ids in prompt.items()}
    before = dict(vars(generation))
    try:
        with trainer.autocast():
            return Seq2SeqTrainer.prediction_step(trainer, model, prompt, False, **settings)[1]
    finally:
        # `Seq2SeqTrainer` of transformers 5.24 leaves the defaults of `generate()` in it, which is saved.
        vars(generation).clear()
        vars(generation).update(before)


def generate_in_order(
    trainer: Trainer, model: nn.Module, inputs: Mapping[str, Any], **gen_kwargs: Any
) -> torch.Tensor:
    """As [`generate`], but each sentence token of the input comes exactly once."""
    generation, settings = trainer.model.generation_config, _settings(trainer, gen_kwargs)
    max_length = settings.pop("max_length", None) or generation.max_length or 20  # as `generate()` has it
    max_new_tokens = settings.pop("max_new_tokens", None) or generation.max_new_tokens
    limit = max_length - 1 if max_new_tokens is None else max_new_tokens
    tokenizer = trainer.processing_class or objective_collator(trainer.data_collator).tokenizer
    constraint = SentenceOrderLogitsProcessor(trainer.model.config, tokenizer, inputs["input_ids"], limit)
    settings["logits_processor"] = [*settings.get("logits_processor", []), constraint]
    return generate(trainer, model, inputs, **settings, max_new_tokens=constraint.max_new_tokens)
