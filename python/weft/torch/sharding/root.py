"""A root: the groups of a model, their memory and schedule, and the pass under way."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import warnings
import weakref
from collections import deque
from collections.abc import Iterator

import torch
from torch.autograd import Variable

from weft._core import Session, ShardedGroups, release_private_memory
from weft.torch._session import session_of_models
from weft.torch.sharding.group import BackwardState, ForwardState, Group, all_groups
from weft.torch.sharding.group_tree import collect, name_all
from weft.torch.sharding.parameter import ShardedParameter
from weft.torch.sharding.placement import check_mesh, mesh_axes

# In the order of the first forwards, which is that of all ranks.
_roots: weakref.WeakValueDictionary[int, Root] = weakref.WeakValueDictionary()
_root_numbers = itertools.count()


class Pass:
    """One forward of a root. Everything that can start its backward holds it."""

    _numbers = itertools.count(1)

    def __init__(self, root: Root):
        self.number = next(Pass._numbers)
        self.gradients = torch.is_grad_enabled()
        # The collector may run anywhere: the schedule learns of it at the next forward.
        weakref.finalize(self, root.dead_passes.append, self.number)


class Call:
    """One forward call of a group in a pass, and its place in backward."""

    __slots__ = ("begun", "depth", "group", "owner")

    def __init__(self, group: Group, owner: Pass, depth: int):
        self.group = group
        self.owner = owner
        self.depth = depth  # Forward calls around it.
        self.begun = False  # True while its backward is under way.


class Root:
    """The groups below `group.modules[0]`, which become a root by the first forward of that module.

    The schedule is weft's. Each method here is called by a hook; an error of the schedule fails the root on all
    ranks until `reset`.
    """

    def __init__(self, group: Group):
        session = session_of_models()
        self.group = group
        if len(group.modules) != 1:
            raise RuntimeError(
                f"the {len(group.modules)} modules of fully_shard([...]) cannot be a root: call the forward of a module above them, "
                "sharded by fully_shard"
            )
        try:
            groups, options = self._describe()
        except Exception as error:
            _tell_peers(session, error)
            raise
        self.dead_passes: deque[int] = deque()
        self.forward_depth = 0  # Forward calls of groups that have not returned.
        self.forward_pass: Pass | None = None
        self.backward_pass: Pass | None = None
        self.is_last_backward = group.is_last_backward
        self.begun_calls: list[Call] = []  # Calls whose backward is under way.
        self.failure: str | None = None  # Of a forward of this rank, until a reset.
        self.unreduced: str | None = None  # A parameter whose gradient came before a backward of the root began.
        self.updates = 0  # Steps of optimizers that have begun.
        self.groups = ShardedGroups.create(session, mesh_axes(group.mesh), groups, **options)
        with torch.inference_mode(False):  # Tensors of an evaluation could not be trained.
            for other in self.all_groups:
                other.root = self
                other.adopt_masters()
        _return_freed_memory()  # That of the shards, which lie in the masters now.
        if not _roots:
            atexit.register(_close_all)  # Before the session, which was made earlier, ends.
        _roots[next(_root_numbers)] = self
        for other in self.all_groups:
            other.apply_settings()

    def _describe(self) -> tuple[list[tuple], dict[str, object]]:
        """Collects the groups. Returns their descriptions and the options that ShardedGroups.create takes."""
        root = self.group
        self.all_groups, parents = collect(root)
        for other in self.all_groups:
            if other.mesh != root.mesh:
                raise ValueError(f"'{other.name}' has another mesh than its root '{root.name}': give all calls of fully_shard one mesh")
        check_mesh(root.mesh)
        for number, group in enumerate(self.all_groups):
            group.number = number
        name_all(self.group.modules[0], self.all_groups)
        for group in self.all_groups:
            group.agree_on_dtype()
            for parameter in group.parameters:
                parameter.check_values(parameter.sharded._local_tensor)
            for others in (group.settings.forward_prefetch, group.settings.backward_prefetch):
                group.check_prefetch(others or [], self.all_groups)
        sizes = {g.settings.reshard_after_forward for g in self.all_groups if _is_size(g.settings.reshard_after_forward)}
        if len(sizes) > 1:
            raise ValueError(f"reshard_after_forward names several sizes, {sorted(sizes)}: one root takes one size")
        custom = [group for group in self.all_groups if group.settings.custom_all_gather is not None]
        if sizes and custom:
            raise ValueError(
                f"'{custom[0].name}' has a custom all-gather, but reshard_after_forward={sizes.pop()} gathers over a regather group "
                "without a process group: use True or False"
            )
        dims = [p.placement.shard_dim for g in self.all_groups for p in g.parameters]
        groups = [group.arguments(parent) for group, parent in zip(self.all_groups, parents, strict=True)]
        options = {
            "in_rows": all(dim == 0 for dim in dims) and not any(g.settings.has_custom_collectives for g in self.all_groups),
            "reshard_after_forward_size": sizes.pop() if sizes else 0,
            "gradient_divide_factor": float(root.mesh.size()),
        }
        return groups, options

    def parameters(self) -> Iterator[ShardedParameter]:
        return (parameter for group in self.all_groups for parameter in group.parameters)

    @property
    def norm_dtype(self) -> torch.dtype:
        """The widest dtype of gradients."""
        return max((group.dtype for group in self.all_groups), key=lambda dtype: dtype.itemsize)

    @property
    def is_in_backward(self) -> bool:
        return self.backward_pass is not None

    # Forward.

    def begin_forward(self, group: Group) -> Call:
        """Gathers a group for its forward."""
        if self.forward_depth == 0:
            self._begin_pass()
        call = Call(group, self.forward_pass, self.forward_depth)
        if group is not self.group:
            self.groups.before_forward(group.number, call.owner.number, call.owner.gradients)
        group.register_unsharded()
        self.forward_depth += 1
        return call

    def _begin_pass(self) -> None:
        if self.unreduced is not None:
            raise RuntimeError(
                f"no gradient was reduced: a backward computed that of '{self.unreduced}', but passed through no output of "
                f"'{self.group.name}' that weft sees. Return tensors in tuples, lists, dicts, dataclasses or types registered with "
                "torch.utils._pytree, do not change outputs in place that are views of other tensors, and run backward after the "
                "forward; to go on, call weft.reset(model) on all ranks"
            )
        while self.dead_passes:
            self.groups.abandon(self.dead_passes.popleft())
        self.forget_stale_sums()
        self.forward_pass = Pass(self)
        self.groups.before_forward(0, self.forward_pass.number, self.forward_pass.gradients)
        self.group.register_unsharded()

    def begin_recompute(self, group: Group) -> Call:
        """Gathers a group for a forward inside a backward, as activation checkpoints run it."""
        if torch._C._current_graph_task_id() == -1:
            raise RuntimeError(f"the last backward of '{self.group.name}' failed: call weft.reset(model) on all ranks, then go on")
        owner = self.backward_pass
        if group.backward_state.open_calls == 0 and group is not self.group:
            # Its backward has not begun. The group then stays unsharded until it has. The recompute may end
            # without a call of end_forward.
            self.groups.before_forward(group.number, owner.number, owner.gradients)
            self.groups.after_forward(group.number, owner.number, owner.gradients)
        group.register_unsharded()
        return Call(group, owner, 0)

    def end_forward(self, call: Call) -> None:
        """Reshards a group after its forward, if it does not stay for backward."""
        group, current = call.group, call.owner
        if group is not self.group:
            self.groups.after_forward(group.number, current.number, current.gradients)
            group.register_after_forward()
        self.forward_depth = call.depth  # Calls inside may have failed.
        if self.forward_depth > 0:
            return
        self.forward_pass = None
        self.groups.after_forward(0, current.number, current.gradients)
        for group in [self.group] if current.gradients else self.all_groups:
            group.register_after_forward()

    # Backward.

    def begin_backward(self, call: Call) -> None:
        """Gathers a group for the backward of one of its calls."""
        group = call.group
        if self.forward_depth > 0 and not self.is_in_backward:
            # torch.autograd.grad in a forward: the parameters are read, and get no gradients.
            self.groups.unshard(group.number)
            self.groups.wait_unshard(group.number)
            group.register_unsharded()
            return
        if not self.is_in_backward:
            self._begin_backward_of_root(call.owner)
        if call.begun:
            return
        call.begun = True
        if group is self.group:
            self.groups.before_backward(0, call.owner.number, True)
            return
        group.backward_state.has_begun = True
        group.backward_state.open_calls += 1
        self.begun_calls.append(call)
        self.groups.before_backward(group.number, call.owner.number, True)
        if group.settings.unshard_in_backward:
            group.register_unsharded()

    def _begin_backward_of_root(self, owner: Pass) -> None:
        self.forget_stale_sums()
        for parameter in self.parameters():
            parameter.begin_accumulation()
        self.groups.set_is_last_backward(self.is_last_backward)
        self.groups.before_backward(0, owner.number, True)
        self.backward_pass = owner
        self.unreduced = None
        if self.group.settings.unshard_in_backward:
            self.group.register_unsharded()
        Variable._execution_engine.queue_callback(_EndOfBackward(self, owner))
        for parameter in self.parameters():
            parameter.warn_of_hooks()  # After the callback, which tells the peers of an exception: a filter may make one of a warning.
        if torch.is_grad_enabled():  # create_graph.
            for parameter in self.parameters():
                parameter.set_gradient_aside()

    def end_backward(self, call: Call) -> None:
        """Reduces and reshards a group after the backward of one of its calls."""
        if not call.begun or call.group is self.group:
            return
        call.begun = False
        self.begun_calls.remove(call)
        call.group.backward_state.open_calls -= 1
        self.groups.after_backward(call.group.number)
        call.group.register_current()

    def _finish_backward(self) -> None:
        for call in reversed(list(self.begun_calls)):  # Those whose inputs require no gradient.
            self.end_backward(call)
        self.groups.after_backward(0)
        self.groups.finish_backward()
        self.backward_pass = None
        for group in self.all_groups:
            group.backward_state = BackwardState()
            group.register_sharded_beside_values()
        for parameter in self.parameters():
            parameter.end_accumulation()
        if self.is_last_backward:
            reduced = [parameter for group in self.all_groups for parameter in group.assign_gradients()]
            for parameter in reduced:  # A hook may step an optimizer: all gradients are in place before the first.
                parameter.run_gradient_hooks()

    # Gradients and shards between passes.

    def forget_stale_sums(self) -> None:
        """Forgets reduced gradients that the caller has cleared or replaced, so that the next ones are not added to them.

        REQUIRES: the same ones on all ranks.
        Errors: RuntimeError (reductions are under way). Then nothing is forgotten, and the next call tries again.
        """
        stale = [parameter for parameter in self.parameters() if parameter.has_stale_sum()]
        if not stale:
            return
        self.groups.forget_reduced_gradients([(parameter.group.number, parameter.index) for parameter in stale])
        for group in {parameter.group: None for parameter in stale}:
            group.follow_gradients()
        for parameter in stale:  # Last: what raises before leaves all of them stale.
            parameter.note_forgotten_sum()

    def prepare_writes(self) -> None:
        """Makes sure that shards may be written. Collective where they were read since. Passes that had a forward get no backward."""
        self.groups.prepare_writes()
        for group in self.all_groups:
            group.register_current()

    # Failures.

    def stop_after(self, error: BaseException, group: Group) -> None:
        """Fails the root on all ranks if `error` leaves the outermost forward call, which is one of `group`."""
        if self.is_in_backward or not group.forward_state.calls or group.forward_state.calls[-1].depth > 0:
            return
        self._stop(f"{type(error).__name__} in the forward of '{group.name}': {error}")

    def stop_after_hook(self, error: BaseException, group: Group) -> None:
        """Fails the root on all ranks if `error` leaves a hook after the outermost forward call, which is one of `group`."""
        if not self.is_in_backward and self.forward_depth == 0:
            self._stop(f"{type(error).__name__} in a hook after the forward of '{group.name}': {error}")

    def stop_if_interrupted(self, group: Group, module: torch.nn.Module) -> None:
        """Fails the root on all ranks if a forward of `module` has begun and not ended: PyTorch runs no hook for KeyboardInterrupt."""
        if module in group.forward_state.forwards and not self.is_in_backward:
            self._stop(f"the forward of '{group.name}' was interrupted")

    def _stop(self, cause: str) -> None:
        self.failure = cause
        self.groups.stop(cause)

    def check_forward(self) -> None:
        """Raises RuntimeError after a forward of this rank that failed."""
        if self.failure is not None:
            raise RuntimeError(f"{self.failure}; call weft.reset(model) on all ranks, then go on")

    def reset(self) -> None:
        self.failure = None
        self.groups.stop(f"reset of '{self.group.name}'")
        self.groups.reset_after_error()
        self.forward_depth = 0
        self.forward_pass = None
        self.backward_pass = None
        self.begun_calls.clear()
        self.unreduced = None
        for group in self.all_groups:
            group.forward_state = ForwardState()
            group.backward_state = BackwardState()
            group.register_sharded()
            for parameter in group.parameters:
                parameter.forget_gradient()


class _EndOfBackward:
    """Callback of the autograd engine at the end of a backward.

    After an exception, the engine drops its callbacks uncalled. The peers then learn of it, instead of waiting.
    """

    def __init__(self, root: Root, owner: Pass):
        self._root = root
        self._owner = owner
        self._is_called = False

    def __call__(self) -> None:
        self._is_called = True
        self._root._finish_backward()

    def __del__(self) -> None:
        if not self._is_called and self._root.backward_pass is self._owner:
            self._root.groups.stop(f"exception in the backward of '{self._root.group.name}'")


def _tell_peers(session: Session, error: Exception) -> None:
    """Ends the creation of the groups on all ranks. Those without an error of their own raise this one, as ValueError.

    Waits until all ranks create groups, for at most the timeout.
    """
    warnings.warn(f"{error} (this rank waits for the others, to tell them)", RuntimeWarning, stacklevel=2)
    with contextlib.suppress(Exception):  # The caller raises `error`, also if the peers do not come.
        ShardedGroups.create(session, [], [], error=str(error))


def root_of(group: Group) -> Root:
    """The root of a group that has run a forward; otherwise `group` becomes a root."""
    if group.root is None:
        Root(group)
    return group.root


def outermost(group: Group) -> Group:
    """The group of one module that contains `group` and as many other modules as any: the root, once it runs. Of equals the first
    that was made, as on all ranks."""
    module = group.modules[0]
    around = [other for other in all_groups() if len(other.modules) == 1 and module in set(other.modules[0].modules())]
    return max(around, key=lambda other: len(list(other.modules[0].modules())), default=group)


def _is_size(reshard: bool | int | None) -> bool:
    return isinstance(reshard, int) and not isinstance(reshard, bool)


def _return_freed_memory() -> None:
    """Returns the pages of free blocks to the system: of the private heap, and of malloc's if that is glibc's."""
    release_private_memory()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def all_roots() -> list[Root]:
    """The roots that have had a forward and live."""
    return list(_roots.values())


def _close_all() -> None:
    for root in all_roots():
        root.groups.close()
