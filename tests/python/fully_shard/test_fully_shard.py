"""weft.fully_shard against FSDP2 over gloo. The ranks of a pool run each case together."""

import comparison_collective_cases
import comparison_failure_cases
import comparison_float64_cases
import comparison_optimizer_cases
import comparison_pass_cases
import comparison_refusal_cases
import comparison_reset_cases
import comparison_state_cases
import comparison_training_cases
import comparison_write_cases
import private_heap_bodies
import pytest
from sharded_support import cases_of

_MODULES = [
    comparison_training_cases,
    comparison_float64_cases,
    comparison_pass_cases,
    comparison_optimizer_cases,
    comparison_state_cases,
    comparison_refusal_cases,
    comparison_failure_cases,
    comparison_reset_cases,
    comparison_collective_cases,
    comparison_write_cases,
]
CASES = cases_of(_MODULES)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1, 2, 4], ids=lambda size: f"{size}ranks")
def test_fully_shard(pool_of, name: str, size: int) -> None:
    pool_of(size, "gloo").run(CASES[name])


@pytest.mark.parametrize("has_forward", [True, False], ids=["after_a_forward", "before_a_forward"])
def test_a_signal_ends_a_reset(pool_of, has_forward: bool) -> None:
    pool = pool_of(2, "gloo")
    pool.run(comparison_failure_cases.interrupted_reset, has_forward)
    pool.close()


@pytest.mark.parametrize("size", [1, 2, 4], ids=lambda size: f"{size}ranks")
def test_a_reset_without_a_model_recovers_collectives(pool_of, size: int) -> None:
    pool_of(size, "weft").run(comparison_reset_cases.collectives_work_again_after_a_reset)


def test_a_missed_deadline_names_the_late_rank(pool_of) -> None:
    pool = pool_of(2, "gloo", PLACEMENT="late", TEST_TIMEOUT_S="20")
    pool.run(comparison_failure_cases.name_node, ["a", "b"])
    pool.run(comparison_failure_cases.a_late_rank_is_named)


def test_a_model_of_a_later_process_group_has_its_ranks(pool_of) -> None:
    pool = pool_of(2, "gloo")
    pool.run(comparison_failure_cases.groups_in_another_order)
    pool.close()


# The session of the default group, which FSDP2 then uses, too.
@pytest.mark.parametrize(
    "body", [comparison_training_cases.trains_as_fsdp2, comparison_training_cases.trains_with_hsdp], ids=lambda body: body.__name__
)
def test_shares_the_session_of_the_backend(pool_of, body) -> None:
    pool_of(4, "weft").run(body)


# Ranks of different nodes gather images of their own.
@pytest.mark.parametrize("nodes", [["a", "a"], ["a", "b"]], ids=lambda nodes: "".join(nodes))
def test_trains_alike_on_every_placement(pool_of, nodes: list[str]) -> None:
    pool = pool_of(2, "gloo", PLACEMENT="".join(nodes))
    pool.run(comparison_failure_cases.name_node, nodes)
    for case in (
        comparison_training_cases.trains_as_fsdp2,
        comparison_training_cases.checkpoints_activations,
        comparison_failure_cases.a_part_that_hides_its_outputs_has_its_gradients_or_an_error,
        comparison_failure_cases.a_backward_that_begins_inside_a_frozen_module_is_right_or_an_error,
    ):
        pool.run(case)


@pytest.mark.parametrize(
    "body",
    [private_heap_bodies.tensors_lie_in_the_private_heap, private_heap_bodies.a_forked_child_uses_tensors_of_the_private_heap],
    ids=lambda body: body.__name__,
)
def test_tensors_lie_in_the_private_heap(pool_of, body) -> None:
    pool_of(1, "gloo").run(body)


def test_the_private_heap_is_off(pool_of) -> None:
    pool = pool_of(1, "gloo", WEFT_PRIVATE_HEAP="off")
    pool.run(private_heap_bodies.the_private_heap_is_off)
    pool.close()
