"""Section `compute`: the GFLOP/s of a step against the same matrix products alone, on one rank with one thread."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from suite import machine
from suite.contestants import ContestantError
from suite.launch import output_of
from suite.progress import log
from suite.rounds import Measurements, Variant, measure_interleaved
from suite.rows import Goal, Row
from suite.setting import Setting
from suite.steps import LARGE, SMALL

LENGTH = 1024
STEP = "weft"
PRODUCTS = "its products alone"
AMX_RATE = 850  # GFLOP/s of a step on one core with AMX.
AMX_GOAL = f"{AMX_RATE} GFLOP/s"


@dataclass(frozen=True)
class Case:
    model: str
    dtype: str
    at_least: float | None  # The goal: the rate of the step / that of its products alone.
    rounds: int
    repeats: int
    amx_goal: bool = False

    def __str__(self) -> str:
        size = "" if self.model == SMALL else f", {self.model} parameters"
        return f"compute of a step{size}, {LENGTH} tokens, {self.dtype}"


CASES = [
    Case(SMALL, "f32", 0.75, 3, 2),
    Case(SMALL, "bf16", None, 3, 2),
    Case(LARGE, "f32", 0.95, 2, 1),
    Case(LARGE, "bf16", 0.75, 2, 1, amx_goal=True),
]


def measure(setting: Setting) -> Iterator[Row]:
    for case in CASES:
        if setting.quick and case.model == LARGE and case.dtype == "f32":
            continue
        log(f"  {case}")
        rates = Rates(setting, case)
        variants = [Variant(STEP, lambda: [rates.take(STEP)]), Variant(PRODUCTS, lambda: [rates.take(PRODUCTS)])]
        measured = measure_interleaved(variants, setting.rounds(case.rounds))
        goals = [Goal((PRODUCTS,), case.at_least, "rate of the step / rate of its products alone")] if case.at_least else []
        if case.amx_goal:
            goals += amx_goals(measured, machine.bf16_instructions(machine.CPUINFO.read_text()))
        yield Row(str(case), "ms / GFLOP", STEP, measured.rounds, measured.missing, goals)


def amx_goals(measured: Measurements, instructions: str) -> list[Goal]:
    """The goal for the rate of a step in bf16, if the CPU has AMX. Adds the rate, or why there is no goal, to `measured`."""
    if instructions != machine.AMX:
        measured.missing[AMX_GOAL] = f"a goal for CPUs with AMX; products in bf16 ran on {instructions}"
        return []
    if STEP in measured.rounds:
        measured.rounds[AMX_GOAL] = [1e3 / AMX_RATE] * len(measured.rounds[STEP])
    return [Goal((AMX_GOAL,), 1.0, f"rate of the step / {AMX_GOAL}")]


class Rates:
    """Milliseconds per GFLOP. One run of the program measures both variants, interleaved, and serves one round of each."""

    def __init__(self, setting: Setting, case: Case) -> None:
        self._command = [str(setting.program("model_step")), str(LENGTH), str(case.repeats), case.dtype, case.model]
        self._unread: dict[str, float] = {}
        self._failure = ""

    def take(self, variant: str) -> float:
        """A value that no earlier call has returned. If a run fails, so do all later calls, with its reason."""
        if self._failure:
            raise ContestantError(self._failure)
        if variant not in self._unread:
            try:
                self._unread = self._run()
            except ContestantError as error:
                self._failure = str(error)
                raise
        return self._unread.pop(variant)

    def _run(self) -> dict[str, float]:
        output = output_of(*self._command)
        rates = dict(re.findall(r"^  (step|products alone) .* ([\d.]+) GFLOP/s$", output, re.MULTILINE))
        if len(rates) != 2:
            raise ContestantError(f"{self._command[0]} printed no rates: {output}")
        return {STEP: 1e3 / float(rates["step"]), PRODUCTS: 1e3 / float(rates["products alone"])}
