"""Processes that run test functions as the ranks of a process group.

    pool = RankPool(4, "weft")
    results = pool.run(bodies.all_reduce, "float32")  # By rank.

A rank is forked from a server that has imported torch, as importing it takes seconds. A pool lives for the whole run,
unless a test leaves its ranks in different states.
"""

import multiprocessing
import os
import pickle
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import rank_worker

# Limit of the start of a pool, and of one function on all ranks. An operation of a group has TIMEOUT_S, so that its error comes first.
LIMIT_S = 180
TIMEOUT_S = 60
# Modules that the server imports. Folders of tests add theirs, before the first pool starts.
PRELOADED = ["rank_worker", "weft.torch"]


def free_port() -> int:
    """A port for the store of ranks that start as under torchrun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RankError(AssertionError):
    """A function failed on some ranks. The message has their tracebacks."""


def _context() -> multiprocessing.context.ForkServerContext:
    # The server, which the first process starts, takes both variables from here.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


class RankPool:
    def __init__(
        self,
        size: int,
        backend: str,
        environment: dict[str, str] | None = None,
        prefixes: list[list[str]] | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        """`prefixes`: by rank, words before its command, such as those that join an emulated host.
        `limit_s`: of the start, and of one function on all ranks."""
        self.size = size
        self._limit_s = limit_s
        self._folder = tempfile.TemporaryDirectory()
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []
        variables = [self._variables(rank, backend) | (environment or {}) for rank in range(size)]
        if prefixes:
            self._start_commands(prefixes, variables)
        else:
            self._fork(variables)
        self._check(self._answers())  # Of the start of the process group.

    def _fork(self, variables: list[dict[str, str]]) -> None:
        context = _context()
        for of_rank in variables:
            here, there = context.Pipe()
            process = context.Process(target=rank_worker.serve, args=(there, of_rank))
            process.start()
            there.close()
            self._processes.append(process)
            self._connections.append(here)

    def _start_commands(self, prefixes: list[list[str]], variables: list[dict[str, str]]) -> None:
        context = _context()
        listeners = [Listener(str(Path(self._folder.name) / f"rank{rank}")) for rank in range(self.size)]
        for prefix, of_rank, listener in zip(prefixes, variables, listeners, strict=True):
            command = [*prefix, sys.executable, rank_worker.__file__, listener.address]
            process = context.Process(target=rank_worker.execute, args=(command, of_rank))
            process.start()
            self._processes.append(process)
        for listener in listeners:
            listener._listener._socket.settimeout(self._limit_s)
            self._connections.append(listener.accept())
            listener.close()

    def _variables(self, rank: int, backend: str) -> dict[str, str]:
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "TEST_BACKEND": backend,
            "TEST_STORE": str(Path(self._folder.name) / "store"),
            "TEST_TIMEOUT_S": str(TIMEOUT_S),
        }

    def run(self, function: Callable, *arguments: Any) -> list[Any]:
        """Runs `function(*arguments)` on all ranks, and returns the results by rank. `function` is one of a module."""
        for connection in self._connections:
            connection.send_bytes(pickle.dumps((function, arguments)))
        answers = self._answers()
        self._check(answers)
        return [pickle.loads(value) for _, value in answers]

    def _check(self, answers: list[tuple[bool, Any]]) -> None:
        failed = [f"rank {rank}: {text}" for rank, (is_ok, text) in enumerate(answers) if not is_ok]
        if failed:
            self.close()
            raise RankError("\n".join(failed))

    def _answers(self) -> list[tuple[bool, Any]]:
        deadline = time.monotonic() + self._limit_s
        return [self._answer(rank, deadline) for rank in range(self.size)]

    def _answer(self, rank: int, deadline: float) -> tuple[bool, Any]:
        process = self._processes[rank]
        try:
            if self._connections[rank].poll(max(0.0, deadline - time.monotonic())):
                return self._connections[rank].recv()
        except (EOFError, ConnectionResetError):
            process.join(30)
            return False, f"ended with {process.exitcode}"
        process.kill()
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
            process.join(30)
            if process.exitcode is None:
                process.kill()
                process.join()
        self._folder.cleanup()
