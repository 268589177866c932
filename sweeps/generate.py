"""
Write the recipes in examples/configs/recipes and the W&B sweeps beside this file from one table.

    python sweeps/generate.py                                                    # after a change of the table
    python sweeps/generate.py --models runs/depth runs/t5 --output_dir my_sweeps   # sweeps over your own checkpoints

There is one sweep per task of `DATASET_VALS` that has training data of its own and is not made of any text. It
covers both types of model, so that one page of W&B compares them, and is a random search: a Bayesian one would give
the weaker type of model fewer trials.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hf_depth import TaskSpec, get_task
from hf_depth.arguments import CorpusArguments, ModelArguments, ObjectiveArguments, TaskArguments, parse_arguments
from hf_depth.tasks.entries import BENCHMARKS

ROOT = Path(__file__).resolve().parent.parent
RECIPES_FOLDER = "examples/configs/recipes"
FINE_TUNING = "examples/fine_tune_t5.py"
PRE_TRAINING = "examples/pretrain_t5.py"
# Whose options stand below their flags in a recipe.
DATACLASSES = {
    FINE_TUNING: (ModelArguments, TaskArguments),
    PRE_TRAINING: (ModelArguments, CorpusArguments, ObjectiveArguments),
}
# Lengths, batches and steps are those of the SLURM scripts in run_configs of https://github.com/zbambergerNLP/depth:
# the script of DEPTH where there is one that is not empty, else that of T5. Optimizer and learning rate are the
# defaults of this package: they have AdamW with 1e-5 or 1e-4, by which a small model does not move in so few steps.
AUTHORS = "the authors of DEPTH (arXiv 2405.07788)"

FINE_TUNED = {
    "model_name_or_path": "google/t5-v1_1-base",
    "do_train": True,
    "do_eval": True,
    "do_predict": True,
    "bf16": True,
    "dropout_rate": 0.0,  # as the authors have it in all runs; the configuration of T5 v1.1 has 0.1
    "logging_steps": 50,
    "eval_strategy": "steps",
    "eval_steps": 0.1,  # of all steps: ten times
    "save_steps": 0.1,
    "save_total_limit": 1,
    "load_best_model_at_end": True,
}


def _sizes(source_length: int, target_length: int, max_steps: int, batch_size: int) -> dict[str, int]:
    return {
        "max_source_length": source_length,
        "max_target_length": target_length,
        "max_steps": max_steps,
        "per_device_train_batch_size": batch_size,
    }


COLA = _sizes(256, 16, 3000, 16)
SST2 = _sizes(272, 8, 3000, 128)
MNLI = _sizes(512, 8, 10_000, 128) | {"gradient_accumulation_steps": 2}
QQP = _sizes(512, 8, 10_000, 128)
QNLI = _sizes(512, 16, 10_000, 64)
MRPC = _sizes(512, 8, 3000, 32)
STSB = _sizes(512, 8, 3000, 16)
RTE = _sizes(256, 8, 4000, 128)
DISCO_EVAL = _sizes(512, 32, 1500, 64)
C4_OF_THE_AUTHORS = {
    "dataset_name": "allenai/c4",
    "dataset_config_name": "en",
    "streaming": True,
    "max_source_length": 512,
    "max_target_length": 512,
    "mlm_probability": 0.3,
    "mean_noise_span_length": 3.0,
    "sentence_shuffling_probability": 0.5,
    "do_train": True,
    "do_eval": True,
    "max_eval_samples": 2000,
    "bf16": True,
    "dropout_rate": 0.0,
    "dataloader_num_workers": 4,
    "max_steps": 1_000_000,
    "per_device_train_batch_size": 25,
    "gradient_accumulation_steps": 2,
    "logging_steps": 100,
    "eval_strategy": "steps",
    "eval_steps": 1000,
    "save_steps": 2000,
    "save_total_limit": 3,  # 3 GB each
}
# Pre-training from scratch in a given time. Where no learning rate is given, it is that of a model from scratch.
SCRATCH = {
    "model_type": "depth",
    "sentence_shuffling_probability": 0.5,
    "mlm_probability": 0.3,
    "do_train": True,
    "do_eval": True,
    "logging_steps": 100,
    "eval_strategy": "steps",
    "eval_steps": 0.1,
    "save_steps": 0.1,
    "save_total_limit": 1,
}
# As in quickstart.yaml: two or three sentences, all shuffled. In little time, small models learn no order of more.
ON_CPU = SCRATCH | {
    "num_sentence_tokens": 20,
    "min_sentences": 2,
    "max_sentences": 3,
    "sentence_shuffling_probability": 1.0,
    "mlm_probability": 0.15,
    "mean_noise_span_length": 2.0,
    "sentence_loss_coefficient": 10.0,
    "dropout_rate": 0.0,
    "learning_rate": 1e-2,
    "adam_beta2": 0.98,
    "vocab_size": 4096,
    "max_source_length": 96,
    "max_target_length": 64,
    "dataloader_pin_memory": False,
    "predict_with_generate": True,
    "validation_split_percentage": 10,
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 64,
}
ON_GPU = SCRATCH | {
    "tokenizer_name": "google/t5-v1_1-base",
    "dataset_name": "allenai/c4",
    "dataset_config_name": "en",
    "streaming": True,
    "max_source_length": 512,
    "max_target_length": 256,
    "pad_to_max_length": True,
    "max_eval_samples": 2000,
    "bf16": True,
    "torch_compile": True,
    "dataloader_drop_last": True,
    "dataloader_num_workers": 4,
}
THEIRS = f"Lengths, batches and steps are those of {AUTHORS}"
OWN_TEXT = "Add `--train_file` for your own text; without it, Python's own documentation is read."
ONLY_T5 = "for T5, since there is none for DEPTH"
NOT_MEASURED = "Not measured yet: the number of steps is an estimate."
MEASURED_1_HOUR = (
    "It also reads docstrings of installed packages. One run took 34 CPU minutes with one thread. It put 56 % of the "
    "shuffled unseen examples in exactly the right order (chance 35 %), and 86 of 112 pairs of sentences."
)
MEASURED_10_MINUTES = (
    "One run took 13 CPU minutes with one thread, and put 61 % of the shuffled unseen examples in exactly the right "
    "order (chance 35 %, the quickstart 57 %)."
)
DEFAULTS_NOT_MEASURED = "The default optimizer and its learning rate are not measured at this size by us."


def _glue(name: str, arguments: dict, origin: str = "for DEPTH") -> tuple[str, str, dict]:
    """The recipe of a task of GLUE; `origin` says which script of the authors has the lengths, batches and steps."""
    title = f"GLUE's {name}. {THEIRS}, from their script {origin}."
    return title, FINE_TUNING, {"benchmark": "glue", "dataset_name": name} | arguments


# name -> (comment of the file, script, arguments). A task without a recipe of its own has that of its benchmark.
RECIPES = {
    "cola": _glue("cola", COLA),
    "sst2": _glue("sst2", SST2),
    "mrpc": _glue("mrpc", MRPC, ONLY_T5),
    "qqp": _glue("qqp", QQP, ONLY_T5),
    "stsb": _glue("stsb", STSB, ONLY_T5),
    "mnli": _glue("mnli", MNLI),
    "qnli": _glue("qnli", QNLI),
    "rte": _glue("rte", RTE),
    "wnli": _glue("wnli", MRPC, "for T5 on mrpc, since there is none for wnli"),
    "disco_eval": (
        "DiscoEval, for any of its tasks, each in a folder of its own (`--dataset_name DCwiki --output_dir "
        f"runs/DCwiki`). {THEIRS}. `--dataset_dir` names files of your own, such as the folder `data` of "
        "https://github.com/ZeweiChu/DiscoEval.",
        FINE_TUNING,
        {"benchmark": "disco_eval", "dataset_name": "SParxiv"} | DISCO_EVAL,
    ),
    "discourse": (
        "The discourse tasks, made of your own text (`--train_file`) or of Python's documentation, each in a folder "
        "of its own (`--dataset_name sentence_position --output_dir runs/sentence_position`). Lengths, batches and "
        f"steps are those that {AUTHORS} have for DiscoEval.",
        FINE_TUNING,
        {"benchmark": "discourse", "dataset_name": "discourse_coherence"} | DISCO_EVAL,
    ),
    "natural_instructions": (
        f"Natural Instructions. {THEIRS}. The files come by "
        "`git clone https://github.com/allenai/natural-instructions`.",
        FINE_TUNING,
        {
            "benchmark": "natural_instructions",
            "dataset_name": "natural_instructions",
            "dataset_dir": "natural-instructions",
            "add_task_definition": True,
            "num_pos_examples": 2,
            "num_neg_examples": 0,
            "add_explanation": False,
            "max_source_length": 512,
            "max_target_length": 128,
            "num_train_epochs": 3,
            "per_device_train_batch_size": 64,
            "pad_to_multiple_of": 8,
        },
    ),
    "pretrain": (
        f"C4, for DEPTH and, by `--model_type t5`, for T5, with the same noise. {THEIRS}. For four GPUs: 25 x 2 x 4 "
        f"= 200 sequences a step. {DEFAULTS_NOT_MEASURED}",
        PRE_TRAINING,
        {
            "model_type": "depth",
            "config_name": "google/t5-v1_1-base",
            "tokenizer_name": "google/t5-v1_1-base",
        }
        | C4_OF_THE_AUTHORS,
    ),
    "pretrain_from_pretrained": (
        "C4, from a pre-trained T5 v1.1 on, which becomes a DEPTH model; by `--model_type t5 --objective_options "
        f"pack_examples=true` its baseline, whose documents are joined. {THEIRS}. For four GPUs: 25 x 2 x 4 = 200 "
        f"sequences a step. {DEFAULTS_NOT_MEASURED}",
        PRE_TRAINING,
        {"model_type": "depth", "model_name_or_path": "google/t5-v1_1-base"} | C4_OF_THE_AUTHORS,
    ),
    "pretrain_nanot5": (
        "T5 v1.1 base from scratch on C4 with the settings of nanoT5 (https://github.com/PiotrNawrot/nanoT5) for 16 "
        "hours of an A100; for the runs that its README compares, `--max_steps 65536 --warmup_steps 10000 "
        "--gradient_accumulation_steps 1`. Its warm-up begins at half of the learning rate, this one at 0. By "
        "`--model_type depth --objective_options pack_examples=false --max_target_length 256` a DEPTH model with the "
        "same optimizer.",
        PRE_TRAINING,
        {
            "model_type": "t5",
            "config_name": "google/t5-v1_1-base",
            "tokenizer_name": "google/t5-v1_1-base",
            "dropout_rate": 0.0,
            "dataset_name": "allenai/c4",
            "dataset_config_name": "en",
            "streaming": True,
            "max_source_length": 512,
            "max_target_length": 114,
            "pack_examples": True,
            "mlm_probability": 0.15,
            "mean_noise_span_length": 3.0,
            "do_train": True,
            "do_eval": True,
            "max_eval_samples": 64_000,
            "bf16": True,
            "torch_compile": True,
            "max_steps": 53_332,
            "per_device_train_batch_size": 128,
            "gradient_accumulation_steps": 2,
            "optim": "adamw_scale",
            "learning_rate": 2e-2,
            "lr_scheduler_type": "cosine_with_min_lr",
            "lr_scheduler_kwargs": {"min_lr": 1e-5},
            "warmup_steps": 6666,
            "weight_decay": 0.0,
            "max_grad_norm": 1.0,
            "dataloader_num_workers": 8,
            "logging_steps": 100,
            "eval_strategy": "no",
            "save_steps": 10_000,
            "save_total_limit": 2,
        },
    ),
    "pretrain_cpu_10_minutes": (
        f"A small DEPTH model from scratch in ten minutes of two CPU cores. {OWN_TEXT} {MEASURED_10_MINUTES}",
        PRE_TRAINING,
        ON_CPU | {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4, "max_steps": 5500},
    ),
    "pretrain_cpu_1_hour": (
        f"A DEPTH model from scratch in less than an hour of a CPU core. {OWN_TEXT} {MEASURED_1_HOUR}",
        PRE_TRAINING,
        ON_CPU
        | {
            "d_model": 192,
            "d_kv": 48,
            "d_ff": 384,
            "num_layers": 3,
            "num_decoder_layers": 2,
            "num_heads": 4,
            "installed_packages": True,
            "validation_split_percentage": 2,
            "max_steps": 7500,
        },
    ),
    "pretrain_gpu_1_hour": (
        "A DEPTH model of the size of T5 v1.1 small from scratch in an hour of one GPU with 80 GB, on C4; by "
        f"`--model_type t5` its baseline. {NOT_MEASURED}",
        PRE_TRAINING,
        ON_GPU | {"config_name": "google/t5-v1_1-small", "max_steps": 15_000, "per_device_train_batch_size": 128},
    ),
    "pretrain_gpu_16_hours": (
        "A DEPTH model of the size of T5 v1.1 base from scratch in 16 hours of one GPU with 80 GB, on C4; by "
        "`--model_type t5` its baseline. Batches and steps are those of nanoT5 for 16 hours of an A100. "
        "A step was measured on an H100, by which the run takes about 8 hours; the whole run was not.",
        PRE_TRAINING,
        ON_GPU
        | {
            "config_name": "google/t5-v1_1-base",
            "max_steps": 53_332,
            "per_device_train_batch_size": 128,
            "gradient_accumulation_steps": 2,
        },
    ),
}
MADE_OF_TEXT = ("discourse", "python")  # benchmarks whose tasks are made of any text
LEARNING_RATES = {"distribution": "log_uniform_values", "min": 5e-4, "max": 2e-2}  # of `adamw_scale`
SCHEDULES = {"values": ["constant_with_warmup", "linear", "cosine"]}
RUNS = 40
# Without it, an agent would start as many processes as the user's `accelerate config` says.
ONE_PROCESS = ("--config_file", "examples/accelerate/single.yaml")
ORIGIN = "Written by sweeps/generate.py from one table for all: change it there, or change a copy."


@dataclass
class GenerateArguments:
    """Without arguments, the recipes and sweeps of the repository are written."""

    models: list[str] | None = field(
        default=None,
        metadata={"help": "Checkpoints to compare, each with its own type of model: writes sweeps over these."},
    )
    output_dir: str | None = field(
        default=None, metadata={"help": "With --models: folder of these sweeps; `my_sweeps` by default."}
    )

    def __post_init__(self) -> None:
        if self.models is None and self.output_dir is not None:
            raise ValueError("`--output_dir` is for sweeps over your own checkpoints: name these by `--models`.")


def recipe_file(name: str) -> str:
    """Text of a recipe: a comment, and the arguments of its script."""
    title, program, arguments = RECIPES[name]
    command = [f"  accelerate launch {program} {RECIPES_FOLDER}/{name}.yaml"]
    if program == FINE_TUNING:
        title += " The batch size is that of one GPU: divide it by the number of GPUs."
        command = [f"{command[0]} \\", "      --model_name_or_path runs/depth"]
        arguments = FINE_TUNED | arguments
    return _text([title, *command, ORIGIN], {"output_dir": f"runs/{name}"} | _with_options(program, arguments))


def _with_options(program: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of which options stand below their flags: `d_model` in `config_overrides`."""
    groups = {
        name: group for kind in DATACLASSES[program] for group, names in kind.option_groups.items() for name in names
    }
    written: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in groups:
            written.setdefault(groups[name], {})[name] = value
        else:
            written[name] = value
    return written


