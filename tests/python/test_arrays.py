"""Sessions and collectives of numpy arrays, without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parent / "array_bodies.py"
CLOSING = Path(__file__).resolve().parent / "closing_bodies.py"


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_arrays_are_moved_and_reduced(tmp_path: Path, size: int) -> None:
    ranks = [
        subprocess.Popen([sys.executable, str(PROGRAM), str(tmp_path / "store"), str(rank), str(size)], stderr=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    outputs = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(outputs)


@pytest.mark.parametrize("meanwhile", ["closed", "counters", "allocate", "submit", "drop"])
def test_a_session_closes_while_another_thread_uses_it(tmp_path: Path, meanwhile: str) -> None:
    process = subprocess.run(
        [sys.executable, str(CLOSING), str(tmp_path / "store"), meanwhile], stderr=subprocess.PIPE, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
