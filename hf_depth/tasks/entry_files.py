"""Task entries from a YAML file, each with the lines where its fields stand."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..suggestions import quotes_advice
from ..yaml_files import UniqueKeyLoader

CUSTOM_BENCHMARK = "custom"  # of tasks whose file names no other

EXAMPLE = """name: sentiment
text_column_name: review
prefix: "sentiment review:"
labels: [negative, positive]"""


@dataclass
class TaskEntry:
    """An entry of a file: its fields, and the line of each (of the entry itself: `""`)."""

    fields: dict[str, Any]
    lines: dict[str, int]


def read_task_file(path: str | os.PathLike) -> list[TaskEntry]:
    """
    Read the entries of a task file: one task, a list of tasks, or `benchmark: {task: entry}` as in `DATASET_VALS`.

    Raises:
        `ValueError`: naming the file and the line, if it is no such YAML, or if it is a folder or a pipe.
        `FileNotFoundError`: if there is no such file.
    """
    path = Path(path)
    if not path.is_file():
        if path.exists():
            raise ValueError(f"`task_file`: {path} is no file, but a folder, a pipe or a device. Name a YAML file.")
        raise FileNotFoundError(f"`task_file`: there is no file {str(path)!r}.")
    loader = None
    try:
        loader = UniqueKeyLoader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        entries = list(_entries(loader, node, path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}.") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}{f', line {mark.line + 1}' if mark else ''}"
        raise ValueError(f"{place}: {error.problem}{quotes_advice(error.problem)}.") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {error}") from error
    finally:
        if loader is not None:
            loader.dispose()
    if not entries:
        raise ValueError(f"{path}: it holds no task. A task is, for example:\n{EXAMPLE}")
    return entries


def _entries(loader: UniqueKeyLoader, node: yaml.Node | None, path: Path) -> Iterator[TaskEntry]:
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield _entry(loader, item, path)
    elif isinstance(node, yaml.MappingNode):
        # Entries of entries, and no field of one task: a registry as in `DATASET_VALS`.
        if all(isinstance(value, yaml.MappingNode) and key.value != "labels" for key, value in node.value):
            for benchmark, tasks in node.value:
                for name, entry in tasks.value:
                    yield _entry(loader, entry, path, {"benchmark": benchmark.value, "name": name.value})
        else:
            yield _entry(loader, node, path)
    elif node is not None:
        raise ValueError(f"{path}, line {node.start_mark.line + 1}: expected a task, such as:\n{EXAMPLE}")


def _entry(loader: UniqueKeyLoader, node: yaml.Node, path: Path, keys: Mapping[str, str] | None = None) -> TaskEntry:
    if not isinstance(node, yaml.MappingNode):
        raise ValueError(f"{path}, line {node.start_mark.line + 1}: expected a task, such as:\n{EXAMPLE}")
    lines = {"": node.start_mark.line + 1}
    lines |= {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
    fields = {str(key): value for key, value in loader.construct_object(node, deep=True).items()}
    return TaskEntry(({"benchmark": CUSTOM_BENCHMARK} | dict(keys or {})) | fields, lines)
