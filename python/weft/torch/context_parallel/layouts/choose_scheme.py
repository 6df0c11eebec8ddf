"""Choice of a context scheme for an attention: the one that moves the fewest bytes, among the schemes that balance
the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.torch.context_parallel.layouts.byte_formulas import AttentionShape, costs_of, imbalance_of
from weft.torch.context_parallel.layouts.context_scheme import ContextScheme
from weft.torch.context_parallel.layouts.sequence_layout import SequenceLayout

_MAX_IMBALANCE = 1.25


@dataclass(frozen=True)
class SchemeChoice:
    """reason: "ulysses: 12.00 MiB to a rank in an attention's forward and backward; gather: 18.00 MiB; …"."""

    scheme: ContextScheme
    reason: str


@dataclass(frozen=True)
class _Candidate:
    scheme: ContextScheme
    bytes: int  # The most that any rank receives in forward and backward.
    imbalance: float

    @property
    def is_balanced(self) -> bool:
        return self.imbalance <= _MAX_IMBALANCE


def _evaluate(scheme: ContextScheme, shape: AttentionShape, layout: SequenceLayout, is_causal: bool) -> _Candidate:
    costs = [costs_of(scheme, shape, layout, rank, is_causal=is_causal) for rank in range(layout.ranks)]
    return _Candidate(scheme, max(cost.bytes for cost in costs), imbalance_of(costs))


def _reason(candidates: Sequence[_Candidate], ranks: int) -> str:
    parts = []
    for candidate in candidates:
        part = f"{candidate.scheme.describe(ranks)}: {candidate.bytes / 2**20:.2f} MiB"
        if not parts:
            part += " to a rank in an attention's forward and backward"
        if not candidate.is_balanced:
            part += f", but one rank has {candidate.imbalance:.2f} of the mean work"
        parts.append(part)
    return "; ".join(parts)


def choose_among(
    schemes: Sequence[ContextScheme], shape: AttentionShape, layout: SequenceLayout, *, is_causal: bool
) -> SchemeChoice:
    """The scheme with the fewest bytes, the first of equal ones. A scheme whose busiest rank has more than 1.25 times
    the mean work is chosen only if all schemes have that; heads that divide badly are a cause. Pure: every rank
    chooses the same scheme.
    Errors: ValueError (no scheme)."""
    if not schemes:
        raise ValueError("there is no scheme to choose from: give at least one")
    candidates = [_evaluate(scheme, shape, layout, is_causal) for scheme in schemes]
    candidates.sort(key=lambda candidate: (not candidate.is_balanced, candidate.bytes))
    return SchemeChoice(candidates[0].scheme, _reason(candidates, layout.ranks))
