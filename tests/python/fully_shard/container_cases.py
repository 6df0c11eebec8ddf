"""Tensors in containers, and parameters that leave a module."""

from __future__ import annotations

import dataclasses

import torch
from sharded_support import Cases
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from unsharded_oracle import Interface, Mlp, batch, mlps, seeded, trains_as_unsharded

case = Cases()


@dataclasses.dataclass
class Activation:
    x: Tensor
    number: int = 3


@dataclasses.dataclass(frozen=True)
class Frozen:
    parts: list[Activation]
    made: int = dataclasses.field(init=False, default=0)


class InDataclass(nn.Module):
    """Takes and gives its activation within a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = Mlp(6)

    def forward(self, activation: Activation) -> Activation:
        return Activation(self.mlp(activation.x), activation.number)


class InFrozenDataclass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = Mlp(6)

    def forward(self, frozen: Frozen) -> Frozen:
        return Frozen([Activation(self.mlp(part.x)) for part in frozen.parts])


@case
def activations_may_be_in_dataclasses(api: Interface) -> None:
    make = lambda: nn.ModuleList(InDataclass() for _ in range(3))
    model, reference = seeded(make), seeded(make)
    for module in model:
        api.shard(module)

    def loss_of(modules: nn.Module, step: int, rank: int) -> Tensor:
        activation = Activation(batch(step, rank, 3, 6))
        for module in modules:
            activation = module(activation)
        assert activation.number == 3
        return activation.x.square().mean()

    trains_as_unsharded(model, reference, loss_of, steps=3)


@case
def activations_may_be_in_frozen_dataclasses(api: Interface) -> None:
    """With a list of dataclasses, and a field that __init__ does not take, which FSDP2 does not copy."""
    if api.name == "torch":
        return
    make = lambda: nn.ModuleList(InFrozenDataclass() for _ in range(3))
    model, reference = seeded(make), seeded(make)
    for module in model:
        api.shard(module)

    def loss_of(modules: nn.Module, step: int, rank: int) -> Tensor:
        frozen = Frozen([Activation(batch(step, rank, 3, 6)), Activation(batch(step + 10, rank, 2, 6))])
        for module in modules:
            frozen = module(frozen)
        return sum(part.x.square().mean() for part in frozen.parts)

    trains_as_unsharded(model, reference, loss_of, steps=3)


@case
def casts_tensors_in_dataclasses(api: Interface) -> None:
    seen: list[torch.dtype] = []

    class Noting(InDataclass):
        def forward(self, activation: Activation) -> Activation:
            seen.append(activation.x.dtype)
            return super().forward(activation)

    model = Noting()
    api.shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32))
    given = Activation(torch.ones(2, 6))
    result = model(given)
    assert seen == [torch.bfloat16], seen
    assert result.x.dtype == torch.float32, result
    assert given.x.dtype == torch.float32, given


class Table(nn.Module):
    """Returns its parameter, as a learned table of positions does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 9))

    def forward(self) -> Tensor:
        return self.weight


class Positioned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = Table(), mlps(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x + self.table())


@case
def a_module_may_return_its_parameter(api: Interface) -> None:
    """FSDP2 has freed it by then."""
    if api.name == "torch":
        return
    model, reference = seeded(Positioned), seeded(Positioned)
    for module in (model.table, model.body, model):
        api.shard(module)
    hooks = []

    def loss_of(module: nn.Module, step: int, rank: int) -> Tensor:
        loss = module(batch(step, rank, 3, 9)).square().mean()
        if module is model:
            hooks.append(len(model.table.weight._backward_hooks or ()))
        return loss

    trains_as_unsharded(model, reference, loss_of, steps=4)
    assert hooks == [0] * 4, hooks
