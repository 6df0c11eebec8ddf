"""Checks of calls that a scope refuses, on one rank or on all. They run on ranks of a RankPool."""

from __future__ import annotations

import warnings
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from context_scope_bodies import PLAIN_ATTENTION, close, make_mesh, raises, random_qkv, split
from torch.nn.attention.bias import causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as imported_attention
from weft.torch.context_parallel import SequenceLayout, context_parallel_unshard
from weft.torch.context_parallel.exchanges.level_exchange import LevelExchange
from weft.torch.context_parallel.redirection import warn_of_unsplit_attention


def check_misuse_of_attention() -> None:
    """All ranks meet each error before they exchange anything, so the scope stays usable."""
    mesh, whole = make_mesh(), random_qkv(kv_heads=2)
    parts, scope = split(mesh, whole, load_balance="head-tail")
    with scope:
        query, key, value = parts
        attend = F.scaled_dot_product_attention
        count = query.shape[2]
        raises(ValueError, "set it to 0", attend, query, key, value, dropout_p=0.1, enable_gqa=True)
        raises(ValueError, "enable_gqa=True", attend, query, key, value)
        raises(ValueError, "do not divide", attend, query[:, :3], key, value, enable_gqa=True)
        raises(ValueError, "where they are equal", attend, query[:, :, :1], key, value, enable_gqa=True)
        raises(ValueError, "takes \\[batch, heads", attend, query[0], key[0], value[0])
        raises(ValueError, "one dtype", attend, query.double(), key, value, enable_gqa=True)
        raises(ValueError, "use load_balance 'none'", attend, query, key, value, enable_gqa=True)
        local_mask = torch.ones(count, count, dtype=torch.bool)
        remedies = "attention_mask of ones.*needs a mask over all tokens"
        raises(ValueError, remedies, attend, query, key, value, local_mask, enable_gqa=True)
        for dtype in (torch.int64, torch.float64):
            typed = torch.ones(count, 12, dtype=dtype)
            raises(ValueError, f"{dtype}.*torch.bool, torch.float32", attend, query, key, value, typed, enable_gqa=True)
        # A CausalBias is a tensor whose elements are not those of the mask.
        bias = causal_upper_left(12, 12)
        raises(ValueError, "CausalBias: .* is_causal=True", attend, query, key, value, bias, enable_gqa=True)
        trained = torch.zeros(count, 12, requires_grad=True)
        raises(ValueError, "detach it", attend, query, key, value, trained, enable_gqa=True)
        raises(ValueError, "exclude each other", attend, query, key, value, trained, is_causal=True, enable_gqa=True)
        short = [tensor[:, :, :1] for tensor in parts]
        raises(ValueError, "list every tensor", attend, *short, is_causal=True, enable_gqa=True)
        with mock.patch.object(LevelExchange, "gather", side_effect=RuntimeError("a peer has stopped the exchanges")):
            raises(ValueError, "set it to 0", attend, query, key, value, dropout_p=0.1, enable_gqa=True)
            raises(ValueError, "give the part", context_parallel_unshard, mesh, [query[:, :, :1]], [2])
        (out,) = context_parallel_unshard(mesh, [attend(*parts, is_causal=True, enable_gqa=True)], [2])
    close(out, PLAIN_ATTENTION(*whole, is_causal=True, enable_gqa=True))


def check_errors_of_one_rank() -> None:
    """Errors of any type on one rank are told to the others, which do not wait for it."""
    mesh, whole = make_mesh(), random_qkv()
    parts, scope = split(mesh, whole)
    with scope:
        attend = F.scaled_dot_product_attention
        query, key, value = parts
        cases = [
            (ValueError, "is a list: convert it to a plain tensor", [*parts, [[True]]], {}),
            (ValueError, "attn_mask is on meta.*move it", [*parts, torch.ones(12, 12, device="meta")], {}),
            (ValueError, "0 KV heads", [query, key[:, :0], value[:, :0]], {"enable_gqa": True}),
            (ValueError, "0 KV heads", [part[:, :0] for part in parts], {}),
            (TypeError, "NoneType", parts, {"dropout_p": None}),
            (ValueError, "float", parts, {"scale": "half"}),
            (TypeError, "NoneType", parts, {"is_causal": None}),
            (ValueError, "query is a list", [[query], key, value], {}),
        ]
        for error, message, arguments, options in cases:
            if dist.get_rank() == 0:
                raises(error, message, attend, *arguments, **options)
            else:
                refusal = rf"ranks \[0\] .* refused this attention; rank 0: {error.__name__}: .*{message}"
                raises(ValueError, refusal, attend, *parts)
        (out,) = context_parallel_unshard(mesh, [attend(*parts, is_causal=True)], [2])
    close(out, PLAIN_ATTENTION(*whole, is_causal=True))


