"""Frozen and ignored parameters. For both interfaces, against unsharded models."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
import weft
from sharded_support import Cases, expect_error
from torch import Tensor, nn
from torch.distributed._composable import checkpoint as composable_checkpoint
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from unsharded_oracle import Interface, Mlp, batch, expect_alike, expect_close, mlps, seeded, squares, trains_as_unsharded

case = Cases()


@case
def trains_biases_only(api: Interface) -> None:
    def freeze(module: nn.Module) -> None:
        for name, param in module.named_parameters():
            param.requires_grad_("bias" in name)

    for after, checkpointed in itertools.product((False, True), (False, True)):
        model, reference = seeded(mlps), seeded(mlps)
        freeze(reference)
        if not after:
            freeze(model)
        for module in model:
            if checkpointed:
                composable_checkpoint(module)
            api.shard(module)
        api.shard(model)
        if after:
            freeze(model)
        trains_as_unsharded(model, reference, squares(4, 9), steps=3)


@case
def freezes_and_unfreezes_modules_between_steps(api: Interface) -> None:
    make = lambda: nn.Sequential(*itertools.chain.from_iterable((nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    model, reference = seeded(make), seeded(make)
    for module in model:
        if isinstance(module, nn.Linear):
            api.shard(module)
    api.shard(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, reference)]
    for step in range(5):
        for module in (model, reference):
            for number in (0, 4):
                module[number].requires_grad_(step not in (1, 2))
        if step == 2:
            with torch.no_grad():
                expect_close(model(batch(9, 0, 2, 8)), reference(batch(9, 0, 2, 8)), "output")
        trains_as_unsharded(model, reference, lambda m, _, rank, step=step: squares(3, 8)(m, step, rank), steps=1, optimizers=False)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@case
def trains_modules_that_ran_first_while_frozen(api: Interface) -> None:
    """The first step does not run the second module, and the second step runs it frozen."""

    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
            self.skips = True

        def forward(self, x: Tensor) -> Tensor:
            for part in (self.parts[0], self.parts[2]) if self.skips else self.parts:
                x = torch.tanh(part(x))
            return x

    model, reference = seeded(Optional), seeded(Optional)
    for module in (*model.parts, model):
        api.shard(module)
    for step in range(4):
        for module in (model, reference):
            module.zero_grad()
            module.skips = step == 0
            module.parts[1].requires_grad_(step != 1)
        trains_as_unsharded(model, reference, squares(3, 6), steps=1, optimizers=False)


@case
def trains_modules_that_were_frozen_at_first(api: Interface) -> None:
    """weft.fully_shard has no place for their gradients, and says so."""
    model, reference = seeded(mlps), seeded(mlps)
    for module in (model, reference):
        module[1].requires_grad_(False)
    for module in (*model, model):
        api.shard(module)
    trains_as_unsharded(model, reference, squares(4, 9), steps=1, optimizers=False)
    for module in (model, reference):
        module.zero_grad()
        module[1].requires_grad_()
    if api.name == "weft":
        with expect_error(RuntimeError, "before the first forward"):
            model(batch(9, 0, 4, 9))
        weft.reset(model)
        return
    trains_as_unsharded(model, reference, squares(4, 9), steps=2)


@case
def frozen_and_trained_modules_run_several_times(api: Interface) -> None:
    class Repeated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.entry = nn.Linear(5, 5)
            self.frozen = nn.Linear(5, 5).requires_grad_(False)
            self.trained = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.entry(x)
            for _ in range(3):
                x = self.frozen(torch.tanh(self.trained(x)))
                with torch.no_grad():
                    offset = torch.tanh(self.trained(x))
                x = x + offset
            return x

    for reshard in (True, False):
        model, reference = seeded(Repeated), seeded(Repeated)
        for module in (model.entry, model.frozen, model.trained, model):
            api.shard(module, reshard_after_forward=reshard)
        trains_as_unsharded(model, reference, squares(8, 5))


@case
def ddp_may_contain_sharded_modules(api: Interface) -> None:
    """DDP around the model, sharding of one part of it, and DDP again of a part of that."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(6, 6)
            self.inner = Mlp(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(torch.tanh(self.before(x)))

    model, reference = seeded(Outer), seeded(Outer)
    ignored = set(model.inner.out_proj.parameters())
    api.shard(model.inner.in_proj, ignored_params=ignored)
    api.shard(model.inner, ignored_params=ignored)
    sharded = [name for name, param in model.named_parameters() if isinstance(param, DTensor)]
    assert sharded == ["inner.in_proj.weight", "inner.in_proj.bias"], sharded
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, sharded)
    replica = DistributedDataParallel(model, broadcast_buffers=False)
    size = dist.get_world_size()
    for step in range(3):
        squares(4, 6)(replica, step, dist.get_rank()).backward()
        for rank in range(size):
            (squares(4, 6)(reference, step, rank) / size).backward()
        expect_alike(model, reference)
        for param in (*model.parameters(), *reference.parameters()):
            local = param.to_local() if isinstance(param, DTensor) else param
            gradient = param.grad.to_local() if isinstance(param, DTensor) else param.grad
            with torch.no_grad():
                local.sub_(gradient, alpha=0.05)
            param.grad = None


@case
def a_parameter_of_the_root_may_be_frozen_between_passes(api: Interface) -> None:
    """Also while the root keeps its whole parameters, as it does between forward and backward."""
    model = seeded(lambda: nn.Sequential(nn.Linear(9, 9), *mlps(2)))
    for module in (*model[1:], model):
        api.shard(module)
    weight = model[0].weight
    x = batch(0, 0, 4, 9)
    for trains in (False, True, False):
        model(x)
        model[0].weight.requires_grad_(trains)
        model(x).square().mean().backward()
        assert api.name == "torch" or weight.requires_grad == trains
        assert (weight.grad is not None) == trains
        model.zero_grad()
    weight.requires_grad_(True)
    model(x).square().mean().backward()
    assert weight.grad is not None


@case
def a_parameter_that_was_frozen_while_whole_may_be_unfrozen(api: Interface) -> None:
    """The caller freezes the whole parameters, and unfreezes the sharded ones."""
    model = seeded(mlps)
    for module in (*model, model):
        api.shard(module, reshard_after_forward=False)
    params = list(model.parameters())
    model(batch(0, 0, 4, 9)).sum().item()
    model.requires_grad_(False)
    model.state_dict()  # Reshards.
    assert api.name == "torch" or not any(param.requires_grad for param in params)
    model.requires_grad_(True)
    model(batch(0, 0, 4, 9)).sum().backward()
    assert all(param.grad is not None for param in params)
