"""Assignment of a sequence's tokens to ranks: which rank holds which tokens, in which order.

A sequence is a pack of documents, end to end. Every document is split over the ranks. *Contiguous*: rank r holds part
r of P. *Head-tail* (zigzag): the document has 2P chunks and rank r holds chunks r and 2P-1-r, so that a causal mask
gives all ranks the same work. Every split gives its remainder to the first parts or chunks, one token each.

One layout serves every scheme. In a hybrid, the chunks of adjacent ranks form the chunks of the outer level: with 4
ranks and 8 chunks, ranks 0 and 1 together hold chunks 0, 1, 6 and 7, which is the head-tail layout of 2 outer ranks.

A token has three coordinates: its index in the sequence, its rank with the index there, and its index in *rank
order*, in which the ranks' tokens lie end to end, as an all-gather returns them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LOAD_BALANCES = ("none", "head-tail")


class TokenRange(NamedTuple):
    """Tokens `begin` to `end` - 1 of the sequence."""

    begin: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.begin


def even_part(tokens: int, parts: int, index: int) -> TokenRange:
    """Part `index` of `tokens` split evenly into `parts`; the first parts take the remainder, one token each."""
    base, remainder = divmod(tokens, parts)
    begin = index * base + min(index, remainder)
    return TokenRange(begin, begin + base + (1 if index < remainder else 0))


def merge_adjacent(ranges: Sequence[TokenRange]) -> tuple[TokenRange, ...]:
    """The same tokens in the same order, without empty ranges and with adjacent ranges merged."""
    merged: list[TokenRange] = []
    for part in ranges:
        if part.count == 0:
            continue
        if merged and merged[-1].end == part.begin:
            merged[-1] = TokenRange(merged[-1].begin, part.end)
        else:
            merged.append(part)
    return tuple(merged)


def token_count(ranges: Sequence[TokenRange]) -> int:
    return sum(part.count for part in ranges)


@dataclass(frozen=True)
class SequenceLayout:
    """Tokens of every rank, as ranges of the sequence. Thread safety: a value."""

    document_lengths: tuple[int, ...]
    ranks: int
    load_balance: str

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"a sequence cannot be split over {self.ranks} ranks: give at least one")
        if self.load_balance not in LOAD_BALANCES:
            raise ValueError(f"unknown load balance {self.load_balance!r}: use one of {', '.join(LOAD_BALANCES)}")
        if not self.document_lengths:
            raise ValueError("a sequence without documents cannot be split: give at least one document length")
        for document, length in enumerate(self.document_lengths):
            if length < 1:
                raise ValueError(
                    f"document {document} of {len(self.document_lengths)} has {length} tokens: leave out empty "
                    "documents"
                )

    @functools.cached_property
    def tokens(self) -> int:
        """Tokens of the sequence."""
        return sum(self.document_lengths)

    @functools.cached_property
    def ranges(self) -> tuple[tuple[TokenRange, ...], ...]:
        """Tokens of each rank in its order. Ranges are not empty; adjacent ones are merged."""
        return tuple(merge_adjacent(list(self._parts_of(rank))) for rank in range(self.ranks))

    def _parts_of(self, rank: int) -> Iterator[TokenRange]:
        chunks = 2 * self.ranks if self.load_balance == "head-tail" else self.ranks
        indices = (rank, chunks - 1 - rank) if self.load_balance == "head-tail" else (rank,)
        start = 0
        for length in self.document_lengths:
            for index in indices:
                part = even_part(length, chunks, index)
                yield TokenRange(start + part.begin, start + part.end)
            start += length

    @functools.cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of tokens of each rank."""
        return tuple(token_count(ranges) for ranges in self.ranges)

    @functools.cached_property
    def document_offsets(self) -> tuple[int, ...]:
        """Index of the first token of each document, then `tokens`."""
        offsets = [0]
        for length in self.document_lengths:
            offsets.append(offsets[-1] + length)
        return tuple(offsets)
