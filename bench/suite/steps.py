"""Section `steps`: a training step on one node against PyTorch's. Also how a step is asked for, on any hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from suite import launch
from suite.contestants import Contestant, ContestantError, Reply
from suite.progress import say
from suite.rounds import Way, in_turns
from suite.rows import Goal, Row
from suite.setting import Absent, Setting, start

SHORT, LONG = 128, 1024  # Tokens a rank.
STEPS = {SHORT: 3, LONG: 2}  # Measured in a round, after one that is not.
ROUNDS = {SHORT: 6, LONG: 4}
LOSS_TOLERANCE = 1e-4
PYTORCH = {"fused": 1, "compiled": 0}
COMPILED = {"fused": 1, "compiled": 1}

# What weft can be told, by the name of the way.
DEFAULTS = {"zero_copy": 1, "node_shared": 1, "sharded_optimizer": 0, "wire_compression": 1}
WEFT = {
    "weft": DEFAULTS,
    "weft, node-shared off": {**DEFAULTS, "node_shared": 0},
    "weft, zero copy off": {**DEFAULTS, "zero_copy": 0},
}
SHARDED_OPTIMIZER = {**DEFAULTS, "sharded_optimizer": 1}
PREFETCH_ONE = {**DEFAULTS, "prefetch_depth": 1}


@dataclass(frozen=True)
class Mesh:
    replicate: int
    shard: int

    @property
    def ranks(self) -> int:
        return self.replicate * self.shard

    def __str__(self) -> str:
        if self.replicate == 1:
            return f"FSDP on {self.shard}"
        return f"DDP on {self.replicate}" if self.shard == 1 else f"HSDP {self.replicate} x {self.shard}"


# Mesh, tokens a rank, and the goal against PyTorch.
CASES = [
    (Mesh(1, 1), SHORT, None),
    (Mesh(1, 2), SHORT, 3.3),
    (Mesh(1, 2), LONG, 1.5),
    (Mesh(2, 1), SHORT, 2.3),
    (Mesh(1, 4), SHORT, 3.3),
    (Mesh(2, 2), SHORT, 3.3),
]


def request_of(mesh: Mesh, length: int) -> dict[str, int]:
    return {"replicate": mesh.replicate, "shard": mesh.shard, "length": length}


def step_way(name: str, contestant: Contestant | Absent, mesh: Mesh, length: int, steps: int, **arguments: object) -> Way:
    request = {**request_of(mesh, length), **arguments, "steps": steps}
    return Way(name, lambda: contestant.seconds("train", **request))


def measure(setting: Setting) -> Iterator[Row]:
    for ranks in (1, 2, 4):
        with ExitStack() as stack:
            weft = start(stack, "weft", ranks, launch.open_mpi(setting.program("training_step"), ranks))
            torch_maker = launch.gloo(setting.peers.python, "training_step.py", ranks)
            torch = start(stack, "PyTorch", ranks, setting.peer("PyTorch", torch_maker))
            for mesh, length, least in CASES:
                if mesh.ranks != ranks or (setting.quick and length == LONG):
                    continue
                what = f"step, {mesh}, {length} tokens a rank"
                say(f"  {what}")
                measured = in_turns(ways_of(weft, torch, mesh, length), setting.rounds(ROUNDS[length]), scale=1e3)
                goals = [Goal(("PyTorch",), least, "times PyTorch")] if least else []
                yield Row(what, "ms", "weft", measured.rounds, measured.missing, goals)


def ways_of(weft: Contestant | Absent, torch: Contestant | Absent, mesh: Mesh, length: int) -> list[Way]:
    def way(name: str, contestant: Contestant | Absent, how: dict[str, int]) -> Way:
        return step_way(name, contestant, mesh, length, STEPS[length], **how)

    ways = [way(name, weft, how) for name, how in WEFT.items() if length == SHORT or how == DEFAULTS]
    ways.append(way("PyTorch", checked(weft, torch, mesh, length), PYTORCH))
    if mesh.replicate > 1:
        ways.append(way("weft, optimizer over replicas", weft, SHARDED_OPTIMIZER))
    if mesh == Mesh(1, 2):  # Not for all, as compiling takes its time. By blocks, before they are sharded.
        ways.append(way("PyTorch, torch.compile", torch, COMPILED))
    return ways


def compute_the_same(weft: Contestant | Absent, torch: Contestant | Absent, mesh: Mesh, length: int) -> bool:
    """Both from the same weights and tokens, so the first request of a case says whether their losses agree."""
    request = {**request_of(mesh, length), "steps": 3}
    ours = mean_losses(weft.request("train", **request, **WEFT["weft"]))
    theirs = mean_losses(torch.request("train", **request, **PYTORCH))
    return all(abs(a - b) <= LOSS_TOLERANCE * abs(b) for a, b in zip(ours, theirs, strict=True))


def mean_losses(replies: list[Reply]) -> list[float]:
    """Over ranks, of each step."""
    return [sum(losses) / len(losses) for losses in zip(*(reply["losses"] for reply in replies), strict=True)]


def checked(weft: Contestant | Absent, torch: Contestant | Absent, mesh: Mesh, length: int) -> Contestant | Absent:
    """PyTorch, unless it does not compute the same."""
    try:
        same = compute_the_same(weft, torch, mesh, length)
    except ContestantError as error:
        return Absent(str(error))
    return torch if same else Absent("PyTorch's losses are not weft's: the comparison would mean nothing")
