"""Section `compute`: the GFLOP/s of a step against the same matrix products alone, on one rank with one thread."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

from suite.contestants import ContestantError
from suite.launch import ONE_THREAD
from suite.progress import log
from suite.rounds import Variant, measure_interleaved
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
        log(f"  {what}")
        rates = Rates(setting, dtype)
        variants = [Variant(STEP, lambda: [rates.take(STEP)]), Variant(PRODUCTS, lambda: [rates.take(PRODUCTS)])]
        measured = measure_interleaved(variants, setting.rounds(ROUNDS))
        goals = [Goal((PRODUCTS,), 0.75, "rate of the step / rate of its products alone")] if dtype == "f32" else []
        yield Row(what, "ms / GFLOP", STEP, measured.rounds, measured.missing, goals)


class Rates:
    """Milliseconds per GFLOP. One run of the program measures both variants, interleaved, and serves one round of each."""

    def __init__(self, setting: Setting, dtype: str) -> None:
        self._command = [str(setting.program("model_step")), str(LENGTH), str(REPEATS), dtype]
        self._unread: dict[str, float] = {}

    def take(self, variant: str) -> float:
        """A value that no earlier call has returned."""
        if variant not in self._unread:
            self._unread = self._run()
        return self._unread.pop(variant)

    def _run(self) -> dict[str, float]:
        environment = {**os.environ, **ONE_THREAD}
        ended = subprocess.run(self._command, env=environment, capture_output=True, text=True)
        rates = dict(re.findall(r"^  (step|products alone) .* ([\d.]+) GFLOP/s$", ended.stdout, re.MULTILINE))
        if ended.returncode != 0 or len(rates) != 2:
            raise ContestantError(f"{self._command[0]} failed: {ended.stdout}{ended.stderr}")
        return {STEP: 1e3 / float(rates["step"]), PRODUCTS: 1e3 / float(rates["products alone"])}