def sweep_file(spec: TaskSpec, models: list[str] | None = None, folder: str = "sweeps") -> str:
    """Text of the sweep of a task."""
    recipe = next((name for name in (spec.name, spec.benchmark) if name in RECIPES), None)
    if recipe is None:
        raise ValueError(f"{spec.full_name} has no recipe: add {spec.name!r} or {spec.benchmark!r} to RECIPES.")
    parameters = {"benchmark": {"value": spec.benchmark}, "dataset_name": {"value": spec.name}}
    if models is None:
        parameters["model_type"] = {"values": ["depth", "t5"]}
    else:
        parameters["model_name_or_path"] = {"values": models}
    parameters |= {
        "learning_rate": LEARNING_RATES,
        "lr_scheduler_type": SCHEDULES,
        "warmup_steps": {"value": 0.1},
        "do_predict": {"value": False},  # test data are not for choosing hyperparameters
    }
    metric = {"name": metric_key(spec), "goal": "maximize" if spec.greater_is_better else "minimize"}
    return _sweep(folder, sweep_name(spec), FINE_TUNING, recipe, metric, parameters)


def pretraining_sweep_file(folder: str = "sweeps") -> str:
    """Text of the sweep of pre-training: short runs, compared by the loss that both types of model have."""
    parameters = {
        "model_type": {"values": ["depth", "t5"]},
        "learning_rate": LEARNING_RATES | {"min": 2e-3, "max": 5e-2},
        "lr_scheduler_type": {"values": ["linear", "cosine", "inverse_sqrt"]},
        "max_steps": {"value": 20_000},
        "warmup_steps": {"value": 1000},
        "save_total_limit": {"value": 1},
        "gradient_accumulation_steps": {"value": 8},  # an agent has one GPU, the recipe is for four
    }
    metric = {"name": "eval/reconstruction_loss", "goal": "minimize"}
    return _sweep(folder, "pretrain", PRE_TRAINING, "pretrain", metric, parameters)


