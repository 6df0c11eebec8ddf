"""Training with every option, and modules that run in unusual ways. For both interfaces, against unsharded models."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from sharded_support import Cases, mesh_2d
from torch import Tensor, nn
from torch.distributed._composable import checkpoint as composable_checkpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.utils.checkpoint import checkpoint
from unsharded_oracle import Interface, Mlp, batch, mesh_1d, mlps, seeded, squares, trains_as_unsharded

case = Cases()


@case
def trains_shapes_that_do_not_divide(api: Interface) -> None:
    for first, second in (((16, 15), (15, 8)), ((7, 15), (15, 3)), ((16, 17), (17, 8)), ((1, 1), (1, 1))):
        make = lambda: nn.Sequential(nn.Linear(*first), nn.ReLU(), nn.Linear(*second))  # noqa: B023
        model, reference = seeded(make), seeded(make)
        api.shard(model)
        trains_as_unsharded(model, reference, squares(4, first[0]))


@case
def trains_with_every_reshard(api: Interface) -> None:
    options = [True, False, None] + ([2] if dist.get_world_size() == 4 else [])
    for reshard, mesh in itertools.product(options, (mesh_1d(), mesh_2d())):
        if mesh is None or (mesh.ndim == 2 and reshard == 2):
            continue
        model, reference = seeded(mlps), seeded(mlps)
        for module in (*model, model):
            api.shard(module, mesh=mesh, reshard_after_forward=reshard)
        trains_as_unsharded(model, reference, squares(4, 9), steps=3)


@case
def runs_the_root_and_then_a_part(api: Interface) -> None:
    model, reference = seeded(mlps), seeded(mlps)
    for module in (*model, model):
        api.shard(module)

    def loss_of(module: nn.Module, step: int, rank: int) -> Tensor:
        return (module if step % 2 == 0 else module[0])(batch(step, rank, 4, 9)).square().mean()

    model_optimizer, reference_optimizer = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, reference))
    for step in range(4):
        trains_as_unsharded(model, reference, lambda m, _, rank, step=step: loss_of(m, step, rank), steps=1, optimizers=False)
        for optimizer in (model_optimizer, reference_optimizer):
            optimizer.step()
            optimizer.zero_grad()


@case
def a_module_may_run_twice_in_a_forward(api: Interface) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.outer = nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(self.inner(x) + self.inner(2 * x))

    for reshard in (True, False):
        model, reference = seeded(Twice), seeded(Twice)
        api.shard(model.inner, reshard_after_forward=reshard)
        api.shard(model, reshard_after_forward=reshard)
        trains_as_unsharded(model, reference, squares(8, 4))


@case
def a_root_may_have_no_inputs(api: Interface) -> None:
    class OfParameters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 5))

        def forward(self) -> Tensor:
            return self.weight @ self.weight

    model, reference = seeded(OfParameters), seeded(OfParameters)
    api.shard(model)
    trains_as_unsharded(model, reference, lambda m, step, rank: (rank + 1) * m().square().mean())


@case
def every_kind_of_activation_checkpoint_works(api: Interface) -> None:
    class Checkpointed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            for module in self:
                x = checkpoint(module, x, use_reentrant=False)
            return x

    for kind, reshard in itertools.product(("wrapper", "composable", "function"), (True, False)):
        model, reference = seeded(mlps), seeded(mlps)
        if kind == "wrapper":
            apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Mlp))
        elif kind == "composable":
            for module in model:
                composable_checkpoint(module)
        else:
            model = Checkpointed(*model)
        for module in (*model, model):
            api.shard(module, reshard_after_forward=reshard)
        trains_as_unsharded(model, reference, squares(4, 9), steps=3)


@case
def two_forwards_and_a_loss_of_both(api: Interface) -> None:
    """As in preference training: nested groups, activation checkpoints, one backward."""
    for kind in (None, "composable"):
        model, reference = seeded(mlps), seeded(mlps)
        for module in model:
            if kind is not None:
                composable_checkpoint(module)
            for part in (module.in_proj, module.out_proj, module):
                api.shard(part)
        api.shard(model)

        def loss_of(module: nn.Module, step: int, rank: int) -> Tensor:
            chosen, rejected = (module(batch(2 * step + number, rank, 4, 9)) for number in range(2))
            return (chosen.mean() - rejected.mean()).square() + chosen.square().mean()

        trains_as_unsharded(model, reference, loss_of, steps=3)


@case
def prefetches_that_are_named(api: Interface) -> None:
    make = lambda: mlps(6)
    model, reference = seeded(make), seeded(make)
    for module in (*model, model):
        api.shard(module)
    for number in range(6):
        if number < 4:
            model[number].set_modules_to_forward_prefetch([model[number + 1], model[number + 2]])
        if number > 1:
            model[number].set_modules_to_backward_prefetch([model[number - 1], model[number - 2]])
    trains_as_unsharded(model, reference, squares(4, 9))
