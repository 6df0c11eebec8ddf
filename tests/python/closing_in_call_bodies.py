"""Sessions that close during a call which uses them, such as one of a sharded model.

Arguments: store, case and rank.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable

import weft
from array_bodies import expect_error
from closing_bodies import await_file, once_a_call_waits, without_preemption
from weft import _core


def sharded_model(session: weft.Session) -> _core.ShardedGroups:
    parameters = [("weight", [1024], True, 0)]
    return _core.ShardedGroups.create(session, [("shard", session.size)], [("linear", -1, "f32", "f32", "f32", parameters)])


def leave_to_rank_0(session: weft.Session, store: str, rank: int) -> None:
    """Returns on rank 0. Rank 1 ends here, once rank 0 has closed its session."""
    if rank == 1:
        await_file(f"{store}-closed")
        session.close()
        sys.exit()


def model_without_its_peer(store: str, rank: int, timeout_s: float = 60) -> tuple[weft.Session, _core.ShardedGroups]:
    """The session of rank 0, and a sharded model for whose calls rank 1 does not come."""
    session = weft.Session(store, rank, 2, timeout_s=timeout_s, segment_bytes=1 << 24)
    model = sharded_model(session)
    leave_to_rank_0(session, store, rank)
    return session, model


def begin_call(model: _core.ShardedGroups) -> tuple[threading.Thread, list[str]]:
    """A thread that waits for a gather to which no peer comes, and the errors of this call."""
    errors: list[str] = []
    begun = threading.Event()

    def unshard() -> None:
        model.unshard(0)
        begun.set()
        try:
            model.wait_unshard(0)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=unshard)
    with without_preemption():
        thread.start()
        begun.wait()  # Returns when the thread is in the call.
    return thread, errors


def close_during_a_call(store: str, rank: int) -> None:
    """Rank 0 closes while another thread is in a call of a sharded model."""
    session, model = model_without_its_peer(store, rank)
    thread, errors = begin_call(model)
    session.close()
    open(f"{store}-closed", "w").close()
    thread.join()
    assert len(errors) == 1 and "closed a sharded model before a call of another thread had ended" in errors[0], errors
    try:
        model.is_unsharded(0)
    except RuntimeError as error:
        assert "is closed" in str(error), error
    else:
        raise AssertionError("a closed model was used")


def close_model_and_session(store: str, rank: int) -> None:
    """One thread of rank 0 closes the model, another the session, while a third one is in a call of the model."""
    session, model = model_without_its_peer(store, rank)
    call, errors = begin_call(model)
    closing = threading.Thread(target=model.close)
    closing.start()
    time.sleep(1)  # That thread waits for the call.
    session.close()
    open(f"{store}-closed", "w").close()
    closing.join()
    call.join()
    assert len(errors) == 1 and "closed a sharded model before a call of another thread had ended" in errors[0], errors


def close_while_a_model_is_made(store: str, rank: int) -> None:
    """Rank 0 closes while another thread makes a model, for which rank 1 does not come."""
    session, _ = model_without_its_peer(store, rank, timeout_s=20)  # Also of the start, and of the model that is made in vain.
    errors: list[str] = []

    def make() -> None:
        try:
            sharded_model(session)
        except (RuntimeError, TimeoutError) as error:
            errors.append(str(error))

    thread = threading.Thread(target=make)
    with without_preemption():
        thread.start()
    time.sleep(1)  # The thread waits for rank 1.
    session.close()
    open(f"{store}-closed", "w").close()
    thread.join()
    assert len(errors) == 1 and "sharding 'linear'" in errors[0] and "closed" not in errors[0], errors


def close_in_a_handler(session: weft.Session, store: str, call: Callable[[], object]) -> None:
    """The handler of a signal, which arrives during `call` of rank 0, closes the session."""
    signal.signal(signal.SIGALRM, lambda *_: session.close())
    with once_a_call_waits(lambda: os.kill(os.getpid(), signal.SIGALRM)):
        expect_error(RuntimeError, "close the session after the call", call)
    assert not session.closed
    session.close()
    open(f"{store}-closed", "w").close()


def close_inside_a_call(store: str, rank: int) -> None:
    """In a call of a sharded model."""
    session, model = model_without_its_peer(store, rank)
    model.unshard(0)
    close_in_a_handler(session, store, lambda: model.wait_unshard(0))


def close_while_this_thread_makes_a_group(store: str, rank: int) -> None:
    """While a group is made, for which rank 1 does not come."""
    session = weft.Session(store, rank, 2, timeout_s=60, segment_bytes=1 << 24)
    leave_to_rank_0(session, store, rank)
    close_in_a_handler(session, store, lambda: weft.Group(session, "pair", [0, 1]))


def close_while_a_hook_hangs(store: str, rank: int) -> None:
    """Another thread is in the hook of a sharded model, and does not return. The session ends, and the model is kept."""
    session = weft.Session(store, rank, 1, timeout_s=2, segment_bytes=1 << 24)
    model = sharded_model(session)
    has_begun, may_end = threading.Event(), threading.Event()

    def hang(_: object) -> None:
        has_begun.set()
        may_end.wait(60)

    def train() -> None:
        for call in (model.before_forward, model.after_forward, model.before_backward):
            call(0, 1, True)
        model.prepare_gradients(0)
        model.begin_gradient_write(0, 0)
        with contextlib.suppress(RuntimeError):  # The session has ended.
            model.after_backward(0)
            model.finish_backward()

    model.set_gradient_hook(0, hang)
    thread = threading.Thread(target=train)
    thread.start()
    try:
        assert has_begun.wait(60), "the hook was not called"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            session.close()
        assert thread.is_alive() and session.closed
        assert len(caught) == 1 and "'linear'" in str(caught[0].message), [str(warning.message) for warning in caught]
        threads = os.listdir("/proc/self/task")
        session.close()
        assert os.listdir("/proc/self/task") == threads, "a second close has ended a thread that the kept engine uses"
    finally:
        may_end.set()
        thread.join()  # Uses what is kept.


if __name__ == "__main__":
    cases = {
        "call": close_during_a_call,
        "model": close_model_and_session,
        "making": close_while_a_model_is_made,
        "inside": close_inside_a_call,
        "group": close_while_this_thread_makes_a_group,
        "hook": close_while_a_hook_hangs,
    }
    cases[sys.argv[2]](sys.argv[1], int(sys.argv[3]))
