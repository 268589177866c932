"""The collators of a trainer: those of objectives, also inside of a user's own, and that of evaluations."""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..data.data_collator import DataCollatorForDepth, DataCollatorForT5SpanCorruption

# The seed of the noise of evaluation, whatever that of training has: runs with different seeds are compared by it.
EVALUATION_SEED = 42
MAX_WRAPPERS = 2  # around the collator of an objective, one in the other


def objective_collator(data_collator: Callable[..., Any]) -> Callable[..., Any]:
    """
    The collator of an objective, also inside of a user's own; the user's own if there is none in it.

    >>> from hf_depth import DataCollatorForT5SpanCorruption, train_tokenizer
    >>> collator = DataCollatorForT5SpanCorruption(train_tokenizer(["It rains."], vocab_size=200, allow_fewer=True))
    >>> objective_collator(functools.partial(collator)) is collator
    True
    """
    return next(iter(objective_collators(data_collator)), data_collator)


def objective_collators(data_collator: Callable[..., Any]) -> list[Callable[..., Any]]:
    """
    All collators of objectives in that of a trainer: itself, or what it has in an attribute, or in a list, tuple or
    dict that is one, or what a [`functools.partial`] or a method belongs to.
    """
    collators, level = [], [data_collator]
    for _ in range(MAX_WRAPPERS + 1):
        collators += [one for one in level if _is_of_objective(one)]
        level = [part for one in level if not _is_of_objective(one) for part in _parts(one)]
    return collators


def objective_name(data_collator: Callable[..., Any]) -> str | None:
    """The `objective` of the collator, or `None` of one whose noise is the user's own, of which nothing is known."""
    collator = objective_collator(data_collator)
    ours = (DataCollatorForT5SpanCorruption._corrupt, DataCollatorForDepth._corrupt)
    return collator.objective if getattr(type(collator), "_corrupt", None) in ours else None


def metadata_collators(data_collator: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The collators that put the metadata of examples before their inputs, also a user's own that is around none."""
    collators = objective_collators(data_collator) or [data_collator]
    return [collator for collator in collators if hasattr(collator, "set_metadata_probability")]


def _is_of_objective(collator: Any) -> bool:
    return isinstance(collator, DataCollatorForT5SpanCorruption | DataCollatorForDepth)


def _parts(wrapper: Any) -> list[Any]:
    if isinstance(wrapper, functools.partial):
        return [wrapper.func, *wrapper.args, *wrapper.keywords.values()]
    if inspect.ismethod(wrapper):
        return [wrapper.__self__]
    held = list(getattr(wrapper, "__dict__", {}).values())
    inside = [
        part.values() if isinstance(part, dict) else part for part in held if isinstance(part, list | tuple | dict)
    ]
    return held + [one for part in inside for one in part if callable(one)]


def evaluation_collator(data_collator: Callable[..., Any]) -> Callable[..., Any]:
    """
    A copy that corrupts the same way in each evaluation and in every run, and puts no metadata before inputs.

    Args:
        data_collator (`Callable`): that of the training. One without noise is returned itself.
    """
    if not hasattr(objective_collator(data_collator), "set_epoch"):
        return data_collator
    try:
        data_collator = copy.deepcopy(data_collator)
    except TypeError as error:
        raise TypeError(
            f"`data_collator` cannot be copied, as evaluation with noise of its own needs it: {error}. Keep what "
            "cannot be copied outside of it."
        ) from error
    collators = objective_collators(data_collator)
    # An earlier trainer may have left it in a later epoch.
    for one in [data_collator] if hasattr(data_collator, "set_epoch") else collators:
        one.set_epoch(0)
    for collator in collators:
        collator.seed = EVALUATION_SEED
    for collator in metadata_collators(data_collator):
        collator.set_metadata_probability(0.0)
    return data_collator
