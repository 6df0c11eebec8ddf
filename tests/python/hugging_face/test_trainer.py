"""transformers' Trainer over the backend "weft", against the backend "gloo"."""

import importlib.util
from pathlib import Path

import pytest
from rank_pool import free_port

for package in ("transformers", "accelerate"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}", allow_module_level=True)

import trainer_bodies as bodies


@pytest.mark.parametrize("body", [bodies.ddp, bodies.fsdp2], ids=lambda body: body.__name__)
def test_trains_as_over_gloo(pool_of, tmp_path: Path, body) -> None:
    pool = pool_of(2)
    losses = {backend: pool.run(body, backend, free_port(), tmp_path / backend) for backend in ("gloo", "weft")}
    assert losses["weft"] == losses["gloo"]


def test_the_command_line_takes_the_backend(pool_of) -> None:
    assert pool_of(2).run(bodies.command_line) == ["weft", "weft"]
