"""What a call of fully_shard takes: modules, and parameters that can be sharded. Each error names what it refuses, and the remedy."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

_MASTER_DTYPES = (torch.float32, torch.float64)


def managed_modules(modules: tuple[nn.Module, ...]) -> list[nn.Module]:
    """The modules and all below them, once each, without those that an earlier fully_shard has. TypeError for another
    object."""
    for module in modules:
        if not isinstance(module, nn.Module):
            raise TypeError(f"fully_shard takes modules, not a {type(module).__name__}: give an nn.Module, or a list of them")
    found: dict[nn.Module, None] = {}

    def visit(module: nn.Module) -> None:
        if module in found or (module not in modules and hasattr(module, "_weft_group")):
            return
        found[module] = None
        for child in module.children():
            visit(child)

    for module in modules:
        visit(module)
    return list(found)


def check_module(module: nn.Module, paths: dict[int, str], ignored: set[int]) -> None:
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None and id(module.weight) not in ignored:
        raise ValueError(
            f"the {type(module).__name__} of '{paths.get(id(module.weight), 'weight')}' has max_norm={module.max_norm}, so each "
            "forward would change its weight, which the ranks of a node share: set max_norm=None and normalize the rows after optimizer.step(), or list the weight in ignored_params"
        )


def check_parameter(param: nn.Parameter, name: str, group: str, owner: str | None) -> None:
    """`owner`: the group that has the parameter already, if `param` is one of its sharded or unsharded forms."""
    if owner is not None:
        raise ValueError(
            f"parameter '{name}' of '{group}' belongs to '{owner}', which is sharded already: call fully_shard for inner modules before "
            "the modules around them"
        )
    earlier = getattr(param, "_weft_sharded_by", None)
    if earlier is not None:
        raise ValueError(
            f"parameter '{name}' of '{group}' is shared with '{earlier}', which is sharded already: "
            "give the modules that share a parameter to one fully_shard([a, b]), or leave both to the root"
        )
    if isinstance(param, DTensor):
        raise ValueError(
            f"parameter '{name}' of '{group}' is a DTensor already: weft.fully_shard cannot be combined with "
            "tensor parallelism or torch's fully_shard; use one of them"
        )
    if param._backward_hooks or param._post_accumulate_grad_hooks:
        raise ValueError(
            f"parameter '{name}' of '{group}' has a gradient hook, which would see no gradient of its shards: remove it, and after fully_shard "
            "call register_post_accumulate_grad_hook on the sharded parameter"
        )
    check_dtype(param.dtype, name, group)
    if param.device.type not in ("cpu", "meta"):
        raise ValueError(f"parameter '{name}' of '{group}' is on {param.device}, but weft shards over CPUs: move the model with model.to('cpu')")


def check_dtype(dtype: torch.dtype, name: str, group: str) -> None:
    if dtype not in _MASTER_DTYPES:
        raise ValueError(
            f"parameter '{name}' of '{group}' is {dtype}, but weft keeps masters in float32 or float64: call model.float(), and set "
            "MixedPrecisionPolicy(param_dtype=torch.bfloat16) to compute in bfloat16"
        )


def shard_dim_of(shard: Shard | None, param: nn.Parameter, name: str, mesh: DeviceMesh) -> int:
    if param.ndim == 0:
        raise ValueError(f"parameter '{name}' is a scalar, which fully_shard does not shard: give it shape [1], or list it in ignored_params")
    if shard is None:
        return 0
    if not isinstance(shard, Shard):
        raise ValueError(f"shard_placement_fn returned {shard!r} for parameter '{name}': return Shard(dim), or None for Shard(0)")
    dim = shard.dim + param.ndim if shard.dim < 0 else shard.dim
    if not 0 <= dim < param.ndim:
        raise ValueError(
            f"shard_placement_fn returned {shard} for parameter '{name}' of shape {tuple(param.shape)}: return Shard(dim) with dim below "
            f"{param.ndim}, or None"
        )
    ranks = mesh.size(mesh.ndim - 1)
    if dim > 0 and param.size(dim) % ranks != 0:
        raise NotImplementedError(
            f"shard_placement_fn returned {shard} for parameter '{name}' of shape {tuple(param.shape)}: dims other than 0 must divide "
            f"into {ranks} equal parts"
        )
    return dim
