"""The parameters of one fully_shard call, which are gathered and reduced together."""

from __future__ import annotations

import itertools
import pickle
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Shard

from weft.torch.sharding.arguments import check_dtype, check_module, check_parameter, managed_modules, shard_dim_of
from weft.torch.sharding.parameter import ShardedParameter, mark_replaced
from weft.torch.sharding.placement import Placement

if TYPE_CHECKING:
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

    from weft.torch.sharding.root import Call, Root

_DTYPE_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}


_groups: weakref.WeakValueDictionary[int, Group] = weakref.WeakValueDictionary()
_group_numbers = itertools.count()


@dataclass
class GroupSettings:
    """Values of FSDPModule's setters. A group keeps them, and hands them to the schedule once there is one."""

    reshard_after_forward: bool | int | None = None  # None: True, but False for the root.
    reshard_after_backward: bool = True
    requires_gradient_sync: bool = True
    requires_all_reduce: bool = True
    unshard_in_backward: bool = True
    gradient_divide_factor: float | None = None  # None: the number of ranks.
    forward_prefetch: list[Group] | None = None
    backward_prefetch: list[Group] | None = None
    gradient_hook: Callable[[torch.Tensor], None] | None = None
    custom_all_gather: AllGather | None = None
    custom_reduce_scatter: ReduceScatter | None = None

    @property
    def has_custom_collectives(self) -> bool:
        return self.custom_all_gather is not None or self.custom_reduce_scatter is not None


@dataclass
class ForwardState:
    """What forwards of a group have begun and not ended. A reset replaces it as a whole."""

    calls: list[Call] = field(default_factory=list)
    to_run: set[nn.Module] = field(default_factory=set)  # Modules whose forward this use of the group has not run yet.
    forwards: list[nn.Module] = field(default_factory=list)  # Modules whose forward runs, the innermost last.
    # The module whose forward has returned, and the exception that is handled around it, until the last hook of this forward.
    ended: tuple[nn.Module, BaseException | None] | None = None
    methods: set[nn.Module] = field(default_factory=set)  # Modules of which a method that is registered as a forward runs.


@dataclass
class BackwardState:
    """What calls of a group have begun in the backward under way. The end of the backward and a reset replace it as a whole."""

    has_begun: bool = False  # A call has begun its backward.
    open_calls: int = 0  # Calls that have begun their backward and not ended it.
    recomputes: list[Call] = field(default_factory=list)  # Forward calls under way; they may have ended early.


