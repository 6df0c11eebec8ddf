"""Redirection of PyTorch's attention to the open scope, by whichever name a model calls it.

Thread safety: none. There is one open scope in a process at a time.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

# PyTorch's attention by all its names, also if F.scaled_dot_product_attention was replaced before this import.
_plain_attention = torch._C._nn.scaled_dot_product_attention
_ATTENTIONS = (
    _plain_attention,
    torch.ops.aten.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)


_SOFTMAXES = (F.softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax)


class AttentionTarget(Protocol):
    """A scope."""

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Takes the arguments of scaled_dot_product_attention."""

    def splits_to(self, tokens: int) -> bool:
        """True if the scope has split a sequence, and this rank has as many tokens of it."""


class _Redirection:
    """The function that takes the place of PyTorch's attention, and the scope that it calls.

    There is one function for all scopes of a process, so that torch.compile does not compile a block anew for each
    scope. It breaks the graph there instead of tracing exchanges.
    """

    def __init__(self) -> None:
        self.target: AttentionTarget | None = None
        self.function = torch.compiler.disable(self._attend)

    def _attend(self, *args, **kwargs) -> torch.Tensor:
        attend = _plain_attention if self.target is None else self.target.attend
        return attend(*args, **kwargs)


@functools.cache
def _redirection() -> _Redirection:
    return _Redirection()


def _are_scores(tensor: object) -> bool:
    """True for the form [..., tokens, tokens] of the scores of attention."""
    return isinstance(tensor, torch.Tensor) and tensor.dim() > 2 and tensor.shape[-1] == tensor.shape[-2]


@functools.cache  # Once in a process.
def warn_of_unsplit_attention() -> None:
    warnings.warn(
        "a softmax of [..., tokens, tokens] over this rank's tokens ran in a context_parallel scope. If this is an attention that is "
        "written out, it attends to this rank's tokens alone: use scaled_dot_product_attention, in models of transformers "
        "attn_implementation='sdpa'",
        RuntimeWarning,
        stacklevel=2,
    )


@torch.compiler.disable
def _note_scores(tokens: int) -> None:
    target = open_target()
    if target is not None and target.splits_to(tokens):
        warn_of_unsplit_attention()


class _AttentionMode(TorchFunctionMode):
    """Redirects calls through references to PyTorch's attention, refuses functions that compute it without the call, and
    warns of an attention that is written out."""

    def __init__(self, attend: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._attend = attend

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _ATTENTIONS:
            return self._attend(*args, **kwargs)
        if func in _SOFTMAXES:
            scores = args[0] if args else kwargs.get("input")
            if _are_scores(scores) and not torch.compiler.is_compiling():  # The warning is worth no break of a graph.
                _note_scores(scores.shape[-1])
        if func is torch.ops.higher_order.flex_attention:
            raise ValueError(
                "flex_attention computes attention on this rank's tokens alone: use scaled_dot_product_attention, "
                'in models of transformers attn_implementation="sdpa"'
            )
        if func is F.multi_head_attention_forward and kwargs.get("need_weights", True):
            raise ValueError(
                "multi_head_attention_forward with need_weights=True computes attention without "
                "scaled_dot_product_attention, on this rank's tokens alone: pass need_weights=False"
            )
        return func(*args, **kwargs)


@contextlib.contextmanager
def _keep_mode_in_backward(attend: Callable[..., torch.Tensor]) -> Iterator[None]:
    """PyTorch switches a mode off while its __torch_function__ runs, hence in backward(), whose recomputation needs
    it. All forms of backward start the engine by this function."""
    run = torch.autograd._engine_run_backward

    def run_with_mode(*args, **kwargs):
        with _AttentionMode(attend):
            return run(*args, **kwargs)

    torch.autograd._engine_run_backward = run_with_mode
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = run


def open_target() -> AttentionTarget | None:
    return _redirection().target


@contextlib.contextmanager
def redirect_attention(target: AttentionTarget) -> Iterator[None]:
    """Replaces the function for calls by name, and adds a mode for calls through references. REQUIRES: no scope is
    open."""
    redirection, previous = _redirection(), F.scaled_dot_product_attention
    redirection.target = target
    F.scaled_dot_product_attention = redirection.function
    try:
        with _keep_mode_in_backward(redirection.function), _AttentionMode(redirection.function):
            yield
    finally:
        F.scaled_dot_product_attention = previous
        redirection.target = None
