"""One rank of the collectives of torch.distributed, over gloo or weft (BACKEND). Requests are those of bench/collectives.cc."""

import os
import time
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from contestant import Reply, serve
from host_barrier import HostBarrier

BACKEND = os.environ.get("BACKEND", "gloo")
if BACKEND == "weft":
    import weft.torch


def input_of(rank: int, count: int) -> Tensor:
    """Small integers, so that sums are exact in every order."""
    return ((torch.arange(count) + rank) % 64).float()


def empty(count: int, memory: str) -> Tensor:
    with weft.torch.node_memory() if memory == "node" else nullcontext():
        return torch.empty(count)


class Collective:
    """One operation at one size. `all_reduce` works in place: torch.distributed has no other form.

    `memory`: "torch", or "node" for tensors in weft's node memory.
    """

    def __init__(self, op: str, size: int, memory: str) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        part = size // 4 // ranks
        gathers, scatters = op == "all_gather", op == "reduce_scatter"
        self.op = op
        self.input = empty(part if gathers else part * ranks, memory)
        self.input.copy_(input_of(rank, self.input.numel()))
        self.output = empty(part if scatters else part * ranks, memory)
        self.output.fill_(-1)  # Results are not negative. Reused memory may hold the same result.
        self.run()
        result = self.input if op == "all_reduce" else self.output
        if gathers:
            expected = torch.cat([input_of(peer, part) for peer in range(ranks)])
        else:
            expected = sum(input_of(peer, part * ranks) for peer in range(ranks))
            expected = expected[part * rank :][:part] if scatters else expected
        if not torch.equal(result, expected):
            raise RuntimeError(f"{op} of {size} bytes: the result differs from the expected one")

    def run(self) -> None:
        match self.op:
            case "all_gather":
                dist.all_gather_into_tensor(self.output, self.input)
            case "reduce_scatter":
                dist.reduce_scatter_tensor(self.output, self.input)
            case "all_reduce":
                dist.all_reduce(self.input)
            case _:
                raise RuntimeError(f"unknown operation '{self.op}'; expected all_gather, reduce_scatter or all_reduce")


_current: dict[tuple[str, int, str], Collective] = {}  # At most one, because buffers are large.


def run(barrier: HostBarrier, request: dict[str, str]) -> Reply:
    key = request["op"], int(request["bytes"]), request.get("memory", "torch")
    if key not in _current:
        _current.clear()
        _current[key] = Collective(*key)
    seconds = []
    for _ in range(int(request["repeats"])):
        barrier.wait()
        start = time.perf_counter()
        _current[key].run()
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds}


def main() -> None:
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = f"file://{os.environ['INIT_FILE']}"
    dist.init_process_group(BACKEND, init_method=store, rank=rank, world_size=ranks)
    serve(rank, {"run": partial(run, HostBarrier(rank, ranks))})


if __name__ == "__main__":
    main()
