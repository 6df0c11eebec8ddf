"""Functions that the ranks run: collectives of tensors in node memory."""

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from collective_values import check, placed, rank, ranks, values
from torch import Tensor


def in_place_without_copies() -> dict[str, int]:
    """The bytes that the engine copies when all tensors come from the backend. Expected: none."""
    import weft.torch

    session = weft.torch.current_session()
    numel = 1000
    full = placed(torch.zeros(numel * ranks()), True)
    own = full[numel * rank() : numel * (rank() + 1)]
    own.copy_(values(numel, torch.float32, rank()))
    before = session.counters()["copied_bytes"]
    dist.all_gather_into_tensor(full, own)
    check(full, torch.cat([values(numel, torch.float32, r) for r in range(ranks())]), "in-place all_gather")
    dist.reduce_scatter_tensor(own, full)
    check(own, ranks() * values(numel, torch.float32, rank()), "in-place reduce_scatter")
    dist.all_reduce(full[:0])
    dist.barrier()
    return session.counters()["copied_bytes"] - before


def copied_by_all_reduce(tensor: Tensor) -> int:
    """The bytes that the engine copies."""
    import weft.torch

    counters = weft.torch.current_session().counters
    before = counters()["copied_bytes"]
    dist.all_reduce(tensor)
    return counters()["copied_bytes"] - before


def allocated_by_pytorch() -> None:
    """In the context, tensors of 64 KiB and more lie in node memory, unless another thread allocates them."""
    import weft.torch

    numel = 1 << 14
    with weft.torch.node_memory():
        tensor = torch.ones(numel)
        result = tensor + rank()
        with weft.torch.node_memory(dist.group.WORLD):
            nested = torch.ones(numel)
        after_nested = torch.ones(numel)
        smaller = torch.ones(numel - 1)
        with ThreadPoolExecutor(1) as pool:
            by_other_thread = pool.submit(torch.ones, numel).result()
    ordinary = torch.ones(numel)
    for inside in (tensor, result, nested, after_nested):
        assert copied_by_all_reduce(inside) == 0
    check(tensor, torch.full((numel,), float(ranks())), "all_reduce of an allocated tensor")
    check(result, torch.full((numel,), sum(1.0 + r for r in range(ranks()))), "all_reduce of a result")
    for outside in (smaller, by_other_thread, ordinary):
        assert copied_by_all_reduce(outside) > 0
    context = weft.torch.node_memory()
    with context:
        pass
    try:
        with context:
            raise AssertionError("a context was entered twice")
    except RuntimeError as error:
        assert "entered before" in str(error), error


def resized() -> None:
    """A storage moves to the memory of the place where it grows, and keeps its contents."""
    import weft.torch

    with weft.torch.node_memory():
        tensor = torch.arange(1 << 15, dtype=torch.float32)
    tensor.resize_(1 << 16)[1 << 15 :] = 1
    assert copied_by_all_reduce(tensor) > 0
    with weft.torch.node_memory():
        tensor.resize_(1 << 17)[1 << 16 :] = 2
    check(tensor[: 1 << 15], ranks() * torch.arange(1 << 15, dtype=torch.float32), "a grown storage")
    assert copied_by_all_reduce(tensor) == 0


def of_a_group_without_this_rank() -> None:
    import weft.torch

    group = dist.new_group([0])
    if rank() == 0:
        with weft.torch.node_memory(group):
            tensor = torch.ones(1 << 14)
        check(tensor, torch.ones(1 << 14), "a tensor of a group")
        return
    try:
        weft.torch.node_memory(group)
    except RuntimeError as error:
        assert "node_memory needs a group that this rank belongs to" in str(error), error
    else:
        raise AssertionError("a group without this rank was accepted")
