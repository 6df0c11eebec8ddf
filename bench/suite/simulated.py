"""Section `simulated`: a step on up to 1,024 simulated ranks, with costs measured on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from suite import launch
from suite.contestants import Contestant, ContestantError
from suite.progress import log
from suite.rows import Row
from suite.setting import MIB, Setting
from suite.statistics import median

LENGTH = 1024
RANKS_PER_NODE = 64
GIGABITS = 100
BLOCKS = 8
ALL_RANKS = (64, 256, 1024)
COMPUTE = "compute alone (measured)"


@dataclass(frozen=True)
class Costs:
    """Measured costs of one rank: milliseconds of its parts, and the speed of its copies in GB/s."""

    block: float
    head: float
    optimizer: float
    memory_speed: float

    def compute_alone(self, shard: int) -> float:
        return BLOCKS * self.block + self.head + self.optimizer / shard


def measure(setting: Setting) -> Iterator[Row]:
    try:
        costs = measure_costs(setting)
    except ContestantError as error:
        yield Row("simulated step", "ms", "weft (simulated)", {}, {"weft (simulated)": str(error)})
        return
    for ranks in ALL_RANKS[:1] if setting.quick else ALL_RANKS:
        replicate = ranks // RANKS_PER_NODE
        what = f"simulated step, HSDP {replicate} x {RANKS_PER_NODE}, {LENGTH} tokens a rank, {GIGABITS} Gbit/s a node"
        log(f"  {what}")
        rounds = {COMPUTE: [costs.compute_alone(RANKS_PER_NODE)]}
        missing = {}
        try:
            rounds["weft (simulated)"] = [simulate(setting, costs, ranks, replicate)]
        except ContestantError as error:
            missing["weft (simulated)"] = str(error)
        yield Row(what, "ms", "weft (simulated)", rounds, missing)


def measure_costs(setting: Setting) -> Costs:
    parts = launch.output_of(str(setting.program("model_step")), str(LENGTH), "3", "f32")
    ms = {name: float(value) for name, value in re.findall(r"^  (\w[\w ]*\w) +([\d.]+) ms", parts, re.MULTILINE)}
    optimizer = ms["AdamW"] + ms["gradient norm"]
    blocks = ms["step"] - ms["head and loss"] - optimizer
    with Contestant("weft", 2, launch.open_mpi(setting.program("collectives"), 2)) as contestant:
        seconds = contestant.seconds("run", op="all_gather", variant="weft", bytes=64 * MIB, repeats=9)
    return Costs(blocks / BLOCKS, ms["head and loss"], optimizer, 64 * MIB / median(seconds) / 1e9)


def simulate(setting: Setting, costs: Costs, ranks: int, replicate: int) -> float:
    numbers = (ranks, RANKS_PER_NODE, replicate, GIGABITS, costs.memory_speed, costs.block, costs.head, costs.optimizer)
    return float(launch.output_of(str(setting.program("simulated_scaling")), *map(str, numbers)))
