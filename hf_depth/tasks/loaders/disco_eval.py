"""
DiscoEval as it is published: tab-separated text, the pickles of RST, and the columns of its copy on the Hub.

Source: Chen, Chu and Gimpel (2019), "Evaluation Benchmarks and Learning Criteria for Discourse-Aware Sentence
Representations", arXiv 1909.00142; https://github.com/ZeweiChu/DiscoEval.
"""

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from datasets import Dataset, Features, Value, concatenate_datasets
from huggingface_hub import hf_hub_download

from ...data.files import find_files as all_files
from ...data.files import open_file
from ...suggestions import listed
from ..rows import INDEX, check_rows, read_class
from ..sources import TABLE_SUFFIXES, TaskFiles, file_argument, read_rows, read_tables, split_files, text_lines
from ..spec import UNLABELED, TaskSpec

SUFFIXES = (*TABLE_SUFFIXES, ".txt", ".pkl")

# Where the published files of a task are, by its `config_name`.
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

# The sentences of a row, in the copies on the Hub.
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
ORDINAL_COLUMNS = tuple(f"{ordinal}_sentence" for ordinal in _ORDINALS)


def load(
    spec: TaskSpec, files: TaskFiles, options: Any = None, *, is_pairs: bool = False, **_: Any
) -> dict[str, Dataset]:
    """
    Examples of a DiscoEval task, see [`tasks.loading.load_task`], from files of these kinds:

    - .txt: `label<TAB>sentence<TAB>…`, as published;
    - .pkl, or .json with the same structure: a list of `(label, sentences, sentences)`, as RST is published. Of a
      pickle, only lists, tuples, dictionaries, text and numbers are read: nothing in it is run;
    - tables with the columns `sentence_1`, …, or `first_sentence`, …, or others in the order of the sentences.

    Without files, the published ones are downloaded from the Hub one by one: its loading script is run by no present
    version of `datasets`.

    Args:
        spec: the task.
        files: to read.
        is_pairs: .txt files may hold two sentences in the right order and no label. Each line then gives two examples:
            as it stands (label 1), and swapped (label 0).
    """
    paths = find_files(spec, files)
    is_from_hub = not paths
    if is_from_hub:
        paths = _download(spec, files.cache_dir)
    splits = {}
    for split, names in paths.items():
        argument = file_argument(spec, split)
        found = all_files(argument, names)
        rows = [_read(argument, file, spec, is_pairs, files.cache_dir) for file in found]
        place = f"{spec.path}, split {split!r}" if is_from_hub else ", ".join(names)
        parts = [_columns_in_order(part, spec, place) for part in rows]
        # Each part numbers its rows by itself.
        joined = parts[0] if len(parts) == 1 else concatenate_datasets([part.remove_columns(INDEX) for part in parts])
        splits[split] = check_rows(joined, spec, place, split not in spec.test_splits, is_from_hub)
    return splits


def find_files(spec: TaskSpec, files: TaskFiles) -> dict[str, list[str]]:
    """The files of each split, see [`tasks.sources.split_files`]; a folder may be arranged as the published one is."""
    folder = FOLDERS.get(spec.config_name)
    # The original has RST for Python 2 and 3; its text is the same.
    folders = [f"{root}{folder}{end}" for root in ("", "data/") for end in ("/py3", "")] if folder else []
    return split_files(spec, files, SUFFIXES, folders)


load_pairs = partial(load, is_pairs=True)


def read_new(argument: str, names: Sequence[str], spec: TaskSpec, cache_dir: str | None = None) -> Dataset:
    """Examples of files of the same kinds, to be predicted: a line of a .txt file may lack the label."""
    texts = list(spec.text_column_name)
    parts = []
    for file in all_files(argument, names):
        part = _read(argument, file, spec, is_pairs=False, cache_dir=cache_dir, text_rows=new_text_rows)
        parts.append(_columns_in_order(part, spec, file).select_columns(texts))
    return concatenate_datasets(parts)


def complete_example(example: Mapping[str, Any], spec: TaskSpec, *_: Any) -> Mapping[str, Any]:
    """An example to be predicted whose columns are called `first_sentence`, …, with the names of the task."""
    names = dict(zip(spec.text_column_name, ORDINAL_COLUMNS, strict=False))
    if not all(name in example for name in names.values()):
        return example
    return {**{column: example[name] for column, name in names.items()}, **example}


def _read(
    argument: str, file: str, spec: TaskSpec, is_pairs: bool, cache_dir: str | None, text_rows: Callable | None = None
) -> Dataset:
    name = file.removesuffix(".gz").lower()
    rows: Callable | None = None
    if name.endswith(".txt"):
        rows = text_rows or (pair_rows if is_pairs else labeled_rows)
    elif name.endswith(".pkl"):
        rows = pickle_rows
    elif name.endswith(".json") and _holds_lists(file):
        rows = json_rows
    if rows is None:
        return read_tables(argument, [file], spec, cache_dir)
    columns = (*spec.text_column_name, spec.label_column_name)
    features = Features({column: Value("string") for column in columns})
    return read_rows(argument, rows, file, spec, cache_dir, features)


def labeled_rows(file: str, spec: TaskSpec) -> Iterator[dict[str, Any]]:
    """The rows of a published text file: `label<TAB>sentence<TAB>…`."""
    for number, line in text_lines(file):
        yield _row(spec, f"{file}, line {number}", *_label_and_texts(line.split("\t")))


def new_text_rows(file: str, spec: TaskSpec) -> Iterator[dict[str, Any]]:
    """The rows of a text file to predict: as published, or without the labels."""
    number_of_texts = len(spec.text_column_name)
    for number, line in text_lines(file):
        cells = line.split("\t")
        texts = cells[1:] if len(cells) == number_of_texts + 1 else cells
        yield _row(spec, f"{file}, line {number}", str(UNLABELED), texts)


