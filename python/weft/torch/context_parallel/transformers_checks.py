"""Checks of models of transformers, whose masks are made from this rank's tokens alone.

transformers leaves the mask of a sliding window, or of chunked attention, out if the tokens at hand fit into the window
or chunk. The check takes the place of the entry "sdpa" of the table in which models look up the functions of masks.

Thread safety: none. There is one open scope in a process at a time.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import torch
from weft.torch.context_parallel.redirection import open_target


class CheckedScope(Protocol):
    """What the checks read of a scope. `part`: tokens of this rank."""

    @property
    def ranks(self) -> int: ...

    def longest_document(self, part: int) -> int: ...

    def refuse(self, message: str) -> NoReturn:
        """Raises a ValueError, which other ranks meet in their next attention."""


class _CheckedEntry:
    """Takes the place of the entry "sdpa" of a table of transformers: checks a call, then calls the entry.

    There is one for all scopes of a process, for the reason given in redirection.py. torch.compile breaks the graph
    there. check: takes the scope and the arguments, and returns keyword arguments that replace those of the call.
    """

    def __init__(self, check: Callable[..., dict[str, Any]]) -> None:
        self._check = check
        self._entry: Callable[..., Any] | None = None
        self._function = torch.compiler.disable(self._call)

    def _call(self, *args, **kwargs) -> Any:
        assert self._entry is not None
        scope = open_target()
        if scope is not None and scope.ranks > 1:
            kwargs |= self._check(scope, *args, **kwargs)
        return self._entry(*args, **kwargs)

    @contextlib.contextmanager
    def installed_in(self, table: type) -> Iterator[None]:
        entry = self._entry = table()["sdpa"]
        table.register("sdpa", self._function)
        try:
            yield
        finally:
            table.register("sdpa", entry)


def _check_mask(scope: CheckedScope, *args, local_size: int | None = None, **kwargs) -> dict[str, Any]:
    """local_size: the window or chunk. kv_length: tokens of this rank."""
    if local_size is None:
        return {}
    longest = scope.longest_document(kwargs["kv_length"])
    if local_size < longest:
        scope.refuse(
            f"a sliding window or chunk of {local_size} tokens needs a mask in a sequence of {longest} tokens, but "
            "transformers makes it from this rank's tokens alone: give the model a mask over all tokens, "
            "[1, 1, tokens, tokens], as its attention_mask"
        )
    return {"local_size": None}  # It hides nothing.


@functools.cache
def _entries() -> tuple[tuple[str, str, _CheckedEntry], ...]:
    """Module and class of each table, and the check of its entry."""
    return (("transformers.masking_utils", "AttentionMaskInterface", _CheckedEntry(_check_mask)),)


@contextlib.contextmanager
def check_models_of_transformers() -> Iterator[None]:
    """Checks models whose modules have been imported, while the scope is open."""
    with contextlib.ExitStack() as installed:
        for module, name, entry in _entries():
            table = getattr(sys.modules.get(module), name, None)
            if table is not None:
                installed.enter_context(entry.installed_in(table))
        yield
