"""
The key/value cache as an argument. Transformers calls it `cache` from 5.24 on and `past_key_values` before, in
arguments and outputs of models and in `generate()`.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from transformers import Cache
from transformers.models.t5.modeling_t5 import T5Attention

_OLD_NAME = "past_key_values"
# What the installed transformers calls it, for what is passed on to its classes and for what they return.
CACHE = "cache" if "cache" in inspect.signature(T5Attention.forward).parameters else _OLD_NAME


def takes_cache(forward: Callable[..., Any]) -> Callable[..., Any]:
    """
    Let a method with an argument `cache` take it by either name, whatever transformers is installed. Its signature,
    which `generate()` looks at, has the name of the installed one.

    Args:
        forward (`Callable`): a method with an argument `cache`.

    Returns:
        `Callable`: raises `ValueError` if both names have a value, and `TypeError` if a cache comes by a third one.
    """

    @functools.wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if _OLD_NAME in kwargs:
            cache = kwargs.pop(_OLD_NAME)
            if cache is not None and kwargs.get("cache") is not None:
                raise ValueError(
                    f"`cache` and `{_OLD_NAME}` are two names of one argument: pass one of them. (Prefix tuning of a "
                    "PEFT that does not know transformers 5.24 passes the old one beside that of `generate()`.)"
                )
            kwargs["cache"] = cache if kwargs.get("cache") is None else kwargs["cache"]
        for name, value in kwargs.items():
            if name != "cache" and isinstance(value, Cache):  # masks would be made as if nothing was cached
                raise TypeError(
                    f"`{name}` is a cache, but no argument of {forward.__qualname__}: pass it as `cache`. If it comes "
                    "from `generate()` of a newer transformers, this hf_depth does not know that one: update it."
                )
        return forward(*args, **kwargs)

    signature = inspect.signature(forward)
    parameters = signature.parameters.values()
    parameters = [p.replace(name=CACHE) if p.name == "cache" else p for p in parameters]
    wrapped.__signature__ = signature.replace(parameters=parameters)
    return wrapped