def metric_key(spec: TaskSpec) -> str:
    """The name in W&B of the metric by which the best model of a task is chosen."""
    split = "" if len(spec.validation_splits) == 1 else f"{spec.validation_splits[0]}_"
    return f"eval/{split}{spec.metric_to_optimize}"


def sweep_name(spec: TaskSpec) -> str:
    """Name of the sweep, and its path below the folder of the sweeps without the extension."""
    return spec.name if spec.name == spec.benchmark else f"{spec.benchmark}/{spec.name}"


def swept_tasks() -> list[TaskSpec]:
    """The tasks of all benchmarks of the package that have training data of their own."""
    specs = [get_task(name, key) for key in BENCHMARKS if key not in MADE_OF_TEXT for name in BENCHMARKS[key]]
    return [spec for spec in specs if spec.train_split]


def _sweep(
    folder: str, name: str, program: str, recipe: str, metric: dict[str, str], parameters: dict[str, Any]
) -> str:
    recipe_path = f"{RECIPES_FOLDER}/{recipe}.yaml"
    output_dir = f"runs/{Path(folder).name}/{name}"
    head = [
        f"Varies the settings of {recipe_path}. From the root of the repository:",
        f"  wandb sweep {folder}/{name}.yaml",
        "and in the same place the `wandb agent` that it prints, once for each GPU, which alone it may see:",
        "  CUDA_VISIBLE_DEVICES=0 wandb agent ENTITY/PROJECT/ID",
        ORIGIN,
    ]
    sweep = {
        "program": program,
        "name": name,
        "project": "hf_depth",
        "method": "random",
        "run_cap": RUNS,
        "metric": metric,
        # The scripts give each run a folder of its own in it, named by the id of the run.
        "parameters": parameters | {"report_to": {"value": "wandb"}, "output_dir": {"value": output_dir}},
        "command": ["${env}", "accelerate", "launch", *ONE_PROCESS, "${program}", recipe_path, "${args}"],
    }
    return _text(head, sweep)


