"""Checks of models of transformers, whose masks and rotary frequencies are made from this rank's tokens alone.

transformers leaves the mask of a sliding window, or of chunked attention, out if the tokens at hand fit into the window
or chunk. With attn_implementation="eager" it computes attention in other operations, which no scope splits. Rotary
embeddings of the types "longrope" and "dynamic" choose their frequencies by the highest position at hand. transformers
drops is_causal for one query, which it takes for decoding. The checks take the place of entries of the two tables in
which models look up the functions of masks and of attention.

Thread safety: none. There is one open scope in a process at a time.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import torch
from weft.torch.context_parallel.redirection import open_target


class CheckedScope(Protocol):
    """What the checks read of a scope. `part`: tokens of this rank."""

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    def longest_document(self, part: int) -> int: ...

    def token_counts(self, part: int) -> Sequence[int]:
        """Tokens of each rank."""

    def position_ends(self, part: int) -> list[int]:
        """For each rank, the number that follows the highest position of its tokens."""

    def refuse(self, message: str) -> NoReturn:
        """Raises a ValueError, which other ranks meet in their next attention."""


class _CheckedEntry:
    """Takes the place of an entry of a table of transformers: checks a call, then calls the entry.

    There is one for all scopes of a process, for the reason given in redirection.py. torch.compile breaks the graph
    there. key: of the entry. check: takes the scope and the arguments, and returns keyword arguments that replace those of the call.
    """

    def __init__(self, key: str, check: Callable[..., dict[str, Any]]) -> None:
        self._key = key
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
        entry = self._entry = table()[self._key]
        table.register(self._key, self._function)
        try:
            yield
        finally:
            table.register(self._key, entry)


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


def _check_eager_mask(scope: CheckedScope, *args, **kwargs) -> dict[str, Any]:
    """Refuses the mask of a model over this rank's tokens. A model over others, such as an encoder of images, is right. Without
    buffers, the scope does not know them apart."""
    tokens = kwargs["kv_length"]
    if tokens == scope.token_counts(tokens)[scope.rank]:
        scope.refuse(
            "attn_implementation='eager' computes attention without scaled_dot_product_attention, on this rank's tokens alone: "
            "use attn_implementation='sdpa'"
        )
    return {}


def _rotary_parameters(config: Any) -> list[Mapping[str, Any]]:
    """Those of all types of layers."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(parameters, Mapping):
        return []
    by_layer_type = [value for value in parameters.values() if isinstance(value, Mapping)]
    return by_layer_type or [parameters]


def _rotary_type(parameters: Mapping[str, Any]) -> str:
    return parameters.get("rope_type", parameters.get("type", "default"))


def _depends_on_positions(parameters: Mapping[str, Any]) -> bool:
    return _rotary_type(parameters) == "longrope" or "dynamic" in _rotary_type(parameters)


def _chooses_alike(config: Any, parameters: Mapping[str, Any], ends: Sequence[int]) -> bool:
    """True if all ranks choose the frequencies that one rank with all positions chooses. REQUIRES: they depend on
    positions."""
    if _rotary_type(parameters) == "longrope":
        limit = parameters.get("original_max_position_embeddings", config.max_position_embeddings)
        return len({end > limit for end in ends}) == 1
    # Below the limit, a rank that has grown its frequencies in an earlier forward takes the original ones again. From
    # there on it keeps them, and others may have grown theirs less.
    return max(ends) < config.max_position_embeddings


def _check_is_causal(
    scope: CheckedScope,
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    *args,
    **kwargs,
) -> None:
    """Refuses causal attention if a rank has one token. All ranks refuse it alike, as they know the tokens of each."""
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if not is_causal or attention_mask is not None or query.shape[2] != key.shape[2]:
        return
    counts = scope.token_counts(query.shape[2])
    ranks = [rank for rank, count in enumerate(counts) if count == 1]
    if ranks:
        scope.refuse(
            f"a sequence of {sum(counts)} tokens leaves one token on ranks {ranks} of {len(counts)}, for which transformers drops "
            "is_causal, so that it would attend to later tokens: use a longer sequence or fewer ranks, so that each has at least 2 "
            "tokens, or register an attention function that calls scaled_dot_product_attention with is_causal=True"
        )


def _check_attention(
    scope: CheckedScope, module: torch.nn.Module, query: torch.Tensor, *args, **kwargs
) -> dict[str, Any]:
    _check_is_causal(scope, module, query, *args, **kwargs)
    config = getattr(module, "config", None)
    for parameters in _rotary_parameters(config):
        if not _depends_on_positions(parameters):
            continue
        ends = scope.position_ends(query.shape[2])
        if not _chooses_alike(config, parameters, ends):
            kind = _rotary_type(parameters)
            scope.refuse(
                f"rotary embeddings of the type {kind!r} choose their frequencies by the highest position at hand, and "
                f"the positions of the ranks end at {ends}: use a type with fixed frequencies, such as 'yarn'"
                + (", or load_balance 'head-tail'" if kind == "longrope" else "")
            )
    return {}


@functools.cache
def _entries() -> tuple[tuple[str, str, _CheckedEntry], ...]:
    """Module and class of each table, and the check of its entry."""
    return (
        ("transformers.masking_utils", "AttentionMaskInterface", _CheckedEntry("sdpa", _check_mask)),
        ("transformers.masking_utils", "AttentionMaskInterface", _CheckedEntry("eager", _check_eager_mask)),
        ("transformers.modeling_utils", "AttentionInterface", _CheckedEntry("sdpa", _check_attention)),
    )


@contextlib.contextmanager
def check_models_of_transformers() -> Iterator[None]:
    """Checks models whose modules have been imported, while the scope is open."""
    with contextlib.ExitStack() as installed:
        for module, name, entry in _entries():
            table = getattr(sys.modules.get(module), name, None)
            if table is not None:
                installed.enter_context(entry.installed_in(table))
        yield
