#!/usr/bin/env python3
"""Measures weft.torch.context_parallel against one rank with as many cores, and against a plainly written ring
attention.

    bench/torch_context.py                                  2 ranks over gloo, 8,192 and 16,384 tokens
    bench/torch_context.py --backend weft --ranks 4 --tokens 8192

One causal attention, forward and backward, f32. A round runs every contestant once, in an order that changes with the
round. All ranks have one thread; `one rank` has as many threads as there are ranks. The time of a contestant is that
of its slowest rank. The table has the median over rounds, its quartiles, and the ratio of medians to `one rank`.
Every contestant's output and gradients are compared with those of one rank: the output to 1e-4, a gradient to 1e-4 of its
largest element.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))

ONE_RANK, PLAIN_RING = "one rank", "plain ring, gloo"
SCHEMES = {
    "ulysses": {"scheme": "ulysses"},
    "gather, head-tail": {"scheme": "gather"},
    "ring by shift, head-tail": {"scheme": "ring"},
    "ring by gather, head-tail": {"scheme": "ring", "ring_rotate": "all-gather"},
    "ring by shift, contiguous": {"scheme": "ring", "load_balance": "none"},
}
DEADLINE_S = 600


@dataclass(frozen=True)
class Setting:
    ranks: int
    backend: str
    heads: int
    kv_heads: int
    head_dim: int


class Contestants:
    """The contestants on one rank."""

    def __init__(self, rank: int, setting: Setting, store_path: str) -> None:
        import torch
        import torch.distributed as dist

        if setting.backend == "weft":
            import weft.torch  # noqa: F401  (registers the backend)
        self._rank, self._setting = rank, setting
        torch.set_num_threads(1)
        store = dist.FileStore(store_path, setting.ranks)
        timeout = timedelta(seconds=DEADLINE_S)
        dist.init_process_group(setting.backend, store=store, rank=rank, world_size=setting.ranks, timeout=timeout)
        self._mesh = dist.device_mesh.init_device_mesh("cpu", (setting.ranks,))
        self._gloo = dist.new_group(backend="gloo")

    def inputs(self, tokens: int):
        """q, k, v and the gradient of the output."""
        import torch

        generator = torch.Generator().manual_seed(0)
        heads = (self._setting.heads, self._setting.kv_heads, self._setting.kv_heads, self._setting.heads)
        shapes = [(1, count, tokens, self._setting.head_dim) for count in heads]
        return [torch.randn(shape, generator=generator) for shape in shapes]

    def run(self, name: str, tokens: int):
        """Seconds and CPU seconds of this rank; the output and the gradients of q, k and v, of the whole sequence in its order."""
        if name == ONE_RANK:
            return self._run_one(tokens)
        return self._run_plain(tokens) if name == PLAIN_RING else self._run_scheme(SCHEMES[name], tokens)

    def _time(self, attend: Callable, inputs, grad_out):
        for tensor in inputs:
            tensor.requires_grad_()
        start, start_cpu = time.perf_counter(), time.process_time()
        out = attend(*inputs)
        out.backward(grad_out)
        seconds = time.perf_counter() - start, time.process_time() - start_cpu
        return seconds, [out.detach(), *(tensor.grad for tensor in inputs)]

    def _run_one(self, tokens: int):
        import torch
        import torch.nn.functional as F

        torch.set_num_threads(self._setting.ranks)
        *inputs, grad_out = self.inputs(tokens)

        def attend(query, key, value):
            return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

        (seconds, _), results = self._time(attend, inputs, grad_out)
        torch.set_num_threads(1)
        (_, cpu_seconds), _ = self._time(attend, [tensor.detach() for tensor in inputs], grad_out)
        return (seconds, cpu_seconds / self._setting.ranks), results

    def _run_plain(self, tokens: int):
        import torch
        import torch.distributed as dist
        from plain_ring import plain_ring

        parts = [tensor.chunk(self._setting.ranks, dim=2)[self._rank].contiguous() for tensor in self.inputs(tokens)]
        dist.barrier(group=self._gloo)
        seconds, results = self._time(lambda q, k, v: plain_ring(q, k, v, self._gloo), parts[:3], parts[3])
        wholes = []
        for result in results:
            gathered = [torch.empty(result.shape) for _ in range(self._setting.ranks)]
            dist.all_gather(gathered, result.contiguous(), group=self._gloo)
            wholes.append(torch.cat(gathered, dim=2))
        return seconds, wholes

    def _run_scheme(self, options: dict, tokens: int):
        import torch.distributed as dist
        import torch.nn.functional as F
        from weft.torch.context_parallel import context_parallel, context_parallel_unshard

        buffers = self.inputs(tokens)
        with context_parallel(
            self._mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers=set(buffers), **options
        ):
            dist.barrier(group=self._gloo)
            seconds, results = self._time(
                lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
                buffers[:3],
                buffers[3],
            )
            results = context_parallel_unshard(self._mesh, results, [2] * 4)
        return seconds, results


def largest_error(results: list, expected: list) -> float:
    """The largest difference of the output, or of a gradient relative to its largest element. NaN if one is."""
    import torch

    differences = [(result - right).abs().max().item() for result, right in zip(results, expected, strict=True)]
    scales = [1.0, *(right.abs().max().item() for right in expected[1:])]
    return torch.tensor([difference / scale for difference, scale in zip(differences, scales, strict=True)]).max().item()


def serve(rank: int, setting: Setting, store_path: str, connection) -> None:
    contestants = Contestants(rank, setting, store_path)
    expected: dict[int, list] = {}
    connection.send(None)
    while (request := connection.recv()) is not None:
        name, tokens = request
        seconds, results = contestants.run(name, tokens)
        if name == ONE_RANK:
            expected[tokens] = results
        error = largest_error(results, expected[tokens]) if tokens in expected else 0.0
        connection.send((seconds, error))


def receive(connection, process):
    if not connection.poll(DEADLINE_S):
        raise SystemExit(f"a rank gave no result within {DEADLINE_S} s")
    try:
        return connection.recv()
    except EOFError:
        raise SystemExit(f"a rank ended with exit code {process.exitcode}") from None


Times = dict[tuple[str, int], list[tuple[float, float]]]


def measure(setting: Setting, lengths: list[int], rounds: int) -> Times:
    """Seconds and CPU seconds by contestant and number of tokens; the first round is a warm-up and not listed."""
    context = multiprocessing.get_context("spawn")
    names = [ONE_RANK, PLAIN_RING, *SCHEMES]
    times: Times = {(name, tokens): [] for tokens in lengths for name in names}
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(setting.ranks):
            here, there = context.Pipe()
            store = os.path.join(folder, "store")
            process = context.Process(target=serve, args=(rank, setting, store, there), daemon=True)
            process.start()
            there.close()
            ranks.append((here, process))
        for connection, process in ranks:
            receive(connection, process)
        for tokens in lengths:
            for turn in range(rounds + 1):
                order = names if turn == 0 else names[turn % len(names) :] + names[: turn % len(names)]
                for name in order:
                    # The other ranks sleep in recv while one rank computes alone.
                    running = ranks[:1] if name == ONE_RANK else ranks
                    for connection, _ in running:
                        connection.send((name, tokens))
                    results = [receive(connection, process) for connection, process in running]
                    errors = [error for _, error in results]
                    if not all(error <= 1e-4 for error in errors):  # NaN is an error too.
                        raise SystemExit(f"{name} differs from one rank, on its ranks by {errors}")
                    if turn:
                        times[name, tokens].append(
                            tuple(max(values) for values in zip(*(result[0] for result in results), strict=True))
                        )
        for connection, process in ranks:
            connection.send(None)
            process.join(30)
    return times


def cells(values: list[float], one: list[float], plain: list[float]) -> str:
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    ratios = [statistics.median(other) / median for other in (one, plain)]
    return f"{median * 1e3:.0f} ({low * 1e3:.0f} to {high * 1e3:.0f}) | {ratios[0]:.2f} | {ratios[1]:.2f}"


def print_table(times: Times, lengths: list[int]) -> None:
    ratios = "one rank / it | plain ring / it"
    print(f"| tokens | attention | ms (quartiles) | {ratios} | CPU ms (quartiles) | {ratios} |")
    print("|---|---|---|---|---|---|---|---|")
    for tokens in lengths:
        for name in (ONE_RANK, PLAIN_RING, *SCHEMES):
            columns = [
                [[pair[index] for pair in times[contestant, tokens]] for contestant in (name, ONE_RANK, PLAIN_RING)]
                for index in (0, 1)
            ]
            print(f"| {tokens} | {name} | {cells(*columns[0])} | {cells(*columns[1])} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--backend", choices=("gloo", "weft"), default="gloo")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 16384])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=64)
    options = parser.parse_args()
    setting = Setting(options.ranks, options.backend, options.heads, options.kv_heads, options.head_dim)
    print(f"{setting}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    print_table(measure(setting, options.tokens, options.rounds), options.tokens)


if __name__ == "__main__":
    main()
