"""Models of transformers with weft.fully_shard, against one rank of transformers and torch alone."""

import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("transformers") is None:
    pytest.skip("needs transformers", allow_module_level=True)

import model_bodies as bodies

KINDS = ["llama", "qwen3"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_continues_on_other_meshes_and_is_exported(pool_of, tmp_path: Path, kind: str) -> None:
    losses = []
    load = None
    for number, (ranks, replicas) in enumerate([(2, 1), (4, 2), (1, 1)]):
        save = tmp_path / str(number)
        steps = range(3 * number, 3 * number + 3)
        by_rank = pool_of(ranks).run(bodies.run_part, kind, replicas, steps, load, save)
        assert by_rank == [by_rank[0]] * ranks
        losses += by_rank[0]
        load = save
    # Sums of other lengths round differently; AdamW enlarges that where a gradient is near zero.
    assert losses == pytest.approx(pool_of(1).run(bodies.train_plain, kind, range(9))[0], rel=1e-5)
    assert losses[-1] < losses[0] - 0.2
    pool_of(4).run(bodies.export, kind, 2, load, tmp_path / "exported")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ranks", "replicas"), [(2, 1), (4, 2)], ids=["2ranks", "2x2ranks"])
def test_a_resumed_run_has_the_same_bits(pool_of, tmp_path: Path, kind: str, ranks: int, replicas: int) -> None:
    pool_of(ranks).run(bodies.resume_on_the_same_mesh, kind, replicas, tmp_path)
