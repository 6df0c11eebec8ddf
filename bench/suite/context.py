"""Section `context`: self-attention over a sequence that is split over ranks, against one rank, and against ring attention in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from suite import launch
from suite.checksums import checked
from suite.progress import log
from suite.rounds import Variant, measure_interleaved
from suite.rows import Goal, Row, speedup_over
from suite.setting import Setting, start

RANKS = 4
TOKENS = 32768
QUICK_TOKENS = 8192
HEADS = 2
ROUNDS = {"f32": 2, "bf16": 3}  # A round in f32 takes 20 s on two cores.
ALONE = "weft, one rank with the same cores"
RING = "PyTorch, plain ring over gloo"
GOALS = [Goal((ALONE,), 0.95, "one rank's time / weft's"), Goal((RING,), 2, speedup_over("a plain ring in PyTorch"))]


def measure(setting: Setting) -> Iterator[Row]:
    tokens = QUICK_TOKENS if setting.quick else TOKENS
    with ExitStack() as stack:
        weft = start(stack, "weft", RANKS, launch.open_mpi(setting.program("context"), RANKS))
        ring_maker = launch.c10d(setting.peers.python, "context.py", RANKS)
        ring = start(stack, RING, RANKS, setting.peer("PyTorch", ring_maker))
        for dtype, rounds in ROUNDS.items():
            what = f"context parallelism, {RANKS} ranks, {tokens} tokens, {HEADS} heads, causal, {dtype}"
            log(f"  {what}")
            request = {"tokens": tokens, "heads": HEADS, "dtype": dtype}
            split = checked(weft, ring, request)
            variants = [
                Variant("weft", lambda: split.seconds("run", **request, variant="split")),
                Variant(ALONE, lambda: weft.seconds("run", **request, variant="alone")),
                Variant(RING, lambda: ring.seconds("run", **request)),
            ]
            measured = measure_interleaved(variants, setting.rounds(rounds), scale=1e3)
            yield Row(what, "ms", "weft", measured.rounds, measured.missing, GOALS)
