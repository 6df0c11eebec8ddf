#!/usr/bin/env python3
"""Trains adapters of small models with peft, transformers and torch.optim.AdamW, and writes the reference values for weft's
tests.

    pip install torch==2.13.0 transformers peft
    tools/reference/lora_reference.py tests/train/data/lora.json

Models, tokens and training are those of architecture_reference.py. Adapters start from the integer hash of
llama_reference.py too, B as well as A, so that the first step tests both. The file has for each case the adapter_config.json
that peft wrote and results only: the loss and gradient norm (before clipping) of every step, the loss of the trained model on
other tokens, and two elements of every final weight of an adapter.
"""

import argparse
import json
import pathlib
import tempfile

import numpy as np
import peft
import torch
import transformers
from architecture_reference import CASES as MODELS
from architecture_reference import TRAINING, loss_of, make_model, tokens
from llama_reference import hashed

# By the name of the model in architecture_reference.py: the configuration of the adapters.
CASES = {
    "qwen2": {"r": 4, "lora_alpha": 16},
    "gemma": {"r": 3, "lora_alpha": 5, "target_modules": "all-linear"},
    "qwen3": {"r": 2, "lora_alpha": 8, "target_modules": ["k_proj", "mlp.down_proj"]},
}


def initial_adapter(name: str, shape: torch.Size) -> torch.Tensor:
    """Uniform in [-0.1, 0.1)."""
    values = hashed(name, shape.numel()).astype(np.float64) / 2**32 * 0.2 - 0.1
    return torch.from_numpy(values.astype(np.float32)).reshape(shape)


def stored_name(name: str) -> str:
    return name.replace(".default.", ".")


def adapter_config(model: peft.PeftModel) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())


def train(name: str, lora: dict) -> dict:
    model = peft.get_peft_model(make_model(*MODELS[name]), peft.LoraConfig(task_type="CAUSAL_LM", **lora))
    adapters = {stored_name(name): p for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, parameter in adapters.items():
            parameter.copy_(initial_adapter(name, parameter.shape))
    config = adapter_config(model) | {"base_model_name_or_path": None}
    config["target_modules"].sort()
    optimizer = torch.optim.AdamW(
        adapters.values(), lr=TRAINING["lr"], betas=(TRAINING["beta1"], TRAINING["beta2"]), eps=TRAINING["eps"],
        weight_decay=TRAINING["weight_decay"])
    batch, seq = TRAINING["batch"], TRAINING["seq"]
    corpus = tokens("tokens", TRAINING["steps"] * batch * seq + 1)
    losses, norms = [], []
    for step in range(TRAINING["steps"]):
        loss = loss_of(model, corpus.unfold(0, seq + 1, seq)[step * batch:(step + 1) * batch])
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(adapters.values(), TRAINING["clip"]).item())
        optimizer.step()
        losses.append(loss.item())
    finals = {}
    for name, parameter in adapters.items():
        flat = parameter.detach().flatten()
        finals[name] = [flat[i].item() for i in (0, flat.numel() // 2)]
    with torch.no_grad():
        eval_loss = loss_of(model, tokens("eval tokens", seq + 1).unsqueeze(0)).item()
    return {"adapter_config": config, "losses": losses, "grad_norms": norms, "eval_loss": eval_loss,
            "final_weights": finals}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    output = parser.parse_args().output
    torch.set_num_threads(1)
    cases = {name: train(name, lora) for name, lora in CASES.items()}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}" for name, case in cases.items())
    made_with = {"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__}
    output.write_text(f'{{"made_with": {json.dumps(made_with)},\n "cases": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
