"""Request loop of one rank of a program that the suite measures.

The suite writes a request on a socket, one line of `<verb> <key>=<value> ...`. The rank answers with one line of JSON: lists
of numbers by name. Between requests a rank sleeps in `recv`, so that programs that are measured interleaved do not disturb
each other. When the suite closes the connection, the loop returns. `bench/contestant.h` is the same in C++.
"""

import json
import os
import socket
from collections.abc import Callable

Reply = dict[str, list[float]]
Handler = Callable[[dict[str, str]], Reply]


def serve(rank: int, handlers: dict[str, Handler]) -> None:
    """Answers requests until the suite closes the connection. A verb's handler receives the request's keys and values."""
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
