"""What the scripts do first: logging, and checks of the launch and of the arguments."""

import contextlib
import logging
import os
import sys
import tempfile
import time

import datasets
import huggingface_hub
import torch
import transformers
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import TrainingArguments
from transformers.trainer_utils import SaveStrategy

from ..credentials import without_credentials
from ..errors import UserError
from .model_args import ModelArguments

logger = logging.getLogger(__name__)

DEFAULT_OUTPUT_DIR, DEFAULT_REPLICA_LEVEL = "trainer_output", "warning"  # of `TrainingArguments`
PACKAGE = __name__.partition(".")[0]
MOST_DELAY = 60.0  # seconds until a file is seen on another node: so long some network file systems keep a listing
RANK_VARIABLES = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}  # of a process that was started by a launcher or by MPI


def check_launch(training_args: TrainingArguments) -> None:
    """
    Stop if several processes were launched that would each train alone, if nothing would be sharded by FSDP, or if
    DeepSpeed would find no launcher.

    `accelerate launch --multi_gpu` on a machine without GPUs starts several processes, each of which trains alone as
    rank 0 and writes to the same `output_dir`, unless `--use_cpu true` is given to the script. With a configuration of
    FSDP, accelerate (1.15) trains on CPUs by plain data parallelism, each process with the whole model.

    Args:
        training_args (`transformers.TrainingArguments`): its `world_size` is that of the launched processes.

    Raises:
        `UserError`: if the environment variable WORLD_SIZE is above 1, but `training_args.world_size` is 1; if FSDP
            is configured, by accelerate or by `--fsdp`, on a CPU; or if `--deepspeed` is given to a script that was
            started by `python`.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched > 1 and training_args.world_size == 1:
        raise UserError(
            f"{launched} processes were launched (WORLD_SIZE={launched}), but this one trains alone, so all of them "
            f"would write to {training_args.output_dir}. On CPUs add `--use_cpu true` to the script's arguments; "
            "for GPUs check that each process sees one (CUDA_VISIBLE_DEVICES)."
        )
    uses_fsdp = training_args.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if uses_fsdp and training_args.device.type == "cpu":
        raise UserError(
            "FSDP is configured, but on CPUs accelerate shards nothing: each process would hold the whole model. Use "
            "GPUs, or launch with `--config_file examples/accelerate/ddp_cpu.yaml`, which says what would run, or by "
            "zero2.yaml or zero3.yaml beside it, which do shard on CPUs."
        )
    if training_args.deepspeed and not os.environ.keys() & RANK_VARIABLES:
        raise UserError(
            "`--deepspeed` needs a launcher, for a single process too: start the script by `torchrun "
            "--nproc_per_node 1`, or by `accelerate launch --config_file examples/accelerate/zero2.yaml` without it."
        )


def set_up(training_args: TrainingArguments) -> None:
    """
    Set up logging, check the launch, and give each run of a W&B sweep a folder of its own. Progress bars are shown on
    a terminal only, by the first of all processes, and not with `disable_tqdm`. Warnings of this package are shown
    once, not by each process; by each with another `log_level_replica` than the default. A CPU takes denormal numbers
    for 0: gradients of a T5 are full of them, on which some processors spend most of a step.

    Args:
        training_args (`transformers.TrainingArguments`): its `output_dir` becomes `output_dir/WANDB_RUN_ID` in a
            sweep.

    Raises:
        `UserError`: as [`check_launch`] does.
        `ValueError`: if no `output_dir` was named (runs that share the default of `TrainingArguments` would continue
            each other), if it cannot be written, or if the processes of a training do not share it.
    """
    if training_args.output_dir == DEFAULT_OUTPUT_DIR:
        raise UserError("Name the folder of the run by `--output_dir`.")
    torch.set_flush_denormal(True)
    # All runs of a sweep are given one `output_dir`, in which each would continue the last checkpoint of another. The
    # W&B agent sets the name of a run in the environment: the same for all processes, and when it resumes the run.
    if "WANDB_SWEEP_ID" in os.environ and "WANDB_RUN_ID" in os.environ:
        training_args.output_dir = os.path.join(training_args.output_dir, os.environ["WANDB_RUN_ID"])
    logs = _HandlerBesideBars()
    logs.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    level = logging.INFO if training_args.should_log else logging.WARNING
    if training_args.log_level != "passive":
        level = max(level, training_args.get_process_log_level())
    if not training_args.should_log and training_args.log_level_replica == DEFAULT_REPLICA_LEVEL:
        logs.addFilter(_is_said_by_this_process_alone)
    logging.basicConfig(handlers=[logs], level=level)
    if training_args.disable_tqdm or training_args.process_index != 0 or not sys.stderr.isatty():
        _disable_progress_bars()
    logging.getLogger("absl").setLevel(logging.WARNING)  # rouge-score logs its tokenizer at every evaluation
    logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)  # its errors are raised as well
    check_launch(training_args)
    device = training_args.device
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    logger.info(f"Device: {device}{name}, processes: {training_args.world_size}, PyTorch {torch.__version__}")
    _check_output_dir(training_args)


def _disable_progress_bars() -> None:
    """Those of preparing and loading, which in a log file are long lines of garbage."""
    transformers.utils.logging.disable_progress_bar()
    if datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS is None:  # otherwise the environment decides
        datasets.disable_progress_bars()
    if huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
        huggingface_hub.utils.disable_progress_bars()


def _is_said_by_this_process_alone(record: logging.LogRecord) -> bool:
    """Not our warnings: all processes prepare the same data and load the same model."""
    return record.levelno >= logging.ERROR or record.name.partition(".")[0] != PACKAGE


class _HandlerBesideBars(logging.StreamHandler):
    """Writes above progress bars, not into them."""

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode(file=self.stream):
            super().emit(record)


class _Formatter(logging.Formatter):
    """Masks passwords in addresses."""

    def format(self, record: logging.LogRecord) -> str:
        return without_credentials(super().format(record))


def _check_output_dir(training_args: TrainingArguments) -> None:
    """
    Stop on a folder that cannot be written (training would come to its end before that is found), or that is not the
    same one for all processes: a run would save its checkpoints, and find that it cannot resume from them.
    """
    folder, problem, mark = training_args.output_dir, None, None
    with contextlib.ExitStack() as stack:
        try:
            os.makedirs(folder, exist_ok=True)
            mark = stack.enter_context(tempfile.NamedTemporaryFile(dir=folder, prefix="_seen_by_all_")).name
        except OSError as error:
            problem = f"`--output_dir {folder}` cannot be written: {error.strerror}. Name another folder."
        if training_args.world_size > 1:
            problems = gather_object([problem])
            problem = next((one for one in problems if one is not None), None)
            saves = training_args.do_train and training_args.save_strategy != SaveStrategy.NO
            if problem is None and saves and not training_args.save_on_each_node:
                problem = _problem_of_separate_folders(folder, mark)
    if problem is not None:
        raise UserError(problem)


def _problem_of_separate_folders(folder: str, mark: str) -> str | None:
    """What is wrong if a process does not see the file of the first one; all processes get the same answer."""
    mark = gather_object([os.path.basename(mark)])[0]
    deadline = time.monotonic() + MOST_DELAY
    while not (is_seen := mark in os.listdir(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    seen = gather_object([is_seen])  # the first process keeps its file until all have looked
    if all(seen):
        return None
    blind = ", ".join(str(process) for process, is_seen in enumerate(seen) if not is_seen)
    return (
        f"`--output_dir {folder}` is not the same folder for all processes: {blind} of {len(seen)} do not see what "
        "process 0 writes there, and could not resume from its checkpoints. Name a folder that all nodes share, let "
        "each node save its own by `--save_on_each_node`, or save none by `--save_strategy no`."
    )


def check_run_arguments(model_args: ModelArguments, training_args: TrainingArguments) -> None:
    """
    Check the arguments of a run before anything is loaded, and complete them: `--eval_on_start` sets `--do_eval` as
    well, a model from scratch has a learning rate of its own, see
    [`DepthTrainingArguments.use_scratch_learning_rate`], and an adapter an optimizer of its own.

    Args:
        model_args ([`ModelArguments`]): which model.
        training_args ([`DepthTrainingArguments`]): what to do with it.

    Raises:
        `ValueError`: if there is no model to evaluate, or if a Hub token was given.
    """
    training_args.do_eval |= training_args.eval_on_start
    is_from_scratch = model_args.model_name_or_path is None
    if is_from_scratch and not training_args.do_train and (training_args.do_eval or training_args.do_predict):
        raise UserError("Without `--do_train`, name the model to evaluate by `--model_name_or_path`.")
    if training_args.hub_token is not None:
        raise UserError(
            "`--hub_token` would stay in logs and checkpoints. Log in once by `hf auth login`, or set HF_TOKEN."
        )
    if training_args.do_train and model_args.use_peft:
        training_args.use_adapter_optimizer()
    if training_args.do_train and is_from_scratch and training_args.use_scratch_learning_rate():
        logger.info(f"The learning rate of a model from scratch is {training_args.learning_rate:g} by default.")
