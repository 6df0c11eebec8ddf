"""The cases of tests/context_parallel/layouts/layout_cases.txt, which the C++ suite reads too: Python and C++ must give
the same values."""

from __future__ import annotations

from pathlib import Path

import pytest
from weft.torch.context_parallel.layouts.byte_formulas import AttentionShape, costs_of, imbalance_of
from weft.torch.context_parallel.layouts.choose_scheme import choose_among
from weft.torch.context_parallel.layouts.context_scheme import ContextScheme
from weft.torch.context_parallel.layouts.head_split import HeadSplit
from weft.torch.context_parallel.layouts.ring_plan import RingPlan
from weft.torch.context_parallel.layouts.sequence_layout import SequenceLayout
from weft.torch.context_parallel.layouts.tile_plan import has_tiles

_FILE = Path(__file__).parents[2] / "context_parallel" / "layouts" / "layout_cases.txt"
_LINES = [line for line in _FILE.read_text().splitlines() if line and not line.startswith("#")]

_IS_CAUSAL = {"causal": True, "full": False}
_ELEMENT_BYTES = {"f32": 4, "bf16": 2, "f16": 2}


def _sequence(documents: str, ranks: str, balance: str) -> SequenceLayout:
    return SequenceLayout(tuple(int(length) for length in documents.split(",")), int(ranks), balance)


def _scheme(balance: str, degree: str, rotation: str) -> ContextScheme:
    return ContextScheme(int(degree), {"-": None, "shift": "shift", "all-gather": "all-gather"}[rotation], balance)


def _shape(batch: str, heads: str, kv_heads: str, head_dim: str, value_dim: str, dtype: str) -> AttentionShape:
    return AttentionShape(
        int(batch), int(heads), int(kv_heads), int(head_dim), int(value_dim), element_bytes=_ELEMENT_BYTES[dtype]
    )


def _layout(*sequence: str) -> str:
    ranks = _sequence(*sequence).ranges
    return " ".join(",".join(f"{part.begin}:{part.end}" for part in ranges) or "-" for ranges in ranks)


def _heads(heads: str, kv_heads: str, ranks: str) -> str:
    split = HeadSplit(int(heads), int(kv_heads), int(ranks))
    return " ".join(
        f"{queries.begin}:{queries.end}/{keys.begin}:{keys.end}" for queries, keys in zip(split.queries, split.keys)
    )


def _ring(documents: str, ranks: str, balance: str, mask: str) -> str:
    layout = _sequence(documents, ranks, balance)

    def attends(rank: int, owner: int) -> bool:
        return has_tiles(layout.ranges[rank], layout.ranges[owner], layout.document_offsets, _IS_CAUSAL[mask])

    plan = RingPlan(layout.ranks, attends)

    def letter(owner: int, distance: int) -> str:
        if not plan.reaches(owner, distance):
            return "."
        if plan.passes_gradients_on(owner, distance):
            return "p"
        return "r" if plan.returns_gradients(owner, distance) else "b"

    words = ["".join(letter(owner, distance) for distance in range(1, plan.ranks)) for owner in range(plan.ranks)]
    return " ".join([str(plan.hops), *words])


def _description(ranks: str, balance: str, degree: str, rotation: str) -> str:
    return _scheme(balance, degree, rotation).describe(int(ranks))


def _costs(
    documents: str, ranks: str, balance: str, degree: str, rotation: str, mask: str, *shape_and_rank: str
) -> str:
    *shape, rank = shape_and_rank
    costs = costs_of(
        _scheme(balance, degree, rotation),
        _shape(*shape),
        _sequence(documents, ranks, balance),
        int(rank),
        is_causal=_IS_CAUSAL[mask],
    )
    numbers = (costs.forward_bytes, costs.backward_bytes, costs.forward_hops, costs.backward_hops, costs.pairs)
    return " ".join(str(number) for number in numbers)


def _imbalance(documents: str, ranks: str, balance: str, degree: str, rotation: str, mask: str, *shape: str) -> str:
    scheme, layout = _scheme(balance, degree, rotation), _sequence(documents, ranks, balance)
    costs = [
        costs_of(scheme, _shape(*shape), layout, rank, is_causal=_IS_CAUSAL[mask]) for rank in range(layout.ranks)
    ]
    return f"{imbalance_of(costs):.6f}"


def _choice(documents: str, ranks: str, balance: str, mask: str, *shape_and_schemes: str) -> str:
    shape, schemes = shape_and_schemes[:6], shape_and_schemes[6:]
    candidates = [_scheme(balance, degree, rotation) for degree, rotation in zip(schemes[::2], schemes[1::2])]
    layout = _sequence(documents, ranks, balance)
    choice = choose_among(candidates, _shape(*shape), layout, is_causal=_IS_CAUSAL[mask])
    return choice.scheme.describe(layout.ranks)


_TABLES = {
    "layout": _layout,
    "heads": _heads,
    "ring": _ring,
    "scheme": _description,
    "costs": _costs,
    "imbalance": _imbalance,
    "choice": _choice,
}


@pytest.mark.parametrize("line", _LINES)
def test_a_case_has_the_values_of_the_file_that_the_cpp_suite_reads(line):
    inputs, expected = line.split(" = ")
    table, *columns = inputs.split()
    assert _TABLES[table](*columns) == expected


def test_every_table_has_a_case():
    assert {line.split()[0] for line in _LINES} == set(_TABLES)
