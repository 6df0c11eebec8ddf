"""Node memory for the buckets of DistributedDataParallel over the backend "weft".

DistributedDataParallel's Reducer all-reduces gradients in buckets, which it allocates when it is made, and once more after
the first backward pass. With gradient_as_bucket_view=True the gradients are views of the buckets.
"""

import contextlib
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist

from weft.torch._backend import backend_of
from weft.torch._node_memory import NodeMemory


def _placed_buckets(group: dist.ProcessGroup) -> AbstractContextManager[None]:
    backend = backend_of(group)
    return NodeMemory(backend, "buckets of DistributedDataParallel", stacklevel=2) if backend else contextlib.nullcontext()


def place_buckets_in_node_memory() -> None:
    """Makes every DistributedDataParallel over weft from now on allocate its buckets in node memory. Idempotent."""
    if dist.Reducer.__module__ == __name__:
        return

    class Reducer(dist.Reducer):
        __doc__ = dist.Reducer.__doc__

        def __init__(
            self,
            params: object,
            bucket_indices: object,
            per_bucket_size_limits: object,
            process_group: dist.ProcessGroup,
            *args: object,
            **kwargs: object,
        ) -> None:
            self._group = process_group
            with _placed_buckets(process_group):
                super().__init__(params, bucket_indices, per_bucket_size_limits, process_group, *args, **kwargs)

        @torch._disable_dynamo
        def _rebuild_buckets(self) -> bool:
            with _placed_buckets(self._group):
                return super()._rebuild_buckets()

        def _update_process_group(self, process_group: dist.ProcessGroup) -> None:
            self._group = process_group
            super()._update_process_group(process_group)

    dist.Reducer = Reducer
