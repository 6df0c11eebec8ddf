"""Attention masks of split sequences: from the forms that a caller may give to the rows of this rank's tokens.

A mask is [queries, keys], [heads, queries, keys] or [batch, heads, queries, keys], each dim of its size or 1.

    queries   1, the tokens of this rank in its order, or all tokens in the order of the sequence
    keys      all tokens in the order of the sequence; or, if queries is 1, the tokens of this rank, as a mask of
              padding has them

Its dtype is bool, float32 or that of the queries, as PyTorch's attention takes it. Scores of 16-bit queries get numbers
in float32 if the mask is float32. Otherwise they get numbers in the dtype of the queries.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from weft.torch.context_parallel.exchanges.level_exchange import LevelExchange
from weft.torch.context_parallel.exchanges.token_blocks import insert_part, place
from weft.torch.context_parallel.layouts.documents import RowDocuments
from weft.torch.context_parallel.layouts.sequence_layout import SequenceLayout, TokenRange


class Extent(enum.IntEnum):
    """Tokens that a dim of a mask has."""

    NONE = 0  # There is no mask.
    BROADCAST = 1
    PART = 2
    WHOLE = 3


class MaskForm(NamedTuple):
    """The same on all ranks of a call."""

    rows: int
    heads: int
    queries: Extent
    keys: Extent
    dtype: torch.dtype | None  # Dtype of the numbers that are added to the scores.
    is_bool: bool  # True if these numbers are 0 and -inf.


NO_MASK = MaskForm(0, 0, Extent.NONE, Extent.NONE, None, False)

_LOWEST_MAXIMUM = -1000.0  # Of a row of a mask: an f32 log-sum-exp below keeps fewer than four decimals.


def as_four_dims(mask: torch.Tensor) -> torch.Tensor:
    return mask[(None,) * (4 - mask.dim())]


def _extent_of_keys(size: int, part: int, whole: int) -> Extent | None:
    """A whole extent wins where a group of one rank makes the two equal."""
    if size == whole:
        return Extent.WHOLE
    return Extent.PART if size == part else None


def _extent_of_queries(size: int, part: int, whole: int) -> Extent | None:
    """As that of keys. One row is for all tokens, also on a rank that has one token."""
    return Extent.BROADCAST if size == 1 and whole != 1 else _extent_of_keys(size, part, whole)


def _added_dtype(mask: torch.Tensor, query: torch.Tensor) -> torch.dtype:
    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise ValueError(
            f"attn_mask is {mask.dtype}, but must be torch.bool, torch.float32 or the dtype of the queries, "
            f"{query.dtype}: convert it, a mask of ones and zeros to bool"
        )
    return query.dtype if mask.dtype == torch.bool else torch.promote_types(mask.dtype, query.dtype)


def form_of(mask: torch.Tensor | None, query: torch.Tensor, whole: int) -> MaskForm:
    """Errors: ValueError (a mask that cannot be split)."""
    if mask is None:
        return NO_MASK
    batch, heads, part = query.shape[:3]
    if type(mask) not in (torch.Tensor, torch.nn.Parameter):
        raise ValueError(
            f"attn_mask is a {type(mask).__name__}: convert it to a plain tensor, or for a causal mask pass "
            "is_causal=True"
        )
    if mask.device.type != "cpu":
        raise ValueError(f"attn_mask is on {mask.device}, but weft.context_parallel computes on CPU tensors: move it")
    if mask.requires_grad:
        raise ValueError("attn_mask requires a gradient, which context_parallel does not compute: detach it")
    dtype = _added_dtype(mask, query)
    if mask.dim() < 2 or mask.dim() > 4:
        raise ValueError(
            f"attn_mask has {mask.dim()} dims: give it as [batch, heads, queries, keys], or without the first dims"
        )
    rows, mask_heads, queries, keys = as_four_dims(mask).shape
    query_extent, key_extent = _extent_of_queries(queries, part, whole), _extent_of_keys(keys, part, whole)
    fits = rows in (1, batch) and mask_heads in (1, heads) and query_extent is not None
    fits = fits and (key_extent is Extent.WHOLE or (key_extent is Extent.PART and query_extent is Extent.BROADCAST))
    if not fits:
        raise ValueError(
            f"attn_mask {list(mask.shape)} cannot be split: a rank has {part} of {whole} tokens, so its dims must "
            f"be [1 or {batch}, 1 or "
            f"{heads}, 1 or {part} or {whole}, {whole}], or keys {part} with queries 1. If a model made the mask "
            "from this rank's tokens alone, let it use is_causal instead: give models of transformers an "
            "attention_mask of ones. A sliding window needs a mask over all tokens"
        )
    assert query_extent is not None and key_extent is not None
    return MaskForm(rows, mask_heads, query_extent, key_extent, dtype, mask.dtype == torch.bool)


def has_rows_of_tokens(form: MaskForm, layout: SequenceLayout) -> bool:
    """True if the rows of a mask may differ between tokens. If each rank has one token, a row may be that of its token."""
    return form.queries is not Extent.BROADCAST or max(layout.counts) == 1


def rows_of_mask(
    mask: torch.Tensor, form: MaskForm, layout: SequenceLayout, level: LevelExchange
) -> torch.Tensor:
    """The mask that is added to scores, [rows, heads, 1 or tokens of this rank, all tokens]. Collective for keys of
    this rank."""
    mask = as_four_dims(mask)
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=form.dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
    mask = mask.to(form.dtype)
    if form.queries is Extent.WHOLE:
        mask = torch.cat([mask[:, :, part.begin : part.end] for part in layout.ranges[level.own]], dim=2)
    if form.keys is Extent.PART:
        mask = _gather_keys(mask, layout, level)
    return mask


def raise_hidden_rows(mask: torch.Tensor, documents: Sequence[RowDocuments]) -> torch.Tensor:
    """Adds a number to each row whose finite maximum within a document is very low, such as finfo.min for padding, so
    that the maximum is 0. That changes no softmax, which stays within the document. Without it the row's log-sum-exps
    would be rounded to the mask, and could not weight tiles.

    mask: [1 or batch, heads, queries, all tokens]. The result has all rows of the batch if their documents differ.
    """
    if mask.numel() == 0 or mask.amin() >= _LOWEST_MAXIMUM:  # The usual case, without a pass for each document.
        return mask
    raised: torch.Tensor | None = None
    for part in documents:
        for begin, end in itertools.pairwise(part.offsets):
            keys = mask[part.rows if mask.shape[0] > 1 else slice(None), ..., begin:end]
            top = keys.amax(dim=-1, keepdim=True)
            is_hidden = (top < _LOWEST_MAXIMUM) & (top > -torch.inf)
            if not is_hidden.any():
                continue
            if raised is None:
                batch = documents[-1].rows.stop if len(documents) > 1 else mask.shape[0]
                raised = mask.expand(batch, -1, -1, -1).clone()
            rows = part.rows if raised.shape[0] > 1 else slice(None)
            raised[rows, ..., begin:end] -= top.masked_fill(~is_hidden, 0.0)
    return mask if raised is None else raised


def _gather_keys(mask: torch.Tensor, layout: SequenceLayout, level: LevelExchange) -> torch.Tensor:
    per_token = mask.numel() // mask.shape[3]
    whole = mask.new_empty((*mask.shape[:2], layout.tokens, 1))
    sizes = [per_token * count for count in layout.counts]
    everything: Sequence[TokenRange] = [TokenRange(0, layout.tokens)]
    for rank, block in enumerate(level.gather(mask.contiguous().flatten(), sizes).wait()):
        part = block.view(*mask.shape[:2], layout.counts[rank], 1)
        insert_part(part, whole, place(layout.ranges[rank], everything))
    return whole.transpose(2, 3)
