"""
The loader of Super-NaturalInstructions. It makes the prompts of Tk-Instruct and the official splits from a copy of the
repository `allenai/natural-instructions`.

Source: Wang et al. (2022), "Super-NaturalInstructions: Generalization via Declarative Instructions on 1600+ NLP
Tasks", arXiv 2204.07705.
"""

import functools
import json
import logging
import os
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value

from ...data.files import file_version
from ...errors import UserError
from ...suggestions import listed
from ..sources import TaskFiles, keep_rows, kept_splits, named_generator
from ..spec import TaskSpec

logger = logging.getLogger(__name__)

MAX_VALIDATION_SHARE = 0.2  # the maximum share of a task's instances for validation
NUM_CLOSING_TOKENS = 2  # `<eosen>` (DEPTH only) and `</s>` at the end of an input

# The fields of a task's file that a prompt may show.
TASK_FIELDS = ("Name", "Definition", "Positive Examples", "Negative Examples")

# The fields of a task's file that are lists, and whether these may be empty.
LISTS = {
    "Definition": False,
    "Categories": False,
    "Positive Examples": True,
    "Negative Examples": True,
    "Instances": False,
}

# The five kinds of training prompts of Tk-Instruct, see `tk_instruct`.
TK_INSTRUCT_PROMPTS = (
    {"add_task_definition": True, "num_pos_examples": 0, "num_neg_examples": 0, "add_explanation": False},
    {"add_task_definition": False, "num_pos_examples": 2, "num_neg_examples": 0, "add_explanation": False},
    {"add_task_definition": True, "num_pos_examples": 2, "num_neg_examples": 0, "add_explanation": False},
    {"add_task_definition": True, "num_pos_examples": 2, "num_neg_examples": 2, "add_explanation": False},
    {"add_task_definition": True, "num_pos_examples": 2, "num_neg_examples": 0, "add_explanation": True},
)


@dataclass(frozen=True)
class NaturalInstructionsOptions:
    """
    The options of the loader of Natural Instructions.

    Args:
        add_task_definition, num_pos_examples, num_neg_examples, add_explanation, add_task_name:
            What a prompt shows, see [`prompt`].
        tk_instruct (`bool`, *optional*, defaults to `False`):
            Give each training instance one of `TK_INSTRUCT_PROMPTS`, chosen by `split_seed` and its id. The prompts of
            validation and test do not change.
        max_num_instances_per_task (`int`, *optional*, defaults to 100):
            The maximum number of training instances of a task; `None` for no limit.
        max_num_instances_per_eval_task (`int`, *optional*, defaults to 100):
            The maximum number of test instances of a task: the first ones, as in the official evaluation.
        max_num_validation_instances_per_task (`int`, *optional*, defaults to 10):
            The maximum number of validation instances of a training task, never more than a fifth of its instances.

    Raises:
        `ValueError`: if a number is too small.
    """

    add_task_definition: bool = True
    num_pos_examples: int = 2
    num_neg_examples: int = 0
    add_explanation: bool = False
    add_task_name: bool = False
    tk_instruct: bool = False
    max_num_instances_per_task: int | None = 100
    max_num_instances_per_eval_task: int | None = 100
    max_num_validation_instances_per_task: int | None = 10

    def __post_init__(self):
        for item in fields(self):
            value = getattr(self, item.name)
            least = 1 if item.name.startswith("max_") else 0 if item.name.startswith("num_") else None
            if least is not None and value is not None and value < least:
                raise UserError(f"`{item.name}` must be at least {least}, got {value}.")

    @property
    def prompt(self) -> dict[str, Any]:
        """The arguments of [`prompt`]."""
        names = ("add_task_definition", "num_pos_examples", "num_neg_examples", "add_explanation", "add_task_name")
        return {name: getattr(self, name) for name in names}


