"""[`SourceCounts`], which counts documents, examples, tokens and passes of each source of a mixture in training."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from accelerate import Accelerator

from ..data.mixture import MixtureDataset, MixtureStream
from ..data.streams import Position

COUNTS = ("documents", "examples", "tokens")
COUNTED = ("source", "num_documents", "num_examples", "num_tokens")  # the columns of a batch that are counted


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
        device (`torch.device`): the device of `sums`, a float64 tensor of shape `(number of sources, 4)` with
            `documents`, `examples`, `tokens` and rows. Only logs and checkpoints read it, so no step waits.

    >>> from datasets import Dataset
    >>> from hf_depth.data.mixture import mix_examples
    >>> sources = {"a": Dataset.from_dict({"input_ids": [[5], [6]]}), "b": Dataset.from_dict({"input_ids": [[7]]})}
    >>> counts = SourceCounts(mix_examples(sources), torch.device("cpu"))
    >>> ones = torch.ones(3)
    >>> counts.add(torch.tensor([0, 0, 1]), num_documents=ones, num_examples=ones, num_tokens=torch.tensor([4, 5, 6]))
    >>> counts.metrics(Accelerator(cpu=True))["a/tokens"], counts.latest["b/passes"]
    (9, 1.0)
    """

    def __init__(self, mixture: MixtureDataset | MixtureStream, device: torch.device):
        self.names = mixture.source_names
        self._sizes = mixture.source_sizes if isinstance(mixture, MixtureDataset) else None
        self.latest: dict[str, float] = {}
        self.gathered: dict[str, list[float]] = {}  # source -> sums of all processes
        self.sums = torch.zeros(len(self.names), len(COUNTS) + 1, dtype=torch.float64, device=device)

    def add(
        self, source: torch.Tensor, num_documents: torch.Tensor, num_examples: torch.Tensor, num_tokens: torch.Tensor
    ) -> None:
        """Count the examples of a batch. The arguments are columns of the batch, of shape `(batch_size,)`."""
        rows = torch.stack([num_documents, num_examples, num_tokens, torch.ones_like(num_documents)], dim=1)
        source, rows = source.to(self.sums.device), rows.to(self.sums.device).to(self.sums)
        # Not in place, so that the caller can restore earlier sums.
        self.sums = self.sums.index_add(0, source, rows)

    def metrics(
        self, accelerator: Accelerator, positions: Iterable[Position] = (), num_consumers: int = 1
    ) -> dict[str, float]:
        """
        Return the counts over all processes by names such as `novels/tokens`. Call this on all processes.

        Args:
            positions (`Iterable[Position]`): for a stream, the positions of this process's consumers.
            num_consumers (`int`, defaults to 1): for a stream, the number of consumers in all processes.
        """
        epochs = torch.tensor([MixtureStream.epochs(position) for position in positions])
        passes = epochs.sum(0) / num_consumers if len(epochs) else torch.zeros(len(self.names))
        sums = accelerator.reduce(torch.cat([self.sums, passes[:, None].to(self.sums)], dim=1), "sum").tolist()
        self.gathered = {name: row[:-1] for name, row in zip(self.names, sums, strict=True)}
        self.latest = {}
        for name, (*counts, num_rows, num_passes) in zip(self.names, sums, strict=True):
            self.latest |= {f"{name}/{key}": int(count) for key, count in zip(COUNTS, counts, strict=True)}
            num_passes = num_passes if self._sizes is None else num_rows / self._sizes[name]
            self.latest[f"{name}/passes"] = round(num_passes, 4)
        return self.latest

    def restore(self, gathered: Mapping[str, Sequence[float]]) -> None:
        """Continue from `gathered` of a checkpoint, on one process. A source that it lacks begins at 0."""
        for name, sums in gathered.items():
            if name in self.names:
                self.sums[self.names.index(name)] = torch.tensor(sums, dtype=torch.float64)

    def table(self) -> dict[str, dict[str, float]]:
        """Return the latest counts of each source for the model card."""
        return {
            f"{name}, seen in training": {key: self.latest[f"{name}/{key}"] for key in (*COUNTS, "passes")}
            for name in self.names
            if f"{name}/passes" in self.latest
        }
