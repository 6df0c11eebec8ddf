"""Functions that the ranks run: beginnings and ends of process groups, failures, signals, forks."""

import contextlib
import gc
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from rank_worker import init_group

import weft
import weft.torch
from weft.torch._store import StoreAdapter


def begin_again(number: int) -> None:
    """A tensor of an earlier group stays valid, and so does a work."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu")).fill_(7)
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()
    del backend
    with pytest.warns(UserWarning, match="the weft session is closed"), weft.torch.node_memory():
        allocated = torch.full((1 << 14,), 5.0)
        dist.destroy_process_group()
        torch.empty(1 << 14)
    gc.collect()
    init_group(f"-{number}")
    assert torch.equal(tensor, torch.full((1000,), 7.0)) and torch.equal(allocated, torch.full((1 << 14,), 5.0))
    assert work.is_completed()
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((1000,), 7.0 * dist.get_world_size()))


def without_room() -> None:
    """Without room in node memory, tensors and buckets of DDP are ordinary, and one warning says so. Joined inputs are, too."""
    dist.destroy_process_group()
    with mock.patch.dict(os.environ, WEFT_SEGMENT_BYTES=str(8 << 20)):
        init_group("-small")
    with pytest.warns(UserWarning, match=r"tensors: \d+ bytes in 2 allocations are in ordinary memory.*free") as warned:
        with weft.torch.node_memory():
            tensors = [torch.ones(1 << 22) for _ in range(2)]
    assert [warning.filename for warning in warned] == [__file__]
    dist.all_reduce(tensors[0])
    assert torch.equal(tensors[0], torch.full((1 << 22,), float(dist.get_world_size())))
    output, parts = torch.zeros(1 << 22), [torch.full((1 << 22,), float(part)) for part in range(dist.get_world_size())]
    dist.reduce_scatter(output, parts)
    assert torch.equal(output, torch.full((1 << 22,), float(dist.get_rank() * dist.get_world_size())))
    with pytest.warns(UserWarning, match="buckets of DistributedDataParallel: "):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1 << 11, 1 << 11))
    model(torch.ones(1, 1 << 11)).sum().backward()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    with pytest.raises(MemoryError, match="largest free range"):
        backend.allocate_tensor(1 << 22, dtype=torch.float32, device=torch.device("cpu"))
    dist.destroy_process_group()
    init_group("-after-small")


def start_with_a_wrong_variable_on_rank_1(name: str, value: str) -> str:
    """The error of this rank. All ranks can begin again after it."""
    wrong = {name: value} if dist.get_rank() == 1 else {}
    dist.destroy_process_group()
    with mock.patch.dict(os.environ, wrong), pytest.raises(ValueError) as caught:
        init_group(f"-wrong-{name}")
    init_group(f"-right-{name}")
    return str(caught.value)


def begin_again_on_the_same_store() -> None:
    """As under torchrun, whose store outlives the groups."""
    for _ in range(2):
        dist.destroy_process_group()
        init_group("-shared")
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == dist.get_world_size()


def missing_rank() -> str:
    """The error of an operation that rank 1 does not submit. All ranks can go on after it."""
    message = ""
    work = None
    dist.barrier()  # The other ranks submit it before the deadline of the first.
    if dist.get_rank() != 1:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        try:
            work.wait(timedelta(seconds=3))
        except dist.DistBackendError as error:
            message = str(error)
        assert not work.is_completed()
    store = dist.distributed_c10d._get_default_store()
    store.set(f"timed-out-{dist.get_rank()}", "yes")
    store.wait([f"timed-out-{rank}" for rank in range(dist.get_world_size())])
    if work is None:
        work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    return message


def new_group_of_a_missing_rank() -> tuple[str, float]:
    """The error of a group that rank 1 does not make, and how long it took."""
    dist.barrier()
    message, before = "", time.monotonic()
    if dist.get_rank() != 1:
        try:
            dist.new_group(timeout=timedelta(seconds=8))
        except (RuntimeError, TimeoutError) as error:
            message = str(error)
    took = time.monotonic() - before
    store = dist.distributed_c10d._get_default_store()
    store.set(f"made-{dist.get_rank()}", "yes")
    store.wait([f"made-{rank}" for rank in range(dist.get_world_size())])
    return message, took


def groups_with_checks_of_collectives() -> None:
    """As under TORCH_DISTRIBUTED_DEBUG=DETAIL, where PyTorch puts a wrapper around each backend."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    dist.destroy_process_group()
    init_group("-checked")
    assert isinstance(dist.group.WORLD._get_backend(torch.device("cpu")), dist.distributed_c10d._ProcessGroupWrapper)
    with weft.torch.node_memory():
        tensor = torch.ones(1 << 14)
    dist.all_reduce(tensor)
    assert tensor[0].item() == dist.get_world_size()
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))(torch.ones(1, 4)).sum().backward()
    for shard in (weft.fully_shard, torch.distributed.fsdp.fully_shard):
        model = shard(torch.nn.Linear(4, 4))
        model(torch.ones(1, 4)).sum().backward()
        assert model.weight.grad is not None


