"""Scope of context parallelism: within it, attention sees the whole sequence, and buffers hold this rank's tokens."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from weft.torch.context_parallel.agreement import digest
from weft.torch.context_parallel.attention_call import (
    AttentionCall,
    agree,
    announce_refusal,
    autocast,
    autocast_mask,
    check_inputs,
    check_options,
    run_fields,
    shape_of,
)
from weft.torch.context_parallel.batch_documents import BatchDocuments, read_documents
from weft.torch.context_parallel.exchanges.level_exchange import LevelExchange
from weft.torch.context_parallel.layouts.choose_scheme import SchemeChoice, choose_among
from weft.torch.context_parallel.layouts.context_scheme import SchemeRequest
from weft.torch.context_parallel.layouts.documents import (
    document_lengths,
    position_end,
    positions_in_documents,
)
from weft.torch.context_parallel.layouts.head_split import HeadSplit
from weft.torch.context_parallel.layouts.sequence_layout import SequenceLayout
from weft.torch.context_parallel.redirection import open_target, redirect_attention
from weft.torch.context_parallel.schemes.split_attention import AttentionPlan, SplitAttention, make_plan
from weft.torch.context_parallel.schemes.split_mask import form_of, has_rows_of_tokens, rows_of_mask
from weft.torch.context_parallel.sequence_buffers import check_buffers, common_length, split_buffers, unshard
from weft.torch.context_parallel.transformers_checks import check_models_of_transformers

_log = logging.getLogger("weft.context_parallel")
_scope_numbers = itertools.count()  # See Note [Marker of a split attention].


class ContextParallelScope:
    """An open scope. Use `context_parallel` to open one.

    Collective: `attend`, by all ranks of the group in the same order.
    Thread safety: none; belongs to the thread that opened it.
    """

    def __init__(
        self, group: dist.ProcessGroup, request: SchemeRequest, documents: BatchDocuments | None, tokens: int | None
    ) -> None:
        self._number = next(_scope_numbers)
        self._group = group
        self._request = request
        self._documents = documents
        self._layout: SequenceLayout | None = None
        self._plans: dict[AttentionCall, AttentionPlan] = {}
        self._choices: list[SchemeChoice] = []
        self._level = LevelExchange(group, range(request.ranks))
        self._digests = {"documents": digest(documents.rows if documents else None), "options": digest(request)}
        if documents is not None:
            self._layout = self._make_layout(documents.layout_lengths())
        elif tokens is not None:
            self._layout = self._make_layout((tokens,))

    @property
    def rank(self) -> int:
        """Rank in the context group."""
        return self._level.own

    @property
    def ranks(self) -> int:
        """Ranks of the context group."""
        return self._request.ranks

    @property
    def group(self) -> dist.ProcessGroup:
        """The ranks that share each sequence."""
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
        rows = self._document_rows(layout)
        return torch.tensor([positions_in_documents(layout.ranges[self.rank], row) for row in rows])

    @property
    def choices(self) -> tuple[SchemeChoice, ...]:
        """Schemes of the attentions so far, one for each form of call, with the comparison that led to it. Calls of
        other shapes, dtypes, masks or is_causal are forms of their own."""
        return tuple(self._choices)

    @property
    def received_bytes(self) -> int:
        """Bytes that attentions received from peers since the scope was opened, see byte_formulas.py."""
        return sum(plan.received_bytes for plan in self._plans.values())

    def longest_document(self, part: int) -> int:
        """Tokens of the longest document. `part`: tokens of this rank, which tell the length of the sequence if nothing
        else does."""
        return max(max(document_lengths(row)) for row in self._document_rows(self._layout_of(part)))

    def token_counts(self, part: int) -> Sequence[int]:
        """Tokens of each rank. `part`: see longest_document."""
        return self._layout_of(part).counts

    def splits_to(self, tokens: int) -> bool:
        """True if this rank has `tokens` of a sequence that several ranks share."""
        return self.ranks > 1 and self._layout is not None and self._layout.counts[self.rank] == tokens

    def position_ends(self, part: int) -> list[int]:
        """For each rank, the number that follows the highest of its `position_ids`. `part`: see longest_document."""
        layout = self._layout_of(part)
        rows = self._document_rows(layout)
        return [max(position_end(ranges, row) for row in rows) for ranges in layout.ranges]

    def refuse(self, message: str) -> NoReturn:
        """Raises ValueError(message) before an attention. Other ranks then get an error in place of that attention."""
        error = ValueError(message)
        announce_refusal(self._level, error)
        raise error

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
        exchanges. If a rank refuses the call, with any error, or ranks differ, all of them get an error, and the
        scope stays usable.
        """
        try:
            query, key, value = autocast(query), autocast(key), autocast(value)
            attn_mask = autocast_mask(attn_mask)
            check_inputs(query, key, value, enable_gqa)
            check_options(attn_mask, dropout_p, is_causal)
            call = self._read_call(query, key, value, attn_mask, is_causal)
            scale = query.shape[3] ** -0.5 if scale is None else float(scale)
            fields = run_fields(scale, query, key, value) | call.common_fields()
        except Exception as error:  # Also those of arguments of a wrong type.
            announce_refusal(self._level, error)
            raise
        layout = self._agree_on_layout(call, fields)
        if call not in self._plans:
            self._plans[call] = self._make_plan(call, layout)
        plan = self._plans[call]
        mask, has_rows = None, False
        if attn_mask is not None:
            mask = rows_of_mask(attn_mask, call.mask, layout, self._level)
            has_rows = has_rows_of_tokens(call.mask, layout)
        kernel = plan.kernel(scale, mask, has_rows=has_rows, may_hide_rows=not call.mask.is_bool)
        return SplitAttention.apply(query, key, value, plan, kernel, self._number)

    def _document_rows(self, layout: SequenceLayout) -> tuple[tuple[int, ...], ...]:
        return self._documents.rows if self._documents else ((0, layout.tokens),)

    def _layout_of(self, part: int) -> SequenceLayout:
        return self._layout or self._make_layout((part * self._request.ranks,))

    def _read_call(self, query, key, value, attn_mask: torch.Tensor | None, is_causal: bool) -> AttentionCall:
        tokens = self._layout.tokens if self._layout else query.shape[2] * self._request.ranks
        mask = form_of(attn_mask, query, tokens)
        self._check_balance(is_causal, attn_mask)
        return AttentionCall(query.shape[2], shape_of(query, key, value), query.dtype, is_causal, mask)

    def _check_balance(self, is_causal: bool, attn_mask: torch.Tensor | None) -> None:
        has_effect = self._request.scheme != "ulysses" and self._request.ranks > 1
        if self._request.is_explicitly_balanced and has_effect and not is_causal and attn_mask is None:
            raise ValueError(
                "load_balance 'head-tail' is for causal attention, but is_causal is False; "
                "without a causal mask all ranks have the same work: use load_balance 'none', or is_causal=True"
            )

    def _make_layout(self, lengths: tuple[int, ...]) -> SequenceLayout:
        layout = SequenceLayout(lengths, self._request.ranks, self._request.resolved_balance)
        for rank, count in enumerate(layout.counts):
            if count == 0 and len(lengths) > 1:
                raise ValueError(
                    f"{len(lengths)} documents of at most {max(lengths)} tokens leave rank {rank} of {layout.ranks} without tokens, "
                    "as each document is split on its own: use longer documents or fewer ranks"
                )
            if count == 0:
                raise ValueError(
                    f"a sequence of {layout.tokens} tokens leaves rank {rank} of {layout.ranks} without tokens: "
                    "use longer sequences or fewer ranks"
                )
        return layout

    def _make_plan(self, call: AttentionCall, layout: SequenceLayout) -> AttentionPlan:
        documents = (self._documents or BatchDocuments([(0, layout.tokens)])).of_rows(call.shape.batch)
        self._layout = layout
        choice = choose_among(self._request.candidates(), call.shape, layout, is_causal=call.is_causal)
        _log.info("%s: %s", call.shape, choice.reason)
        self._choices.append(choice)
        split = HeadSplit(call.shape.heads, call.shape.kv_heads, choice.scheme.ulysses_degree)
        return make_plan(self._group, choice.scheme, layout, split, documents, call.is_causal)

    def _agree_on_layout(self, call: AttentionCall, fields: dict[str, int]) -> SequenceLayout:
        tokens = self._layout.tokens if self._layout else 0
        counts = agree(self._level, call.tokens, self._digests | {"length of the sequence": tokens} | fields)
        layout = self._layout_of(call.tokens)
        if counts != layout.counts:
            raise ValueError(
                f"q, k and v have {list(counts)} tokens on the ranks of the context group, "
                f"but the split of the sequence has {list(layout.counts)}: "
                "list every tensor that follows the sequence in buffers"
            )
        return layout


