"""Functions that the ranks run: each collective against a plain computation from the ranks' known inputs."""

import itertools

import torch
import torch.distributed as dist
from collective_values import check, placed, rank, ranks, values
from torch import Tensor
from torch.distributed import ReduceOp

SIZES = [0, 1, 2, 7, 1000, 70001]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
MOVED = [*INTEGERS, *FLOATS, *COMPLEX, torch.bool, torch.float8_e4m3fn, torch.uint16, torch.uint64]


def reduced(inputs: list[Tensor], op: ReduceOp) -> Tensor:
    """A plain loop in a wide dtype."""
    dtype = inputs[0].dtype
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64
    combine = {
        ReduceOp.SUM: torch.add,
        ReduceOp.AVG: torch.add,
        ReduceOp.PRODUCT: torch.mul,
        ReduceOp.MIN: torch.minimum,
        ReduceOp.MAX: torch.maximum,
        ReduceOp.BAND: torch.bitwise_and,
        ReduceOp.BOR: torch.bitwise_or,
        ReduceOp.BXOR: torch.bitwise_xor,
    }[op]
    result = inputs[0].to(wide)
    for other in inputs[1:]:
        result = combine(result, other.to(wide))
    if op == ReduceOp.AVG:
        result = result / len(inputs)
    if dtype == torch.bool:
        return result != 0
    return result.to(dtype)


def reductions() -> list[tuple[ReduceOp, torch.dtype]]:
    common = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
    bits = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
    return [
        *itertools.product([*common, *bits], [*INTEGERS, torch.bool]),
        *itertools.product(common, FLOATS),
        # An average over three ranks in a narrow dtype may round differently from the plain loop.
        *itertools.product([ReduceOp.AVG], FLOATS if ranks() != 3 else [torch.float64]),
        *itertools.product([ReduceOp.SUM], COMPLEX),
    ]


def all_reduce(from_backend: bool) -> None:
    for op, dtype in reductions():
        for numel in [0, 1, 7, 1000]:
            tensor = placed(values(numel, dtype, rank()), from_backend)
            dist.all_reduce(tensor, op)
            check(tensor, reduced([values(numel, dtype, r) for r in range(ranks())], op), f"{op} of {dtype}")
    for numel in SIZES:
        tensor = placed(values(numel, torch.float32, rank()), from_backend)
        dist.all_reduce(tensor)
        check(tensor, reduced([values(numel, torch.float32, r) for r in range(ranks())], ReduceOp.SUM), "sum")


def premul_sum() -> None:
    factors = [2.0, torch.tensor([2.0]), torch.tensor(2), torch.tensor(2.0, dtype=torch.float64)]
    for factor, dtype in itertools.product(factors, [*FLOATS, torch.complex64]):
        op = dist._make_nccl_premul_sum(factor)
        expected = reduced([2 * values(4 * ranks(), dtype, r) for r in range(ranks())], ReduceOp.SUM)
        tensor = values(4 * ranks(), dtype, rank())
        dist.all_reduce(tensor, op)
        check(tensor, expected, f"all-reduce of {dtype} with PREMUL_SUM by {factor}")
        tensor = values(4 * ranks(), dtype, rank())
        dist.reduce(tensor, 0, op)
        check(tensor, expected if rank() == 0 else values(4 * ranks(), dtype, rank()), f"reduce of {dtype} with PREMUL_SUM by {factor}")
        part = torch.zeros(4, dtype=dtype)
        dist.reduce_scatter_tensor(part, values(4 * ranks(), dtype, rank()), op)
        check(part, expected[4 * rank() : 4 * rank() + 4], f"reduce-scatter of {dtype} with PREMUL_SUM by {factor}")
        without_dims = values(4 * ranks(), dtype, rank())[1].clone()
        dist.all_reduce(without_dims, op)
        check(without_dims.reshape(1), expected[1:2], f"all-reduce of one {dtype} with PREMUL_SUM by {factor}")


def all_reduce_coalesced() -> None:
    inputs = [values(n, d, rank()) for n, d in [(3, torch.float32), (0, torch.float32), (1001, torch.float64)]]
    expected = [reduced([values(t.numel(), t.dtype, r) for r in range(ranks())], ReduceOp.SUM) for t in inputs]
    options = dist.AllreduceCoalescedOptions()
    dist.group.WORLD.allreduce_coalesced(inputs, options).wait()
    for actual, wanted in zip(inputs, expected, strict=True):
        check(actual, wanted, "coalesced all-reduce")


def reduce(from_backend: bool) -> None:
    for root, numel in itertools.product(range(ranks()), [0, 1, 70001]):
        own = values(numel, torch.float32, rank())
        tensor = placed(own, from_backend)
        dist.reduce(tensor, root)
        expected = reduced([values(numel, torch.float32, r) for r in range(ranks())], ReduceOp.SUM)
        check(tensor, expected if rank() == root else own, f"reduce to {root}")