def prompt(
    task: Mapping[str, Any],
    instance_input: str,
    *,
    add_task_definition: bool = True,
    num_pos_examples: int = 2,
    num_neg_examples: int = 0,
    add_explanation: bool = False,
    add_task_name: bool = False,
    fits: Callable[[str], bool] | None = None,
) -> str:
    """
    Return the prompt of an instance, exactly as Tk-Instruct writes it.

    Args:
        task: the content of a task's file. `"Name"` is its name, for `add_task_name`.
        instance_input: the `input` of the instance.
        add_task_definition: begin with the definition of the task.
        num_pos_examples, num_neg_examples: the numbers of positive and negative examples to show.
        add_explanation: show why an example is right or wrong.
        add_task_name: begin with the name of the task.
        fits: returns whether a prompt is short enough. The first example that does not fit and all later ones are left
            out.

    Returns:
        `str`: a text that ends with [`instance_text`].

    >>> example = {"input": "1", "output": "2"}
    >>> task = {"Definition": ["Add one"], "Positive Examples": [example], "Negative Examples": []}
    >>> prompt(task, "2", add_task_definition=False)
    ' Positive Example 1 -\\nInput: 1.\\n Output: 2.\\n\\nNow complete the following example -\\nInput: 2.\\nOutput: '
    """
    front = f"{task['Name']}. " if add_task_name else ""
    front += f"{_closed('Definition: ' + _definition(task))}\n\n" if add_task_definition else ""
    instance = instance_text(instance_input)
    for sign, number in (("Positive", num_pos_examples), ("Negative", num_neg_examples)):
        for index, example in enumerate(task[f"{sign} Examples"][:number], 1):
            longer = front + _example(f" {sign} Example {index} -", example, add_explanation)
            if fits is not None and not fits(longer + instance):
                break
            front = longer
    return front + instance


def instance_text(instance_input: str) -> str:
    """Return the end of a prompt, which holds the input to answer."""
    return f"Now complete the following example -\n{_closed(f'Input: {instance_input.strip()}')}\nOutput: "


def complete_example(
    example: Mapping[str, Any],
    spec: TaskSpec,
    options: NaturalInstructionsOptions,
    length: Callable[[str], int] | None = None,
) -> Mapping[str, Any]:
    """
    Add a prompt to a new example that has an `input` and no prompt.

    Args:
        example: `input` and the fields of its task's file that the prompt shows (`TASK_FIELDS`).
        spec: the task.
        options: what a prompt shows.
        length: counts the tokens of a text.

    Raises:
        `ValueError`: if the example lacks the definition, or an example to show lacks a text.
    """
    (column,) = spec.text_column_name
    if example.get(column) is not None or not isinstance(example.get("input"), str):
        return example
    task = {"Name": "", "Definition": "", "Positive Examples": (), "Negative Examples": ()}
    task |= {name: example[name] for name in TASK_FIELDS if example.get(name)}
    if options.add_task_definition and not task["Definition"]:
        raise UserError(
            f"An example of {spec.full_name!r} has no 'Definition', which its prompt begins with. Give it, or the "
            f"whole prompt as {column!r}."
        )
    for field in ("Positive Examples", "Negative Examples"):
        for index, shown in enumerate(task[field]):
            _check_texts(spec.full_name, f"{field!r}[{index}] of an example", shown, ("input", "output"))
    end = instance_text(example["input"])
    fits = _fits(end, spec.max_source_length, length)
    return {column: prompt(task, example["input"], **options.prompt, fits=fits), "instance": end}


def load(
    spec: TaskSpec,
    files: TaskFiles,
    options: NaturalInstructionsOptions,
    *,
    split_seed: int = 42,
    length: Callable[[str], int] | None = None,
) -> dict[str, Dataset]:
    """
    Return prompts and references of the official splits, and a validation split.

    There is no official validation split. The instances of a training task are shuffled by `split_seed` and its name.
    The first ones are for validation, the others for training, except those with an input that is in validation. A
    test task gives its first instances, as in the official evaluation.

    The prompts are cached in `cache_dir`. How many were shortened is logged only when they are made.

    Args:
        spec: the task.
        files: `dataset_dir` is a copy of the repository with `tasks/*.json` and
            `splits/default/{train,test}_tasks.txt`.
        options: which instances to take, and what a prompt shows.
        split_seed: the seed that chooses instances and prompts.
        length: counts the tokens of a text. If it is given, prompts leave out examples that do not fit into the task's
            `max_source_length`.

    Returns:
        `dict[str, Dataset]`: `train`, `validation` and `test` with the columns `prompt`, `instance` (the end of the
        prompt, which is cut last), `references` (all right outputs), `task`, `category` and `id`.

    Raises:
        `ValueError`: if the folder, a list, a task, a field or an option is missing or wrong.
    """
    if files.train_file or files.validation_file or files.test_file:
        raise UserError(
            f"The task {spec.name!r} is read from the folder `dataset_dir`, not from `train_file`, `validation_file` "
            "or `test_file`."
        )
    paths = _task_paths(spec, files.dataset_dir)
    arguments = {
        "spec": spec,
        "paths": paths,
        "versions": {split: [file_version(path) for path in paths[split]] for split in paths},
        "options": options,
        "seed": split_seed,
        "length": length,
    }
    columns = ("prompt", "instance", "references", "task", "category", "id", "split")
    features = {name: Value("string") for name in columns} | {"references": List(Value("string"))}
    return kept_splits(keep_rows(_rows, arguments, Features(features), files.cache_dir))


