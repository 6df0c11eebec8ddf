"""Section `torch`: PyTorch on weft. The backend `weft` against gloo, and weft.fully_shard against FSDP2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from suite import launch, proportional_set
from suite.collectives import NAMES
from suite.contestants import CommandMaker, ContestantError
from suite.hosts import EmulatedHosts, HostsError
from suite.memory_use import MALLOC_SETTINGS, usual_settings
from suite.peers import WEFT_PACKAGE
from suite.progress import log
from suite.rounds import Variant, measure_interleaved
from suite.rows import Goal, Row, speedup_over
from suite.setting import MIB, Peer, Setting, start
from suite.steps import PYTORCH, SHORT, Mesh, agreeing, mean_losses, request_of, step_variant

STEPS = 3  # Timed steps per round, after one that is not timed.
ROUNDS = 6
SIZE = 64 * MIB
REPEATS = 3
BACKEND = "backend weft"
GLOO = "backend gloo"
FULLY_SHARD = "weft.fully_shard"
DIRECT = "weft.fully_shard, write_gradients_directly"
NODE_MEMORY = "backend weft, tensors in its memory"
ALONE = "no communication"
APIS = {BACKEND: "fsdp2", FULLY_SHARD: "weft", DIRECT: "weft_direct"}
FREE = "FSDP2, collectives that do nothing"  # The bound of every backend.

# Mesh; goals of the backend and of weft.fully_shard: the time over gloo / weft's, at least.
CASES = [
    (Mesh(1, 2), 1.8, 2.7),
    (Mesh(2, 1), 1.2, None),
    (Mesh(1, 4), 2.2, 3.0),
    (Mesh(2, 2), 2.0, None),
]
ALONE_GOAL = 1 / 1.03  # weft.fully_shard takes at most 1.03 of the time without communication.


def measure(setting: Setting) -> Iterator[Row]:
    for ranks in (2, 4):
        with ExitStack() as stack:
            yield from measure_steps(setting, ranks, start_steps(stack, setting, ranks))
    yield from measure_on_hosts(setting)
    yield from measure_memory(setting)
    for ranks in (2, 4):
        yield from measure_collectives(setting, ranks)


@dataclass(frozen=True)
class Steps:
    """The peers of a step, by backend."""

    weft: Peer
    gloo: Peer
    free: Peer


def start_steps(stack: ExitStack, setting: Setting, ranks: int) -> Steps:
    def start_one(name: str, package: str, backend: str) -> Peer:
        make = launch.c10d(setting.peers.python, "training_step.py", ranks, backend=backend)
        return start(stack, name, ranks, setting.peer(package, make))

    return Steps(start_one(BACKEND, WEFT_PACKAGE, "weft"), start_one(GLOO, "PyTorch", "gloo"), start_one(FREE, "PyTorch", "fake"))


def measure_steps(setting: Setting, ranks: int, peers: Steps) -> Iterator[Row]:
    for mesh, backend_goal, fully_shard_goal in CASES:
        if mesh.ranks != ranks:
            continue
        what = f"torch step, {mesh}, {SHORT} tokens a rank"
        log(f"  {what}")
        # There is no weft.DistributedDataParallel: DDP runs over the backend.
        names = [BACKEND, FULLY_SHARD, DIRECT] if mesh.shard > 1 else [BACKEND]
        variants = [*checked_variants(names, peers.weft, peers.gloo, mesh), variant(GLOO, peers.gloo, mesh, "fsdp2")]
        variants.append(variant(ALONE, peers.gloo, mesh, "alone"))
        if mesh.shard > 1:
            variants.append(variant(FREE, peers.free, mesh, "fsdp2"))
        measured = measure_interleaved(variants, setting.rounds(ROUNDS), scale=1e3)
        own = measured.only(BACKEND, GLOO, FREE if mesh.shard > 1 else ALONE)
        yield Row(what, "ms", BACKEND, own.rounds, own.missing, [Goal((GLOO,), backend_goal, speedup_over("gloo"))])
        if mesh.shard == 1:
            continue
        for name in (FULLY_SHARD, DIRECT):
            own = measured.only(name, GLOO, ALONE)
            goals = [Goal((ALONE,), ALONE_GOAL, f"time of {ALONE} / weft's")]
            if fully_shard_goal:
                goals.append(Goal((GLOO,), fully_shard_goal, speedup_over("FSDP2 over gloo")))
            yield Row(f"{what}, {name}", "ms", name, own.rounds, own.missing, goals)


def variant(name: str, contestant: Peer, mesh: Mesh, api: str) -> Variant:
    return step_variant(name, contestant, request_of(mesh, SHORT), STEPS, **PYTORCH, api=api)


def checked_variants(names: Sequence[str], weft: Peer, gloo: Peer, mesh: Mesh) -> list[Variant]:
    """The variants of `weft`. One whose first losses differ from those of FSDP2 or DDP over gloo fails with the reason.

    REQUIRES: neither has had a request of this case. Both then start from the same weights and tokens.
    """
    request = {**request_of(mesh, SHORT), **PYTORCH, "steps": 3}
    try:
        theirs = mean_losses(gloo.request("train", **request, api="fsdp2"))
    except ContestantError:  # Gloo is missing in the row, with its reason. There is nothing to compare.
        return [variant(name, weft, mesh, APIS[name]) for name in names]

    def checked(name: str) -> Peer:
        return agreeing(name, weft, {**request, "api": APIS[name]}, theirs, "PyTorch's over gloo")

    return [variant(name, checked(name), mesh, APIS[name]) for name in names]


def measure_on_hosts(setting: Setting) -> Iterator[Row]:
    mesh = Mesh(1, 4)
    what = f"torch step, {mesh}, 2 hosts x 2, 1 Gbit/s"
    log(f"  {what}")
    try:
        with ExitStack() as stack:
            hosts = stack.enter_context(EmulatedHosts(2, "1gbit", 2))
            makers = {name: hosts.c10d(setting.peers.python, "training_step.py", name) for name in ("weft", "gloo")}
            weft = start(stack, BACKEND, mesh.ranks, setting.peer(WEFT_PACKAGE, makers["weft"]))
            gloo = start(stack, GLOO, mesh.ranks, setting.peer("PyTorch", makers["gloo"]))
            variants = [*checked_variants([BACKEND, FULLY_SHARD], weft, gloo, mesh), variant(GLOO, gloo, mesh, "fsdp2")]
            measured = measure_interleaved(variants, setting.rounds(ROUNDS), scale=1e3)
            yield Row(what, "ms", BACKEND, measured.rounds, measured.missing, [Goal((GLOO,), 1.8, speedup_over("gloo"))])
    except HostsError as error:
        yield Row(what, "ms", BACKEND, {}, {BACKEND: str(error)})


def measure_memory(setting: Setting) -> Iterator[Row]:
    for mesh in (Mesh(1, 2), Mesh(1, 4)):
        what = f"torch step, peak memory above the interpreter and torch, {mesh}"
        log(f"  {what}")
        rounds: dict[str, list[float]] = {}
        missing: dict[str, str] = {}
        for name, make, api in memory_contestants(setting, mesh.ranks):
            try:
                rounds[name] = [peak_above_start(name, mesh, make, api) / 1e6]
            except ContestantError as error:
                missing[name] = str(error)
        goal = Goal(usual_settings(GLOO), 2.0, "FSDP2's peak over gloo / weft's (weft takes at most 0.5)")
        yield Row(what, "MB", FULLY_SHARD, rounds, missing, [goal])


def memory_contestants(setting: Setting, ranks: int) -> list[tuple[str, CommandMaker | str, str]]:
    """weft, and gloo with each setting of malloc: names, commands and apis."""

    def maker(backend: str, needs: str, environment: dict[str, str] | None = None) -> CommandMaker | str:
        return setting.peer(needs, launch.c10d(setting.peers.python, "training_step.py", ranks, environment, backend=backend))

    gloo = [(GLOO + ending, maker("gloo", "PyTorch", malloc), "fsdp2") for ending, malloc in MALLOC_SETTINGS.items()]
    return [(FULLY_SHARD, maker("weft", WEFT_PACKAGE), "weft"), *gloo]


def peak_above_start(name: str, mesh: Mesh, make: CommandMaker | str, api: str) -> int:
    """Bytes of all ranks during a step, less those before the model was made."""
    with ExitStack() as stack:
        contestant = start(stack, name, mesh.ranks, make)
        before = proportional_set.measure(contestant.pids).total
        request = {**request_of(mesh, SHORT), **PYTORCH, "api": api, "steps": 1}
        contestant.request("train", **request)  # Warm-up: allocations of the first request.
        return proportional_set.peak_during(contestant.pids, lambda: contestant.request("train", **request)).total - before


def measure_collectives(setting: Setting, ranks: int) -> Iterator[Row]:
    with ExitStack() as stack:
        makers = {
            name: launch.c10d(setting.peers.python, "c10d_collectives.py", ranks, backend=name) for name in ("weft", "gloo")
        }
        weft = start(stack, BACKEND, ranks, setting.peer(WEFT_PACKAGE, makers["weft"]))
        gloo = start(stack, GLOO, ranks, setting.peer("PyTorch", makers["gloo"]))
        for op, at_least in (("reduce_scatter", 10), ("all_gather", 10), ("all_reduce", 4)):
            what = f"torch {NAMES[op]}, {SIZE // MIB} MiB, {ranks} ranks"
            log(f"  {what}")
            request = {"op": op, "bytes": SIZE, "repeats": REPEATS}
            variants = [
                Variant(name, lambda peer=peer, memory=memory: peer.seconds("run", **request, memory=memory))
                for name, peer, memory in ((BACKEND, weft, "torch"), (NODE_MEMORY, weft, "node"), (GLOO, gloo, "torch"))
            ]
            measured = measure_interleaved(variants, setting.rounds(ROUNDS), scale=1e3)
            goal = Goal((GLOO,), at_least, speedup_over("gloo"))
            yield Row(what, "ms", BACKEND, measured.rounds, measured.missing, [goal])
            own = measured.only(NODE_MEMORY, GLOO)
            yield Row(f"{what}, tensors in its memory", "ms", NODE_MEMORY, own.rounds, own.missing, [goal])