def pair_rows(file: str, spec: TaskSpec) -> Iterator[dict[str, Any]]:
    """Two examples of each pair of sentences without a label, the right order first; of a line with a label, one."""
    for number, line in text_lines(file):
        place, cells = f"{file}, line {number}", line.split("\t")
        if len(cells) == len(spec.text_column_name):
            yield _row(spec, place, spec.labels[1], cells)
            yield _row(spec, place, spec.labels[0], cells[::-1])
        else:
            yield _row(spec, place, *_label_and_texts(cells))


def pickle_rows(file: str, spec: TaskSpec) -> Iterator[dict[str, Any]]:
    """The rows of a pickled list of `(label, texts, …)`."""
    with open_file(file) as content:
        try:
            data = _PlainUnpickler(content, encoding="utf-8").load()
        except Exception as error:  # a damaged pickle can raise anything
            raise ValueError(f"{file}: cannot be read as a pickle of plain data: {error}.") from error
    yield from _structured_rows(file, data, spec)


def json_rows(file: str, spec: TaskSpec) -> Iterator[dict[str, Any]]:
    """The rows of a JSON list of `[label, texts, …]`."""
    with open_file(file) as content:
        yield from _structured_rows(file, json.load(content), spec)


class _PlainUnpickler(pickle.Unpickler):
    """Lists, tuples, dictionaries, text, numbers and truth values; a pickle can name nothing that would be run."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(
            f"it asks for {module}.{name}, and loading that could run code. Only lists, tuples, dictionaries, text "
            "and numbers are read. If you trust the file, convert it to JSON: a list of [label, texts, texts]"
        )


def _holds_lists(file: str) -> bool:
    """Whether a JSON file is a list of lists."""
    with open_file(file) as content:
        return "".join(content.read(1000).decode("utf-8-sig", "replace").split()).startswith("[[")


def _structured_rows(file: str, data: Any, spec: TaskSpec) -> Iterator[dict[str, Any]]:
    if not isinstance(data, list | tuple):
        raise ValueError(f"{file}: expected a list of (label, texts, …), got {type(data).__name__}.")
    for number, row in enumerate(data):
        place = f"{file}, row {number} (the first is row 0)"
        if not isinstance(row, list | tuple) or not row:
            raise ValueError(f"{place}: expected (label, texts, …), got {row!r:.80}.")
        yield _row(spec, place, row[0], [_joined(text, place) for text in row[1:]])


def _joined(text: Any, place: str) -> str:
    """The text of a unit: one text, or the texts of its parts."""
    parts = [text] if isinstance(text, str) else text
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"{place}: expected a text or a list of texts, got {text!r:.80}.")
    return " ".join(part.strip() for part in parts)


def _label_and_texts(cells: list[str]) -> tuple[str, list[str]]:
    return cells[0], cells[1:]


def _row(spec: TaskSpec, place: str, label: Any, texts: list[str]) -> dict[str, Any]:
    columns = spec.text_column_name
    if len(texts) != len(columns):
        raise ValueError(
            f"{place}: expected a label and {len(columns)} texts for the task {spec.name!r}, got {len(texts) + 1} "
            f"parts, the first {str(label)!r:.80}."
        )
    texts = [text.strip() for text in texts]
    if "" in texts:
        raise ValueError(f"{place}: text {texts.index('') + 1} of {len(texts)} is empty.")
    if spec.is_classification:
        try:
            # As text, which means the same when `check_rows` reads it again; a number might be another class.
            label = spec.labels.get(read_class(spec, label), str(UNLABELED))
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
    return {**dict(zip(columns, texts, strict=True)), spec.label_column_name: str(label)}


def _columns_in_order(dataset: Dataset, spec: TaskSpec, place: str) -> Dataset:
    """Name the columns of the sentences as the task does, whatever they are called."""
    there = [name for name in dataset.column_names if name not in (spec.label_column_name, INDEX)]
    wanted = spec.text_column_name
    ordinals = ORDINAL_COLUMNS[: len(wanted)]
    if set(wanted) <= set(there):
        return dataset
    if set(ordinals) <= set(there):
        there = list(ordinals)
    elif len(there) != len(wanted):
        raise ValueError(
            f"{place}: the task {spec.name!r} needs {len(wanted)} columns with text, {listed(wanted)}, or "
            f"{listed(ordinals)}. There are: {listed(there)}."
        )
    return dataset.rename_columns(dict(zip(there, wanted, strict=True)))


def _download(spec: TaskSpec, cache_dir: str | None) -> dict[str, list[str]]:
    """Download the published files of a task from its data set on the Hub."""
    folder = FOLDERS.get(spec.config_name)
    if folder is None or not spec.path:
        raise ValueError(
            f"The task {spec.name!r}: `config_name` must be one of {listed(FOLDERS)}, and `path` a data set on the "
            f"Hub with their files, got {spec.config_name!r} and {spec.path!r}. Or give files: `train_file`, …"
        )
    names: Mapping[str, str] = dict(
        zip(
            (spec.train_split, *spec.validation_splits, *spec.test_splits),
            _PICKLED.get(spec.config_name, _TEXT_FILES),
            strict=True,
        )
    )
    try:
        return {
            split: [hf_hub_download(spec.path, f"data/{folder}/{name}", repo_type="dataset", cache_dir=cache_dir)]
            for split, name in names.items()
        }
    except Exception as error:  # no network, no such file, …
        raise ValueError(
            f"The files of the task {spec.name!r} cannot be loaded from {spec.path!r} on the Hub: {error} Without a "
            "network, download https://github.com/ZeweiChu/DiscoEval and name its folder `data` by `dataset_dir`."
        ) from error
