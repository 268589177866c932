"""[`SourceCounts`], which counts documents, examples, tokens and passes of each source of a mixture in training."""

from collections.abc import Mapping, Sequence

import torch
from accelerate import Accelerator
from transformers import TrainingArguments

from ..data.mixture import MixtureDataset, MixtureStream

COUNTS = ("documents", "examples", "tokens")
COUNTED = ("source", "num_documents", "num_examples", "num_tokens", "ended_passes")  # the columns that are counted


def num_consumers(args: TrainingArguments) -> int:
    """The readers of a stream to train on: the number of processes times the number of workers of each."""
    return args.world_size * max(1, args.dataloader_num_workers)


class SourceCounts:
    """
    Counts the training data of each source of a mixture.

    - `documents`: the documents that begin in the examples seen;
    - `examples`: the examples seen, of which a packed row holds several;
    - `tokens`: their tokens before corruption, without special tokens;
    - `passes`: for map-style data, the examples (or rows) seen divided by their number; for streams, the number of
      complete passes, as a mean over the workers of all processes.

    Args:
        mixture ([`MixtureDataset`] or [`MixtureStream`]): the training data.
        device (`torch.device`): the device of `sums`, a float64 tensor of shape `(number of sources, 5)` with
            `documents`, `examples`, `tokens`, rows and ended passes. Only logs and checkpoints read it, so no step
            waits.
        num_consumers (`int`, defaults to 1): of a stream, the number of workers in all processes.

    >>> from datasets import Dataset
    >>> from hf_depth.data.mixture import mix_examples
    >>> sources = {"a": Dataset.from_dict({"input_ids": [[5], [6]]}), "b": Dataset.from_dict({"input_ids": [[7]]})}
    >>> counts = SourceCounts(mix_examples(sources), torch.device("cpu"))
    >>> ones = torch.ones(3)
    >>> counts.add(torch.tensor([0, 0, 1]), ones, ones, num_tokens=torch.tensor([4, 5, 6]), ended_passes=0 * ones)
    >>> counts.metrics(Accelerator(cpu=True))["a/tokens"], counts.latest["b/passes"]
    (9, 1.0)
    """

    def __init__(self, mixture: MixtureDataset | MixtureStream, device: torch.device, num_consumers: int = 1):
        self.names = mixture.source_names
        self._sizes = mixture.source_sizes if isinstance(mixture, MixtureDataset) else None
        self._num_consumers = num_consumers
        self.latest: dict[str, float] = {}
        self.gathered: dict[str, list[float]] = {}  # source -> sums of all processes
        self.sums = torch.zeros(len(self.names), len(COUNTS) + 2, dtype=torch.float64, device=device)

    def add(
        self,
        source: torch.Tensor,
        num_documents: torch.Tensor,
        num_examples: torch.Tensor,
        num_tokens: torch.Tensor,
        ended_passes: torch.Tensor,
    ) -> None:
        """Count the examples of a batch. The arguments are columns of the batch, of shape `(batch_size,)`."""
        ones = torch.ones_like(num_documents)
        rows = torch.stack([num_documents, num_examples, num_tokens, ones, ended_passes], dim=1)
        source, rows = source.to(self.sums.device), rows.to(self.sums.device).to(self.sums)
        # Not in place, so that the caller can restore earlier sums.
        self.sums = self.sums.index_add(0, source, rows)

    def metrics(self, accelerator: Accelerator) -> dict[str, float]:
        """Return the counts over all processes by names such as `novels/tokens`. Call this on all processes."""
        self.gathered = dict(zip(self.names, accelerator.reduce(self.sums, "sum").tolist(), strict=True))
        self.latest = {}
        for name, (*counts, num_rows, ended) in self.gathered.items():
            self.latest |= {f"{name}/{key}": int(count) for key, count in zip(COUNTS, counts, strict=True)}
            num_passes = ended / self._num_consumers if self._sizes is None else num_rows / self._sizes[name]
            self.latest[f"{name}/passes"] = round(num_passes, 4)
        return self.latest

    def restore(self, gathered: Mapping[str, Sequence[float]]) -> None:
        """Continue from `gathered` of a checkpoint, on one process. A source that it lacks begins at 0."""
        for name, sums in gathered.items():
            if name in self.names:
                # Checkpoints of earlier states of this package have four numbers, without the ended passes.
                self.sums[self.names.index(name), : len(sums)] = torch.tensor(sums).to(self.sums)

    def table(self) -> dict[str, dict[str, float]]:
        """Return the latest counts of each source for the model card."""
        return {
            f"{name}, seen in training": {key: self.latest[f"{name}/{key}"] for key in (*COUNTS, "passes")}
            for name in self.names
            if f"{name}/passes" in self.latest
        }
