"""Hugging Face Llama folders for tests, written with the standard library only."""
import array
import json
import pathlib
import random
import struct

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


# Sizes of a model whose greedy tokens differ from each other, with a token that ends a sequence.
GENERATOR = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
             "eos_token_id": 2}


def shapes(config):
    """{parameter: shape} of a Llama model, with the names of transformers."""
    dim, ffn = config["hidden_size"], config["intermediate_size"]
    kv_dim = dim // config["num_attention_heads"] * config["num_key_value_heads"]
    tensors = {"model.embed_tokens.weight": [config["vocab_size"], dim], "model.norm.weight": [dim]}
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = [config["vocab_size"], dim]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": [dim],
            prefix + "post_attention_layernorm.weight": [dim],
            prefix + "self_attn.q_proj.weight": [dim, dim],
            prefix + "self_attn.k_proj.weight": [kv_dim, dim],
            prefix + "self_attn.v_proj.weight": [kv_dim, dim],
            prefix + "self_attn.o_proj.weight": [dim, dim],
            prefix + "mlp.gate_proj.weight": [ffn, dim],
            prefix + "mlp.up_proj.weight": [ffn, dim],
            prefix + "mlp.down_proj.weight": [dim, ffn],
        }
    return tensors


def elements(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def values(name, count):
    """Small numbers that differ from each other; ones for norms, as in a new model."""
    if "norm" in name:
        return [1.0] * count
    seed = sum(name.encode())
    return [((i * 7919 + seed * 104729) % 2003 - 1001) / 20000.0 for i in range(count)]


def random_values(name, count):
    """Numbers so large and irregular that greedy tokens differ from each other. Python keeps random() the same over versions."""
    draw = random.Random(name).random
    return [draw() - 0.5 + ("norm" in name) for _ in range(count)]


def safetensors(tensors, dtype="F32", fill=values):
    """The bytes of a safetensors file with tensors {name: shape}, whose elements are fill(name, count)."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, shape in tensors.items():
        floats = fill(name, elements(shape))
        if dtype == "BF16":
            bits = [struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for value in floats]
            raw = array.array("H", bits).tobytes()
        else:
            raw = array.array("f", floats).tobytes()
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write(folder, config=CONFIG, tensors=None, dtype="F32", files=1, fill=values):
    """Makes a model folder. With several files it has an index."""
    folder = pathlib.Path(folder)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = shapes(config) if tensors is None else tensors
    if files == 1:
        (folder / "model.safetensors").write_bytes(safetensors(tensors, dtype, fill))
        return folder
    names = list(tensors)
    weight_map = {}
    for part in range(files):
        file = f"model-{part + 1:05}-of-{files:05}.safetensors"
        own = {name: tensors[name] for name in names[part::files]}
        (folder / file).write_bytes(safetensors(own, dtype, fill))
        weight_map |= {name: file for name in own}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def read_safetensors(path):
    """Reads {name: (shape, floats)} from an fp32 file."""
    raw = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", entry
        begin, end = entry["data_offsets"]
        floats = array.array("f", raw[8 + length + begin : 8 + length + end])
        tensors[name] = (entry["shape"], floats)
    return tensors
