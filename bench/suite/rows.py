"""Rows of measurements, the goals for them, and Markdown tables of both. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from suite.statistics import Ratio, median, ratio, summarize


def speedup_over(peer: str) -> str:
    """The text of a goal that is a ratio of times."""
    return f"{peer}'s time / weft's"


@dataclass(frozen=True)
class Goal:
    """The best of `others` must take at least `at_least` times as much as weft."""

    others: tuple[str, ...]
    at_least: float
    says: str  # The ratio, for the table.


@dataclass(frozen=True)
class Row:
    """One measurement of weft and of other variants, interleaved. Less is better."""

    what: str
    unit: str  # "ms" or "MB"
    weft: str  # The variant that is compared with the others.
    rounds: Mapping[str, Sequence[float]]  # One value per round, by variant.
    missing: Mapping[str, str] = field(default_factory=dict)  # The reason why there is no value, by variant.
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
    measured: Ratio | None  # None: weft or all others are missing.
    note: str = ""  # The baseline, or the reason why something is missing.
    without: Sequence[str] = ()  # Those of the goal's contestants that failed. They might be better than the baseline.

    @property
    def word(self) -> str:
        if self.measured is None:
            return "not measured"
        if self.measured.value < self.at_least:
            return "**missed**"
        return f"met, without {', '.join(self.without)}" if self.without else "met"


def verdicts_of(rows: Sequence[Row]) -> list[Verdict]:
    return [_verdict(row, goal) for row in rows for goal in row.goals]


def _verdict(row: Row, goal: Goal) -> Verdict:
    if row.weft not in row.rounds:
        return Verdict(row.what, goal.says, goal.at_least, None, row.missing.get(row.weft, ""))
    best = row.best_of(goal.others)
    if best is None:
        return Verdict(row.what, goal.says, goal.at_least, None, row.missing.get(goal.others[0], ""))
    without = [other for other in goal.others if other in row.missing]
    return Verdict(row.what, goal.says, goal.at_least, row.ratio_to(best), best, without)


def measurements_table(rows: Sequence[Row]) -> str:
    columns = ("measurement", "variant", "median", "quartiles", "relative to weft", "quartiles of rounds")
    lines = _header(columns)
    for row in rows:
        for variant, values in row.rounds.items():
            lines.append(_line(row, variant, values))
        for variant, reason in row.missing.items():
            lines.append(f"| {row.what} | {variant} | not measured: {_one_line(reason)} | | | |")
    return "\n".join(lines) + "\n"


def _header(columns: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]


def _line(row: Row, variant: str, values: Sequence[float]) -> str:
    all_rounds = summarize(values)
    quartiles = f"{_number(all_rounds.low)}-{_number(all_rounds.high)}"
    cells = [row.what, variant, f"{_number(all_rounds.median)} {row.unit}", quartiles]
    if variant == row.weft or row.weft not in row.rounds:
        cells += ["", ""]
    else:
        relative = row.ratio_to(variant)
        cells += [_number(relative.value), f"{_number(relative.low)}-{_number(relative.high)}"]
    return "| " + " | ".join(cells) + " |"


def verdicts_table(verdicts: Sequence[Verdict]) -> str:
    columns = ("measurement", "goal", "at least", "measured", "quartiles of rounds", "baseline", "result")
    lines = _header(columns)
    for verdict in verdicts:
        measured, spread = "", ""
        if verdict.measured is not None:
            measured = _number(verdict.measured.value)
            spread = f"{_number(verdict.measured.low)}-{_number(verdict.measured.high)}"
        cells = [verdict.what, verdict.says, _number(verdict.at_least), measured, spread, _one_line(verdict.note), verdict.word]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    """Three significant digits."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:300]
