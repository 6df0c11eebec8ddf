"""Two interfaces, torch's fully_shard and weft's, and the oracle of their cases: the same model without sharding, which takes the
batches of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import weft
import weft.torch
from sharded_support import whole
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule as TorchFSDPModule
from torch.distributed.fsdp import fully_shard as torch_fully_shard


@dataclass(frozen=True)
class Interface:
    name: str
    shard: Callable[..., nn.Module]
    module_class: type


INTERFACES = {
    "torch": Interface("torch", torch_fully_shard, TorchFSDPModule),
    "weft": Interface("weft", weft.fully_shard, weft.torch.FSDPModule),
}


class Mlp(nn.Module):
    def __init__(self, dim: int, multiplier: int = 4, bias: bool = True) -> None:
        super().__init__()
        self.in_proj = nn.Linear(dim, multiplier * dim, bias=bias)
        self.out_proj = nn.Linear(multiplier * dim, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out_proj(torch.tanh(self.in_proj(x)))


def mlps(count: int = 3, dim: int = 9, **options: Any) -> nn.Sequential:
    return nn.Sequential(*(Mlp(dim, **options) for _ in range(count)))


def seeded(make: Callable[[], nn.Module], seed: int = 5) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def batch(step: int, rank: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1000 * step + rank))


def mesh_1d() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def expect_close(ours: Tensor, theirs: Tensor, what: str, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


def expect_alike(model: nn.Module, reference: nn.Module, tolerance: float = 2e-5) -> None:
    """The same parameters and gradients. Names of a wrapper of activation checkpoints are ignored."""
    expected = dict(reference.named_parameters())
    found = {name.replace("_checkpoint_wrapped_module.", ""): param for name, param in model.named_parameters()}
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    for name, param in found.items():
        expect_close(whole(param), expected[name], name, tolerance)
        gradient, expected_gradient = param.grad, expected[name].grad
        assert (gradient is None) == (expected_gradient is None), f"{name}: gradient {gradient}, expected {expected_gradient}"
        if gradient is not None:
            expect_close(whole(gradient), expected_gradient, f"gradient of {name}", tolerance)


Loss = Callable[[nn.Module, int, int], Tensor]


def trains_as_unsharded(
    model: nn.Module, reference: nn.Module, loss_of: Loss, steps: int = 4, tolerance: float = 2e-5, optimizers: bool = True
) -> None:
    """`loss_of(model, step, rank)`: the loss of this rank's batch."""
    size = dist.get_world_size()
    stepped = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, reference)] if optimizers else []
    for step in range(steps):
        loss = loss_of(model, step, dist.get_rank())
        loss.backward()
        for rank in range(size):
            expected = loss_of(reference, step, rank)
            if rank == dist.get_rank():
                expect_close(loss.detach(), expected.detach(), f"loss of step {step}", tolerance)
            (expected / size).backward()
        expect_alike(model, reference, tolerance)
        for optimizer in stepped:
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)


def squares(*shape: int) -> Loss:
    return lambda model, step, rank: model(batch(step, rank, *shape)).square().mean()
