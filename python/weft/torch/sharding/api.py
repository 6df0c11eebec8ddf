"""fully_shard and the methods that it adds to modules."""

from __future__ import annotations

import copyreg
import math
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.tensor import Shard

from weft.torch.sharding.conversion import convert
from weft.torch.sharding.group import Group
from weft.torch.sharding.hooks import add_hooks, as_forward
from weft.torch.sharding.placement import check_mesh, default_mesh
from weft.torch.sharding.recovery import groups_of, reset, roots_of
from weft.torch.sharding.root import outermost, root_of
from weft.torch.sharding.zero_grad import clear_shards

if TYPE_CHECKING:
    from torch.distributed.fsdp import DataParallelMeshDims
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter


class UnshardHandle:
    """Handle of FSDPModule.unshard(async_op=True)."""

    def __init__(self, group: Group):
        self._group: Group | None = group

    def wait(self) -> None:
        """Blocks until the module is unsharded. Later calls do nothing."""
        group, self._group = self._group, None
        if group is not None:
            group.root.groups.wait_unshard(group.number)
            group.register_unsharded()


class FSDPModule:
    """Base class that fully_shard puts in front of a module's class. Its methods are those of FSDP2's FSDPModule.

    Setters take effect with the next forward or backward, and must be called alike on all ranks. With
    `recurse`, they also apply to all sharded modules below.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> nn.Module:
        # Slices of containers construct their own class: they get the original one, without sharding.
        original = cls.__mro__[2]
        module = original.__new__(original, *args, **kwargs)
        module.__init__(*args, **kwargs)
        return module

    # Gathering outside of passes.

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gathers the module's parameters. Collective. With `async_op`, starts to, and returns a handle to wait for."""
        group = self._weft_group
        if group.root is None:
            root_of(outermost(group))
        group.root.groups.unshard(group.number)
        handle = UnshardHandle(group)
        if async_op:
            return handle
        handle.wait()
        return None

    def reshard(self) -> None:
        """Reshards the module: frees its unsharded parameters, and registers the sharded ones."""
        self._weft_group.reshard()

    def reset_iter_state(self) -> None:
        """Recovers from an exception in a forward or backward: see weft.reset. Collective."""
        reset(self)

    # Setters.

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Off: the next backward does not wait for its reductions, and sets no gradients; a later one does."""
        group = self._weft_group
        holder = group if group.root is None else group.root
        holder.is_last_backward = is_last_backward

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Off: backward keeps whole gradients on each rank, and the next backward with it on reduces their sum."""
        self._set(recurse, requires_gradient_sync=requires_gradient_sync, requires_all_reduce=requires_gradient_sync)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """Off: backward reduces over the shard dim only; the next backward with it on reduces over the replicas."""
        self._set(recurse, requires_all_reduce=requires_all_reduce)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Sets whether the module is resharded between forward and backward."""
        if not isinstance(reshard_after_forward, bool):
            raise ValueError(f"reshard_after_forward must be a bool, but is {reshard_after_forward!r}")
        self._set(recurse, reshard_after_forward=reshard_after_forward)

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """Off: parameters stay gathered after backward, until a step of an optimizer or `load_state_dict` writes the shards.

        The module has its sharded parameters after backward in either case.
        """
        self._set(recurse, reshard_after_backward=reshard_after_backward)

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Modules to gather when this one begins its forward, instead of the next ones in the recorded order."""
        self._set(False, forward_prefetch=self._groups_to_prefetch(modules))

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        """Modules to gather when this one begins its backward."""
        self._set(False, backward_prefetch=self._groups_to_prefetch(modules))

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Off: backward does not gather the module, whose backward reads no parameter (an embedding)."""
        self._set(False, unshard_in_backward=unshard_in_backward)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divisor of the sum of gradients over all ranks. Default: the number of ranks."""
        if not 0 < factor < math.inf:
            raise ValueError(f"the divide factor must be positive and finite, but is {factor}")
        self._set(False, gradient_divide_factor=float(factor))

    def set_reduce_scatter_divide_factor(self, factor: float) -> None:
        """The name that older versions of PyTorch have for set_gradient_divide_factor."""
        self.set_gradient_divide_factor(factor)

    def set_all_reduce_hook(self, hook: Callable[[torch.Tensor], None], *, stream: object = None) -> None:
        """A hook on this rank's reduced gradients of the module, one tensor, which it may change in place, and keep.

        `stream` must be None: CPUs have no streams.
        """
        if stream is not None:
            raise ValueError(f"set_all_reduce_hook got the stream {stream!r}, but CPUs have no streams: leave it out")
        self._set(False, gradient_hook=hook)

    def set_reduce_scatter_unused_params(self, reduce_scatter_unused_params: bool, *, recurse: bool = True) -> None:
        """No effect: all ranks agree on the parameters that any of them has used, so none waits for another."""

    def set_reduce_scatter_max_input_buffers(self, max_input_buffers: int, *, recurse: bool = True) -> None:
        """No effect on the buffers, of which weft keeps two. Errors: TypeError, ValueError (not a positive int)."""
        if isinstance(max_input_buffers, bool) or not isinstance(max_input_buffers, int):
            raise TypeError(f"max_input_buffers must be an int, but is {max_input_buffers!r}")
        if max_input_buffers < 1:
            raise ValueError(f"max_input_buffers must be positive, but is {max_input_buffers}")

    def set_separate_reduce_scatter_group(self, enable: bool = True, *, recurse: bool = True) -> None:
        """No effect: gathers and reductions have lanes of their own."""

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """No effect: weft always adds first and divides afterwards."""

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """No effect: all buffers lie in node memory."""

    def set_post_optim_event(self, event: object) -> None:
        """No effect: a forward on CPUs begins after the optimizer's step has ended."""

    def set_custom_all_gather(self, comm: AllGather) -> None:
        """Gathers the module's parameters by a collective of the caller's over the shard dim.

        Call it before the model's first forward, as parameters are laid out for it. Each gather calls `comm(output_tensor,
        input_tensor, group, async_op=True)` with tensors of weft's, so `comm.allocate` is not called. It returns a Work, or None
        if it has ended. It is not called for a shard dim of one rank. An exception fails the model, as one in forward does.
        Errors: TypeError (not callable), RuntimeError (after the first forward). The first forward raises ValueError if a module of
        the model has an int as reshard_after_forward, whose regather groups have no process group.
        """
        self._check_custom("set_custom_all_gather", comm)
        self._set(False, custom_all_gather=comm)

    def set_custom_reduce_scatter(self, comm: ReduceScatter) -> None:
        """Reduces the module's gradients by a collective of the caller's over the shard dim.

        As set_custom_all_gather, with `comm(output_tensor, input_tensor, group, op, async_op=True)`. `op` is ReduceOp.SUM: weft
        divides the sum.
        """
        self._check_custom("set_custom_reduce_scatter", comm)
        self._set(False, custom_reduce_scatter=comm)

    def _check_custom(self, method: str, comm: object) -> None:
        if not callable(comm):
            raise TypeError(f"{method} takes a collective that can be called, but got {comm!r}")
        if self._weft_group.root is not None:
            raise RuntimeError(f"{method} must be called before the model's first forward, which lays the parameters out")

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> NoReturn:
        """Raises NotImplementedError: NCCL's symmetric memory is on GPUs."""
        raise NotImplementedError(
            f"symmetric memory of {backend} is on GPUs: remove the call; weft's buffers lie in memory that the ranks of a node share"
        )

    def _set_unshard_async_op(self, async_op: bool) -> None:
        """No effect: weft starts gathers without waiting for them."""

    def _get_fsdp_state(self) -> NoReturn:
        raise NotImplementedError(
            "a module sharded by weft.fully_shard has no FSDPState of PyTorch: use the methods of weft.FSDPModule, or torch's "
            "fully_shard with the backend 'weft'"
        )

    def _groups_to_prefetch(self, modules: list[FSDPModule]) -> list[Group]:
        for module in modules:
            if not isinstance(module, FSDPModule):
                raise ValueError(f"a module to prefetch must be sharded by weft.fully_shard, but is a {type(module).__name__}")
        group, others = self._weft_group, [module._weft_group for module in modules]
        if group.root is not None:  # Otherwise the first forward checks it.
            group.check_prefetch(others, group.root.all_groups)
        return others

    def _set(self, recurse: bool, **values: Any) -> None:
        for module in self.modules() if recurse else [self]:
            if isinstance(module, FSDPModule):
                for name, value in values.items():
                    setattr(module._weft_group.settings, name, value)
                module._weft_group.apply_settings()

    def zero_grad(self, *args: bool, **kwargs: bool) -> None:
        """Clears the gradients as zero_grad of the module's class, which need not call that of nn.Module, and those of the shards."""
        super().zero_grad(*args, **kwargs)
        clear_shards(self, *args, **kwargs)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], *args: Any, **kwargs: Any) -> nn.Module:
        return convert(self, self._weft_group, fn, lambda: super(FSDPModule, self)._apply(fn, *args, **kwargs))

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise AssertionError("a sharded module cannot be copied: save its state_dict, and load that into another model")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise pickle.PicklingError("a sharded module cannot be pickled: save its state_dict, and load that into another model")

    def __copy__(self) -> nn.Module:
        """As copy.copy does without __reduce_ex__."""
        copied = copyreg.__newobj__(type(self))
        copied.__setstate__(self.__dict__)
        return copied


