"""Models of transformers with sliding windows and chunked attention."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("transformers") is None:
    pytest.skip("needs transformers", allow_module_level=True)

from context_transformers_bodies import TOKENS, Case, check_equals_one_rank, check_is_refused


@pytest.mark.parametrize("window", [4, 12, 16, TOKENS - 1])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_sliding_window_is_refused(ranks_of, ranks, window):
    case = Case("mistral", {"sliding_window": window})
    ranks_of(ranks).run(check_is_refused, case, "mask over all tokens")


@pytest.mark.parametrize("window", [1, 4, 16])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_sliding_window_with_a_mask_over_all_tokens_equals_one_rank(ranks_of, ranks, window):
    ranks_of(ranks).run(check_equals_one_rank, Case("mistral", {"sliding_window": window}), window)


@pytest.mark.parametrize("ranks, window", [(1, 5), (2, TOKENS), (2, 100), (2, None)])
def test_a_window_that_hides_nothing_and_one_of_a_single_rank_equal_one_rank(ranks_of, ranks, window):
    ranks_of(ranks).run(check_equals_one_rank, Case("mistral", {"sliding_window": window}))


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_window_as_long_as_each_document_equals_one_rank(ranks_of, ranks):
    documents = (0, 9, 16, TOKENS)
    case = Case("mistral", {"sliding_window": 9}, documents=documents)
    ranks_of(ranks).run(check_equals_one_rank, case)
    case = Case("mistral", {"sliding_window": 8}, documents=documents)
    ranks_of(ranks).run(check_is_refused, case, "sequence of 9 tokens")


@pytest.mark.parametrize("ranks", [2, 4])
def test_chunked_attention_is_refused(ranks_of, ranks):
    case = Case("llama4", {"attention_chunk_size": 16})
    ranks_of(ranks).run(check_is_refused, case, "chunk of 16 tokens needs a mask")
