"""Quantiles, summaries and ratios of repeated measurements. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def quantile(values: Sequence[float], part: float) -> float:
    """Interpolates linearly between neighbors, like numpy's default."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values to take a quantile of")
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(values: Sequence[float]) -> float:
    return quantile(values, 0.5)


def geometric_mean(values: Sequence[float]) -> float:
    """REQUIRES: all values are positive."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


@dataclass(frozen=True)
class Summary:
    """A median with its quartiles."""

    low: float
    median: float
    high: float
    count: int


def summarize(values: Sequence[float]) -> Summary:
    return Summary(quantile(values, 0.25), median(values), quantile(values, 0.75), len(values))


@dataclass(frozen=True)
class Ratio:
    """`value` is the ratio of the medians over all rounds; `low` and `high` are the quartiles of the rounds' own ratios."""

    value: float
    low: float
    high: float


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """REQUIRES: both have one value per round, in the order of rounds. A disturbed round then affects both sides of its ratio."""
    if len(numerators) != len(denominators):
        raise ValueError(f"both sides need one value per round; got {len(numerators)} and {len(denominators)}")
    rounds = [above / below for above, below in zip(numerators, denominators)]
    return Ratio(median(numerators) / median(denominators), quantile(rounds, 0.25), quantile(rounds, 0.75))
