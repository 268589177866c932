"""[`EvaluationTrainer`]: evaluations whose metrics are means over examples and labels, with un-shuffling scores."""

import contextlib
import functools
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler
from transformers import PreTrainedModel
from transformers.trainer_utils import EvalLoopOutput, PredictionOutput, speed_metrics

from ..data.metadata import has_metadata
from ..evaluation.attention_entropy import REMEDY, SATURATED, attention_entropy, entropy_metrics
from ..models.modeling_depth import has_sentence_tokens
from .callbacks import EvaluatedBatchCallback
from .evaluation_order import (
    LongestFirstSampler,
    by_name,
    input_lengths,
    metrics_in_order,
    outputs_in_order,
    places_of_examples,
)
from .generation import GenerationTrainer
from .parts import evaluation_collator, metadata_collators
from .signals import without_signals
from .statistics import (
    STATISTICS,
    UNSHUFFLING_STATISTICS,
    added,
    summarize,
    summarize_order,
    unshuffling_accuracy,
    unshuffling_statistics,
    unshuffling_table,
)

logger = logging.getLogger(__name__)

LOSS_SUM, TOKENS = STATISTICS.index("loss_sum"), STATISTICS.index("tokens")
WITH_METADATA = "with_metadata"  # in the names of metrics, behind `eval`


class EvaluationTrainer(GenerationTrainer):
    """
    A [`GenerationTrainer`] whose evaluations compare: each example counts once and each label as much as any other,
    whatever the batches and processes; the noise is the same each time.

    What is added up comes from `compute_loss` of a subclass, which leaves of each batch that is evaluated in
    `_evaluated`: the [`example_statistics`] of its examples, its loss, and by what share of its labels it was divided.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.eval_data_collator = evaluation_collator(self.data_collator)
        self._eval_sums = None
        # Statistics and loss of the latest batch, and what the loss was divided by as a share of its labels.
        self._evaluated: tuple[torch.Tensor, torch.Tensor, torch.Tensor | float] | None = None
        self._eval_dataloaders: dict[str, DataLoader] = {}  # with persistent workers, kept by `Trainer`
        self._kept_datasets: dict[str, Any] = {}  # which these read
        self._unshuffling: dict[str, torch.Tensor] = {}  # `unshuffling_table`s by the way of generating
        self._sums_of: dict[str, tuple[Any, Any]] = {}  # `_eval_sums` and `_unshuffling` of the latest evaluations
        # [`unshuffling_accuracy`] of the latest evaluations, by the prefix of their metrics and the way of generating.
        self.unshuffling: dict[str, dict[str, Any]] = {}
        self._returns_generated = False
        # Of the present evaluation: the prefix of its metrics, and how even the attention was in its first batch.
        self._evaluation_prefix: str | None = None
        self._attention_metrics: dict[str, float] | None = None
        self._warned_of_attention = False
        self.add_callback(EvaluatedBatchCallback(self._add_evaluated))

    # ---- Data -------------------------------------------------------------------------------------------------------

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

    # ---- Evaluations ------------------------------------------------------------------------------------------------

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
        self._begin_evaluation(metric_key_prefix)
        if not isinstance(datasets, Mapping):
            gen_kwargs = self._completed(gen_kwargs)
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix, **gen_kwargs)
        self._memory_tracker.start()
        metrics = self._evaluate_all(datasets, ignore_keys, metric_key_prefix, gen_kwargs)
        self._report_evaluation(metrics)
        self._memory_tracker.stop_and_update_metrics(metrics)
        return metrics

    def _begin_evaluation(self, prefix: str) -> None:
        self._evaluation_prefix, self._attention_metrics = prefix, None

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
        together |= speed_metrics(prefix, started, num_samples=num_samples) | self._attention_of(prefix)
        return together | metrics

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
        if metric_key_prefix == self._evaluation_prefix:
            output.metrics.update(self._attention_of(metric_key_prefix))
        return output

    # ---- A batch ----------------------------------------------------------------------------------------------------

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
            self._after_loss(inputs, outputs[0])
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
        self._after_loss(inputs, loss)
        return loss

    def _after_loss(self, inputs: Mapping[str, Any], loss: torch.Tensor) -> None:
        self._add_evaluated(loss)
        if self._attention_metrics is None:
            self._measure_attention(inputs)

    def _measure_attention(self, inputs: Mapping[str, Any]) -> None:
        """Note how even the attention is in a batch of this process; warn once in a training if it is not."""
        with self.compute_loss_context_manager():
            self._attention_metrics = entropy_metrics(
                attention_entropy(self._base_model, self._prepare_inputs(inputs))
            )
        layers = {name: share for name, share in self._attention_metrics.items() if name != "attention_entropy"}
        if self.is_in_train and not self._warned_of_attention and min(layers.values(), default=1.0) < SATURATED:
            self._warned_of_attention = True
            name = min(layers, key=layers.get)
            if self.is_world_process_zero():
                logger.warning(
                    f"Step {self.state.global_step}: `{name}` is {layers[name]:.3f}, of at most 1. {REMEDY}"
                )

    def _attention_of(self, prefix: str) -> dict[str, float]:
        return {f"{prefix}_{name}": value for name, value in (self._attention_metrics or {}).items()}

    def _add_evaluated(self, loss: torch.Tensor | None = None) -> None:
        """
        Add the statistics of a batch to the sums of the evaluation, unless they are in them, with what a subclass has
        added to its loss.
        """
        evaluated, self._evaluated = self._evaluated, None
        if evaluated is None or self._eval_sums is None:
            return
        statistics, own_loss, share = evaluated
        if loss is not None:
            more = torch.where(loss == own_loss, 0.0, loss - own_loss)  # per label; also where both are infinite
            more = (more * share).to(statistics.device).to(statistics.dtype)
            statistics[:, LOSS_SUM] += more * statistics[:, TOKENS]
        self._eval_sums += self.accelerator.gather_for_metrics(statistics).sum(0)

    def _score_order(self, decoding: str, generated: torch.Tensor, inputs: dict[str, Any]) -> None:
        """Add the scores of generated ids (B, G) to the sums of the evaluation."""
        tensors = (generated, inputs["input_ids"], inputs["labels"])
        if generated.device.type == "mps":
            tensors = tuple(tensor.cpu() for tensor in tensors)
        rows = self.accelerator.gather_for_metrics(unshuffling_statistics(*tensors, self.model.config))
        self._unshuffling[decoding] = added(self._unshuffling.get(decoding), unshuffling_table(rows))

    # ---- Metrics ----------------------------------------------------------------------------------------------------

    def _evaluation_metrics(self) -> dict[str, float]:
        """The metrics from the sums of an evaluation."""
        metrics = summarize(self._eval_sums)
        for decoding, table in self._unshuffling.items():
            metrics |= summarize_order(table, constrained=decoding == "constrained")
        return metrics

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

    # ---- The model --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _weights_losses(self) -> bool:
        """Whether the model weights the losses of its labels itself, and computes them without all logits."""
        return hasattr(self._base_model, "head_loss")

    @property
    def _base_model(self) -> PreTrainedModel:
        """The model without what is wrapped around it, PEFT included."""
        return self._without_wrappers(self.model)

    def _without_wrappers(self, model: torch.nn.Module) -> PreTrainedModel:
        model = self.accelerator.unwrap_model(model)
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    @property
    def _sums_device(self) -> torch.device:
        device = self.accelerator.device
        return torch.device("cpu") if device.type == "mps" else device  # which has no float64
