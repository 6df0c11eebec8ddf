"""Section `kernels`: matrix products of linear layers, and causal attention, against PyTorch's, on one thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from suite import launch
from suite.checksums import checked
from suite.progress import log
from suite.rounds import Measurements, Variant, measure_interleaved
from suite.rows import Goal, Row, speedup_over
from suite.setting import Peer, Setting, start
from suite.statistics import geometric_mean

PYTORCH = "PyTorch"
TOKENS = 1024
# Input and output features of the projections of the model of 110 M parameters: of attention; gate and up; down.
PROJECTIONS = [(768, 768), (768, 2048), (2048, 768)]
LINEAR_PASSES = ("forward", "input_gradient", "weight_gradient")
LINEAR_GOALS = {"bf16": 1.0, "f32": None}  # PyTorch's time / weft's, at least.
SEQUENCE, HEADS = 4096, 4
HEAD_DIMS = (64, 128)
ATTENTION_PASSES = ("forward", "backward")
ATTENTION_GOALS = {"bf16": 1.5, "f32": None}
ROUNDS = 5
LINEAR_REPEATS, ATTENTION_REPEATS = 3, 1  # After one run that is not timed.


def measure(setting: Setting) -> Iterator[Row]:
    with ExitStack() as stack:
        weft = start(stack, "weft", 1, launch.one_process(str(setting.program("kernels"))))
        script = launch.one_process(str(setting.peers.python), str(launch.PEERS / "kernels.py"))
        torch = start(stack, PYTORCH, 1, setting.peer(PYTORCH, script))
        for dtype in LINEAR_GOALS:
            yield from measure_linear(setting, weft, torch, dtype)
        for dtype in ATTENTION_GOALS:
            yield from measure_attention(setting, weft, torch, dtype)


def measure_linear(setting: Setting, weft: Peer, torch: Peer, dtype: str) -> Iterator[Row]:
    rows = []
    for inputs, outputs in PROJECTIONS:
        for step in LINEAR_PASSES:
            what = f"product, {dtype}, {TOKENS} tokens, {inputs} to {outputs} features, {step.replace('_', ' ')}"
            request = {"kernel": "linear", "dtype": dtype, "pass": step, "tokens": TOKENS, "in": inputs, "out": outputs}
            measured = measure_kernel(setting, weft, torch, what, request, LINEAR_REPEATS)
            rows.append(Row(what, "ms", "weft", measured.rounds, measured.missing))
    yield from rows
    mean = mean_of_rows(rows)
    yield Row(f"products, {dtype}, geometric mean", "ms", "weft", mean.rounds, mean.missing, goals_of(LINEAR_GOALS[dtype]))


def measure_attention(setting: Setting, weft: Peer, torch: Peer, dtype: str) -> Iterator[Row]:
    for head_dim in HEAD_DIMS[:1] if setting.quick else HEAD_DIMS:
        for step in ATTENTION_PASSES:
            what = f"causal attention, {dtype}, {SEQUENCE} tokens, {HEADS} heads of {head_dim}, {step}"
            sizes = {"tokens": SEQUENCE, "heads": HEADS, "head_dim": head_dim}
            request = {"kernel": "attention", "dtype": dtype, "pass": step, **sizes}
            measured = measure_kernel(setting, weft, torch, what, request, ATTENTION_REPEATS)
            yield Row(what, "ms", "weft", measured.rounds, measured.missing, goals_of(ATTENTION_GOALS[dtype]))


def goals_of(at_least: float | None) -> list[Goal]:
    return [Goal((PYTORCH,), at_least, speedup_over(PYTORCH))] if at_least else []


def measure_kernel(
    setting: Setting, weft: Peer, torch: Peer, what: str, request: dict[str, object], repeats: int
) -> Measurements:
    log(f"  {what}")
    contestants = {"weft": checked(weft, torch, request), PYTORCH: torch}
    variants = [
        Variant(name, lambda contestant=contestant: contestant.seconds("run", **request, repeats=repeats))
        for name, contestant in contestants.items()
    ]
    return measure_interleaved(variants, setting.rounds(ROUNDS), scale=1e3)


def mean_of_rows(rows: Sequence[Row]) -> Measurements:
    """Each round's geometric mean over the rows. A variant that one row misses is missing, with the reason."""
    result = Measurements({}, {})
    for row in rows:
        result.missing.update(row.missing)
    for variant in rows[0].rounds:
        if variant not in result.missing:
            by_round = zip(*(row.rounds[variant] for row in rows), strict=True)
            result.rounds[variant] = [geometric_mean(values) for values in by_round]
    return result
