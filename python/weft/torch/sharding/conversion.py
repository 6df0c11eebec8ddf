"""Conversions of sharded modules and of their parts, such as Module.to: modules keep parameters that weft gathers and trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from weft.torch._replacement import replace_once
from weft.torch.sharding.arguments import managed_modules
from weft.torch.sharding.group import Group, all_groups, group_of_part

Conversion = Callable[[torch.Tensor], torch.Tensor]


def convert(module: nn.Module, group: Group, conversion: Conversion, apply: Callable[[], nn.Module]) -> nn.Module:
    """Runs `apply`, which converts the parameters of `module`, one of the group's or a part of it, and takes those that it has then.

    Errors: those of Group.check_conversion, for the groups below `module`, too. Then nothing is converted.
    """
    below = (inner.__dict__.get("_weft_group") for inner in module.modules())
    for other in dict.fromkeys([group, *(inner for inner in below if inner is not None)]):
        other.check_conversion(conversion)
    if group.is_initialized:
        group.root.prepare_writes()
    group.reshard()
    group.is_converting = True
    try:
        applied = apply()
    finally:
        group.is_converting = False
    group.adopt_registered()
    return applied


def _extended(original: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def _apply(self: nn.Module, fn: Conversion, *args: Any, **kwargs: Any) -> nn.Module:
        group = _group_of(self) if all_groups() else None
        if group is None or group.is_converting:
            return original(self, fn, *args, **kwargs)
        return convert(self, group, fn, lambda: original(self, fn, *args, **kwargs))

    return _apply


def _group_of(module: nn.Module) -> Group | None:
    """The group that has the parameters of `module`, but for those of sharded modules inside."""
    groups = (group_of_part(part) for part in managed_modules((module,)))
    return next((group for group in groups if group is not None), None)


def extend_conversions() -> None:
    """Makes conversions of parts of sharded modules keep the parameters that weft trains. Idempotent."""
    replace_once(nn.Module, "_apply", _extended)
