"""[`StreamReading`]: a stream is divided among all who read it, and a resumed run goes on where each of them was."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import IterableDataset
from torch.utils.data import DataLoader
from transformers.trainer_utils import IntervalStrategy

from ..data.streams import Position, ResumableStream

if TYPE_CHECKING:
    from .trainer import DepthTrainer

logger = logging.getLogger(__name__)

POSITIONS_VERSION = 2  # of what the numbers of a position mean


class StreamReading:
    """
    How far the consumers of the stream that a trainer trains on have read. They are the workers of all processes; each
    reads a part of its own, and each batch brings the position that its consumer has reached (`stream_position`).

    Args:
        trainer (`DepthTrainer`): of any training data; of others than a [`ResumableStream`] nothing is kept.

    Raises:
        `ValueError`: if accelerate is told to divide the stream once more.
    """

    def __init__(self, trainer: "DepthTrainer"):
        self.trainer = trainer
        self.positions: dict[int, Position] = {}  # of the consumers of this process
        if isinstance(trainer.train_dataset, IterableDataset):
            logger.warning(
                "`train_dataset` is a plain stream: neither its order nor its division among workers is checked, its "
                "noise repeats if the stream does, and resuming reads it anew. Make it by "
                "`objective.prepare_splits(...)`: each example comes once per pass, and a run goes on where it was."
            )
        if self.stream is None:
            return
        by_epochs = ("logging_strategy", "eval_strategy", "save_strategy")
        by_epochs = [name for name in by_epochs if getattr(trainer.args, name) == IntervalStrategy.EPOCH]
        if by_epochs:
            logger.warning(
                f"A stream has no epochs: `{by_epochs[0]}` epoch takes effect at the end of training only. Give steps."
            )
        if trainer.accelerator.dispatch_batches is not False or trainer.accelerator.split_batches:
            raise ValueError(
                "A stream to train on is divided among processes and workers already: `accelerator_config` needs "
                "`dispatch_batches` false and `split_batches` false, the defaults of this package."
            )

    @property
    def stream(self) -> ResumableStream | None:
        """What the trainer trains on, if it is a stream that can be resumed."""
        dataset = self.trainer.train_dataset
        return dataset if isinstance(dataset, ResumableStream) else None

    @property
    def num_consumers(self) -> int:
        """Processes times the workers that read for each."""
        return self.trainer.args.world_size * max(1, self.trainer.args.dataloader_num_workers)

    def check_division(self, dataloader: DataLoader) -> None:
        """
        Check that the processes share the stream one by one.

        Raises:
            `ValueError`: if some of its parts would not be read, as with tensor parallelism.
        """
        if dataloader.dataset.num_shards != self.num_consumers // self.trainer.args.world_size:
            raise ValueError(
                f"{self.trainer.args.world_size} processes do not share the stream one by one, as with tensor "
                "parallelism: some of its parts would not be read. Train on map-style data."
            )

    def note(self, batch: Mapping[str, Any]) -> None:
        """Keep the position that came with a batch, if any."""
        if "stream_position" in batch:
            consumer, *position = batch["stream_position"]
            self.positions[consumer] = tuple(position)

    def begin(self, checkpoint: str | None) -> None:
        """Let the consumers begin where they were in a checkpoint; to be called before the first batch is read."""
        self.positions = {}
        if self.stream is not None:
            self.positions = self._saved_positions(checkpoint)
            # The Trainer passes over the batches of before, which are empty then.
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
        """In the manner of `rng_state_0.pth`."""
        args = self.trainer.args
        return f"stream_{args.process_index}.json" if args.world_size > 1 else "stream.json"

    @property
    def _settings(self) -> dict[str, Any]:
        """What the positions depend on."""
        trainer = self.trainer
        return self.stream.settings | {
            "positions_version": POSITIONS_VERSION,
            "versions": self.stream.versions,
            "num_consumers": self.num_consumers,
            "batch_size": trainer._train_batch_size,
            "batches": trainer.state.global_step * trainer.args.gradient_accumulation_steps,
        }

    def _saved_positions(self, checkpoint: str | None) -> dict[int, Position]:
        """How far the consumers of this process had read; empty where they begin at the beginning."""
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
            f"The position in the stream that {checkpoint} was saved at does not hold any more: {changes}. What was "
            "read is prepared again and passed over. The division is another one, so that some examples of this pass "
            "may come twice and some not at all."
        )
        return {}
