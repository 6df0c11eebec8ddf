"""Exchanges among the ranks of one level of a context scheme.

A level that is the whole process group uses the group's collectives. Any other level, and parts of different sizes
where a collective takes only equal ones, use point-to-point messages on the same group. So hybrids need no process
groups of their own, and nothing is padded. Every exchange is started and waited for separately.

Note [Order of messages]
Two ranks match point-to-point messages by their order. All ranks start the exchanges of a call in the same order, and
every call of a pass in the same order: that of the model in forward, that of autograd in backward. So sends and
receives of a pair match without tags.

Lifetime: tensors that are sent must not change until the exchange has been waited for; a PendingExchange keeps them
alive.
Collective: every method, by all ranks of the level in the same order.
Errors: those of torch.distributed, raised by the start of an exchange or by its wait, within the timeout of the
group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist


class PendingExchange:
    """Exchange in flight. `wait` returns its result and may be called once."""

    def __init__(self, works: Sequence[Any], keep: Sequence[torch.Tensor], finish: Callable[[], Any]) -> None:
        self._works = [work for work in works if work is not None]
        self._keep = keep
        self._finish = finish

    def wait(self) -> Any:
        for work in self._works:
            work.wait()
        self._keep = ()
        return self._finish()


class LevelExchange:
    """`ranks`: those of the level, as ranks of `group`, ascending. `received_bytes`: from peers, since the start."""

    def __init__(self, group: dist.ProcessGroup, ranks: Sequence[int]) -> None:
        self._group = group
        self._ranks = tuple(ranks)
        self.own = self._ranks.index(dist.get_rank(group))
        self.received_bytes = 0

    @property
    def size(self) -> int:
        return len(self._ranks)

    @property
    def _is_group(self) -> bool:
        return self.size == dist.get_world_size(self._group)

    def gather(self, part: torch.Tensor, sizes: Sequence[int]) -> PendingExchange:
        """All-gather of flat parts, `sizes[r]` elements from rank r. Result: list of the parts of all ranks."""
        self._count(part, sum(sizes) - sizes[self.own])
        gathered = part.new_empty(sum(sizes))
        parts = list(gathered.split(list(sizes)))
        if self._is_group and len(set(sizes)) == 1:
            work = dist.all_gather_single(gathered, part, group=self._group, async_op=True)
            return PendingExchange([work], [part, gathered], lambda: parts)
        parts[self.own].copy_(part)
        works = self._peer_messages([part] * self.size, parts)
        return PendingExchange(works, [part, gathered], lambda: parts)

    def reduce_scatter(self, parts: torch.Tensor, sizes: Sequence[int]) -> PendingExchange:
        """Sum over ranks. `parts`: flat, `sizes[r]` elements for rank r. Result: this rank's part of the sum. Between
        peers the sum is formed in the order of ranks."""
        own_size = sizes[self.own]
        self._count(parts, (self.size - 1) * own_size)
        if self._is_group and len(set(sizes)) == 1:
            total = parts.new_empty(own_size)
            work = dist.reduce_scatter_single(total, parts, group=self._group, async_op=True)
            return PendingExchange([work], [parts], lambda: total)
        pieces = list(parts.split(list(sizes)))
        received = [parts.new_empty(own_size) if rank != self.own else pieces[rank] for rank in range(self.size)]
        works = self._peer_messages(pieces, received)
        return PendingExchange(works, [parts, *received], lambda: _sum(received))

    def all_to_all(self, parts: torch.Tensor, sizes: Sequence[int], received_sizes: Sequence[int]) -> PendingExchange:
        """`parts`: flat, `sizes[r]` elements for rank r. Result: list of the parts from all ranks, of
        `received_sizes` elements."""
        self._count(parts, sum(received_sizes) - received_sizes[self.own])
        received = parts.new_empty(sum(received_sizes))
        pieces = list(received.split(list(received_sizes)))
        if self._is_group:
            work = dist.all_to_all_single(
                received, parts, list(received_sizes), list(sizes), group=self._group, async_op=True
            )
            return PendingExchange([work], [parts, received], lambda: pieces)
        sent = list(parts.split(list(sizes)))
        pieces[self.own].copy_(sent[self.own])
        return PendingExchange(self._peer_messages(sent, pieces), [parts, received], lambda: pieces)

    def send(self, tensor: torch.Tensor, to: int) -> PendingExchange:
        """Sends a contiguous tensor to rank `to` of the level."""
        work = dist.isend(tensor, group=self._group, group_dst=self._ranks[to])
        return PendingExchange([work], [tensor], lambda: None)

    def receive(self, into: torch.Tensor, source: int) -> PendingExchange:
        """Receives a contiguous tensor from rank `source` of the level. Result: `into`."""
        self._count(into, into.numel())
        work = dist.irecv(into, group=self._group, group_src=self._ranks[source])
        return PendingExchange([work], [into], lambda: into)

    def _count(self, tensor: torch.Tensor, elements: int) -> None:
        self.received_bytes += elements * tensor.element_size()

    def _peer_messages(self, sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> list[Any]:
        """Sends `sent[r]` to each peer r and receives `received[r]`. Empty messages are left out on both sides."""
        works = []
        for step in range(1, self.size):
            to, source = (self.own + step) % self.size, (self.own - step) % self.size
            if received[source].numel():
                works.append(dist.irecv(received[source], group=self._group, group_src=self._ranks[source]))
            if sent[to].numel():
                works.append(dist.isend(sent[to], group=self._group, group_dst=self._ranks[to]))
        return works


def _sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total.add_(part)
    return total
