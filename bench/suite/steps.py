"""Section `steps`: a training step on one node against PyTorch's. Also the requests for a step, on any hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from suite import launch
from suite.contestants import ContestantError, Reply
from suite.progress import log
from suite.rounds import Variant, measure_interleaved
from suite.rows import Goal, Row, speedup_over
from suite.setting import MissingContestant, Peer, Setting, start

SHORT, LONG = 128, 1024  # Tokens per rank.
SMALL, LARGE = "29M", "110M"  # Names of models in bench/step_model.h, by their parameters.
STEPS = {SHORT: 3, LONG: 2}  # Timed steps per round, after one that is not timed. The large model takes long: it has one.
ROUNDS = {SHORT: 6, LONG: 4}
ROUNDS_OF_LARGE = 3
# Largest relative differences of losses. Over the first four losses of both models, those of each side in bf16 differ by up to 1.5e-4
# from the ones in f32, and by up to 1e-4 from each other's. In f32 the sides differ by 2e-7.
LOSS_TOLERANCE = {"f32": 1e-4, "bf16": 5e-4}
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


@dataclass(frozen=True)
class Case:
    """A step: `length` tokens per rank, and the dtype of compute. Gradients are reduced in f32."""

    mesh: Mesh
    length: int
    at_least: float | None = None  # The goal: PyTorch's time / weft's.
    dtype: str = "f32"
    model: str = SMALL

    @property
    def steps(self) -> int:
        return STEPS[self.length] if self.model == SMALL else 1

    @property
    def rounds(self) -> int:
        return ROUNDS[self.length] if self.model == SMALL else ROUNDS_OF_LARGE

    @property
    def checked_steps(self) -> int:
        return 3 if self.model == SMALL else 1

    @property
    def is_quick(self) -> bool:
        return self.length == SHORT

    def request(self) -> dict[str, object]:
        return request_of(self.mesh, self.length, self.dtype, self.model)

    def __str__(self) -> str:
        size = "" if self.model == SMALL else f", {self.model} parameters"
        dtype = "" if self.dtype == "f32" else f", {self.dtype}"
        return f"step, {self.mesh}{dtype}{size}, {self.length} tokens a rank"


# The goals of bf16 and of the large model were set for a processor with AMX.
CASES = [
    Case(Mesh(1, 1), SHORT),
    Case(Mesh(1, 2), SHORT, 3.3),
    Case(Mesh(1, 2), LONG, 1.7),
    Case(Mesh(1, 2), LONG, 1.65, model=LARGE),
    Case(Mesh(1, 2), SHORT, 6, "bf16"),
    Case(Mesh(1, 2), LONG, 4, "bf16"),
    Case(Mesh(1, 2), LONG, 4, "bf16", LARGE),
    Case(Mesh(2, 1), SHORT, 2.3),
    Case(Mesh(1, 4), SHORT, 3.3),
    Case(Mesh(2, 2), SHORT, 3.3),
]


def request_of(mesh: Mesh, length: int, dtype: str = "f32", model: str = SMALL) -> dict[str, object]:
    return {"replicate": mesh.replicate, "shard": mesh.shard, "length": length, "dtype": dtype, "model": model}


def step_variant(name: str, contestant: Peer, request: dict[str, object], steps: int, **arguments: object) -> Variant:
    return Variant(name, lambda: contestant.seconds("train", **request, **arguments, steps=steps))


def measure(setting: Setting) -> Iterator[Row]:
    for ranks in (1, 2, 4):
        with ExitStack() as stack:
            weft = start(stack, "weft", ranks, launch.open_mpi(setting.program("training_step"), ranks))
            torch_maker = launch.c10d(setting.peers.python, "training_step.py", ranks)
            torch = start(stack, "PyTorch", ranks, setting.peer("PyTorch", torch_maker))
            for case in CASES:
                if case.mesh.ranks != ranks or (setting.quick and not case.is_quick):
                    continue
                log(f"  {case}")
                measured = measure_interleaved(variants_of(weft, torch, case), setting.rounds(case.rounds), scale=1e3)
                goals = [Goal(("PyTorch",), case.at_least, speedup_over("PyTorch"))] if case.at_least else []
                yield Row(str(case), "ms", "weft", measured.rounds, measured.missing, goals)


def variants_of(weft: Peer, torch: Peer, case: Case) -> list[Variant]:
    def variant(name: str, contestant: Peer, options: dict[str, int]) -> Variant:
        return step_variant(name, contestant, case.request(), case.steps, **options)

    variants = [variant(name, weft, options) for name, options in WEFT.items() if case.length == SHORT or options == DEFAULTS]
    # Compiled for some cases only, because that takes long. Blocks are compiled before they are sharded.
    compiles = case.mesh == Mesh(1, 2) and case.dtype == "f32" and case.model == SMALL
    options = {"PyTorch": PYTORCH} | ({"PyTorch, torch.compile": COMPILED} if compiles else {})
    peers = checked(weft, torch, case.request(), case.checked_steps, list(options.values()))
    variants += [variant(name, peer, options[name]) for name, peer in zip(options, peers, strict=True)]
    if case.mesh.replicate > 1:
        variants.append(variant("weft, optimizer over replicas", weft, SHARDED_OPTIMIZER))
    return variants


def losses_agree(losses: Sequence[float], expected: Sequence[float], dtype: str) -> bool:
    return all(abs(a - b) <= LOSS_TOLERANCE[dtype] * abs(b) for a, b in zip(losses, expected, strict=True))


def mean_losses(replies: list[Reply]) -> list[float]:
    """The mean over ranks, for each step."""
    return [sum(losses) / len(losses) for losses in zip(*(reply["losses"] for reply in replies), strict=True)]


def checked(
    weft: Peer, torch: Peer, request: dict[str, object], steps: int = 3, options: Sequence[dict[str, int]] = (PYTORCH,)
) -> list[Peer]:
    """For each of PyTorch's `options`: `torch` if its losses of the first `steps` + 1 steps agree with weft's, otherwise a
    replacement that fails with the reason.

    REQUIRES: neither has had a request of this case. Both then start from the same weights and tokens.
    """
    try:
        ours = mean_losses(weft.request("train", **request, **WEFT["weft"], steps=steps))
    except ContestantError as error:
        return [MissingContestant(str(error)) for _ in options]
    return [agreeing("PyTorch", torch, {**request, **of_torch, "steps": steps}, ours, "weft's") for of_torch in options]


def agreeing(name: str, contestant: Peer, request: dict[str, object], expected: Sequence[float], whose: str) -> Peer:
    """`contestant` if its losses of a request to train agree with `expected`, otherwise a replacement that fails with the reason.

    REQUIRES: `request` has a dtype. `whose` says whose losses `expected` are.
    """
    try:
        losses = mean_losses(contestant.request("train", **request))
    except ContestantError as error:
        return MissingContestant(str(error))
    if losses_agree(losses, expected, str(request["dtype"])):
        return contestant
    return MissingContestant(f"the losses {losses} of {name} differ from {whose}, {list(expected)}, so their times cannot be compared")
