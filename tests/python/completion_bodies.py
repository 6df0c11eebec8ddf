"""Functions that the ranks run: barriers, works and futures."""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from closing_bodies import without_preemption
from collective_values import check, rank, ranks
from rank_worker import init_group
from torch import Tensor

_numbers = itertools.count()  # Of calls, which all ranks make alike.


def barriers() -> None:
    for _ in range(20):
        dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    assert work.is_completed()
    for wait_all_ranks in (False, True):
        dist.monitored_barrier(timeout=timedelta(seconds=30), wait_all_ranks=wait_all_ranks)
    dist.monitored_barrier()
    dist.group.WORLD.monitored_barrier()


def futures_and_works() -> None:
    total = ranks() * (ranks() - 1) / 2
    works = [dist.all_reduce(torch.full((n,), float(rank())), async_op=True) for n in (1, 1000, 3)]
    found = [work.get_future().then(lambda future: future.value()[0].sum().item()) for work in works]
    assert [future.wait() for future in found] == [total, 1000 * total, 3 * total]
    for work in works:
        assert work.wait() and work.is_completed() and work.is_success()
        assert len(work.result()) == 1
    # Completion without a wait: by polling, and a future of a completed work.
    work = dist.all_reduce(torch.ones(3), async_op=True)
    while not work.is_completed():
        pass
    check(work.get_future().wait()[0], torch.full((3,), float(ranks())), "future of a completed work")
    # Works that nobody waits for end all the same, and write their outputs.
    dropped = [torch.ones(4, 25).t() if index % 2 else torch.ones(25, 4) for index in range(50)]
    for tensor in dropped:
        dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    for tensor in dropped:
        check(tensor, torch.full((25, 4), float(ranks())), "a dropped work before a barrier")
    dropped = [torch.ones(4, 25).t(), torch.ones(25, 4)]
    for tensor in dropped:
        dist.all_reduce(tensor, async_op=True)
    while not all((tensor == ranks()).all() for tensor in dropped):
        pass


def a_barrier_waits_for_earlier_collectives() -> None:
    """Of all streams, and also for the outputs of works that were dropped. Earlier receives may still wait."""
    numel = 1 << 20
    transposed = (1 << 10, 1 << 10)
    for asynchronous in [False, True] * 3:
        gathered = [torch.zeros(numel * ranks()), torch.zeros(numel)]
        others = [torch.ones(numel), torch.full((numel,), float(rank())), torch.ones(transposed).t()]
        works = [
            dist.all_gather_into_tensor(gathered[0], torch.ones(numel), async_op=True),
            dist.reduce_scatter_tensor(gathered[1], torch.ones(numel * ranks()), async_op=True),
            dist.all_reduce(others[0], async_op=True),
            dist.broadcast(others[1], ranks() - 1, async_op=True),
        ]
        dist.all_reduce(others[2], async_op=True)
        received = torch.zeros(1)
        receive = dist.irecv(received, (rank() - 1) % ranks()) if ranks() > 1 else None
        if asynchronous:
            dist.barrier(async_op=True).get_future().wait()
        else:
            dist.barrier()
        assert all(work.is_completed() for work in works), [work.is_completed() for work in works]
        check(gathered[0], torch.ones(numel * ranks()), "all_gather before a barrier")
        check(gathered[1], torch.full((numel,), float(ranks())), "reduce_scatter before a barrier")
        check(others[0], torch.full((numel,), float(ranks())), "all_reduce before a barrier")
        check(others[1], torch.full((numel,), float(ranks() - 1)), "broadcast before a barrier")
        check(others[2], torch.full(transposed, float(ranks())), "all_reduce of a transpose before a barrier")
        if receive is not None:
            dist.send(torch.ones(1), (rank() + 1) % ranks())
            receive.wait()


def a_dropped_work_writes_its_output_after_its_deadline() -> None:
    """The last rank comes after the deadline of the others. The result is copied to the output, which is not contiguous."""
    store = dist.distributed_c10d._get_default_store()
    key = f"deadline-{next(_numbers)}"
    if rank() == ranks() - 1:
        store.wait([key])
    output = torch.ones(4, 25).t()
    options = dist.AllreduceOptions()
    options.timeout = timedelta(milliseconds=50)
    dist.group.WORLD.allreduce([output], options)
    later = dist.group.WORLD.allreduce([torch.ones(100)], options)
    if rank() == 0:
        with contextlib.suppress(dist.DistBackendError):
            later.wait()  # Until a deadline that is not before that of the dropped work.
            raise AssertionError("the last rank did not wait")
        store.set(key, "passed")
    dist.barrier()
    check(output, torch.full((25, 4), float(ranks())), "a dropped work after its deadline")


