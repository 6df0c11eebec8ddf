"""Documents of the rows of a batch, from ids or offsets as a caller gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from weft.torch.context_parallel.layouts.documents import (
    RowDocuments,
    document_lengths,
    offsets_of_ids,
    parse_documents,
)


class BatchDocuments:
    """rows: offsets of the documents of each row; one row if all are the same. shared: those offsets, or None."""

    def __init__(self, rows: Sequence[tuple[int, ...]]) -> None:
        self.shared = rows[0] if all(row == rows[0] for row in rows) else None
        self.rows = (self.shared,) if self.shared else tuple(rows)

    @property
    def tokens(self) -> int:
        return self.rows[0][-1]

    def layout_lengths(self) -> tuple[int, ...]:
        """Documents that a layout splits one by one. Rows with documents of their own are split as one sequence."""
        return document_lengths(self.shared) if self.shared else (self.tokens,)

    def of_rows(self, batch: int) -> list[RowDocuments]:
        """Errors: ValueError (documents of another number of rows)."""
        if self.shared:
            return [RowDocuments(slice(0, batch), self.shared)]
        if len(self.rows) != batch:
            raise ValueError(
                f"documents are given for {len(self.rows)} rows, but q, k and v have a batch of {batch}: give one "
                "row each"
            )
        return [RowDocuments(slice(row, row + 1), offsets) for row, offsets in enumerate(self.rows)]


def _guess_tokens(values: Sequence[int]) -> int:
    """Length of the sequence if nothing else tells it: offsets end with it, ids have one for each token."""
    ascends = all(first < second for first, second in zip(values, values[1:], strict=False))
    return values[-1] if len(values) > 1 and values[0] == 0 and ascends else len(values)


def read_documents(documents: Any, tokens: int | None) -> BatchDocuments:
    """`documents`: ids [tokens] or [batch, tokens], or offsets. `tokens`: None if not known. Errors: ValueError."""
    values = documents.tolist() if isinstance(documents, torch.Tensor) else list(documents)
    if not values:
        raise ValueError("documents are empty: give one id for each token, or offsets, or leave them out")
    if not isinstance(values[0], (list, tuple)):
        return BatchDocuments([parse_documents(values, _guess_tokens(values) if tokens is None else tokens)])
    expected = len(values[0]) if tokens is None else tokens
    for row, ids in enumerate(values):
        if len(ids) != expected:
            raise ValueError(
                f"row {row} of documents has {len(ids)} ids for {expected} tokens: give one id for each token"
            )
    return BatchDocuments([offsets_of_ids(ids) for ids in values])
