"""Ranks for the tests of context parallelism: over gloo, and over weft where the backend is installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if importlib.util.find_spec("weft") is None:
    sys.path.insert(0, str(Path(__file__).parents[3] / "python"))

from rank_pool import RankPool  # noqa: E402


def _backends() -> list[str]:
    import torch.distributed as dist
    import weft.torch  # noqa: F401  (registers the backend, if it is built)

    return ["gloo", "weft"] if "weft" in dist.Backend.backend_list else ["gloo"]


@pytest.fixture(scope="session", params=_backends())
def backend(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def ranks_of(backend: str) -> Iterator[Callable[[int], RankPool]]:
    """Returns the pool of a number of ranks. Pools live until the end of the session, or until one of their ranks
    fails."""
    pools: dict[int, RankPool] = {}

    def pool_of(ranks: int) -> RankPool:
        if ranks not in pools or not pools[ranks].is_open:
            pools[ranks] = RankPool(ranks, backend, {"GLOO_SOCKET_IFNAME": "lo"})
        return pools[ranks]

    yield pool_of
    for pool in pools.values():
        pool.close()