class Group:
    """The modules of one fully_shard call, and the parameters below them that no other call has taken."""

    def __init__(
        self,
        modules: tuple[nn.Module, ...],
        mesh: DeviceMesh,
        mp_policy: MixedPrecisionPolicy,
        shard_placement_fn: Callable[[nn.Parameter], Shard | None] | None,
        ignored: set[int],
        reshard_after_forward: bool | int | None,
    ):
        self.modules = modules
        self.mesh = mesh
        self.mp_policy = mp_policy
        self.settings = GroupSettings(reshard_after_forward=reshard_after_forward)
        self.root: Root | None = None  # Set by the root's first forward, with the number and the name.
        self.number = -1
        self.name = type(modules[0]).__name__
        self.dtype = torch.float32  # Of the masters, once the group has a root.
        self.is_last_backward = True  # For a later root.
        self.forward_state = ForwardState()
        self.backward_state = BackwardState()
        self.parameters: list[ShardedParameter] = []
        self.is_converting = False  # A conversion of a module is under way, which ends with adopt_registered.
        self._registered: list[int] | None = None  # Addresses of the gathered parameters, if the modules have these.
        self._has_values = False  # The gathered parameters have the values that backward needs, also if they are not registered.
        self._shard(shard_placement_fn, ignored)
        _groups[next(_group_numbers)] = self

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise AssertionError("a part of a sharded module cannot be copied: save the module's state_dict, and load that into another model")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise pickle.PicklingError("a part of a sharded module cannot be pickled: save the module's state_dict, and load that into another model")

    @property
    def is_initialized(self) -> bool:
        return self.root is not None

    # Construction.

    def _shard(self, shard_placement_fn: Callable[[nn.Parameter], Shard | None] | None, ignored: set[int]) -> None:
        """Makes the sharded parameters and registers them. If it raises, the modules are as before."""
        managed = managed_modules(self.modules)
        owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
        for module in managed:
            for name, param in module._parameters.items():
                if param is not None and id(param) not in ignored:
                    owners.setdefault(param, []).append((module, name))
        paths = {id(param): path for module in self.modules for path, param in reversed(list(module.named_parameters()))}
        for module in managed:
            check_module(module, paths, ignored)
        for param, places in owners.items():
            check_parameter(param, paths[id(param)], self.name, owner_of(param))
            shard = shard_placement_fn(param) if shard_placement_fn is not None else None
            dim = shard_dim_of(shard, param, paths[id(param)], self.mesh)
            self.parameters.append(ShardedParameter(self, len(self.parameters), param, places, Placement.of(param, self.mesh, dim)))
        for param, sharded in zip(owners, self.parameters, strict=True):
            try:
                sharded.register_sharded()
            except BaseException:  # A module with a __setattr__ of its own.
                for original, registered in zip(owners, self.parameters, strict=True):
                    registered.restore(original)
                raise
        for module in managed:
            object.__setattr__(module, "_is_fsdp_managed_module", True)  # Dynamo reads both.
            object.__setattr__(module, "_fsdp_use_orig_params", True)
        for module, _ in itertools.chain.from_iterable(owners.values()):
            object.__setattr__(module, "_weft_part_of", self)
        for param in owners:  # Another module or an optimizer may still have it.
            param._weft_sharded_by = self.name
            mark_replaced(param, paths[id(param)], self.name, "fully_shard")

    def agree_on_dtype(self) -> None:
        """Takes the dtype of the masters from the parameters. Raises ValueError unless they agree on one that masters may have."""
        for parameter in self.parameters:
            check_dtype(parameter.sharded.dtype, parameter.name, self.name)
            first = self.parameters[0]
            if parameter.sharded.dtype != first.sharded.dtype:
                raise ValueError(
                    f"the parameters of '{self.name}' must have one dtype, but '{first.name}' is {first.sharded.dtype} and "
                    f"'{parameter.name}' is {parameter.sharded.dtype}: convert one of them, or call fully_shard for the modules "
                    "of each dtype"
                )
            parameter.placement = Placement.of(parameter.sharded, self.mesh, parameter.placement.shard_dim)
            self.dtype = first.sharded.dtype

    def arguments(self, parent: int) -> tuple:
        """The description that ShardedGroups.create takes."""
        param_dtype = self.mp_policy.param_dtype or self.dtype
        reduce_dtype = self.mp_policy.reduce_dtype or param_dtype
        parameters = []
        for parameter in self.parameters:
            parameter.trained = parameter.sharded.requires_grad
            placement = parameter.placement
            parameters.append((parameter.name, list(placement.shape), parameter.trained, placement.shard_dim))
        return (self.name, parent, _dtype_name(self.dtype), _dtype_name(param_dtype), _dtype_name(reduce_dtype), parameters)

    def adopt_masters(self) -> None:
        """Moves the sharded parameters to weft's memory. REQUIRES: shards may be written."""
        masters = dict(self.root.groups.masters(self.number))
        for parameter in self.parameters:
            if parameter.index in masters:
                parameter.adopt_master(masters[parameter.index])

    def check_conversion(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Raises as check_values if the parameters that `convert` makes, as nn.Module._apply calls it, could not be masters.
        Before the first forward, any can."""
        for parameter in self.parameters[:1] if self.is_initialized else []:
            parameter.check_values(convert(torch.empty(1, dtype=self.dtype, device="cpu")))

    def adopt_registered(self) -> None:
        """Takes the parameters that the modules have now. If one cannot be taken, raises, and registers those from before.
        Other groups keep what they have taken.

        REQUIRES: shards may be written.
        """
        self._registered = None
        self._set_has_values(False)
        try:
            for parameter in self.parameters:
                parameter.check_adoption()
        except (ValueError, RuntimeError):
            for parameter in self.parameters:
                parameter.register_sharded()
            raise
        for parameter in self.parameters:
            parameter.adopt_registered()

    # Registration of the sharded or the unsharded parameters in the modules.

    def register_sharded(self) -> None:
        self._set_has_values(False)
        if self._registered is None:
            return
        self._registered = None
        for parameter in self.parameters:
            parameter.register_sharded()

    def reshard(self) -> None:
        """Frees the gathered parameters, and registers the sharded ones."""
        if self.root is not None:
            if self.root.groups.is_being_unsharded(self.number):
                self.root.groups.wait_unshard(self.number)
            self.root.groups.reshard(self.number)
        self.register_sharded()

    def register_unsharded(self) -> None:
        """Registers the gathered parameters. REQUIRES: they are gathered."""
        for parameter in self.parameters:
            parameter.check_registered()
        addresses = self.root.groups.data_addresses(self.number)
        self._set_has_values(True)
        if addresses == self._registered:
            for parameter in self.parameters:
                parameter.follow_requires_grad()
            return
        for parameter, address in zip(self.parameters, addresses, strict=True):
            parameter.register_unsharded(address)
        self._registered = addresses

    def register_current(self) -> None:
        """Registers what the schedule has left of the group."""
        if self.root.groups.is_unsharded(self.number):
            self.register_unsharded()
        else:
            self.register_sharded()

    def register_after_forward(self) -> None:
        """Registers the sharded parameters if the group reshards after forward, also where the schedule keeps the gathered values."""
        if self.reshards_after_forward:
            self.register_sharded_beside_values()
        else:
            self.register_current()

    def register_sharded_beside_values(self) -> None:
        """Registers the sharded parameters. A backward may still read the gathered values that the schedule has left, if the gathered
        parameters lie there: this rank may not have used a group that was gathered again."""
        groups = self.root.groups
        has_values = groups.is_unsharded(self.number) and groups.data_addresses(self.number) == [p.address for p in self.parameters]
        self.register_sharded()
        self._set_has_values(has_values)

    def _set_has_values(self, has_values: bool) -> None:
        """Says whether the gathered parameters have their values. Autograd refuses to read one that has not."""
        if has_values == self._has_values:
            return
        self._has_values = has_values
        for parameter in self.parameters:
            parameter.mark_values(has_values)

    @property
    def reshards_after_forward(self) -> bool:
        reshard = self.settings.reshard_after_forward
        return self is not self.root.group if reshard is None else bool(reshard)

    # Gradients.

    def check_backward(self, name: str) -> None:
        """Raises RuntimeError if a backward read other values than the parameters', as nothing told of it. `name`: of a parameter
        whose gradient it computed."""
        if not self._has_values and not self.backward_state.has_begun and self is not self.root.group:
            raise RuntimeError(
                f"a backward computed the gradient of '{name}', but passed through no output of '{self.name}' that weft sees, so it had "
                "other values than the parameters. Return tensors in tuples, lists, dicts, dataclasses or types registered with "
                "torch.utils._pytree, and do not change outputs in place that are views of other tensors, or set "
                "reshard_after_forward=False"
            )

    def assign_gradients(self) -> list[ShardedParameter]:
        """Sets the reduced gradients, and returns the parameters that have one."""
        groups = self.root.groups
        flags = groups.reduced_parameters(self.number)
        if not any(flags):
            return []
        pieces = dict(groups.reduced_gradients(self.number))
        reduced = [parameter for parameter, has_gradient in zip(self.parameters, flags, strict=True) if has_gradient]
        for parameter in reduced:
            parameter.assign_gradient(pieces.get(parameter.index))
        return reduced

    def follow_gradients(self) -> None:
        """Lets gradients view the reduced sum after it has moved to other memory. Others may hold its earlier memory."""
        with torch.inference_mode(False):  # A forward in it may be the first to forget gradients.
            pieces = dict(self.root.groups.reduced_gradients(self.number))
            for parameter in self.parameters:
                parameter.follow_gradient(pieces.get(parameter.index))

    # Settings.

    def apply_settings(self) -> None:
        """Hands the settings to the schedule."""
        if self.root is None:
            return
        groups, number, settings = self.root.groups, self.number, self.settings
        groups.set_reshard_after_forward(number, self.reshards_after_forward)
        groups.set_reshard_after_backward(number, settings.reshard_after_backward)
        groups.set_requires_gradient_sync(number, settings.requires_gradient_sync)
        groups.set_requires_all_reduce(number, settings.requires_all_reduce)
        groups.set_unshard_in_backward(number, settings.unshard_in_backward)
        groups.set_gradient_divide_factor(number, float(settings.gradient_divide_factor or self.mesh.size()))
        if settings.forward_prefetch is not None:
            groups.set_forward_prefetch(number, [group.number for group in settings.forward_prefetch])
        if settings.backward_prefetch is not None:
            groups.set_backward_prefetch(number, [group.number for group in settings.backward_prefetch])
        groups.set_gradient_hook(number, None if settings.gradient_hook is None else _weakly(self._run_gradient_hook))
        if settings.custom_all_gather is not None:
            groups.set_custom_all_gather(number, _weakly(self._all_gather))
        if settings.custom_reduce_scatter is not None:
            groups.set_custom_reduce_scatter(number, _weakly(self._reduce_scatter))

    def _run_gradient_hook(self, gradient: torch.Tensor) -> None:
        own = gradient.clone()  # The caller may keep it: weft's memory ends with the hook.
        self.settings.gradient_hook(own)
        gradient.copy_(own)

    def _all_gather(self, gathered: torch.Tensor, part: torch.Tensor) -> dist.Work | None:
        return self.settings.custom_all_gather(output_tensor=gathered, input_tensor=part, group=self._shard_group(), async_op=True)

    def _reduce_scatter(self, output: torch.Tensor, parts: torch.Tensor) -> dist.Work | None:
        return self.settings.custom_reduce_scatter(
            output_tensor=output, input_tensor=parts, group=self._shard_group(), op=dist.ReduceOp.SUM, async_op=True
        )

    def _shard_group(self) -> dist.ProcessGroup:
        return self.mesh.get_group(self.mesh.ndim - 1)

    def check_prefetch(self, others: list[Group], groups: list[Group]) -> None:
        """Raises ValueError if one of `others` is none of the root's `groups`."""
        for group in others:
            if group not in groups:
                raise ValueError(f"'{self.name}' cannot prefetch '{group.name}', which is not below the same root")


def all_groups() -> list[Group]:
    """The groups that live, in the order of the calls of fully_shard, which is that of all ranks."""
    return list(_groups.values())


def group_of_part(module: nn.Module) -> Group | None:
    """The group that has parameters of the module itself."""
    return module.__dict__.get("_weft_part_of")


def owner_of(param: nn.Parameter) -> str | None:
    """The name of the group of which `param` is a sharded or unsharded form."""
    if not isinstance(param, DTensor) and not hasattr(param, "_weft_parameter"):
        return None
    return next((group.name for group in all_groups() for p in group.parameters if param is p.sharded or param is p.unsharded), None)


def _weakly(method: Callable) -> Callable:
    """A method of a group for the schedule, which must not hold the group: Python does not see that the schedule is part of a cycle."""
    held = weakref.WeakMethod(method)
    return lambda *arguments: held()(*arguments)


def _dtype_name(dtype: torch.dtype) -> str:
    if dtype not in _DTYPE_NAMES:
        raise ValueError(f"mp_policy names {dtype}: weft gathers and reduces in float32, bfloat16, float16 or float64")
    return _DTYPE_NAMES[dtype]
