"""
[`load_task`]: the examples of a task, split by split, wherever they come from.

A task that no loader can read gets one of its own: a file in `tasks/loaders/` with a function and, if it takes
options, a dataclass of them, and an entry in `LOADERS`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from datasets import Dataset

from ..suggestions import suggestion
from .loaders import disco_eval, discourse, natural_instructions, python_modules, table
from .preprocessing import INSTANCE_COLUMN
from .registry import get_task
from .rows import check_splits
from .sources import TaskFiles, collect_files, read_tables, split_files
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
        reads_documents (`bool`, *optional*, defaults to `False`):
            Whether files hold documents, from which several tasks can be made, instead of the examples of one task.
        find_files (`Callable`, *optional*):
            The files that `load` reads for each split, called as `find_files(spec, files)`, where no two tasks may
            share them.
        read_new (`Callable`, *optional*, defaults to `read_tables`):
            Reads files of new examples, called as `read_new(argument, names, spec, cache_dir)`.
        complete (`Callable`, *optional*):
            Gives a new example the text columns that it lacks, called as `complete(example, spec, options, length)`.
        completed_from (`tuple[str, ...]`, *optional*): the other columns that it reads.
    """

    load: Callable[..., dict[str, Dataset]]
    options: type = NoOptions
    counts_tokens: bool = False
    reads_documents: bool = False
    find_files: Callable[..., Mapping[str, Sequence[str]]] | None = None
    read_new: Callable[..., Dataset] = read_tables
    complete: Callable[..., Mapping[str, Any]] | None = None
    completed_from: tuple[str, ...] = ()

    @property
    def option_names(self) -> list[str]:
        return [item.name for item in fields(self.options)]


_DISCO_EVAL: dict[str, Any] = {
    "find_files": disco_eval.find_files,
    "read_new": disco_eval.read_new,
    "complete": disco_eval.complete_example,
    "completed_from": disco_eval.ORDINAL_COLUMNS,
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
        completed_from=("input", INSTANCE_COLUMN, *natural_instructions.TASK_FIELDS),
    ),
    "discourse": Loader(discourse.load, discourse.DiscourseOptions, reads_documents=True),
    "python_modules": Loader(python_modules.load, python_modules.PythonModulesOptions),
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
    others = ("files", "options", "split_seed", "length")
    files = collect_files(files, file_arguments, others)
    loader = get_loader(spec)
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
    loader = get_loader(spec)
    if is_dataclass(options):
        if not isinstance(options, loader.options):
            raise ValueError(
                f"Task {spec.name!r}: the options of its loader {spec.loader!r} are `{loader.options.__name__}`, got "
                f"`{type(options).__name__}`."
            )
        return options
    for name in options or {}:
        if name not in loader.option_names:
            raise ValueError(
                f"Task {spec.name!r}: its loader {spec.loader!r} has no option `{name}`."
                f"{suggestion(name, loader.option_names, 'options')}"
            )
    return loader.options(**(options or {}))
