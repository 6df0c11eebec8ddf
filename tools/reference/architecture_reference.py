#!/usr/bin/env python3
"""Trains small models of each architecture and rope type with transformers and torch.optim.AdamW, and writes the
reference values for weft's tests.

    pip install torch==2.13.0 transformers
    tools/reference/architecture_reference.py tests/train/data/architectures.json

Weights and tokens come from the integer hash of llama_reference.py, which the test also computes. The file has the
config.json of each model and results only: the loss and gradient norm (before clipping) of every step, the loss of the
trained model on other tokens, and two elements of every final weight.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
import transformers
from llama_reference import hashed

# Step s trains on the windows of `seq` tokens from s * batch on, as `weft train --shuffle false` does.
TRAINING = {"steps": 10, "batch": 4, "seq": 32, "lr": 0.003, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
            "weight_decay": 0.1, "clip": 0.7}
VOCABULARY = 67
BASE = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": False}
SHORT, LONG = [1.0, 1.1, 1.3, 1.5], [1.0, 1.5, 2.5, 4.0]


def rope(rope_type: str, **parameters) -> dict:
    return {"num_hidden_layers": 1, "rope_parameters": {"rope_type": rope_type, "rope_theta": 100.0} | parameters}


# Model type and changes to BASE. Sequences have 32 tokens: scalings from 16 original positions are in effect.
CASES = {
    "llama_bias": ("llama", {"attention_bias": True}),
    "mistral": ("mistral", {"sliding_window": 7, "num_key_value_heads": 1}),
    "mistral_without_window": ("mistral", {"sliding_window": None, "head_dim": 12}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2_window_in_one_layer": ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 12}),
    "qwen3_bias_and_window": ("qwen3", {"head_dim": 6, "attention_bias": True, "use_sliding_window": True,
                                        "sliding_window": 11, "max_window_layers": 0, "tie_word_embeddings": True}),
    # transformers gives the embedding of a padding token no gradient; weft knows no padding.
    "gemma": ("gemma", {"head_dim": 10, "num_key_value_heads": 1, "tie_word_embeddings": True, "pad_token_id": None}),
    "rope_default": ("llama", rope("default")),
    "rope_linear": ("llama", rope("linear", factor=4.0)),
    "rope_dynamic": ("llama", rope("dynamic", factor=4.0) | {"max_position_embeddings": 16}),
    "rope_yarn": ("llama", rope("yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=4.0)),
    "rope_yarn_untruncated": ("llama", rope("yarn", factor=2.0, original_max_position_embeddings=16, beta_fast=3.0,
                                            truncate=False, mscale=0.7, mscale_all_dim=0.3)),
    "rope_longrope": ("llama", rope("longrope", short_factor=SHORT, long_factor=LONG,
                                    original_max_position_embeddings=16)),
    "rope_longrope_short": ("llama", rope("longrope", short_factor=SHORT, long_factor=LONG, attention_factor=1.25,
                                          original_max_position_embeddings=32)),
    "rope_llama3": ("llama", rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                  original_max_position_embeddings=16)),
}


def initial_weight(name: str, shape: torch.Size, norm_center: float) -> torch.Tensor:
    """Uniform in [-0.3, 0.3), and around `norm_center` for the weight of a norm."""
    values = hashed(name, shape.numel()).astype(np.float64) / 2**32 * 0.6 - 0.3
    return torch.from_numpy((values + norm_center * ("norm" in name)).astype(np.float32)).reshape(shape)


def tokens(name: str, count: int) -> torch.Tensor:
    return torch.from_numpy((hashed(name, count) % np.uint64(VOCABULARY)).astype(np.int64))


def make_model(model_type: str, changes: dict) -> transformers.PreTrainedModel:
    config = transformers.AutoConfig.for_model(model_type, **(BASE | changes))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Gemma's norms multiply by 1 + weight. Those of heads are no such norms.
            center = 0.0 if model_type == "gemma" else 1.0
            parameter.copy_(initial_weight(name, parameter.shape, center))
    return model


def loss_of(model: transformers.PreTrainedModel, windows: torch.Tensor) -> torch.Tensor:
    logits = model(windows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())


def train(model_type: str, changes: dict) -> dict:
    model = make_model(model_type, changes)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=TRAINING["lr"], betas=(TRAINING["beta1"], TRAINING["beta2"]), eps=TRAINING["eps"],
        weight_decay=TRAINING["weight_decay"])
    batch, seq = TRAINING["batch"], TRAINING["seq"]
    corpus = tokens("tokens", TRAINING["steps"] * batch * seq + 1)
    losses, norms = [], []
    for step in range(TRAINING["steps"]):
        windows = corpus.unfold(0, seq + 1, seq)[step * batch:(step + 1) * batch]
        loss = loss_of(model, windows)
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), TRAINING["clip"]).item())
        optimizer.step()
        losses.append(loss.item())
    finals = {}
    for name, parameter in model.named_parameters():
        flat = parameter.detach().flatten()
        finals[name] = [flat[i].item() for i in (0, flat.numel() // 2)]
    with torch.no_grad():
        eval_loss = loss_of(model, tokens("eval tokens", seq + 1).unsqueeze(0)).item()
    config = {key: value for key, value in model.config.to_dict().items() if not key.startswith("_")}
    return {"config": config | {"architectures": [type(model).__name__]}, "losses": losses, "grad_norms": norms,
            "eval_loss": eval_loss, "final_weights": finals}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    output = parser.parse_args().output
    torch.set_num_threads(1)
    cases = {name: train(*case) for name, case in CASES.items()}
    plain = cases["rope_default"]["losses"]
    for name, case in cases.items():
        if name.startswith("rope_") and name != "rope_default":
            assert abs(case["losses"][0] - plain[0]) > 1e-3, f"{name} does not differ from the default type"
    output.parent.mkdir(exist_ok=True)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}" for name, case in cases.items())
    made_with = {"torch": torch.__version__, "transformers": transformers.__version__}
    output.write_text(f'{{"made_with": {json.dumps(made_with)},\n "training": {json.dumps(TRAINING)},\n "cases": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()
