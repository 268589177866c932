"""What the reference consists of: the flags of the scripts, the public names and the modules of the package."""

import dataclasses
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import hf_depth
from hf_depth.arguments.parser import full_classes

ROOT = Path(__file__).resolve().parents[2]


def dataclasses_of(source: str) -> tuple[type, ...]:
    """The dataclasses that a script, named by its path, reads its arguments into."""
    path = ROOT / source
    specification = importlib.util.spec_from_file_location(path.stem, path)
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    return full_classes(script.ARGUMENTS)


def flags(kind: type) -> Iterator[tuple[str, str, str]]:
    """Flag, default and help of each field of a dataclass of arguments."""
    groups = getattr(kind, "option_groups", {})
    flag_of = {name: f"--{group}.{name}" for group, names in groups.items() for name in names}
    for field in dataclasses.fields(kind):
        if field.init:
            # argparse wants the percent signs of transformers' texts twice.
            text = " ".join(field.metadata.get("help", "").replace("%%", "%").split())
            yield flag_of.get(field.name, f"--{field.name}"), _default(field), text


def _default(field: dataclasses.Field) -> str:
    """The default of a flag as one would write it; nothing for `None`."""
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value is None or value is dataclasses.MISSING:
        return ""
    value = getattr(value, "value", value)  # of an enumeration
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def modules(package: str) -> list[str]:
    """The modules of a part of the package, by their full names."""
    path = importlib.import_module(package).__path__
    return [module.name for module in pkgutil.walk_packages(path, f"{package}.") if not module.ispkg]


def home(name: str) -> str:
    """The module that defines a public name."""
    thing = getattr(hf_depth, name)
    if isinstance(thing, type) or callable(thing):
        return thing.__module__
    return next(
        module for module in modules("hf_depth") if name in inspect.get_annotations(importlib.import_module(module))
    )


def public_names(package: str) -> list[str]:
    """The names of `hf_depth.__all__` that are defined in a part of the package."""
    return [name for name in hf_depth.__all__ if home(name).startswith(f"{package}.")]
