"""Comparison of contestants' results by the checksums of bench/formula.h."""

from __future__ import annotations

import math
from collections.abc import Sequence

from suite.contestants import ContestantError, Reply
from suite.setting import MissingContestant, Peer

# Largest difference between the sums of a run, relative to the root of its sum of squares. weft and PyTorch differ by up to 3e-6 in f32.
# In bf16 they differ by up to 0.022, in the backward of attention. One wrong element of a run makes a difference of about 0.03, one wrong
# tile more than 1.
TOLERANCE = {"f32": 1e-4, "bf16": 0.05}

SMALLEST = 1e-300  # In place of 0 as a divisor.


def checked(weft: Peer, other: Peer, request: dict[str, object]) -> Peer:
    """`weft` if its results of a request with a `dtype` agree with the other's, otherwise a replacement that fails with the reason."""
    try:
        ours, theirs = (sum_over_ranks(peer.request("check", **request)) for peer in (weft, other))
    except ContestantError:
        return weft  # The contestant that failed is missing in the row, with its reason.
    difference = largest_difference(ours, theirs)
    if difference <= TOLERANCE[str(request["dtype"])]:
        return weft
    return MissingContestant(f"weft's result is wrong: its checksums differ from {other.name}'s by {difference:.2g}")


def sum_over_ranks(replies: Sequence[Reply]) -> Reply:
    """Adds the checksums of the parts that ranks hold."""
    return {name: [math.fsum(values) for values in zip(*(reply[name] for reply in replies), strict=True)] for name in replies[0]}


def largest_difference(ours: Reply, theirs: Reply) -> float:
    """Over all results and runs: the difference of the sums, relative to the root of the sum of squares.

    Infinite if one is not a number, or if the two do not have the same results of the same sizes.
    """
    if {name: len(values) for name, values in ours.items()} != {name: len(values) for name, values in theirs.items()}:
        return math.inf
    differences = [
        abs(a - b) / (math.sqrt(squares) or SMALLEST)
        for name in theirs
        if name.endswith(".sums")
        for a, b, squares in zip(ours[name], theirs[name], theirs[name.replace(".sums", ".squares")], strict=True)
    ]
    return math.inf if any(map(math.isnan, differences)) else max(differences)
