#!/usr/bin/env python3
"""Trains small models with transformers' LlamaForCausalLM and torch.optim.AdamW, and writes the reference values for
weft's tests.

    pip install torch==2.13.0 transformers
    tools/reference/llama_reference.py tests/nn/data/llama_reference.json

Weights and tokens come from an integer hash that the test also computes. The file therefore contains results only: the
loss and gradient norm (before clipping) of every step, and three elements of every final weight.
"""

import argparse
import json
import pathlib

import numpy as np
import torch
import transformers

# Step s trains on batch s mod `batches`. Batches repeat, so that the loss can fall.
TRAINING = {"steps": 10, "batches": 3, "batch": 2, "seq": 17, "lr": 0.003, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8,
            "weight_decay": 0.1, "clip": 0.7}
BASE = {"vocab_size": 131, "dim": 60, "layers": 2, "heads": 5, "kv_heads": 5, "head_dim": 12, "ffn_dim": 101,
        "norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "max_positions": 128}
CASES = {
    "multi_query_untied": BASE | {"kv_heads": 1},
    "multi_head_tied": BASE | {"tie_word_embeddings": True},
    "grouped_llama3_rope": BASE | {
        "heads": 6, "kv_heads": 2, "head_dim": 10, "rope_theta": 5000.0,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 64}},
}


def hashed(name: str, count: int) -> np.ndarray:
    """`count` 32-bit words; each depends on the name and its index."""
    key = np.uint64(2166136261)
    for byte in name.encode():
        key = (key ^ np.uint64(byte)) * np.uint64(16777619) & np.uint64(0xFFFFFFFF)
    word = (key + np.arange(count, dtype=np.uint64) * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor) & np.uint64(0xFFFFFFFF)
    return word ^ (word >> np.uint64(16))


def initial_weight(name: str, shape: torch.Size) -> torch.Tensor:
    """Uniform in [-0.1, 0.1); for a norm in [0.9, 1.1)."""
    values = hashed(name, shape.numel()).astype(np.float64) / 2**32 * 0.2 - 0.1
    return torch.from_numpy((values + ("norm" in name)).astype(np.float32)).reshape(shape)


def tokens(index: int, vocab_size: int) -> torch.Tensor:
    """Token ids of batch `index`: [batch, seq + 1]."""
    batch, seq = TRAINING["batch"], TRAINING["seq"]
    words = hashed(f"tokens {index}", batch * (seq + 1)) % np.uint64(vocab_size)
    return torch.from_numpy(words.astype(np.int64)).reshape(batch, seq + 1)


def make_model(case: dict) -> transformers.LlamaForCausalLM:
    rope = {"rope_type": "default", "rope_theta": case["rope_theta"]}
    if "rope_scaling" in case:
        rope |= {"rope_type": "llama3"} | case["rope_scaling"]
    config = transformers.LlamaConfig(
        vocab_size=case["vocab_size"], hidden_size=case["dim"], intermediate_size=case["ffn_dim"],
        num_hidden_layers=case["layers"], num_attention_heads=case["heads"], num_key_value_heads=case["kv_heads"],
        head_dim=case["head_dim"], rms_norm_eps=case["norm_eps"], rope_parameters=rope,
        tie_word_embeddings=case["tie_word_embeddings"], max_position_embeddings=case["max_positions"],
        attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_weight(name, parameter.shape))
    return model


def train(case: dict) -> dict:
    model = make_model(case)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=TRAINING["lr"], betas=(TRAINING["beta1"], TRAINING["beta2"]), eps=TRAINING["eps"],
        weight_decay=TRAINING["weight_decay"])
    losses, norms = [], []
    for step in range(TRAINING["steps"]):
        ids = tokens(step % TRAINING["batches"], case["vocab_size"])
        logits = model(ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), TRAINING["clip"]).item())
        optimizer.step()
        losses.append(loss.item())
    finals = {}
    for name, parameter in model.named_parameters():
        flat = parameter.detach().flatten()
        finals[name] = [flat[i].item() for i in (0, flat.numel() // 2, flat.numel() - 1)]
    return {"config": case, "losses": losses, "grad_norms": norms, "final_weights": finals}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    output = parser.parse_args().output
    torch.set_num_threads(1)
    result = {"made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
              "training": TRAINING, "cases": {name: train(case) for name, case in CASES.items()}}
    output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
