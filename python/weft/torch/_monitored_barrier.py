"""torch.distributed.monitored_barrier for groups of weft.

torch's function raises for every backend but gloo, although ProcessGroup.monitored_barrier asks the backend. The function
here asks groups of weft, and calls torch's for other groups.
"""

import warnings
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

from weft.torch._backend import backend_of
from weft.torch._replacement import replace_once


def _extended(original: Callable[..., None]) -> Callable[..., None]:
    def monitored_barrier(
        group: dist.ProcessGroup | None = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        is_member = group is not dist.GroupMember.NON_GROUP_MEMBER
        used = backend_of(group or distributed_c10d._get_default_group()) if is_member else None
        if used is None:
            return original(group, timeout, wait_all_ranks)
        if timeout is None:
            return used.monitored_barrier(wait_all_ranks=wait_all_ranks)
        if not isinstance(timeout, timedelta):
            warnings.warn(f"timeout is {timeout}, taken as seconds; give a timedelta", stacklevel=2)
            timeout = timedelta(seconds=timeout)
        return used.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    return monitored_barrier


def extend_monitored_barrier() -> None:
    """Makes torch.distributed.monitored_barrier accept groups of weft. Idempotent."""
    for module in (distributed_c10d, dist):
        replace_once(module, "monitored_barrier", _extended)
