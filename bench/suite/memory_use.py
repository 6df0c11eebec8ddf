"""Section `memory`: the peak memory of a training step, summed over all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from suite import launch, proportional_set
from suite.contestants import CommandMaker, ContestantError
from suite.progress import log
from suite.rows import Goal, Row
from suite.setting import Setting, start
from suite.steps import PYTORCH, WEFT, Mesh, request_of

LENGTH = 128
RETURN_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "1000000"}  # Larger blocks return to the system when freed.
# Endings of PyTorch's variants, and malloc's settings; None: those of all contestants. Goals use the first two.
MALLOC_SETTINGS = {"": None, ", malloc's defaults": {}, ", 1 MB and more given back at once": RETURN_FREED_MEMORY}
TORCH = "PyTorch"


def measure(setting: Setting) -> Iterator[Row]:
    for ranks, at_least in ((2, 1 / 0.4), (4, 1 / 0.3)):
        what = f"peak memory of a step, FSDP on {ranks}, {LENGTH} tokens a rank"
        log(f"  {what}")
        rounds: dict[str, list[float]] = {}
        missing: dict[str, str] = {}
        for name, make, options in contestants(setting, ranks):
            try:
                peak = peak_of(name, ranks, make, options)
            except ContestantError as error:
                missing[name] = str(error)
                continue
            rounds[name] = [peak.total / 1e6]
            rounds[f"{name}: without programs and libraries"] = [peak.data / 1e6]
        goal = Goal(usual_settings(TORCH), at_least, f"PyTorch's peak / weft's (weft takes at most {1 / at_least:.1f})")
        yield Row(what, "MB", "weft", rounds, missing, [goal])


def contestants(setting: Setting, ranks: int) -> list[tuple[str, CommandMaker | str, dict[str, int]]]:
    program = launch.open_mpi(setting.program("training_step"), ranks)
    listed: list[tuple[str, CommandMaker | str, dict[str, int]]] = [(name, program, options) for name, options in WEFT.items()]
    for ending, environment in MALLOC_SETTINGS.items():
        make = launch.c10d(setting.peers.python, "training_step.py", ranks, environment)
        listed.append((TORCH + ending, setting.peer("PyTorch", make), PYTORCH))
    return listed


def usual_settings(name: str) -> tuple[str, ...]:
    """The variants of `name` that goals use."""
    return tuple(name + ending for ending in list(MALLOC_SETTINGS)[:2])


def peak_of(name: str, ranks: int, make: CommandMaker | str, options: dict[str, int]) -> proportional_set.ProportionalSet:
    with ExitStack() as stack:
        contestant = start(stack, name, ranks, make)
        request = {**request_of(Mesh(1, ranks), LENGTH), **options, "steps": 1}
        contestant.request("train", **request)  # Warm-up: allocations of the first request.
        return proportional_set.peak_during(contestant.pids, lambda: contestant.request("train", **request))
