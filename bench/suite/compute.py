"""Section `compute`: the rate at which a step computes, against the same matrix products alone; one rank, one thread."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

from suite.contestants import ContestantError
from suite.launch import ONE_THREAD
from suite.progress import say
from suite.rounds import Way, in_turns
from suite.rows import Goal, Row
from suite.setting import Setting

LENGTH = 1024
REPEATS = 2
ROUNDS = 3
STEP = "weft"
PRODUCTS = "its products alone"


def measure(setting: Setting) -> Iterator[Row]:
    for dtype in ("f32", "bf16"):
        what = f"compute of a step, {LENGTH} tokens, {dtype}"
        say(f"  {what}")
        rates = Rates(setting, dtype)
        ways = [Way(STEP, lambda: [rates.fresh(STEP)]), Way(PRODUCTS, lambda: [rates.fresh(PRODUCTS)])]
        measured = in_turns(ways, setting.rounds(ROUNDS))
        goals = [Goal((PRODUCTS,), 0.75, "of the rate of its products alone")] if dtype == "f32" else []
        yield Row(what, "ms / GFLOP", STEP, measured.rounds, measured.missing, goals)


class Rates:
    """One program measures both in turns, so a run of it serves a round of either."""

    def __init__(self, setting: Setting, dtype: str) -> None:
        self._command = [str(setting.program("model_step")), str(LENGTH), str(REPEATS), dtype]
        self._unread: dict[str, float] = {}

    def fresh(self, way: str) -> float:
        if way not in self._unread:
            self._unread = self._run()
        return self._unread.pop(way)

    def _run(self) -> dict[str, float]:
        environment = {**os.environ, **ONE_THREAD}
        ended = subprocess.run(self._command, env=environment, capture_output=True, text=True)
        rates = dict(re.findall(r"^  (step|products alone) .* ([\d.]+) GFLOP/s$", ended.stdout, re.MULTILINE))
        if ended.returncode != 0 or len(rates) != 2:
            raise ContestantError(f"{self._command[0]} failed: {ended.stdout}{ended.stderr}")
        return {STEP: 1e3 / float(rates["step"]), PRODUCTS: 1e3 / float(rates["products alone"])}
