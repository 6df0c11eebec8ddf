"""Beginnings and ends of process groups, failures, signals and forks."""

import os
import subprocess
import sys

import completion_bodies
import lifecycle_bodies as bodies
import pytest
import torch.distributed as dist

from weft.torch import _backend
from weft.torch._store import StoreAdapter


def test_groups_begin_again_and_tensors_outlive_them(pool) -> None:
    for number in range(2):
        pool.run(bodies.begin_again, number)


def test_tensors_are_ordinary_without_room_in_node_memory(pool_of) -> None:
    pool_of(2).run(bodies.without_room)


def test_groups_begin_again_on_one_store(pool_of) -> None:
    pool_of(2).run(bodies.begin_again_on_the_same_store)


def test_a_missed_deadline_names_the_missing_rank(pool_of) -> None:
    messages = pool_of(3).run(bodies.missing_rank)
    assert messages[1] == ""
    for message in (messages[0], messages[2]):
        assert "all_reduce" in message and "waits for rank(s) 1" in message, message
        assert " Timed out " in message, message


def test_a_future_fails_at_the_deadline_and_its_work_does_not(pool_of) -> None:
    message = pool_of(2).run(completion_bodies.future_of_a_missing_rank)[0]
    assert "all_reduce" in message and "waits for rank(s) 1" in message, message


def test_a_future_does_not_wait_for_an_earlier_one(pool_of) -> None:
    pool = pool_of(2)
    pool.run(completion_bodies.futures_of_late_peers)
    pool.close()  # Its ranks have nodes of their own.


def test_a_callback_of_a_future_does_not_end_its_group(pool_of) -> None:
    pool = pool_of(2)
    message = pool.run(completion_bodies.a_callback_ends_its_group)[0]
    pool.close()  # Its operations have failed.
    assert "close the session after the call" in message, message


def test_a_dropped_work_writes_its_output_after_its_deadline(pool_of) -> None:
    pool_of(3).run(completion_bodies.a_dropped_work_writes_its_output_after_its_deadline)


def test_waits_with_very_long_timeouts_wait(pool_of) -> None:
    pool_of(2).run(completion_bodies.waits_with_very_long_timeouts)


def test_a_group_that_a_rank_does_not_make_fails_at_its_own_deadline(pool_of) -> None:
    pool = pool_of(3)
    answers = pool.run(bodies.new_group_of_a_missing_rank)
    pool.close()  # Its ranks have made different groups.
    for message, took in (answers[0], answers[2]):
        assert "group 1 after 8s: " in message and "rank 1 did not make the group" in message, message
        assert took < 30  # Not a measurement: the timeout of the default group is a minute.


def test_groups_may_be_wrapped_for_checks(pool_of) -> None:
    pool = pool_of(2)
    pool.run(bodies.groups_with_checks_of_collectives)
    pool.close()


def test_a_store_answers_several_keys_in_one_request() -> None:
    calls = []

    class RecordingStore:
        store = dist.TCPStore("127.0.0.1", 0, 1, True)

        def __getattr__(self, name: str) -> object:
            calls.append(name)
            return getattr(self.store, name)

    adapter = StoreAdapter(RecordingStore())
    adapter.set("a", b"1")
    adapter.set("b", b"2")
    calls.clear()
    assert adapter.get_all(["a", "b"], 1) == [b"1", b"2"]
    assert calls.count("check") == calls.count("multi_get") == 1 and "get" not in calls
    assert adapter.get_all(["a", "c"], 0) == [b"1", None]


def test_a_monitored_barrier_names_the_missing_ranks(pool_of) -> None:
    pool = pool_of(4)
    messages = pool.run(bodies.monitored_barrier_without, [1, 3], False)
    assert "Rank 1 failed to pass monitoredBarrier in 3000 ms" in messages[0], messages
    assert "Rank 2 successfully reached monitoredBarrier" in messages[2] and "Rank 1 failed" in messages[2], messages
    messages = pool.run(bodies.monitored_barrier_without, [1, 3], True)
    assert "Ranks 1, 3 failed to pass monitoredBarrier in 3000 ms" in messages[0], messages
    messages = pool.run(bodies.monitored_barrier_without, [0], False)
    assert all("waiting for send/recv from rank 0: no answer" in message for message in messages[1:]), messages


