"""
The registry of tasks.

`DATASET_VALS` maps the name of a benchmark to its tasks by their names, each a [`TaskSpec`] or a plain entry (a
dictionary of the fields of one). [`get_task`] finds a task, [`register_task`] adds one, [`load_task_file`] those of a
YAML file.

>>> from hf_depth import DATASET_VALS
>>> sorted(DATASET_VALS)
['disco_eval', 'discourse', 'glue', 'natural_instructions', 'python']
>>> DATASET_VALS["glue"]["rte"].labels
{0: 'entailment', 1: 'not_entailment'}
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from ..suggestions import listed, suggestion
from .checks import FieldError, check_fields, check_prefixes
from .entries import BENCHMARK_ALIASES, BENCHMARKS, TASK_ALIASES
from .entry_files import read_task_file
from .spec import TaskSpec

_REQUIRED = [item.name for item in fields(TaskSpec) if item.default is MISSING and item.default_factory is MISSING]
_NUMBERED = re.compile(r"(prefix|text_column_name)_(\d+)")

_OF_THE_HUB = " (A data set of the Hub is the `path` of a task of your own: see `register_task`, or `--task_file`.)"

#: All tasks: the name of a benchmark -> the name of a task -> its [`TaskSpec`] or plain entry.
DATASET_VALS: dict[str, dict[str, TaskSpec | dict[str, Any]]] = {}


def get_task(name: str, benchmark: str | None = None) -> TaskSpec:
    """
    Find a task of `DATASET_VALS`.

    Args:
        name (`str`): of the task, such as `"rte"` or, with its benchmark, `"glue/rte"`.
        benchmark (`str`, *optional*):
            Needed if several benchmarks have a task of that name. `"nyu-mll/glue"` and `"OfekGlick/DiscoEval"`, their
            names on the Hub, stand for `"glue"` and `"disco_eval"`.

    Returns:
        `TaskSpec`: the task.

    Raises:
        `ValueError`: if there is none; it names the nearest ones.

    >>> get_task("glue/mrpc").metric_names
    ('f1', 'accuracy')
    """
    if benchmark is None and "/" in name:
        benchmark, name = name.rsplit("/", 1)
    if benchmark is None:
        found = [b for b, tasks in DATASET_VALS.items() if TASK_ALIASES.get(b, {}).get(name, name) in tasks]
        if len(found) > 1:
            raise ValueError(f"Several benchmarks have a task {name!r}: {listed(found)}. Give the `benchmark`, too.")
        if not found:
            everything = [task for tasks in DATASET_VALS.values() for task in tasks]
            raise ValueError(f"There is no task {name!r}.{suggestion(name, everything, 'tasks')}{_OF_THE_HUB}")
        benchmark = found[0]
    benchmark = _benchmark(benchmark)
    tasks = DATASET_VALS[benchmark]
    name = TASK_ALIASES.get(benchmark, {}).get(name, name)
    if name not in tasks:
        raise ValueError(f"The benchmark {benchmark!r} has no task {name!r}.{suggestion(name, tasks, 'tasks')}")
    return as_task(tasks[name], benchmark, name)


def task_names(benchmark: str) -> list[str]:
    """The tasks of a benchmark."""
    return list(DATASET_VALS[_benchmark(benchmark)])


def as_task(entry: TaskSpec | Mapping[str, Any], benchmark: str | None = None, name: str | None = None) -> TaskSpec:
    """
    Turn a plain entry, as in `DATASET_VALS`, into a task.

    Args:
        entry: fields of a task. `prefix_1`, `prefix_2`, … and `text_column_name_1`, … are taken together.
        benchmark, name: where the entry does not give them.

    Raises:
        `TypeError`: if it is neither a task nor an entry.
        `ValueError`: naming the field, if one is unknown (with near matches), missing or not valid.
    """
    if isinstance(entry, TaskSpec):
        return entry
    if not isinstance(entry, Mapping):
        raise TypeError(
            f"A task must be a `TaskSpec` or a dictionary of its fields, got {entry!r:.80}: write "
            "`register_task({…}, 'benchmark', 'name')`."
        )
    given = {"benchmark": benchmark, "name": name}
    entry = {key: value for key, value in given.items() if value is not None} | _together(entry)
    check_fields(str(entry.get("name", "?")), entry, [item.name for item in fields(TaskSpec)], _REQUIRED)
    task = TaskSpec(**entry)
    check_prefixes(task)
    return task


def register_task(
    task: TaskSpec | Mapping[str, Any],
    benchmark: str | None = None,
    name: str | None = None,
    overwrite: bool = False,
) -> TaskSpec:
    """
    Add a task to `DATASET_VALS`.

    Args:
        task (`TaskSpec` or `Mapping`): a task, or a plain entry.
        benchmark, name (`str`, *optional*): where the entry does not give them.
        overwrite (`bool`, *optional*, defaults to `False`): replace another task of that name.

    Returns:
        `TaskSpec`: the task.

    Raises:
        `TypeError`: if it is neither a task nor an entry.
        `ValueError`: if the entry is not valid, or if there is another task of that name.

    >>> entry = {"text_column_name": "review", "prefix": "tone review:", "labels": ["sad", "glad"]}
    >>> task = register_task(entry, benchmark="mine", name="tone")
    >>> get_task("mine/tone").metric_names
    ('accuracy',)
    >>> del DATASET_VALS["mine"]
    """
    task = as_task(task, benchmark, name)
    tasks = DATASET_VALS.setdefault(task.benchmark, {})
    if not overwrite and task.name in tasks and as_task(tasks[task.name], task.benchmark, task.name) != task:
        raise FieldError(
            task.name,
            "name",
            f"the benchmark {task.benchmark!r} already has another task of that name. Choose another one, or replace "
            "it by `register_task(…, overwrite=True)`.",
        )
    tasks[task.name] = task
    return task


def training_tasks(tasks: Iterable[TaskSpec]) -> list[TaskSpec]:
    """
    The tasks to train and validate on: a task without training data names another one that has some.

    >>> [task.name for task in training_tasks([get_task("glue/rte"), get_task("glue/ax")])]
    ['rte', 'mnli']
    """
    found = {}
    for task in tasks:
        if task.train_split:
            found[task.full_name] = task
        elif task.train_on:
            other = get_task(task.train_on, task.benchmark)
            found.setdefault(other.full_name, other)
    return list(found.values())


def load_task_file(path: str | os.PathLike) -> list[TaskSpec]:
    """
    Add the tasks of a YAML file to `DATASET_VALS`: one task, a list of tasks, or `benchmark: {task: entry}`.

    A task without `benchmark` belongs to `"custom"`.

    Raises:
        `ValueError`: naming the file, the line and the field.
        `FileNotFoundError`: if there is no such file.
    """
    tasks = []
    for entry in read_task_file(path):
        try:
            tasks.append(register_task(entry.fields))
        except FieldError as error:
            line = entry.lines.get(error.field) or entry.lines.get(f"{error.field}_1") or entry.lines[""]
            raise ValueError(f"{path}, line {line}: {error}") from error
    return tasks


def _together(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry with `prefix_1`, `prefix_2`, … in one field."""
    plain, numbered = {}, {}
    for key, value in entry.items():
        match = _NUMBERED.fullmatch(key)
        if match:
            numbered.setdefault(match[1], {})[int(match[2])] = value
        else:
            plain[key] = value
    for key, values in numbered.items():
        if key in plain or sorted(values) != list(range(1, len(values) + 1)):
            raise FieldError(
                str(entry.get("name", "?")),
                key,
                f"give either `{key}` or `{key}_1`, `{key}_2`, … without a gap, got "
                f"{listed(name for name in entry if name.startswith(key))}.",
            )
        plain[key] = tuple(values[number] for number in sorted(values))
    return plain


def _benchmark(name: str) -> str:
    benchmark = BENCHMARK_ALIASES.get(name, name)
    if benchmark not in DATASET_VALS:
        near = suggestion(name, DATASET_VALS, "benchmarks")
        raise ValueError(f"There is no benchmark {name!r}.{near}{_OF_THE_HUB}")
    return benchmark


for _benchmark_name, _entries in BENCHMARKS.items():
    for _name, _entry in _entries.items():
        register_task(_entry, _benchmark_name, _name)
