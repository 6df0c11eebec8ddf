"""Checks of compiled attention in a scope, on ranks of a RankPool. Each raises AssertionError on a rank that fails."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from context_scope_bodies import PLAIN_ATTENTION, close, make_mesh, raises, random_qkv, split
from torch.nn.functional import scaled_dot_product_attention as imported_attention
from weft.torch.context_parallel import context_parallel, context_parallel_unshard


def check_compiled_blocks() -> None:
    """A block that was compiled outside of a scope is compiled once more within scopes, not once for each."""
    from torch._dynamo.utils import counters

    mesh, (whole, _, _) = make_mesh(), random_qkv()
    weight = torch.eye(whole.shape[-1], requires_grad=True)

    @torch.compile(backend="aot_eager")
    def block(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor @ weight
        return F.scaled_dot_product_attention(tensor, tensor, tensor, is_causal=True).cos()

    expected = block(whole)
    expected.sum().backward()
    gradient, weight.grad = weight.grad, None
    graphs = []
    for _ in range(3):
        weight.grad = None
        (part,), scope = split(mesh, [whole])
        with scope:
            out = block(part)
            out.sum().backward()
            (out,) = context_parallel_unshard(mesh, [out], [2])
        close(out, expected.detach())
        dist.all_reduce(weight.grad)
        close(weight.grad, gradient)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[2]
    close(block(whole), expected)


def check_compiled_references() -> None:
    """Blocks that call attention by other names than F.scaled_dot_product_attention."""
    mesh, whole = make_mesh(), random_qkv()
    expected = PLAIN_ATTENTION(*whole, is_causal=True)
    for attention in (imported_attention, torch.ops.aten.scaled_dot_product_attention.default):
        torch._dynamo.reset()

        @torch.compile(backend="aot_eager")
        def block(query, key, value, attention=attention):
            return attention(query * 2, key / 2, value, is_causal=True)

        parts, scope = split(mesh, whole)
        with scope:
            (out,) = context_parallel_unshard(mesh, [block(*parts)], [2])
        close(out, expected)


def check_compiled_multi_head_attention() -> None:
    mesh, whole = make_mesh(), torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(1)
    attention = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    compiled = torch.compile(attention, backend="aot_eager")
    expected, _ = attention(whole, whole, whole, need_weights=False)
    part = whole.clone()
    with context_parallel(mesh, buffers=[part], buffer_seq_dims=[1]):
        (out,) = context_parallel_unshard(mesh, [compiled(part, part, part, need_weights=False)[0]], [1])
        raises(Exception, "need_weights=False", compiled, part, part, part)
    close(out, expected)
