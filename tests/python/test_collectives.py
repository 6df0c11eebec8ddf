"""Collectives of the backend "weft" on 1, 2, 3 and 4 ranks, against plain computations."""

import collective_argument_bodies as argument_bodies
import collective_bodies as bodies
import completion_bodies
import node_memory_bodies
import overlap_bodies
import pytest
from rank_pool import RankPool

IN_NODE_MEMORY = pytest.mark.parametrize("from_backend", [False, True], ids=["tensors", "backend_tensors"])


@IN_NODE_MEMORY
@pytest.mark.parametrize("body", [bodies.all_reduce, bodies.reduce, bodies.broadcast, bodies.all_gather, bodies.reduce_scatter])
def test_gives_the_result_of_a_plain_loop(pool: RankPool, body, from_backend: bool) -> None:
    pool.run(body, from_backend)


@pytest.mark.parametrize(
    "body",
    [
        bodies.premul_sum,
        bodies.all_reduce_coalesced,
        bodies.all_gather_of_different_sizes,
        bodies.all_gather_coalesced,
        bodies.gather_and_scatter,
        bodies.reduce_scatter_of_different_sizes,
        bodies.all_to_all,
        bodies.non_contiguous,
        bodies.misaligned,
        bodies.send_and_receive,
        bodies.tags_and_any_source,
        bodies.batched_messages,
        completion_bodies.barriers,
        bodies.objects,
        completion_bodies.futures_and_works,
        completion_bodies.a_barrier_waits_for_earlier_collectives,
        bodies.large_gather_and_reductions,
        completion_bodies.futures_in_callbacks,
        bodies.overlapping_kinds,
        bodies.groups,
        argument_bodies.invalid_arguments,
        argument_bodies.a_coalesced_collective_checks_all_tensors_first,
        bodies.threads_submit,
    ],
    ids=lambda body: body.__name__,
)
def test_holds_for(pool: RankPool, body) -> None:
    pool.run(body)


@pytest.mark.parametrize(
    "body",
    [
        overlap_bodies.gathers_from_a_part_of_the_output,
        overlap_bodies.reduces_and_scatters_to_a_part_of_the_input,
        overlap_bodies.exchanges_in_one_tensor,
    ],
    ids=lambda body: body.__name__,
)
def test_an_input_may_share_memory_with_an_output(pool: RankPool, body) -> None:
    pool.run(body)


@pytest.mark.parametrize(
    "body",
    [node_memory_bodies.allocated_by_pytorch, node_memory_bodies.resized, node_memory_bodies.of_a_group_without_this_rank],
    ids=lambda body: body.__name__,
)
def test_pytorch_allocates_in_node_memory(pool_of, body) -> None:
    pool_of(2).run(body)


def test_tensors_of_the_backend_are_moved_in_place_without_copies(pool: RankPool) -> None:
    assert pool.run(node_memory_bodies.in_place_without_copies) == [0] * pool.size
