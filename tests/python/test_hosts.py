"""The backend "weft" on two emulated hosts with two ranks each: collectives, messages, and training that spans them.

The hosts are network namespaces of this machine (tools/emulated_hosts.sh). Where they cannot be created, the test is
skipped with the reason.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import collective_bodies as bodies
import pytest
import training_bodies
from rank_pool import RankPool

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "emulated_hosts.sh"
HOSTS = 2
RANKS = 4
# Tells the names, then keeps the hosts until the pipe closes.
REPORT = 'echo "$WEFT_ON_HOST" "$WEFT_HOSTS"; exec cat'


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[list[str]]]:
    """By host, the words before a command that joins it."""
    script = subprocess.Popen(
        [str(SCRIPT), "--hosts", str(HOSTS), "sh", "-c", REPORT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )
    try:
        words = (report := script.stdout.readline()).split()
        if len(words) != 1 + HOSTS:
            report += script.communicate()[0]
            if script.returncode == 77:
                pytest.skip(report.strip())
            raise RuntimeError(f"emulated_hosts.sh ended with {script.returncode}: {report}")
        yield [[words[0], name] for name in words[1:]]
    finally:
        script.communicate()


@pytest.fixture(scope="module")
def pool(hosts: list[list[str]]) -> Iterator[RankPool]:
    """Gathers and reductions of floats travel compressed, everything else does not."""
    prefixes = [hosts[rank * HOSTS // RANKS] for rank in range(RANKS)]
    ranks = RankPool(RANKS, "weft", {"WEFT_WIRE_COMPRESSION": "lossless"}, prefixes)
    yield ranks
    ranks.close()


def test_gathers_and_reductions_have_the_bits_of_the_canonical_tree(pool: RankPool) -> None:
    assert all(bytes_saved > 0 for bytes_saved in pool.run(bodies.large_gather_and_reductions))


@pytest.mark.parametrize(
    "body",
    [
        bodies.all_gather_of_different_sizes,
        bodies.all_to_all,
        bodies.gather_and_scatter,
        bodies.tags_and_any_source,
        bodies.groups,
        bodies.overlapping_kinds,
    ],
    ids=lambda body: body.__name__,
)
def test_holds_for(pool: RankPool, body) -> None:
    pool.run(body)


@pytest.mark.parametrize("body", [training_bodies.fsdp, training_bodies.hsdp], ids=lambda body: body.__name__)
def test_training_has_the_bits_of_one_host(pool: RankPool, pool_of, body) -> None:
    assert pool.run(body) == pool_of(RANKS).run(body)
