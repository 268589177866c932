"""Which checkpoints are compared on which tasks, and how the runs are started."""

import re
import sys
from dataclasses import dataclass, field

from transformers.hf_argparser import HfArg

from ..tasks.checks import EVALUATION_MODES


@dataclass
class CompareArguments:
    """
    The checkpoints, the tasks, and how the fine-tuning runs are started.

    Raises:
        `ValueError`: if `shard` is not `I/N` with `I` below `N`.
    """

    _argument_group_name = "comparison"

    checkpoints: list[str] = HfArg(
        help="NAME=PATH: the folder of a run (all its checkpoints), one checkpoint, or a Hub model."
    )
    tasks: list[str] = HfArg(help="BENCHMARK/TASK, such as glue/rte.")
    output_dir: str = HfArg(help="Folder of the results, with a folder for each run.")
    config: str | None = HfArg(default=None, help="Of the runs (default: the recipe of task or benchmark).")
    steps: list[int] | None = HfArg(default=None, help="Use only the checkpoints of these steps.")
    prediction_mode: str | None = HfArg(
        default=None,
        help="Of all runs (default: that of the configuration); probe: frozen embeddings, without fine-tuning.",
        metadata={"choices": list(EVALUATION_MODES)},
    )
    seeds: list[int] = HfArg(default_factory=lambda: [42], help="Fine-tune once with each seed.")
    launcher: str = HfArg(default=sys.executable, help="Starts a run, such as 'accelerate launch' (this Python).")
    shard: str = HfArg(default="0/1", help="I/N: execute only every N-th run from the I-th, for N jobs in parallel.")
    keep_models: bool = HfArg(default=False, help="Keep the fine-tuned models, not only their scores.")
    dry_run: bool = HfArg(default=False, help="Print the commands and execute nothing.")
    shard_index: int = field(init=False, repr=False)
    num_shards: int = field(init=False, repr=False)

    def __post_init__(self):
        match = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if match is None or int(match[1]) >= int(match[2]):
            raise ValueError(f"`--shard` must be I/N with I below N, got {self.shard!r}.")
        self.shard_index, self.num_shards = int(match[1]), int(match[2])
