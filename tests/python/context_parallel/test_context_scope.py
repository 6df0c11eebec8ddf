"""The scope of context parallelism: buffers, names of attention, recomputation, misuse."""

from __future__ import annotations

import importlib.util

import context_compiled_bodies
import context_refusal_bodies
import context_scope_bodies
import pytest
import torch
import torch.nn.functional as F
from context_attention_bodies import Attention, bits_of

CHECKS = [
    context_scope_bodies.check_buffers_are_split_and_restored,
    context_scope_bodies.check_buffers_of_any_strides,
    context_scope_bodies.check_lengths_that_ranks_do_not_divide,
    context_scope_bodies.check_an_exception_leaves_nothing_changed,
    context_scope_bodies.check_attention_is_reached_by_every_name,
    context_scope_bodies.check_arguments_by_position_and_by_name,
    context_scope_bodies.check_a_forward_alone,
    context_scope_bodies.check_multi_head_attention_modules,
    context_scope_bodies.check_recomputation_sees_the_whole_sequence,
    context_scope_bodies.check_a_backward_after_the_scope,
    context_scope_bodies.check_autocast_and_inference,
    context_compiled_bodies.check_compiled_blocks,
    context_compiled_bodies.check_compiled_references,
    context_compiled_bodies.check_compiled_multi_head_attention,
    context_scope_bodies.check_parts_without_buffers,
]
CHECKS_OF_SEVERAL_RANKS = [
    context_scope_bodies.check_a_buffer_that_backward_needs_is_not_restored_silently,
    context_scope_bodies.check_recomputation_outside_of_the_scope_is_an_error,
    context_scope_bodies.check_misuse_of_the_scope,
    context_refusal_bodies.check_misuse_of_attention,
    context_scope_bodies.check_a_mask_that_changes_before_backward,
    context_refusal_bodies.check_errors_of_one_rank,
    context_refusal_bodies.check_ranks_that_disagree,
    context_refusal_bodies.check_ranks_with_one_token_that_drop_is_causal,
    context_refusal_bodies.check_an_attention_that_is_written_out_gives_a_warning,
    context_refusal_bodies.check_whole_tensors_of_ranks_that_differ,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_scope(ranks_of, ranks, check):
    ranks_of(ranks).run(check)


@pytest.mark.parametrize("check", CHECKS_OF_SEVERAL_RANKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("ranks", [2, 4])
def test_scope_of_several_ranks(ranks_of, ranks, check):
    ranks_of(ranks).run(check)


def test_flex_attention_is_refused(ranks_of):
    ranks_of(2).run(context_scope_bodies.check_flex_attention_is_refused)


def test_attention_is_redirected_if_it_was_replaced_before_the_import(monkeypatch):
    attention, inputs = F.scaled_dot_product_attention, [torch.zeros(1, 1, 1, 1)] * 3
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *args, **kwargs: attention(*args, **kwargs))
    spec = importlib.util.find_spec("weft.torch.context_parallel.redirection")
    redirection = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(redirection)

    class Target:
        def attend(self, query, key, value):
            return query + 1

    with redirection.redirect_attention(Target()):
        assert attention(*inputs).item() == 1
    assert attention(*inputs).item() == 0


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
