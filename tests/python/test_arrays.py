"""Sessions and collectives of numpy arrays, without torch."""

import json
import subprocess
import sys
from pathlib import Path

import array_bodies
import pytest

FOLDER = Path(__file__).resolve().parent
CLOSING = FOLDER / "closing_bodies.py"
CLOSING_IN_CALLS = FOLDER / "closing_in_call_bodies.py"


def run_ranks(program: str | Path, size: int, *arguments: str) -> list[str]:
    """Runs the program as `size` ranks; the rank is its last argument. Returns what the ranks print."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), *arguments, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    try:
        outputs = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(errors for _, errors in outputs)
    return [text for text, _ in outputs]


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids=lambda size: f"{size}ranks")
def failures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """The checks of arrays that fail, by rank, with their tracebacks. All checks of a number of ranks take one start."""
    store = tmp_path_factory.mktemp("arrays") / "store"
    return [json.loads(text) for text in run_ranks(array_bodies.__file__, request.param, str(store), str(request.param))]


@pytest.mark.parametrize("check", [check.__name__ for check in array_bodies.CHECKS])
def test_arrays(failures: list[dict[str, str]], check: str) -> None:
    failed = [f"rank {rank}: {of_rank[check]}" for rank, of_rank in enumerate(failures) if check in of_rank]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("meanwhile", ["closed", "counters", "allocate", "submit", "drop", "wait"])
def test_a_session_closes_while_another_thread_uses_it(tmp_path: Path, meanwhile: str) -> None:
    process = subprocess.run(
        [sys.executable, str(CLOSING), str(tmp_path / "store"), meanwhile], stderr=subprocess.PIPE, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("case", ["drain", "deadline", "abort", "late", "source"])
def test_operations_end_in_one_thread_while_another_uses_them(tmp_path: Path, case: str) -> None:
    run_ranks(CLOSING, 2, str(tmp_path / "store"), case)


@pytest.mark.parametrize("case", ["call", "model", "making", "inside", "group"])
def test_a_session_closes_during_a_call_that_uses_it(tmp_path: Path, case: str) -> None:
    run_ranks(CLOSING_IN_CALLS, 2, str(tmp_path / "store"), case)


def test_a_session_closes_while_a_hook_of_a_model_hangs(tmp_path: Path) -> None:
    run_ranks(CLOSING_IN_CALLS, 1, str(tmp_path / "store"), "hook")


def test_a_session_works_again_after_a_reset_of_all_ranks(tmp_path: Path) -> None:
    run_ranks(CLOSING, 2, str(tmp_path / "store"), "reset")