def fully_shard(
    module: nn.Module | list[nn.Module],
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[nn.Parameter], Shard | None] | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    offload_policy: OffloadPolicy = OffloadPolicy(),
    ignored_params: set[nn.Parameter] | None = None,
    dp_mesh_dims: DataParallelMeshDims | None = None,
) -> nn.Module | list[nn.Module]:
    """Shards the parameters of a module over ranks, in place, as torch.distributed.fsdp.fully_shard does.

    Parameters below the module that no earlier call has taken become one group, so call it from the bottom up:
    for each block, then for the whole model. A group is gathered before the module's forward and backward, and
    its gradients are averaged over all ranks. Between steps, parameters are DTensors `[Shard(0)]` whose local
    tensors are masters in weft's node memory, in float32 or float64. A group has one dtype.

    Args:
        module: a module, or several that form one group.
        mesh: (shard) or (replicate, shard), over all ranks. Default: (shard) over all ranks.
        reshard_after_forward: whether modules are resharded between forward and backward. None: yes, but no
            for the root. An int k: one of k parts is kept, and backward gathers the rest from the other k - 1 ranks
            of its regather group. k divides the number of shard ranks; all of them means True, and 1 False. With
            another k, each rank gathers the images of the whole model, also where ranks share a node: use True on
            one node. A root takes one k.
        shard_placement_fn: returns `Shard(dim)` for a parameter that is to be cut on another dim, or None.
        mp_policy: dtypes. param_dtype and reduce_dtype: float32, bfloat16, float16 or float64. In float16
            gradients need torch.amp.GradScaler("cpu").
        offload_policy: must be the default; weft trains on CPUs.
        ignored_params: parameters that stay whole, with the caller.
        dp_mesh_dims: must be None: weft takes no mesh with dims of other kinds.

    Errors: ValueError (mesh; a parameter that is neither float32 nor float64, is a DTensor, has a gradient hook, belongs to or is
    shared with a module that is sharded already; options), which names the parameter and the remedy. TypeError (not a module; not a
    MixedPrecisionPolicy).
    """
    modules = (module,) if isinstance(module, nn.Module) else tuple(module)
    if not modules:
        raise ValueError("fully_shard got an empty list of modules: give it at least one")
    for each in modules:
        _check_module(each)
    if len(set(modules)) != len(modules):
        raise ValueError("fully_shard got a module twice in its list: give each module once")
    if not isinstance(mp_policy, MixedPrecisionPolicy):
        raise TypeError(f"mp_policy must be a MixedPrecisionPolicy, but is {mp_policy!r}: leave it out to compute in the dtype of the parameters")
    if type(offload_policy) is not OffloadPolicy:
        raise ValueError(
            f"offload_policy is {type(offload_policy).__name__}, but weft trains on CPUs, so there is nothing to offload to: "
            "leave offload_policy out"
        )
    if dp_mesh_dims is not None:
        raise ValueError(
            f"dp_mesh_dims is {dp_mesh_dims!r}, but weft.fully_shard takes meshes of data parallelism alone: leave it out, and give it the "
            "submesh of the shard dim, or of the replicate and the shard dim"
        )
    mesh = mesh if mesh is not None else default_mesh()
    check_mesh(mesh)
    reshard_after_forward = _check_reshard(reshard_after_forward, mesh)
    ignored = {id(param) for param in ignored_params or ()}
    classes = [sharded_class(type(each)) for each in modules]
    group = Group(modules, mesh, mp_policy, shard_placement_fn, ignored, reshard_after_forward)
    for each, sharded in zip(modules, classes, strict=True):
        each.__class__ = sharded
        object.__setattr__(each, "_weft_group", group)
    add_hooks(group)
    return module


