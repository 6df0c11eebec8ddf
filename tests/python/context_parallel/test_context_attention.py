"""Attention over 1 to 4 ranks with every scheme, against one rank in f64."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from context_attention_bodies import Attention, bytes_and_formula, largest_errors, random_documents

SCHEMES = {
    "auto": {},
    "ulysses": {"scheme": "ulysses"},
    "ulysses, head-tail": {"scheme": "ulysses", "load_balance": "head-tail"},
    "gather": {"scheme": "gather"},
    "gather, contiguous": {"scheme": "gather", "load_balance": "none"},
    "ring": {"scheme": "ring"},
    "ring, contiguous": {"scheme": "ring", "load_balance": "none"},
    "ring by gather": {"scheme": "ring", "ring_rotate": "all-gather"},
    "ring by gather, contiguous": {"scheme": "ring", "ring_rotate": "all-gather", "load_balance": "none"},
}
HYBRIDS = {
    "hybrid": {"scheme": "hybrid"},
    "hybrid, contiguous": {"scheme": "hybrid", "load_balance": "none"},
    "hybrid, ring": {"scheme": "hybrid", "ulysses_degree": 2, "ring_rotate": "shift"},
    "hybrid, ring, contiguous": {"scheme": "hybrid", "ring_rotate": "shift", "load_balance": "none"},
    "hybrid, ring by gather": {"scheme": "hybrid", "ring_rotate": "all-gather"},
}
CASES = [(ranks, name) for ranks in (1, 2, 3, 4) for name in SCHEMES] + [(4, name) for name in HYBRIDS]

# Tokens, heads, KV heads and head sizes: even; not divided by any number of ranks; one KV head; sizes that differ.
SHAPES = [(24, 4, 2, 16, 16), (29, 6, 3, 8, 8), (17, 3, 1, 16, 8), (23, 5, 5, 8, 16)]


def attentions_of(name: str, **changes) -> list[Attention]:
    options = (SCHEMES | HYBRIDS)[name]
    return [Attention(*shape, options=options, **changes) for shape in SHAPES]


def check(pool, attentions: list[Attention], tolerance: float = 1e-5) -> None:
    for errors in pool.run(largest_errors, attentions):
        wrong = [(attention, error) for attention, error in zip(attentions, errors, strict=True) if error > tolerance]
        assert not wrong


@pytest.mark.parametrize("ranks, name", CASES)
def test_causal_attention_equals_one_rank(ranks_of, ranks, name):
    check(ranks_of(ranks), attentions_of(name))


@pytest.mark.parametrize("ranks, name", CASES)
def test_attention_to_all_tokens_equals_one_rank(ranks_of, ranks, name):
    check(ranks_of(ranks), attentions_of(name, is_causal=False))


@pytest.mark.parametrize("ranks, name", CASES)
def test_attention_within_documents_equals_one_rank(ranks_of, ranks, name):
    attentions = []
    for is_causal in (True, False):
        for attention in attentions_of(name, is_causal=is_causal):
            shared = random_documents(attention.tokens, 1)
            rows = [random_documents(attention.tokens, seed) for seed in range(attention.batch)]
            attentions += [dataclasses.replace(attention, documents=ids) for ids in (shared, rows)]
    check(ranks_of(ranks), attentions)


@pytest.mark.parametrize("mask", ["keys", "keys of the rank", "bias of heads", "rows", "rows of the rank"])
@pytest.mark.parametrize("ranks, name", CASES)
def test_masked_attention_equals_one_rank(ranks_of, ranks, name, mask):
    attentions = [attention for attention in attentions_of(name, mask=mask) if attention.tokens > 17]
    documents = [random_documents(attention.tokens, 2) for attention in attentions]
    packed = [
        dataclasses.replace(attention, documents=ids) for attention, ids in zip(attentions, documents, strict=True)
    ]
    check(ranks_of(ranks), attentions + packed)


@pytest.mark.parametrize("mask", [None, "bias of heads"])
@pytest.mark.parametrize("ranks, name", CASES)
def test_strided_tensors_equal_one_rank(ranks_of, ranks, name, mask):
    check(ranks_of(ranks), attentions_of(name, mask=mask, is_transposed=True))


@pytest.mark.parametrize("mask", ["hidden rows", "hidden keys"])
@pytest.mark.parametrize("ranks, name", CASES)
def test_rows_that_a_finite_mask_hides_equal_one_rank(ranks_of, ranks, name, mask):
    attentions = []
    for attention in attentions_of(name, mask=mask):
        third = attention.tokens // 3
        shared = [0] * (attention.tokens - third) + [1] * third
        rows = [random_documents(attention.tokens, seed) for seed in range(attention.batch)]
        attentions += [dataclasses.replace(attention, documents=ids) for ids in (None, shared, rows)]
    check(ranks_of(ranks), attentions)


@pytest.mark.parametrize("mask", ["keys", "keys of the rank", "bias of heads", "rows", "rows of the rank"])
@pytest.mark.parametrize("ranks, name", CASES)
def test_masked_attention_of_ranks_with_one_token_equals_one_rank(ranks_of, ranks, name, mask):
    lengths = [ranks] if mask == "rows of the rank" else [ranks, ranks + 1]
    options = (SCHEMES | HYBRIDS)[name]
    check(ranks_of(ranks), [Attention(tokens, 6, 3, 8, 8, mask=mask, options=options) for tokens in lengths])


@pytest.mark.parametrize("ranks, name", CASES)
def test_bf16_attention_differs_by_roundings_only(ranks_of, ranks, name):
    check(ranks_of(ranks), attentions_of(name, dtype=torch.bfloat16), tolerance=0.02)


@pytest.mark.parametrize("ranks, name", [(1, "auto"), (2, "ulysses"), (2, "gather"), (3, "ring"), (4, "hybrid")])
def test_bf16_attention_keeps_an_f32_mask(ranks_of, ranks, name):
    attention = Attention(603, 2, 2, 16, 16, mask="positions", dtype=torch.bfloat16, options=(SCHEMES | HYBRIDS)[name])
    check(ranks_of(ranks), [attention], tolerance=0.02)


@pytest.mark.parametrize("ranks, name", [(2, "ulysses"), (4, "hybrid"), (3, "gather"), (3, "ring")])
def test_f64_attention_keeps_its_precision(ranks_of, ranks, name):
    check(ranks_of(ranks), attentions_of(name, dtype=torch.float64), tolerance=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ranks, name", CASES)
def test_received_bytes_equal_the_formulas(ranks_of, ranks, name, dtype):
    for attention in attentions_of(name, dtype=dtype):
        for counted, computed in ranks_of(ranks).run(bytes_and_formula, attention):
            assert counted == computed