def monitored_barrier_without(missing: list[int], wait_all_ranks: bool) -> str:
    """The error of a monitored barrier that some ranks do not enter. Collectives work after it."""
    message = ""
    dist.barrier()  # The ranks that enter do so before the deadline of the first.
    if dist.get_rank() not in missing:
        try:
            dist.monitored_barrier(timeout=timedelta(seconds=3), wait_all_ranks=wait_all_ranks)
        except RuntimeError as error:
            message = str(error)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()
    dist.destroy_process_group()
    init_group(f"-monitored-{wait_all_ranks}-{len(missing)}")
    dist.monitored_barrier()
    return message


def interrupted_wait() -> float:
    """Seconds from SIGINT to KeyboardInterrupt in a wait on rank 0."""
    seconds = 0.0
    work = None
    if dist.get_rank() == 0:
        sent = []

        def interrupt() -> None:
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        work = dist.all_reduce(torch.ones(2), async_op=True)
        timer = threading.Timer(0.3, interrupt)
        timer.start()
        try:
            work.wait()
        except KeyboardInterrupt:
            seconds = time.monotonic() - sent[0]
        assert seconds > 0, "the wait was not interrupted"
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.set("interrupted", "yes")
    store.wait(["interrupted"])
    if work is None:
        work = dist.all_reduce(torch.ones(2), async_op=True)
    work.wait()
    return seconds


