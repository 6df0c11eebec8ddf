"""One parameter of a group: its sharded form, its unsharded form, and its gradient."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from weft import _c10d
from weft.torch.sharding.placement import Placement

if TYPE_CHECKING:
    from weft.torch.sharding.group import Group


class ShardedParameter:
    """A parameter of `group`.

    `sharded` is a DTensor. Its local tensor is ordinary memory until `adopt_master` puts the values in weft's
    memory; the object stays the same, so that an optimizer made before that stays right. `unsharded` views the image
    of the group, and is what modules compute with.
    """

    def __init__(self, group: Group, index: int, param: nn.Parameter, owners: list[tuple[nn.Module, str]], placement: Placement):
        self.group = group
        self.index = index
        self.owners = owners  # All modules and names that share the parameter.
        self.placement = placement
        self.name = owners[0][1]  # The root's first forward puts the path of the module in front.
        self.sharded = nn.Parameter(placement.distributed(placement.local_part(param)), requires_grad=param.requires_grad)
        self.master: Tensor | None = None  # None before the first forward, and if the rank owns nothing.
        self.unsharded: nn.Parameter | None = None
        self.address = 0  # Address of the unsharded values; 0 before the first use.
        self._version = 0  # Of the unsharded form while it has its values.
        self.trained = param.requires_grad  # True if its group has a place for its gradient.
        self._required_gradient = False  # As both forms did when the unsharded one was last registered.
        self._is_hooked = False  # True if the unsharded form has the hook that takes its gradient.
        self._gradient: DTensor | None = None  # The gradient that assign_gradient set. It views weft's reduced sum.
        self._is_aside = False  # `_gradient` is not in `.grad` during a backward that makes a graph.
        self._adds_to_external = False  # `.grad` was not weft's when the backward of the root began.
        self._is_in_external = False  # The reduced sum was added to an external gradient.
        self._has_warned = False  # Of hooks that see no gradient.
        self._views: dict[int, Tensor] = {}  # Views of gradient images, by address.

    # Registration of the sharded or the unsharded form in the modules.

    def _register(self, param: nn.Parameter) -> None:
        for module, name in self.owners:
            if module._parameters.get(name) is None:
                continue  # The caller has removed it: the next forward or load tells.
            if type(module).__setattr__ is nn.Module.__setattr__:
                module._parameters[name] = param
            else:
                setattr(module, name, param)

    def check_registered(self) -> None:
        """Raises RuntimeError if a module has another parameter, as during torch.func.functional_call, or none: it would have no effect."""
        self._check_is_there()
        for module, name in self.owners:
            registered = module._parameters[name]
            if registered is not self.sharded and registered is not self.unsharded:
                raise RuntimeError(
                    f"parameter '{self.name}' of '{self.group.name}' was replaced, but forward computes with the weights that weft gathers: "
                    "copy the values by load_state_dict, or call torch.func.functional_call on a model that is not sharded"
                )

    def _check_is_there(self) -> None:
        if any(module._parameters.get(name) is None for module, name in self.owners):
            raise RuntimeError(
                f"parameter '{self.name}' of '{self.group.name}' was removed, but weft gathers and trains it: register it again, or remove it "
                "before fully_shard"
            )

    def register_sharded(self) -> None:
        if self.unsharded is not None:
            self._follow_unsharded()
        self._register(self.sharded)

    def restore(self, original: nn.Parameter) -> None:
        """Undoes the first register_sharded, also one that has failed halfway."""
        for module, name in self.owners:
            module._parameters[name] = original

    def register_unsharded(self, address: int) -> None:
        """Registers the unsharded form, whose values lie at `address`."""
        if self.unsharded is None:
            with torch.inference_mode(False):  # The first forward may be one that cannot be trained.
                view = self.group.root.groups.data_view(self.group.number, self.index)
                self.unsharded = nn.Parameter(view, requires_grad=self.sharded.requires_grad)
            self._required_gradient = self.sharded.requires_grad
            self.unsharded._weft_parameter = self
            self.address = address
            self._hook_gradient()
        elif address != self.address:
            repoint(self.unsharded, address)
            self.address = address
        self.follow_requires_grad()
        self._register(self.unsharded)

    def follow_requires_grad(self) -> None:
        """Freezes both forms, or lets them have gradients, as the caller did with the one that was registered."""
        self._follow_unsharded()
        self._required_gradient = self.sharded.requires_grad
        if self.unsharded.requires_grad == self.sharded.requires_grad:
            return
        if self.sharded.requires_grad and not self.trained:
            raise RuntimeError(
                f"parameter '{self.name}' requires a gradient now, but was frozen at the first forward, which lays out the memory of "
                "gradients: set requires_grad before the first forward"
            )
        self.unsharded.requires_grad_(self.sharded.requires_grad)
        self._hook_gradient()

    def _follow_unsharded(self) -> None:
        """Freezes the sharded form, or lets it have gradients, as the caller did with the unsharded one."""
        if self.unsharded.requires_grad != self._required_gradient:
            self._required_gradient = self.unsharded.requires_grad
            self.sharded.requires_grad_(self._required_gradient)

    def mark_values(self, are_there: bool) -> None:
        """Lets autograd read the unsharded form that a forward has saved, or raise an error: by its version."""
        if self.unsharded is None:
            return
        if are_there:
            torch._C._autograd._unsafe_set_version_counter((self.unsharded,), (self._version,))
        else:
            self._version = self.unsharded._version
            torch.autograd.graph.increment_version(self.unsharded)

    # Values.

    def adopt_master(self, master: Tensor) -> None:
        """Moves the sharded values to `master`, this rank's piece in weft's memory."""
        self.master = master.view(self.placement.local_shape)
        self._move_to_master()

    def check_values(self, local: Tensor) -> None:
        """Raises if values in a local tensor like `local` cannot go to weft's memory: on all ranks, also those that own nothing."""
        if local.dtype != self.group.dtype:
            raise ValueError(
                f"parameter '{self.name}' was changed to {local.dtype} after the first forward, but its master is {self.group.dtype}: "
                "convert the model before the first forward, or set MixedPrecisionPolicy(param_dtype=...) to compute in another dtype"
            )
        if local.is_meta:
            raise RuntimeError(
                f"parameter '{self.name}' is on the meta device: call model.to_empty(device='cpu') and set its values "
                "before the first forward"
            )

    def _move_to_master(self) -> None:
        local = self.sharded._local_tensor
        if self.master is None or local.data_ptr() == self.master.data_ptr():
            return
        with torch.no_grad():
            self.master.copy_(local)
            self.sharded._local_tensor = self.master

    def _replacement(self) -> Tensor | None:
        """The parameter that the modules have now, if it is another one, for example after load_state_dict(assign=True)."""
        registered = (module._parameters[name] for module, name in self.owners)
        return next((param for param in registered if param is not self.sharded and param is not self.unsharded), None)

    def check_adoption(self) -> None:
        """Raises if the parameter that the modules have now cannot be taken."""
        self._check_is_there()
        registered = self._replacement()
        if registered is None:
            registered = self.sharded
        expected = (self.placement.spec.placements, self.placement.shape)
        if not isinstance(registered, DTensor) or (registered.placements, registered.shape) != expected:
            raise ValueError(
                f"parameter '{self.name}' was replaced by {type(registered).__name__} {tuple(registered.shape)}: "
                f"weft.fully_shard needs a DTensor of shape {tuple(self.sharded.shape)} with placements {self.sharded.placements}"
            )
        if self.group.is_initialized:
            self.check_values(registered._local_tensor)

    def adopt_registered(self) -> None:
        """Takes the parameter that the modules have now. REQUIRES: check_adoption."""
        registered = self._replacement()
        if registered is not None:
            mark_replaced(self.sharded, self.name, self.group.name, "load_state_dict(assign=True)")
            self.sharded = registered if isinstance(registered, nn.Parameter) else nn.Parameter(registered)
            unmark_replaced(self.sharded)
        self.register_sharded()
        if self.master is not None and self.sharded._local_tensor.data_ptr() != self.master.data_ptr():
            self._leave_master()
        self._move_to_master()

    def _leave_master(self) -> None:
        """Gives those who hold the master, such as an earlier state_dict, ordinary memory with its values. They alone keep it."""
        with torch.inference_mode(False), torch.no_grad():
            held, self.master = self.master, self.master.clone()
        _c10d.swap_storages(held, self.master)

    # Gradients.
    #
    # Note [External gradients]
    # Problem: `.grad` of the shard may be weft's gradient, which views the reduced sum, or an *external* one: set by the caller, or
    # accumulated by autograd for a use of the shards outside of the model, such as a penalty. Reductions add to the reduced sum, so
    # a gradient that is in `.grad` and in the sum would count twice. Rule: before a forward, a backward and a norm, the sum is
    # forgotten if it is stale: weft's gradient is no longer in `.grad` (has_stale_sum), or the sum is in an external gradient already
    # (_is_in_external). After the last backward, the sum is added to a gradient that was external when the backward began, in its
    # memory. One that became external during the backward is added to the sum, and weft's gradient takes its place. A backward that
    # makes a graph adds out of place. Weft's gradient is then set aside, and an external one counts as one of this backward. Why it
    # suffices: what is in `.grad` at the end of a backward is either the sum, or does not have it when the next begins. What breaks
    # without it: gradients that were cleared come back, or those of a penalty count twice.

    def _hook_gradient(self) -> None:
        """Registers the hook of the unsharded form when that first requires a gradient: PyTorch takes no hook before."""
        if self.unsharded.requires_grad and not self._is_hooked:
            self.unsharded.register_post_accumulate_grad_hook(_take_gradient)
            self._is_hooked = True

    def take_gradient(self) -> None:
        """Moves a gradient that autograd has accumulated to the gradient image."""
        gradient = self.unsharded.grad
        if gradient is None:
            return
        self.unsharded.grad = None
        view, accumulates = self.begin_gradient_write()
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        with torch.no_grad():
            if accumulates:
                view.add_(gradient)
            else:
                view.copy_(gradient)

    def begin_gradient_write(self) -> tuple[Tensor, bool]:
        """The view of the gradient image to write, and whether a write must add to what is there."""
        root, groups, number = self.group.root, self.group.root.groups, self.group.number
        if root.is_in_backward:
            self.group.check_backward(self.name)
        else:
            root.unreduced = self.name
        address = groups.gradient_address(number, self.index)
        if address == 0:
            groups.prepare_gradients(number)
            address = groups.gradient_address(number, self.index)
        view = self._views.get(address)
        if view is None:
            if len(self._views) > 8:
                self._views.clear()
            view = self._views[address] = groups.gradient_view(number, self.index)
        return view, groups.begin_gradient_write(number, self.index)

    def assign_gradient(self, reduced: Tensor | None) -> None:
        """Adds this rank's reduced piece to an external gradient, or makes it the gradient; None: the rank owns nothing of it.

        See Note [External gradients]. Raises RuntimeError if an external gradient has other placements than the parameter.
        """
        shape = self.placement.local_shape
        local = torch.empty(shape, dtype=self.group.dtype) if reduced is None else reduced.view(shape)
        current = self._gradient if self.sharded.grad is self._gradient else None
        if current is not None and current._local_tensor.data_ptr() == local.data_ptr():
            return
        external = self.external_gradient()
        with torch.no_grad():
            if external is not None and self._adds_to_external:
                if 0 in external.stride():  # An expanded one cannot be written. Its strides may differ between ranks.
                    external = external.clone(memory_format=torch.contiguous_format)
                    self.sharded.grad = self.placement.distributed(external)
                external.add_(local)
                self._is_in_external = True
                return
            if external is not None:
                local.add_(external)
        self._gradient = self.placement.distributed(local)
        self.sharded.grad = self._gradient

    def follow_gradient(self, reduced: Tensor | None) -> None:
        """Lets the gradient view the reduced piece where that lies now; None: the parameter has none."""
        if self._gradient is not None and reduced is not None:
            self._gradient._local_tensor = reduced.view(self.placement.local_shape)

    def external_gradient(self) -> Tensor | None:
        """This rank's piece of an external gradient. Raises RuntimeError if it has other placements than the parameter."""
        gradient = self.sharded.grad
        if gradient is None or gradient is self._gradient:
            return None
        if not isinstance(gradient, DTensor) or gradient.placements != self.sharded.placements:
            raise RuntimeError(
                f"the gradient of '{self.name}' has {getattr(gradient, 'placements', 'no placements')}, but the parameter has "
                f"{self.sharded.placements}: call redistribute(placements=parameter.placements)"
            )
        return gradient._local_tensor.detach()

    def warn_of_hooks(self) -> None:
        """Warns, once, of hooks that do not see the reduced gradient."""
        if self._has_warned or not self.sharded.requires_grad or not self.sharded._backward_hooks:
            return
        self._has_warned = True
        warnings.warn(
            f"the sharded parameter '{self.name}' has a hook of register_hook, which does not see the gradient that weft reduces: call "
            "register_post_accumulate_grad_hook instead, or set_all_reduce_hook of the sharded module",
            RuntimeWarning,
            stacklevel=2,
        )

    def run_gradient_hooks(self) -> None:
        """Runs the hooks of register_post_accumulate_grad_hook on the sharded parameter."""
        for hook in list((self.sharded._post_accumulate_grad_hooks or {}).values()):  # A hook may remove itself.
            hook(self.sharded)

    def clear_gradient(self, set_to_none: bool) -> None:
        """Clears the gradient as nn.Module.zero_grad does that of a registered parameter."""
        gradient = self.sharded.grad
        if set_to_none:
            self.sharded.grad = None
        elif gradient is not None:
            gradient.detach_() if gradient.grad_fn is not None else gradient.requires_grad_(False)
            gradient.zero_()

    def has_stale_sum(self) -> bool:
        """True if the reduced sum must be forgotten before the next reduction: Note [External gradients]."""
        is_replaced = self._gradient is not None and not self._is_aside and self.sharded.grad is not self._gradient
        return is_replaced or self._is_in_external

    def note_forgotten_sum(self) -> None:
        """REQUIRES: the reduced sum is forgotten."""
        self._gradient, self._is_in_external = None, False

    def begin_accumulation(self) -> None:
        """Before a backward, which is to add to an external gradient in its memory. Raises RuntimeError as external_gradient."""
        self._adds_to_external = self.external_gradient() is not None

    def set_gradient_aside(self) -> None:
        """At the start of a backward that makes a graph: weft's gradient is not in `.grad` until end_accumulation. Holders of it
        get a copy, as autograd adds out of place."""
        self._adds_to_external = False
        if self._gradient is None:
            return
        held, self._gradient = self._gradient, self.placement.distributed(self._gradient._local_tensor)
        held._local_tensor = held._local_tensor.clone()
        self.sharded.grad, self._is_aside = None, True

    def end_accumulation(self) -> None:
        """After a backward: puts weft's gradient back, with what autograd has added meanwhile."""
        if not self._is_aside:
            return
        external = self.external_gradient()
        if external is not None:
            with torch.no_grad():
                self._gradient._local_tensor.add_(external)
        self.sharded.grad, self._is_aside = self._gradient, False

    def forget_gradient(self) -> None:
        self.sharded.grad = self._gradient = None
        self._is_aside = self._adds_to_external = self._is_in_external = False
        if self.unsharded is not None:
            self.unsharded.grad = None


def _take_gradient(param: nn.Parameter) -> None:
    """Hook of unsharded parameters. It holds none of them: Python does not see what such a hook holds, and would never free a cycle."""
    param._weft_parameter.take_gradient()


def mark_replaced(param: nn.Parameter, name: str, group: str, cause: str) -> None:
    """Notes that `cause` has replaced the parameter `name` of a group, for optimizers that have it."""
    param._weft_replaced = (name, group, cause)


def unmark_replaced(param: nn.Parameter) -> None:
    """Of a parameter that a module has again."""
    param.__dict__.pop("_weft_replaced", None)


def repoint(param: nn.Parameter, address: int) -> None:
    """Makes the storage of `param`, and of every view that autograd saved, lie at `address`."""
    _c10d.repoint_storage(param.data, address)
