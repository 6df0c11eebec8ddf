"""Comparison of what the ranks of a context group are about to exchange, so that all of them meet an error alike."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch._guards import detect_fake_mode
from weft.torch.context_parallel.exchanges.level_exchange import LevelExchange


def digest(value: object) -> int:
    """A number for the text of a value."""
    return zlib.crc32(repr(value).encode())


def gather_numbers(level: LevelExchange, numbers: Sequence[int]) -> list[list[int]]:
    """The numbers of each rank. Collective, with as many numbers on each rank."""
    own = torch.tensor(numbers)
    return torch.stack(level.gather(own, [own.numel()] * level.size).wait()).tolist()


def announce_refusal(level: LevelExchange, columns: int, error: Exception) -> None:
    """Tells peers that compare `columns` numbers that this rank refuses, and why. Collective with their gather_numbers and
    check_refusals.

    The caller raises `error` afterwards. A peer that is told first may end the exchanges of all ranks, which then hides
    no reason of this rank.
    """
    reason = f"{type(error).__name__}: {error}".encode()
    try:
        rows = gather_numbers(level, [len(reason)] + [0] * (columns - 1))
        _gather_reasons(level, reason, [row[0] for row in rows])
    except Exception:
        if detect_fake_mode() is not None:  # torch.compile traces a call, and takes this for a break of the graph.
            raise


def check_refusals(level: LevelExchange, rows: Sequence[Sequence[int]], refused: str) -> None:
    """Raises ValueError if a rank has refused, with the reason of the first. rows: the numbers of all ranks. The first of
    each is the length of the reason of a rank that refuses, and otherwise 0. refused: what it is about."""
    lengths = [row[0] for row in rows]
    if not any(lengths):
        return
    reasons = _gather_reasons(level, b"", lengths)
    refusing = [rank for rank, length in enumerate(lengths) if length]
    raise ValueError(f"ranks {refusing} of the context group refused {refused}; rank {refusing[0]}: {reasons[refusing[0]]}")


def _gather_reasons(level: LevelExchange, reason: bytes, lengths: Sequence[int]) -> list[str]:
    """The reasons of all ranks. Collective."""
    own = torch.tensor(list(reason), dtype=torch.uint8)
    return [bytes(part.tolist()).decode() for part in level.gather(own, lengths).wait()]


def describe_digests(values: Sequence[int]) -> str:
    """Which ranks have equal ones, as in "ranks [0, 2] unlike ranks [1]"."""
    groups = [[rank for rank, other in enumerate(values) if other == value] for value in dict.fromkeys(values)]
    return " unlike ".join(f"ranks {ranks}" for ranks in groups)
