"""PyTorch's own wrappers over the backend "weft", against the backend "gloo"."""

from pathlib import Path

import pytest
import rank_pool
import training_bodies as bodies

rank_pool.PRELOADED.append("torch._dynamo")  # An optimizer imports it in its first step.


@pytest.mark.parametrize("body", [bodies.fsdp, bodies.ddp, bodies.zero_redundancy], ids=lambda body: body.__name__)
def test_equals_gloo_to_the_bit_on_two_ranks(pool_of, body) -> None:
    assert pool_of(2, "weft").run(body) == pool_of(2, "gloo").run(body)


@pytest.mark.parametrize("as_views", [False, True], ids=["copied_gradients", "gradients_as_views"])
def test_buckets_of_ddp_lie_in_node_memory_with_the_same_bits(pool_of, as_views: bool) -> None:
    assert pool_of(2, "weft").run(bodies.ddp_buckets, as_views) == pool_of(2, "gloo").run(bodies.ddp_buckets, as_views)


def test_ddp_is_compiled(pool_of) -> None:
    pool_of(2).run(bodies.compiled_ddp)


@pytest.mark.parametrize("body", [bodies.fsdp, bodies.hsdp, bodies.ddp], ids=lambda body: body.__name__)
def test_equals_gloo_up_to_rounding_on_four_ranks(pool_of, body) -> None:
    ours, theirs = pool_of(4, "weft").run(body), pool_of(4, "gloo").run(body)
    for (our_losses, our_weights), (their_losses, their_weights) in zip(ours, theirs, strict=True):
        assert our_losses == pytest.approx(their_losses, rel=1e-5)
        for name, values in our_weights.items():
            assert values == pytest.approx(their_weights[name], rel=1e-3, abs=1e-5), name


def test_fsdp_in_memory_of_the_backend_has_the_same_bits(pool_of) -> None:
    pool = pool_of(2)
    assert pool.run(bodies.fsdp, True) == pool.run(bodies.fsdp, False)


def test_tensor_parallelism_equals_one_rank(pool_of) -> None:
    for differences in pool_of(4).run(bodies.tensor_parallel):
        assert max(differences) < 1e-6


def test_tensors_are_redistributed(pool) -> None:
    pool.run(bodies.redistributed)


def test_a_checkpoint_continues_the_run(pool_of, tmp_path: Path) -> None:
    pool_of(2).run(bodies.checkpoint, str(tmp_path / "checkpoint"))


def test_names_qualified_by_device_work(pool_of) -> None:
    assert pool_of(2, "cpu:weft").run(bodies.fsdp) == pool_of(2, "weft").run(bodies.fsdp)
