"""Comparison of the updates that ranks have made."""

from __future__ import annotations

from weft.torch._session import counts_of_ranks
from weft.torch.sharding.root import Root


def compare_updates(roots: list[Root]) -> None:
    """Raises RuntimeError if a rank lacks a step of an optimizer that another has made. Collective.

    An exception of a rank that is ahead ends the backward of its peers. They drop the gradients of a step that it has made.
    """
    counts = counts_of_ranks([root.updates for root in roots])
    late: set[int] = set()
    for number, root in enumerate(roots):
        root.updates = max(of_rank[number] for of_rank in counts)  # A checkpoint makes the ranks equal.
        late.update(rank for rank, of_rank in enumerate(counts) if of_rank[number] < root.updates)
    if late:
        raise RuntimeError(
            f"ranks without the last update of '{roots[0].group.name}': {', '.join(map(str, sorted(late)))}. An exception of a rank that was "
            "ahead ended their backward, so the weights of the ranks differ: load a checkpoint on all ranks, then go on"
        )
