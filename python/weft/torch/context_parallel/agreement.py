"""Comparison of what the ranks of a context group are about to exchange, so that all of them meet an error alike."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from weft.torch.context_parallel.exchanges.level_exchange import LevelExchange


def digest(value: object) -> int:
    """A number for the text of a value."""
    return zlib.crc32(repr(value).encode())


def gather_numbers(level: LevelExchange, numbers: Sequence[int]) -> list[list[int]]:
    """The numbers of each rank. Collective, with as many numbers on each rank."""
    own = torch.tensor(numbers)
    return torch.stack(level.gather(own, [own.numel()] * level.size).wait()).tolist()


def describe_digests(values: Sequence[int]) -> str:
    """Which ranks have equal ones, as in "ranks [0, 2] unlike ranks [1]"."""
    groups = [[rank for rank, other in enumerate(values) if other == value] for value in dict.fromkeys(values)]
    return " unlike ".join(f"ranks {ranks}" for ranks in groups)
