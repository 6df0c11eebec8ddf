"""Scope of context parallelism: within it, attention sees the whole sequence, and buffers hold this rank's tokens."""

from __future__ import annotations

import contextlib
import functools
import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import TorchFunctionMode
from weft.torch.context_parallel.exchanges.level_exchange import LevelExchange
from weft.torch.context_parallel.layouts.byte_formulas import AttentionShape
from weft.torch.context_parallel.layouts.choose_scheme import SchemeChoice, choose_among
from weft.torch.context_parallel.layouts.context_scheme import SchemeRequest
from weft.torch.context_parallel.layouts.documents import (
    document_lengths,
    offsets_of_ids,
    parse_documents,
    positions_in_documents,
)
from weft.torch.context_parallel.layouts.head_split import HeadSplit
from weft.torch.context_parallel.layouts.sequence_layout import SequenceLayout
from weft.torch.context_parallel.schemes.split_attention import (
    AttentionPlan,
    RowDocuments,
    SplitAttention,
    make_plan,
)
from weft.torch.context_parallel.schemes.split_mask import MaskForm, form_of, rows_of_mask
from weft.torch.context_parallel.sequence_buffers import check_buffers, common_length, split_buffers, unshard

_log = logging.getLogger("weft.context_parallel")
_plain_attention = F.scaled_dot_product_attention


@dataclass(frozen=True)
class _Call:
    """What all ranks must agree on before they exchange anything. Calls that are equal share a plan."""

    tokens: int  # Of this rank.
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    dtype: torch.dtype
    is_causal: bool
    mask: MaskForm

    def fields(self) -> dict[str, int]:
        """All but the tokens, as numbers."""
        return {
            "batch": self.batch,
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "value_dim": self.value_dim,
            "dtype": zlib.crc32(str(self.dtype).encode()),
            "is_causal": int(self.is_causal),
            "attn_mask": zlib.crc32(repr([int(value) for value in self.mask]).encode()),
        }

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape(self.batch, self.heads, self.kv_heads, self.head_dim, self.value_dim, self.dtype.itemsize)


class Documents:
    """Documents of the rows of a batch. `shared`: offsets if all rows have the same, or None."""

    def __init__(self, rows: Sequence[tuple[int, ...]]) -> None:
        self.rows = tuple(rows)
        self.shared = rows[0] if all(row == rows[0] for row in rows) else None

    @property
    def tokens(self) -> int:
        return self.rows[0][-1]

    def lengths(self) -> tuple[int, ...]:
        """Documents that the layout splits one by one. Rows with documents of their own are split as one sequence."""
        return document_lengths(self.shared) if self.shared else (self.tokens,)

    def of_rows(self, batch: int) -> list[RowDocuments]:
        """Errors: ValueError (documents of another number of rows)."""
        if self.shared:
            return [RowDocuments(slice(0, batch), self.shared)]
        if len(self.rows) != batch:
            raise ValueError(
                f"documents are given for {len(self.rows)} rows, but q, k and v have a batch of {batch}: give one "
                "row each"
            )
        return [RowDocuments(slice(row, row + 1), offsets) for row, offsets in enumerate(self.rows)]


def read_documents(documents: Any, tokens: int | None) -> Documents:
    """`documents`: ids [tokens] or [batch, tokens], or offsets. Errors: ValueError."""
    values = documents.tolist() if isinstance(documents, torch.Tensor) else [v for v in documents]
    if not values:
        raise ValueError("documents are empty: give one id for each token, or offsets, or leave them out")
    if isinstance(values[0], (list, tuple)):
        if any(len(row) != (tokens or len(values[0])) for row in values):
            raise ValueError(
                f"ids of documents are {len(values)} rows of {len(values[0])} for {tokens} tokens: give one id for "
                "each token"
            )
        return Documents([offsets_of_ids(row) for row in values])
    if tokens is None:
        is_offsets = values[0] == 0 and values[-1] >= len(values) - 1 and all(a < b for a, b in zip(values, values[1:]))
        tokens = values[-1] if is_offsets and len(values) > 1 else len(values)
    return Documents([parse_documents(values, tokens)])


