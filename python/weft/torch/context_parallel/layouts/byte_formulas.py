"""Cost of attention over a context group for each rank: received bytes, ring hops and computed pairs, from shapes and
layout alone.

For P ranks with c tokens each, an even split, heads that divide, and one head size, let e be the bytes of one head of
one token, Hq the query heads and Hkv the KV heads. A rank receives:

    ulysses        forward (P-1)/P c e (2 Hq + 2 Hkv); backward the same
    gather         forward 2 c Hkv e (P-1); backward gradients in f32. Inputs in f32: as many bytes as forward. Inputs in
                   bf16 or f16: twice as many
    ring           forward 2 c Hkv e (P-1); backward keys and values again, and gradients in f32. Inputs in f32: twice as
                   many bytes as forward. Inputs in bf16 or f16: three times as many
    hybrid U x V   ulysses over U ranks, plus the outer scheme over V ranks with U c tokens and Hkv / U heads; gradients of
                   keys and values are in f32 on both levels

Gradients of inputs in f64 are in f64, so backward has the same share as for f32. A KV head that several ranks need counts
once for each of them. A ring by shift sends nothing that the mask hides.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from weft.torch.context_parallel.layouts.context_scheme import ContextScheme
from weft.torch.context_parallel.layouts.documents import cut_at_documents
from weft.torch.context_parallel.layouts.head_split import HeadRange, HeadSplit
from weft.torch.context_parallel.layouts.ring_plan import RingPlan
from weft.torch.context_parallel.layouts.sequence_layout import SequenceLayout, TokenRange, merge_adjacent, token_count
from weft.torch.context_parallel.layouts.tile_plan import has_tiles


@dataclass(frozen=True)
class AttentionShape:
    """Shape of the whole attention, not of a rank's part. `element_bytes`: of an element of q, k and v."""

    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 1
    value_dim: int = 1
    element_bytes: int = 4

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of a gradient that ranks sum."""
        return max(4, self.element_bytes)


@dataclass(frozen=True)
class ContextCosts:
    """Costs of one call on one rank. Bytes are those received from peers.

    forward_hops: in a ring by shift, hops of keys and values.
    backward_hops: in a ring by shift, hops of keys and values, and of gradients.
    pairs: (query, key) pairs computed, over this rank's heads, in one row of the batch.
    """

    forward_bytes: int = 0
    backward_bytes: int = 0
    forward_hops: int = 0
    backward_hops: int = 0
    pairs: int = 0

    @property
    def bytes(self) -> int:
        """Bytes in forward and backward."""
        return self.forward_bytes + self.backward_bytes


@functools.lru_cache(maxsize=32)
def outer_ranges(layout: SequenceLayout, inner: int) -> tuple[tuple[TokenRange, ...], ...]:
    """Tokens of each group of `inner` adjacent ranks, in the order of the sequence."""
    groups = range(0, layout.ranks, inner)
    return tuple(
        merge_adjacent(sorted(part for ranges in layout.ranges[first : first + inner] for part in ranges))
        for first in groups
    )


@dataclass(frozen=True)
class _Levels:
    """One rank on the two levels of its scheme."""

    scheme: ContextScheme
    shape: AttentionShape
    split: HeadSplit
    inner_rank: int
    inner_tokens: tuple[int, ...]
    outer: tuple[tuple[TokenRange, ...], ...]
    outer_rank: int
    offsets: Sequence[int]
    is_causal: bool

    @property
    def key_elements(self) -> int:
        """Elements of the keys and values of one token, over this rank's heads."""
        return self.split.keys[self.inner_rank].count * (self.shape.head_dim + self.shape.value_dim)

    @property
    def own_tokens(self) -> int:
        return self.inner_tokens[self.inner_rank]

    def outer_tokens(self, rank: int) -> int:
        return token_count(self.outer[rank])

    def pairs(self) -> int:
        """(query, key) pairs of the rank's tokens and all tokens of their documents, in one head."""
        pairs = 0
        for piece in cut_at_documents(self.outer[self.outer_rank], self.offsets):
            after = bisect.bisect_right(self.offsets, piece.begin)
            begin, end = self.offsets[after - 1], self.offsets[after]
            # Causal: the first query sees the keys up to itself, each further one sees one more.
            first = piece.begin - begin + 1
            pairs += piece.count * (2 * first + piece.count - 1) // 2 if self.is_causal else piece.count * (end - begin)
        return pairs


def _levels(
    scheme: ContextScheme, shape: AttentionShape, layout: SequenceLayout, is_causal: bool, rank: int
) -> _Levels:
    inner = scheme.ulysses_degree
    first = rank - rank % inner
    return _Levels(
        scheme=scheme,
        shape=shape,
        split=HeadSplit(shape.heads, shape.kv_heads, inner),
        inner_rank=rank % inner,
        inner_tokens=layout.counts[first : first + inner],
        outer=outer_ranges(layout, inner),
        outer_rank=rank // inner,
        offsets=layout.document_offsets,
        is_causal=is_causal,
    )


