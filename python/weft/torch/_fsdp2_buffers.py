"""Node memory for the buffers of FSDP2's collectives over the backend "weft".

FSDP2 allocates them with torch.empty, from where weft would copy them to memory that the ranks of a node share. It can ask
the process group for memory instead, but only if a script calls set_allocate_memory_from_process_group_for_comm. Here groups
over weft ask from the start. Groups for which a script calls that method, or sets collectives of its own, are left as the script
sets them.
"""

import math
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_collectives import ProcessGroupAllocAllGather, ProcessGroupAllocReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from weft.torch._backend import backend_of
from weft.torch._replacement import replace_once


class _NodeMemory:
    _group: dist.ProcessGroup

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns an uninitialized tensor of math.prod(size) elements, in node memory as long as that has room."""
        try:
            return backend_of(self._group).allocate_tensor(math.prod(size), dtype=dtype, device=device)
        except MemoryError:
            warnings.warn(
                "weft: node memory has no room for a buffer of FSDP2; it is in ordinary memory, and each collective copies "
                "it. WEFT_SEGMENT_BYTES sets the node memory of a rank.",
                stacklevel=2,
            )
            return torch.empty(size, dtype=dtype, device=device)


class _AllGather(_NodeMemory, ProcessGroupAllocAllGather):
    pass


class _ReduceScatter(_NodeMemory, ProcessGroupAllocReduceScatter):
    pass


def _placed(original: Callable[..., None]) -> Callable[..., None]:
    def init(self: FSDPParamGroup, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        if not isinstance(self.mesh_info, FSDPMeshInfo) or self.device.type != "cpu":
            return
        group = self.mesh_info.shard_process_group
        if backend_of(group):
            self._all_gather_comm = _AllGather(group)
            self._reduce_scatter_comm = _ReduceScatter(group)

    return init


def place_buffers_in_node_memory() -> None:
    """Makes every parameter group of FSDP2 that is sharded over "weft" from now on allocate in node memory. Idempotent."""
    replace_once(FSDPParamGroup, "__init__", _placed)
