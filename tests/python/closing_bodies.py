"""Sessions whose operations end in one thread while another uses them.

Arguments: store, and what the other thread does, or a case and the rank.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import weft
from array_bodies import expect_error

SESSIONS = 4
OPERATIONS = 500
ENDED = 40_000  # Operations that are dropped during the release of others, which takes milliseconds.


@contextlib.contextmanager
def without_preemption() -> Iterator[None]:
    """In this context, a thread runs until it releases the interpreter's lock by itself, as in a call of weft that waits."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@contextlib.contextmanager
def once_a_call_waits(action: Callable[[], object]) -> Iterator[None]:
    """Another thread runs `action` when the call in this context waits."""
    begins = threading.Event()

    def act() -> None:
        begins.wait()
        action()

    thread = threading.Thread(target=act)
    with without_preemption():
        thread.start()
        begins.set()
        try:
            yield
        finally:
            thread.join()


def receive(group: weft.Group) -> weft.Operation:
    """An operation that nobody completes."""
    return group.receive(np.ones(1, np.float32), 0, tag=1)


def user_of(session: weft.Session, group: weft.Group, what: str) -> Callable[[], object]:
    pending: list[weft.Operation] = []

    def drop() -> None:
        if not pending:
            pending.extend(receive(group) for _ in range(OPERATIONS))
        pending.pop()

    return {
        "closed": lambda: session.closed,
        "counters": session.counters,
        "allocate": lambda: session.allocate_bytes(64),
        "submit": lambda: receive(group),
        "drop": drop,
        "wait": lambda: receive(group).wait(0.01),
    }[what]


def close_while_used(store: str, what: str) -> None:
    for number in range(SESSIONS):
        session = weft.Session(f"{store}-{number}", 0, 1, timeout_s=0.1, segment_bytes=1 << 24)
        group = weft.Group(session, "world", [0])
        for _ in range(20):
            receive(group)  # The engine keeps the array of a dropped operation.
        use = user_of(session, group, what)
        stop = threading.Event()

        def run(use: Callable[[], object] = use, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                with contextlib.suppress(RuntimeError, TimeoutError):  # The session is closed, or the wait was in vain.
                    use()

        thread = threading.Thread(target=run)
        thread.start()
        session.close()
        stop.set()
        thread.join()


def await_file(path: str) -> None:
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.001)


class PairOfRanks:
    """A session of two ranks on two nodes, whose lanes hold GROUPS * BROADCASTS broadcasts by rank 0."""

    GROUPS = 6
    BROADCASTS = 8  # Of a lane before its descriptor ring is full.

    def __init__(self, store: str, rank: int) -> None:
        os.environ["WEFT_NODE_ID"] = str(rank)  # A broadcast to another node is *ready* on its root at once.
        self.session = weft.Session(store, rank, 2, timeout_s=60, segment_bytes=1 << 24)
        self.groups = [weft.Group(self.session, f"group {number}", [0, 1]) for number in range(self.GROUPS)]
        self.go = f"{store}-go"

    def broadcasts(self) -> Iterator[weft.Operation]:
        for _ in range(self.BROADCASTS):
            for group in self.groups:
                yield group.broadcast(self.session.allocate_bytes(64), 0)


def close_before_the_release(store: str, rank: int) -> None:
    """Rank 0 closes while its broadcasts are *ready*, but not *released*, and drops operations meanwhile."""
    for number in range(SESSIONS):
        pair = PairOfRanks(f"{store}-{number}", rank)
        if rank == 1:
            await_file(pair.go)
            for operation in pair.broadcasts():
                operation.wait()  # The peer releases them one after the other.
            pair.session.close()
            continue
        alone = weft.Group(pair.session, "alone", [0])
        held = list(pair.broadcasts())[::2]  # The engine keeps the arrays of the others.
        ended = [alone.barrier() for _ in range(ENDED)]
        stop = threading.Event()

        def drop(pair: PairOfRanks = pair, ended: list[weft.Operation] = ended) -> None:
            while not stop.is_set():
                if len(ended) == ENDED * 3 // 4:
                    open(pair.go, "w").close()
                if ended:
                    ended.pop()

        thread = threading.Thread(target=drop)
        thread.start()
        pair.session.close()
        stop.set()
        thread.join()
        for operation in held:
            operation.wait()  # All have been released.


