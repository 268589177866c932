"""How many documents, examples and tokens of each source of a mixture a run has seen, and how many passes."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from accelerate import Accelerator

from ..data.mixture import MixtureDataset, MixtureStream
from ..data.streams import Position

COUNTS = ("documents", "examples", "tokens")
COUNTED = ("source", "num_documents", "num_examples", "num_tokens")  # what a batch of a mixture has for it


class SourceCounts:
    """
    Counts what is trained on, for each source of a mixture.

    They are added up where the batches are, so that no step waits for a device; only a log and a checkpoint read them.

    - `documents`: those that begin in the examples seen;
    - `examples` (in packed rows there are several), and their `tokens` before corruption, without special tokens;
    - `passes`: of map-style data examples (or rows) seen divided by those that there are; of streams the passes that
      are complete, as a mean over the parts that the workers of all processes read.

    Args:
        mixture ([`MixtureDataset`] or [`MixtureStream`]): what is trained on.
        device (`torch.device`): where the sums are kept: `sums`, a float64 tensor of shape
            `(number of sources, 4)`, with `documents`, `examples`, `tokens` and rows.

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
        self._device = device
        self.latest: dict[str, float] = {}
        self.gathered: dict[str, list[float]] = {}  # the sums of all processes, by source
        self.sums = torch.zeros(len(self.names), len(COUNTS) + 1, dtype=torch.float64, device=self._device)

    def add(
        self,
        source: torch.Tensor,
        num_documents: torch.Tensor,
        num_examples: torch.Tensor,
        num_tokens: torch.Tensor,
    ) -> None:
        """
        Count the examples of a batch.

        Args:
            source, num_documents, num_examples, num_tokens (`torch.LongTensor` of shape `(batch_size,)`): as a
                collator gives them.
        """
        rows = torch.stack([num_documents, num_examples, num_tokens, torch.ones_like(num_documents)], dim=1)
        source, rows = source.to(self._device), rows.to(self._device).to(self.sums)  # float64 is not everywhere
        # Not in place: who has kept the sums can go back to them.
        self.sums = self.sums.index_add(0, source, rows)

    def metrics(
        self, accelerator: Accelerator, positions: Iterable[Position] = (), num_consumers: int = 1
    ) -> dict[str, float]:
        """
        The counts of all processes by names such as `novels/tokens`; to be called on each of them.

        Args:
            accelerator (`Accelerator`): adds them up.
            positions (`Iterable[Position]`): of a stream, how far the consumers of this process have read.
            num_consumers (`int`, defaults to 1): of the stream, in all processes.
        """
        epochs = torch.tensor([MixtureStream.epochs(position) for position in positions])
        passes = epochs.sum(0) / num_consumers if len(epochs) else torch.zeros(len(self.names))
        sums = accelerator.reduce(torch.cat([self.sums, passes[:, None].to(self.sums)], dim=1), "sum")
        self.latest = {}
        self.gathered = {name: row[:-1] for name, row in zip(self.names, sums.tolist(), strict=True)}
        for name, (*counts, num_rows, num_passes) in zip(self.names, sums.tolist(), strict=True):
            values = dict(zip(COUNTS, map(int, counts), strict=True))
            num_passes = num_passes if self._sizes is None else num_rows / self._sizes[name]
            self.latest |= {f"{name}/{key}": value for key, value in values.items()}
            self.latest[f"{name}/passes"] = round(num_passes, 4)
        return self.latest

    def restore(self, gathered: Mapping[str, Sequence[float]]) -> None:
        """
        Go on from the sums of a checkpoint, on one of the processes; a source that it has not begins at nothing.

        Args:
            gathered: as the attribute of this name has them.
        """
        for name, sums in gathered.items():
            if name in self.names:
                self.sums[self.names.index(name)] = torch.tensor(sums, dtype=torch.float64)

    def table(self) -> dict[str, dict[str, float]]:
        """The latest counts of each source, as the model card states them."""
        return {
            f"{name}, seen in training": {key: self.latest[f"{name}/{key}"] for key in (*COUNTS, "passes")}
            for name in self.names
            if f"{name}/passes" in self.latest
        }
