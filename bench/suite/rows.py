"""What the suite says: rows of measurements, the goals that they are held against, and tables of both. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from suite.statistics import Ratio, median, ratio, summarize


@dataclass(frozen=True)
class Goal:
    """`others` (the best of them) must take at least so many times what weft takes."""

    others: tuple[str, ...]
    at_least: float
    says: str


@dataclass(frozen=True)
class Row:
    """One thing that weft and others did in turns. Less is better."""

    what: str
    unit: str  # "ms" or "MB"
    weft: str  # The way that is held against the others.
    rounds: Mapping[str, Sequence[float]]  # By way, one value a round.
    missing: Mapping[str, str] = field(default_factory=dict)  # By way: why there is no value.
    goals: Sequence[Goal] = ()

    def ratio_to(self, other: str) -> Ratio:
        return ratio(self.rounds[other], self.rounds[self.weft])

    def best_of(self, others: Sequence[str]) -> str | None:
        measured = [other for other in others if other in self.rounds]
        return min(measured, key=lambda other: median(self.rounds[other]), default=None)


@dataclass(frozen=True)
class Verdict:
    what: str
    says: str
    at_least: float
    measured: Ratio | None  # None: nothing to compare with.
    note: str = ""

    @property
    def word(self) -> str:
        if self.measured is None:
            return "not measured"
        return "met" if self.measured.value >= self.at_least else "**missed**"


def verdicts_of(rows: Sequence[Row]) -> list[Verdict]:
    return [_verdict(row, goal) for row in rows for goal in row.goals]


def _verdict(row: Row, goal: Goal) -> Verdict:
    if row.weft not in row.rounds:
        return Verdict(row.what, goal.says, goal.at_least, None, row.missing.get(row.weft, ""))
    best = row.best_of(goal.others)
    if best is None:
        return Verdict(row.what, goal.says, goal.at_least, None, row.missing.get(goal.others[0], ""))
    return Verdict(row.what, goal.says, goal.at_least, row.ratio_to(best), best)


def measurements_table(rows: Sequence[Row]) -> str:
    lines = ["| what | way | median | quartiles | times weft | quartiles of rounds |", "|---|---|---|---|---|---|"]
    for row in rows:
        for way, values in row.rounds.items():
            lines.append(_line(row, way, values))
        lines += [f"| {row.what} | {way} | not measured: {_one_line(why)} | | | |" for way, why in row.missing.items()]
    return "\n".join(lines) + "\n"


def _line(row: Row, way: str, values: Sequence[float]) -> str:
    all_rounds = summarize(values)
    cells = [row.what, way, f"{_number(all_rounds.median)} {row.unit}", f"{_number(all_rounds.low)}-{_number(all_rounds.high)}"]
    if way == row.weft or row.weft not in row.rounds:
        cells += ["", ""]
    else:
        times = row.ratio_to(way)
        cells += [_number(times.value), f"{_number(times.low)}-{_number(times.high)}"]
    return "| " + " | ".join(cells) + " |"


def verdicts_table(verdicts: Sequence[Verdict]) -> str:
    lines = ["| what | goal | at least | measured | quartiles of rounds | against | |", "|---|---|---|---|---|---|---|"]
    for verdict in verdicts:
        measured, spread = "", ""
        if verdict.measured is not None:
            measured = _number(verdict.measured.value)
            spread = f"{_number(verdict.measured.low)}-{_number(verdict.measured.high)}"
        cells = [verdict.what, verdict.says, _number(verdict.at_least), measured, spread, _one_line(verdict.note), verdict.word]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    """Three digits that matter."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:300]