def close_after_a_missed_deadline(store: str, rank: int) -> None:
    """An operation of rank 0 misses the deadline of a wait, and ends well later. Close waits for operations all the same."""
    pair = PairOfRanks(store, rank)
    group = pair.groups[0]
    if rank == 1:
        await_file(f"{store}-missed")
        group.all_reduce(np.ones(1)).wait()
        await_file(pair.go)
        for operation in pair.broadcasts():
            operation.wait()
        pair.session.close()
        return
    late = group.all_reduce(np.ones(1))
    expect_error(TimeoutError, "waits for rank(s) 1", lambda: late.wait(0.01))
    open(f"{store}-missed", "w").close()
    late.wait()
    held = list(pair.broadcasts())
    with once_a_call_waits(lambda: open(pair.go, "w").close()):
        pair.session.close()
    for operation in held:
        operation.wait()  # All have been released.


def close_after_an_abort(store: str, rank: int) -> None:
    """Broadcasts that were *ready* at the failure have failed, with its cause, also after the end of the session."""
    pair = PairOfRanks(store, rank)
    if rank == 0:
        operations = list(pair.broadcasts())
        pair.session.abort("enough")
        assert all(operation.done for operation in operations)
        pair.session.close()
        for operation in operations:
            try:
                operation.wait()
            except RuntimeError as error:
                assert "enough" in str(error), error
                continue
            raise AssertionError("an operation of a failed engine has succeeded")
        open(pair.go, "w").close()
    else:
        await_file(pair.go)
    pair.session.close()


def close_in_vain(store: str, rank: int) -> None:
    """Rank 1 does not receive the broadcasts of rank 0, for one of which a thread waits. The error names what is missing."""
    pair = PairOfRanks(store, rank)
    if rank == 0:
        operations = list(pair.broadcasts())
        errors: list[str] = []

        def wait() -> None:
            try:
                operations[-1].wait(60)
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        pair.session.close()
        thread.join()
        open(pair.go, "w").close()
        assert len(errors) == 1, errors
        assert "rank 0 closed its session, but broadcast" in errors[0] and "waits for rank(s) 1" in errors[0], errors
    else:
        await_file(pair.go)
    pair.session.close()


def read_while_waiting(store: str, rank: int) -> None:
    """Rank 0 reads attributes of an operation for which another thread waits, while arrays of others are released."""
    session = weft.Session(store, rank, 2, timeout_s=60, segment_bytes=1 << 24)
    group = weft.Group(session, "world", [0, 1])
    messages = 300
    if rank == 1:
        for tag in range(messages):
            group.send(np.ones(1, np.float32), 0, tag).wait()
            time.sleep(0.001)
    else:
        last = [group.receive(np.ones(1, np.float32), 1, tag) for tag in range(messages)][-1]
        thread = threading.Thread(target=last.wait)
        thread.start()
        while not last.done:
            assert last.source in (-1, 1)
        thread.join()
        assert last.source == 1
    session.close()


def reset_after_an_abort(store: str, rank: int) -> None:
    """Both ranks reset their session, and later rank 0 alone."""
    session = weft.Session(store, rank, 2, timeout_s=10, segment_bytes=1 << 24)  # Also of the start.
    group = weft.Group(session, "world", [0, 1])

    def await_rank(other: int, place: str) -> None:
        if rank != other:
            await_file(f"{store}-{place}")
        else:
            open(f"{store}-{place}", "w").close()

    await_rank(1, "made")
    if rank == 0:
        session.abort("on purpose")
    expect_error(RuntimeError, "on purpose", lambda: group.barrier().wait())
    session.reset()
    array = np.ones(3)
    group.all_reduce(array).wait()
    assert array.tolist() == [2.0] * 3
    await_rank(1, "reduced")
    if rank == 0:
        expect_error(TimeoutError, "reset of the engine: all-gather of blobs: rank 1 did not arrive", session.reset)
    await_rank(0, "missed")
    session.close()


if __name__ == "__main__":
    cases = {
        "drain": close_before_the_release,
        "deadline": close_after_a_missed_deadline,
        "abort": close_after_an_abort,
        "late": close_in_vain,
        "source": read_while_waiting,
        "reset": reset_after_an_abort,
    }
    if sys.argv[2] in cases:
        cases[sys.argv[2]](sys.argv[1], int(sys.argv[3]))
    else:
        close_while_used(sys.argv[1], sys.argv[2])
