"""Which tasks a script trains and evaluates on, and with which data: the arguments, and the tasks that they name."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..tasks.registry import DATASET_VALS, get_task, load_task_file, task_names
from ..tasks.spec import TaskSpec

ALL_TASKS = "all"


@dataclass
class TaskArguments:
    """The tasks, their data, and how these are prepared."""

    benchmark: str | None = field(
        default=None, metadata={"help": "glue, disco_eval, natural_instructions, discourse, or one of your own."}
    )
    dataset_name: list[str] | None = field(
        default=None, metadata={"help": "Tasks of the benchmark, or `all`: several are mixed in training."}
    )
    excluded_datasets: list[str] | None = field(default=None, metadata={"help": "Tasks that `all` leaves out."})
    task_file: list[str] | None = field(
        default=None, metadata={"help": "YAML files that describe tasks of your own; used if no others are named."}
    )
    train_file: list[str] | None = field(
        default=None,
        metadata={"help": "Training examples in the task's columns: json, jsonl, csv, tsv, txt, parquet, or .gz."},
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "Likewise, validation examples."})
    test_file: list[str] | None = field(default=None, metadata={"help": "Likewise, test examples, for --do_predict."})
    dataset_dir: str | None = field(
        default=None, metadata={"help": "Folder with the files of a task, or with one such folder per task."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Most training examples of a task."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Most validation examples of a split."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Most test examples of a split."})
    max_source_length: int | None = field(
        default=None, metadata={"help": "Longest input in tokens (default: the task's)."}
    )
    max_target_length: int | None = field(
        default=None, metadata={"help": "Longest target in tokens (default: the task's)."}
    )
    sentence_language: str = field(default="en", metadata={"help": "Language for splitting sentences."})
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that prepare the examples."}
    )
    overwrite_cache: bool = field(default=False, metadata={"help": "Prepare the examples anew."})
    pad_to_multiple_of: int | None = field(default=None, metadata={"help": "Pad lengths to a multiple of this."})
    mixing_temperature: float = field(
        default=1.0,
        metadata={"help": "Several tasks: 1 samples in proportion to their examples, more evens them out."},
    )
    mixing_maximum: int = field(
        default=65_536, metadata={"help": "Several tasks: a larger one is sampled as if it had so many examples."}
    )
    text_column: str = field(default="text", metadata={"help": "Discourse: column that holds the documents."})
    max_examples_per_document: int | None = field(
        default=20, metadata={"help": "Discourse: most examples of one document."}
    )
    add_task_definition: bool = field(default=True, metadata={"help": "Natural Instructions: show the definition."})
    num_pos_examples: int = field(default=2, metadata={"help": "Natural Instructions: positive examples to show."})
    num_neg_examples: int = field(default=0, metadata={"help": "Natural Instructions: negative examples to show."})
    add_explanation: bool = field(default=False, metadata={"help": "Natural Instructions: show explanations of them."})
    add_task_name: bool = field(default=False, metadata={"help": "Natural Instructions: show the name of the task."})
    tk_instruct: bool = field(
        default=False, metadata={"help": "Natural Instructions: one of five prompt formats, at random."}
    )
    max_num_instances_per_task: int | None = field(
        default=100, metadata={"help": "Natural Instructions: most training examples of one of its tasks."}
    )
    max_num_instances_per_eval_task: int | None = field(
        default=100, metadata={"help": "Natural Instructions: most test examples of one of its tasks; the first."}
    )

    def __post_init__(self):
        for name, least in LEAST_VALUES.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"`--{name}` must be at least {least}, got {value}.")
        if self.excluded_datasets and ALL_TASKS not in (self.dataset_name or ()):
            raise ValueError(f"`--excluded_datasets` is for `--dataset_name {ALL_TASKS}`, which names all others.")


LEAST_VALUES = {
    "max_train_samples": 1,
    "max_eval_samples": 1,
    "max_predict_samples": 1,
    "max_source_length": 8,
    "max_target_length": 2,
    "mixing_temperature": 1.0,
    "mixing_maximum": 1,
    "max_examples_per_document": 1,
    "num_pos_examples": 0,
    "num_neg_examples": 0,
    "max_num_instances_per_task": 1,
    "max_num_instances_per_eval_task": 1,
}
# What the loaders of some tasks take besides files.
LOADER_OPTIONS = (
    "text_column",
    "sentence_language",
    "max_examples_per_document",
    "add_task_definition",
    "num_pos_examples",
    "num_neg_examples",
    "add_explanation",
    "add_task_name",
    "tk_instruct",
    "max_num_instances_per_task",
    "max_num_instances_per_eval_task",
)


def chosen_tasks(task_args: TaskArguments) -> list[TaskSpec]:
    """
    The tasks that the arguments name, with the lengths that they ask for.

    Raises:
        `ValueError`: if they name none, or one that does not exist, or files for several.
    """
    own = [task for path in task_args.task_file or () for task in load_task_file(path)]
    if task_args.dataset_name:
        tasks = _named_tasks(task_args)
    elif own:
        tasks = own
    elif task_args.benchmark is not None and len(task_names(task_args.benchmark)) == 1:
        tasks = [get_task(name, task_args.benchmark) for name in task_names(task_args.benchmark)]
    else:
        benchmark = task_args.benchmark
        names = f"{benchmark} has {', '.join(task_names(benchmark))}" if benchmark else ", ".join(DATASET_VALS)
        raise ValueError(f"Name the task by `--dataset_name` (or all of them by `{ALL_TASKS}`): {names}.")
    tasks = list({(task.benchmark, task.name): task for task in tasks}.values())  # aliases name a task a second time
    for name in ("train_file", "validation_file", "test_file"):
        if getattr(task_args, name) and len(tasks) > 1:
            raise ValueError(
                f"`--{name}` holds the rows of one task, but there are {len(tasks)}: "
                f"{', '.join(task.name for task in tasks)}. Name one, or a `--dataset_dir` with a folder for each."
            )
    return [_with_lengths(task, task_args) for task in tasks]


def _with_lengths(task: TaskSpec, task_args: TaskArguments) -> TaskSpec:
    lengths = {name: getattr(task_args, name) for name in ("max_source_length", "max_target_length")}
    return replace(task, **{name: length for name, length in lengths.items() if length is not None})


def _named_tasks(task_args: TaskArguments) -> list[TaskSpec]:
    names = task_args.dataset_name
    if ALL_TASKS in names:
        if task_args.benchmark is None:
            raise ValueError(
                f"`--dataset_name {ALL_TASKS}`: of which `--benchmark`? There are {', '.join(DATASET_VALS)}."
            )
        excluded = [get_task(name, task_args.benchmark).name for name in task_args.excluded_datasets or ()]
        names = [name for name in task_names(task_args.benchmark) if name not in excluded]
        if not names:
            raise ValueError(f"`--excluded_datasets` leaves no task of {task_args.benchmark}.")
    return [get_task(name, task_args.benchmark) for name in names]


def training_tasks(tasks: Sequence[TaskSpec], task_args: TaskArguments) -> list[TaskSpec]:
    """The tasks to train and validate on: a task without training data names another one that has some."""
    found = {}
    for task in tasks:
        if not task.train_split and task.train_on:
            task = _with_lengths(get_task(task.train_on, task.benchmark), task_args)
        if task.train_split:
            found[task.benchmark, task.name] = task
    return list(found.values())