class ContextParallelScope:
    """An open scope. Use `context_parallel` to open one.

    Collective: `attend`, by all ranks of the group in the same order.
    Thread safety: none; belongs to the thread that opened it.
    """

    def __init__(
        self, group: dist.ProcessGroup, request: SchemeRequest, documents: Documents | None, tokens: int | None
    ) -> None:
        self._group = group
        self._request = request
        self._documents = documents
        self._layout: SequenceLayout | None = None
        self._plans: dict[_Call, AttentionPlan] = {}
        self._choices: list[SchemeChoice] = []
        self._level = LevelExchange(group, range(request.ranks))
        if documents is not None:
            self._set_layout(documents.lengths())
        elif tokens is not None:
            self._set_layout((tokens,))

    @property
    def rank(self) -> int:
        """Rank in the context group."""
        return self._level.own

    @property
    def group(self) -> dist.ProcessGroup:
        return self._group

    @property
    def layout(self) -> SequenceLayout:
        """Errors: RuntimeError (neither buffers nor documents were given, and no attention was computed yet)."""
        if self._layout is None:
            raise RuntimeError(
                "the scope does not know the length of the sequence yet: give it buffers or documents, or call "
                "attention first"
            )
        return self._layout

    @property
    def position_ids(self) -> torch.Tensor:
        """Positions of this rank's tokens within their documents, i64 [1 or batch, tokens]."""
        layout = self.layout
        rows = self._documents.rows if self._documents else ((0, layout.tokens),)
        rows = rows[:1] if self._documents is None or self._documents.shared else rows
        return torch.tensor([positions_in_documents(layout.ranges[self.rank], row) for row in rows])

    @property
    def choices(self) -> tuple[SchemeChoice, ...]:
        """Schemes of the attentions so far, one for each shape, with the comparison that led to it."""
        return tuple(self._choices)

    @property
    def received_bytes(self) -> int:
        """Bytes that attentions received from peers since the scope was opened, see byte_formulas.py."""
        return sum(plan.received_bytes for plan in self._plans.values())

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """scaled_dot_product_attention over the whole sequence.

        query, key, value: [batch, heads, tokens of this rank, head_dim]. attn_mask: see split_mask.py.
        Errors: ValueError (shapes; a mask that cannot be split; dropout; ranks that disagree, by field), those of
        exchanges.
        """
        query, key, value = _autocast(query), _autocast(key), _autocast(value)
        _check_inputs(query, key, value, enable_gqa)
        if dropout_p > 0.0:
            raise ValueError(
                f"dropout_p is {dropout_p}, but context_parallel computes attention without dropout: set it to 0 "
                "(attention_dropout in a "
                "transformers configuration)"
            )
        if attn_mask is not None and is_causal:
            raise ValueError(
                "attn_mask and is_causal exclude each other, as in PyTorch: put the causal mask into attn_mask, or "
                "leave it out"
            )
        tokens = self._layout.tokens if self._layout else query.shape[2] * self._request.ranks
        call = _Call(
            query.shape[2],
            query.shape[0],
            query.shape[1],
            key.shape[1],
            query.shape[3],
            value.shape[3],
            query.dtype,
            is_causal,
            form_of(attn_mask, query, tokens),
        )
        self._check_balance(call)
        if call not in self._plans:
            self._plans[call] = self._make_plan(call)
        plan = self._plans[call]
        mask = None
        if attn_mask is not None:
            mask = rows_of_mask(attn_mask, call.mask, self.layout, self._level, query.dtype)
        scale = query.shape[3] ** -0.5 if scale is None else scale
        return SplitAttention.apply(query, key, value, plan, plan.kernel(scale, mask))

    def _set_layout(self, lengths: tuple[int, ...]) -> None:
        layout = SequenceLayout(lengths, self._request.ranks, self._request.resolved_balance)
        for rank, count in enumerate(layout.counts):
            if count == 0:
                raise ValueError(
                    f"a sequence of {layout.tokens} tokens leaves rank {rank} of {layout.ranks} without tokens: "
                    "use longer sequences or "
                    "fewer ranks"
                )
        self._layout = layout

    def _check_balance(self, call: _Call) -> None:
        explicit = self._request.is_explicitly_balanced and self._request.scheme != "ulysses"
        if explicit and self._request.ranks > 1 and not call.is_causal and call.mask.rows == 0:
            raise ValueError(
                "load_balance 'head-tail' is for causal attention, but is_causal is False; without a causal mask "
                "all ranks have the same "
                "work: use load_balance 'none', or is_causal=True"
            )

    def _make_plan(self, call: _Call) -> AttentionPlan:
        self._agree(call)
        if self._layout is None:
            self._set_layout((call.tokens * self._request.ranks,))
        layout = self.layout
        choice = choose_among(self._request.candidates(), call.shape, layout, is_causal=call.is_causal)
        _log.info("attention %s: %s", call.shape, choice.reason)
        self._choices.append(choice)
        documents = (self._documents or Documents([(0, layout.tokens)])).of_rows(call.batch)
        split = HeadSplit(call.heads, call.kv_heads, choice.scheme.ulysses_degree)
        return make_plan(self._group, choice.scheme, layout, split, documents, call.is_causal)

    def _agree(self, call: _Call) -> None:
        """Compares the call over all ranks. A difference would mix up their messages."""
        fields = {
            "documents": zlib.crc32(repr(self._documents.rows if self._documents else None).encode()),
            "options": zlib.crc32(repr(self._request).encode()),
            "length of the sequence": self._layout.tokens if self._layout else 0,
            **call.fields(),
        }
        own = torch.tensor([call.tokens, *fields.values()])
        rows = torch.stack(self._level.gather(own, [own.numel()] * self._level.size).wait()).tolist()
        for column, name in enumerate(fields, start=1):
            values = [row[column] for row in rows]
            if len(set(values)) > 1:
                raise ValueError(
                    f"{name} of attention differs between ranks: {values} on ranks 0 to {len(values) - 1} of the "
                    "context group"
                )
        expected = self._layout.counts if self._layout else (rows[0][0],) * len(rows)
        counts = tuple(row[0] for row in rows)
        if counts != tuple(expected):
            raise ValueError(
                f"q, k and v have {list(counts)} tokens on ranks 0 to {len(rows) - 1} of the context group, but "
                "the split of the sequence "
                f"has {list(expected)}: list every tensor that follows the sequence in buffers"
            )


