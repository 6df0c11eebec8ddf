#!/usr/bin/env python3
"""Compares weft's attention kernel with torch's scaled_dot_product_attention, each on one thread.

    attention.py [--program build/release/bench/weft_bench_attention] [--tokens 128 512 4096] [--repeats 7]

Causal, f32, 4 heads of 64. The two are measured alternately, so that disturbances affect both. Each line has the medians
in GFLOP/s and the median of the repeats' ratios. GFLOP/s count the work that causal attention needs: half of the score
matrix. The goal is 0.95 forward and 0.9 backward at 4096 tokens. Exits with 77 if torch is missing.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HEADS = 4
HEAD_DIM = 64
PRODUCTS = {"Forward": 2, "Backward": 5}  # Matrix products over the score matrix.


def import_torch():
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        import torch
    except ImportError:
        print("attention.py: torch is not installed; run `pip install torch`, or use a Python that has it")
        sys.exit(77)
    torch.set_num_threads(1)
    return torch


def flops(which, tokens):
    return PRODUCTS[which] * tokens * tokens * HEAD_DIM * HEADS


class Torch:
    """One attention problem in torch, and the timing of its passes."""

    def __init__(self, torch, tokens):
        self.torch = torch
        q, k, v, self.dout = (torch.randn(1, HEADS, tokens, HEAD_DIM) for _ in range(4))
        self.inputs = [t.requires_grad_() for t in (q, k, v)]
        self.out = self.attention()

    def attention(self):
        return self.torch.nn.functional.scaled_dot_product_attention(*self.inputs, is_causal=True)

    def run(self, which):
        if which == "Forward":
            self.attention()
        else:
            self.torch.autograd.grad(self.out, self.inputs, self.dout, retain_graph=True)

    def gflops(self, which, tokens, seconds=0.3):
        self.run(which)
        times = []
        end = time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            self.run(which)
            times.append(time.perf_counter() - start)
        return flops(which, tokens) / statistics.median(times) * 1e-9


def weft_gflops(program, which, tokens):
    output = subprocess.run(
        [program, f"--benchmark_filter=^{which}/{tokens}/", "--benchmark_format=json", "--benchmark_min_time=0.2"],
        capture_output=True, text=True, check=True).stdout
    return json.loads(output)["benchmarks"][0]["weft_gflops"]


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(root / "build/release/bench/weft_bench_attention"))
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512, 4096])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    if not pathlib.Path(arguments.program).exists():
        parser.error(f"{arguments.program} is missing: build the target weft_bench_attention, or pass --program")
    torch = import_torch()
    print(f"{'':9} {'tokens':>6} {'weft':>8} {'torch':>8}  GFLOP/s   weft/torch")
    for tokens in arguments.tokens:
        peer = Torch(torch, tokens)
        for which in PRODUCTS:
            pairs = [(weft_gflops(arguments.program, which, tokens), peer.gflops(which, tokens))
                     for _ in range(arguments.repeats)]
            weft, torch_gflops = (statistics.median(column) for column in zip(*pairs))
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"{which:9} {tokens:6} {weft:8.1f} {torch_gflops:8.1f} {'':10} {ratio:10.2f}", flush=True)


if __name__ == "__main__":
    main()
