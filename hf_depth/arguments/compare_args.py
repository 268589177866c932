"""Which checkpoints are compared on which tasks, and how the runs are started."""

import re
import sys
from dataclasses import dataclass, field

from ..tasks.checks import EVALUATION_MODES


@dataclass
class CompareArguments:
    """
    The checkpoints, the tasks, and how the fine-tuning runs are started.

    Raises:
        `ValueError`: if `shard` is not `I/N` with `I` below `N`.
    """

    checkpoints: list[str] = field(
        metadata={"help": "NAME=PATH: the folder of a run (all its checkpoints), one checkpoint, or a Hub model."}
    )
    tasks: list[str] = field(metadata={"help": "BENCHMARK/TASK, such as glue/rte."})
    output_dir: str = field(metadata={"help": "Folder of the results, with a folder for each run."})
    config: str | None = field(
        default=None,
        metadata={"help": "Configuration file of the runs. Default: the recipe of the task, or of its benchmark."},
    )
    steps: list[int] | None = field(
        default=None, metadata={"help": "Of a folder with several checkpoints, use only those of these steps."}
    )
    prediction_mode: str | None = field(
        default=None,
        metadata={
            "help": "Of all runs (default: that of the configuration); probe: frozen embeddings, without fine-tuning.",
            "choices": list(EVALUATION_MODES),
        },
    )
    seeds: list[int] = field(default_factory=lambda: [42], metadata={"help": "Fine-tune once with each seed."})
    launcher: str = field(
        default=sys.executable,
        metadata={
            "help": "Command that starts a run, such as 'accelerate launch --num_processes 4' (default: this Python)."
        },
    )
    shard: str = field(
        default="0/1", metadata={"help": "I/N: execute only every N-th run from the I-th, for N jobs in parallel."}
    )
    keep_models: bool = field(default=False, metadata={"help": "Keep the fine-tuned models, not only their scores."})
    dry_run: bool = field(default=False, metadata={"help": "Print the commands and execute nothing."})
    shard_index: int = field(init=False, repr=False)
    num_shards: int = field(init=False, repr=False)

    def __post_init__(self):
        match = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if match is None or int(match[1]) >= int(match[2]):
            raise ValueError(f"`--shard` must be I/N with I below N, got {self.shard!r}.")
        self.shard_index, self.num_shards = int(match[1]), int(match[2])
