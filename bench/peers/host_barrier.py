"""Barrier of the ranks of a program on one host. `bench/host_barrier.h` is one for programs in C++, and says why.

Each rank counts its calls in a word of its own, because Python has no atomic addition.
"""

import mmap
import os


class HostBarrier:
    """All ranks construct it, with the same number of ranks. It lies in a file beside the suite's socket, which the suite removes."""

    def __init__(self, rank: int, ranks: int) -> None:
        size = 8 * ranks
        file = os.open(os.environ["WEFT_BENCH_SOCKET"] + ".barrier", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(file, size)  # A new file reads as zeros, whichever rank opens it first.
        self._calls = memoryview(mmap.mmap(file, size)).cast("Q")  # Of each rank. A word is written at once.
        os.close(file)
        self._rank = rank

    def wait(self) -> None:
        """Returns once all ranks have called it as often as this one. A rank that waits yields its core: libraries have threads."""
        self._calls[self._rank] += 1
        own = self._calls[self._rank]
        while min(self._calls) < own:
            os.sched_yield()
