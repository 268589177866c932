"""
What operators of our own need to know of torch.

Imports only torch: the Hub ships it with the model's code.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import flop_registry, register_flop_formula


def operator_name(name: str, module_name: str) -> str:
    """
    The name of a custom operator of torch, `hf_depth::<name>` with the module that defines it. A Hub repository has a
    copy of these files: both may be loaded in one process, and torch allows no name twice.

    >>> operator_name("attend", "hf_depth.models.sdpa_depth")
    'hf_depth::attend_hf_depth_models_sdpa_depth'
    """
    return f"hf_depth::{name}_" + "".join(letter if letter.isalnum() else "_" for letter in module_name)


def counts_flops(name: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """
    Decorates what tells `torch.utils.flop_counter.FlopCounterMode` how many operations a custom operator takes.

    Args:
        name (`str`): of the operator, of [`operator_name`]. The function gets its arguments, of tensors their shapes,
            and `out_shape`.
    """
    operator = getattr(torch.ops.hf_depth, name.removeprefix("hf_depth::"))
    flop_registry.pop(operator, None)  # a file of the Hub that has changed is run again
    return register_flop_formula(operator)


def attention_flops(query: torch.Size, key: torch.Size, *others: Any, products: int = 2, **kwargs: Any) -> int:
    """
    Operations of attention, of all pairs of queries and keys, as in torch's own formulas.

    Args:
        query (`torch.Size`): `(batch_size, heads, queries, head_size)`.
        key (`torch.Size`): `(batch_size, heads, keys, head_size)`.
        others, kwargs: what else an operator gets.
        products (`int`, *optional*, defaults to 2): of matrices: the scores, and the output.
    """
    batch_size, heads, queries, head_size = query
    return products * 2 * batch_size * heads * queries * key[2] * head_size


def attention_gradient_flops(gradient: torch.Size, query: torch.Size, key: torch.Size, *others: Any, **kwargs) -> int:
    """The same of its backward pass, which computes the scores again: five products."""
    return attention_flops(query, key, products=5)


def is_transformed() -> bool:
    """
    Whether this runs within `torch.func.grad`, `vmap` and so on, or within forward-mode differentiation, which know
    torch's own operations alone.
    """
    # Torch has no public functions for it, and compilation does not know these.
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_traced(tensor: torch.Tensor) -> bool:
    """Whether a graph is made of what happens to it. Before 2.13, torch traces a backward pass without saying so."""
    return torch.compiler.is_compiling() or type(tensor) is not torch.Tensor