def _group_of(mesh: DeviceMesh) -> dist.ProcessGroup:
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"context_parallel takes a DeviceMesh as mesh, not a {type(mesh).__name__}: make it with init_device_mesh('cpu', ...)")
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
      the sequence. Ranks need not divide it; the first chunks have a token more. Without buffers, q, k and v must be
      in the order of the layout.
    no_restore_buffers: buffers that stay parts after the scope.
    scheme: "ulysses", "gather", "ring", "hybrid" or "auto": the one that moves the fewest bytes among those that
      balance the work.
    ulysses_degree: ranks that exchange heads for tokens, a divisor of the mesh's size. "hybrid" without it takes the
      cheapest degree.
    ring_rotate: "shift" (default of "ring") or "all-gather". With "hybrid" it makes the outer level a ring.
    load_balance: "head-tail" gives a rank one chunk from the front and one from the back of a sequence, "none" one
      chunk. Default: head-tail, except for "ulysses", which is balanced without it.
    documents: ids of documents, [tokens] or [batch, tokens], or offsets, from 0 to the number of tokens. Attention
      stays within a document. Of the whole sequence, the same on all ranks.

    Collective: all attentions of a scope, by all ranks of the mesh in the same order.
    Errors: ValueError (each names the argument and the remedy), RuntimeError (a scope is open).
    """
    buffers, unrestored = buffers or [], no_restore_buffers or set()
    if open_target() is not None:
        raise RuntimeError("a context_parallel scope is open, and scopes cannot be nested: leave it first")
    group = _group_of(mesh)
    request = SchemeRequest(dist.get_world_size(group), scheme, ulysses_degree, ring_rotate, load_balance)
    dims = check_buffers(buffers, buffer_seq_dims or [], unrestored)
    tokens = common_length(buffers, dims)
    parsed = None if documents is None else read_documents(documents, tokens)
    scope = ContextParallelScope(group, request, parsed, tokens)
    layout = scope.layout if buffers else None
    with (
        split_buffers(buffers, dims, unrestored, layout, scope.rank),
        redirect_attention(scope),
        check_models_of_transformers(),
    ):
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
    Collective: all ranks of the mesh.
    Errors: ValueError (each names the argument and the remedy). If a rank refuses its buffers, or those of ranks differ,
    all of them get an error. A rank without a scope or with a layout of other ranks gets an error alone.
    """
    if layout is None:
        scope = open_target()
        if not isinstance(scope, ContextParallelScope):
            raise ValueError(
                "no context_parallel scope is open: call this within the scope, or pass the scope's layout"
            )
        layout = scope.layout
    group = _group_of(mesh)
    if layout.ranks != dist.get_world_size(group):
        raise ValueError(
            f"the layout is for {layout.ranks} ranks, but the mesh has {dist.get_world_size(group)}: "
            "give the scope's mesh"
        )
    return unshard(group, buffers, seq_dims, layout)
