"""Programs that are measured: started on some ranks, then asked over a socket, one request at a time.

A contestant sleeps between requests, so that several can be alive at once and be measured in turns.
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
    """A program that could not be started, or did not answer; the message holds the end of what it printed."""


@dataclass(frozen=True)
class Command:
    """What starts all ranks. `processes` are started side by side; one is enough where a launcher makes the ranks."""

    processes: Sequence[Sequence[str]]
    environment: dict[str, str]


# Given a scratch folder that lasts as long as the contestant.
CommandMaker = Callable[[Path], Command]


class Contestant:
    """All ranks of one program. Use as a context; leaving it ends the program."""

    def __init__(self, name: str, ranks: int, make: CommandMaker) -> None:
        self.name = name
        self.ranks = ranks
        self._folder = Path(tempfile.mkdtemp(prefix="weft-bench-"))
        self._log = (self._folder / "output").open("w+")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[TextIO] = []
        self.pids: list[int] = []
        try:
            self._start(make(self._folder))
        except BaseException:
            self.close()
            raise

    def request(self, verb: str, **arguments: object) -> list[Reply]:
        """Asks all ranks; their replies in the order of ranks."""
        words = [verb, *(f"{key}={value}" for key, value in arguments.items())]
        for connection in self._connections:
            with contextlib.suppress(BrokenPipeError):  # Reading says what is wrong.
                connection.write(" ".join(words) + "\n")
                connection.flush()
        return [self._read(connection) for connection in self._connections]

    def seconds(self, verb: str, **arguments: object) -> list[float]:
        """The times that the ranks measured: of each repeat, that of the slowest rank."""
        replies = self.request(verb, **arguments)
        return [max(times) for times in zip(*(reply["seconds"] for reply in replies), strict=True)]

    def close(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):  # What was written last has not been sent, if the program is gone.
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
        hellos = [(json.loads(connection.readline()), connection) for connection in accepted]
        hellos.sort(key=lambda hello: hello[0]["rank"])
        self.pids = [hello["pid"] for hello, _ in hellos]
        self._connections = [connection for _, connection in hellos]

    def _accept(self, listener: socket.socket) -> TextIO:
        for _ in range(START_SECONDS):
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.settimeout(REQUEST_SECONDS)
                return connection.makefile("rw", encoding="ascii")
            if any(process.poll() is not None for process in self._processes):
                raise ContestantError(f"{self.name} ended before it began:\n{self._output()}")
        raise ContestantError(f"{self.name} did not start within {START_SECONDS} s:\n{self._output()}")

    def _read(self, connection: TextIO) -> Reply:
        try:
            line = connection.readline()
        except TimeoutError:
            raise ContestantError(f"{self.name} did not answer within {REQUEST_SECONDS} s:\n{self._output()}") from None
        except ConnectionError:
            line = ""
        if not line:
            raise ContestantError(f"{self.name} has ended:\n{self._output()}")
        return json.loads(line)

    def _output(self) -> str:
        self._log.flush()
        return Path(self._log.name).read_text(errors="replace")[-2000:]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ranks leave by themselves when the suite hangs up; a launcher that stays behind is ended with all it started."""
    for patience, signal_number in ((10, signal.SIGTERM), (5, signal.SIGKILL)):
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal_number)
    process.wait()