def _text(head: list[str], values: dict[str, Any]) -> str:
    """A YAML file: a comment, its commands indented, and the values."""
    lines = [line for text in head for line in ([text] if text[0] == " " else textwrap.wrap(text, 117))]
    return "".join(f"# {line}\n" for line in lines) + yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=1000)


class _Dumper(yaml.SafeDumper):
    """Writes repeated values in full instead of as YAML aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def all_recipes() -> dict[str, str]:
    """Text of each recipe by its path below their folder."""
    return {f"{name}.yaml": recipe_file(name) for name in RECIPES}


def all_sweeps(models: list[str] | None = None, folder: str = "sweeps") -> dict[str, str]:
    """Text of each sweep by its path below `folder`; there is one of pre-training unless `models` are given."""
    sweeps = {f"{sweep_name(spec)}.yaml": sweep_file(spec, models, folder) for spec in swept_tasks()}
    return sweeps if models else sweeps | {"pretrain.yaml": pretraining_sweep_file(folder)}


ARGUMENTS = (GenerateArguments,)


def main(args: Sequence[str] | None = None) -> None:
    (arguments,) = parse_arguments(ARGUMENTS, args, description=__doc__)
    folder = Path(arguments.output_dir or "my_sweeps")
    if arguments.models is None:
        written = {ROOT / RECIPES_FOLDER / path: text for path, text in all_recipes().items()}
        written |= {ROOT / "sweeps" / path: text for path, text in all_sweeps().items()}
    else:
        written = {folder / path: text for path, text in all_sweeps(arguments.models, folder.as_posix()).items()}
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"{len(written)} files written")


if __name__ == "__main__":
    main()
