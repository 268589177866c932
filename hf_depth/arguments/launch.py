"""Logging and checks at start-up."""

import logging
import os

DEFAULT_OUTPUT_DIR = "trainer_output"  # of the host


def check_launch(training_args) -> None:
    """
    Stop processes that were launched together but do not know of each other.

    `accelerate launch --multi_gpu` on a machine without GPUs starts several processes, each of which trains alone as
    rank 0 and writes to the same `output_dir`, unless `--use_cpu true` is given to the script.

    Args:
        training_args (`transformers.TrainingArguments`): already set up for the launched processes.

    Raises:
        `RuntimeError`: if the launcher announced several processes and `training_args.world_size` is 1.
    """
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched > 1 and training_args.world_size == 1:
        raise RuntimeError(
            f"{launched} processes were launched (WORLD_SIZE={launched}), but this one trains alone, so all of them "
            f"would write to {training_args.output_dir}. On CPUs add `--use_cpu true` to the script's arguments; "
            "for GPUs check that each process sees one (CUDA_VISIBLE_DEVICES)."
        )


def set_up(training_args):
    """
    The first thing a script does: logging, the check of the launch, and a folder for a run of a W&B sweep.

    Args:
        training_args (`transformers.TrainingArguments`): already set up for the launched processes.

    Raises:
        `ValueError`: if no `output_dir` was named. Runs that share the host's default would continue each other.
    """
    if training_args.output_dir == DEFAULT_OUTPUT_DIR:
        raise ValueError("Name the folder of the run by `--output_dir`.")
    # All runs of a sweep have one `output_dir`, in which each would go on from the last checkpoint of another. A W&B
    # agent names its runs in the environment: alike for all processes, and again for a run that it resumes.
    if "WANDB_SWEEP_ID" in os.environ and "WANDB_RUN_ID" in os.environ:
        training_args.output_dir = os.path.join(training_args.output_dir, os.environ["WANDB_RUN_ID"])
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
        level=logging.INFO if training_args.should_log else logging.WARNING,
    )
    logging.getLogger("absl").setLevel(logging.WARNING)  # rouge-score tells of its tokenizer at every evaluation
    check_launch(training_args)


def check_run_arguments(model_args, training_args) -> None:
    """
    What both scripts ask of a run before anything is loaded; `--eval_on_start` is taken as `--do_eval` as well.

    Args:
        model_args (`arguments.model_args.ModelArguments`): which model.
        training_args (`transformers.TrainingArguments`): what to do with it.

    Raises:
        `ValueError`: if there is nothing to do or no model to do it with, or if a token of the Hub was given.
    """
    if not (training_args.do_train or training_args.do_eval or training_args.do_predict):
        raise ValueError("Nothing to do: give `--do_train`, `--do_eval` or `--do_predict`.")
    if not training_args.do_train and model_args.model_name_or_path is None:
        raise ValueError("Without `--do_train`, name the model to evaluate by `--model_name_or_path`.")
    if training_args.hub_token is not None:
        raise ValueError(
            "`--hub_token` would stay in logs and checkpoints. Log in once by `hf auth login`, or set HF_TOKEN."
        )
    if training_args.do_train and training_args.device.type == "cpu":
        if model_args.attn_implementation == "flex_attention":
            raise ValueError("PyTorch's flex_attention cannot train on a CPU: use `--attn_implementation sdpa`.")
    training_args.do_eval |= training_args.eval_on_start
