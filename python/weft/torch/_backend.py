"""Creation of process groups of the backend "weft"."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from weft import _c10d, _core
from weft.torch._private_heap import is_heap_wanted, use_private_heap
from weft.torch._store import StoreAdapter

_NAME = "weft"
# Session of the default process group, if that uses weft.
_default_session: _core.Session | None = None


def register_backend() -> None:
    """Registers the backend with torch.distributed, for CPU tensors."""
    if not hasattr(dist.Backend, _NAME.upper()):
        dist.Backend.register_backend(_NAME, _create_backend, extended_api=True, devices=["cpu"])


def current_session() -> _core.Session:
    """Returns the session of the default process group: its engine and node memory.

    Raises RuntimeError if the default process group does not use weft.
    """
    if _default_session is None or _default_session.closed:
        raise RuntimeError('the default process group does not use weft; call init_process_group("weft") first')
    return _default_session


def cpu_backend_of(group: dist.ProcessGroup) -> torch._C._distributed_c10d.Backend:
    """Returns the group's backend for CPU tensors, without the wrapper that it has under TORCH_DISTRIBUTED_DEBUG=DETAIL.

    Raises RuntimeError if the group has none.
    """
    backend = group._get_backend(torch.device("cpu"))
    while hasattr(backend, "wrapped_pg"):
        backend = backend.wrapped_pg
    return backend


def backend_of(group: dist.ProcessGroup) -> _c10d.Backend | None:
    """Returns the group's backend for CPU tensors if that is weft."""
    try:
        backend = cpu_backend_of(group)
    except RuntimeError:  # The group has none for CPU tensors.
        return None
    return backend if isinstance(backend, _c10d.Backend) else None


def _segment_bytes() -> int:
    text = os.environ.get("WEFT_SEGMENT_BYTES", "0")
    if not text.isdecimal() or int(text) >= 2**63:
        raise ValueError(f"WEFT_SEGMENT_BYTES must be a number of bytes below 2**63, not '{text}': unset it for a share of the free memory")
    return int(text)


def _make_session(store: dist.Store, rank: int, size: int, timeout: timedelta) -> _core.Session:
    """Makes a session. From the first one on, PyTorch's tensors lie in the private heap.

    Collective: all ranks. If a variable of the environment is wrong on one of them, all raise its error.
    """
    error, segment_bytes = "", 0
    try:
        segment_bytes = _segment_bytes()
        is_heap_wanted()
    except ValueError as caught:
        error = str(caught)
    session = _core.Session(
        StoreAdapter(store), rank, size, timeout_s=timeout.total_seconds(), segment_bytes=segment_bytes, error=error
    )
    use_private_heap()
    return session


def _create_backend(options, _backend_options) -> _c10d.Backend:
    """Creates the backend of a group: `options` are c10d's _DistributedBackendOptions.

    The default group makes a session, on which its sub-groups have lanes of their own. A group under a default group
    of another backend makes a session of its members.
    """
    global _default_session
    is_default = not options.global_ranks_in_group
    is_subgroup = not is_default and _default_session is not None and not _default_session.closed
    if is_subgroup:
        session, ranks = _default_session, list(options.global_ranks_in_group)
    else:
        session = _make_session(options.store, options.group_rank, options.group_size, options.timeout)
        ranks = list(range(options.group_size))
    if is_default:
        _default_session = session
    group = _core.Group(session, str(options.group_id), ranks, options.timeout.total_seconds())
    return _c10d.make_backend(
        group.capsule,
        name=str(options.group_id),
        global_ranks=list(options.global_ranks_in_group) or ranks,
        timeout=options.timeout,
        closes_session=not is_subgroup,
        store=options.store,
        store_prefix=f"weft/{session.nonce}/{options.group_id}",
    )
