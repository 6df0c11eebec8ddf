"""weft.fully_shard against FSDP2 over gloo. The cases are in sharding_cases.py; the ranks of a pool run each together."""

import pytest
import sharding_cases
from sharding_cases import CASES


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1, 2, 4], ids=lambda size: f"{size}ranks")
def test_fully_shard(pool_of, name: str, size: int) -> None:
    pool_of(size, "gloo").run(CASES[name])


def test_a_signal_ends_a_reset(pool_of) -> None:
    pool = pool_of(2, "gloo")
    pool.run(sharding_cases.interrupted_reset)
    pool.close()


# The session of the default group, which FSDP2 then uses, too.
@pytest.mark.parametrize("body", [sharding_cases.trains_as_fsdp2, sharding_cases.trains_with_hsdp], ids=lambda body: body.__name__)
def test_shares_the_session_of_the_backend(pool_of, body) -> None:
    pool_of(4, "weft").run(body)


# Ranks of different nodes gather images of their own.
@pytest.mark.parametrize("nodes", [["a", "a"], ["a", "b"]], ids=lambda nodes: "".join(nodes))
def test_trains_alike_on_every_placement(pool_of, nodes: list[str]) -> None:
    pool = pool_of(2, "gloo", PLACEMENT="".join(nodes))
    pool.run(sharding_cases.name_node, nodes)
    for case in (sharding_cases.trains_as_fsdp2, sharding_cases.checkpoints_activations):
        pool.run(case)
