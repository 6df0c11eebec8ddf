"""Attention over the outer level of a scheme: alone, by a gather of keys and values, or in a ring.

Queries, keys and values are those of this rank's heads and of the tokens of its inner group. A scheme keeps between
forward and backward what `Kept` lists, and nothing else.

Collective: `forward` and `backward`, by all ranks of the level in the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from weft.torch.context_parallel.exchanges.level_exchange import LevelExchange, PendingExchange
from weft.torch.context_parallel.exchanges.token_blocks import Placement, extract_part, insert_part
from weft.torch.context_parallel.layouts.ring_plan import RingPlan
from weft.torch.context_parallel.schemes.tile_attention import RowTiles, TileKernel, accumulation_dtype


class Kept(NamedTuple):
    """Tensors that backward needs: the keys and values of this rank or of all, the output in the input's dtype, the
    log-sum-exps."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor


Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class OuterAttention(ABC):
    """Gradients are in the accumulation dtype."""

    @abstractmethod
    def forward(self, kernel: TileKernel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Kept: ...

    @abstractmethod
    def backward(self, kernel: TileKernel, grad_out: torch.Tensor, kept: Kept) -> Gradients: ...


class _Accumulators:
    """Output and log-sum-exps of the tiles so far."""

    def __init__(self, query: torch.Tensor, value: torch.Tensor) -> None:
        dtype = accumulation_dtype(query.dtype)
        self.out = query.new_zeros((*query.shape[:3], value.shape[-1]), dtype=dtype)
        self.lse = query.new_full(query.shape[:3], -torch.inf, dtype=dtype)

    def keep(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Kept:
        # A query that sees no key has only scores of -inf. Any finite log-sum-exp gives them a weight of 0 in
        # backward.
        lse = self.lse.masked_fill_(self.lse == -torch.inf, 0.0)
        return Kept(query, key, value, self.out.to(query.dtype), lse)


def _zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros(tensor.shape, dtype=accumulation_dtype(tensor.dtype), device=tensor.device)


@dataclass(frozen=True)
class LocalAttention(OuterAttention):
    """The outer level has one rank: nothing is exchanged."""

    plan: Sequence[RowTiles]

    def forward(self, kernel: TileKernel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Kept:
        accumulators = _Accumulators(query, value)
        kernel.forward_into(accumulators.out, accumulators.lse, query, key, value, self.plan)
        return accumulators.keep(query, key, value)

    def backward(self, kernel: TileKernel, grad_out: torch.Tensor, kept: Kept) -> Gradients:
        gradients = tuple(_zeros_like(tensor) for tensor in kept[:3])
        kernel.backward_into(gradients, grad_out, *kept, self.plan)
        return gradients


class KeyBlocks:
    """Keys and values of each rank as flat blocks, keys first."""

    def __init__(self, key: torch.Tensor, value: torch.Tensor, tokens: Sequence[int]) -> None:
        self._key_shape, self._value_shape, self._tokens = key.shape, value.shape, tokens
        self._nothing = key.new_empty(0)
        per_token = [shape[0] * shape[1] * shape[3] for shape in (key.shape, value.shape)]
        self.sizes = [count * sum(per_token) for count in tokens]

    def empty(self, owner: int) -> torch.Tensor:
        return self._nothing.new_empty(self.sizes[owner])

    def pack(self, key: torch.Tensor, value: torch.Tensor, owner: int) -> torch.Tensor:
        block = self.empty(owner)
        block_key, block_value = self.views(block, owner)
        block_key.copy_(key)
        block_value.copy_(value)
        return block

    def views(self, block: torch.Tensor, owner: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = self._tokens[owner]
        key_shape = (*self._key_shape[:2], tokens, self._key_shape[3])
        value_shape = (*self._value_shape[:2], tokens, self._value_shape[3])
        keys = key_shape[0] * key_shape[1] * tokens * key_shape[3]
        return block[:keys].view(key_shape), block[keys:].view(value_shape)


@dataclass(frozen=True)
class GatherAttention(OuterAttention):
    """All-gather of keys and values, which are kept in the order of the sequence; reduce-scatter of their gradients.

    plan: tiles over the whole sequence. placements: of each rank's tokens in the sequence.
    """

    level: LevelExchange
    plan: Sequence[RowTiles]
    tokens: Sequence[int]
    placements: Sequence[Sequence[Placement]]

    def forward(self, kernel: TileKernel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Kept:
        blocks = KeyBlocks(key, value, self.tokens)
        gathered = self.level.gather(blocks.pack(key, value, self.level.own), blocks.sizes).wait()
        whole_key = key.new_empty((*key.shape[:2], sum(self.tokens), key.shape[3]))
        whole_value = value.new_empty((*value.shape[:2], sum(self.tokens), value.shape[3]))
        for owner, block in enumerate(gathered):
            block_key, block_value = blocks.views(block, owner)
            insert_part(block_key, whole_key, self.placements[owner])
            insert_part(block_value, whole_value, self.placements[owner])
        accumulators = _Accumulators(query, value)
        kernel.forward_into(accumulators.out, accumulators.lse, query, whole_key, whole_value, self.plan)
        return accumulators.keep(query, whole_key, whole_value)

    def backward(self, kernel: TileKernel, grad_out: torch.Tensor, kept: Kept) -> Gradients:
        grad_query, grad_key, grad_value = (_zeros_like(tensor) for tensor in kept[:3])
        kernel.backward_into((grad_query, grad_key, grad_value), grad_out, *kept, self.plan)
        blocks = KeyBlocks(kept.key, kept.value, self.tokens)
        flat = grad_key.new_empty(sum(blocks.sizes))
        for owner, block in enumerate(flat.split(blocks.sizes)):
            block_key, block_value = blocks.views(block, owner)
            extract_part(grad_key, block_key, self.placements[owner])
            extract_part(grad_value, block_value, self.placements[owner])
        own = self.level.reduce_scatter(flat, blocks.sizes).wait()
        return (grad_query, *blocks.views(own, self.level.own))


@dataclass(frozen=True)
class GatheredRingAttention(OuterAttention):
    """Ring whose blocks come by one all-gather, in forward and again in backward, while this rank computes its own
    block.

    plans: tiles of this rank's queries with each owner's block.
    """

    level: LevelExchange
    plans: Sequence[Sequence[RowTiles]]
    tokens: Sequence[int]

    def _peers(self) -> list[int]:
        return [(self.level.own - step) % self.level.size for step in range(1, self.level.size)]

    def forward(self, kernel: TileKernel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Kept:
        blocks = KeyBlocks(key, value, self.tokens)
        pending = self.level.gather(blocks.pack(key, value, self.level.own), blocks.sizes)
        accumulators = _Accumulators(query, value)
        kernel.forward_into(accumulators.out, accumulators.lse, query, key, value, self.plans[self.level.own])
        gathered = pending.wait()
        for owner in self._peers():
            views = blocks.views(gathered[owner], owner)
            kernel.forward_into(accumulators.out, accumulators.lse, query, *views, self.plans[owner])
        return accumulators.keep(query, key, value)

    def backward(self, kernel: TileKernel, grad_out: torch.Tensor, kept: Kept) -> Gradients:
        blocks = KeyBlocks(kept.key, kept.value, self.tokens)
        pending = self.level.gather(blocks.pack(kept.key, kept.value, self.level.own), blocks.sizes)
        grad_query = _zeros_like(kept.query)
        flat = grad_query.new_zeros(sum(blocks.sizes))
        views = [blocks.views(block, owner) for owner, block in enumerate(flat.split(blocks.sizes))]
        own = self.level.own
        kernel.backward_into((grad_query, *views[own]), grad_out, *kept, self.plans[own])
        gathered = pending.wait()
        for owner in self._peers():
            key, value = blocks.views(gathered[owner], owner)
            kept_block = kept._replace(key=key, value=value)
            kernel.backward_into((grad_query, *views[owner]), grad_out, *kept_block, self.plans[owner])
        total = self.level.reduce_scatter(flat, blocks.sizes).wait()
        return (grad_query, *blocks.views(total, own))


@dataclass(frozen=True)
class ShiftedRingAttention(OuterAttention):
    """Ring by shift: each rank passes a block to the next rank while it computes the block. In backward the gradients
    of a block follow it one hop behind, in the accumulation dtype.

    plans: tiles of this rank's queries with each owner's block. ring: hops that the mask makes necessary.
    """

    level: LevelExchange
    plans: Sequence[Sequence[RowTiles]]
    tokens: Sequence[int]
    ring: RingPlan

    def forward(self, kernel: TileKernel, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Kept:
        blocks = KeyBlocks(key, value, self.tokens)
        block = blocks.pack(key, value, self.level.own)
        accumulators = _Accumulators(query, value)
        for distance in range(self.ring.hops + 1):
            owner = self.ring.owner_at(self.level.own, distance)
            hop = _Hop(self, blocks, block, distance)
            if block is not None:
                views = blocks.views(block, owner)
                kernel.forward_into(accumulators.out, accumulators.lse, query, *views, self.plans[owner])
            block = hop.wait()
        return accumulators.keep(query, key, value)

    def backward(self, kernel: TileKernel, grad_out: torch.Tensor, kept: Kept) -> Gradients:
        own, ring = self.level.own, self.ring
        blocks = KeyBlocks(kept.key, kept.value, self.tokens)
        block = blocks.pack(kept.key, kept.value, own)
        grad_query = _zeros_like(kept.query)
        own_gradients = grad_query.new_zeros(blocks.sizes[own])
        traveling: PendingExchange | None = (
            None  # Gradients of the block at the next distance, from the previous rank.
        )
        sends: list[PendingExchange] = []
        returned: PendingExchange | None = None
        for distance in range(ring.hops + 1):
            owner = ring.owner_at(own, distance)
            hop = _Hop(self, blocks, block, distance)
            gradients = own_gradients if distance == 0 else grad_query.new_zeros(blocks.sizes[owner])
            if block is not None:
                key, value = blocks.views(block, owner)
                kept_block = kept._replace(key=key, value=value)
                targets = (grad_query, *blocks.views(gradients, owner))
                kernel.backward_into(targets, grad_out, *kept_block, self.plans[owner])
            if traveling is not None:
                gradients.add_(traveling.wait())
            if ring.passes_gradients_on(owner, distance):
                sends.append(self.level.send(gradients, (own + 1) % self.level.size))
            if ring.returns_gradients(owner, distance):
                sends.append(self.level.send(gradients, owner))
            previous = ring.owner_at(own, distance + 1)
            traveling = None
            if ring.passes_gradients_on(previous, distance):
                into = grad_query.new_empty(blocks.sizes[previous])
                traveling = self.level.receive(into, (own - 1) % self.level.size)
            if ring.returns_gradients(own, distance):
                into = torch.empty_like(own_gradients)
                returned = self.level.receive(into, (own + distance) % self.level.size)
            block = hop.wait()
        for send in sends:
            send.wait()
        if returned is not None:
            own_gradients.add_(returned.wait())
        return (grad_query, *blocks.views(own_gradients, own))


class _Hop:
    """The hop that takes keys and values from `distance` to the next one, in flight. `wait` returns the block that
    arrives."""

    def __init__(
        self, attention: ShiftedRingAttention, blocks: KeyBlocks, block: torch.Tensor | None, distance: int
    ) -> None:
        level, ring = attention.level, attention.ring
        owner = ring.owner_at(level.own, distance)
        next_owner = ring.owner_at(level.own, distance + 1)
        self._received: PendingExchange | None = None
        self._sent: PendingExchange | None = None
        if ring.reaches(next_owner, distance + 1):
            self._received = level.receive(blocks.empty(next_owner), (level.own - 1) % level.size)
        if block is not None and ring.reaches(owner, distance + 1):
            self._sent = level.send(block, (level.own + 1) % level.size)

    def wait(self) -> torch.Tensor | None:
        if self._sent is not None:
            self._sent.wait()
        return None if self._received is None else self._received.wait()