def forked_children() -> None:
    """A child may use and drop tensors of the backend, gets an error from collectives, and ends by itself."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu")).fill_(7)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            is_right = tensor.sum().item() == 7000
            del tensor
            gc.collect()
            try:
                dist.all_reduce(torch.ones(1))
            except dist.DistBackendError as error:
                code = 0 if is_right and "forked child" in str(error) else 2
            with warnings.catch_warnings(record=True) as warned, weft.torch.node_memory():
                torch.ones(1 << 14)
            if "forked child" not in str(warned[0].message):
                code = 3
        finally:
            os._exit(code)
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == (child, 0), ended
    dist.all_reduce(tensor)
    assert tensor[0].item() == 7 * dist.get_world_size()


def a_model_outlives_its_group() -> str:
    """The error of an optimizer of a model whose process group has ended. Optimizers of other models work, and shards stay readable."""
    closed = weft.fully_shard(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(closed.parameters(), lr=0.1)
    closed(torch.ones(1, 4)).sum().backward()
    shards = [*closed.parameters(), *(param.grad for param in closed.parameters())]
    values = [shard.to_local().clone() for shard in shards]
    dist.destroy_process_group()
    init_group("-after-model")
    assert all(torch.equal(shard.to_local(), value) for shard, value in zip(shards, values, strict=True))
    other = torch.nn.Linear(4, 4)
    other(torch.ones(1, 4)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()
    try:
        optimizer.step()
    except RuntimeError as error:
        return str(error)
    return ""


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index * index))


def data_loader() -> None:
    loader = torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        total = torch.zeros(1)
        for batch in loader:
            dist.all_reduce(batch)
            total += batch.sum()
        assert total.item() == 140 * dist.get_world_size()


def abort() -> str:
    """Rank 0 aborts. The others get its error, and all can begin again."""
    message = ""
    if dist.get_rank() == 0:
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()
    else:
        try:
            dist.all_reduce(torch.ones(1))
        except dist.DistBackendError as error:
            message = str(error)
    dist.destroy_process_group()
    init_group("-after-abort")
    dist.barrier()
    return message


def different_dtypes(kind: str) -> str:
    """The error of this rank. The buffers have the same bytes on all ranks. All can begin again."""
    first = dist.get_rank() == 0
    tensor = torch.ones(4, dtype=torch.float32 if first else torch.int32)
    narrow = torch.ones(16).to(torch.float8_e4m3fn if first else torch.float8_e5m2)
    with pytest.raises(dist.DistBackendError) as caught:
        if kind == "complex":
            # dist.all_reduce itself turns complex tensors into real ones.
            dist.group.WORLD.allreduce([torch.ones(4, dtype=torch.complex64) if first else torch.ones(8)]).wait()
        elif kind == "broadcast":
            dist.broadcast(narrow, 0)
        elif first:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
    dist.destroy_process_group()
    init_group(f"-after-{kind}")
    dist.barrier()
    return str(caught.value)


def different_dtypes_of_arrays(folder: str) -> str:
    """The error of this rank of a group of arrays, whose elements have the same size on both ranks."""
    rank = dist.get_rank()
    session = weft.Session(folder, rank, 2, timeout_s=60)
    group = weft.Group(session, "world", [0, 1])
    with pytest.raises(RuntimeError) as caught:
        if rank == 0:
            group.send(torch.ones(16).to(torch.float8_e4m3fn), 1).wait()
        else:
            group.receive(torch.ones(16).to(torch.float8_e5m2), 0).wait()
    return str(caught.value)


def group_under_gloo() -> None:
    """A default group of gloo, with groups of weft."""

    members = [0, dist.get_world_size() - 1]
    group = dist.new_group(sorted(set(members)), backend="weft")
    try:
        with weft.torch.node_memory():
            raise AssertionError("gloo has no node memory")
    except RuntimeError as error:
        assert "gloo" in str(error), error
    if dist.get_rank() in members:
        with weft.torch.node_memory(group):
            torch.ones(1 << 14)
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        assert torch.equal(tensor, torch.full((3,), float(len(set(members)))))
        dist.destroy_process_group(group)


@contextlib.contextmanager
def interrupted_after(seconds: float, took: list[float]) -> Iterator[None]:
    """Sends SIGINT to this process, and expects KeyboardInterrupt. Appends the seconds between them to `took`."""
    sent = []

    def interrupt() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(seconds, interrupt).start()
    try:
        yield
    except KeyboardInterrupt:
        took.append(time.monotonic() - sent[0])
    assert took, "the wait was not interrupted"


def interrupted_data_parallel() -> list[float]:
    """SIGINT on rank 0 while DistributedDataParallel waits for rank 1. Training goes on afterwards."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)))
    store = dist.PrefixStore("interrupted-ddp", dist.distributed_c10d._get_default_store())
    took: list[float] = []
    loss = model(torch.ones(1, 3)).sum()
    if dist.get_rank() == 0:
        with interrupted_after(0.3, took):
            loss.backward()
        store.set("interrupted", "yes")
    else:
        store.wait(["interrupted"])
        loss.backward()
    dist.barrier()
    model.zero_grad()
    (model(torch.full((1, 3), 1.0 + dist.get_rank())).sum()).backward()
    bias = model.module[1].bias.grad
    assert torch.equal(bias, torch.ones(2)), bias
    return took


def interrupted_new_group() -> list[float]:
    """SIGINT on rank 0 while it waits for rank 1 to make a group."""
    store = dist.PrefixStore("interrupted-group", dist.distributed_c10d._get_default_store())
    took: list[float] = []
    if dist.get_rank() == 0:
        with interrupted_after(0.3, took):
            dist.new_group()
        store.set("interrupted", "yes")
    else:
        store.wait(["interrupted"])
    return took


def interrupted_start(store: str) -> list[float]:
    """SIGINT in a process that waits for another rank to start a session. `store`: "folder" or "torch"."""
    took: list[float] = []
    with tempfile.TemporaryDirectory() as folder, interrupted_after(0.3, took):
        if store == "folder":
            weft.Session(folder, 0, 2, timeout_s=60)
        else:
            weft.Session(StoreAdapter(dist.FileStore(folder + "/store", 2)), 0, 2, timeout_s=60)
    return took
