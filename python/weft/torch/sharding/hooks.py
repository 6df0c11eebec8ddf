"""Hooks on the modules of a group, and on the tensors that enter and leave them.

    before forward    the group is gathered; inputs are cast, and tell when the group's backward ends
    after forward     the group is resharded; outputs tell when the group's backward begins
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from weft import _c10d
from weft.torch.sharding.containers import map_tensors, replace_trained_tensors, trained_tensors
from weft.torch.sharding.group import Group
from weft.torch.sharding.root import Call, root_of


class _EndOfBackward(torch.autograd.Function):
    """Passes inputs of a group on. When their gradients are there, the group's backward has ended."""

    @staticmethod
    def forward(ctx: Any, call: Call, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        return inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        call = ctx.call
        call.group.root.end_backward(call)
        return (None, *gradients)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return tuple(None if tangent is None else tangent.view_as(tangent) for tangent in tangents)


def _watch_inputs(call: Call, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    if not torch.is_grad_enabled():
        return args, kwargs
    trained = trained_tensors((args, kwargs))
    if not trained:
        return args, kwargs
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise RuntimeError(
            f"a transform of torch.func runs through '{call.group.name}' to differentiate backward: use torch.autograd.grad, or a model "
            "that is not sharded"
        )
    return replace_trained_tensors((args, kwargs), _EndOfBackward.apply(call, *trained))


@torch._disable_dynamo
def _begin_backward(call: Call, gradient: Tensor) -> Tensor:
    call.group.root.begin_backward(call)
    return gradient


def _watch_outputs(call: Call, output: Any) -> Any:
    """Returns the output, with tensors in it that keep a hook of this pass."""
    if not torch.is_grad_enabled():
        return output
    trained = trained_tensors(output)
    hookable = {id(tensor): _hookable(tensor) for tensor in trained}
    if any(hookable[id(tensor)] is not tensor for tensor in trained):
        output = replace_trained_tensors(output, [hookable[id(tensor)] for tensor in trained])
    # The module may have kept the first tensor, and use it in a loss.
    watched = {id(tensor): tensor for tensor in (*trained, *hookable.values()) if not tensor.is_leaf}
    for tensor in watched.values():
        tensor.register_hook(functools.partial(_begin_backward, call))
    return output


def _hookable(tensor: Tensor) -> Tensor:
    """The tensor, or another one in its memory: a hook on a parameter would stay for later passes, and a view that is changed in place
    loses its hooks."""
    return tensor.view_as(tensor) if tensor.is_leaf else _c10d.owned_if_sole_view(tensor)


def cast_floating(dtype: torch.dtype | None, tree: Any) -> Any:
    """Casts all floating-point tensors; None: nothing."""
    if dtype is None:
        return tree
    return map_tensors(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, tree)


def _cast_inputs(group: Group, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    return cast_floating(group.mp_policy.param_dtype, (args, kwargs)) if group.mp_policy.cast_forward_inputs else (args, kwargs)


def before_forward(group: Group, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    root = root_of(group)
    root.check_forward()
    args, kwargs = _cast_inputs(group, args, kwargs)
    if module in group.forward_state.methods:
        return args, kwargs  # The hooks of the method are at work.
    if root.is_in_backward:
        call = root.begin_recompute(group)
        group.backward_state.recomputes.append(call)
        if group.backward_state.open_calls > 0 or group is root.group:
            return args, kwargs  # The hooks of the first forward are at work.
        return _watch_inputs(call, args, kwargs)
    if group.forward_state.to_run:  # A later module of a group of several.
        group.register_unsharded()
        return args, kwargs
    call = root.begin_forward(group)
    group.forward_state.to_run.update(group.modules)
    group.forward_state.calls.append(call)
    if group is root.group:  # Its backward ends with that of the pass.
        return args, kwargs
    return _watch_inputs(call, args, kwargs)


def after_forward(group: Group, module: nn.Module, output: Any) -> Any:
    root = group.root
    if module in group.forward_state.methods:
        return cast_floating(group.mp_policy.output_dtype, output)
    if root.is_in_backward:
        call = group.backward_state.recomputes.pop()
        if group.backward_state.open_calls == 0 and group is not root.group:
            output = _watch_outputs(call, output)
        return cast_floating(group.mp_policy.output_dtype, output)
    group.forward_state.to_run.discard(module)
    is_outermost = group.forward_state.calls[-1].depth == 0
    if is_outermost:
        for other in reversed(root.all_groups):  # Groups of several modules, some of which did not run.
            if other.forward_state.to_run and other is not group:
                output = _end_call(other, output)
    if not group.forward_state.to_run or is_outermost:
        output = _end_call(group, output)
    return cast_floating(group.mp_policy.output_dtype, output)


def _end_call(group: Group, output: Any) -> Any:
    group.forward_state.to_run.clear()
    call = group.forward_state.calls.pop()
    group.root.end_forward(call)
    return _watch_outputs(call, output)


def add_hooks(group: Group) -> None:
    @torch._disable_dynamo
    def before(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if _calls_itself(group, module):
            changed = _cast_inputs(group, args, kwargs)
        else:
            if group.root is not None:
                group.root.stop_if_interrupted(group, module)
            changed = before_forward(group, module, args, kwargs)
        _move_to_end(module._forward_hooks, last_hooks[module])
        group.forward_state.forwards.append(module)
        group.forward_state.ended = None  # A KeyboardInterrupt may have ended the last hook of a forward.
        return changed

    @torch._disable_dynamo
    def after(module: nn.Module, args: tuple, output: Any) -> Any:
        _leave_forward(group, module)
        group.forward_state.ended = (module, sys.exc_info()[1])
        if _calls_itself(group, module):
            return cast_floating(group.mp_policy.output_dtype, output)
        return after_forward(group, module, output)

    @torch._disable_dynamo
    def after_failure(module: nn.Module, args: tuple, output: Any) -> None:
        ended, group.forward_state.ended = group.forward_state.ended, None
        has_ended = ended is not None and ended[0] is module
        # An exception that is handled around this forward shows here too; `ended` has it.
        error = sys.exc_info()[1]
        if error is None or (has_ended and error is ended[1]):
            return
        if not has_ended:
            _leave_forward(group, module)
        if group.root is None or _calls_itself(group, module):
            return
        if has_ended:
            group.root.stop_after_hook(error, group)
        else:
            group.root.stop_after(error, group)

    last_hooks: dict[nn.Module, int] = {}  # Later hooks may raise, too: each forward moves this one behind them.
    for module in group.modules:
        module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        module.register_forward_hook(after)
        last_hooks[module] = module.register_forward_hook(after_failure, always_call=True).id
    for module in {owner: None for parameter in group.parameters for owner, _ in parameter.owners}:
        # Copies of a module copy the arguments of these, and groups refuse that.
        module.register_state_dict_pre_hook(functools.partial(_before_state_dict, group))
        module.register_load_state_dict_pre_hook(functools.partial(_before_load, group))
        module.register_load_state_dict_post_hook(functools.partial(_after_load, group))


def _move_to_end(hooks: OrderedDict[int, Callable], number: int) -> None:
    if number in hooks and next(reversed(hooks)) != number:
        hooks.move_to_end(number)


def _leave_forward(group: Group, module: nn.Module) -> None:
    if group.forward_state.forwards and group.forward_state.forwards[-1] is module:
        group.forward_state.forwards.pop()


def _calls_itself(group: Group, module: nn.Module) -> bool:
    """In a hook of a forward of `module`: whether another forward of it is around this one. The hooks of the outermost are at work then.

    After a KeyboardInterrupt, of which PyTorch tells no hook, `forwards` has the module although none is.
    """
    if module not in group.forward_state.forwards:
        return False
    frames = (frame for frame in _frames_around(sys._getframe()) if frame.f_code.co_name == "_call_impl")
    calls = (frame for frame in frames if frame.f_locals.get("self") is module)
    return len(list(itertools.islice(calls, 2))) == 2


def _frames_around(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those around it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _before_state_dict(group: Group, *_: Any) -> None:
    group.register_sharded()


def _after_load(group: Group, *_: Any) -> None:
    group.adopt_registered()


def _before_load(group: Group, *_: Any) -> None:
    if group.is_initialized:
        group.root.prepare_writes()
    group.register_sharded()


def as_forward(group: Group, method: Callable) -> Callable:
    """The method between the hooks of a forward."""

    @functools.wraps(method)
    def wrapped(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self in group.forward_state.forwards:  # The hooks of the forward are at work.
            args, kwargs = _cast_inputs(group, args, kwargs)
            return cast_floating(group.mp_policy.output_dtype, method(*args, **kwargs))
        args, kwargs = before_forward(group, self, args, kwargs)
        is_outermost = self not in group.forward_state.methods
        group.forward_state.methods.add(self)
        try:
            output = method(*args, **kwargs)
        except BaseException as error:  # Also KeyboardInterrupt.
            group.root.stop_after(error, group)
            raise
        finally:
            if is_outermost:
                group.forward_state.methods.discard(self)
        return after_forward(group, self, output)

    return wrapped
