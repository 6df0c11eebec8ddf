"""One call of attention: its checks on this rank, and the agreement of all ranks before they exchange anything."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from weft.torch.context_parallel import agreement
from weft.torch.context_parallel.agreement import check_refusals, describe_digests, digest, gather_numbers
from weft.torch.context_parallel.exchanges.level_exchange import LevelExchange
from weft.torch.context_parallel.layouts.byte_formulas import AttentionShape
from weft.torch.context_parallel.schemes.split_mask import MaskForm


@dataclass(frozen=True)
class AttentionCall:
    """Properties that decide what is exchanged. Calls that are equal share a plan. `tokens`: of this rank."""

    tokens: int
    shape: AttentionShape
    dtype: torch.dtype
    is_causal: bool
    mask: MaskForm

    def common_fields(self) -> dict[str, int]:
        """The properties that are the same on all ranks, as numbers."""
        return {
            "batch": self.shape.batch,
            "heads": self.shape.heads,
            "kv_heads": self.shape.kv_heads,
            "head_dim": self.shape.head_dim,
            "value_dim": self.shape.value_dim,
            "dtype": digest(self.dtype),
            "is_causal": int(self.is_causal),
            "attn_mask": digest(self.mask),
        }


def autocast(tensor: torch.Tensor) -> torch.Tensor:
    """As autocast does to the inputs of PyTorch's attention."""
    if torch.is_autocast_enabled("cpu") and tensor.dtype in (torch.float32, torch.bfloat16, torch.float16):
        return tensor.to(torch.get_autocast_dtype("cpu"))
    return tensor


def autocast_mask(mask: torch.Tensor | None) -> torch.Tensor | None:
    """A mask of 16 bits, as autocast does to it. Others stay: float32 is not rounded to the queries."""
    is_narrow = isinstance(mask, torch.Tensor) and mask.dtype in (torch.bfloat16, torch.float16)
    return autocast(mask) if is_narrow else mask


def _check_tensor(name: str, tensor: torch.Tensor) -> None:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise ValueError(
            f"{name} is a {type(tensor).__name__}, but context_parallel takes plain tensors: convert it, or leave "
            "the scope"
        )
    if tensor.dim() != 4:
        raise ValueError(f"{name} has {tensor.dim()} dims, but context_parallel takes [batch, heads, tokens, head_dim]")
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} is on {tensor.device}, but weft.context_parallel computes on CPU tensors: move it")


def check_inputs(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> None:
    """Errors: ValueError, with the remedy."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        _check_tensor(name, tensor)
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"query, key and value are {query.dtype}, {key.dtype} and {value.dtype}: give them one dtype")
    lengths = [tensor.shape[2] for tensor in (query, key, value)]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"query, key and value have {lengths} tokens: context_parallel splits self-attention, where they are "
            "equal; "
            "compute cross-attention and cached decoding outside of the scope"
        )
    batches = [tensor.shape[0] for tensor in (query, key, value)]
    if len(set(batches)) > 1:
        raise ValueError(f"query, key and value have batches of {batches}: expand them to one size")
    if key.shape[1] != value.shape[1] or query.shape[3] != key.shape[3]:
        raise ValueError(
            f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)} do not fit: key and "
            "value must "
            "have the same heads, query and key the same head_dim"
        )
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(
            f"query has {query.shape[1]} heads and key has {key.shape[1]}: pass enable_gqa=True, or repeat the KV heads"
        )
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise ValueError(
            f"the {key.shape[1]} KV heads do not divide the {query.shape[1]} query heads: each KV head needs as many"
        )


def check_options(attn_mask: torch.Tensor | None, dropout_p: float, is_causal: bool) -> None:
    """Errors: ValueError, with the remedy."""
    if dropout_p > 0.0:
        raise ValueError(
            f"dropout_p is {dropout_p}, but context_parallel computes attention without dropout: set it to 0 "
            "(attention_dropout in a transformers configuration)"
        )
    if attn_mask is not None and is_causal:
        raise ValueError(
            "attn_mask and is_causal exclude each other, as in PyTorch: put the causal mask into attn_mask, or "
            "leave it out"
        )


def shape_of(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> AttentionShape:
    batch, heads, _, head_dim = query.shape
    return AttentionShape(batch, heads, key.shape[1], head_dim, value.shape[3], query.dtype.itemsize)


def run_fields(scale: float, *inputs: torch.Tensor) -> dict[str, int]:
    """Properties of a call that decide no plan but are the same on all ranks. Only ranks that compute gradients
    exchange data in backward."""
    has_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    return {"scale": digest(scale), "requires_grad": int(has_gradient)}


# Numbers that a rank contributes: 0 for no refusal, its tokens, then the fields of the scope, of the run and of the
# call.
_SCOPE_FIELDS = ("documents", "options", "length of the sequence")
_RUN_FIELDS = ("scale", "requires_grad")
_CALL_FIELDS = ("batch", "heads", "kv_heads", "head_dim", "value_dim", "dtype", "is_causal", "attn_mask")
_DIGESTS = ("documents", "options", "scale", "dtype", "attn_mask")
_COLUMNS = 2 + len(_SCOPE_FIELDS) + len(_RUN_FIELDS) + len(_CALL_FIELDS)


def _describe(name: str, values: list[int]) -> str:
    """The values of the ranks; of those that are digests, which ranks have equal ones."""
    return describe_digests(values) if name in _DIGESTS else str(values)


def _cause_of_one_token(rows: list[list[int]], is_causal: list[int]) -> str:
    """The likely cause if the ranks without is_causal have one token: models leave it out there, as in decoding."""
    ranks = [rank for rank, value in enumerate(is_causal) if not value]
    if any(rows[rank][1] != 1 for rank in ranks):
        return ""
    return (
        f"; ranks {ranks} have one token, for which many models drop is_causal: use a longer sequence or fewer ranks, so that each "
        "has at least 2 tokens, or call scaled_dot_product_attention with is_causal=True"
    )


def announce_refusal(level: LevelExchange, error: Exception) -> None:
    """Tells ranks that are in `agree` that this rank refuses the call, so that they do not wait for it. Collective
    with `agree`. The caller raises `error` afterwards."""
    agreement.announce_refusal(level, _COLUMNS, error)


def agree(level: LevelExchange, tokens: int, fields: dict[str, int]) -> tuple[int, ...]:
    """Compares a call over all ranks, and returns the tokens of each. A difference would mix up their messages.

    `tokens`: of this rank. `fields`: numbers by the names of _SCOPE_FIELDS, _RUN_FIELDS and _CALL_FIELDS. Collective.
    Errors: ValueError (a rank refuses the call; ranks differ, by field).
    """
    assert tuple(fields) == _SCOPE_FIELDS + _RUN_FIELDS + _CALL_FIELDS
    rows = gather_numbers(level, [0, tokens, *fields.values()])
    check_refusals(level, rows, "this attention")
    for column, name in enumerate(fields, start=2):
        values = [row[column] for row in rows]
        if len(set(values)) > 1:
            raise ValueError(
                f"{name} of attention differs between the ranks of the context group, {_describe(name, values)}: give all ranks the same"
                + (_cause_of_one_token(rows, values) if name == "is_causal" else "")
            )
    return tuple(row[1] for row in rows)
