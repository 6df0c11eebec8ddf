"""Norm and clipping of the gradients of a sharded model."""

from __future__ import annotations

import math

import torch
from torch import nn

from weft.torch.sharding.api import FSDPModule, without_compiler
from weft.torch.sharding.root import Root


def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Scales the gradients of a sharded model so that their norm is at most `max_norm`, and returns their norm before.

    One reduction for all parameters; the norm has the same bits on every mesh. It is infinite if a gradient is infinite
    or NaN. torch.nn.utils.clip_grad_norm_ works too, with one reduction for each parameter, and then gives NaN for NaN.
    Parameters of ignored_params are not counted. A `max_norm` of 0 makes all finite gradients zero. `norm_type`: 1, 2 or inf.
    Collective.

    Errors: ValueError (a model that is not sharded, or not a root whose forward has run; norm_type; a max_norm that is negative or NaN),
    RuntimeError (gradients that are not reduced; a gradient with other placements than its parameter).
    """
    norm, factor = gradient_norm(model, max_norm, norm_type)
    if factor != 1.0:
        root = _root_of(model)
        local = [p.sharded.grad._local_tensor for p in root.parameters() if p.sharded.grad is not None]
        gradients = [gradient for gradient in local if gradient.numel()]
        if gradients:  # PyTorch takes no empty list; a rank may own nothing.
            with torch.no_grad():
                torch._foreach_mul_(gradients, factor)
    return norm


def gradient_norm(model: nn.Module, max_norm: float = math.inf, norm_type: float = 2.0) -> tuple[torch.Tensor, float]:
    """The norm of the gradients of a sharded model, and the factor that clips it to `max_norm`. Changes no gradient.

    `optimizer.step(gradient_scale=factor)` of weft.AdamW then clips while it updates, which saves a pass over the gradients. The
    update has the bits that it has after clip_grad_norm_. Otherwise as clip_grad_norm_.
    """
    root = _root_of(model)
    root.forget_stale_sums()
    found = [(parameter, parameter.external_gradient()) for parameter in root.parameters()]
    pieces = [(p, piece.to(p.group.dtype).contiguous()) for p, piece in found if piece is not None and piece.numel()]
    external = [(p.group.number, p.index, piece.data_ptr()) for p, piece in pieces]
    norm, factor = root.groups.clip_grad_norm(float(max_norm), float(norm_type), external)
    return torch.tensor(norm, dtype=root.norm_dtype), factor


def _root_of(model: nn.Module) -> Root:
    model = without_compiler(model)
    kind = type(model).__name__
    if not isinstance(model, FSDPModule):
        raise ValueError(
            f"model is a {kind}, but must be a model sharded by weft.fully_shard: give the model itself, not its parameters, or use "
            "torch.nn.utils.clip_grad_norm_"
        )
    root = model._weft_group.root
    if root is None:
        raise ValueError(f"model is a {kind} whose forward has not run: call this after a backward")
    if root.group is not model._weft_group:
        raise ValueError(f"model is a {kind} below the root of a sharded model: give the root, as the norm is that of all gradients")
    return root
