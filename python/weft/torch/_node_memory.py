"""Node memory for tensors that PyTorch allocates."""

import contextlib
import warnings
from collections.abc import Iterator

import torch.distributed as dist
from torch.distributed import distributed_c10d

from weft import _c10d
from weft.torch._backend import backend_of


@contextlib.contextmanager
def node_memory(group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Makes PyTorch allocate CPU tensors in memory that the ranks of a node share, where collectives of weft need no copies.

        with weft.torch.node_memory():
            buffer = torch.empty(1 << 20)
        dist.all_reduce(buffer)  # In place.

    `group` is a process group whose backend for CPU tensors is weft; by default the default group. Its session owns the memory.

    The context holds for allocations of 64 KiB and more by the thread that enters it, such as results of operators, model
    parameters, or gradients of a backward pass that this thread runs. Contexts may be nested, and this function is a decorator
    too. If node memory has no room, tensors go to ordinary memory, and a warning says so when the context ends.

    The tensors may outlive the context, the group and its session. Other tensors that share their storage see the same memory. A
    storage that is resized outside of a context moves to ordinary memory. In a forked child, allocations are ordinary.

    Raises RuntimeError if the backend is not weft.
    """
    used = group or distributed_c10d._get_default_group()
    backend = backend_of(used)
    if backend is None:
        raise RuntimeError(
            f"weft: node_memory needs a group whose backend for CPU tensors is weft; the group {used.group_name} has the backend "
            f'{dist.get_backend_config(used)}. Make it with init_process_group("weft") or new_group(backend="weft").'
        )
    with placed(backend, "tensors", stacklevel=5):
        yield


@contextlib.contextmanager
def placed(backend: _c10d.Backend, what: str, stacklevel: int) -> Iterator[None]:
    """Allocates in the node memory of the backend's session; warns that `what` is not in it, if there is no room.

    `stacklevel` is that of warnings.warn.
    """
    context = _c10d.NodeMemoryContext(backend)
    context.enter()
    try:
        yield
    finally:
        context.exit()
        if context.refused:
            warnings.warn(
                f"weft: {what}: {context.refused_bytes} bytes in {context.refused} allocations are in ordinary memory, and each "
                f"collective copies them. WEFT_SEGMENT_BYTES sets the node memory of a rank. {context.error}",
                stacklevel=stacklevel,
            )
