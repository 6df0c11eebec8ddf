"""Processes that run test functions as the ranks of a process group.

    pool = RankPool(4, "weft")
    results = pool.run(bodies.all_reduce, "float32")  # By rank.

Starting a rank takes seconds, most of which torch's import takes. A pool therefore lives for the whole run, unless a
test leaves its ranks in different states.
"""

import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
# Of one function on all ranks. Each operation of a group has TIMEOUT_S, so that its error comes first.
LIMIT_S = 180
TIMEOUT_S = 60


def free_port() -> int:
    """A port for the store of ranks that start as under torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RankError(AssertionError):
    """A function failed on some ranks. The message has their tracebacks."""


class RankPool:
    def __init__(
        self,
        size: int,
        backend: str,
        environment: dict[str, str] | None = None,
        prefixes: list[list[str]] | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        """`prefixes`: by rank, words before its command, such as those that join an emulated host."""
        self.size = size
        self._limit_s = limit_s
        self._folder = tempfile.TemporaryDirectory()
        address = str(Path(self._folder.name) / "ranks")
        self._processes = []
        self._connections: list[Connection] = []
        with Listener(address) as listener:
            for rank in range(size):
                prefix = prefixes[rank] if prefixes else []
                self._processes.append(self._start(rank, backend, address, environment or {}, prefix))
            by_rank = {}
            for _ in range(size):
                connection = listener.accept()
                by_rank[connection.recv()] = connection
            self._connections = [by_rank[rank] for rank in range(size)]
        self._check([self._answer(rank) for rank in range(size)])  # Of the start of the process group.

    def _start(
        self, rank: int, backend: str, address: str, environment: dict[str, str], prefix: list[str]
    ) -> subprocess.Popen:
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "TEST_BACKEND": backend,
            "TEST_STORE": str(Path(self._folder.name) / "store"),
            "TEST_ADDRESS": address,
            "TEST_TIMEOUT_S": str(TIMEOUT_S),
            **environment,
        }
        command = [*prefix, sys.executable, str(FOLDER / "rank_worker.py")]
        return subprocess.Popen(command, env=variables, cwd=FOLDER)

    def run(self, function: Callable, *arguments: Any) -> list[Any]:
        """Runs `function(*arguments)` on all ranks, and returns the results by rank."""
        for connection in self._connections:
            connection.send((function.__module__, function.__qualname__, arguments))
        answers = [self._answer(rank) for rank in range(self.size)]
        self._check(answers)
        return [pickle.loads(value) for _, value in answers]

    def _check(self, answers: list[tuple[bool, Any]]) -> None:
        failed = [f"rank {rank}: {text}" for rank, (is_ok, text) in enumerate(answers) if not is_ok]
        if failed:
            self.close()
            raise RankError("\n".join(failed))

    def _answer(self, rank: int) -> tuple[bool, Any]:
        try:
            if self._connections[rank].poll(self._limit_s):
                return self._connections[rank].recv()
        except EOFError:
            return False, f"ended with {self._processes[rank].wait()}"
        self._processes[rank].kill()
        return False, f"did not answer within {self._limit_s} s"

    @property
    def is_open(self) -> bool:
        return bool(self._connections)

    def close(self) -> None:
        """Ends the ranks. Kills those that do not end."""
        for connection in self._connections:
            connection.close()
        self._connections = []
        for process in self._processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.cleanup()
