"""Checks of the scope that run on ranks of a RankPool. Each raises AssertionError on a rank that fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention as imported_attention
from torch.utils.checkpoint import CheckpointError, checkpoint
from weft.torch.context_parallel import AttentionShape, context_parallel, context_parallel_unshard, costs_of

PLAIN_ATTENTION = F.scaled_dot_product_attention


def make_mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def random_qkv(tokens: int = 12, heads: int = 4, kv_heads: int = 4, head_dim: int = 8) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2, count, tokens, head_dim, generator=generator) for count in (heads, kv_heads, kv_heads)]


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * scale)


def raises(error: type[Exception], pattern: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    try:
        function(*arguments, **options)
    except error as caught:
        assert re.search(pattern, str(caught)), f"the message is: {caught}"
        return
    raise AssertionError(f"no {error.__name__} with {pattern!r}")


def check_buffers_are_split_and_restored() -> None:
    mesh = make_mesh()
    ids, table, kept = torch.arange(24).view(2, 12), torch.arange(36.0).view(12, 3) - 9, torch.arange(12.0)
    wholes = [tensor.clone() for tensor in (ids, table, kept)]
    view = ids[0]
    with context_parallel(
        mesh, buffers=[ids, table, kept], buffer_seq_dims=[1, 0, -1], no_restore_buffers={kept}, scheme="gather"
    ) as scope:
        tokens = [token for part in scope.layout.ranges[scope.rank] for token in range(*part)]
        assert torch.equal(ids, wholes[0][:, tokens])
        assert torch.equal(table, wholes[1][tokens])
        assert torch.equal(kept, wholes[2][tokens])
        assert scope.position_ids.tolist() == [tokens]
        assert torch.equal(view, wholes[0][0])
        ids.fill_(-1)
        restored = context_parallel_unshard(mesh, [table, kept, table > 0], [0, 0, -2])
        assert torch.equal(restored[0], wholes[1]) and torch.equal(restored[1], wholes[2])
        assert torch.equal(restored[2], wholes[1] > 0)
    assert torch.equal(ids, wholes[0]) and torch.equal(table, wholes[1])
    assert torch.equal(kept, wholes[2][tokens])
    (whole,) = context_parallel_unshard(mesh, [kept], [0], layout=scope.layout)
    assert torch.equal(whole, wholes[2])


def check_buffers_of_any_strides() -> None:
    """Rows that share memory, a transposed tensor, every second token of a longer one."""
    mesh, tokens = make_mesh(), 16
    positions = torch.arange(tokens).expand(3, tokens)
    table = torch.arange(4.0 * tokens).view(4, tokens).t()
    strided = torch.arange(2 * tokens)[::2]
    buffers, dims = [positions, table, strided], [1, 0, 0]
    wholes, strides = [buffer.clone() for buffer in buffers], [buffer.stride() for buffer in buffers]
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=dims, load_balance="head-tail", scheme="gather") as scope:
        chunks = torch.arange(tokens).chunk(2 * scope.layout.ranks)
        own = torch.cat([chunks[scope.rank], chunks[-1 - scope.rank]])
        for buffer, dim, whole in zip(buffers, dims, wholes, strict=True):
            assert torch.equal(buffer, whole.index_select(dim, own))
        restored = context_parallel_unshard(mesh, buffers, dims)
    for buffer, stride, whole, gathered in zip(buffers, strides, wholes, restored, strict=True):
        assert torch.equal(buffer, whole) and torch.equal(gathered, whole)
        assert buffer.stride() == stride


def check_lengths_that_ranks_do_not_divide() -> None:
    mesh = make_mesh()
    for tokens in (5, 7, 13):
        for balance in ("none", "head-tail"):
            ids = torch.arange(tokens)
            with context_parallel(mesh, buffers=[ids], buffer_seq_dims=[0], scheme="gather", load_balance=balance):
                (whole,) = context_parallel_unshard(mesh, [ids], [0])
            assert torch.equal(whole, torch.arange(tokens))


def check_an_exception_leaves_nothing_changed() -> None:
    ids = torch.arange(12)
    try:
        with context_parallel(make_mesh(), buffers=[ids], buffer_seq_dims=[0]):
            assert F.scaled_dot_product_attention is not PLAIN_ATTENTION
            raise KeyError("from the scope")
    except KeyError:
        pass
    assert torch.equal(ids, torch.arange(12))
    assert F.scaled_dot_product_attention is PLAIN_ATTENTION
    assert not torch.overrides._get_current_function_mode_stack()
    query, key, value = random_qkv()
    close(F.scaled_dot_product_attention(query, key, value), PLAIN_ATTENTION(query, key, value))


def check_a_buffer_that_backward_needs_is_not_restored_silently() -> None:
    """The loss saves its labels; a backward after the scope would read the whole ones."""
    labels, logits = torch.arange(12), torch.randn(12 // dist.get_world_size(), 12, requires_grad=True)
    with context_parallel(make_mesh(), buffers=[labels], buffer_seq_dims=[0]):
        loss = F.cross_entropy(logits, labels)
    raises(RuntimeError, "modified by an inplace operation", loss.backward)


def split(mesh: DeviceMesh, tensors: list[torch.Tensor], **options: Any):
    parts = [tensor.clone() for tensor in tensors]
    return parts, context_parallel(
        mesh, buffers=parts, buffer_seq_dims=[2] * len(parts), no_restore_buffers=set(parts), **options
    )


def check_attention_is_reached_by_every_name() -> None:
    mesh, whole = make_mesh(), random_qkv()
    expected = PLAIN_ATTENTION(*whole, is_causal=True, scale=0.5)
    parts, scope = split(mesh, whole)
    with scope:
        for attention in (
            F.scaled_dot_product_attention,
            imported_attention,
            torch._C._nn.scaled_dot_product_attention,
            torch.ops.aten.scaled_dot_product_attention,
            torch.ops.aten.scaled_dot_product_attention.default,
        ):
            (out,) = context_parallel_unshard(mesh, [attention(*parts, is_causal=True, scale=0.5)], [2])
            close(out, expected)
    close(imported_attention(*whole, is_causal=True, scale=0.5), expected)


def check_arguments_by_position_and_by_name() -> None:
    mesh, whole = make_mesh(), random_qkv(kv_heads=2)
    expected = PLAIN_ATTENTION(*whole, is_causal=True, enable_gqa=True)
    parts, scope = split(mesh, whole)
    query, key, value = parts
    options = {"is_causal": True, "enable_gqa": True}
    with scope:
        for attention in (F.scaled_dot_product_attention, imported_attention):
            for out in (
                attention(query, key, value, None, 0.0, True, enable_gqa=True),
                attention(query, key, value=value, **options),
                attention(query, value=value, key=key, **options),
                attention(value=value, key=key, query=query, **options),
            ):
                (out,) = context_parallel_unshard(mesh, [out], [2])
                close(out, expected)


def check_a_forward_alone() -> None:
    """Without a backward a rank receives the bytes of the forward. Then comes a forward with a backward."""
    mesh, whole = make_mesh(), random_qkv(tokens=13, kv_heads=2)
    shape = AttentionShape(batch=2, heads=4, kv_heads=2, head_dim=8, value_dim=8)
    for options in (
        {"scheme": "ulysses"},
        {"scheme": "gather"},
        {"scheme": "ring"},
        {"scheme": "ring", "ring_rotate": "all-gather"},
    ):
        parts, scope = split(mesh, whole, **options)
        with scope as opened:
            with torch.no_grad():
                out = F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
            costs = costs_of(opened.choices[0].scheme, shape, opened.layout, opened.rank, is_causal=True)
            assert opened.received_bytes == costs.forward_bytes
            for part in parts:
                part.requires_grad_()
            again = F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
            again.sum().backward()
            assert opened.received_bytes == 2 * costs.forward_bytes + costs.backward_bytes
            assert torch.equal(again.detach(), out)
            (out,) = context_parallel_unshard(mesh, [out], [2])
        close(out, PLAIN_ATTENTION(*whole, is_causal=True, enable_gqa=True))


def check_multi_head_attention_modules() -> None:
    """As they call attention, in training and in the fused inference of an encoder layer."""
    mesh = make_mesh()
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    whole = torch.randn(2, 12, 16)
    for is_training in (True, False):
        layer.train(is_training)
        with torch.set_grad_enabled(is_training):
            expected = layer(whole)
            part = whole.clone()
            with context_parallel(mesh, buffers=[part], buffer_seq_dims=[1], scheme="ulysses"):
                (out,) = context_parallel_unshard(mesh, [layer(part)], [1])
        close(out, expected.detach())
    attention = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    with context_parallel(mesh, buffers=[part], buffer_seq_dims=[1]):
        raises(ValueError, "need_weights=False", attention, part, part, part)


def _checkpointed_gradients(query, key, value, use_reentrant: bool, by_reference: bool = False):
    weight = torch.eye(query.shape[-1], requires_grad=True)

    def block(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor @ weight
        attend = imported_attention if by_reference else F.scaled_dot_product_attention
        return attend(tensor, key, value, is_causal=True).sin()

    out = checkpoint(block, query.requires_grad_(), use_reentrant=use_reentrant)
    return out, weight


def check_recomputation_sees_the_whole_sequence() -> None:
    mesh, whole = make_mesh(), random_qkv()
    for use_reentrant in (True, False):
        out, weight = _checkpointed_gradients(*[tensor.clone() for tensor in whole], use_reentrant)
        out.sum().backward()
        for scheme in ("ulysses", "gather", "ring"):
            for by_reference in (False, True):
                parts, scope = split(mesh, whole, scheme=scheme)
                with scope:
                    out, part_weight = _checkpointed_gradients(*parts, use_reentrant, by_reference)
                    out.sum().backward()
                dist.all_reduce(part_weight.grad)
                close(part_weight.grad, weight.grad)


def check_recomputation_outside_of_the_scope_is_an_error() -> None:
    mesh, whole = make_mesh(), random_qkv()
    for scheme in ("ulysses", "gather", "ring"):
        parts, scope = split(mesh, whole, scheme=scheme)
        with scope:
            out, _ = _checkpointed_gradients(*parts, use_reentrant=False)
        raises(CheckpointError, "different", out.sum().backward)
        parts, scope = split(mesh, whole, scheme=scheme)
        _, later_scope = split(mesh, whole, scheme=scheme)
        with scope:
            out, _ = _checkpointed_gradients(*parts, use_reentrant=False)
        with later_scope:
            raises(CheckpointError, "different", out.sum().backward)


def check_a_backward_after_the_scope() -> None:
    mesh, whole = make_mesh(), random_qkv()
    expected = [tensor.clone().requires_grad_() for tensor in whole]
    PLAIN_ATTENTION(*expected, is_causal=True).sum().backward()
    for scheme in ("ulysses", "gather", "ring"):
        parts, scope = split(mesh, whole, scheme=scheme)
        with scope as opened:
            for part in parts:
                part.requires_grad_()
            loss = F.scaled_dot_product_attention(*parts, is_causal=True).sum()
        loss.backward()
        gradients = context_parallel_unshard(mesh, [part.grad for part in parts], [2] * 3, layout=opened.layout)
        for gradient, tensor in zip(gradients, expected, strict=True):
            close(gradient, tensor.grad)


def check_autocast_and_inference() -> None:
    mesh, whole = make_mesh(), random_qkv()
    parts, scope = split(mesh, whole)
    with scope, torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.scaled_dot_product_attention(*parts).dtype == torch.bfloat16
    parts, scope = split(mesh, whole)
    with scope, torch.autocast("cpu", dtype=torch.bfloat16):
        mask = torch.randn(12, 12, generator=torch.Generator().manual_seed(1)).half()
        expected = F.scaled_dot_product_attention(*parts, mask.bfloat16())
        assert torch.equal(F.scaled_dot_product_attention(*parts, mask), expected)
    parts, scope = split(mesh, whole)
    with torch.inference_mode(), scope:
        (out,) = context_parallel_unshard(mesh, [F.scaled_dot_product_attention(*parts, is_causal=True)], [2])
    close(out, PLAIN_ATTENTION(*whole, is_causal=True))


def check_parts_without_buffers() -> None:
    """A caller that splits its tensors itself."""
    mesh, whole = make_mesh(), random_qkv()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = [tensor.chunk(ranks, dim=2)[rank] for tensor in whole]
    with context_parallel(mesh, load_balance="none") as scope:
        raises(RuntimeError, "give it buffers", lambda: scope.layout)
        out = F.scaled_dot_product_attention(*parts, is_causal=True)
        (out,) = context_parallel_unshard(mesh, [out], [2])
    close(out, PLAIN_ATTENTION(*whole, is_causal=True))


def check_misuse_of_the_scope() -> None:
    mesh = make_mesh()
    ids, other = torch.arange(12), torch.arange(13)

    def enter(**options: Any) -> None:
        with context_parallel(mesh, **options):
            pass

    def one(tensor: torch.Tensor, dim: int = 0) -> dict[str, Any]:
        return {"buffers": [tensor], "buffer_seq_dims": [dim]}

    raises(ValueError, "give one dim for each buffer", enter, buffers=[ids])
    raises(ValueError, "no dim 1", enter, **one(ids, 1))
    raises(ValueError, "listed twice", enter, buffers=[ids, ids], buffer_seq_dims=[0, 0])
    raises(ValueError, "slice it", enter, buffers=[ids, other], buffer_seq_dims=[0, 0])
    raises(ValueError, "requires a gradient", enter, **one(torch.nn.Parameter(torch.zeros(12))))
    raises(ValueError, "not among the buffers", enter, **one(ids), no_restore_buffers={other})
    raises(ValueError, "without tokens", enter, **one(torch.arange(1)))
    raises(ValueError, "12 documents of at most 1 tokens leave rank", enter, **one(ids), documents=list(range(12)))
    raises(ValueError, "give one id for each token", enter, **one(ids), documents=[0, 0, 1])
    raises(ValueError, "use one of", enter, scheme="rings")
    two_dims = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "cp"))
    raises(ValueError, "as in mesh", lambda: context_parallel(two_dims).__enter__())
    with context_parallel(mesh, **one(ids)) as scope:
        raises(RuntimeError, "cannot be nested", enter)
        raises(ValueError, "give the part", context_parallel_unshard, mesh, [torch.arange(12)], [0])
        assert ids.numel() == scope.layout.counts[scope.rank]
    raises(ValueError, "pass the scope's layout", context_parallel_unshard, mesh, [ids], [0])
    assert torch.equal(ids, torch.arange(12))
    assert F.scaled_dot_product_attention is PLAIN_ATTENTION


def check_a_mask_that_changes_before_backward() -> None:
    mesh, whole = make_mesh(), random_qkv()
    for scheme in ("ulysses", "gather", "ring"):
        parts, scope = split(mesh, whole, scheme=scheme)
        with scope:
            mask = torch.randn(1, 1, 1, 12)
            loss = F.scaled_dot_product_attention(parts[0].requires_grad_(), *parts[1:], mask).sum()
            mask.zero_()
            raises(RuntimeError, "modified by an inplace operation", loss.backward)


def check_flex_attention_is_refused() -> None:
    """It would attend to this rank's tokens alone, with their numbers on this rank."""
    mesh, whole = make_mesh(), random_qkv()
    parts, scope = split(mesh, whole)
    with scope:
        for attend in (flex_attention, torch.compile(flex_attention, backend="aot_eager")):
            raises(Exception, "flex_attention.* use scaled_dot_product_attention", attend, *parts)
    assert flex_attention(*whole).shape == whole[0].shape
