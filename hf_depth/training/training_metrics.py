"""[`TrainingMetrics`]: what is added up between two logs of a training."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..data.mixture import MixtureDataset, MixtureStream
from .source_counts import COUNTED, SourceCounts
from .statistics import STATISTICS, summarize

if TYPE_CHECKING:
    from .trainer import DepthTrainer


class TrainingMetrics:
    """
    The components of the loss, rates, and of a mixture what was seen of each source. Sums stay on the device: no step
    waits for it. They are added up over the processes by [`~TrainingMetrics.gather`], before a log.

    Args:
        trainer (`DepthTrainer`): whose batches are counted.
    """

    def __init__(self, trainer: "DepthTrainer"):
        self.trainer = trainer
        self.sources: SourceCounts | None = None  # of a mixture
        self._sums: torch.Tensor | None = None
        self._clock: float | None = None
        self._gathered: dict[str, float] = {}

    def begin(self) -> None:
        """When a training begins, or goes on from the totals of the run."""
        trainer = self.trainer
        self._sums, self._clock, self._gathered, self.sources = None, None, {}, None
        if isinstance(trainer.train_dataset, MixtureDataset | MixtureStream):
            self.sources = SourceCounts(trainer.train_dataset, trainer.sums_device)
            if trainer.is_world_process_zero():
                self.sources.restore(trainer.totals.sources)

    def add(self, statistics: torch.Tensor, read: Mapping[str, Any]) -> None:
        """
        Count a batch.

        Args:
            statistics (`torch.DoubleTensor` of shape `(B, len(STATISTICS))`): see [`example_statistics`].
            read (`Mapping`): of a mixture, `source` and the numbers that [`SourceCounts`] counts, all (B,).
        """
        own = statistics.sum(0)
        self._sums = own if self._sums is None else self._sums + own
        if self.sources is not None and "source" in read:
            self.sources.add(**{name: read[name] for name in COUNTED})

    def snapshot(self) -> Callable[[], None]:
        """A function that forgets what is counted from now on."""
        before, sources = self._sums, None if self.sources is None else self.sources.sums

        def go_back() -> None:
            self._sums = before
            if self.sources is not None:
                self.sources.sums = sources

        return go_back

    def gather_sources(self) -> None:
        """Add up what was seen of each source; all processes call this at the same time."""
        if self.sources is not None:
            reading = self.trainer.reading
            positions = reading.positions.values()
            self._gathered |= self.sources.metrics(self.trainer.accelerator, positions, reading.num_consumers)
            self.trainer.totals.sources = self.sources.gathered

    def gather(self) -> None:
        """Add up what the next log shows; all processes call this at the same time."""
        self.gather_sources()
        sums, self._sums = self._sums, None
        if sums is None:
            return
        sums = self.trainer.accelerator.reduce(sums, "sum")
        # The loss itself is in the log already, and accuracies take predictions, which training does not make.
        names = self.trainer.training_metrics
        self._gathered |= {name: value for name, value in summarize(sums).items() if name in names}
        now = time.perf_counter()
        if self._clock is not None:
            statistics = dict(zip(STATISTICS, sums.tolist(), strict=True))
            tokens = statistics["input_tokens"] + statistics["tokens"]
            self._gathered["tokens_per_second"] = tokens / (now - self._clock)
        self._clock = now

    def pause(self, seconds: float) -> None:
        """Leave a time out of the rates, such as that of an evaluation."""
        if self._clock is not None:
            self._clock += seconds

    def pop(self) -> dict[str, float]:
        """What was gathered for a log."""
        gathered, self._gathered = self._gathered, {}
        return gathered
