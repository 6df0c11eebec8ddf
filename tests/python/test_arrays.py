"""Sessions and collectives of numpy arrays, without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parent / "array_bodies.py"
CLOSING = Path(__file__).resolve().parent / "closing_bodies.py"


def run_ranks(program: Path, size: int, *arguments: str) -> None:
    """Runs the program as `size` ranks; the rank is its last argument."""
    ranks = [
        subprocess.Popen([sys.executable, str(program), *arguments, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(size)
    ]
    try:
        outputs = [rank.communicate(timeout=120)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(outputs)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_arrays_are_moved_and_reduced(tmp_path: Path, size: int) -> None:
    run_ranks(PROGRAM, size, str(tmp_path / "store"), str(size))


@pytest.mark.parametrize("meanwhile", ["closed", "counters", "allocate", "submit", "drop", "wait"])
def test_a_session_closes_while_another_thread_uses_it(tmp_path: Path, meanwhile: str) -> None:
    process = subprocess.run(
        [sys.executable, str(CLOSING), str(tmp_path / "store"), meanwhile], stderr=subprocess.PIPE, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("case", ["drain", "abort", "late", "source", "call", "model", "making", "inside"])
def test_operations_end_in_one_thread_while_another_uses_them(tmp_path: Path, case: str) -> None:
    run_ranks(CLOSING, 2, str(tmp_path / "store"), case)
