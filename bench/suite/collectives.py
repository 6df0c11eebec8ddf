"""Section `collectives`: collectives on one node, against Open MPI, Intel MPI, oneCCL and gloo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from suite import launch
from suite.contestants import CommandMaker, Contestant
from suite.progress import log
from suite.rounds import Variant, measure_interleaved
from suite.rows import Goal, Row, speedup_over
from suite.setting import MIB, MissingContestant, Setting, start

OPEN_MPI = ("Open MPI blocking", "Open MPI nonblocking")
FASTEST_OPEN_MPI = "fastest Open MPI call"
INTEL_MPI = ("Intel MPI blocking", "Intel MPI nonblocking")
NAMES = {"all_gather": "AG", "reduce_scatter": "RS", "all_reduce": "AR", "all_to_all": "A2A strided"}
REPEATS = {64 * MIB: 3, 8 * MIB: 7, MIB: 15}  # Per round, by size in bytes.
# The table over sizes: weft against Open MPI and Intel MPI alone. An exchange moves whole tokens, of 8 KiB.
# The first repeats of a round find caches that other contestants have filled.
TABLE_REPEATS = dict(zip((4096 * 4**i for i in range(9)), (200, 200, 100, 50, 20, 10, 7, 3, 2), strict=True))
TABLE_RANKS = (2, 4, 8)
TABLE_ROUNDS = 5
ROUNDS = 7
GOAL_BYTES = 64 * MIB


def goals_of(op: str, ranks: int) -> list[Goal]:
    open_mpi, intel, gloo = {
        "all_gather": (None, None, None),
        "reduce_scatter": (4, 2, 12),
        "all_reduce": (1.6, 1.2, 4) if ranks == 2 else (2.5, 1.8, 4),
        "all_to_all": (2, None, None),
    }[op]
    goals = [(OPEN_MPI, open_mpi, FASTEST_OPEN_MPI), (INTEL_MPI, intel, "Intel MPI"), (("gloo",), gloo, "gloo")]
    return [Goal(others, at_least, speedup_over(peer)) for others, at_least, peer in goals if at_least is not None]


def measure(setting: Setting) -> Iterator[Row]:
    for ranks in (2, 4):
        with ExitStack() as stack:
            contestants = start_all(stack, setting, ranks)
            for op in NAMES:
                for size in [GOAL_BYTES] if setting.quick else REPEATS:
                    log(f"  {NAMES[op]}, {size // MIB} MiB, {ranks} ranks")
                    yield from measure_one(setting, contestants, op, size, ranks)
    if not setting.quick:
        yield from measure_table(setting)


def measure_table(setting: Setting) -> Iterator[Row]:
    """Every size, as ratios of one run."""
    for ranks in TABLE_RANKS:
        with ExitStack() as stack:
            contestants = start_mpi(stack, setting, ranks)
            for op in NAMES:
                for size, repeats in TABLE_REPEATS.items():
                    if op == "all_to_all" and size < 4 * 4096:
                        continue
                    log(f"  {NAMES[op]}, {size // 1024} KiB, {ranks} ranks")
                    variants = mpi_variants(contestants, op, size, repeats)
                    measured = measure_interleaved(variants, setting.rounds(TABLE_ROUNDS), scale=1e3)
                    what = f"{NAMES[op]}, {size // 1024} KiB, {ranks} ranks, table over sizes"
                    goals = [Goal(OPEN_MPI + INTEL_MPI, 1, speedup_over("fastest MPI call"))]
                    yield Row(what, "ms", "weft", measured.rounds, measured.missing, goals)


def start_mpi(stack: ExitStack, setting: Setting, ranks: int) -> dict[str, Contestant | MissingContestant]:
    makers = {
        "weft": launch.open_mpi(setting.program("collectives"), ranks),
        "Intel MPI": setting.peer("Intel MPI", setting.peers.intel_mpi("intel_mpi", ranks)),
    }
    return {name: start_bound(stack, name, ranks, make) for name, make in makers.items()}


def start_bound(stack: ExitStack, name: str, ranks: int, make: CommandMaker | str) -> Contestant | MissingContestant:
    peer = start(stack, name, ranks, make)
    launch.bind_to_cpus(peer.pids)
    return peer


def mpi_variants(
    contestants: dict[str, Contestant | MissingContestant], op: str, size: int, repeats: int
) -> list[Variant]:
    """weft, Open MPI and, for the collectives that its program has, Intel MPI."""
    arguments = {"op": op, "bytes": size, "repeats": repeats}
    variants = [variant_of(contestants, "weft", "weft", "weft", arguments)]
    variants += [variant_of(contestants, name, "weft", name.split()[-1], arguments) for name in OPEN_MPI]
    if op != "all_to_all":  # The other libraries have no strided exchange.
        variants += [variant_of(contestants, name, "Intel MPI", name.split()[-1], arguments) for name in INTEL_MPI]
    return variants


def variant_of(
    contestants: dict[str, Contestant | MissingContestant], name: str, contestant: str, call: str, arguments: dict[str, object]
) -> Variant:
    return Variant(name, lambda: contestants[contestant].seconds("run", variant=call, **arguments))


def start_all(stack: ExitStack, setting: Setting, ranks: int) -> dict[str, Contestant | MissingContestant]:
    peers = setting.peers
    one_ccl = setting.peer("oneCCL", peers.intel_mpi("oneccl", ranks))
    gloo = setting.peer("PyTorch", launch.c10d(peers.python, "c10d_collectives.py", ranks))
    others = {
        "oneCCL": start_bound(stack, "oneCCL", ranks, one_ccl),
        "gloo": start(stack, "gloo", ranks, gloo),  # Not bound: it moves data in threads of its own.
    }
    return start_mpi(stack, setting, ranks) | others


def measure_one(
    setting: Setting, contestants: dict[str, Contestant | MissingContestant], op: str, size: int, ranks: int
) -> list[Row]:
    arguments = {"op": op, "bytes": size, "repeats": REPEATS[size]}
    has_goals = size == GOAL_BYTES
    variants = mpi_variants(contestants, op, size, REPEATS[size])
    if has_goals:  # weft's other buffers lie in node memory.
        variants.append(variant_of(contestants, "weft, ordinary memory", "weft", "weft_ordinary", arguments))
    if op == "all_gather":
        variants.append(variant_of(contestants, "weft node-shared", "weft", "weft_shared", arguments))
    if op != "all_to_all":  # The other libraries have no strided exchange.
        variants += [variant_of(contestants, name, name, "blocking", arguments) for name in ("oneCCL", "gloo")]
    measured = measure_interleaved(variants, setting.rounds(ROUNDS), scale=1e3)

    what = f"{NAMES[op]}, {size // MIB} MiB, one node, {ranks} ranks"
    rows = [Row(what, "ms", "weft", measured.rounds, measured.missing, goals_of(op, ranks) if has_goals else ())]
    shared = {name: measured.rounds[name] for name in ("weft node-shared", OPEN_MPI[0]) if name in measured.rounds}
    if has_goals and op == "all_gather":
        goal = Goal((OPEN_MPI[0],), 20, f"{speedup_over('MPI_Allgather')} (weft takes at most 5%)")
        rows.append(Row(what + ", node-shared", "ms", "weft node-shared", shared, measured.missing, [goal]))
    return rows
