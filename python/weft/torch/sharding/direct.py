"""Linear layers and embeddings that write their weights' gradients straight into the gradient image."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from weft import _c10d
from weft.torch.sharding.api import FSDPModule, sharded_class


class DirectLinear(nn.Linear):
    """nn.Linear that writes its weight's gradient where weft reduces it, which saves one copy of the gradient.

    It is an nn.Linear unless the weight is one of weft.fully_shard, in float32, and a backward follows. Hooks on
    the weight see no gradient.
    """

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        if x.dtype == torch.float32 and _is_direct(weight):
            return _c10d.direct_linear(x, weight, self.bias, weight._weft_parameter.begin_gradient_write)
        return F.linear(x, weight, self.bias)


class DirectEmbedding(nn.Embedding):
    """nn.Embedding that writes its weight's gradient where weft reduces it. Otherwise as DirectLinear.

    It is an nn.Embedding also if it has one of the options padding_idx, max_norm, scale_grad_by_freq and sparse.
    """

    def forward(self, tokens: Tensor) -> Tensor:
        has_options = self.padding_idx is not None or self.max_norm is not None or self.scale_grad_by_freq or self.sparse
        if has_options or not _is_direct(self.weight):
            return super().forward(tokens)
        return _DirectEmbedding.apply(tokens, self.weight)


class _DirectEmbedding(torch.autograd.Function):
    """F.embedding. Its backward runs only for the weight's gradient, of which autograd sees nothing."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.parameter = weight._weft_parameter
        return F.embedding(tokens, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        (tokens,) = ctx.saved_tensors
        place, accumulates = ctx.parameter.begin_gradient_write()
        if accumulates:  # Rows of a token add up before they are added, as autograd does it.
            place.add_(torch.ops.aten.embedding_dense_backward(gradient, tokens, place.size(0), -1, False))
        else:
            place.zero_().index_add_(0, tokens.flatten(), gradient.reshape(-1, place.size(1)))
        return None, None


def _is_direct(weight: Tensor) -> bool:
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    is_float32 = weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return is_float32 and weight.requires_grad and hasattr(weight, "_weft_parameter")


_DIRECT = {nn.Linear: DirectLinear, nn.Embedding: DirectEmbedding}


def write_gradients_directly(model: nn.Module) -> nn.Module:
    """Turns each nn.Linear and nn.Embedding below `model` into a DirectLinear or DirectEmbedding, in place.

    Subclasses of these two stay as they are.
    """
    for module in model.modules():
        is_sharded = isinstance(module, FSDPModule)
        direct = _DIRECT.get(type(module).__mro__[2] if is_sharded else type(module))
        if direct is not None:
            module.__class__ = sharded_class(direct) if is_sharded else direct
    return model