def _autocast(tensor: torch.Tensor) -> torch.Tensor:
    """As autocast does to the inputs of PyTorch's attention."""
    if torch.is_autocast_enabled("cpu") and tensor.dtype in (torch.float32, torch.bfloat16, torch.float16):
        return tensor.to(torch.get_autocast_dtype("cpu"))
    return tensor


def _check_inputs(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise ValueError(
                f"{name} is a {type(tensor).__name__}: context_parallel takes plain tensors; convert it, or leave "
                "the scope"
            )
        if tensor.dim() != 4:
            raise ValueError(f"{name} has {tensor.dim()} dims: context_parallel takes [batch, heads, tokens, head_dim]")
        if tensor.device.type != "cpu":
            raise ValueError(f"{name} is on {tensor.device}: weft.context_parallel computes on CPU tensors")
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"query, key and value are {query.dtype}, {key.dtype} and {value.dtype}: give one dtype")
    lengths = [tensor.shape[2] for tensor in (query, key, value)]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"query, key and value have {lengths} tokens: context_parallel splits self-attention, where they are "
            "equal; compute "
            "cross-attention and cached decoding outside of the scope"
        )
    batches = [tensor.shape[0] for tensor in (query, key, value)]
    if len(set(batches)) > 1:
        raise ValueError(f"query, key and value have batches of {batches}: expand them to one size")
    if key.shape[1] != value.shape[1] or query.shape[3] != key.shape[3]:
        raise ValueError(f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)} do not fit")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ValueError(
            f"query has {query.shape[1]} heads and key has {key.shape[1]}: pass enable_gqa=True, or repeat the KV heads"
        )
    if query.shape[1] % key.shape[1]:
        raise ValueError(f"the {key.shape[1]} KV heads do not divide the {query.shape[1]} query heads")


