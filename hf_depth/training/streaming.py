"""[`StreamReading`], which keeps the positions of all readers of a stream, so that a resumed run continues there."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import IterableDataset

from ..data.streams import Position, ResumableStream
from ..errors import UserError

if TYPE_CHECKING:
    from .trainer import DepthTrainer

logger = logging.getLogger(__name__)

POSITIONS_VERSION = 2  # raise it when the numbers of a position mean something else


class StreamReading:
    """
    Keeps how far the consumers of a training stream have read.

    The consumers are the data loader workers of all processes. Each reads its own part of the stream, and each batch
    holds the position that its consumer has reached (`stream_position`).

    Args:
        trainer (`DepthTrainer`): the trainer. Nothing is kept unless its training data is a [`ResumableStream`].

    Raises:
        `ValueError`: if the settings of accelerate would divide the stream again.
    """

    def __init__(self, trainer: "DepthTrainer"):
        self.trainer = trainer
        self.positions: dict[int, Position] = {}  # only the consumers of this process
        if isinstance(trainer.train_dataset, IterableDataset):
            logger.warning(
                "`train_dataset` is a plain stream: its noise repeats if the stream does, and a resumed run reads it "
                "anew. Make it by `objective.prepare_splits(...)`: each example comes once per pass, and a run "
                "continues where it was."
            )
        accelerator = trainer.accelerator
        if self.stream is not None and (accelerator.dispatch_batches is not False or accelerator.split_batches):
            raise UserError(
                "A stream to train on is divided among processes and workers already: `accelerator_config` needs "
                "`dispatch_batches` false and `split_batches` false, the defaults of this package."
            )

    @property
    def stream(self) -> ResumableStream | None:
        """The training data if it is a [`ResumableStream`], else `None`."""
        dataset = self.trainer.train_dataset
        return dataset if isinstance(dataset, ResumableStream) else None

    @property
    def num_consumers(self) -> int:
        """The number of processes times the number of workers of each."""
        return self.trainer.args.world_size * max(1, self.trainer.args.dataloader_num_workers)

    def note(self, batch: Mapping[str, Any]) -> None:
        """Keep the position in a batch, if it has one."""
        if "stream_position" in batch:
            consumer, *position = batch["stream_position"]
            self.positions[consumer] = tuple(position)

    def begin(self, checkpoint: str | None) -> None:
        """Let the consumers begin at their positions in a checkpoint. Call this before the first batch is read."""
        self.positions = {}
        if self.stream is not None:
            self.positions = self._saved_positions(checkpoint)
            # The Trainer skips the batches read before the checkpoint. They are empty, so this is fast.
            self.stream.starts = dict(self.positions)

    def save(self, folder: Path) -> None:
        """Write the positions of this process into a checkpoint."""
        if self.stream is not None and not self.trainer.args.save_only_model:
            folder.mkdir(parents=True, exist_ok=True)
            positions = [[consumer, *position] for consumer, position in self.positions.items()]
            content = json.dumps({"settings": self._settings, "positions": positions})
            (folder / self._file_name).write_text(content, encoding="utf-8")

    @property
    def _file_name(self) -> str:
        args = self.trainer.args
        return f"stream_{args.process_index}.json" if args.world_size > 1 else "stream.json"

    @property
    def _settings(self) -> dict[str, Any]:
        """Return the settings that positions depend on."""
        trainer = self.trainer
        return self.stream.settings | {
            "positions_version": POSITIONS_VERSION,
            "versions": self.stream.versions,
            "num_consumers": self.num_consumers,
            "batch_size": trainer._train_batch_size,
            "batches": trainer.state.global_step * trainer.args.gradient_accumulation_steps,
        }

    def _saved_positions(self, checkpoint: str | None) -> dict[int, Position]:
        """Return the positions of this process's consumers in a checkpoint; empty to begin at the beginning."""
        if checkpoint is None or self.trainer.args.ignore_data_skip:
            return {}
        path = Path(checkpoint, self._file_name)
        saved = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        now, settings = self._settings, saved.get("settings", {})
        different = [name for name, value in now.items() if settings.get(name) != value]
        if not different:
            return {consumer: tuple(position) for consumer, *position in saved["positions"]}
        changes = ", ".join(f"{name} {settings.get(name)} (now {now[name]})" for name in different)
        logger.warning(
            f"The position in the stream that {checkpoint} was saved at does not hold any more: {changes}. "
            "The examples read so far are prepared again and skipped. The stream is divided differently, so some "
            "examples of this pass may come twice and some not at all."
        )
        return {}