def without_compiler(module: nn.Module) -> nn.Module:
    """The sharded module in the module that torch.compile has made of it. Other modules as they are."""
    inner = getattr(module, "_orig_mod", None)
    return inner if isinstance(inner, FSDPModule) and not isinstance(module, FSDPModule) else module


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Makes a method gather and reshard the module's parameters as forward does. No effect on modules that are not sharded."""
    module = without_compiler(module)
    if not isinstance(module, FSDPModule):
        return
    if not hasattr(module, method_name):
        raise ValueError(f"{type(module).__name__} has no method '{method_name}'")
    wrapped = as_forward(module._weft_group, getattr(module, method_name))
    setattr(module, method_name, wrapped.__get__(module, type(module)))


def prepare_writes(model: nn.Module) -> None:
    """Waits until no rank reads the shards of `model`, so that they may be written by hand.

    A backward of an earlier forward is an error afterwards.
    It is needed after a forward with gradients that got no backward, and after a backward with set_is_last_backward(False) or
    set_reshard_after_backward(False).
    Collective: all ranks of the mesh.
    """
    roots = roots_of(groups_of(model, "prepare_writes"))
    if not roots:
        raise ValueError("prepare_writes takes a model sharded by weft.fully_shard whose forward has run: before it, shards may be written")
    for root in roots:
        root.prepare_writes()


_classes: dict[type, type] = {}


def sharded_class(original: type) -> type:
    if original not in _classes:
        _classes[original] = type(f"FSDP{original.__name__}", (FSDPModule, original), {})
    return _classes[original]


def _check_module(module: nn.Module) -> None:
    if isinstance(module, FSDPModule):
        raise ValueError(f"{type(module).__name__} is sharded already: call fully_shard once for each module")
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(f"{type(module).__name__} takes no hooks: call fully_shard for the module from which torch.jit made it")
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)) and type(module).forward is nn.Module.forward:
        raise ValueError(f"fully_shard takes modules with a forward, not a {type(module).__name__}: give it the modules in a list")


def _check_reshard(reshard: bool | int | None, mesh: DeviceMesh) -> bool | int | None:
    if reshard is None or isinstance(reshard, bool):
        return reshard
    ranks = mesh.size(mesh.ndim - 1)
    if not isinstance(reshard, int) or reshard < 1 or ranks % reshard != 0:
        raise ValueError(f"reshard_after_forward must be a bool or a divisor of the {ranks} ranks of the shard dim, but is {reshard!r}")
    if reshard == 1:
        return False
    return True if reshard == ranks else reshard
