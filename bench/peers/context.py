"""One rank of a decoder's self-attention over a split sequence: ring attention in PyTorch over gloo. bench/context.cc is weft's contestant.

    WEFT_BENCH_SOCKET=... RANK=0 WORLD_SIZE=4 INIT_FILE=/tmp/store python context.py

A pass is forward and backward: projections, rotary embedding, ring attention, output projection. The output is taken as its own gradient.
"""

import functools
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor

from contestant import Reply, serve
from formula import checksums, uniform
from llama import Attention, Shape, rope_table
from plain_ring import plain_ring

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
NAME = "model.layers.0.self_attn"
HEAD_DIM = 64


class Layer:
    """The layer and this rank's part of the sequence, which is contiguous."""

    def __init__(self, tokens: int, heads: int, dtype: torch.dtype) -> None:
        dim = heads * HEAD_DIM
        shape = Shape(vocab_size=0, dim=dim, layers=1, heads=heads, kv_heads=heads, ffn_dim=0)
        self.attention = Attention(shape, attend=plain_ring)
        for name, parameter in self.attention.named_parameters():
            parameter.data = uniform(f"{NAME}.{name}", parameter.shape, dim**-0.5).to(dtype)
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.x, *self.rope = (
            whole.chunk(ranks, dim=-2)[rank]
            for whole in (uniform("x", (1, tokens, dim), 1.0).to(dtype), *rope_table(shape, tokens))
        )

    def run(self) -> tuple[Tensor, Tensor]:
        """Returns the output and the gradient of x."""
        x = self.x.detach().requires_grad_()
        self.attention.zero_grad()
        y = self.attention(x, *self.rope)
        y.backward(y.detach())
        return y.detach(), x.grad


@functools.lru_cache(maxsize=1)
def layer_of(tokens: str, heads: str, dtype: str) -> Layer:
    return Layer(int(tokens), int(heads), DTYPES[dtype])


def run(request: dict[str, str]) -> Reply:
    layer = layer_of(**request)
    dist.barrier()
    start = time.perf_counter()
    layer.run()
    return {"seconds": [time.perf_counter() - start]}


def check(request: dict[str, str]) -> Reply:
    """The checksums of the whole sequence, on every rank for its part: zeros elsewhere."""
    reply: Reply = {}
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for name, part in zip(("y", "dx"), layer_of(**request).run(), strict=True):
        whole = torch.zeros(ranks, part.numel())
        whole[rank] = part.flatten()
        reply |= checksums(name, whole)
    return reply


if __name__ == "__main__":
    torch.set_num_threads(1)
    store = dist.FileStore(os.environ["INIT_FILE"], int(os.environ["WORLD_SIZE"]))
    dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    serve(dist.get_rank(), {"run": run, "check": check})
