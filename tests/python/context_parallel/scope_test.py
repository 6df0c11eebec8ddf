"""The scope of context parallelism: buffers, names of attention, recomputation, misuse."""

from __future__ import annotations

import pytest
import scope_checks
import torch
from attention_reference import Attention, bits_of

CHECKS = [
    scope_checks.check_buffers_are_split_and_restored,
    scope_checks.check_lengths_that_ranks_do_not_divide,
    scope_checks.check_an_exception_leaves_nothing_changed,
    scope_checks.check_attention_is_reached_by_every_name,
    scope_checks.check_multi_head_attention_modules,
    scope_checks.check_recomputation_sees_the_whole_sequence,
    scope_checks.check_a_backward_after_the_scope,
    scope_checks.check_autocast_and_inference,
    scope_checks.check_compiled_blocks,
    scope_checks.check_parts_without_buffers,
]
CHECKS_OF_SEVERAL_RANKS = [
    scope_checks.check_a_buffer_that_backward_needs_is_not_restored_silently,
    scope_checks.check_recomputation_outside_of_the_scope_is_an_error,
    scope_checks.check_misuse_of_the_scope,
    scope_checks.check_misuse_of_attention,
    scope_checks.check_ranks_that_disagree,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_scope(ranks_of, ranks, check):
    ranks_of(ranks).run(check)


@pytest.mark.parametrize("check", CHECKS_OF_SEVERAL_RANKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("ranks", [2, 4])
def test_scope_of_several_ranks(ranks_of, ranks, check):
    ranks_of(ranks).run(check)


@pytest.mark.parametrize(
    "options", [{"scheme": "ulysses"}, {"scheme": "gather"}, {"scheme": "ring"}, {"scheme": "hybrid"}]
)
def test_a_repeated_attention_has_the_same_bits(ranks_of, options):
    attention = Attention(29, 6, 3, 8, 8, options=options)
    pool = ranks_of(4)
    first, second = pool.run(bits_of, attention), pool.run(bits_of, attention)
    for rank_first, rank_second in zip(first, second, strict=True):
        for expected, actual in zip(rank_first, rank_second, strict=True):
            assert torch.equal(expected, actual)
