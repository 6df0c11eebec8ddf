"""zero_grad of modules, which clears the gradients of shards, too."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from weft.torch._replacement import replace_once


def clear_shards(module: nn.Module, set_to_none: bool = True) -> None:
    """Clears the gradients of the shards whose unsharded parameters are registered: these have none of their own."""
    for param in module.parameters():
        if hasattr(param, "_weft_parameter"):
            param._weft_parameter.clear_gradient(set_to_none)


def _extended(original: Callable[..., None]) -> Callable[..., None]:
    def zero_grad(self: nn.Module, set_to_none: bool = True) -> None:
        original(self, set_to_none)
        clear_shards(self, set_to_none)

    return zero_grad


def extend_zero_grad() -> None:
    """Makes nn.Module.zero_grad clear the gradients of shards, too. Idempotent.

    A module around the root, such as that of torch.compile, and a part of a sharded module have the zero_grad of nn.Module.
    """
    replace_once(nn.Module, "zero_grad", _extended)