def broadcast(from_backend: bool) -> None:
    for root, dtype, numel in itertools.product(range(ranks()), MOVED, [0, 1, 1001]):
        tensor = placed(values(numel, dtype, rank()), from_backend)
        dist.broadcast(tensor, root)
        check(tensor, values(numel, dtype, root), f"broadcast of {dtype} from {root}")


def all_gather(from_backend: bool) -> None:
    for dtype, numel in [*itertools.product(MOVED, [0, 1, 1001]), (torch.float32, 70001)]:
        expected = [values(numel, dtype, r) for r in range(ranks())]
        outputs = [placed(torch.zeros(numel, dtype=dtype), from_backend) for _ in range(ranks())]
        dist.all_gather(outputs, placed(values(numel, dtype, rank()), from_backend))
        for actual, wanted in zip(outputs, expected, strict=True):
            check(actual, wanted, f"all_gather of {dtype}")
        output = placed(torch.zeros(numel * ranks(), dtype=dtype), from_backend)
        dist.all_gather_into_tensor(output, placed(values(numel, dtype, rank()), from_backend))
        check(output, torch.cat(expected), f"all_gather_into_tensor of {dtype}")


def all_gather_of_different_sizes() -> None:
    expected = [values(10 * r, torch.int32, r) for r in range(ranks())]
    outputs = [torch.zeros(10 * r, dtype=torch.int32) for r in range(ranks())]
    dist.all_gather(outputs, expected[rank()])
    for actual, wanted in zip(outputs, expected, strict=True):
        check(actual, wanted, "all_gather of different sizes")


def all_gather_coalesced() -> None:
    sizes = [3, 0, 501]
    inputs = [values(n, torch.float32, rank()) for n in sizes]
    lists = [[torch.zeros(n) for n in sizes] for _ in range(ranks())]
    dist.group.WORLD.allgather_coalesced(lists, inputs).wait()
    for r, outputs in enumerate(lists):
        for n, actual in zip(sizes, outputs, strict=True):
            check(actual, values(n, torch.float32, r), "all_gather_coalesced")
    outputs = [torch.zeros(n * ranks()) for n in sizes]
    dist.group.WORLD.allgather_into_tensor_coalesced(outputs, inputs).wait()
    for n, actual in zip(sizes, outputs, strict=True):
        check(actual, torch.cat([values(n, torch.float32, r) for r in range(ranks())]), "allgather_into_tensor_coalesced")


def gather_and_scatter() -> None:
    for root, dtype, numel in itertools.product(range(ranks()), MOVED, [0, 1, 1001]):
        expected = [values(numel, dtype, r) for r in range(ranks())]
        outputs = [torch.zeros(numel, dtype=dtype) for _ in range(ranks())] if rank() == root else None
        dist.gather(values(numel, dtype, rank()), outputs, dst=root)
        for actual, wanted in zip(outputs or [], expected if outputs else [], strict=True):
            check(actual, wanted, f"gather of {dtype} to {root}")
        output = torch.zeros(numel, dtype=dtype)
        dist.scatter(output, expected if rank() == root else None, src=root)
        check(output, expected[rank()], f"scatter of {dtype} from {root}")


def reduce_scatter(from_backend: bool) -> None:
    for op, dtype in reductions():
        for numel in [0, 1, 1001]:
            inputs = [values(numel * ranks(), dtype, r) for r in range(ranks())]
            expected = reduced(inputs, op).chunk(ranks())[rank()] if numel else torch.zeros(0, dtype=dtype)
            output = placed(torch.zeros(numel, dtype=dtype), from_backend)
            dist.reduce_scatter_tensor(output, placed(inputs[rank()], from_backend), op)
            check(output, expected, f"reduce_scatter_tensor {op} of {dtype}")
    inputs = [values(1000 * ranks(), torch.float32, r) for r in range(ranks())]
    output = torch.zeros(1000)
    dist.reduce_scatter(output, list(inputs[rank()].chunk(ranks())))
    check(output, reduced(inputs, ReduceOp.SUM).chunk(ranks())[rank()], "reduce_scatter of a list")
    outputs = [torch.zeros(1000), torch.zeros(1000)]
    options = dist.ReduceScatterOptions()
    dist.group.WORLD.reduce_scatter_tensor_coalesced(outputs, [inputs[rank()]] * 2, options).wait()
    for output in outputs:
        check(output, reduced(inputs, ReduceOp.SUM).chunk(ranks())[rank()], "reduce_scatter_tensor_coalesced")


def reduce_scatter_of_different_sizes() -> None:
    inputs = [values(5 * r, torch.float64, 0) for r in range(ranks())]
    output = torch.zeros(5 * rank(), dtype=torch.float64)
    dist.reduce_scatter(output, [t + rank() for t in inputs])
    total = sum(range(ranks()))
    check(output, ranks() * inputs[rank()] + total, "reduce_scatter of different sizes")


