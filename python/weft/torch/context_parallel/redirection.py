"""Redirection of PyTorch's attention to the open scope, by whichever name a model calls it.

Thread safety: none. There is one open scope in a process at a time.
"""

from __future__ import annotations

import contextlib
import functools
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


class AttentionTarget(Protocol):
    """A scope: takes the arguments of scaled_dot_product_attention."""

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor: ...


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


class _AttentionMode(TorchFunctionMode):
    """Redirects calls through references to PyTorch's attention, and refuses functions that compute it without the
    call."""

    def __init__(self, attend: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._attend = attend

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _ATTENTIONS:
            return self._attend(*args, **kwargs)
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
