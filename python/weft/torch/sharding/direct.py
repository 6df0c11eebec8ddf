"""Linear layers that write their weights' gradients straight into the gradient image."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _DirectLinear(torch.autograd.Function):
    """Linear layer whose weight's gradient does not pass through autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parameter = weight._weft_parameter
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        view, accumulates = ctx.parameter.begin_gradient_write()
        if accumulates:
            view.addmm_(rows.t(), x.reshape(-1, x.shape[-1]))
        else:
            torch.mm(rows.t(), x.reshape(-1, x.shape[-1]), out=view)
        to_x = gradient.matmul(weight) if ctx.needs_input_grad[0] else None
        return to_x, None, rows.sum(0) if ctx.needs_input_grad[2] else None


class DirectLinear(nn.Linear):
    """nn.Linear that writes its weight's gradient where weft reduces it, which saves one copy of the gradient.

    It is an nn.Linear unless the weight is one of weft.fully_shard, in float32, and a backward follows. Hooks on
    the weight see no gradient.
    """

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        is_direct = hasattr(weight, "_weft_parameter") and weight.requires_grad and torch.is_grad_enabled()
        if is_direct and weight.dtype == x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu"):
            return _DirectLinear.apply(x, weight, self.bias)
        return F.linear(x, weight, self.bias)


def write_gradients_directly(model: nn.Module) -> nn.Module:
    """Turns each nn.Linear below `model` into a DirectLinear, in place. Subclasses of nn.Linear stay as they are."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = DirectLinear
    return model