def all_to_all() -> None:
    def part(source: int, target: int, dtype: torch.dtype) -> Tensor:
        return values(source + 2 * target, dtype, source + target)

    for dtype in MOVED:
        sends = [part(rank(), r, dtype) for r in range(ranks())]
        expected = [part(r, rank(), dtype) for r in range(ranks())]
        receives = [torch.zeros_like(t) for t in expected]
        dist.all_to_all(receives, sends)
        for actual, wanted in zip(receives, expected, strict=True):
            check(actual, wanted, f"all_to_all of {dtype}")
        output = torch.zeros_like(torch.cat(expected))
        dist.all_to_all_single(
            output, torch.cat(sends), [t.numel() for t in expected], [t.numel() for t in sends]
        )
        check(output, torch.cat(expected), f"all_to_all_single of {dtype}")
    rows = torch.arange(6.0 * ranks()).view(2 * ranks(), 3) + 1000 * rank()
    output = torch.zeros_like(rows)
    dist.all_to_all_single(output, rows)
    own = torch.arange(6.0 * ranks()).view(2 * ranks(), 3)[2 * rank() : 2 * rank() + 2]
    check(output, torch.cat([own + 1000 * r for r in range(ranks())]), "equal splits")


def non_contiguous() -> None:
    base = values(24, torch.float32, rank()).view(4, 6)
    expected = reduced([values(24, torch.float32, r).view(4, 6) for r in range(ranks())], ReduceOp.SUM)
    tensor = base.clone().t()
    dist.all_reduce(tensor)
    check(tensor, expected.t(), "all_reduce of a transpose")
    strided = torch.zeros(4, 12)[:, ::2]
    strided.copy_(base)
    dist.broadcast(strided, 0)
    check(strided, values(24, torch.float32, 0).view(4, 6), "broadcast of every second column")
    outputs = [torch.zeros(6, 4).t() for _ in range(ranks())]
    dist.all_gather(outputs, base)
    for r, output in enumerate(outputs):
        check(output, values(24, torch.float32, r).view(4, 6), "all_gather into transposes")
    for view in (torch.ones(4, 4).diagonal(), torch.ones(4, 8)[:, ::2].t(), torch.ones(8).as_strided((2, 3), (3, 2))):
        dist.all_reduce(view)
        check(view, torch.full(view.shape, float(ranks())), f"all_reduce of a view with strides {view.stride()}")


