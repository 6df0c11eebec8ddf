"""Hops of a ring by shift that a mask makes necessary.

Rank r owns a block of keys and values. The block moves to ranks r+1, r+2, …; after d hops, at *distance* d, it is at
rank r+d. It moves as far as the last rank with a query that may attend to it. So a causal mask over a contiguous
layout sends no block from the last rank to the first. The gradients of a block start at the first remote rank that
attends to it, follow the block to the last one, and return from there to the owner. All ranks compute the same plan,
so sender and receiver of a hop agree without a message.
"""

from __future__ import annotations

from collections.abc import Callable


class RingPlan:
    """`attends(rank, owner)`: true if a query of the rank may attend to the owner's block. The same on all ranks."""

    def __init__(self, ranks: int, attends: Callable[[int, int], bool]) -> None:
        self.ranks = ranks
        self._first: list[int] = []
        self._last: list[int] = []
        for owner in range(ranks):
            distances = [d for d in range(1, ranks) if attends((owner + d) % ranks, owner)]
            # A first distance of 0 means that the owner attends too: gradients still start at the first remote rank.
            self._first.append(distances[0] if distances else 0)
            self._last.append(distances[-1] if distances else 0)

    def owner_at(self, rank: int, distance: int) -> int:
        return (rank - distance) % self.ranks

    def reaches(self, owner: int, distance: int) -> bool:
        """True if keys and values of the block make the hop that ends at that distance."""
        return 1 <= distance <= self._last[owner]

    def passes_gradients_on(self, owner: int, distance: int) -> bool:
        """True if the rank at that distance sends the block's gradients to the next rank."""
        return 1 <= self._first[owner] <= distance < self._last[owner]

    def returns_gradients(self, owner: int, distance: int) -> bool:
        """True if the rank at that distance sends the block's gradients to the owner."""
        return distance >= 1 and distance == self._last[owner]

    def sends_any_gradients(self, distance: int) -> bool:
        """True if any rank sends gradients at that distance."""
        return any(
            self.passes_gradients_on(owner, distance) or self.returns_gradients(owner, distance)
            for owner in range(self.ranks)
        )

    @property
    def hops(self) -> int:
        """Hops of the block that moves farthest."""
        return max(self._last)
