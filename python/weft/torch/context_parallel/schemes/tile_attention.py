"""Attention over the tiles of a plan, by PyTorch's flash kernel for CPUs.

Tensors are [batch, heads, tokens, head_dim]; keys and values may have fewer heads, which divide those of the queries.
The results of a query's tiles are merged by their log-sum-exps in the accumulation dtype: f32, or f64 for f64 inputs.
Gradients are added there too.

Thread safety: none; belongs to the thread that calls attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from weft.torch.context_parallel.layouts.tile_plan import Tile

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class RowTiles:
    """Tiles of some rows of the batch. Rows differ if their documents do."""

    rows: slice
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class TileKernel:
    """Forward and backward of the attention over tiles.

    mask: added to the scores, [1 or batch, 1 or heads, queries, keys of the whole sequence in its order], or None. In
      float32 or the dtype of the queries; the kernel reads it with a last stride of 1.
    key_of_each_query: see HeadSplit.
    """

    scale: float
    mask: torch.Tensor | None = None
    key_of_each_query: tuple[int, ...] | None = None

    def forward_into(
        self,
        out: torch.Tensor,
        lse: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: Sequence[RowTiles],
    ) -> None:
        """Merges the attention over tiles of `plan` into `out`, in the accumulation dtype, and `lse`, [batch, heads,
        queries]. Before the first call `out` is 0 and `lse` is -inf."""
        if query.numel() == 0:
            return
        key, value = self._spread(key), self._spread(value)
        for part in plan:
            for tile in part.tiles:
                rows, queries = part.rows, tile.queries
                partial_out, partial_lse = self._tile_forward(part, tile, query, key, value)
                _merge(out[rows, :, queries], lse[rows, :, queries], partial_out, partial_lse)

    def _tile_forward(self, part: RowTiles, tile: Tile, query, key, value) -> tuple[torch.Tensor, torch.Tensor]:
        rows, head_dim, value_dim = part.rows, query.shape[-1], value.shape[-1]
        width = max(head_dim, value_dim)
        mask = self._tile_mask(part, tile)
        out, lse = _forward(
            _widen(query[rows, :, tile.queries], width),
            _widen(key[rows, :, tile.keys], width),
            _widen(value[rows, :, tile.keys], width),
            0.0,
            tile.is_causal,
            attn_mask=mask,
            scale=self.scale,
        )
        if mask is not None:
            # The kernel gives a query without a visible key an output of 0 and a log-sum-exp of 0.
            lse = lse.masked_fill((mask == -torch.inf).all(-1), -torch.inf)
        return out[..., :value_dim], lse

    def backward_into(
        self,
        gradients: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        grad_out: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        plan: Sequence[RowTiles],
    ) -> None:
        """Adds the gradients of `query`, `key` and `value` from the tiles of `plan`. `out` and `lse` are those of all
        tiles."""
        if query.numel() == 0:
            return
        grad_query, grad_key, grad_value = gradients
        heads = self._key_heads(key)
        key, value = self._spread(key), self._spread(value)
        head_dim, value_dim = query.shape[-1], value.shape[-1]
        width = max(head_dim, value_dim)
        for part in plan:
            for tile in part.tiles:
                rows, queries, keys = part.rows, tile.queries, tile.keys
                d_query, d_key, d_value = _backward(
                    _widen(grad_out[rows, :, queries], width),
                    _widen(query[rows, :, queries], width),
                    _widen(key[rows, :, keys], width),
                    _widen(value[rows, :, keys], width),
                    _widen(out[rows, :, queries], width),
                    lse[rows, :, queries],
                    0.0,
                    tile.is_causal,
                    attn_mask=self._tile_mask(part, tile),
                    scale=self.scale,
                )
                grad_query[rows, :, queries].add_(d_query[..., :head_dim])
                _add_heads(grad_key[rows, :, keys], d_key[..., :head_dim], heads)
                _add_heads(grad_value[rows, :, keys], d_value[..., :value_dim], heads)

    def _spread(self, tensor: torch.Tensor) -> torch.Tensor:
        """One KV head for each query head, if the kernel cannot group them."""
        heads = self._key_heads(tensor)
        return tensor if heads is None else tensor.index_select(1, heads)

    def _key_heads(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if self.key_of_each_query is None:
            return None
        return torch.tensor(self.key_of_each_query, device=tensor.device)

    def _tile_mask(self, part: RowTiles, tile: Tile) -> torch.Tensor | None:
        if self.mask is None:
            return None
        rows = part.rows if self.mask.shape[0] > 1 else slice(None)
        queries = tile.queries if self.mask.shape[2] > 1 else slice(None)
        return self.mask[rows, :, queries, tile.key_tokens]


def _widen(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Zeros up to `width` elements a head: the kernel takes one head size, and a last stride of 1. Zeros change no
    score and no other element of a result."""
    missing = width - tensor.shape[-1]
    if missing:
        return torch.nn.functional.pad(tensor, (0, missing))
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _merge(out: torch.Tensor, lse: torch.Tensor, partial_out: torch.Tensor, partial_lse: torch.Tensor) -> None:
    """Merges a partial result into views of the accumulators. Queries that have seen no key yet keep an `lse` of
    -inf."""
    merged = torch.logaddexp(lse, partial_lse)
    finite = merged.masked_fill(merged == -torch.inf, 0.0)
    out.mul_(torch.exp(lse - finite).unsqueeze(-1))
    out.addcmul_(partial_out.to(out.dtype), torch.exp(partial_lse - finite).unsqueeze(-1))
    lse.copy_(merged)


def _add_heads(total: torch.Tensor, gradient: torch.Tensor, heads: torch.Tensor | None) -> None:
    if heads is None:
        total.add_(gradient)
    else:
        total.index_add_(1, heads, gradient.to(total.dtype))
