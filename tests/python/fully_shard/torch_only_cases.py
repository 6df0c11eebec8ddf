"""Cases that torch's fully_shard over the backend "weft" passes, and weft.fully_shard refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from sharded_support import Cases, whole
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from unsharded_oracle import Interface, expect_alike, expect_close, mlps, seeded, squares, trains_as_unsharded

case = Cases()


def torch_only(function: Callable[[], None]) -> Callable[[Interface], None]:
    """A case that weft.fully_shard refuses, as docs/torch_fully_shard.md says."""

    def check(api: Interface) -> None:
        if api.name == "torch":
            function()

    check.__name__ = function.__name__
    return case(check)


@torch_only
def sharding_and_tensor_parallelism_compose() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    size = dist.get_world_size()
    if size % 2:
        return
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    model, reference = seeded(lambda: mlps(3, 8)), seeded(lambda: mlps(3, 8))
    plan = {f"{n}.{part}": kind() for n in range(3) for part, kind in (("in_proj", ColwiseParallel), ("out_proj", RowwiseParallel))}
    parallelize_module(model, mesh["tp"], plan)
    for module in (*model, model):
        torch_fully_shard(module, mesh=mesh["dp"])
    data_rank = mesh.get_local_rank("dp")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, reference)]
    for step in range(3):
        squares(4, 8)(model, step, data_rank).backward()
        for rank in range(size // 2):
            (squares(4, 8)(reference, step, rank) / (size // 2)).backward()
        expect_alike(model, reference)
        total = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        expect_close(whole(total), nn.utils.clip_grad_norm_(reference.parameters(), 0.1), "norm")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@torch_only
def local_tensors_may_extend_the_gather() -> None:
    """fsdp_pre_all_gather and fsdp_post_all_gather, which gather in bfloat16."""
    model, reference = seeded(lambda: mlps(3, 8)), seeded(lambda: mlps(3, 8))
    for module in (*model, model):
        torch_fully_shard(module)

    def pre(self: Tensor, mesh: DeviceMesh) -> tuple:
        return (self.to(torch.bfloat16),), None

    def post(self: Tensor, outputs: tuple, metadata: Any, dtype: torch.dtype, *, out: Tensor | None = None) -> tuple | None:
        value = outputs[0].to(dtype)
        if out is not None:
            with torch.autograd._unsafe_preserve_version_counter(out):
                out.copy_(value)
            return None
        return value, (outputs[0], value)

    for name, param in model.named_parameters():
        if "weight" in name:
            local = param._local_tensor
            local.fsdp_pre_all_gather, local.fsdp_post_all_gather = pre.__get__(local), torch.no_grad()(post).__get__(local)
    trains_as_unsharded(model, reference, squares(4, 8), steps=1, tolerance=2e-2, optimizers=False)


@torch_only
def cpu_offload_policies_are_accepted() -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy

    model, reference = seeded(mlps), seeded(mlps)
    for module in (*model, model):
        torch_fully_shard(module, offload_policy=CPUOffloadPolicy(pin_memory=False))
    trains_as_unsharded(model, reference, squares(4, 9), steps=2)


@torch_only
def replicate_over_the_backend() -> None:
    """torch's composable replicate."""
    from torch.distributed._composable import replicate

    model, reference = seeded(mlps), seeded(mlps)
    replicate(model)
    trains_as_unsharded(model, reference, squares(4, 9), steps=3)
