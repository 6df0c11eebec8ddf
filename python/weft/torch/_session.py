"""The session of sharded models: weft's engine and node memory."""

import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

from weft import _core
from weft.torch import _backend

_own: _core.Session | None = None
_group_of_own: weakref.ref[dist.ProcessGroup] | None = None  # The default process group that it was made for.
_counts: tuple[_core.Session, _core.Group] | None = None  # The group in which ranks compare counts, and its session.


def _timeout_of_default_group() -> timedelta:
    """The timeout that init_process_group was given; PyTorch's default, if the backend does not tell."""
    backend = _backend.cpu_backend_of(dist.distributed_c10d._get_default_group())
    options = getattr(backend, "options", None)
    return getattr(options, "_timeout", dist.distributed_c10d.default_pg_timeout)


def session_of_models() -> _core.Session:
    """Returns the session of the default process group, or makes one if that uses another backend.

    A later default process group gets a session of its own, as its ranks may be others. That of the earlier one is closed.
    Collective: all ranks.
    """
    global _own, _group_of_own
    group = dist.distributed_c10d._get_default_group()
    if _own is not None and _group_of_own() is not group:
        _own.close()
        _own = None
    if _backend._default_session is not None and not _backend._default_session.closed:
        return _backend._default_session
    if _own is None or _own.closed:
        store = dist.PrefixStore("weft.fully_shard", dist.distributed_c10d._get_default_store())
        timeout = _timeout_of_default_group()
        _own = _backend._make_session(store, dist.get_rank(), dist.get_world_size(), timeout)
        _group_of_own = weakref.ref(group)
    return _own


def reset_session(cause: str) -> None:
    """Recovers the session of models from a failure. Peers that wait get an exception with `cause` first. Collective: all ranks."""
    session = session_of_models()
    session.abort(cause)
    session.reset()


def counts_of_ranks(own: list[int]) -> list[list[int]]:
    """The counts of each rank; all have as many. Collective: all ranks of the session of models."""
    global _counts
    session = session_of_models()
    if _counts is None or _counts[0] is not session:
        _counts = session, _core.Group(session, "weft.counts", list(range(session.size)))
    counts = torch.empty(session.size, len(own), dtype=torch.int64)
    _counts[1].all_gather(torch.tensor(own), counts).wait()
    return counts.tolist()
