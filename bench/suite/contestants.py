"""Programs that are measured: started on some ranks, then driven over a socket, one request at a time.

A contestant sleeps between requests. Several contestants can therefore be alive at once and be measured interleaved.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

Reply = dict[str, list[float]]
START_SECONDS = 120
REQUEST_SECONDS = 240


class ContestantError(RuntimeError):
    """A program could not be started or did not answer. The message contains the end of its output."""


@dataclass(frozen=True)
class Command:
    """The processes that make up all ranks, started side by side. A launcher such as mpirun is a single process."""

    processes: Sequence[Sequence[str]]
    environment: dict[str, str]


# Receives a scratch folder that lives as long as the contestant.
CommandMaker = Callable[[Path], Command]


class Contestant:
    """All ranks of one program. Use as a context manager; leaving it ends the program.

    A program that does not answer a request is ended. All later requests fail with the reason of the first.
    """

    def __init__(self, name: str, ranks: int, make: CommandMaker, request_seconds: float = REQUEST_SECONDS) -> None:
        self.name = name
        self.ranks = ranks
        self._request_seconds = request_seconds
        self._failure = ""
        self._folder = Path(tempfile.mkdtemp(prefix="weft-bench-"))
        self._log = (self._folder / "output").open("w+")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        self._connections: list[TextIO] = []
        self.pids: list[int] = []
        try:
            self._start(make(self._folder))
        except BaseException:
            self.close()
            raise

    def request(self, verb: str, **arguments: object) -> list[Reply]:
        """Sends the request to all ranks; returns their replies in the order of ranks."""
        if self._failure:
            raise ContestantError(self._failure)
        words = [verb, *(f"{key}={value}" for key, value in arguments.items())]
        for connection in self._connections:
            with contextlib.suppress(OSError):  # The read below reports the cause.
                connection.write(" ".join(words) + "\n")
                connection.flush()
        try:
            return [self._read(connection, self._request_seconds) for connection in self._connections]
        except ContestantError as error:
            self._failure = str(error)
            self.close()
            raise

    def seconds(self, verb: str, **arguments: object) -> list[float]:
        """Seconds of each repeat: those of its slowest rank."""
        replies = self.request(verb, **arguments)
        return [max(times) for times in zip(*(reply["seconds"] for reply in replies), strict=True)]

    def close(self) -> None:
        for connection in (*self._connections, *self._sockets):
            with contextlib.suppress(OSError):  # Closing flushes, which fails if the program has ended.
                connection.close()
        for process in self._processes:
            _end(process)
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, command: Command) -> None:
        path = str(self._folder / "socket")
        environment = {**os.environ, **command.environment, "WEFT_BENCH_SOCKET": path}
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(self.ranks)
            listener.settimeout(1)
            for words in command.processes:
                self._processes.append(
                    subprocess.Popen(
                        words, env=environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, process_group=0
                    )
                )
            accepted = [self._accept(listener) for _ in range(self.ranks)]
        hellos = [(self._read(connection, START_SECONDS), connection) for connection in accepted]
        for connection in self._sockets:
            connection.settimeout(self._request_seconds)
        hellos.sort(key=lambda hello: hello[0]["rank"])
        self.pids = [hello["pid"] for hello, _ in hellos]
        self._connections = [connection for _, connection in hellos]

    def _accept(self, listener: socket.socket) -> TextIO:
        for _ in range(START_SECONDS):
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.settimeout(START_SECONDS)
                self._sockets.append(connection)
                return connection.makefile("rw", encoding="ascii")
            if any(process.poll() is not None for process in self._processes):
                raise ContestantError(f"{self.name} ended before all ranks had connected:\n{self._output()}")
        raise ContestantError(f"{self.name}: not all ranks connected within {START_SECONDS} s:\n{self._output()}")

    def _read(self, connection: TextIO, seconds: float) -> Reply:
        try:
            if line := connection.readline():
                return json.loads(line)
            reason = "has ended"
        except TimeoutError:
            reason = f"did not answer within {seconds} s"
        except OSError:
            reason = "has ended"
        except ValueError:  # Such as a reply that breaks off.
            reason = "sent what is no reply"
        raise ContestantError(f"{self.name} {reason}:\n{self._output()}")

    def _output(self) -> str:
        self._log.flush()
        return Path(self._log.name).read_text(errors="replace")[-2000:]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ranks exit when the suite closes the connection. A launcher that keeps running is killed with its process group."""
    for patience, signal_number in ((10, signal.SIGTERM), (5, signal.SIGKILL)):
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal_number)
    process.wait()
