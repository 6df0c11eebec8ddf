"""Sections `host-collectives` and `host-steps`: hosts behind links of 1 and 10 Gbit/s, emulated on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from suite import launch
from suite.collectives import FASTEST_OPEN_MPI, NAMES, OPEN_MPI
from suite.contestants import Command, CommandMaker
from suite.hosts import EmulatedHosts, HostsError
from suite.progress import log
from suite.rounds import Measurements, Variant, measure_interleaved
from suite.rows import Goal, Row, speedup_over
from suite.setting import MIB, Peer, Setting, start
from suite.steps import DEFAULTS, PREFETCH_ONE, PYTORCH, SHARDED_OPTIMIZER, Mesh, checked, request_of, step_variant

SIZE = 64 * MIB
LENGTH = 128
STREAM = "wire: MPI stream"
TCP_SHARE = 0.956  # Of the rate of an Ethernet cable.
NOMINAL = f"wire: {TCP_SHARE} of its rate"
BOUND = "max(compute alone, wire)"
UNCOMPRESSED = "weft, wire compression off"
OVER_MPI = "weft over MPI"  # "weft" uses its sockets, the default on such hosts.
ROUNDS = 4
BF16_MESHES = [Mesh(1, 4), Mesh(2, 2)]  # On 2 hosts with 2 ranks each.
BF16_GOAL = 3  # PyTorch's time / weft's, at least, at every rate of the link.
# Elements of the model. Weights are gathered in the dtype of compute, gradients are reduced in f32. With prefetch depth 2, the root's
# group (embedding, final norm, head) and the last two blocks are gathered once a step, all other blocks twice.
BLOCK_ELEMENTS = 2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 1536 + 2 * 512
OUTER_ELEMENTS = 2 * 4096 * 512 + 512
MODEL_ELEMENTS = 8 * BLOCK_ELEMENTS + OUTER_ELEMENTS
GATHERED_ONCE_ELEMENTS = OUTER_ELEMENTS + 2 * BLOCK_ELEMENTS
ELEMENT_BYTES = {"f32": 4, "bf16": 2}


@dataclass(frozen=True)
class Hosts:
    count: int
    ranks_per_host: int
    gigabits: int

    @property
    def has_goals(self) -> bool:
        return self.count == 2 and self.gigabits == 1

    def nominal_seconds(self, bytes_per_host: float) -> float:
        return bytes_per_host * 8 / (self.gigabits * 1e9 * TCP_SHARE)

    def across(self, size: float) -> float:
        """Bytes that each host sends, and receives, in an all-gather of `size` bytes."""
        return size * (self.count - 1) / self.count

    def __str__(self) -> str:
        return f"{self.count} hosts x {self.ranks_per_host}, {self.gigabits} Gbit/s"


ALL_HOSTS = [Hosts(2, 2, 1), Hosts(2, 2, 10), Hosts(4, 1, 1), Hosts(4, 1, 10)]

HostSection = Callable[[Setting, Hosts, EmulatedHosts], Iterator[Row]]


def measure_collectives(setting: Setting) -> Iterator[Row]:
    return on_hosts(setting, "64 MiB", collectives_on)


def measure_steps(setting: Setting) -> Iterator[Row]:
    return on_hosts(setting, "step", steps_on)


def on_hosts(setting: Setting, what: str, section: HostSection) -> Iterator[Row]:
    for hosts in ALL_HOSTS[:1] if setting.quick else ALL_HOSTS:
        try:
            with EmulatedHosts(hosts.count, f"{hosts.gigabits}gbit", hosts.ranks_per_host) as emulated:
                yield from section(setting, hosts, emulated)
        except HostsError as error:
            yield Row(f"{what}, {hosts}", "ms", "weft", {}, {"weft": str(error)})


def stream_variant(program: Peer, hosts: Hosts, bytes_per_host: float) -> Variant:
    size = int(bytes_per_host / hosts.ranks_per_host)
    return Variant(STREAM, lambda: program.seconds("run", op="stream", variant="nonblocking", bytes=size, repeats=1))


def add_nominal(measured: Measurements, hosts: Hosts, bytes_per_host: float) -> None:
    """Adds the nominal time, once for each round. It needs no measurement: if all contestants have failed, the row has it once."""
    rounds = max((len(values) for values in measured.rounds.values()), default=1)
    measured.rounds[NOMINAL] = [hosts.nominal_seconds(bytes_per_host) * 1e3] * rounds


def collectives_on(setting: Setting, hosts: Hosts, emulated: EmulatedHosts) -> Iterator[Row]:
    with ExitStack() as stack:
        program = start(stack, "weft", emulated.ranks, emulated.open_mpi(setting.program("collectives"), "tcp"))
        over_mpi = start(stack, OVER_MPI, emulated.ranks, emulated.open_mpi(setting.program("collectives"), "mpi"))
        for op, open_mpi_goal in (("all_gather", 2), ("reduce_scatter", 4), ("all_reduce", 1.2)):
            what = f"{NAMES[op]}, {SIZE // MIB} MiB, {hosts}"
            log(f"  {what}")
            bytes_per_host = hosts.across(SIZE) * (2 if op == "all_reduce" else 1)
            calls = {"weft": (program, "weft"), OVER_MPI: (over_mpi, "weft")}
            calls |= {name: (program, name.split()[-1]) for name in OPEN_MPI}
            if op == "all_gather":
                calls["weft node-shared"] = (program, "weft_shared")
            variants = [
                Variant(name, lambda op=op, peer=peer, call=call: peer.seconds("run", op=op, variant=call, bytes=SIZE, repeats=1))
                for name, (peer, call) in calls.items()
            ]
            measured = measure_interleaved(variants, setting.rounds(ROUNDS), scale=1e3)
            stream = measure_interleaved([stream_variant(program, hosts, bytes_per_host)], setting.rounds(ROUNDS), scale=1e3)
            measured.rounds.update(stream.rounds)
            measured.missing.update(stream.missing)
            add_nominal(measured, hosts, bytes_per_host)
            goals = [
                Goal((STREAM, NOMINAL), 0.95, "fraction of the wire's rate"),
                Goal(OPEN_MPI, open_mpi_goal, speedup_over(FASTEST_OPEN_MPI)),
            ]
            yield Row(what, "ms", "weft", measured.rounds, measured.missing, goals if hosts.has_goals else ())


def steps_on(setting: Setting, hosts: Hosts, emulated: EmulatedHosts) -> Iterator[Row]:
    with ExitStack() as stack:
        weft = start(stack, "weft", emulated.ranks, emulated.open_mpi(setting.program("training_step"), "tcp"))
        over_mpi = start(stack, OVER_MPI, emulated.ranks, emulated.open_mpi(setting.program("training_step"), "mpi"))
        stream = start(stack, "stream", emulated.ranks, emulated.open_mpi(setting.program("collectives"), "tcp"))
        alone = start(stack, "weft alone", emulated.ranks, each_alone(setting, emulated.ranks))
        torch_maker = emulated.c10d(setting.peers.python, "training_step.py")
        torch = start(stack, "PyTorch", emulated.ranks, setting.peer("PyTorch", torch_maker))
        comparable: dict[tuple[Mesh, str], Peer] = {}  # Cases of one mesh go on with the models of the first of them.
        for case in step_cases(hosts):
            log(f"  {case.what}")
            key = (case.mesh, case.dtype)
            if key not in comparable:
                [comparable[key]] = checked(weft, torch, case.request())
            size = bytes_per_host(hosts, case.mesh, case.dtype)
            variants = [
                *variants_of_weft(weft, case),
                step_variant("PyTorch", comparable[key], case.request(), 1, **PYTORCH),
                compute_alone(alone, case.dtype),
                step_variant(OVER_MPI, over_mpi, case.request(), 2, **case.options),
            ]
            if case.is_bounded:
                variants.append(stream_variant(stream, hosts, size))
            measured = measure_interleaved(variants, setting.rounds(ROUNDS), scale=1e3)
            add_nominal(measured, hosts, size)
            yield from step_rows(case, measured)


@dataclass(frozen=True)
class StepCase:
    what: str
    mesh: Mesh
    options: dict[str, int]
    pytorch_goal: float | None  # PyTorch's time / weft's, at least.
    bound_goal: float | None = None  # weft's time / the bound, at most.
    dtype: str = "f32"

    @property
    def is_bounded(self) -> bool:
        """The case has variants of weft besides the usual one, and is compared with the bound."""
        return self.dtype == "f32"

    def request(self) -> dict[str, object]:
        return request_of(self.mesh, LENGTH, self.dtype)


def step_cases(hosts: Hosts) -> list[StepCase]:
    def case(what: str, mesh: Mesh, options: dict[str, int], pytorch_goal: float, bound_goal: float) -> StepCase:
        return StepCase(what, mesh, options, *((pytorch_goal, bound_goal) if hosts.has_goals else (None, None)))

    fsdp = Mesh(1, hosts.count * hosts.ranks_per_host)
    cases = [case(f"step, {fsdp}, {hosts}", fsdp, DEFAULTS, 2.5, 1.12)]
    if hosts.ranks_per_host > 1:
        hsdp = Mesh(hosts.count, hosts.ranks_per_host)
        what = f"step, {hsdp}, {hosts}"
        cases.append(case(what, hsdp, DEFAULTS, 2.2, 1.3))
        what += ", optimizer over replicas"
        cases.append(case(what, hsdp, SHARDED_OPTIMIZER, 2.5, 1.15))
    if hosts.ranks_per_host == 2:
        cases += [StepCase(f"step, {mesh}, bf16, {hosts}", mesh, DEFAULTS, BF16_GOAL, dtype="bf16") for mesh in BF16_MESHES]
    return cases


def variants_of_weft(weft: Peer, case: StepCase) -> list[Variant]:
    options = {"weft": case.options}
    if case.is_bounded:
        options[UNCOMPRESSED] = {**case.options, "wire_compression": 0}
        if case.mesh.replicate == 1:
            options["weft, prefetch depth 1"] = PREFETCH_ONE
    return [step_variant(name, weft, case.request(), 2, **of_weft) for name, of_weft in options.items()]


def step_rows(case: StepCase, measured: Measurements) -> Iterator[Row]:
    if case.is_bounded:
        add_bound(measured)
    goals = [Goal(("PyTorch",), case.pytorch_goal, speedup_over("PyTorch"))] if case.pytorch_goal else []
    yield Row(case.what, "ms", "weft", measured.rounds, measured.missing, goals)
    if not case.is_bounded:
        return
    # The bound counts uncompressed bytes: a step that compresses them may be faster than the bound.
    own = measured.only(UNCOMPRESSED, BOUND)
    words = f"{BOUND} / weft's time (weft takes at most {case.bound_goal} x)"
    goals = [Goal((BOUND,), 1 / case.bound_goal, words)] if case.bound_goal else []
    yield Row(f"{case.what}, uncompressed", "ms", UNCOMPRESSED, own.rounds, own.missing, goals)


def compute_alone(alone: Peer, dtype: str) -> Variant:
    return step_variant("compute alone", alone, request_of(Mesh(1, 1), LENGTH, dtype), 2, **DEFAULTS)


def bytes_per_host(hosts: Hosts, mesh: Mesh, dtype: str) -> float:
    """Uncompressed bytes that each host sends, and receives, in a step."""
    if mesh.replicate > 1:
        return hosts.across(2 * MODEL_ELEMENTS * ELEMENT_BYTES["f32"])
    gathered = (2 * MODEL_ELEMENTS - GATHERED_ONCE_ELEMENTS) * ELEMENT_BYTES[dtype]
    return hosts.across(gathered + MODEL_ELEMENTS * ELEMENT_BYTES["f32"])


def add_bound(measured: Measurements) -> None:
    """Adds, for each round, the lower bound on the time of every schedule: compute alone or the wire, whichever is longer.

    If one of these is missing, so is the bound, with the reason.
    """
    if reasons := [f"{name}: {measured.missing[name]}" for name in ("compute alone", STREAM) if name in measured.missing]:
        measured.missing[BOUND] = "; ".join(reasons)
        return
    wires = map(min, measured.rounds[STREAM], measured.rounds[NOMINAL])
    measured.rounds[BOUND] = list(map(max, measured.rounds["compute alone"], wires))


def each_alone(setting: Setting, ranks: int) -> CommandMaker:
    """`ranks` models of one rank each, side by side: the same compute on the same cores, without communication."""
    one = launch.open_mpi(setting.program("training_step"), 1)

    def make(folder) -> Command:
        command = one(folder)
        return Command([*command.processes] * ranks, command.environment)

    return make
