"""PyTorch's linear layers and causal attention, on one thread, for bench/run.py. bench/kernels.cc is the contestant of weft.

    WEFT_BENCH_SOCKET=... python kernels.py
"""

import functools
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from contestant import Reply, serve
from formula import checksums, uniform

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}

Kernel = Callable[[], dict[str, Tensor]]  # Returns the results by name.


def linear(dtype: torch.dtype, step: str, tokens: int, inputs: int, outputs: int) -> Kernel:
    x, weight, dy = (
        uniform(name, shape, 1.0).to(dtype)
        for name, shape in (("x", (tokens, inputs)), ("weight", (outputs, inputs)), ("dy", (tokens, outputs)))
    )
    if step == "forward":
        return lambda: {"result": F.linear(x, weight)}
    wanted = (x if step == "input_gradient" else weight).requires_grad_()
    y = F.linear(x, weight)
    return lambda: {"result": torch.autograd.grad(y, wanted, dy, retain_graph=True)[0]}


def attention(dtype: torch.dtype, step: str, tokens: int, heads: int, head_dim: int) -> Kernel:
    """Inputs are contiguous as [1, heads, tokens, head_dim]; results are [1, tokens, heads, head_dim], as weft's."""

    def filled(name: str) -> Tensor:
        return uniform(name, (1, tokens, heads, head_dim), 1.0).to(dtype).transpose(1, 2).contiguous()

    inputs, dout = [filled(name) for name in ("q", "k", "v")], filled("dout")
    if step == "forward":
        return lambda: {"out": F.scaled_dot_product_attention(*inputs, is_causal=True).transpose(1, 2)}
    out = F.scaled_dot_product_attention(*(tensor.requires_grad_() for tensor in inputs), is_causal=True)

    def backward() -> dict[str, Tensor]:
        gradients = torch.autograd.grad(out, inputs, dout, retain_graph=True)
        return {name: gradient.transpose(1, 2) for name, gradient in zip(("dq", "dk", "dv"), gradients, strict=True)}

    return backward


@functools.lru_cache(maxsize=1)
def kernel_of(**request: str) -> Kernel:
    sizes = {"linear": ("tokens", "in", "out"), "attention": ("tokens", "heads", "head_dim")}[request["kernel"]]
    make = {"linear": linear, "attention": attention}[request["kernel"]]
    return make(DTYPES[request["dtype"]], request["pass"], *(int(request[size]) for size in sizes))


def run(request: dict[str, str]) -> Reply:
    repeats = int(request.pop("repeats"))
    kernel = kernel_of(**request)
    kernel()  # Not timed, because other contestants have used the caches.
    return {"seconds": [seconds_of(kernel) for _ in range(repeats)]}


def seconds_of(kernel: Kernel) -> float:
    start = time.perf_counter()
    kernel()
    return time.perf_counter() - start


def check(request: dict[str, str]) -> Reply:
    reply: Reply = {}
    for name, result in kernel_of(**request)().items():
        reply |= checksums(name, result)
    return reply


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(0, {"run": run, "check": check})
