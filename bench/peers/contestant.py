"""A rank of a program that the suite measures: it waits on the suite's socket and does what it is asked.

The suite writes a line, `<verb> <key>=<value> ...`; the rank answers with a line of JSON: lists of numbers by name. Between
requests a rank sleeps in `recv`, so that programs which are measured in turns do not disturb each other. The end of the
connection ends the program. `bench/contestant.h` is the same in C++.
"""

import json
import os
import socket
from collections.abc import Callable

Reply = dict[str, list[float]]
Handler = Callable[[dict[str, str]], Reply]


def serve(rank: int, handlers: dict[str, Handler]) -> None:
    """Answers until the suite hangs up. `handlers` by verb; each is given the request's keys and values."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["WEFT_BENCH_SOCKET"])
        with connection.makefile("rw", encoding="ascii") as lines:
            _send(lines, {"rank": rank, "pid": os.getpid()})
            for line in lines:
                verb, *words = line.split()
                _send(lines, handlers[verb](dict(word.split("=", 1) for word in words)))


def _send(lines, message: object) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()
