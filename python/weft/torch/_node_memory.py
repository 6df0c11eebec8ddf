"""Node memory for tensors that PyTorch allocates."""

import warnings
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from weft import _c10d
from weft.torch._backend import backend_of


class NodeMemory(AbstractContextManager[None]):
    """Allocates in the node memory of the backend's session. Warns that `what` is in ordinary memory, if there is no room.

    `stacklevel` counts as that of warnings.warn, from the `with` statement. torch.compile leaves code in this context alone.
    """

    def __init__(self, backend: _c10d.Backend, what: str, stacklevel: int = 1) -> None:
        self._what = what
        self._stacklevel = stacklevel
        self._context = _c10d.NodeMemoryContext(backend)

    def __enter__(self) -> None:
        self._context.enter()

    def __exit__(self, *_: object) -> None:
        context = self._context
        context.exit()
        if context.refused:
            warnings.warn(
                f"weft: {self._what}: {context.refused_bytes} bytes in {context.refused} allocations are in ordinary memory, and "
                f"each collective copies them. WEFT_SEGMENT_BYTES sets the node memory of a rank. {context.error}",
                stacklevel=1 + self._stacklevel,
            )


@torch._disable_dynamo
def node_memory(group: dist.ProcessGroup | None = None) -> AbstractContextManager[None]:
    """Makes PyTorch allocate CPU tensors in memory that the ranks of a node share, where collectives of weft need no copies.

        with weft.torch.node_memory():
            buffer = torch.empty(1 << 20)
        dist.all_reduce(buffer)  # In place.

    `group` is a process group whose backend for CPU tensors is weft; by default the default group. Its session owns the memory.

    The context holds for allocations of 64 KiB and more by the thread that enters it, such as results of operators, model
    parameters, or gradients of a backward pass that this thread runs. Contexts may be nested; each is entered once. If node
    memory has no room, tensors go to ordinary memory, and a warning says so when the context ends.

    The tensors may outlive the context, the group and its session. Other tensors that share their storage see the same memory. A
    storage that is resized outside of a context moves to ordinary memory. In a forked child, allocations are ordinary.

    Raises RuntimeError if the backend is not weft, or if this rank is not in the group.
    """
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise RuntimeError(
            "weft: node_memory needs a group that this rank belongs to: call it on the members of the group alone, or leave the group out"
        )
    used = group or distributed_c10d._get_default_group()
    backend = backend_of(used)
    if backend is None:
        raise RuntimeError(
            f"weft: node_memory needs a group whose backend for CPU tensors is weft; the group {used.group_name} has the backend "
            f'{dist.get_backend_config(used)}. Make it with init_process_group("weft") or new_group(backend="weft").'
        )
    return NodeMemory(backend, "tensors")