def read_task(path: str | os.PathLike) -> dict[str, Any]:
    """
    Return the content of a task's file, with its name as `"Name"`.

    Raises:
        `ValueError`: if a field is missing or wrong; names the file and the field.
    """
    path = Path(path)
    try:
        task = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not UTF-8, or not JSON
        raise UserError(f"{path} cannot be read as a task: {error}.") from error
    if not isinstance(task, dict):
        raise UserError(f"{path} cannot be read as a task: it holds no fields, but {task!r:.40}.")
    for field, may_be_empty in LISTS.items():
        value = task.get(field)
        is_list = isinstance(value, list) or (field == "Definition" and isinstance(value, str))
        if not is_list or not (value or may_be_empty):
            kind = "a list" if may_be_empty else "a list that is not empty"
            raise UserError(f"{path}: the field {field!r} must be {kind}, got {value!r:.40}.")
    for field in ("Positive Examples", "Negative Examples"):
        for index, example in enumerate(task[field]):
            _check_texts(path, f"{field!r}[{index}]", example, ("input", "output"))
    for index, instance in enumerate(task["Instances"]):
        place = f"'Instances'[{index}]"
        _check_texts(path, place, instance, ("input",))
        instance.setdefault("id", f"{path.stem}-{index}")  # early versions of the data have no ids
        instance["output"] = _references(path, place, instance.get("output"))
    return {**task, "Name": path.stem}


def _check_texts(path: Path | str, place: str, values: Any, fields: Sequence[str]):
    for field in fields:
        value = values.get(field) if isinstance(values, dict) else None
        if not isinstance(value, str):
            raise UserError(f"{path}: {place} must have a text {field!r}, got {values!r:.80}.")


def _references(path: Path, place: str, output: Any) -> list[str]:
    references = [output] if isinstance(output, str) else output
    if not isinstance(references, list) or not references or not all(isinstance(text, str) for text in references):
        raise UserError(f"{path}: {place} must have an 'output' that is a list of texts, got {output!r:.80}.")
    return references


def _definition(task: Mapping[str, Any]) -> str:
    definition = task["Definition"]
    return (definition if isinstance(definition, str) else definition[0]).strip()


def _closed(text: str) -> str:
    return text if text[-1] in string.punctuation else f"{text}."


def _example(title: str, example: Mapping[str, str], add_explanation: bool) -> str:
    lines = [title, _closed(f"Input: {example['input'].strip()}"), _closed(f" Output: {example['output'].strip()}")]
    if add_explanation and "explanation" in example:
        lines.append(_closed(f" Explanation: {example['explanation'].strip()}"))
    return "\n".join(lines) + "\n\n"


def _task_paths(spec: TaskSpec, dataset_dir: str | os.PathLike | None) -> dict[str, list[Path]]:
    """Return the files of the tasks in the official lists for training and test."""
    if dataset_dir is None:
        raise UserError(
            f"The task {spec.name!r} needs `dataset_dir`, a copy of the repository with its tasks: `git clone "
            "https://github.com/allenai/natural-instructions`."
        )
    folder, paths = Path(dataset_dir), {}
    for split in ("train", "test"):
        names = folder / "splits" / "default" / f"{split}_tasks.txt"
        if not names.is_file():
            raise UserError(
                f"`dataset_dir`: there is no file {names}. Name a copy of the repository "
                "allenai/natural-instructions, which has the folders 'tasks' and 'splits/default'."
            )
        lines = [line.strip().removesuffix(".json") for line in names.read_text(encoding="utf-8").splitlines()]
        paths[split] = [folder / "tasks" / f"{name}.json" for name in dict.fromkeys(filter(None, lines))]
        missing = [path.stem for path in paths[split] if not path.is_file()]
        if missing:
            raise UserError(
                f"{folder / 'tasks'} lacks {len(missing)} of the {len(paths[split])} tasks in "
                f"splits/default/{split}_tasks.txt: {listed(missing[:5])}{', …' if missing[5:] else ''}. Add their "
                "files, or take them off the list."
            )
    both = sorted(path.stem for path in set(paths["train"]) & set(paths["test"]))
    if both:
        raise UserError(f"{folder / 'splits/default'}: both lists name {listed(both)}. Take them out of one.")
    return paths