def check_ranks_that_disagree() -> None:
    mesh, whole = make_mesh(), random_qkv()
    is_first = dist.get_rank() == 0
    attend = imported_attention
    parts, scope = split(mesh, whole)
    with scope:
        raises(ValueError, "is_causal of attention differs", attend, *parts, is_causal=is_first)
        heads = [part[:, : 2 if is_first else 4] for part in parts]
        raises(ValueError, "heads of attention differs", attend, *heads, is_causal=True)
    parts, scope = split(mesh, whole, scheme="ring", ring_rotate="shift" if is_first else "all-gather")
    with scope:
        raises(ValueError, "options of attention differs", F.scaled_dot_product_attention, *parts, is_causal=True)
    parts, scope = split(mesh, whole, documents=[0, 12] if is_first else [0, 5, 12])
    with scope:
        raises(ValueError, "differ", F.scaled_dot_product_attention, *parts, is_causal=True)
    for scheme in ("ulysses", "gather", "ring"):
        parts, scope = split(mesh, whole, scheme=scheme)
        with scope:
            attend(*parts, is_causal=True)
            heads = [part[:, : 4 if is_first else 2] for part in parts]
            raises(ValueError, "heads of attention differs", attend, *heads, is_causal=True)
            dropout, message = (0.1, "set it to 0") if is_first else (0.0, "refused.*set it to 0")
            raises(ValueError, message, attend, *parts, dropout_p=dropout, is_causal=True)
            raises(ValueError, "scale of attention differs", attend, *parts, scale=0.1 * (dist.get_rank() + 1))
            trained = [part.clone().requires_grad_(is_first) for part in parts]
            raises(ValueError, "requires_grad of attention differs", attend, *trained, is_causal=True)
            with torch.no_grad():
                attend(*trained, is_causal=True)
            masks = [torch.ones(12, 12, dtype=torch.bool), torch.zeros(12, 12)]
            raises(ValueError, "attn_mask of attention differs", attend, *parts, masks[is_first])
            (out,) = context_parallel_unshard(mesh, [attend(*parts, is_causal=True)], [2])
        close(out, PLAIN_ATTENTION(*whole, is_causal=True))


def check_ranks_with_one_token_that_drop_is_causal() -> None:
    """As models do that take a single query for decoding."""
    mesh, last = make_mesh(), dist.get_world_size() - 1
    parts, scope = split(mesh, random_qkv(tokens=2 * last + 1), scheme="gather", load_balance="none")
    with scope:
        message = rf"is_causal of attention differs.*ranks \[{last}\] have one token.*at least 2 tokens"
        raises(ValueError, message, imported_attention, *parts, is_causal=parts[0].shape[2] > 1)


def check_an_attention_that_is_written_out_gives_a_warning() -> None:
    """Once in a process, and not for a softmax of other forms or outside of the scope."""

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return F.softmax(query @ key.mT, dim=-1) @ value

    parts, scope = split(make_mesh(), random_qkv())
    for function in (attend, torch.compile(attend, backend="eager", dynamic=False)):
        warn_of_unsplit_attention.cache_clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            attend(*parts)
            parts, scope = split(make_mesh(), random_qkv())
            with scope:
                query, key, value = parts
                F.softmax(query @ query[:, :, :2].mT, dim=-1)
                F.softmax(query[0, 0] @ key[0, 0].mT, dim=-1)
                attend(query[:, :, :-1], key[:, :, :-1], value[:, :, :-1])
                imported_attention(*parts, is_causal=True)
                assert not _warnings_of_attention(caught)
                function(*parts)
                function(*parts)
                torch.softmax(query @ key.mT, -1)
            assert len(_warnings_of_attention(caught)) == 1, [str(warning.message) for warning in caught]


def _warnings_of_attention(caught: list[warnings.WarningMessage]) -> list[str]:
    messages = [str(warning.message) for warning in caught]
    return [message for message in messages if "use scaled_dot_product_attention" in message]


def check_whole_tensors_of_ranks_that_differ() -> None:
    """All ranks meet an error before they exchange parts, so that the next call works."""
    mesh, whole = make_mesh(), random_qkv()[0]
    is_first = dist.get_rank() == 0
    (part,), scope = split(mesh, [whole], scheme="gather")
    with scope as opened:
        longer = torch.cat([part, part], dim=2) if is_first else part
        message = "give the part" if is_first else r"ranks \[0\] .* refused their buffers; rank 0: .*give the part"
        raises(ValueError, message, context_parallel_unshard, mesh, [longer], [2])
        message = "no dim 4" if is_first else r"ranks \[0\] .* refused their buffers; rank 0: .*no dim 4"
        raises(ValueError, message, context_parallel_unshard, mesh, [part], [4 if is_first else 2])
        error = AttributeError if is_first else ValueError
        raises(error, "", context_parallel_unshard, mesh, [None if is_first else part], [2])
        different = [part.double(), part[:1], part.transpose(0, 2)]
        for other, dim in zip(different, [2, 2, 0], strict=True):
            arguments = ([other], [dim]) if is_first else ([part], [2])
            raises(ValueError, r"dtypes, .*ranks \[0\] unlike", context_parallel_unshard, mesh, *arguments)
        fewer = 1 if is_first else 2
        raises(ValueError, "number of the buffers", context_parallel_unshard, mesh, [part] * fewer, [2] * fewer)
        (out,) = context_parallel_unshard(mesh, [part], [2])
        assert torch.equal(out, whole)
    even = SequenceLayout((12,), dist.get_world_size(), "none")
    layout = even if is_first else opened.layout
    raises(ValueError, "layouts differ", context_parallel_unshard, mesh, [part], [2], layout=layout)
