"""Tensors in the arguments and results of modules: in tuples, lists, dicts, types that torch.utils._pytree knows, and dataclasses."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The tree with `function` of each tensor, in a fixed order."""
    if isinstance(tree, Tensor):
        return function(tree)
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    if type(tree) in (tuple, list):  # The common containers, without the cost of a general tree.
        return type(tree)([map_tensors(function, item) for item in tree])
    if type(tree) is dict:
        return {key: map_tensors(function, value) for key, value in tree.items()}
    leaves, structure = tree_flatten(tree)
    if not structure.is_leaf():
        return tree_unflatten([map_tensors(function, leaf) for leaf in leaves], structure)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return _map_fields(function, tree)
    return tree


def _map_fields(function: Callable[[Tensor], Tensor], instance: Any) -> Any:
    """A copy of a dataclass, made without a call of its __init__, which may take other arguments than fields."""
    changed = copy.copy(instance)
    for field in dataclasses.fields(instance):
        if not hasattr(instance, field.name):
            continue
        value = map_tensors(function, getattr(instance, field.name))
        try:
            setattr(changed, field.name, value)
        except dataclasses.FrozenInstanceError:
            object.__setattr__(changed, field.name, value)
    return changed


def trained_tensors(tree: Any) -> list[Tensor]:
    """The tensors that require a gradient, in the order of map_tensors."""
    found: list[Tensor] = []

    def visit(tensor: Tensor) -> Tensor:
        if tensor.requires_grad:
            found.append(tensor)
        return tensor

    map_tensors(visit, tree)
    return found


def replace_trained_tensors(tree: Any, replacements: Iterable[Tensor]) -> Any:
    """The tree with `replacements` in place of its trained_tensors."""
    remaining = iter(replacements)
    return map_tensors(lambda tensor: next(remaining) if tensor.requires_grad else tensor, tree)
