"""Refusal of DistributedDataParallel around sharded modules, which would fail in a broadcast of DTensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from weft.torch._replacement import replace_once
from weft.torch.sharding.group import owner_of


def _check_is_whole(module: nn.Module) -> None:
    """Raises ValueError if DistributedDataParallel would take a sharded parameter of the module."""
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    for name, param in module.named_parameters():
        owner = owner_of(param)
        if owner is not None and name not in ignored:
            raise ValueError(
                f"DistributedDataParallel got the parameter '{name}', which weft.fully_shard has sharded in '{owner}' and trains itself: leave "
                "DistributedDataParallel out. For replicas, give fully_shard a mesh (replicate, shard)"
            )


def _checked(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: DistributedDataParallel, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if isinstance(module, nn.Module):
            _check_is_whole(module)
        original(self, module, *args, **kwargs)

    return __init__


def refuse_ddp() -> None:
    """Makes DistributedDataParallel refuse modules with sharded parameters. Idempotent."""
    replace_once(DistributedDataParallel, "__init__", _checked)
