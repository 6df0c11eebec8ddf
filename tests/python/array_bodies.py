"""The program of a rank without torch: collectives of numpy arrays. Arguments: store, size, rank."""

import os
import pathlib
import sys

import numpy as np
import weft


class StoreWithAPath:
    """A store that is also a path, as a proxy that has every attribute."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get_all(self, keys: list[str], timeout_s: float) -> list[bytes | None]:
        return [self.values.get(key) for key in keys]

    def delete(self, key: str) -> None:
        self.values.pop(key, None)

    def __fspath__(self) -> str:
        return self.folder


def check_stores(store: str) -> None:
    """A store may be a path of bytes. A store that is also a path is a store."""
    folder = f"{store}-bytes-{os.getpid()}"
    weft.Session(os.fsencode(folder), 0, 1, segment_bytes=1 << 20).close()
    assert os.path.isdir(folder)
    folder = f"{store}-path-{os.getpid()}"
    weft.Session(StoreWithAPath(folder), 0, 1, segment_bytes=1 << 20).close()
    assert not os.path.exists(folder)


def main(store: str, size: int, rank: int) -> None:
    assert "torch" not in sys.modules
    session = weft.Session(pathlib.Path(store), rank, size, timeout_s=60)
    group = weft.Group(session, "world", list(range(size)))
    assert (group.rank, group.size, session.rank, session.size) == (rank, size, rank, size)

    whole = session.allocate_bytes(4 * 10 * size).view(np.float32)
    own = whole[10 * rank : 10 * (rank + 1)]
    own[:] = np.arange(10) + 100 * rank
    group.all_gather(own, whole).wait()
    expected = np.concatenate([np.arange(10) + 100 * r for r in range(size)]).astype(np.float32)
    assert np.array_equal(whole, expected), whole
    group.reduce_scatter(whole, own, "average").wait()
    assert np.array_equal(own, np.arange(10) + 100 * rank), own
    assert session.counters()["copied_bytes"] == 0, session.counters()
    exported = np.from_dlpack(own)
    assert np.shares_memory(exported, own) and np.array_equal(exported, own)

    for dtype in (np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64):
        array = np.arange(7, dtype=dtype) + dtype(rank)
        group.all_reduce(array, "max").wait()
        assert np.array_equal(array, np.arange(7) + size - 1), (dtype, array)
    counts = [2 * r for r in range(size)]
    uneven = np.zeros(sum(counts))
    group.all_gather(np.full(2 * rank, rank, np.float64), uneven, counts).wait()
    assert np.array_equal(uneven, np.repeat(np.arange(size), counts)), uneven
    # In place. An empty part shares no byte with the whole, wherever it lies: a memoryview says where, numpy does not.
    uneven[rank * (rank + 1) :] = uneven[: rank * (rank - 1)] = 0
    part = uneven[rank * (rank - 1) : rank * (rank + 1)] if rank > 0 else memoryview(uneven)[1:1]
    group.all_gather(part, uneven, counts).wait()
    assert np.array_equal(uneven, np.repeat(np.arange(size), counts)), uneven
    shared = np.full(3, rank, np.int64)
    group.broadcast(shared, size - 1).wait()
    assert shared.tolist() == [size - 1] * 3

    right, left = (rank + 1) % size, (rank - 1) % size
    incoming = np.zeros(4)
    receive = group.receive(incoming, left, tag=5)
    group.send(np.full(4, rank, np.float64), right, tag=5).wait()
    receive.wait()
    assert receive.done and receive.source == left and incoming.tolist() == [left] * 4

    for wrong in (
        lambda: group.all_reduce(np.ones(2), "mean"),
        lambda: group.all_reduce(np.ones(2, np.int32), "average"),
        lambda: group.all_gather(np.ones(2), np.ones(2 * size + 1)),
        lambda: group.all_gather(np.ones(2), np.ones(2 * size, np.float32)),
        lambda: group.all_reduce(np.ones((4, 4)).T[:2]),
        lambda: group.broadcast(np.ones(2), size),
        lambda: weft.Session(5, 0, 1),
        lambda: weft.Group(session, "twice", [rank, rank]),
        lambda: weft.Group(session, "beyond", [rank, size]),
    ):
        try:
            wrong()
        except (ValueError, TypeError):
            continue
        raise AssertionError("a wrong argument was accepted")
    most = 2**63 - 1
    for wrong, fault in (
        (lambda: group.all_gather(whole[1:3], whole[: 2 * size]), "share memory"),
        (lambda: group.reduce_scatter(whole[: 2 * size], whole[1:3]), "share memory"),
        (lambda: group.all_gather(np.ones(2), np.ones(2 * size), [most] * (size - 1) + [2 * size + 2]), "add up to more"),
    ):
        try:
            wrong()
        except ValueError as error:
            assert fault in str(error), error
            continue
        raise AssertionError(f"{fault}: accepted")
    read_only = np.ones(2)
    read_only.flags.writeable = False
    for array, fault in (
        ([1.0], "a list cannot be moved"),
        (np.ones(2, ">f4"), "of dtype >f4 cannot be moved"),
        (np.array(["a"]), "of dtype <U1 cannot be moved"),
        (np.ones((4, 4)).T[:2], "not C-contiguous"),
        (read_only, "read-only"),
    ):
        try:
            group.all_reduce(array)
        except TypeError as error:
            assert fault in str(error), error
            continue
        raise AssertionError(f"{fault}: accepted")
    check_stores(store)
    group.barrier().wait()
    session.close()
    assert session.closed
    assert np.array_equal(own, np.arange(10) + 100 * rank)  # Outlives the session.


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