def _peer_heads(heads: Sequence[HeadRange], rank: int) -> int:
    return sum(part.count for part in heads) - heads[rank].count


def _head_exchange_bytes(levels: _Levels) -> tuple[int, int]:
    shape, split, rank = levels.shape, levels.split, levels.inner_rank
    peer_tokens = sum(levels.inner_tokens) - levels.own_tokens
    sums_gradients = len(levels.outer) > 1 or split.replicates
    gradient_bytes = shape.gradient_bytes if sums_gradients else shape.element_bytes
    heads = split.queries[rank].count
    peer_queries, peer_keys = _peer_heads(split.queries, rank), _peer_heads(split.keys, rank)
    forward = peer_tokens * (heads * shape.head_dim + levels.key_elements) * shape.element_bytes
    forward += levels.own_tokens * peer_queries * shape.value_dim * shape.element_bytes
    backward = peer_tokens * heads * shape.value_dim * shape.element_bytes
    backward += levels.own_tokens * peer_queries * shape.head_dim * shape.element_bytes
    backward += levels.own_tokens * peer_keys * (shape.head_dim + shape.value_dim) * gradient_bytes
    return forward, backward


def _gather_bytes(levels: _Levels) -> tuple[int, int]:
    own = levels.outer_tokens(levels.outer_rank)
    others = sum(levels.outer_tokens(rank) for rank in range(len(levels.outer))) - own
    gathered = others * levels.key_elements * levels.shape.element_bytes
    reduced = (len(levels.outer) - 1) * own * levels.key_elements * levels.shape.gradient_bytes
    return gathered, reduced + (gathered if levels.scheme.ring_rotate else 0)


@functools.lru_cache(maxsize=8)
def _ring_plan(outer: tuple[tuple[TokenRange, ...], ...], offsets: tuple[int, ...], is_causal: bool) -> RingPlan:
    return RingPlan(len(outer), lambda rank, owner: has_tiles(outer[rank], outer[owner], offsets, is_causal))


def _shift_plan(levels: _Levels) -> RingPlan:
    return _ring_plan(levels.outer, tuple(levels.offsets), levels.is_causal)


def _shift_bytes(levels: _Levels) -> tuple[int, int]:
    plan, rank, forward, gradients = _shift_plan(levels), levels.outer_rank, 0, 0
    for distance in range(1, plan.hops + 1):
        owner = plan.owner_at(rank, distance)
        if plan.reaches(owner, distance):
            forward += levels.outer_tokens(owner)
        if plan.passes_gradients_on(owner, distance - 1):
            gradients += levels.outer_tokens(owner)
        if plan.returns_gradients(rank, distance):
            gradients += levels.outer_tokens(rank)
    forward *= levels.key_elements * levels.shape.element_bytes
    return forward, forward + gradients * levels.key_elements * levels.shape.gradient_bytes


def _shift_hops(levels: _Levels) -> tuple[int, int]:
    plan = _shift_plan(levels)
    return plan.hops, plan.hops + sum(plan.sends_any_gradients(distance) for distance in range(1, plan.hops + 1))


def costs_of(
    scheme: ContextScheme, shape: AttentionShape, layout: SequenceLayout, rank: int, *, is_causal: bool
) -> ContextCosts:
    """Bytes that `rank` receives for one attention in a training step, and the work that it does, by the formulas above."""
    levels = _levels(scheme, shape, layout, is_causal, rank)
    forward = backward = forward_hops = backward_hops = 0
    if scheme.ulysses_degree > 1:
        forward, backward = _head_exchange_bytes(levels)
    if len(levels.outer) > 1:
        if scheme.ring_rotate == "shift":
            outer_forward, outer_backward = _shift_bytes(levels)
            forward_hops, backward_hops = _shift_hops(levels)
        else:
            outer_forward, outer_backward = _gather_bytes(levels)
        forward, backward = forward + outer_forward, backward + outer_backward
    return ContextCosts(
        forward_bytes=forward * shape.batch,
        backward_bytes=backward * shape.batch,
        forward_hops=forward_hops,
        backward_hops=backward_hops,
        pairs=levels.pairs() * levels.split.queries[levels.inner_rank].count,
    )


def imbalance_of(costs: Sequence[ContextCosts]) -> float:
    """The largest number of pairs of any rank over the mean of all ranks; 1 if no rank has any."""
    pairs = [cost.pairs for cost in costs]
    return max(pairs) * len(pairs) / sum(pairs) if sum(pairs) else 1.0
