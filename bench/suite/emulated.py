"""Sections `host-collectives` and `host-steps`: hosts behind cables of 1 and 10 Gbit/s, emulated on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from suite import launch
from suite.collectives import NAMES, OPEN_MPI
from suite.contestants import Command, CommandMaker, Contestant
from suite.hosts import EmulatedHosts, HostsError
from suite.progress import say
from suite.rounds import Measurements, Way, in_turns
from suite.rows import Goal, Row
from suite.setting import MIB, Absent, Setting, start
from suite.steps import DEFAULTS, PREFETCH_ONE, PYTORCH, SHARDED_OPTIMIZER, Mesh, step_way

SIZE = 64 * MIB
LENGTH = 128
STREAM = "wire: MPI stream"
NOMINAL = "wire: 0.956 of its rate"  # What TCP leaves of the rate of an Ethernet cable.
BOUND = "max(compute alone, wire)"
PLAIN = "weft, wire compression off"
ROUNDS = 4
# Of the model's fp32 weights, and of those that are gathered once a step: embedding and norms, head, and last two blocks.
BLOCK_BYTES = 4 * (2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 1536 + 2 * 512)
OUTER_BYTES = 4 * (2 * 4096 * 512 + 512)
MODEL_BYTES = 8 * BLOCK_BYTES + OUTER_BYTES
GATHERED_ONCE_BYTES = OUTER_BYTES + 2 * BLOCK_BYTES


@dataclass(frozen=True)
class Hosts:
    count: int
    ranks_per_host: int
    gigabits: int

    @property
    def has_goals(self) -> bool:
        return self.count == 2 and self.gigabits == 1

    def nominal_seconds(self, bytes_per_host: float) -> float:
        return bytes_per_host * 8 / (self.gigabits * 1e9 * 0.956)

    def across(self, size: float) -> float:
        """What each host sends, and receives, when all come to hold `size` bytes of which each had its part."""
        return size * (self.count - 1) / self.count

    def __str__(self) -> str:
        return f"{self.count} hosts x {self.ranks_per_host}, {self.gigabits} Gbit/s"


ALL_HOSTS = [Hosts(2, 2, 1), Hosts(2, 2, 10), Hosts(4, 1, 1), Hosts(4, 1, 10)]

Scene = Callable[[Setting, Hosts, EmulatedHosts], Iterator[Row]]


def measure_collectives(setting: Setting) -> Iterator[Row]:
    return on_hosts(setting, "64 MiB", collectives_on)


def measure_steps(setting: Setting) -> Iterator[Row]:
    return on_hosts(setting, "step", steps_on)


def on_hosts(setting: Setting, what: str, scene: Scene) -> Iterator[Row]:
    for hosts in ALL_HOSTS[:1] if setting.quick else ALL_HOSTS:
        try:
            with EmulatedHosts(hosts.count, f"{hosts.gigabits}gbit", hosts.ranks_per_host) as emulated:
                yield from scene(setting, hosts, emulated)
        except HostsError as error:
            yield Row(f"{what}, {hosts}", "ms", "weft", {}, {"weft": str(error)})


def stream_way(program: Contestant | Absent, hosts: Hosts, bytes_per_host: float) -> Way:
    size = int(bytes_per_host / hosts.ranks_per_host)
    return Way(STREAM, lambda: program.seconds("run", op="stream", way="nonblocking", bytes=size, repeats=1))


def add_nominal(measured: Measurements, hosts: Hosts, bytes_per_host: float) -> None:
    rounds = max((len(values) for values in measured.rounds.values()), default=0)
    measured.rounds[NOMINAL] = [hosts.nominal_seconds(bytes_per_host) * 1e3] * rounds


def collectives_on(setting: Setting, hosts: Hosts, emulated: EmulatedHosts) -> Iterator[Row]:
    with ExitStack() as stack:
        program = start(stack, "weft", emulated.ranks, emulated.open_mpi(setting.program("collectives")))
        for op, open_mpi_goal in (("all_gather", 2), ("reduce_scatter", 4), ("all_reduce", 1.2)):
            what = f"{NAMES[op]}, {SIZE // MIB} MiB, {hosts}"
            say(f"  {what}")
            bytes_per_host = hosts.across(SIZE) * (2 if op == "all_reduce" else 1)
            kinds = {"weft": "weft"} | {name: name.split()[-1] for name in OPEN_MPI}
            if op == "all_gather":
                kinds["weft node-shared"] = "weft_shared"
            ways = [
                Way(name, lambda op=op, kind=kind: program.seconds("run", op=op, way=kind, bytes=SIZE, repeats=1))
                for name, kind in kinds.items()
            ]
            measured = in_turns(ways, setting.rounds(ROUNDS), scale=1e3)
            stream = in_turns([stream_way(program, hosts, bytes_per_host)], setting.rounds(ROUNDS), scale=1e3)
            measured.rounds.update(stream.rounds)
            measured.missing.update(stream.missing)
            add_nominal(measured, hosts, bytes_per_host)
            goals = [
                Goal((STREAM, NOMINAL), 0.95, "of the wire's rate"),
                Goal(OPEN_MPI, open_mpi_goal, "times the fastest Open MPI call"),
            ]
            yield Row(what, "ms", "weft", measured.rounds, measured.missing, goals if hosts.has_goals else ())


def steps_on(setting: Setting, hosts: Hosts, emulated: EmulatedHosts) -> Iterator[Row]:
    with ExitStack() as stack:
        weft = start(stack, "weft", emulated.ranks, emulated.open_mpi(setting.program("training_step")))
        stream = start(stack, "stream", emulated.ranks, emulated.open_mpi(setting.program("collectives")))
        alone = start(stack, "weft alone", emulated.ranks, each_alone(setting, emulated.ranks))
        torch_maker = emulated.gloo(setting.peers.python, "training_step.py")
        torch = start(stack, "PyTorch", emulated.ranks, setting.peer("PyTorch", torch_maker))
        for case in step_cases(hosts):
            say(f"  {case.what}")
            plain_how = {**case.how, "wire_compression": 0}
            ways = [
                step_way("weft", weft, case.mesh, LENGTH, 2, **case.how),
                step_way(PLAIN, weft, case.mesh, LENGTH, 2, **plain_how),
            ]
            if case.mesh.replicate == 1:
                ways.append(step_way("weft, prefetch depth 1", weft, case.mesh, LENGTH, 2, **PREFETCH_ONE))
            ways.append(step_way("PyTorch", torch, case.mesh, LENGTH, 1, **PYTORCH))
            ways.append(step_way("compute alone", alone, Mesh(1, 1), LENGTH, 2, **DEFAULTS))
            ways.append(stream_way(stream, hosts, case.bytes_per_host))
            measured = in_turns(ways, setting.rounds(ROUNDS), scale=1e3)
            add_nominal(measured, hosts, case.bytes_per_host)
            add_bound(measured)
            goals = [Goal(("PyTorch",), case.pytorch, "times PyTorch")]
            yield Row(case.what, "ms", "weft", measured.rounds, measured.missing, goals if hosts.has_goals else ())
            # The bound is of the bytes as they are: a step that compresses them may be faster than it.
            goals = [Goal((BOUND,), 1 / case.bound, f"at most {case.bound} x {BOUND}: of that")]
            plain = measured.only(PLAIN, BOUND)
            yield Row(f"{case.what}, uncompressed", "ms", PLAIN, plain.rounds, plain.missing, goals if hosts.has_goals else ())


@dataclass(frozen=True)
class StepCase:
    what: str
    mesh: Mesh
    how: dict[str, int]
    bytes_per_host: float  # Uncompressed.
    pytorch: float  # Goals: against PyTorch,
    bound: float  # and the bound.


def step_cases(hosts: Hosts) -> list[StepCase]:
    fsdp = Mesh(1, hosts.count * hosts.ranks_per_host)
    bytes_per_host = hosts.across(2 * MODEL_BYTES - GATHERED_ONCE_BYTES + MODEL_BYTES)
    cases = [StepCase(f"step, {fsdp}, {hosts}", fsdp, DEFAULTS, bytes_per_host, 2.5, 1.12)]
    if hosts.ranks_per_host > 1:
        hsdp = Mesh(hosts.count, hosts.ranks_per_host)
        bytes_per_host = hosts.across(2 * MODEL_BYTES)
        what = f"step, {hsdp}, {hosts}"
        cases.append(StepCase(what, hsdp, DEFAULTS, bytes_per_host, 2.2, 1.3))
        what += ", optimizer over replicas"
        cases.append(StepCase(what, hsdp, SHARDED_OPTIMIZER, bytes_per_host, 2.5, 1.15))
    return cases


def add_bound(measured: Measurements) -> None:
    """What no schedule can be faster than, round by round."""
    if STREAM in measured.rounds and "compute alone" in measured.rounds:
        wires = map(min, measured.rounds[STREAM], measured.rounds[NOMINAL])
        measured.rounds[BOUND] = list(map(max, measured.rounds["compute alone"], wires))


def each_alone(setting: Setting, ranks: int) -> CommandMaker:
    """As many models of one rank each, side by side: the same compute on the same cores, without communication."""
    one = launch.open_mpi(setting.program("training_step"), 1)

    def make(folder) -> Command:
        command = one(folder)
        return Command([*command.processes] * ranks, command.environment)

    return make
