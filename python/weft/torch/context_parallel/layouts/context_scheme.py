"""Scheme by which the ranks of a context group share attention.

The ranks form two levels, outer x inner. Inner ranks are adjacent. They exchange heads for tokens with an all-to-all
(Ulysses): each rank gets all tokens of its inner group, for some of the heads. Outer ranks exchange keys and values
of the heads that they have, by a gather or in a ring. The number of inner ranks and the outer exchange decide the
kind:

    ulysses    all ranks are inner: two all-to-alls of 1/P of the tensors each
    gather     all ranks are outer: all gather keys and values, and keep them for backward
    ring       all ranks are outer: keys and values visit one rank after the other, again in backward
    hybrid     both levels have several ranks; the outer level gathers, or is a ring

docs/context_parallel.md compares the schemes.
"""

from __future__ import annotations

from dataclasses import dataclass

SCHEMES = ("auto", "ulysses", "gather", "ring", "hybrid")
RING_ROTATIONS = ("shift", "all-gather")


@dataclass(frozen=True)
class ContextScheme:
    """REQUIRES: `ulysses_degree` divides the ranks.

    ulysses_degree: inner ranks. 1: no exchange of heads.
    ring_rotate: the outer level is a ring. "shift": each rank passes a block to the next rank while it computes the
      block. "all-gather": one collective brings all blocks while the rank computes its own, in forward and again in
      backward, so that nothing gathered stays in memory between the two. None: the outer level gathers and keeps.
    load_balance: "head-tail" or "none", see SequenceLayout.
    """

    ulysses_degree: int
    ring_rotate: str | None = None
    load_balance: str = "none"

    def kind(self, ranks: int) -> str:
        """One of "ulysses", "gather", "ring" and "hybrid", for a group of `ranks`."""
        # A degree of 1 means no exchange of heads even if the group has one rank.
        if self.ulysses_degree == 1:
            return "ring" if self.ring_rotate else "gather"
        return "ulysses" if self.ulysses_degree == ranks else "hybrid"

    def outer_ranks(self, ranks: int) -> int:
        """Ranks of the outer level, which exchange keys and values."""
        return ranks // self.ulysses_degree

    def describe(self, ranks: int) -> str:
        """As in "hybrid, 2 x ulysses 4, ring by shift, head-tail"."""
        kind = self.kind(ranks)
        text = kind
        if kind == "hybrid":
            outer = "ring" if self.ring_rotate else "gather"
            text += f", {self.outer_ranks(ranks)} x ulysses {self.ulysses_degree}, {outer}"
        if self.ring_rotate and kind != "ulysses":
            text += f" by {self.ring_rotate}"
        return text if self.load_balance == "none" else f"{text}, {self.load_balance}"


def divisors_of(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _join(values: list[int]) -> str:
    return ", ".join(str(value) for value in values)


def _check_choice(name: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}: use one of {', '.join(repr(choice) for choice in choices)}")


@dataclass(frozen=True)
class SchemeRequest:
    """Request of the caller: a scheme by name, and options that narrow it.

    Errors of the constructor: ValueError, each with the remedy.
    """

    ranks: int
    scheme: str = "auto"
    ulysses_degree: int | None = None
    ring_rotate: str | None = None
    load_balance: str | None = None

    def __post_init__(self) -> None:
        _check_choice("scheme", self.scheme, SCHEMES)
        if self.ring_rotate is not None:
            _check_choice("ring_rotate", self.ring_rotate, RING_ROTATIONS)
        if self.load_balance is not None:
            _check_choice("load_balance", self.load_balance, ("none", "head-tail"))
        self._check_degree()
        if self.ring_rotate is not None and self.scheme not in ("ring", "hybrid"):
            raise ValueError(
                f"ring_rotate is {self.ring_rotate!r}, but scheme {self.scheme!r} has no ring: leave it out, or "
                "use scheme 'ring' "
                "or 'hybrid'"
            )

    def _check_degree(self) -> None:
        divisors = divisors_of(self.ranks)
        if self.scheme == "hybrid" and len(divisors) <= 2:
            raise ValueError(
                f"scheme 'hybrid' needs a degree between 1 and the {self.ranks} ranks of the mesh that divides "
                "them, and there is "
                "none: use scheme 'ulysses', 'gather' or 'ring'"
            )
        degree = self.ulysses_degree
        if degree is None:
            return
        if degree not in divisors:
            raise ValueError(
                f"a ulysses_degree of {degree} does not divide the {self.ranks} ranks of the mesh: use one of "
                f"{_join(divisors)}"
            )
        allowed = {"ulysses": [self.ranks], "gather": [1], "ring": [1], "hybrid": divisors[1:-1], "auto": divisors}[
            self.scheme
        ]
        if degree not in allowed:
            raise ValueError(
                f"scheme {self.scheme!r} on {self.ranks} ranks allows a ulysses_degree of {_join(allowed)}, not "
                f"{degree}: leave the "
                "degree out, or choose another scheme"
            )

    @property
    def is_explicitly_balanced(self) -> bool:
        return self.load_balance == "head-tail"

    @property
    def resolved_balance(self) -> str:
        """Head-tail, unless the caller said otherwise or the scheme is surely Ulysses, which is balanced without
        it."""
        if self.load_balance is not None:
            return self.load_balance
        by_heads = self.scheme == "ulysses" or (self.scheme == "auto" and self.ulysses_degree == self.ranks)
        return "none" if by_heads else "head-tail"

    def candidates(self) -> list[ContextScheme]:
        """Schemes that the request allows, the highest degree first. `auto` considers no ring: rings move more bytes
        than gathers, and serve sequences whose gathered keys and values do not fit in memory."""
        rotate = self.ring_rotate or ("shift" if self.scheme == "ring" else None)
        degrees = {"ulysses": [self.ranks], "gather": [1], "ring": [1]}.get(self.scheme, divisors_of(self.ranks)[::-1])
        if self.scheme == "hybrid":
            degrees = degrees[1:-1]
        if self.ulysses_degree is not None:
            degrees = [self.ulysses_degree]
        elif self.scheme == "auto" and self.is_explicitly_balanced and self.ranks > 1:
            degrees = [degree for degree in degrees if degree < self.ranks]
        return [ContextScheme(degree, rotate, self.resolved_balance) for degree in degrees]
