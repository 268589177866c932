"""
[`load_task`], which reads the splits of a task from files or the Hub.

To add a loader, write a function in `tasks/loaders/` (and a dataclass if it takes options) and enter it in `LOADERS`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from datasets import Dataset

from ..data.files import check_held_out, file_names
from ..errors import UserError
from ..suggestions import suggestion
from .loaders import disco_eval, discourse, natural_instructions, python_modules, table
from .registry import get_task
from .rows import check_splits
from .sources import TaskFiles, collect_files, file_argument, read_tables, split_files
from .spec import TaskSpec


@dataclass(frozen=True)
class NoOptions:
    """The options of a loader that has none."""


@dataclass(frozen=True)
class Loader:
    """
    A function that reads the examples of a task, and what is known about it.

    Args:
        load (`Callable`): called as `load(spec, files, options, split_seed=…, length=…)`, see [`load_task`].
        options (`type`, *optional*): the dataclass of its options.
        counts_tokens (`bool`, *optional*, defaults to `False`): whether the examples depend on `length`.
        find_files (`Callable`, *optional*):
            Returns the files that `load` reads for each split, called as `find_files(spec, files)`. No file may serve
            both training and evaluation, nor two tasks.
        read_new (`Callable`, *optional*, defaults to `read_tables`):
            Reads files of new examples, called as `read_new(argument, names, spec, cache_dir)`.
        complete (`Callable`, *optional*):
            Adds missing text columns to a new example, called as `complete(example, spec, options, length)`.
        has_instances (`bool`, *optional*, defaults to `False`):
            Whether a column `instance` holds the end of the text. A text that is too long loses this end last.
    """

    load: Callable[..., dict[str, Dataset]]
    options: type = NoOptions
    counts_tokens: bool = False
    find_files: Callable[..., Mapping[str, Sequence[str]]] | None = None
    read_new: Callable[..., Dataset] = read_tables
    complete: Callable[..., Mapping[str, Any]] | None = None
    has_instances: bool = False

    @property
    def option_names(self) -> list[str]:
        return [item.name for item in fields(self.options)]


_DISCO_EVAL: dict[str, Any] = {
    "find_files": disco_eval.find_files,
    "read_new": disco_eval.read_new,
    "complete": disco_eval.complete_example,
}

LOADERS: dict[str, Loader] = {
    "table": Loader(table.load, find_files=split_files),
    "disco_eval": Loader(disco_eval.load, **_DISCO_EVAL),
    "disco_eval_pairs": Loader(disco_eval.load_pairs, **_DISCO_EVAL),
    "natural_instructions": Loader(
        natural_instructions.load,
        natural_instructions.NaturalInstructionsOptions,
        counts_tokens=True,
        complete=natural_instructions.complete_example,
        has_instances=True,
    ),
    "discourse": Loader(discourse.load, discourse.DiscourseOptions),
    "python_modules": Loader(python_modules.load, python_modules.PythonModulesOptions, find_files=split_files),
}


def load_task(
    task: TaskSpec | str,
    files: TaskFiles | None = None,
    *,
    options: Mapping[str, Any] | Any | None = None,
    split_seed: int = 42,
    length: Callable[[str], int] | None = None,
    **file_arguments: Any,
) -> dict[str, Dataset]:
    """
    Load the examples of a task and check them.

    Args:
        task (`TaskSpec` or `str`): the task, or its name in `DATASET_VALS`. Its `loader` is a key of `LOADERS`.
        files (`TaskFiles`, *optional*):
            Where to read. By default, the task's data set on the Hub. The discourse tasks and
            `python/module_of_passage` then use Python's documentation.
        options (`Mapping` or a dataclass, *optional*):
            The loader's options: `DiscourseOptions` or `NaturalInstructionsOptions`, or their fields as a mapping.
        split_seed (`int`, *optional*, defaults to 42):
            The seed of the loader's random choices, such as which documents are in which split.
        length (`Callable[[str], int]`, *optional*):
            Counts the tokens of a text, see `TaskPreprocessor.length`. Some loaders leave out what does not fit.
        file_arguments: fields of `TaskFiles`, instead of `files` or to replace some of its fields.

    Returns:
        `dict[str, Dataset]`: maps the name of each split to its examples. Most loaders return the text columns, the
        label column and `idx`, see [`tasks.rows.check_rows`].

    Raises:
        `ValueError`: if files cannot be read, columns are missing, texts are empty, labels are unknown, or the loader
            has no such option. The message names the file and the line or row.
        `FileNotFoundError`: if a file does not exist.
        `TypeError`: if an argument is unknown, or the loader does not return a mapping of splits to data sets.

    >>> import pathlib, tempfile
    >>> from hf_depth.tasks.loading import load_task
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = pathlib.Path(folder.name, "train.jsonl")
    >>> _ = file.write_text('{"sentence1": "It rains.", "sentence2": "It is wet.", "label": "entailment"}')
    >>> load_task("glue/rte", train_file=str(file), cache_dir=folder.name)["train"][0]
    {'sentence1': 'It rains.', 'sentence2': 'It is wet.', 'label': 0, 'idx': 0}
    """
    spec = get_task(task) if isinstance(task, str) else task
    files = collect_files(files, file_arguments)
    loader = get_loader(spec)
    if loader.find_files is not None:
        held_out = loader.find_files(spec, files)
        trained = held_out.pop(spec.train_split, ())
        check_held_out(trained, [(file_argument(spec, split), names) for split, names in held_out.items()])
    examples = loader.load(spec, files, build_options(spec, options), split_seed=split_seed, length=length)
    check_splits(f"LOADERS[{spec.loader!r}].load(…)", examples, spec)
    return examples


def get_loader(spec: TaskSpec) -> Loader:
    """
    Return the loader of a task.

    Raises:
        `ValueError`: if `LOADERS` has no such loader; suggests similar names.
        `TypeError`: if the entry in `LOADERS` is not a [`Loader`].
    """
    if spec.loader not in LOADERS:
        raise UserError(
            f"Task {spec.name!r}, field `loader`: there is no loader {spec.loader!r}."
            f"{suggestion(spec.loader, LOADERS, 'loaders')}"
        )
    loader = LOADERS[spec.loader]
    if not isinstance(loader, Loader):
        raise TypeError(
            f"`LOADERS[{spec.loader!r}]` must be a `Loader`, got {type(loader).__name__}: write `Loader(load)`."
        )
    return loader


def build_options(spec: TaskSpec, options: Mapping[str, Any] | Any | None = None) -> Any:
    """
    Return the options of a task's loader.

    Args:
        spec: the task.
        options: the loader's dataclass of options, or its fields as a mapping.

    Raises:
        `ValueError`: if the loader has no such option, or a value is wrong.
    """
    return get_loader(spec).options(**options_of_loaders([spec], options)[spec.loader])


def check_own_files(tasks: Sequence[tuple[TaskSpec, Collection[str], TaskFiles]]) -> None:
    """
    Raise `ValueError` if two tasks read the same label column of the same file.

    This happens if `dataset_dir` is the folder of a single task. Two tasks may read different label columns of a file.

    Args:
        tasks: each task with the splits to read and its files.

    Raises:
        `ValueError`: names the tasks and the file; or a task has no files, see [`tasks.sources.split_files`].
    """
    readers: dict[tuple[str, str], TaskSpec] = {}
    for task, splits, files in tasks if len(tasks) > 1 else ():
        find_files = get_loader(task).find_files
        found = find_files(task, files) if find_files and splits else {}
        for split, file in ((name, file) for name in splits for file in found.get(name, ())):
            other = readers.setdefault((file, task.label_column_name), task)
            if other is not task:
                argument = file_argument(task, split)
                argument = argument if file in file_names(getattr(files, argument)) else "dataset_dir"
                raise UserError(
                    f"`{argument}`: the tasks {other.full_name!r} and {task.full_name!r} would both have the examples "
                    f"of {file}. Give each its own: a `dataset_dir` with a folder for each, such as {other.name!r} "
                    f"and {task.name!r}."
                )


def options_of_loaders(
    tasks: Sequence[TaskSpec], options: Mapping[str, Any] | Any | None, **defaults: Any
) -> dict[str, dict[str, Any]]:
    """
    Return a mapping from the name of each task's loader to the given options that it has.

    Args:
        tasks: the tasks.
        options: a mapping or a dataclass. Each option must belong to at least one loader.
        defaults: further options, which need not belong to any loader.

    Raises:
        `ValueError`: if no loader has such an option.
    """
    options = asdict(options) if is_dataclass(options) else dict(options or {})
    names = {task.loader: get_loader(task).option_names for task in tasks}
    known = list(dict.fromkeys(name for of_loader in names.values() for name in of_loader))
    for name in options:
        if name not in known:
            raise UserError(
                f"`options`: there is no option `{name}` of {', '.join(f'the loader {loader!r}' for loader in names)}."
                f"{suggestion(name, known, 'options')}"
            )
    given = defaults | options
    return {loader: {name: given[name] for name in of_loader if name in given} for loader, of_loader in names.items()}
