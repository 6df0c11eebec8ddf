"""Tiles of an attention: rectangles of (query, key) pairs that one kernel call computes.

Queries and keys are ranges of the sequence, in any order. A tile is either full, every query sees every key, or
causal, a square on the diagonal of the mask. A mask that is causal and stays within documents is thus computed
without a mask tensor, and pairs that it hides are not computed. Each query sees its keys in one or more tiles, whose
results are merged by their log-sum-exps.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from weft.torch.context_parallel.layouts.documents import cut_at_documents
from weft.torch.context_parallel.layouts.sequence_layout import TokenRange


class Tile(NamedTuple):
    """Queries and keys by their indices in the local tensors, end exclusive."""

    query_begin: int
    query_end: int
    key_begin: int
    key_end: int
    is_causal: bool
    key_token: int  # Index in the sequence of the first key.

    @property
    def queries(self) -> slice:
        return slice(self.query_begin, self.query_end)

    @property
    def keys(self) -> slice:
        return slice(self.key_begin, self.key_end)

    @property
    def key_tokens(self) -> slice:
        return slice(self.key_token, self.key_token + self.key_end - self.key_begin)

    @property
    def pairs(self) -> int:
        queries, keys = self.query_end - self.query_begin, self.key_end - self.key_begin
        return queries * (queries + 1) // 2 if self.is_causal else queries * keys


class _Piece(NamedTuple):
    """Tokens of one document, and the index of the first of them in the local tensor."""

    begin: int
    end: int
    local: int


def _pieces(ranges: Sequence[TokenRange], offsets: Sequence[int]) -> list[_Piece]:
    pieces, local = [], 0
    for part in cut_at_documents(ranges, offsets):
        pieces.append(_Piece(part.begin, part.end, local))
        local += part.count
    return pieces


def _tile(query: _Piece, key: _Piece, queries: tuple[int, int], keys: tuple[int, int], is_causal: bool) -> Tile:
    to_query, to_key = query.local - query.begin, key.local - key.begin
    return Tile(queries[0] + to_query, queries[1] + to_query, keys[0] + to_key, keys[1] + to_key, is_causal, keys[0])


def _causal_tiles(query: _Piece, key: _Piece) -> list[Tile]:
    """Keys before all queries, then the square on the diagonal, then queries after all keys."""
    tiles = []
    if key.begin < query.begin:
        tiles.append(_tile(query, key, (query.begin, query.end), (key.begin, min(key.end, query.begin)), False))
    begin, end = max(query.begin, key.begin), min(query.end, key.end)
    if begin < end:
        tiles.append(_tile(query, key, (begin, end), (begin, end), True))
    after, first_key = max(query.begin, key.end), max(key.begin, query.begin)
    if after < query.end and first_key < key.end:
        tiles.append(_tile(query, key, (after, query.end), (first_key, key.end), False))
    return tiles


def _merge_full_tiles(tiles: list[Tile]) -> tuple[Tile, ...]:
    """Merges full tiles of the same queries whose keys follow each other both locally and in the sequence."""
    merged: list[Tile] = []
    for tile in sorted(tiles, key=lambda tile: (tile.is_causal, tile.query_begin, tile.query_end, tile.key_begin)):
        last = merged[-1] if merged else None
        if (
            last is not None
            and not (tile.is_causal or last.is_causal)
            and (last.query_begin, last.query_end) == (tile.query_begin, tile.query_end)
            and last.key_end == tile.key_begin
            and last.key_tokens.stop == tile.key_token
        ):
            merged[-1] = last._replace(key_end=tile.key_end)
        else:
            merged.append(tile)
    return tuple(merged)


def plan_tiles(
    queries: Sequence[TokenRange], keys: Sequence[TokenRange], offsets: Sequence[int], is_causal: bool
) -> tuple[Tile, ...]:
    """Tiles of all visible pairs, each pair in exactly one. `offsets`: of the documents, see documents.py."""
    keys_of_document: dict[int, list[_Piece]] = {}
    for key in _pieces(keys, offsets):
        keys_of_document.setdefault(bisect.bisect_right(offsets, key.begin), []).append(key)
    tiles: list[Tile] = []
    for query in _pieces(queries, offsets):
        for key in keys_of_document.get(bisect.bisect_right(offsets, query.begin), []):
            if is_causal:
                tiles.extend(_causal_tiles(query, key))
            else:
                tiles.append(_tile(query, key, (query.begin, query.end), (key.begin, key.end), False))
    return _merge_full_tiles(tiles)


def has_tiles(
    queries: Sequence[TokenRange], keys: Sequence[TokenRange], offsets: Sequence[int], is_causal: bool
) -> bool:
    """True if any query sees any key: if plan_tiles has a tile."""
    first_keys: dict[int, int] = {}
    for key in _pieces(keys, offsets):
        document = bisect.bisect_right(offsets, key.begin)
        first_keys[document] = min(key.begin, first_keys.get(document, key.begin))
    for query in _pieces(queries, offsets):
        first_key = first_keys.get(bisect.bisect_right(offsets, query.begin))
        if first_key is not None and (not is_causal or first_key < query.end):
            return True
    return False
