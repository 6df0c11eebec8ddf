"""Heads of each rank of an inner (Ulysses) group.

Query heads are split evenly; the first ranks take the remainder, one each. With more ranks than heads the last ranks
have none. A rank has the KV heads that its query heads read. If a split divides the query heads of one KV head,
several ranks have that KV head.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from weft.torch.context_parallel.layouts.sequence_layout import even_part


class HeadRange(NamedTuple):
    begin: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class HeadSplit:
    """REQUIRES: `kv_heads` divides `heads`."""

    heads: int
    kv_heads: int
    ranks: int

    @property
    def group(self) -> int:
        """Query heads of each KV head."""
        return self.heads // self.kv_heads

    @functools.cached_property
    def queries(self) -> tuple[HeadRange, ...]:
        return tuple(HeadRange(*even_part(self.heads, self.ranks, rank)) for rank in range(self.ranks))

    @functools.cached_property
    def keys(self) -> tuple[HeadRange, ...]:
        return tuple(self._keys_of(queries) for queries in self.queries)

    def _keys_of(self, queries: HeadRange) -> HeadRange:
        if queries.count == 0:
            return HeadRange(self.kv_heads, self.kv_heads)
        return HeadRange(queries.begin // self.group, -(-queries.end // self.group))

    @property
    def replicates(self) -> bool:
        """True if several ranks have the same KV head."""
        return any(after.begin < before.end for before, after in zip(self.keys, self.keys[1:]))

    def key_of_each_query(self, rank: int) -> tuple[int, ...] | None:
        """Index, among the rank's KV heads, of the KV head that each of its query heads reads. None if the rank's
        query heads divide evenly among its KV heads, as a kernel for grouped queries takes them."""
        queries, keys = self.queries[rank], self.keys[rank]
        heads = tuple(head // self.group - keys.begin for head in range(queries.begin, queries.end))
        if queries.count == 0:
            return None
        if queries.count % keys.count == 0:
            size = queries.count // keys.count
            if heads == tuple(index // size for index in range(queries.count)):
                return None
        return heads