def future_of_a_missing_rank() -> str:
    """A future fails at the deadline, although nobody waits for the work, which ends later with its result."""
    dist.barrier()
    group = dist.new_group(timeout=timedelta(seconds=3))  # Also that of making the group.
    message, output = "", torch.ones(4, 2).t()  # The result is copied to it, as it is not contiguous.
    if rank() == 0:
        work = dist.all_reduce(output, group=group, async_op=True)
        try:
            work.get_future().wait()
        except Exception as error:
            message = str(error)
        assert not work.is_completed()
    dist.barrier()
    if rank() != 0:
        work = dist.all_reduce(output, group=group, async_op=True)
    work.wait()
    assert work.is_success()
    assert (output == ranks()).all(), output
    return message


def futures_of_late_peers() -> None:
    """The future of an all-reduce completes although the peer is late for an earlier broadcast to another node, which is *ready*
    on its root at once. The pool must be closed after this."""
    os.environ["WEFT_NODE_ID"] = str(rank())
    dist.destroy_process_group()
    init_group("-nodes")
    store = dist.distributed_c10d._get_default_store()
    sent, reduced = torch.full((4,), float(rank())), torch.ones(4)
    if rank() == 0:
        broadcast = dist.broadcast(sent, 0, async_op=True).get_future()
        dist.all_reduce(reduced, async_op=True).get_future().wait()
        assert not broadcast.done()
        store.set("reduced", "")
        broadcast.wait()
    else:
        dist.all_reduce(reduced)
        store.wait(["reduced"])
        dist.broadcast(sent, 0)
    check(reduced, torch.full((4,), 2.0), "all_reduce beside a broadcast")
    check(sent, torch.zeros(4), "a broadcast to a late peer")


def a_callback_ends_its_group() -> str:
    """Returns the error on rank 0. The pool must be closed after this."""
    store = dist.distributed_c10d._get_default_store()
    if rank() != 0:
        store.wait(["chained"])
        with contextlib.suppress(dist.DistBackendError):  # Rank 0 may fail it first.
            dist.all_reduce(torch.ones(1))
        return ""
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda _: dist.destroy_process_group())
    store.set("chained", "")
    try:
        future.wait()
    except RuntimeError as error:
        return str(error)
    return "no error"


def wait_for_late_ranks(wait: Callable[[], object], key: str) -> None:
    """Calls `wait` on rank 0, and sets the key when a deadline has passed meanwhile. The late ranks then take part in the
    collective that missed it."""
    store = dist.distributed_c10d._get_default_store()
    options = dist.AllreduceOptions()
    options.timeout = timedelta(milliseconds=50)
    late = dist.group.WORLD.allreduce([torch.ones(1)], options)
    waits = threading.Event()

    def let_late_ranks_go() -> None:
        waits.wait()
        with contextlib.suppress(dist.DistBackendError):
            late.wait()
        store.set(key, "")

    thread = threading.Thread(target=let_late_ranks_go)
    with without_preemption():
        thread.start()
        waits.set()
        try:
            wait()  # Lets the other thread run.
        finally:
            thread.join()


def waits_with_very_long_timeouts() -> None:
    """Timeouts that overflow 64 bits of nanoseconds. The other ranks come when rank 0 waits."""
    store = dist.distributed_c10d._get_default_store()
    limit = timedelta(days=10**6)
    group = dist.new_group(timeout=limit)
    work = dist.all_reduce(torch.ones(3), group=group, async_op=True) if rank() == 0 else None
    future = work.get_future() if work is not None else None
    for wait in (lambda: work.wait(), lambda: dist.monitored_barrier(timeout=limit)):
        key = f"late-{next(_numbers)}"
        if rank() == 0:
            wait_for_late_ranks(wait, key)
            continue
        store.wait([key])
        dist.all_reduce(torch.ones(1))
        if work is None:
            work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
            future = work.get_future()
        wait()
    check(future.wait()[0], torch.full((3,), float(ranks())), "a future with a long timeout")


def futures_in_callbacks() -> None:
    """A callback waits for the future of a collective that it submits itself, as those of PowerSGD do."""
    store = dist.distributed_c10d._get_default_store()
    prefix = f"callbacks-{next(_numbers)}"
    if rank() == 0:  # The others chain their callbacks before the first collective can end.
        store.wait([f"{prefix}-{r}" for r in range(1, ranks())])

    def again(future: torch.futures.Future) -> Tensor:
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    chain = dist.all_reduce(torch.ones(1000), async_op=True).get_future().then(again).then(lambda future: future.value() + 1)
    store.set(f"{prefix}-{rank()}", "chained")
    check(chain.wait(), torch.full((1000,), float(ranks() ** 2 + 1)), "sum of sums")
