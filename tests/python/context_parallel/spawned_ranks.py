"""Pool of ranks for tests: processes that share a process group and run functions of test modules.

A rank that fails or hangs fails the call: every call has a deadline, after which the ranks are ended.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

DEADLINE_S = 120
START_S = 180
# Collectives give up before the pool does, so that their errors name what they waited for.
COLLECTIVE_TIMEOUT_S = 60


class RankFailure(AssertionError):
    """Failures of ranks, with their tracebacks."""


def _serve(rank: int, ranks: int, backend: str, store_path: str, connection) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if backend == "weft":
        import weft.torch  # noqa: F401  (registers the backend)
    timeout = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    store = dist.FileStore(store_path, ranks)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
    connection.send((True, None))
    while (request := connection.recv()) is not None:
        function, arguments = request
        try:
            connection.send((True, function(*arguments)))
        except BaseException:
            connection.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class RankPool:
    """`ranks` processes with one thread each."""

    def __init__(self, ranks: int, backend: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        self._connections, self._processes = [], []
        for rank in range(ranks):
            here, there = context.Pipe()
            store = os.path.join(self._folder.name, "store")
            process = context.Process(target=_serve, args=(rank, ranks, backend, store, there), daemon=True)
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)
        self._collect(START_S)

    @property
    def is_usable(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Calls a module-level function on every rank and returns the results in rank order. Errors: RankFailure."""
        for connection in self._connections:
            connection.send((function, arguments))
        return self._collect(DEADLINE_S)

    def _collect(self, seconds: float) -> list[Any]:
        deadline = time.monotonic() + seconds
        results, failures = [], []
        for rank, connection in enumerate(self._connections):
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                failures.append(f"rank {rank} gave no result within {seconds} s")
                continue
            try:
                is_good, value = connection.recv()
            except EOFError:
                failures.append(f"rank {rank} ended with exit code {self._processes[rank].exitcode}")
                continue
            results.append(value)
            if not is_good:
                failures.append(f"rank {rank}:\n{value}")
        if failures:
            self.end()
            raise RankFailure("\n".join(failures))
        return results

    def close(self) -> None:
        for connection in self._connections:
            try:
                connection.send(None)
            except (BrokenPipeError, OSError):
                continue
        for process in self._processes:
            process.join(10)
        self.end()

    def end(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        self._folder.cleanup()
