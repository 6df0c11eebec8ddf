"""Closes sessions whose operations are unfinished, while another thread uses them. Arguments: store, what that thread does."""

import contextlib
import sys
import threading
from collections.abc import Callable

import numpy as np
import weft

SESSIONS = 4
OPERATIONS = 500


def receive(group: weft.Group) -> weft.Operation:
    """An operation that nobody completes."""
    return group.receive(np.ones(1, np.float32), 0, tag=1)


def user_of(session: weft.Session, group: weft.Group, what: str) -> Callable[[], object]:
    pending = [receive(group) for _ in range(OPERATIONS)] if what == "drop" else []
    return {
        "closed": lambda: session.closed,
        "counters": session.counters,
        "allocate": lambda: session.allocate_bytes(64),
        "submit": lambda: receive(group),
        "drop": lambda: pending and pending.pop(),
    }[what]


def main(store: str, what: str) -> None:
    for number in range(SESSIONS):
        session = weft.Session(f"{store}-{number}", 0, 1, timeout_s=0.1, segment_bytes=1 << 24)
        group = weft.Group(session, "world", [0])
        for _ in range(20):
            receive(group)  # The engine keeps the array of a dropped operation.
        use = user_of(session, group, what)
        stop = threading.Event()

        def run(use: Callable[[], object] = use, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                with contextlib.suppress(RuntimeError):  # The session is closed.
                    use()

        thread = threading.Thread(target=run)
        thread.start()
        session.close()
        stop.set()
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
