"""The inputs of a section, and the start of contestants."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from suite.contestants import CommandMaker, Contestant, ContestantError, Reply
from suite.peers import Peers

MIB = 2**20


@dataclass(frozen=True)
class Setting:
    programs: Path  # Folder of weft's benchmark programs.
    peers: Peers
    quick: bool

    def rounds(self, count: int) -> int:
        return 2 if self.quick else count

    def program(self, name: str) -> Path:
        return self.programs / f"weft_bench_{name}"

    def peer(self, name: str, make: CommandMaker) -> CommandMaker | str:
        """`make`, or the reason why the peer is missing."""
        return self.peers.missing.get(name, make)


class MissingContestant:
    """Replaces a contestant that could not be started. Every request fails with the reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason
        self.pids: list[int] = []

    def request(self, verb: str, **arguments: object) -> list[Reply]:
        raise ContestantError(self._reason)

    def seconds(self, verb: str, **arguments: object) -> list[float]:
        raise ContestantError(self._reason)


Peer = Contestant | MissingContestant


def start(stack: ExitStack, name: str, ranks: int, make: CommandMaker | str) -> Peer:
    """Starts a contestant that ends with `stack`. `make` may be the reason why it is missing."""
    if isinstance(make, str):
        return MissingContestant(make)
    try:
        return stack.enter_context(Contestant(name, ranks, make))
    except ContestantError as error:
        return MissingContestant(str(error))