def test_a_signal_ends_a_wait(pool_of) -> None:
    # Not a measurement: a wait that ignores signals ends at its deadline, after a minute.
    assert 0 < pool_of(2).run(bodies.interrupted_wait)[0] < 30


@pytest.mark.parametrize("body", [bodies.interrupted_data_parallel, bodies.interrupted_new_group], ids=lambda body: body.__name__)
def test_a_signal_ends_a_wait_of(pool_of, body) -> None:
    pool = pool_of(2)
    took = pool.run(body)[0][0]
    if body is bodies.interrupted_new_group:
        pool.close()  # Its ranks have made different groups.
    assert took < 30


@pytest.mark.parametrize("store", ["folder", "torch"])
def test_a_signal_ends_a_start(pool_of, store: str) -> None:
    assert pool_of(1).run(bodies.interrupted_start, store)[0][0] < 30


@pytest.mark.parametrize("body", [bodies.forked_children, bodies.data_loader], ids=lambda body: body.__name__)
def test_forks_are_harmless(pool_of, body) -> None:
    pool_of(2).run(body)


def test_an_abort_reaches_all_ranks(pool_of) -> None:
    messages = pool_of(3).run(bodies.abort)
    assert all("rank 0" in message for message in messages[1:]), messages


@pytest.mark.parametrize(
    "kind, names",
    [
        ("send", ["16 bytes of f32", "16 bytes of i32"]),
        ("complex", ["8 f32 (complex) by sum", "8 f32 by sum"]),
        ("broadcast", ["16 u8 (float8_e4m3fn)", "16 u8 (float8_e5m2)"]),
    ],
)
def test_different_dtypes_are_an_error_on_all_ranks(pool_of, kind: str, names: list[str]) -> None:
    for message in pool_of(2).run(bodies.different_dtypes, kind):
        assert all(name in message for name in names), message


def test_different_dtypes_of_arrays_are_an_error_on_all_ranks(pool_of, tmp_path) -> None:
    for message in pool_of(2).run(bodies.different_dtypes_of_arrays, str(tmp_path)):
        assert "16 bytes of u8 (float8_e4m3fn)" in message and "16 bytes of u8 (float8_e5m2)" in message, message


def test_a_group_of_weft_under_gloo(pool_of) -> None:
    pool_of(3, "gloo").run(bodies.group_under_gloo)


def test_a_model_whose_group_has_ended_concerns_no_other(pool_of) -> None:
    assert "its process group has ended" in pool_of(2).run(bodies.a_model_outlives_its_group)[0]


@pytest.mark.parametrize("text", ["", "-1", "all", str(2**63)])
def test_a_wrong_segment_size_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("WEFT_SEGMENT_BYTES", text)
    with pytest.raises(ValueError, match="WEFT_SEGMENT_BYTES must be"):
        _backend._segment_bytes()


@pytest.mark.parametrize("name, value", [("WEFT_SEGMENT_BYTES", "64M"), ("WEFT_PRIVATE_HEAP", "yes")])
def test_a_wrong_variable_of_one_rank_is_an_error_of_all(pool_of, name: str, value: str) -> None:
    messages = pool_of(2).run(bodies.start_with_a_wrong_variable_on_rank_1, name, value)
    assert "rank 1" in messages[0], messages
    assert all(name in message and f"'{value}'" in message for message in messages), messages


@pytest.mark.parametrize("end", ["", "dist.destroy_process_group()", "raise SystemExit(0)"])
def test_a_process_ends_cleanly(tmp_path, end: str) -> None:
    program = (
        "import torch, torch.distributed as dist, weft.torch\n"
        f"dist.init_process_group('weft', store=dist.FileStore({str(tmp_path / 'store')!r}, 1), rank=0, world_size=1)\n"
        "work = dist.all_reduce(torch.ones(5), async_op=True)\n"
        "future = work.get_future()\n" + end
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=os.environ)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_another_version_of_torch_is_refused() -> None:
    program = (
        "import torch\n"
        "torch.__version__ = '2.0.0'\n"
        "try:\n"
        "    import weft.torch\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert "--no-build-isolation" in ended.stdout, ended.stdout
