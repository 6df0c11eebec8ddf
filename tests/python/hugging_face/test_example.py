"""The example examples/torch_hugging_face.py."""

import importlib.util
from pathlib import Path

import pytest
from rank_pool import free_port

if importlib.util.find_spec("transformers") is None:
    pytest.skip("needs transformers", allow_module_level=True)

import example_bodies as bodies

CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@pytest.mark.parametrize("model", ["llama", pytest.param("qwen3", marks=pytest.mark.slow)])
def test_goes_on_with_other_ranks(pool_of, tmp_path: Path, model: str) -> None:
    def run(ranks: int, folder: str, *arguments: str) -> list[float]:
        sizes = ["--model", model, "--batch", "4", "--tokens", "32"]
        return pool_of(ranks).run(bodies.run, free_port(), [str(tmp_path / folder), *sizes, *arguments])[0]

    losses = run(2, "parts", "--steps", "3")
    (tmp_path / "parts" / "checkpoint-9.partial").mkdir()  # As a run leaves it that is killed while it saves.
    losses += run(4, "parts", "--steps", "3", "--replicas", "2")
    assert losses == pytest.approx(run(1, "whole", "--steps", "6"), rel=1e-4)
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {"checkpoint-6", "checkpoint-9.partial", "model"}
    assert pool_of(1).run(bodies.exported_class, tmp_path / "parts" / "model") == [CLASSES[model]]