def _training_instances(
    name: str, instances: Sequence[dict], options: NaturalInstructionsOptions, seed: int
) -> dict[str, list[dict]]:
    """Return the instances of a training task for training and for validation."""
    shuffled = [instances[i] for i in named_generator(seed, name).permutation(len(instances))]
    limit = options.max_num_validation_instances_per_task
    most = int(MAX_VALIDATION_SHARE * len(instances))
    num_validation = most if limit is None else min(limit, most)
    validation, others = shuffled[:num_validation], shuffled[num_validation:]
    inputs = {instance["input"].strip() for instance in validation}
    train = [instance for instance in others if instance["input"].strip() not in inputs]
    return {"train": train[: options.max_num_instances_per_task], "validation": validation}


def _rows(
    spec: TaskSpec,
    paths: Mapping[str, Sequence[Path]],
    versions: Any,
    options: NaturalInstructionsOptions,
    seed: int,
    length: Callable[[str], int] | None,
) -> Iterator[dict[str, Any]]:
    """Yield the examples of all splits, one split after the other."""
    chosen: dict[str, list] = {"train": [], "validation": [], "test": []}
    for split in paths:
        for path in paths[split]:
            task = read_task(path)
            instances = task.pop("Instances")  # do not keep thousands of unused instances in memory
            if split == "test":
                parts = {"test": instances[: options.max_num_instances_per_eval_task]}
            else:
                parts = _training_instances(task["Name"], instances, options, seed)
            for part in parts:
                chosen[part] += [(task, instance) for instance in parts[part]]
    for split, instances in chosen.items():
        counts: Counter = Counter()
        yield from _split_rows(spec, split, instances, options, seed, length, counts)
        _report(spec, split, instances, counts)


def _report(spec: TaskSpec, split: str, instances: Sequence[tuple], counts: Counter) -> None:
    logger.info(
        f"Task {spec.name!r}, {split} split: {len(instances):,} instances of "
        f"{len({task['Name'] for task, _ in instances}):,} tasks; {counts['shortened']:,} of them with fewer examples "
        "than asked for, to fit into `max_source_length`."
    )
    if counts["too long"]:
        logger.warning(
            f"Task {spec.name!r}, {split} split: {counts['too long']:,} of {len(instances):,} instances do not fit "
            f"into `max_source_length` by themselves and will be cut. Raise it."
        )


def _fits(end: str, limit: int, length: Callable[[str], int] | None) -> Callable[[str], bool] | None:
    """Return a function that says whether a prompt with this end is short enough, see [`prompt`]."""
    if length is None:
        return None
    return lambda text: length(text.removesuffix(end)) + length(end) + NUM_CLOSING_TOKENS <= limit


def _split_rows(
    spec: TaskSpec,
    split: str,
    instances: Sequence[tuple],
    options: NaturalInstructionsOptions,
    seed: int,
    length: Callable[[str], int] | None,
    counts: Counter,
) -> Iterator[dict[str, Any]]:
    limit = spec.max_source_length
    if length:
        length = functools.lru_cache(maxsize=1024)(length)  # the instances of a task share the start of their prompts
    for task, instance in instances:
        choices = options.prompt
        if options.tk_instruct and split == "train":
            kind = named_generator(seed, "tk_instruct", instance["id"]).integers(len(TK_INSTRUCT_PROMPTS))
            choices |= TK_INSTRUCT_PROMPTS[kind]
        end = instance_text(instance["input"])
        text = prompt(task, instance["input"], **choices, fits=_fits(end, limit, length))
        counts["shortened"] += length is not None and text != prompt(task, instance["input"], **choices)
        counts["too long"] += length is not None and length(end) + NUM_CLOSING_TOKENS > limit
        yield {
            "prompt": text,
            "instance": end,
            "references": instance["output"],
            "task": task["Name"],
            "category": task["Categories"][0],
            "id": instance["id"],
            "split": split,
        }
