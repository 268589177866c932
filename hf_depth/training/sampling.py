"""[`SamplingTrainer`]: an order for each epoch, which a resumed run draws again, and goes on where it was in it."""

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler
from transformers import TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import has_length

from .saving import SavingTrainer

logger = logging.getLogger(__name__)


class SeededLengthGroupedSampler(LengthGroupedSampler):
    """
    A [`LengthGroupedSampler`] whose order is a function of the seed and the epoch. That of transformers draws from the
    generator of the process: a run that is resumed in the middle of an epoch goes on in another order.

    Args:
        seed (`int`): of the order of the first epoch.
        args, kwargs: those of [`LengthGroupedSampler`].

    >>> sampler = SeededLengthGroupedSampler(42, batch_size=2, lengths=[3, 1, 2, 4, 2, 1])
    >>> sampler.set_epoch(1)
    >>> list(sampler) == list(sampler)
    True
    """

    def __init__(self, seed: int, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        """The epoch whose order is drawn next."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return super().__iter__()


def innermost_sampler(loader: DataLoader) -> Any:
    """
    What draws the order of a data loader, inside of what accelerate puts around it. (A `BatchRebalanceSampler` draws
    whole batches.)

    >>> type(innermost_sampler(DataLoader(["an example"]))).__name__
    'SequentialSampler'
    """
    sampler = getattr(loader, "batch_sampler", None)
    while hasattr(sampler, "batch_sampler"):
        sampler = sampler.batch_sampler
    return getattr(sampler, "sampler", sampler)


class SamplingTrainer(SavingTrainer):
    """
    A [`SavingTrainer`] that goes on where it was in the order of the training data, also with batches of another size.
    (A stream has no order to draw: its place is kept by [`StreamTrainer`].)
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._epoch: dict[str, int | None] = {}  # how many examples an epoch has, and how many a step
        self._data_offset = 0  # steps by which the data are ahead of `global_step`, after a resume with other batches

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Sampler | None:
        """As `Trainer` does; the order of `group_by_length` can be drawn again, see [`SeededLengthGroupedSampler`]."""
        sampler = super()._get_train_sampler(*args, **kwargs)
        if not isinstance(sampler, LengthGroupedSampler):
            return sampler
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return SeededLengthGroupedSampler(seed, sampler.batch_size, lengths=sampler.lengths)

    def _run_epoch(self, *args: Any, epoch: int, train_dataloader: DataLoader, **kwargs: Any) -> None:
        """As `Trainer` does, which in the first epoch of a resumed run does not find the sampler of each loader."""
        sampler = innermost_sampler(train_dataloader)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        super()._run_epoch(*args, epoch=epoch, train_dataloader=train_dataloader, **kwargs)

    def set_initial_training_values(self, args: TrainingArguments, dataloader: DataLoader) -> tuple:
        """As `Trainer` does; a run that goes on with other batches still ends after as many epochs, or steps."""
        values = super().set_initial_training_values(args, dataloader)
        num_train_epochs, steps_per_epoch, num_examples, num_samples, batch_size, batches_per_epoch, max_steps = values
        self._epoch = {"num_examples": num_examples if has_length(dataloader) else None, "batch_size": batch_size}
        self._data_offset = self._find_data_offset(steps_per_epoch, batches_per_epoch)
        if not self._data_offset:
            return values
        if args.max_steps > 0:
            num_train_epochs = math.ceil((max_steps + self._data_offset) / steps_per_epoch)
        else:
            max_steps = max(max_steps - self._data_offset, 1)
        return num_train_epochs, steps_per_epoch, num_examples, num_samples, batch_size, batches_per_epoch, max_steps

    def _find_data_offset(self, steps_per_epoch: int, batches_per_epoch: int) -> int:
        """
        How many steps the data are ahead of `global_step`, which counts steps of the batches that there were: in them
        `Trainer` would look for the place where the checkpoint was saved, and pass examples over or train them twice.
        0 with other data, of which nothing is known.
        """
        if self._resumed_from is None or self.args.ignore_data_skip:
            return 0
        saved = self._saved_log_state(Path(self._resumed_from)) or {}
        before = saved.get("epoch", {})
        if self._epoch["num_examples"] is None or before.get("num_examples") != self._epoch["num_examples"]:
            return 0
        if before == self._epoch:
            return saved["data_offset"]
        state = TrainerState.load_from_json(str(Path(self._resumed_from, TRAINER_STATE_NAME)))
        epoch, part = divmod(state.epoch, 1)
        steps = int(part * batches_per_epoch / self.args.gradient_accumulation_steps + 1e-6)  # rounding is below that
        return int(epoch) * steps_per_epoch + steps - state.global_step

    def _init_training_state(
        self, max_steps: int, num_update_steps_per_epoch: int, *args: Any, **kwargs: Any
    ) -> tuple[int, int]:
        """As [`SavingTrainer`] does; with other batches it goes on behind the examples that were read."""
        progress = super()._init_training_state(max_steps, num_update_steps_per_epoch, *args, **kwargs)
        if not self._data_offset:
            return progress
        epoch, steps = divmod(self.state.global_step + self._data_offset, num_update_steps_per_epoch)
        logger.warning(
            f"Not all steps until {self._resumed_from} had these batches: the run goes on in epoch {epoch} behind "
            f"{steps} of its {num_update_steps_per_epoch} steps, which is what was read to within one step."
        )
        return epoch, steps * self.args.gradient_accumulation_steps

    def _log_state(self) -> dict[str, Any]:
        return super()._log_state() | {"epoch": self._epoch, "data_offset": self._data_offset}
