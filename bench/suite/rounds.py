"""Interleaved measurements: every round runs each variant once, so that disturbances affect all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from suite.contestants import ContestantError
from suite.progress import log
from suite.statistics import median


@dataclass(frozen=True)
class Variant:
    """One thing to measure. `measure` returns the repeats of one round."""

    name: str
    measure: Callable[[], Sequence[float]]


@dataclass(frozen=True)
class Measurements:
    rounds: dict[str, list[float]]
    missing: dict[str, str]  # Variants that failed, with the reason.

    def only(self, *names: str) -> Measurements:
        """The measurements of the named variants. A name without measurement or failure is ignored."""
        rounds, missing = ({name: of[name] for name in names if name in of} for of in (self.rounds, self.missing))
        return Measurements(rounds, missing)


def measure_interleaved(variants: Sequence[Variant], rounds: int, scale: float = 1.0) -> Measurements:
    """Measures all variants in each of `rounds` rounds, after a warm-up round.

    The value of a round is the median of its repeats, times `scale`. Each round starts with another variant, and every second
    round runs in reverse order, so that no variant always follows the same one. A variant that fails is skipped from then on.
    """
    result = Measurements({variant.name: [] for variant in variants}, {})
    for number in range(rounds + 1):
        direction = 1 if number % 2 == 0 else -1
        for variant in (variants[(number + direction * place) % len(variants)] for place in range(len(variants))):
            if variant.name in result.missing:
                continue
            try:
                value = median(variant.measure()) * scale
            except ContestantError as error:
                log(f"    {variant.name}: {error}")
                result.missing[variant.name] = str(error)
                del result.rounds[variant.name]
                continue
            if number > 0:
                result.rounds[variant.name].append(value)
    return result
