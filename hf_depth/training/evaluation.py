"""What an evaluation adds up and reports, its loops over data sets, and by which metrics models compare."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from transformers.trainer_utils import EvalLoopOutput, speed_metrics

from ..data.metadata import has_metadata
from ..errors import UserError
from ..evaluation.attention_entropy import attention_entropy, entropy_metrics, warn_of_saturation
from ..models.modeling_depth import has_sentence_tokens
from ..suggestions import suggestion
from .collators import metadata_collators
from .statistics import STATISTICS, summarize
from .unshuffling import (
    ORDER_STATISTICS,
    summarize_order,
    unshuffling_accuracy,
    unshuffling_statistics,
    unshuffling_table,
)

if TYPE_CHECKING:
    from .trainer import DepthTrainer

WITH_METADATA = "with_metadata"  # in the names of metrics, behind `eval`


# ---- Sums -----------------------------------------------------------------------------------------------------------


class EvaluationSums:
    """
    What an evaluation adds up over all examples of all processes. Its size does not grow with their number.

    Args:
        device (`torch.device`): where the sums are kept, in float64.

    >>> sums = EvaluationSums(torch.device("cpu"))
    >>> sums.add(torch.ones(3, len(STATISTICS), dtype=torch.float64))
    >>> sums.metrics()["loss"]
    1.0
    """

    def __init__(self, device: torch.device):
        self.statistics = torch.zeros(len(STATISTICS), dtype=torch.float64, device=device)
        self.orders: dict[str, torch.Tensor] = {}  # `unshuffling_table`s: "free", "constrained"

    def add(self, rows: torch.Tensor) -> None:
        """Add [`example_statistics`] of shape `(B, len(STATISTICS))`."""
        self.statistics += rows.sum(0)

    def add_order(self, decoding: str, rows: torch.Tensor) -> None:
        """Add [`unshuffling_statistics`] of what was generated, freely or under the constraint."""
        self.orders[decoding] = self.orders.get(decoding, 0.0) + unshuffling_table(rows)

    def __add__(self, other: "EvaluationSums") -> "EvaluationSums":
        total = EvaluationSums(self.statistics.device)
        total.statistics = self.statistics + other.statistics
        for name in dict.fromkeys((*self.orders, *other.orders)):
            total.orders[name] = sum(part.orders[name] for part in (self, other) if name in part.orders)
        return total

    def metrics(self) -> dict[str, float]:
        """See [`summarize`] and [`summarize_order`]."""
        metrics = summarize(self.statistics)
        for decoding, table in self.orders.items():
            metrics |= summarize_order(table, constrained=decoding == "constrained")
        return metrics

    def accuracies(self) -> dict[str, Any]:
        """[`unshuffling_accuracy`] of each way of generating."""
        return {decoding: unshuffling_accuracy(table) for decoding, table in self.orders.items()}


class EvaluationMetrics:
    """
    What the loops of an evaluation add up, and how its model attends in the first batch.

    Args:
        trainer (`DepthTrainer`): whose batches are counted, on all processes at the same time.

    Attributes:
        sums_of (`dict[str, EvaluationSums]`): those of the latest evaluation, by the prefix of their metrics.
    """

    def __init__(self, trainer: "DepthTrainer"):
        self.trainer = trainer
        self.sums_of: dict[str, EvaluationSums] = {}
        self._sums: EvaluationSums | None = None  # of the present loop
        self._attention: dict[str, float] | None = {}  # `None`: to be measured in the next batch
        self._warned_of_attention = False

    def begin(self) -> None:
        """Forget the evaluation before."""
        self.sums_of, self._attention = {}, None

    @contextlib.contextmanager
    def loop(self, prefix: str) -> Iterator[EvaluationSums]:
        """A loop over examples, whose metrics have a prefix; its sums."""
        sums = self._sums = self.sums_of[prefix] = EvaluationSums(self.trainer.sums_device)
        try:
            yield sums
        finally:
            self._sums = None

    def add(self, statistics: torch.Tensor, inputs: Mapping[str, Any]) -> None:
        """Count a batch by its [`example_statistics`]; look at the attention of the first one."""
        if self._sums is None:  # no evaluation, but a user's own call
            return
        trainer = self.trainer
        self._sums.add(trainer.accelerator.gather_for_metrics(statistics))
        if self._attention is None:
            with trainer.autocast():
                self._attention = entropy_metrics(attention_entropy(trainer._without_wrappers(trainer.model), inputs))
            if trainer.is_in_train and not self._warned_of_attention and trainer.is_world_process_zero():
                self._warned_of_attention = warn_of_saturation(self._attention, trainer.state.global_step)

    def add_order(self, decoding: str, generated: torch.Tensor, inputs: Mapping[str, Any]) -> None:
        """Count the order in generated ids (B, G), that were generated freely or under the constraint."""
        tensors = (generated, inputs["input_ids"], inputs["labels"])
        if self.trainer.sums_device.type != generated.device.type:
            tensors = tuple(tensor.cpu() for tensor in tensors)
        rows = unshuffling_statistics(*tensors, self.trainer.model.config)
        self._sums.add_order(decoding, self.trainer.accelerator.gather_for_metrics(rows))

    def attention_metrics(self, prefix: str) -> dict[str, float]:
        """The entropies of the attention in the first batch."""
        return {f"{prefix}_{name}": value for name, value in (self._attention or {}).items()}


def by_name(datasets: Any) -> Mapping[str, Any]:
    """
    Data sets to evaluate on by their names; one that stands alone has the name `""`.

    Args:
        datasets (`Dataset` or `Mapping[str, Dataset]`, *optional*): as a trainer takes them.

    >>> by_name(["an example"]), by_name({"novels": ["an example"]})
    ({'': ['an example']}, {'novels': ['an example']})
    """
    return datasets if isinstance(datasets, Mapping) else {"": datasets}


# ---- Loops ----------------------------------------------------------------------------------------------------------


def evaluate_each(
    trainer: "DepthTrainer", datasets: Any, ignore_keys: list[str] | None, prefix: str
) -> Iterator[tuple[Any, EvalLoopOutput]]:
    """Evaluate data sets one by one: each with what came of it."""
    for name, dataset in by_name(datasets).items():
        own, started = f"{prefix}_{name}" if name else prefix, time.time()
        output = trainer.evaluation_loop(
            trainer.get_eval_dataloader(dataset),
            description="Evaluation",
            prediction_loss_only=True if trainer.compute_metrics is None else None,
            ignore_keys=ignore_keys,
            metric_key_prefix=own,
        )
        output.metrics.update(speed_metrics(own, started, num_samples=output.num_samples))
        yield dataset, output


def metrics_of_all(trainer: "DepthTrainer", names: Iterable[str], prefix: str) -> dict[str, float]:
    """The metrics of several data sets together; those with metadata only if all have them."""
    metrics = {}
    for suffix in ("", f"_{WITH_METADATA}"):
        parts = [trainer.evaluated.sums_of.get(f"{prefix}_{name}{suffix}") for name in names]
        if parts and None not in parts:
            total = trainer.summary(sum(parts[1:], parts[0]))
            metrics |= {f"{prefix}{suffix}_{name}": value for name, value in total.items()}
    return metrics


@contextlib.contextmanager
def all_metadata(collators: Iterable[Any]) -> Iterator[None]:
    """Let collators put the metadata of each example before its input, and afterwards those of none."""
    try:
        for collator in collators:
            collator.set_metadata_probability(1.0)
        yield
    finally:
        for collator in collators:
            collator.set_metadata_probability(0.0)


# ---- The metric of the best model -----------------------------------------------------------------------------------


def metric_names(trainer: "DepthTrainer") -> list[str]:
    """The metrics that an evaluation of a [`DepthTrainer`] can report, without `eval_`."""
    is_depth = has_sentence_tokens(trainer.model.config)
    # Two sentence tokens, one of them shuffled: then each metric has something to be measured on.
    kinds = {"sentence_tokens": 2 * is_depth, "shuffled_sentence_tokens": is_depth, "eosen_tokens": is_depth}
    names = list(summarize(torch.tensor([kinds.get(name, 1) for name in STATISTICS])))
    if trainer.args.predict_with_generate and is_depth:
        table = torch.ones(2, 1, len(ORDER_STATISTICS))
        names += summarize_order(table)
        if trainer.args.constrain_sentence_order:
            names += summarize_order(table, constrained=True)
    with_metadata = names + [f"{WITH_METADATA}_{name}" for name in names]
    takes_metadata = bool(metadata_collators(trainer.eval_data_collator))
    names_of = {
        key: with_metadata if takes_metadata and has_metadata(data) else names
        for key, data in by_name(trainer.eval_dataset).items()
    }
    together = names if names in names_of.values() else with_metadata
    return together + [f"{key}_{name}" for key, own in names_of.items() if key for name in own]


def check_metric_for_best_model(trainer: "DepthTrainer") -> None:
    """
    Check before the training that `metric_for_best_model` is reported. `Trainer` would tell after an evaluation.

    Raises:
        `ValueError`: naming near metrics.
    """
    args = trainer.args
    needs_it = args.load_best_model_at_end or getattr(args.save_strategy, "value", args.save_strategy) == "best"
    reports_more = trainer.compute_metrics is not None or _evaluates_by_own_methods(trainer)
    if not needs_it or reports_more or trainer.model is None or trainer.eval_dataset is None:
        return
    name = "loss" if args.metric_for_best_model is None else args.metric_for_best_model.removeprefix("eval_")
    known = trainer.metric_names()
    if name not in known:
        raise UserError(
            f"`metric_for_best_model` {name!r} is no metric of the evaluation.{suggestion(name, known, 'metrics')}"
        )


def _evaluates_by_own_methods(trainer: "DepthTrainer") -> bool:
    """Whether a subclass of someone else evaluates by its own methods, and may report what is not known here."""
    package = __name__.partition(".")[0]
    methods = (getattr(type(trainer), name) for name in ("evaluate", "evaluate_datasets", "evaluation_loop"))
    return any(method.__module__.partition(".")[0] != package for method in methods)
