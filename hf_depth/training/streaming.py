"""[`StreamTrainer`]: a stream is divided among all who read it, and a resumed run goes on where each of them was."""

import json
import logging
from pathlib import Path
from typing import Any

import torch
from datasets import IterableDataset
from torch.utils.data import DataLoader

from ..data.streams import ResumableStream, StreamCollator, flatten_position, unflatten_position
from .sampling import SamplingTrainer
from .signals import without_signals

logger = logging.getLogger(__name__)


class StreamTrainer(SamplingTrainer):
    """
    A [`SamplingTrainer`] that can train on a [`ResumableStream`].

    The consumers of the stream, the workers of all processes, read parts of their own. Each batch brings the position
    that its consumer has reached (`stream_position`), which is part of a checkpoint.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._stream_positions: dict[int, Any] = {}  # of the consumers of this process
        self._check_stream()

    def _check_stream(self) -> None:
        """Report a stream that is not ours, and stop where another division than ours is asked for."""
        if isinstance(self.train_dataset, IterableDataset):
            logger.warning(
                "`train_dataset` is a plain stream: neither its order nor its division among workers is checked, its "
                "noise repeats if the stream does, and resuming reads it anew. Make it by "
                "`objective.prepare_splits(...)`: each example comes once per pass, and a run goes on where it was."
            )
        if isinstance(self.train_dataset, ResumableStream) and (
            self.accelerator.dispatch_batches is not False or self.accelerator.split_batches
        ):
            raise ValueError(
                "A stream to train on is divided among processes and workers already: `accelerator_config` needs "
                "`dispatch_batches` false and `split_batches` false, the defaults of this package."
            )

    # ---- Reading ----------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader:
        """As `Trainer` does; of a stream, each process gets the parts of its own consumers."""
        stream, collator = self.train_dataset, self.data_collator
        if not isinstance(stream, ResumableStream):
            return without_signals(super().get_train_dataloader())
        self.train_dataset, self.data_collator = stream.divided(self._num_consumers), StreamCollator(collator)
        try:
            dataloader = super().get_train_dataloader()
        finally:
            self.train_dataset, self.data_collator = stream, collator
        if dataloader.dataset.num_shards != self._num_consumers // self.args.world_size:
            raise ValueError(
                f"{self.args.world_size} processes do not share the stream one by one, as with tensor parallelism: "
                "some of its parts would not be read. Train on map-style data."
            )
        return without_signals(dataloader)

    @property
    def _num_consumers(self) -> int:
        """Processes times the workers that read a stream for each."""
        return self.args.world_size * max(1, self.args.dataloader_num_workers)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """As `Trainer.training_step`; notes how far the batch was read."""
        if "stream_position" in inputs:
            inputs = dict(inputs)
            numbers = inputs.pop("stream_position")
            consumer, position = unflatten_position(numbers, self.train_dataset.position_class)
            self._stream_positions[consumer] = position
        return super().training_step(model, inputs, *args, **kwargs)

    # ---- Checkpoints ------------------------------------------------------------------------------------------------

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: DataLoader, resume_from_checkpoint: str | None
    ) -> tuple[torch.nn.Module, DataLoader]:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        if isinstance(self.train_dataset, ResumableStream):
            # Read when the iteration begins. The Trainer skips the batches of before, which are empty then.
            self._stream_positions = self._saved_stream_positions(resume_from_checkpoint)
            self.train_dataset.starts = dict(self._stream_positions)
        return prepared

    def _save_rank_files(self, folder: Path) -> None:
        """Also how far this process has read a stream."""
        super()._save_rank_files(folder)
        if isinstance(self.train_dataset, ResumableStream) and not self.args.save_only_model:
            positions = [flatten_position(*item) for item in self._stream_positions.items()]
            folder.mkdir(parents=True, exist_ok=True)
            content = json.dumps({"settings": self._stream_settings, "positions": positions})
            (folder / self._rank_file("stream")).write_text(content, encoding="utf-8")

    @property
    def _stream_settings(self) -> dict[str, Any]:
        return self.train_dataset.settings | {
            "versions": self.train_dataset.versions,
            "num_consumers": self._num_consumers,
            "batch_size": self._train_batch_size,
            "batches": self.state.global_step * self.args.gradient_accumulation_steps,
        }

    def _saved_stream_positions(self, checkpoint: str | None) -> dict[int, Any]:
        """How far the consumers of this process had read; empty where they begin at the beginning."""
        if checkpoint is None or self.args.ignore_data_skip:
            return {}
        path = Path(checkpoint, self._rank_file("stream"))
        saved = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        now, settings = self._stream_settings, saved.get("settings", {})
        if settings:
            settings.setdefault("versions", now["versions"])  # of an earlier release, which did not state them
        different = [name for name, value in now.items() if settings.get(name) != value]
        if not different:
            position_class = self.train_dataset.position_class
            return dict(unflatten_position(values, position_class) for values in saved["positions"])
        changes = ", ".join(f"{name} {settings.get(name)} (now {now[name]})" for name in different)
        logger.warning(
            f"The position in the stream that {checkpoint} was saved at does not hold any more: {changes}. What was "
            "read is prepared again and passed over. The division is another one, so that some examples of this pass "
            "may come twice and some not at all."
        )
        return {}