def misaligned() -> None:
    """A tensor of torch.frombuffer may begin between two multiples of the size of its elements."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        copy = torch.frombuffer(bytearray(tensor.nbytes + 2), dtype=tensor.dtype, offset=2)
        return copy.copy_(tensor)

    inputs = [values(6 * ranks(), torch.float32, r) for r in range(ranks())]
    own = inputs[rank()]
    sums = reduced(inputs, ReduceOp.SUM)
    mine = slice(6 * rank(), 6 * (rank() + 1))
    tensor = moved(own)
    dist.all_reduce(tensor)
    check(tensor, sums, "all_reduce")
    part = moved(own[mine])
    dist.reduce_scatter_tensor(part, moved(own))
    check(part, sums[mine], "reduce_scatter")
    whole = moved(torch.zeros(6 * ranks()))
    dist.all_gather_into_tensor(whole, part)
    check(whole, sums, "all_gather")
    dist.all_to_all_single(tensor, moved(own))
    check(tensor, torch.cat([one[mine] for one in inputs]), "all_to_all")
    dist.broadcast(tensor, 0)
    check(tensor, torch.cat([one[:6] for one in inputs]), "broadcast")


def send_and_receive() -> None:
    for dtype, numel in [*itertools.product(MOVED, [0, 1]), (torch.float32, 70001)]:
        for source, target in itertools.permutations(range(ranks()), 2):
            tensor = values(numel, dtype, rank())
            if rank() == source:
                dist.send(tensor, target)
            if rank() == target:
                assert dist.recv(tensor, source) == source
                check(tensor, values(numel, dtype, source), f"recv of {dtype}")


def tags_and_any_source() -> None:
    others = [r for r in range(ranks()) if r != 0]
    if rank() != 0:
        works = [dist.isend(torch.tensor([10.0 * rank() + tag]), 0, tag=tag) for tag in (5, 3)]
        for work in works:
            work.wait()
        return
    for tag in (3, 5):
        senders = set()
        for _ in others:
            tensor = torch.zeros(1)
            sender = dist.recv(tensor, tag=tag)
            assert tensor.item() == 10 * sender + tag, (tensor, sender, tag)
            senders.add(sender)
        assert senders == set(others), senders


def batched_messages() -> None:
    right, left = (rank() + 1) % ranks(), (rank() - 1) % ranks()
    incoming = torch.zeros(5)
    operations = [
        dist.P2POp(dist.isend, values(5, torch.float32, rank()), right),
        dist.P2POp(dist.irecv, incoming, left),
    ]
    if ranks() > 1:
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        check(incoming, values(5, torch.float32, left), "ring shift")


def objects() -> None:
    gathered = [None] * ranks()
    dist.all_gather_object(gathered, {"rank": rank(), "text": "x" * rank()})
    assert gathered == [{"rank": r, "text": "x" * r} for r in range(ranks())], gathered
    shared = [f"from {rank()}", rank()]
    dist.broadcast_object_list(shared, src=ranks() - 1)
    assert shared == [f"from {ranks() - 1}", ranks() - 1], shared


def overlapping_kinds() -> None:
    """Ranks submit collectives of different kinds in different orders."""
    gathered, scattered, reduced_sum = torch.zeros(4 * ranks()), torch.zeros(4), torch.ones(7)
    submit = [
        lambda: dist.all_gather_into_tensor(gathered, torch.full((4,), float(rank())), async_op=True),
        lambda: dist.reduce_scatter_tensor(scattered, torch.ones(4 * ranks()), async_op=True),
        lambda: dist.all_reduce(reduced_sum, async_op=True),
    ]
    turn = rank() % 3
    for work in [start() for start in submit[turn:] + submit[:turn]]:
        work.wait()
    check(gathered, torch.arange(float(ranks())).repeat_interleave(4), "all_gather")
    check(scattered, torch.full((4,), float(ranks())), "reduce_scatter")
    check(reduced_sum, torch.full((7,), float(ranks())), "all_reduce")


def groups() -> None:
    """Sub-groups of every size, in other orders of ranks, that cross each other, several of the same ranks."""
    for size in range(1, ranks() + 1):
        for members in itertools.combinations(range(ranks()), size):
            group = dist.new_group(list(members), use_local_synchronization=False)
            if rank() in members:
                tensor = torch.tensor([float(rank())])
                dist.all_reduce(tensor, group=group)
                assert tensor.item() == sum(members), (tensor, members)
                if size > 1 and rank() == members[0]:
                    dist.send(torch.tensor([float(rank())]), members[1], group=group)
                if size > 1 and rank() == members[1]:
                    incoming = torch.zeros(1)
                    dist.recv(incoming, members[0], group=group)
                    assert incoming.item() == members[0]
                dist.destroy_process_group(group)
    first, second = dist.new_group(), dist.new_group()
    one, two = torch.ones(1), torch.ones(2)
    order = [(one, first), (two, second)]
    works = [dist.all_reduce(t, group=g, async_op=True) for t, g in (order if rank() % 2 else reversed(order))]
    for work in works:
        work.wait()
    check(torch.cat([one, two]), torch.full((3,), float(ranks())), "two groups of all ranks")


def large_gather_and_reductions() -> int:
    """Floats of many pieces and slices. Returns the bytes that compression has saved on the wire of this rank."""
    import weft.torch

    numel = 200_003
    inputs = [torch.randn(ranks() * numel, generator=torch.Generator().manual_seed(r)) for r in range(ranks())]
    total = _canonical_sum(inputs)
    own = slice(rank() * numel, (rank() + 1) * numel)
    gathered = torch.empty(ranks() * numel)
    dist.all_gather_into_tensor(gathered, inputs[rank()][:numel])
    check(gathered, torch.cat([t[:numel] for t in inputs]), "large all_gather")
    part = torch.empty(numel)
    dist.reduce_scatter_tensor(part, inputs[rank()])
    check(part, total[own], "large reduce_scatter")
    sums = inputs[rank()].clone()
    dist.all_reduce(sums)
    check(sums, total, "large all_reduce")
    return weft.torch.current_session().counters()["wire_saved_bytes"]


def _canonical_sum(inputs: list[Tensor]) -> Tensor:
    """The sum in the order of the engine's tree, which splits at the largest power of two below the count."""
    if len(inputs) == 1:
        return inputs[0]
    split = 1 << (len(inputs) - 1).bit_length() - 1
    return _canonical_sum(inputs[:split]) + _canonical_sum(inputs[split:])


def threads_submit() -> None:
    """Threads of a rank use groups of their own."""
    import threading

    own = [dist.new_group() for _ in range(3)]
    results = [torch.zeros(1)] * 3

    def work(index: int) -> None:
        total = torch.zeros(1)
        for step in range(20):
            tensor = torch.tensor([float(rank() + step)])
            dist.all_reduce(tensor, group=own[index])
            total += tensor
        results[index] = total

    running = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    expected = sum(sum(r + step for r in range(ranks())) for step in range(20))
    assert [t.item() for t in results] == [expected] * 3, results
