"""One attention over split ranks and on one rank, for comparison. Runs on ranks of a RankPool."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from weft.torch.context_parallel import context_parallel, context_parallel_unshard, costs_of


@dataclass(frozen=True)
class Attention:
    """A whole attention. documents: ids, one list or one for each row of the batch. mask: None, or a form of a
    mask. is_transposed: q, k, v, a mask of numbers and the gradient of the output have strided last dims."""

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    is_causal: bool = True
    documents: Any = None
    mask: str | None = None
    dtype: torch.dtype = torch.float32
    batch: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    is_transposed: bool = False

    def inputs(self) -> list[torch.Tensor]:
        """q, k, v and the gradient of the output."""
        generator = torch.Generator().manual_seed(self.tokens)
        dims = [
            (self.heads, self.head_dim),
            (self.kv_heads, self.head_dim),
            (self.kv_heads, self.value_dim),
            (self.heads, self.value_dim),
        ]
        shapes = [(self.batch, heads, self.tokens, dim) for heads, dim in dims]
        tensors = [torch.randn(shape, generator=generator).to(self.dtype) for shape in shapes]
        return [_transposed(tensor) for tensor in tensors] if self.is_transposed else tensors

    def visible(self) -> torch.Tensor:
        """Pairs that causality and documents allow, bool, broadcasts to [batch, heads, queries, keys]."""
        visible = torch.ones(1, 1, self.tokens, self.tokens, dtype=torch.bool)
        if self.is_causal and self.mask is None:
            visible = visible.tril()
        if self.documents is not None:
            ids = torch.tensor(self.documents).reshape(-1, 1, self.tokens)
            visible = visible & (ids[..., :, None] == ids[..., None, :])
        return visible

    def whole_mask(self) -> torch.Tensor | None:
        generator = torch.Generator().manual_seed(7)
        if self.mask is None:
            return None
        if self.mask in ("keys", "keys of the rank"):
            return torch.rand(self.batch, 1, 1, self.tokens, generator=generator) < 0.7
        if self.mask == "bias of heads":
            bias = torch.randn(self.heads, self.tokens, self.tokens, generator=generator)
            return _transposed(bias) if self.is_transposed else bias
        if self.mask == "positions":  # bf16 rounds those above 128.
            return 0.5 * torch.arange(self.tokens, dtype=torch.float32).repeat(self.tokens, 1)
        if self.mask == "hidden rows":  # Queries of padding, which finite numbers hide from all keys.
            bias = torch.randn(self.tokens, self.tokens, generator=generator)
            bias[::3] = -1e9
            return bias
        if self.mask == "hidden keys":  # The last third is padding.
            bias = torch.randn(1, 1, 1, self.tokens, generator=generator)
            bias[..., self.tokens - self.tokens // 3 :] = -1e9
            return bias
        mask = torch.rand(self.batch, 1, self.tokens, self.tokens, generator=generator) < 0.5
        mask[0, 0, min(3, self.tokens - 1)] = False  # A query that sees no key.
        return mask


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.mT.contiguous().mT


def random_documents(tokens: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    ids: list[int] = []
    while len(ids) < tokens:
        ids += [len(ids)] * generator.randint(1, 9)
    return ids[:tokens]


def attend_on_one_rank(attention: Attention) -> list[torch.Tensor]:
    """Output and gradients of q, k and v, in f64."""
    *inputs, grad_out = (tensor.double() for tensor in attention.inputs())
    for tensor in inputs:
        tensor.requires_grad_()
    bias = torch.zeros(1, 1, attention.tokens, attention.tokens, dtype=torch.float64)
    bias = bias.masked_fill(~attention.visible(), -torch.inf)
    mask = attention.whole_mask()
    if mask is not None:
        bias = bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else bias + mask.double()
    out = F.scaled_dot_product_attention(*inputs, attn_mask=bias, enable_gqa=True)
    out.backward(grad_out)
    return [out.detach(), *(tensor.grad for tensor in inputs)]


def _mask_argument(attention: Attention, scope) -> torch.Tensor | None:
    mask = attention.whole_mask()
    ranges = scope.layout.ranges[scope.rank]
    if attention.mask == "rows of the rank":
        return torch.cat([mask[:, :, part.begin : part.end] for part in ranges], dim=2)
    if attention.mask == "keys of the rank":
        return torch.cat([mask[..., part.begin : part.end] for part in ranges], dim=3)
    return mask


def attend_on_all_ranks(attention: Attention) -> tuple[list[torch.Tensor], Any, int]:
    """Output and gradients as attend_on_one_rank gives them; the scope; the bytes that this rank received."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    buffers = attention.inputs()
    with context_parallel(
        mesh,
        buffers=buffers,
        buffer_seq_dims=[2, 2, 2, -2],
        no_restore_buffers=set(buffers),
        documents=attention.documents,
        **attention.options,
    ) as scope:
        *inputs, grad_out = buffers
        if attention.is_transposed:  # Parts are contiguous.
            *inputs, grad_out = [_transposed(tensor) for tensor in buffers]
        for tensor in inputs:
            tensor.requires_grad_()
        mask = _mask_argument(attention, scope)
        is_causal = attention.is_causal and mask is None
        out = F.scaled_dot_product_attention(*inputs, attn_mask=mask, is_causal=is_causal, enable_gqa=True)
        assert out.dtype == attention.dtype
        out.backward(grad_out)
        received = scope.received_bytes
        parts = [out.detach(), *(tensor.grad for tensor in inputs)]
        return context_parallel_unshard(mesh, parts, [2, 2, 2, 2]), scope, received


def largest_error(attention: Attention) -> float:
    """Largest difference between the ranks and one rank, relative to the largest element of each result."""
    results, _, _ = attend_on_all_ranks(attention)
    expected = attend_on_one_rank(attention)
    errors = [(a.double() - b).abs().max() / b.abs().max() for a, b in zip(results, expected, strict=True)]
    assert all(torch.isfinite(tensor).all() for tensor in results)
    return max(error.item() for error in errors)


def largest_errors(attentions: list[Attention]) -> list[float]:
    return [largest_error(attention) for attention in attentions]


def bytes_and_formula(attention: Attention) -> tuple[int, int]:
    """Received bytes as counted, and as computed."""
    _, scope, received = attend_on_all_ranks(attention)
    scheme, shape = scope.choices[0].scheme, _shape_of(attention)
    return received, costs_of(scheme, shape, scope.layout, scope.rank, is_causal=attention.is_causal).bytes


def _shape_of(attention: Attention):
    from weft.torch.context_parallel import AttentionShape

    return AttentionShape(
        attention.batch,
        attention.heads,
        attention.kv_heads,
        attention.head_dim,
        attention.value_dim,
        attention.dtype.itemsize,
    )


def bits_of(attention: Attention) -> list[torch.Tensor]:
    results, _, _ = attend_on_all_ranks(attention)
    return results
