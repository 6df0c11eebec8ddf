"""Copies between tensors whose tokens lie in the order of ranges, and flat blocks that ranks send.

All tensors are [batch, heads, tokens, dim].
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

import torch
from weft.torch.context_parallel.layouts.sequence_layout import TokenRange


class Placement(NamedTuple):
    """Tokens `part_begin`… of a rank's part lie at `whole_begin`… of the whole."""

    part_begin: int
    whole_begin: int
    count: int

    @property
    def in_part(self) -> slice:
        return slice(self.part_begin, self.part_begin + self.count)

    @property
    def in_whole(self) -> slice:
        return slice(self.whole_begin, self.whole_begin + self.count)


def place(part: Sequence[TokenRange], whole: Sequence[TokenRange]) -> tuple[Placement, ...]:
    """Positions of the tokens of `part` in `whole`. REQUIRES: `whole` ascends; each range of `part` lies within one of
    its ranges."""
    begins = [tokens.begin for tokens in whole]
    local_begins = [0]
    for tokens in whole:
        local_begins.append(local_begins[-1] + tokens.count)
    placements, part_begin = [], 0
    for tokens in part:
        index = bisect.bisect_right(begins, tokens.begin) - 1
        assert tokens.end <= whole[index].end, "a range that lies within no range of the whole"
        placements.append(Placement(part_begin, local_begins[index] + tokens.begin - begins[index], tokens.count))
        part_begin += tokens.count
    return tuple(placements)


def insert_part(part: torch.Tensor, whole: torch.Tensor, placements: Sequence[Placement]) -> None:
    for placement in placements:
        whole[:, :, placement.in_whole].copy_(part[:, :, placement.in_part])


def extract_part(whole: torch.Tensor, part: torch.Tensor, placements: Sequence[Placement]) -> None:
    for placement in placements:
        part[:, :, placement.in_part].copy_(whole[:, :, placement.in_whole])


class BlockShape(NamedTuple):
    """One tensor of a flat block, and its dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def bytes(self) -> int:
        return self.numel * self.dtype.itemsize


def block_bytes(shapes: Sequence[BlockShape]) -> int:
    """Bytes of the tensors end to end, rounded up so that a block that follows is aligned."""
    widest = max((shape.dtype.itemsize for shape in shapes), default=1)
    return -(-sum(shape.bytes for shape in shapes) // widest) * widest


def split_block(block: torch.Tensor, shapes: Sequence[BlockShape]) -> list[torch.Tensor]:
    """Views of the tensors that lie end to end in a flat block of bytes. REQUIRES: wider dtypes come first, for
    alignment."""
    views, begin = [], 0
    for shape in shapes:
        views.append(block[begin : begin + shape.bytes].view(shape.dtype).view(shape.shape))
        begin += shape.bytes
    return views
