"""The program of a rank without torch: checks of collectives of numpy arrays. Arguments: store, size, rank.

Runs all checks in one session, and prints the traceback of each that fails, by its name, in JSON. A check that fails on some ranks only
can make the later ones fail.
"""

import json
import os
import pathlib
import sys
import traceback
from collections.abc import Callable

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


def expect_error(kinds: type[Exception] | tuple[type[Exception], ...], fault: str, wrong: Callable[[], object]) -> None:
    try:
        wrong()
    except kinds as error:
        assert fault in str(error), error
    else:
        raise AssertionError(f"a wrong argument was accepted: {fault}")


def needs_no_torch(session: weft.Session, group: weft.Group) -> None:
    assert "torch" not in sys.modules


def knows_its_ranks(session: weft.Session, group: weft.Group) -> None:
    assert (group.rank, group.size) == (session.rank, session.size) == (int(sys.argv[3]), int(sys.argv[2]))


def moves_node_memory_without_copies(session: weft.Session, group: weft.Group) -> None:
    before = session.counters()["copied_bytes"]
    whole = session.allocate_bytes(4 * 10 * group.size).view(np.float32)
    own = whole[10 * group.rank : 10 * (group.rank + 1)]
    own[:] = np.arange(10) + 100 * group.rank
    group.all_gather(own, whole).wait()
    expected = np.concatenate([np.arange(10) + 100 * r for r in range(group.size)]).astype(np.float32)
    assert np.array_equal(whole, expected), whole
    group.reduce_scatter(whole, own, "average").wait()
    assert np.array_equal(own, np.arange(10) + 100 * group.rank), own
    assert session.counters()["copied_bytes"] == before, session.counters()


def exports_node_memory(session: weft.Session, group: weft.Group) -> None:
    array = session.allocate_bytes(40).view(np.float32)
    array[:] = np.arange(10)
    exported = np.from_dlpack(array)
    assert np.shares_memory(exported, array) and np.array_equal(exported, array)


def reduces_all_dtypes(session: weft.Session, group: weft.Group) -> None:
    for dtype in (np.uint8, np.int8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64):
        array = np.arange(7, dtype=dtype) + dtype(group.rank)
        group.all_reduce(array, "max").wait()
        assert np.array_equal(array, np.arange(7) + group.size - 1), (dtype, array)


def gathers_different_counts(session: weft.Session, group: weft.Group) -> None:
    counts = [2 * r for r in range(group.size)]
    whole = np.zeros(sum(counts))
    group.all_gather(np.full(2 * group.rank, group.rank, np.float64), whole, counts).wait()
    assert np.array_equal(whole, np.repeat(np.arange(group.size), counts)), whole


def gathers_different_counts_in_place(session: weft.Session, group: weft.Group) -> None:
    rank = group.rank
    counts = [2 * r for r in range(group.size)]
    whole = np.zeros(sum(counts))
    # An empty part shares no byte with the whole, wherever it lies: a memoryview says where, numpy does not.
    part = whole[rank * (rank - 1) : rank * (rank + 1)] if rank > 0 else memoryview(whole)[1:1]
    if rank > 0:
        part[:] = rank
    group.all_gather(part, whole, counts).wait()
    assert np.array_equal(whole, np.repeat(np.arange(group.size), counts)), whole


def broadcasts(session: weft.Session, group: weft.Group) -> None:
    shared = np.full(3, group.rank, np.int64)
    group.broadcast(shared, group.size - 1).wait()
    assert shared.tolist() == [group.size - 1] * 3


def sends_and_receives(session: weft.Session, group: weft.Group) -> None:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    incoming = np.zeros(4)
    receive = group.receive(incoming, left, tag=5)
    group.send(np.full(4, group.rank, np.float64), right, tag=5).wait()
    receive.wait()
    assert receive.done and receive.source == left and incoming.tolist() == [left] * 4


def refuses_wrong_arguments(session: weft.Session, group: weft.Group) -> None:
    rank, size = group.rank, group.size
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
        expect_error((ValueError, TypeError), "", wrong)


def refuses_wrong_parts(session: weft.Session, group: weft.Group) -> None:
    size, most = group.size, 2**63 - 1
    whole = session.allocate_bytes(4 * 10 * size).view(np.float32)
    for wrong, fault in (
        (lambda: group.all_gather(whole[1:3], whole[: 2 * size]), "share memory"),
        (lambda: group.reduce_scatter(whole[: 2 * size], whole[1:3]), "share memory"),
        (lambda: group.all_gather(np.ones(2), np.ones(2 * size), [most] * (size - 1) + [2 * size + 2]), "add up to more"),
    ):
        expect_error(ValueError, fault, wrong)


