"""
[`load_task`]: the examples of a task, split by split, wherever they come from.

A task that no loader can read gets one of its own: a file in `tasks/loaders/` with a function and, if it takes
options, a dataclass of them, and an entry in `LOADERS`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

from datasets import Dataset

from ..data.files import check_held_out, file_names
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
    What reads the examples of a task.

    Args:
        load (`Callable`): called as `load(spec, files, options, split_seed=…, length=…)`, see [`load_task`].
        options (`type`, *optional*): the dataclass of its options.
        counts_tokens (`bool`, *optional*, defaults to `False`): whether what it loads depends on `length`.
        find_files (`Callable`, *optional*):
            The files that `load` reads for each split, called as `find_files(spec, files)`, where they hold the
            examples of one task: what is held out must not be among what is trained on, and no two tasks share them.
        read_new (`Callable`, *optional*, defaults to `read_tables`):
            Reads files of new examples, called as `read_new(argument, names, spec, cache_dir)`.
        complete (`Callable`, *optional*):
            Gives a new example the text columns that it lacks, called as `complete(example, spec, options, length)`.
        has_instances (`bool`, *optional*, defaults to `False`):
            Whether a column `instance` holds the end of the text, which is cut last of all.
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
    Load the examples of a task, checked, in the columns of the task.

    Args:
        task (`TaskSpec` or `str`): the task, or its name in `DATASET_VALS`; its `loader` is a key of `LOADERS`.
        files (`TaskFiles`, *optional*):
            Where to read; without any, the data set that the task names on the Hub. Discourse tasks are then made of
            Python's documentation, as `python/module_of_passage` always is.
        options (`Mapping` or a dataclass, *optional*):
            Of the loader: `DiscourseOptions` or `NaturalInstructionsOptions`, or their fields by name.
        split_seed (`int`, *optional*, defaults to 42):
            Of what the loader draws: which documents or instances are in which split, and what is made of them.
        length (`Callable[[str], int]`, *optional*):
            How many tokens a text takes, see `TaskPreprocessor.length`, for loaders that choose what fits.
        file_arguments: the fields of `TaskFiles`, instead of `files` or to replace some of them.

    Returns:
        `dict[str, Dataset]`: the examples of each split that there is, by the names that the task gives the splits:
        text columns, label column and `idx`, see [`tasks.rows.check_rows`]; or what the loader returns.

    Raises:
        `ValueError`: if files cannot be read, columns are missing, texts are empty, labels are none of the task's, or
            the loader has no such option. The message names the file and the line or row.
        `FileNotFoundError`: if there is no such file.
        `TypeError`: if there is no such argument, or the loader returns anything but data sets by their splits.

    >>> import pathlib, tempfile
    >>> from hf_depth import load_task
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
    The loader of a task.

    Raises:
        `ValueError`: if there is none of that name, with near matches.
        `TypeError`: if what `LOADERS` has there is no [`Loader`].
    """
    if spec.loader not in LOADERS:
        raise ValueError(
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
    The options of a task's loader.

    Args:
        spec: the task.
        options: a dataclass of that loader's options, or its fields by name.

    Raises:
        `ValueError`: if the loader has no such option, with near matches, or a value is wrong.
    """
    return get_loader(spec).options(**options_of_loaders([spec], options)[spec.loader])


def check_own_files(tasks: Sequence[tuple[TaskSpec, Collection[str], TaskFiles]]) -> None:
    """
    Check that no two tasks read the same labels, as where `dataset_dir` is the folder of a single task: one of them
    would have the examples of the other. (A table may hold a column of labels for each of several tasks.)

    Args:
        tasks: each with the splits that are read of it, and its files.

    Raises:
        `ValueError`: naming the tasks and the file, or if a task has no files, see [`tasks.sources.split_files`].
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
                raise ValueError(
                    f"`{argument}`: the tasks {other.full_name!r} and {task.full_name!r} would both have the examples "
                    f"of {file}. Give each its own: a `dataset_dir` with a folder for each, such as {other.name!r} "
                    f"and {task.name!r}."
                )


def options_of_loaders(
    tasks: Sequence[TaskSpec], options: Mapping[str, Any] | Any | None, **defaults: Any
) -> dict[str, dict[str, Any]]:
    """
    By the names of the tasks' loaders the options that each of them has.

    Args:
        tasks: whose loaders.
        options: each is an option of one loader or of several; or a dataclass of options.
        defaults: other options, which no loader needs to have.

    Raises:
        `ValueError`: if no loader has such an option, with near matches.
    """
    options = asdict(options) if is_dataclass(options) else dict(options or {})
    names = {task.loader: get_loader(task).option_names for task in tasks}
    known = list(dict.fromkeys(name for of_loader in names.values() for name in of_loader))
    for name in options:
        if name not in known:
            raise ValueError(
                f"`options`: there is no option `{name}` of {', '.join(f'the loader {loader!r}' for loader in names)}."
                f"{suggestion(name, known, 'options')}"
            )
    given = defaults | options
    return {loader: {name: given[name] for name in of_loader if name in given} for loader, of_loader in names.items()}
