"""Fixtures: pools of ranks, shared by all tests of a run."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from rank_pool import RankPool  # noqa: E402


@pytest.fixture(scope="session")
def _pools() -> Iterator[dict[tuple, RankPool]]:
    pools: dict[tuple, RankPool] = {}
    yield pools
    for pool in pools.values():
        pool.close()


@pytest.fixture
def pool_of(_pools: dict[tuple, RankPool]) -> Callable[..., RankPool]:
    """Returns the pool of `size` ranks with a backend, which the first test starts."""

    def get(size: int, backend: str = "weft", **environment: str) -> RankPool:
        key = (size, backend, *sorted(environment.items()))
        if key not in _pools or not _pools[key].is_open:
            _pools[key] = RankPool(size, backend, environment)
        return _pools[key]

    return get


@pytest.fixture(params=[1, 2, 3, 4], ids=lambda size: f"{size}ranks")
def pool(request: pytest.FixtureRequest, pool_of: Callable[..., RankPool]) -> RankPool:
    return pool_of(request.param)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Exits with 77, for CTest, if all modules were skipped. A selection that names no test stays an error."""
    skipped = session.config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped")
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and skipped:
        session.exitstatus = 77
