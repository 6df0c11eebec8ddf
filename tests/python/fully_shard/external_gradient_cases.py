"""Gradients that the caller sets, and penalties on the parameters. For both interfaces, against unsharded models."""

from __future__ import annotations

import torch
import torch.distributed as dist
import weft
from gradient_cases import add_gradients
from sharded_support import Cases, expect_error, mesh_2d
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate
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
def gradients_are_added_to_a_copy_of_an_expanded_one(api: Interface) -> None:
    """Of a scalar, or of a row, which a rank of one row has in ordinary memory. FSDP2 raises an error."""
    if api.name == "torch":
        return
    for is_row in (False, True):
        make = lambda: mlps(dim=dist.get_world_size() + 1)  # A rank has one row of some parameters, or none.
        model, reference = seeded(make), seeded(make)
        for module in (*model, model):
            api.shard(module)
        held = []
        for param in model.parameters():
            local = param.to_local()
            piece = torch.ones(local.shape[1:] if is_row else ())
            param.grad = gradient_over(param, piece.expand(local.shape))
            held.append(piece)
        for param in reference.parameters():
            param.grad = torch.ones_like(param)
        for step in range(4):
            if step == 2:
                for m in (model, reference):
                    m[1].zero_grad()
            add_gradients(model, reference, step, dim=dist.get_world_size() + 1)
            expect_alike(model, reference)
            expect_norm(model, reference, api)


@case
def a_gradient_with_other_placements_is_refused_before_the_backward(api: Interface) -> None:
    if api.name == "torch":
        return
    model, reference = seeded(mlps), seeded(mlps)
    for module in (*model, model):
        api.shard(module)
    add_gradients(model, reference, 0)
    weight = model[1].in_proj.weight
    gradient = weight.grad
    loss = squares(4, 9)(model, 1, dist.get_rank())
    for placement in (Replicate(), Partial()):
        weight.grad = DTensor.from_local(torch.ones(weight.shape), weight.device_mesh, [placement], run_check=False)
        with expect_error(RuntimeError, "call redistribute(placements=parameter.placements)"):
            loss.backward(retain_graph=True)
    weight.grad = gradient
    loss.backward()
    for rank in range(dist.get_world_size()):
        (squares(4, 9)(reference, 1, rank) / dist.get_world_size()).backward()
    expect_alike(model, reference)


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


@case
def a_backward_that_makes_a_graph_may_follow_one_that_is_not_the_last(api: Interface) -> None:
    for module_clears in (False, True):
        model, reference = seeded(mlps), seeded(mlps)
        for module in (*model, model):
            api.shard(module)
        for step in range(4):
            is_last = step != 1
            model.set_is_last_backward(is_last)
            add_gradients(model, reference, step, create_graph=is_last)
            if is_last:
                expect_alike(model, reference)
            if module_clears and step == 2:
                for m in (model, reference):
                    m[0].zero_grad()