def refuses_arrays_that_cannot_be_moved(session: weft.Session, group: weft.Group) -> None:
    read_only = np.ones(2)
    read_only.flags.writeable = False
    for array, fault in (
        ([1.0], "a list cannot be moved"),
        (np.ones(2, ">f4"), "of dtype >f4 cannot be moved"),
        (np.array(["a"]), "of dtype <U1 cannot be moved"),
        (np.ones((4, 4)).T[:2], "not C-contiguous"),
        (read_only, "read-only"),
    ):
        expect_error(TypeError, fault, lambda array=array: group.all_reduce(array))


def refuses_arrays_that_are_not_aligned(session: weft.Session, group: weft.Group) -> None:
    size = group.size

    def misaligned(elements: int, dtype: type = np.float32, offset: int = 2) -> np.ndarray:
        return np.frombuffer(bytearray(np.dtype(dtype).itemsize * elements + offset), dtype, offset=offset)

    for wrong, bytes_of_element in (
        (lambda: group.all_gather(misaligned(1), np.zeros(size, np.float32)), 4),
        (lambda: group.all_gather(np.zeros(1, np.float32), misaligned(size)), 4),
        (lambda: group.reduce_scatter(misaligned(size), np.zeros(1, np.float32)), 4),
        (lambda: group.reduce_scatter(np.zeros(size, np.float32), misaligned(1)), 4),
        (lambda: group.all_reduce(misaligned(3, np.float64, offset=4)), 8),
        (lambda: group.broadcast(misaligned(3, np.int16, offset=1)), 2),
        (lambda: group.send(misaligned(3), group.rank), 4),
        (lambda: group.receive(misaligned(3, np.complex64), group.rank), 4),
    ):
        expect_error(ValueError, f"does not begin at a multiple of {bytes_of_element} bytes", wrong)


def takes_arrays_that_need_no_alignment(session: weft.Session, group: weft.Group) -> None:
    bytes_at_odd_address = np.frombuffer(bytearray(8), np.uint8, offset=3)
    bytes_at_odd_address[:] = group.rank
    group.all_reduce(bytes_at_odd_address, "max").wait()
    assert bytes_at_odd_address.tolist() == [group.size - 1] * 5


def takes_a_path_of_bytes_as_store(session: weft.Session, group: weft.Group) -> None:
    folder = f"{sys.argv[1]}-bytes-{os.getpid()}"
    weft.Session(os.fsencode(folder), 0, 1, segment_bytes=1 << 20).close()
    assert os.path.isdir(folder)


def takes_a_store_that_is_also_a_path(session: weft.Session, group: weft.Group) -> None:
    folder = f"{sys.argv[1]}-path-{os.getpid()}"
    weft.Session(StoreWithAPath(folder), 0, 1, segment_bytes=1 << 20).close()
    assert not os.path.exists(folder)


def arrays_outlive_the_session(session: weft.Session, group: weft.Group) -> None:
    array = session.allocate_bytes(40).view(np.float32)
    array[:] = np.arange(10)
    group.barrier().wait()
    session.close()
    assert session.closed
    assert np.array_equal(array, np.arange(10))


# The last one closes the session.
CHECKS = [
    needs_no_torch,
    knows_its_ranks,
    moves_node_memory_without_copies,
    exports_node_memory,
    reduces_all_dtypes,
    gathers_different_counts,
    gathers_different_counts_in_place,
    broadcasts,
    sends_and_receives,
    refuses_wrong_arguments,
    refuses_wrong_parts,
    refuses_arrays_that_cannot_be_moved,
    refuses_arrays_that_are_not_aligned,
    takes_arrays_that_need_no_alignment,
    takes_a_path_of_bytes_as_store,
    takes_a_store_that_is_also_a_path,
    arrays_outlive_the_session,
]


def main(store: str, size: int, rank: int) -> None:
    session = weft.Session(pathlib.Path(store), rank, size, timeout_s=60)
    group = weft.Group(session, "world", list(range(size)))
    failures = {}
    for check in CHECKS:
        try:
            check(session, group)
        except Exception:
            failures[check.__name__] = traceback.format_exc()
    json.dump(failures, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
