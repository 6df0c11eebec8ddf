"""Gradients that the caller sets, and penalties on the parameters. For both interfaces, against unsharded models."""

from __future__ import annotations

import torch
import torch.distributed as dist
import weft
from gradient_cases import add_gradients
from sharded_support import Cases, mesh_2d
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from unsharded_oracle import Interface, expect_alike, expect_close, mesh_1d, mlps, seeded, squares

case = Cases()


def gradient_over(param: Tensor, piece: Tensor) -> Tensor:
    """A gradient of a parameter in the memory of `piece`, of which it has this rank's part."""
    if not isinstance(param, DTensor):
        return piece
    options = {"shape": param.shape, "stride": param.stride(), "run_check": False}
    return DTensor.from_local(piece, param.device_mesh, param.placements, **options)


def give_gradients(model: nn.Module) -> Tensor:
    """Sets gradients of zero, which lie in one tensor of this rank, and returns it."""
    pieces = [param.to_local() if isinstance(param, DTensor) else param for param in model.parameters()]
    flat = torch.zeros(sum(piece.numel() for piece in pieces))
    parts = flat.split([piece.numel() for piece in pieces])
    for param, piece, part in zip(model.parameters(), pieces, parts, strict=True):
        param.grad = gradient_over(param, part.view(piece.shape))
    return flat


@case
def replaced_gradients_keep_their_values_for_their_holders(api: Interface) -> None:
    """A gradient of each batch, which the caller adds up."""
    model, reference = seeded(mlps), seeded(mlps)
    for module in (*model, model):
        api.shard(module)
    held = []
    for step in range(3):
        add_gradients(model, reference, step)
        held.append([param.grad for param in model.parameters()])
        for param in model.parameters():
            param.grad = torch.zeros_like(param.grad)
    for param, *gradients in zip(model.parameters(), *held, strict=True):
        param.grad = sum(gradients)
    expect_alike(model, reference)


@case
def gradients_are_added_to_those_of_the_caller(api: Interface) -> None:
    """In their memory, also where gradients are reduced later."""
    for mesh in (mesh_1d(), mesh_2d()):
        if mesh is None:
            continue
        model, reference = seeded(mlps), seeded(mlps)
        for module in (*model, model):
            api.shard(module, mesh=mesh)
        add_gradients(model, reference, 0)
        flats = [give_gradients(m) for m in (model, reference)]
        given = [param.grad for param in model.parameters()]
        for step in range(1, 6):
            if step == 4:  # Clears all of them.
                for flat in flats:
                    flat.zero_()
            model.set_requires_gradient_sync(step != 2)
            add_gradients(model, reference, step)
            if step != 2:
                expect_alike(model, reference)
                expect_norm(model, reference, api)
        assert all(param.grad is gradient for param, gradient in zip(model.parameters(), given, strict=True))
        model[1].zero_grad()
        reference[1].zero_grad()
        add_gradients(model, reference, 6)
        expect_alike(model, reference)
        expect_norm(model, reference, api)


@case
def the_sum_replaces_a_gradient_that_cannot_be_written(api: Interface) -> None:
    """An expanded scalar. FSDP2 raises an error."""
    if api.name == "torch":
        return
    model, reference = seeded(mlps), seeded(mlps)
    api.shard(model)
    for param in model.parameters():
        param.grad = gradient_over(param, torch.ones(()).expand(param.to_local().shape))
    for param in reference.parameters():
        param.grad = torch.ones_like(param)
    for step in range(2):
        add_gradients(model, reference, step)
        expect_alike(model, reference)
        expect_norm(model, reference, api)


def expect_norm(model: nn.Module, reference: nn.Module, api: Interface) -> None:
    expected = nn.utils.clip_grad_norm_(reference.parameters(), float("inf"))
    if api.name == "weft":
        expect_close(weft.gradient_norm(model)[0], expected, "norm")


@case
def penalties_count_once_in_backwards_that_make_a_graph(api: Interface) -> None:
    """Autograd adds their gradients out of place, before or after the model's backward."""

    def penalty_of(params: list[Tensor]) -> Tensor:
        return 0.1 * sum((param.to_local() if isinstance(param, DTensor) else param).square().sum() for param in params)

    size = dist.get_world_size()
    for comes_first in (False, True):
        model, reference = seeded(mlps), seeded(mlps)
        for module in (*model, model):
            api.shard(module)
        params = [list(m.parameters()) for m in (model, reference)]
        held, values = None, None
        for step in range(3):
            for m, own, ranks in ((model, params[0], [dist.get_rank()]), (reference, params[1], range(size))):
                early = penalty_of(own) if comes_first else None
                loss = sum(squares(4, 9)(m, step, rank) for rank in ranks) / len(ranks)
                (loss + (penalty_of(own) if early is None else early)).backward(create_graph=step > 0 and m is model)
            expect_alike(model, reference)
            if step == 0:
                held = [param.grad for param in model.parameters()]
                values = [gradient.to_local().clone() for gradient in held]
            elif api.name == "weft":
                assert all(torch.equal(gradient.to_local(), value) for gradient, value in zip(held, values, strict=True))
