"""Collectives whose input shares memory with an output, at another place than that of an exchange in place."""

import torch
import torch.distributed as dist
from collective_values import check, placed, rank, ranks
from torch import Tensor

_PART = 1 << 19  # Elements: peers read a part of this size in several slices.


def _parts(of_rank: int) -> Tensor:
    """One row for each rank, with values that tell their rank and their row."""
    rows = torch.arange(ranks(), dtype=torch.float32) + 100 * of_rank
    return rows.repeat_interleave(_PART).view(ranks(), _PART)


def gathers_from_a_part_of_the_output() -> None:
    first = torch.stack([_parts(r)[0] for r in range(ranks())])
    for _ in range(3):
        for source in range(ranks()):
            rows = placed(_parts(rank()), True)
            dist.all_gather_into_tensor(rows, rows[source])
            check(rows, first + source, f"all_gather_into_tensor from row {source}")
            rows = placed(_parts(rank()), True)
            dist.all_gather(list(rows), rows[source])
            check(rows, first + source, f"all_gather from row {source}")


def reduces_and_scatters_to_a_part_of_the_input() -> None:
    expected = sum(_parts(r)[rank()] for r in range(ranks()))
    for _ in range(3):
        for target in range(ranks()):
            rows = placed(_parts(rank()), True)
            dist.reduce_scatter_tensor(rows[target], rows)
            check(rows[target], expected, f"reduce_scatter_tensor to row {target}")
            rows = placed(_parts(rank()), True)
            dist.scatter(rows[target], list(rows) if rank() == 0 else None, 0)
            check(rows[target], _parts(0)[rank()], f"scatter to row {target}")


def exchanges_in_one_tensor() -> None:
    expected = torch.stack([_parts(r)[rank()] for r in range(ranks())])
    for _ in range(3):
        rows = placed(_parts(rank()), True)
        dist.all_to_all_single(rows, rows)
        check(rows, expected, "all_to_all_single")
        rows = placed(_parts(rank()), True)
        dist.all_to_all(list(rows), list(rows))
        check(rows, expected, "all_to_all")
