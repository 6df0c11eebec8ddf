"""Documents of a packed sequence: their boundaries, from the ids of tokens or from offsets.

A *document* is a run of equal ids, so an id that comes back begins a new document. Attention stays within a document.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from weft.torch.context_parallel.layouts.sequence_layout import TokenRange, merge_adjacent


class RowDocuments(NamedTuple):
    """Offsets of the documents of some rows of the batch: 0, then the end of each document."""

    rows: slice
    offsets: tuple[int, ...]


def offsets_of_ids(ids: Sequence[int]) -> tuple[int, ...]:
    """Index of the first token of each document, then the number of tokens."""
    starts = [token for token in range(len(ids)) if token == 0 or ids[token] != ids[token - 1]]
    return (*starts, len(ids))


def _is_offsets(values: Sequence[int]) -> bool:
    ascends = all(first < second for first, second in zip(values, values[1:]))
    return len(values) >= 2 and values[0] == 0 and ascends


def parse_documents(values: Sequence[int], tokens: int) -> tuple[int, ...]:
    """Offsets of documents from ids (one a token) or from offsets (0, then the end of each document).

    Errors: ValueError (neither; both readings are possible; offsets that do not end at `tokens`).
    """
    is_ids = len(values) == tokens
    is_offsets = _is_offsets(values) and values[-1] == tokens
    if is_ids and is_offsets and tokens > 1:
        raise ValueError(
            f"documents of {tokens} tokens can be read as ids and as offsets: give the ids with a dim for the "
            "batch, [1, tokens]"
        )
    if is_offsets:
        return tuple(values)
    if is_ids:
        return offsets_of_ids(values)
    raise ValueError(
        f"documents are {len(values)} numbers for a sequence of {tokens} tokens: give one id for each token, or "
        "offsets that "
        f"ascend from 0 to {tokens}"
    )


def document_lengths(offsets: Sequence[int]) -> tuple[int, ...]:
    return tuple(end - begin for begin, end in zip(offsets, offsets[1:]))


def cut_at_documents(ranges: Sequence[TokenRange], offsets: Sequence[int]) -> tuple[TokenRange, ...]:
    """The same tokens in the same order; no range crosses the boundary of a document."""
    pieces: list[TokenRange] = []
    for part in merge_adjacent(ranges):
        begin = part.begin
        while begin < part.end:
            end = min(part.end, offsets[bisect.bisect_right(offsets, begin)])
            pieces.append(TokenRange(begin, end))
            begin = end
    return tuple(pieces)


def positions_in_documents(ranges: Sequence[TokenRange], offsets: Sequence[int]) -> list[int]:
    """Position of each token within its document, in the order of `ranges`."""
    positions: list[int] = []
    for piece in cut_at_documents(ranges, offsets):
        start = offsets[bisect.bisect_right(offsets, piece.begin) - 1]
        positions.extend(range(piece.begin - start, piece.end - start))
    return positions


def position_end(ranges: Sequence[TokenRange], offsets: Sequence[int]) -> int:
    """The number that follows the highest position of a token within its document. 0 without tokens."""
    pieces = cut_at_documents(ranges, offsets)
    return max((piece.end - offsets[bisect.bisect_right(offsets, piece.begin) - 1] for piece in pieces), default=0)
