#!/usr/bin/env python3
"""Trains a small Llama with PyTorch's FSDP2 on weft's engine.

    torchrun --nproc-per-node 4 examples/torch_llama.py [--backend weft|gloo] [--steps N] [--data FILE ...]

Nothing but the import of weft.torch and the name of the backend differs from a script for gloo. The text is that of the
licenses in /usr/share/common-licenses, byte by byte, unless --data names files.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import weft.torch  # noqa: F401  Registers the backend "weft".

VOCABULARY = 256  # Bytes.
LICENSES = Path("/usr/share/common-licenses")


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(rotate(q, rope), rotate(k, rope), v, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotary position embedding of [batch, heads, tokens, head_dim]; `rope` is [2, tokens, head_dim / 2]."""
    low, high = x.chunk(2, dim=-1)
    cos, sin = rope
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp_norm = nn.RMSNorm(dim)
        self.gate_up = nn.Linear(dim, 6 * dim, bias=False)
        self.down = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x: Tensor, rope: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope)
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, dim)
        self.layers = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, rope: Tensor) -> Tensor:
        """Logits [batch, tokens, vocabulary]."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, rope)
        return self.head(self.norm(x))


def rope_table(tokens: int, head_dim: int) -> Tensor:
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(tokens).float(), frequencies)
    return torch.stack((angles.cos(), angles.sin()))


def read_text(files: list[Path]) -> Tensor:
    files = files or sorted(path for path in LICENSES.glob("*") if path.is_file() and not path.is_symlink())
    text = b"\n".join(path.read_bytes() for path in files)
    if len(text) < 1 << 14:
        raise SystemExit(f"{len(text)} bytes of text are too few: name text files with --data")
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="weft", choices=["weft", "gloo"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--batch", type=int, default=4, help="sequences of a rank and step")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="text files")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    text = read_text(arguments.data)
    dist.init_process_group(arguments.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))

    torch.manual_seed(0)
    model = Llama(arguments.dim, arguments.layers, arguments.heads)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rope = rope_table(arguments.tokens, arguments.dim // arguments.heads)

    generator = torch.Generator().manual_seed(1 + rank)
    start = time.perf_counter()
    for step in range(1, arguments.steps + 1):
        first = torch.randint(len(text) - arguments.tokens, (arguments.batch, 1), generator=generator)
        windows = text[first + torch.arange(arguments.tokens + 1)]
        logits = model(windows[:, :-1], rope)
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 or step == 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            if rank == 0:
                seconds = (time.perf_counter() - start) / step
                print(f"step {step:3d}  loss {mean.item():.3f}  {1e3 * seconds:.0f} ms a step", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
