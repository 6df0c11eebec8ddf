"""Models of transformers with sliding windows, chunked attention, and rotary frequencies that depend on the length."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("transformers") is None:
    pytest.skip("needs transformers", allow_module_level=True)

from context_transformers_bodies import (
    TOKENS,
    Case,
    check_eager_attention_of_other_tokens,
    check_equals_one_rank,
    check_is_refused,
    check_one_token_for_each_rank,
)

LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": 16,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4,
    },
    "max_position_embeddings": 64,
}
DYNAMIC = {
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    "max_position_embeddings": 16,
}
CONTIGUOUS = {"scheme": "gather", "load_balance": "none"}
HEAD_TAIL = {"scheme": "gather", "load_balance": "head-tail"}


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


@pytest.mark.parametrize("configuration", [LONGROPE, DYNAMIC], ids=["longrope", "dynamic"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_rotary_frequencies_that_differ_between_ranks_are_refused(ranks_of, ranks, configuration):
    case = Case("llama", configuration, CONTIGUOUS)
    ranks_of(ranks).run(check_is_refused, case, "positions of the ranks end at .*fixed frequencies")


def test_dynamic_rotary_frequencies_are_refused_whichever_ranks_grow_them(ranks_of):
    ranks_of(2).run(check_is_refused, Case("llama", DYNAMIC, HEAD_TAIL), r"end at \[24, 18\]")
    # At the limit, a rank would keep what it has grown in an earlier forward.
    case = Case("llama", DYNAMIC, CONTIGUOUS, (0, 16, TOKENS))
    ranks_of(2).run(check_is_refused, case, r"end at \[8, 16\]")


@pytest.mark.parametrize(
    "configuration, options, documents",
    [
        (LONGROPE, HEAD_TAIL, (0, TOKENS)),  # Both ranks have positions of at least 16.
        (LONGROPE, CONTIGUOUS, (0, 14, TOKENS)),  # No rank has.
        (DYNAMIC, CONTIGUOUS, (0, 14, TOKENS)),
    ],
    ids=["longrope", "longrope, documents", "dynamic, documents"],
)
def test_rotary_frequencies_that_all_ranks_choose_alike_equal_one_rank(ranks_of, configuration, options, documents):
    ranks_of(2).run(check_equals_one_rank, Case("llama", configuration, options, documents))


@pytest.mark.parametrize("ranks, tokens, of_one", [(2, 2, "0, 1"), (2, 3, "1"), (4, 4, "0, 1, 2, 3"), (4, 7, "3")])
def test_causal_models_are_refused_if_a_rank_has_one_token(ranks_of, ranks, tokens, of_one):
    case = Case("llama", {}, CONTIGUOUS, (0, tokens))
    ranks_of(ranks).run(check_is_refused, case, rf"a sequence of {tokens} tokens leaves one token on ranks \[{of_one}\] of {ranks}")


@pytest.mark.parametrize("ranks", [2, 4])
def test_two_tokens_for_each_rank_equal_one_rank(ranks_of, ranks):
    ranks_of(ranks).run(check_equals_one_rank, Case("llama", {}, CONTIGUOUS, (0, 2 * ranks)))


@pytest.mark.parametrize("ranks", [2, 4])
def test_attention_of_one_token_for_each_rank(ranks_of, ranks):
    ranks_of(ranks).run(check_one_token_for_each_rank)


@pytest.mark.parametrize("ranks", [2, 4])
def test_eager_attention_is_refused(ranks_of, ranks):
    case = Case("llama", {"attn_implementation": "eager"})
    ranks_of(ranks).run(check_is_refused, case, "use attn_implementation='sdpa'")


def test_eager_attention_of_one_rank_and_of_other_tokens_is_not_refused(ranks_of):
    ranks_of(1).run(check_equals_one_rank, Case("llama", {"attn_implementation": "eager"}))
    ranks_of(2).run(check_eager_attention_of_other_tokens)