class _AttentionMode(TorchFunctionMode):
    """Redirects PyTorch's attention where a module holds a reference to it, and refuses attention that bypasses
    it."""

    def __init__(self, attend: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._attend = attend

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is _plain_attention:
            return self._attend(*args, **kwargs)
        if func is F.multi_head_attention_forward and kwargs.get("need_weights", True):
            raise ValueError(
                "multi_head_attention_forward with need_weights=True computes attention without "
                "scaled_dot_product_attention, on this "
                "rank's tokens alone: pass need_weights=False"
            )
        return func(*args, **kwargs)


class _Redirection:
    """The function that takes the place of PyTorch's attention, and the scope that it calls.

    There is one function for all scopes of a process, so that torch.compile does not compile a block anew for each
    scope. It breaks the graph there instead of tracing exchanges.
    """

    def __init__(self) -> None:
        self.scope: ContextParallelScope | None = None
        self.function = torch.compiler.disable(self._attend)

    def _attend(self, *args, **kwargs) -> torch.Tensor:
        attend = _plain_attention if self.scope is None else self.scope.attend
        return attend(*args, **kwargs)


@functools.cache
def _redirection() -> _Redirection:
    return _Redirection()


def _open_scope() -> ContextParallelScope | None:
    return _redirection().scope


@contextlib.contextmanager
def _redirect_attention(scope: ContextParallelScope) -> Iterator[None]:
    """Replaces the function for calls by name, and adds a mode for calls through references."""
    redirection, previous = _redirection(), F.scaled_dot_product_attention
    redirection.scope = scope
    F.scaled_dot_product_attention = redirection.function
    try:
        with _AttentionMode(redirection.function):
            yield
    finally:
        F.scaled_dot_product_attention = previous
        redirection.scope = None


def _group_of(mesh: DeviceMesh) -> dist.ProcessGroup:
    if mesh.ndim != 1:
        raise ValueError(
            f"the mesh has {mesh.ndim} dims: give the dim over which ranks share a sequence, as in mesh['cp']"
        )
    return mesh.get_group()


@contextlib.contextmanager
def context_parallel(
    mesh: DeviceMesh,
    *,
    buffers: list[torch.Tensor] | None = None,
    buffer_seq_dims: list[int] | None = None,
    no_restore_buffers: set[torch.Tensor] | None = None,
    scheme: str = "auto",
    ulysses_degree: int | None = None,
    ring_rotate: str | None = None,
    load_balance: str | None = None,
    documents: torch.Tensor | Sequence[int] | Sequence[Sequence[int]] | None = None,
) -> Iterator[ContextParallelScope]:
    """Scope in which the ranks of `mesh` share a sequence.

    Within the scope torch.nn.functional.scaled_dot_product_attention computes the attention of the whole sequence
    from the q, k and v of this rank's tokens, in forward, in backward and in recomputation; `buffers` hold this
    rank's tokens. Everything else computes on this rank's tokens. Run forward and backward in the scope. Its end
    restores all of it, also after an exception.

    mesh: 1-D, the context axis.
    buffers, buffer_seq_dims: tensors that follow the sequence, and the dim of each that does. All have the length of
      the sequence. Ranks need not divide it; the first ranks have a token more. Without buffers, q, k and v must be
      in the order of the layout.
    no_restore_buffers: buffers that stay parts after the scope.
    scheme: "ulysses", "gather", "ring", "hybrid" or "auto": the one that moves the fewest bytes among those that
      balance the work.
    ulysses_degree: ranks that exchange heads for tokens, a divisor of the mesh's size. "hybrid" without it takes the
      cheapest degree.
    ring_rotate: "shift" (default of "ring") or "gather". With "hybrid" it makes the outer level a ring.
    load_balance: "head-tail" gives a rank one chunk from the front and one from the back of a sequence, "none" one
      chunk. Default: head-tail, except for "ulysses", which is balanced without it.
    documents: ids of documents, [tokens] or [batch, tokens], or offsets, from 0 to the number of tokens. Attention
      stays within a document. Of the whole sequence, the same on all ranks.

    Collective: the first attention of a scope and all attentions, by all ranks of the mesh in the same order.
    Errors: ValueError (each names the argument and the remedy), RuntimeError (a scope is open).
    """
    buffers, unrestored = buffers or [], no_restore_buffers or set()
    if _open_scope() is not None:
        raise RuntimeError("a context_parallel scope is open, and scopes cannot be nested: leave it first")
    group = _group_of(mesh)
    request = SchemeRequest(dist.get_world_size(group), scheme, ulysses_degree, ring_rotate, load_balance)
    dims = check_buffers(buffers, buffer_seq_dims or [], unrestored)
    tokens = common_length(buffers, dims)
    parsed = None if documents is None else read_documents(documents, tokens)
    scope = ContextParallelScope(group, request, parsed, tokens)
    layout = scope.layout if buffers else None
    with split_buffers(buffers, dims, unrestored, layout, scope.rank), _redirect_attention(scope):
        yield scope


def context_parallel_unshard(
    mesh: DeviceMesh,
    buffers: list[torch.Tensor],
    seq_dims: list[int],
    *,
    layout: SequenceLayout | None = None,
) -> list[torch.Tensor]:
    """Whole tensors from the parts of all ranks, in the order of the sequence, on every rank. Without gradients.

    layout: the split of the sequence. Default: that of the open scope. After the scope, give its `layout`.
    Collective: all ranks of the mesh. Errors: ValueError (each names the argument and the remedy).
    """
    if layout is None:
        scope = _open_scope()
        if scope is None:
            raise ValueError(
                "no context_parallel scope is open: call this within the scope, or pass the scope's layout"
            )
        layout = scope.layout
    group = _group_of(mesh)
    if layout.ranks != dist.get_world_size(group):
        raise ValueError(
            f"the layout is for {layout.ranks} ranks, but the mesh has {dist.get_world_size(group)}: give the "
            "scope's mesh"
        )
    return unshard(group, buffers, seq_dims, layout)
