"""Functions that the ranks run: examples/torch_hugging_face.py."""

import importlib.util
from pathlib import Path

from rank_worker import as_under_torchrun
from transformers import AutoModelForCausalLM

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "torch_hugging_face.py"


def run(port: int, arguments: list[str]) -> list[float]:
    spec = importlib.util.spec_from_file_location("torch_hugging_face", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with as_under_torchrun(port):
        return example.main(arguments)


def exported_class(folder: Path) -> str:
    return type(AutoModelForCausalLM.from_pretrained(folder)).__name__
