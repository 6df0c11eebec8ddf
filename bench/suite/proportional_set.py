"""Memory of processes as proportional set size, which counts shared memory once among the processes that share it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLE_SECONDS = 0.01


@dataclass(frozen=True)
class ProportionalSet:
    """Bytes, summed over all processes. `data` excludes mapped files (programs and libraries)."""

    total: int
    data: int


def parse_rollup(text: str) -> ProportionalSet:
    """Parses the text of /proc/PID/smaps_rollup."""
    sizes = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.startswith("Pss"):
            sizes[name] = int(value.split()[0]) * 1024
    return ProportionalSet(sizes["Pss"], sizes["Pss_Anon"] + sizes["Pss_Shmem"])


def measure(pids: Sequence[int]) -> ProportionalSet:
    parts = [parse_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text()) for pid in pids]
    return ProportionalSet(sum(part.total for part in parts), sum(part.data for part in parts))


def peak_during(pids: Sequence[int], run: Callable[[], object]) -> ProportionalSet:
    """The maximum over samples taken while `run` runs."""
    samples = [measure(pids)]
    done = threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_SECONDS):
            samples.append(measure(pids))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        run()
    finally:
        done.set()
        sampler.join()
    return ProportionalSet(max(part.total for part in samples), max(part.data for part in samples))
