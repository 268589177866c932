"""
The loader of DiscoEval. It reads the published tab-separated text, the pickles of RST, and tables.

Source: Chen, Chu and Gimpel (2019), "Evaluation Benchmarks and Learning Criteria for Discourse-Aware Sentence
Representations", arXiv 1909.00142; https://github.com/ZeweiChu/DiscoEval.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from datasets import Dataset, Features, Value, concatenate_datasets
from huggingface_hub import hf_hub_download

from ...data.files import file_version, is_local, open_file, suffix_of
from ...data.files import find_files as all_files
from ...errors import UserError
from ...suggestions import listed
from ..rows import INDEX, ROWS_VERSION, check_rows
from ..sources import TABLE_SUFFIXES, TaskFiles, file_argument, keep_rows, read_tables, split_files
from ..spec import UNLABELED, TaskSpec

SUFFIXES = (*TABLE_SUFFIXES, ".txt", ".pkl")

# The folder of a task's published files, by its `config_name`.
FOLDERS = {
    "SSPabs": "SSP/abs",
    "SParxiv": "SP/arxiv",
    "SProcstory": "SP/rocstory",
    "SPwiki": "SP/wiki",
    "BSOarxiv": "BSO/arxiv",
    "BSOrocstory": "BSO/rocstory",
    "BSOwiki": "BSO/wiki",
    "DCchat": "DC/chat",
    "DCwiki": "DC/wiki",
    "PDTB-E": "PDTB/Explicit",
    "PDTB-I": "PDTB/Implicit",
    "RST": "RST",
}
_PICKLED = {"RST": ("RST_TRAIN.pkl", "RST_DEV.pkl", "RST_TEST.pkl")}
_TEXT_FILES = ("train.txt", "valid.txt", "test.txt")

# The columns of the sentences in the copies on the Hub.
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
ORDINAL_COLUMNS = tuple(f"{ordinal}_sentence" for ordinal in _ORDINALS)


Rows = Callable[[str, TaskSpec], Iterator[dict[str, Any]]]  # yields the rows of a file


def _lines(file: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the cells of each line that is not blank. Only line feeds end a line."""
    with open_file(file) as content:
        for number, line in enumerate(content, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(f"{file}, line {number}, is not UTF-8 text: {error.reason}.") from error
            if text.strip():
                yield f"{file}, line {number}", text.split("\t")


def labeled_rows(file: str, spec: TaskSpec) -> Iterator[dict[str, Any]]:
    """Yield the rows of a published text file: `label<TAB>sentence<TAB>…`."""
    for place, (label, *texts) in _lines(file):
        yield _row(spec, place, label, texts)


def new_text_rows(file: str, spec: TaskSpec) -> Iterator[dict[str, Any]]:
    """Yield the rows of a text file to predict, with or without labels."""
    for place, cells in _lines(file):
        yield _row(spec, place, UNLABELED, cells[len(cells) == len(spec.text_column_name) + 1 :])


def pair_rows(file: str, spec: TaskSpec) -> Iterator[dict[str, Any]]:
    """Yield two examples for a pair of sentences without a label, in both orders; one for a line with a label."""
    for place, cells in _lines(file):
        if len(cells) == len(spec.text_column_name):
            yield _row(spec, place, spec.labels[1], cells)
            yield _row(spec, place, spec.labels[0], cells[::-1])
        else:
            yield _row(spec, place, cells[0], cells[1:])


def load(
    spec: TaskSpec, files: TaskFiles, options: Any = None, *, text_rows: Rows = labeled_rows, **_: Any
) -> dict[str, Dataset]:
    """
    Return the examples of a DiscoEval task, see [`tasks.loading.load_task`], from files of these kinds:

    - .txt: `label<TAB>sentence<TAB>…`, as published;
    - .pkl: a list of `(label, sentences, sentences)`, as RST is published. Only plain data is read, and no code in a
      pickle runs;
    - tables with the columns `sentence_1`, …, or `first_sentence`, …, or others in the order of the sentences.

    Without files, the published ones are downloaded from the Hub.

    Args:
        spec: the task.
        files: the files to read.
        text_rows: yields the rows of a .txt file.
    """
    paths = find_files(spec, files)
    is_from_hub = not paths
    if is_from_hub:
        paths = _download(spec, files.cache_dir)
    splits = {}
    for split, names in paths.items():
        rows = _read(file_argument(spec, split), names, spec, text_rows, files.cache_dir)
        place = f"{spec.path}, split {split!r}" if is_from_hub else ", ".join(names)
        splits[split] = check_rows(rows, spec, place, split not in spec.test_splits, is_from_hub)
    return splits


# For tasks that predict the order of two sentences: .txt files may hold pairs in the right order, without labels.
load_pairs = partial(load, text_rows=pair_rows)


def find_files(spec: TaskSpec, files: TaskFiles) -> dict[str, list[str]]:
    """Return the files of each split, see [`tasks.sources.split_files`]. The published folders are known."""
    folder = FOLDERS.get(spec.config_name)
    # RST is published for Python 2 and 3, with the same text.
    folders = [f"{root}{folder}{end}" for root in ("", "data/") for end in ("/py3", "")] if folder else []
    return split_files(spec, files, SUFFIXES, folders)


def read_new(argument: str, names: Sequence[str], spec: TaskSpec, cache_dir: str | None = None) -> Dataset:
    """Return the examples of files to predict. A line of a .txt file may lack the label."""
    return _read(argument, names, spec, new_text_rows, cache_dir).select_columns(list(spec.text_column_name))


def complete_example(example: Mapping[str, Any], spec: TaskSpec, *_: Any) -> Mapping[str, Any]:
    """Add the text columns of the task to a new example with the columns `first_sentence`, …"""
    names = dict(zip(spec.text_column_name, ORDINAL_COLUMNS, strict=False))
    if not all(name in example for name in names.values()):
        return example
    return {**{column: example[name] for column, name in names.items()}, **example}


def _read(argument: str, names: Sequence[str], spec: TaskSpec, text_rows: Rows, cache_dir: str | None) -> Dataset:
    """Return the rows of files, with the columns of the task."""
    parts = []
    for file in all_files(argument, names):
        rows = {".txt": text_rows, ".pkl": pickle_rows}.get(suffix_of(file))
        part = _kept(argument, rows, file, spec, cache_dir) if rows else read_tables(argument, [file], spec, cache_dir)
        parts.append(_columns_in_order(part, spec, file))
    if len(parts) == 1:
        return parts[0]
    # Each file numbers its own rows, so these numbers repeat.
    columns = [name for name in parts[0].column_names if name != INDEX]
    return concatenate_datasets([part.select_columns(columns) for part in parts])


def _kept(argument: str, rows: Rows, file: str, spec: TaskSpec, cache_dir: str | None) -> Dataset:
    if not is_local(file):
        raise UserError(f"`{argument}`: {file} is an address. Download the file, and name it here.")
    features = Features(dict.fromkeys((*spec.text_column_name, spec.label_column_name), Value("string")))
    arguments = {"rows": rows, "file": file, "spec": spec, "version": (ROWS_VERSION, *file_version(file))}
    try:
        return keep_rows(_generate, arguments, features, cache_dir)
    except ValueError as error:
        raise UserError(f"`{argument}`: {error}") from error


def _generate(rows: Rows, file: str, spec: TaskSpec, version: tuple) -> Iterator[dict[str, Any]]:
    row = None
    for row in rows(file, spec):
        yield row
    if row is None:
        raise UserError(f"{file} has no rows.")


def pickle_rows(file: str, spec: TaskSpec) -> Iterator[dict[str, Any]]:
    """Yield the rows of a pickled list of `(label, texts, …)`."""
    with open_file(file) as content:
        try:
            data = _PlainUnpickler(content, encoding="utf-8").load()
        except Exception as error:  # a damaged pickle can raise anything
            raise UserError(f"{file}: cannot be read as a pickle of plain data: {error}.") from error
    if not isinstance(data, list | tuple):
        raise UserError(f"{file}: expected a list of (label, texts, …), got {type(data).__name__}.")
    for number, row in enumerate(data):
        place = f"{file}, row {number} (the first is row 0)"
        if not isinstance(row, list | tuple) or not row:
            raise UserError(f"{place}: expected (label, texts, …), got {row!r:.80}.")
        yield _row(spec, place, row[0], [_joined(text, place) for text in row[1:]])


class _PlainUnpickler(pickle.Unpickler):
    """Reads pickles of lists, tuples, dictionaries, text and numbers. Raises if a pickle names code to run."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(
            f"it asks for {module}.{name}, and loading that could run code. Only lists, tuples, dictionaries, text "
            "and numbers are read. If you trust the file, convert it to a table with the columns of the task"
        )


def _joined(text: Any, place: str) -> str:
    """Return a text, or the parts of a text joined."""
    parts = [text] if isinstance(text, str) else text
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise UserError(f"{place}: expected a text or a list of texts, got {text!r:.80}.")
    return " ".join(part.strip() for part in parts)


def _row(spec: TaskSpec, place: str, label: Any, texts: list[str]) -> dict[str, Any]:
    """Return a row with the columns of the task. The label stays as it is in the file; `check_rows` reads it."""
    columns = spec.text_column_name
    if len(texts) != len(columns):
        raise UserError(
            f"{place}: expected a label and {len(columns)} texts for the task {spec.name!r}, got {len(texts) + 1} "
            f"parts, the first {str(label)!r:.80}."
        )
    texts = [text.strip() for text in texts]
    if "" in texts:
        raise UserError(f"{place}: text {texts.index('') + 1} of {len(texts)} is empty.")
    return {**dict(zip(columns, texts, strict=True)), spec.label_column_name: str(label)}


def _columns_in_order(dataset: Dataset, spec: TaskSpec, place: str) -> Dataset:
    """Rename the columns of the sentences as the task names them."""
    there = [name for name in dataset.column_names if name not in (spec.label_column_name, INDEX)]
    wanted = spec.text_column_name
    ordinals = ORDINAL_COLUMNS[: len(wanted)]
    if set(wanted) <= set(there):
        return dataset
    if set(ordinals) <= set(there):
        there = list(ordinals)
    elif len(there) != len(wanted):
        raise UserError(
            f"{place}: the task {spec.name!r} needs {len(wanted)} columns with text, {listed(wanted)}, or "
            f"{listed(ordinals)}. There are: {listed(there)}."
        )
    return dataset.rename_columns(dict(zip(there, wanted, strict=True)))


def _download(spec: TaskSpec, cache_dir: str | None) -> dict[str, list[str]]:
    """Download the published files of a task from its data set on the Hub."""
    folder = FOLDERS.get(spec.config_name)
    if folder is None or not spec.path:
        raise UserError(
            f"The task {spec.name!r}: `config_name` must be one of {listed(FOLDERS)}, and `path` a data set on the "
            f"Hub with their files, got {spec.config_name!r} and {spec.path!r}. Or give files: `train_file`, …"
        )
    names = dict(zip(spec.splits, _PICKLED.get(spec.config_name, _TEXT_FILES), strict=True))
    try:
        return {
            split: [hf_hub_download(spec.path, f"data/{folder}/{name}", repo_type="dataset", cache_dir=cache_dir)]
            for split, name in names.items()
        }
    except Exception as error:  # no network, no such file, …
        raise UserError(
            f"The files of the task {spec.name!r} cannot be loaded from {spec.path!r} on the Hub: {error} Without a "
            "network, download https://github.com/ZeweiChu/DiscoEval and name its folder `data` by `dataset_dir`."
        ) from error
