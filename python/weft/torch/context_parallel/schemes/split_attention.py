"""Attention of a whole sequence whose tokens are split over the ranks of a context group, with gradients.

    SplitAttention ┬ HeadExchange    inner level: heads for tokens, and back
                   └ OuterAttention  outer level: local, gather or ring, over TileKernel

An AttentionPlan has everything that depends on shapes and layout alone; the calls of a scope with the same shapes
share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from weft.torch.context_parallel.exchanges.head_exchange import HeadExchange, HeadTensor
from weft.torch.context_parallel.exchanges.level_exchange import LevelExchange
from weft.torch.context_parallel.exchanges.token_blocks import place
from weft.torch.context_parallel.layouts.byte_formulas import outer_ranges
from weft.torch.context_parallel.layouts.context_scheme import ContextScheme
from weft.torch.context_parallel.layouts.documents import RowDocuments
from weft.torch.context_parallel.layouts.head_split import HeadSplit
from weft.torch.context_parallel.layouts.ring_plan import RingPlan
from weft.torch.context_parallel.layouts.sequence_layout import SequenceLayout, TokenRange, merge_adjacent
from weft.torch.context_parallel.layouts.tile_plan import has_tiles, plan_tiles
from weft.torch.context_parallel.schemes.outer_attention import (
    GatherAttention,
    GatheredRingAttention,
    Kept,
    LocalAttention,
    OuterAttention,
    ShiftedRingAttention,
)
from weft.torch.context_parallel.schemes.split_mask import raise_hidden_rows
from weft.torch.context_parallel.schemes.tile_attention import RowTiles, TileKernel


@dataclass(frozen=True)
class AttentionPlan:
    """Exchanges and tiles of one rank. `inner`: None if the scheme exchanges no heads."""

    split: HeadSplit
    inner: HeadExchange | None
    outer: OuterAttention
    levels: tuple[LevelExchange, ...]
    documents: Sequence[RowDocuments]

    @property
    def received_bytes(self) -> int:
        return sum(level.received_bytes for level in self.levels)

    @property
    def sums_gradients(self) -> bool:
        """True if several ranks contribute to the gradient of a key or value."""
        return self.split.replicates or not isinstance(self.outer, LocalAttention)

    def kernel(
        self, scale: float, mask: torch.Tensor | None, *, has_rows: bool, may_hide_rows: bool
    ) -> TileKernel:
        """`mask`: of this rank's tokens, see TileKernel. `has_rows`: it has a row for each of them. `may_hide_rows`:
        False for a mask of 0 and -inf, see raise_hidden_rows. Collective."""
        rank = self.inner.level.own if self.inner else 0
        if self.inner and mask is not None:
            if has_rows:
                mask = self.inner.gather_rows(mask)
            if mask.shape[1] > 1:
                heads = self.split.queries[rank]
                mask = mask[:, heads.begin : heads.end]
        if mask is not None:
            mask = raise_hidden_rows(mask, self.documents) if may_hide_rows else mask
            mask = mask if mask.stride(-1) == 1 else mask.contiguous()
        return TileKernel(scale, mask, self.split.key_of_each_query(rank))


def _row_tiles(
    documents: Sequence[RowDocuments], queries: Sequence[TokenRange], keys: Sequence[TokenRange], is_causal: bool
) -> tuple[RowTiles, ...]:
    tiles = (RowTiles(part.rows, plan_tiles(queries, keys, part.offsets, is_causal)) for part in documents)
    return tuple(part for part in tiles if part.tiles)


def _make_outer(
    scheme: ContextScheme,
    level: LevelExchange,
    ranges: Sequence[Sequence[TokenRange]],
    documents: Sequence[RowDocuments],
    is_causal: bool,
) -> OuterAttention:
    own = ranges[level.own]
    whole = merge_adjacent(sorted(part for rank in ranges for part in rank))
    if level.size == 1:
        return LocalAttention(_row_tiles(documents, own, whole, is_causal))
    tokens = [sum(part.count for part in rank) for rank in ranges]
    if scheme.ring_rotate is None:
        placements = [place(rank, whole) for rank in ranges]
        return GatherAttention(level, _row_tiles(documents, own, whole, is_causal), tokens, placements)
    plans = [_row_tiles(documents, own, keys, is_causal) for keys in ranges]
    if scheme.ring_rotate == "all-gather":
        return GatheredRingAttention(level, plans, tokens)

    def attends(rank: int, owner: int) -> bool:
        return any(has_tiles(ranges[rank], ranges[owner], part.offsets, is_causal) for part in documents)

    return ShiftedRingAttention(level, plans, tokens, RingPlan(level.size, attends))


def make_plan(
    group: dist.ProcessGroup,
    scheme: ContextScheme,
    layout: SequenceLayout,
    split: HeadSplit,
    documents: Sequence[RowDocuments],
    is_causal: bool,
) -> AttentionPlan:
    """`documents`: of all rows of the batch. REQUIRES: `layout` is for the ranks of `group`."""
    rank, degree = dist.get_rank(group), scheme.ulysses_degree
    first = rank - rank % degree
    ranges = outer_ranges(layout, degree)
    outer = LevelExchange(group, range(rank % degree, layout.ranks, degree))
    inner = None
    levels = [outer]
    if degree > 1:
        level = LevelExchange(group, range(first, first + degree))
        parts = layout.ranges[first : first + degree]
        placements = [place(part, ranges[rank // degree]) for part in parts]
        inner = HeadExchange(level, split, layout.counts[first : first + degree], placements)
        levels.append(level)
    attention = _make_outer(scheme, outer, ranges, documents, is_causal)
    return AttentionPlan(split, inner, attention, tuple(levels), documents)


class SplitAttention(torch.autograd.Function):
    """Inputs and output are [batch, heads, tokens of this rank, head_dim]. `scope_number`: of the scope, in this process.
    Collective: forward and backward."""

    @staticmethod
    def forward(ctx, query, key, value, plan: AttentionPlan, kernel: TileKernel, scope_number: int):
        ctx.plan, ctx.kernel = plan, replace(kernel, mask=None)
        if plan.inner:
            split = plan.split
            query, key, value = plan.inner.scatter(
                HeadTensor(query, split.queries, split.heads),
                HeadTensor(key, split.keys, split.kv_heads),
                HeadTensor(value, split.keys, split.kv_heads),
            )
        kept = plan.outer.forward(kernel, query, key, value)
        # Note [Marker of a split attention]: one saved tensor more than PyTorch's attention, which saves five, and with
        # a mask six. A checkpoint that recomputes outside of the scope, and so without the other ranks' tokens, thus
        # fails its check of the saved tensors. Its shape tells the scope, so that a recomputation in another scope,
        # which may split the sequence otherwise, fails too.
        marker = kept.lse.new_empty((0, scope_number), dtype=torch.uint8)
        ctx.save_for_backward(*kept, marker, kernel.mask)
        if not plan.inner:
            return kept.out
        (out,) = plan.inner.gather(HeadTensor(kept.out, plan.split.queries, plan.split.heads))
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_out):
        *saved, _, mask = ctx.saved_tensors
        plan, kept, kernel = ctx.plan, Kept(*saved), replace(ctx.kernel, mask=mask)
        split = plan.split
        if plan.inner:
            (grad_out,) = plan.inner.scatter(HeadTensor(grad_out, split.queries, split.heads))
        query, key, value = plan.outer.backward(kernel, grad_out, kept)
        if plan.inner:
            if not plan.sums_gradients:
                key, value = key.to(kept.query.dtype), value.to(kept.query.dtype)
            value, key, query = plan.inner.gather(
                HeadTensor(value, split.keys, split.kv_heads),
                HeadTensor(key, split.keys, split.kv_heads),
                HeadTensor(query.to(kept.query.dtype), split.queries, split.heads),
            )
        dtype = kept.query.dtype
        return query.to(dtype), key.to(dtype), value.to(dtype), None, None, None
