"""Linear layers that write their weights' gradients straight into the gradient image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft import _c10d


class DirectLinear(nn.Linear):
    """nn.Linear that writes its weight's gradient where weft reduces it, which saves one copy of the gradient.

    It is an nn.Linear unless the weight is one of weft.fully_shard, in float32, and a backward follows. Hooks on
    the weight see no gradient.
    """

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if _is_direct(x, weight):
            return _c10d.direct_linear(x, weight, self.bias, weight._weft_parameter.begin_gradient_write)
        return F.linear(x, weight, self.bias)


def _is_direct(x: Tensor, weight: Tensor) -> bool:
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    is_float32 = weight.dtype == x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return is_float32 and weight.requires_grad and hasattr(weight, "_weft_parameter")


def write_gradients_directly(model: nn.Module) -> nn.Module:
    """Turns each nn.Linear below `model` into a DirectLinear, in place. Subclasses of nn.Linear stay as they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = DirectLinear
    return model
