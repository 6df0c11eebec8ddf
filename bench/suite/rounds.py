"""Measuring in turns: every round runs each way once, so that all meet the same weather."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from suite.contestants import ContestantError
from suite.progress import say
from suite.statistics import median


@dataclass(frozen=True)
class Way:
    """Something to measure. `measure` gives the repeats of one round."""

    name: str
    measure: Callable[[], Sequence[float]]


@dataclass(frozen=True)
class Measurements:
    rounds: dict[str, list[float]]
    missing: dict[str, str]  # Ways that failed, and why.

    def only(self, *names: str) -> Measurements:
        """Of these ways, as far as they were measured or failed."""
        rounds, missing = ({name: of[name] for name in names if name in of} for of in (self.rounds, self.missing))
        return Measurements(rounds, missing)


def in_turns(ways: Sequence[Way], rounds: int, scale: float = 1.0) -> Measurements:
    """A round's value is the median of its repeats. The first round only warms up. Each round begins with another way, and every
    other one goes backwards, so that what a way leaves behind is not always the same way's to bear. A way that fails is left out
    from then on."""
    result = Measurements({way.name: [] for way in ways}, {})
    for number in range(rounds + 1):
        direction = 1 if number % 2 == 0 else -1
        for way in (ways[(number + direction * place) % len(ways)] for place in range(len(ways))):
            if way.name in result.missing:
                continue
            try:
                value = median(way.measure()) * scale
            except ContestantError as error:
                say(f"    {way.name}: {error}")
                result.missing[way.name] = str(error)
                del result.rounds[way.name]
                continue
            if number > 0:
                result.rounds[way.name].append(value)
    return result
