"""Placement of shards: meshes, DTensors of sharded parameters, and tensors over weft's memory."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta


def default_mesh() -> DeviceMesh:
    """A one-dimensional mesh over all ranks."""
    if not dist.is_initialized():
        raise RuntimeError("fully_shard without a mesh needs a process group: call torch.distributed.init_process_group first")
    return init_device_mesh("cpu", (dist.get_world_size(),))


def check_mesh(mesh: DeviceMesh) -> None:
    """Raises ValueError unless `mesh` is (shard) or (replicate, shard), on CPUs, over all ranks in order; TypeError if
    it is no DeviceMesh."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"fully_shard takes a DeviceMesh as mesh, not a {type(mesh).__name__}: make it with init_device_mesh('cpu', ...)")
    if mesh.ndim not in (1, 2):
        raise ValueError(f"fully_shard takes a mesh (shard) or (replicate, shard), but this one has {mesh.ndim} dims: {mesh}")
    if mesh.device_type != "cpu":
        raise ValueError(f"weft shards over CPUs, but the mesh is on '{mesh.device_type}': make it with init_device_mesh('cpu', ...)")
    ranks = mesh.mesh.flatten().tolist()
    if ranks != list(range(dist.get_world_size())):
        raise ValueError(
            f"fully_shard takes a mesh over all {dist.get_world_size()} ranks in order, but this one has the ranks {ranks}: "
            "meshes of tensor or pipeline parallelism cannot be combined with it"
        )


def mesh_axes(mesh: DeviceMesh) -> list[tuple[str, int]]:
    """The axes as weft names them."""
    names = ["shard"] if mesh.ndim == 1 else ["replicate", "shard"]
    return list(zip(names, mesh.shape, strict=True))


@dataclass(frozen=True)
class Placement:
    """A parameter cut into equal chunks on one dim, the last ones short or empty."""

    spec: DTensorSpec
    shard_dim: int

    @staticmethod
    def of(param: Tensor, mesh: DeviceMesh, shard_dim: int) -> Placement:
        shard = Shard(shard_dim)
        placements = (shard,) if mesh.ndim == 1 else (Replicate(), shard)
        strides = [1] * param.ndim
        for dim in range(param.ndim - 2, -1, -1):
            strides[dim] = strides[dim + 1] * max(param.size(dim + 1), 1)
        meta = TensorMeta(param.size(), tuple(strides), param.dtype)
        return Placement(DTensorSpec(mesh, placements, tensor_meta=meta), shard_dim)

    @property
    def shape(self) -> torch.Size:
        return self.spec.tensor_meta.shape

    def _range(self) -> tuple[int, int]:
        """First index and length of this rank's chunk on the shard dim."""
        mesh = self.spec.mesh
        size = self.shape[self.shard_dim]
        chunk = math.ceil(size / mesh.size(mesh.ndim - 1)) if size else 0
        begin = min(size, mesh.get_local_rank(mesh.ndim - 1) * chunk)
        return begin, min(size, begin + chunk) - begin

    @functools.cached_property
    def local_shape(self) -> torch.Size:
        shape = list(self.shape)
        shape[self.shard_dim] = self._range()[1]
        return torch.Size(shape)

    def local_part(self, whole: Tensor) -> Tensor:
        """A contiguous copy of this rank's chunk."""
        return whole.detach().narrow(self.shard_dim, *self._range()).clone(memory_format=torch.contiguous_format)

    def distributed(self, local: Tensor) -> DTensor:
        return DTensor(local, self.spec, requires_grad=False)
