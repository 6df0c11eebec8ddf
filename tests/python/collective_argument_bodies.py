"""Functions that the ranks run: wrong arguments of collectives, which are refused before anything is sent."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from collective_values import check, rank, ranks
from torch.distributed import ReduceOp


def invalid_arguments() -> None:
    """Raise before anything is sent: the group works afterwards."""
    cases = [
        lambda: dist.all_reduce(torch.ones(2), ReduceOp.BAND),
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), ReduceOp.AVG),
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist._make_nccl_premul_sum(2.0)),
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.int64), dist._make_nccl_premul_sum(torch.tensor([2]))),
        lambda: dist.reduce(torch.ones(2), 0, dist._make_nccl_premul_sum(torch.ones(2, 1))),
        lambda: dist.all_reduce(torch.ones(2), dist._make_nccl_premul_sum(torch.tensor([2j]))),
        lambda: dist.all_reduce(torch.ones(2).to_sparse()),
        lambda: dist.all_gather_into_tensor(torch.ones(3 * ranks() + 1), torch.ones(3)),
        lambda: dist.all_gather_into_tensor(torch.ones(3 * ranks(), dtype=torch.float64), torch.ones(3)),
        lambda: dist.reduce_scatter_tensor(torch.ones(2), torch.ones(2 * ranks() + 1)),
        lambda: dist.all_to_all_single(torch.ones(ranks()), torch.ones(ranks()), [1] * ranks(), [2] * ranks()),
        lambda: dist.group.WORLD.broadcast([torch.ones(1)], _broadcast_options(ranks())),
        lambda: dist.all_reduce(torch.ones(1).expand(4), async_op=True).get_future(),
        lambda: dist.all_reduce(torch.ones(4).as_strided((2, 3), (1, 1))),
        lambda: dist.group.WORLD.allreduce_coalesced([]),
        lambda: dist.group.WORLD.allgather_coalesced([[]] * ranks(), []),
        lambda: dist.group.WORLD.allgather_into_tensor_coalesced([], []),
        lambda: dist.group.WORLD.reduce_scatter_tensor_coalesced([], []),
    ]
    for index, case in enumerate(cases):
        try:
            case()
        except (ValueError, RuntimeError, TypeError):
            continue
        raise AssertionError(f"case {index} raised nothing")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == ranks()


def a_coalesced_collective_checks_all_tensors_first() -> None:
    """One rank gives a wrong second tensor. It can call again, as nothing of its call was sent."""
    world, size = dist.group.WORLD, ranks()
    parts = [torch.full((2,), float(rank() + 1)), torch.full((2,), float(rank() + 2))]
    wholes = [torch.full((2 * size,), float(rank() + 1)), torch.full((2 * size,), float(rank() + 2))]
    short = torch.zeros(1)
    overlapping = torch.zeros(1).expand(2)
    complex_numbers = torch.zeros(2 * size, dtype=torch.complex64)
    largest_of_parts = dist.ReduceScatterOptions()
    largest_of_parts.reduceOp = ReduceOp.MAX
    maximum = dist.AllreduceCoalescedOptions()
    maximum.reduceOp = ReduceOp.MAX
    largest = [torch.full((2,), float(size)), torch.full((2,), float(size + 1))]
    gathered = [torch.arange(1.0, size + 1).repeat_interleave(2), torch.arange(2.0, size + 2).repeat_interleave(2)]

    def rows(outputs: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        return [[tensor.view(size, 2)[r] for tensor in outputs] for r in range(size)]

    def into(outputs, second) -> Callable:
        return lambda: world.allgather_into_tensor_coalesced(outputs, [parts[0], second])

    def lists(outputs, is_wrong: bool) -> Callable:
        received = rows(outputs)
        if is_wrong:
            received[-1][1] = overlapping
        return lambda: world.allgather_coalesced(received, parts)

    def scatter(outputs, second) -> Callable:
        return lambda: world.reduce_scatter_tensor_coalesced(outputs, [wholes[0], second], largest_of_parts)

    def reduction(tensors) -> Callable:
        return lambda: world.allreduce_coalesced(tensors, maximum)

    outputs, received, scattered = ([torch.zeros(n), torch.zeros(n)] for n in (2 * size, 2 * size, 2))
    sums = [tensor.clone() for tensor in wholes]
    cases = [
        ("all_gather", into(outputs, short), into(outputs, parts[1]), outputs, gathered),
        ("all_gather of lists", lists(received, True), lists(received, False), received, gathered),
        ("reduce_scatter", scatter(scattered, complex_numbers), scatter(scattered, wholes[1]), scattered, largest),
        ("all_reduce", reduction([sums[0], complex_numbers]), reduction(sums), sums, [t.repeat(size) for t in largest]),
    ]
    for name, wrong, right, results, expected in cases:
        if rank() == 0:
            try:
                wrong()
            except ValueError:
                pass
            else:
                raise AssertionError(f"{name} raised nothing")
        right().wait()
        for actual, wanted in zip(results, expected, strict=True):
            check(actual, wanted, name)


def _broadcast_options(root: int) -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank = root
    return options
