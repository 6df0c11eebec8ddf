"""Section `steps`: a training step on one node against PyTorch's. Also the requests for a step, on any hosts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from suite import launch
from suite.contestants import Contestant, ContestantError, Reply
from suite.progress import log
from suite.rounds import Variant, measure_interleaved
from suite.rows import Goal, Row, speedup_over
from suite.setting import MissingContestant, Setting, start

SHORT, LONG = 128, 1024  # Tokens per rank.
STEPS = {SHORT: 3, LONG: 2}  # Timed steps per round, after one that is not timed.
ROUNDS = {SHORT: 6, LONG: 4}
LOSS_TOLERANCE = 1e-4
PYTORCH = {"fused": 1, "compiled": 0}
COMPILED = {"fused": 1, "compiled": 1}

# Options of a step of weft, by the name of the variant.
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


# Mesh, tokens per rank, and the goal: PyTorch's time / weft's, at least.
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


def step_variant(
    name: str, contestant: Contestant | MissingContestant, mesh: Mesh, length: int, steps: int, **arguments: object
) -> Variant:
    request = {**request_of(mesh, length), **arguments, "steps": steps}
    return Variant(name, lambda: contestant.seconds("train", **request))


def measure(setting: Setting) -> Iterator[Row]:
    for ranks in (1, 2, 4):
        with ExitStack() as stack:
            weft = start(stack, "weft", ranks, launch.open_mpi(setting.program("training_step"), ranks))
            torch_maker = launch.c10d(setting.peers.python, "training_step.py", ranks)
            torch = start(stack, "PyTorch", ranks, setting.peer("PyTorch", torch_maker))
            for mesh, length, at_least in CASES:
                if mesh.ranks != ranks or (setting.quick and length == LONG):
                    continue
                what = f"step, {mesh}, {length} tokens a rank"
                log(f"  {what}")
                variants = variants_of(weft, torch, mesh, length)
                measured = measure_interleaved(variants, setting.rounds(ROUNDS[length]), scale=1e3)
                goals = [Goal(("PyTorch",), at_least, speedup_over("PyTorch"))] if at_least else []
                yield Row(what, "ms", "weft", measured.rounds, measured.missing, goals)


def variants_of(
    weft: Contestant | MissingContestant, torch: Contestant | MissingContestant, mesh: Mesh, length: int
) -> list[Variant]:
    def variant(name: str, contestant: Contestant | MissingContestant, options: dict[str, int]) -> Variant:
        return step_variant(name, contestant, mesh, length, STEPS[length], **options)

    variants = [variant(name, weft, options) for name, options in WEFT.items() if length == SHORT or options == DEFAULTS]
    variants.append(variant("PyTorch", checked(weft, torch, mesh, length), PYTORCH))
    if mesh.replicate > 1:
        variants.append(variant("weft, optimizer over replicas", weft, SHARDED_OPTIMIZER))
    if mesh == Mesh(1, 2):  # For one mesh only, because compiling takes long. Blocks are compiled before they are sharded.
        variants.append(variant("PyTorch, torch.compile", torch, COMPILED))
    return variants


def losses_agree(
    weft: Contestant | MissingContestant, torch: Contestant | MissingContestant, mesh: Mesh, length: int
) -> bool:
    """Compares the losses of the first steps.

    REQUIRES: neither has had a request of this case. Both then start from the same weights and tokens.
    """
    request = {**request_of(mesh, length), "steps": 3}
    ours = mean_losses(weft.request("train", **request, **WEFT["weft"]))
    theirs = mean_losses(torch.request("train", **request, **PYTORCH))
    return all(abs(a - b) <= LOSS_TOLERANCE * abs(b) for a, b in zip(ours, theirs, strict=True))


def mean_losses(replies: list[Reply]) -> list[float]:
    """The mean over ranks, for each step."""
    return [sum(losses) / len(losses) for losses in zip(*(reply["losses"] for reply in replies), strict=True)]


def checked(
    weft: Contestant | MissingContestant, torch: Contestant | MissingContestant, mesh: Mesh, length: int
) -> Contestant | MissingContestant:
    """`torch` if its losses agree with weft's, otherwise a replacement that fails with the reason."""
    try:
        agree = losses_agree(weft, torch, mesh, length)
    except ContestantError as error:
        return MissingContestant(str(error))
    return torch if agree else MissingContestant("PyTorch's losses differ from weft's, so their times cannot be compared")
