"""Accumulation of gradients, and what autograd does with modules' outputs. For both interfaces, against unsharded models."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import weft
from sharded_support import Cases, expect_error, mesh_2d, whole
from torch import Tensor, nn
from unsharded_oracle import Interface, Mlp, batch, expect_alike, expect_close, mesh_1d, mlps, seeded, squares, trains_as_unsharded

case = Cases()


@case
def accumulates_in_every_way(api: Interface) -> None:
    """Reduction at the last microbatch: of all modules, of the root only, of some modules, or of replicas only."""
    size = dist.get_world_size()
    for mesh, mode, reduce_only in itertools.product((mesh_1d(), mesh_2d()), ("all", "root", "some"), (False, True)):
        if mesh is None or (reduce_only and mesh.ndim == 1):
            continue
        make = lambda: nn.Sequential(nn.Linear(9, 9), *(Mlp(9) for _ in range(3)))
        model, reference = seeded(make), seeded(make)
        for module in (*model[1:], model):
            api.shard(module, mesh=mesh)
        chosen = {"all": [model], "root": [model], "some": [model[1], model[2]]}[mode]
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, reference)]
        for step in range(3):
            for microbatch in range(3):
                for module in chosen:
                    change = module.set_requires_all_reduce if reduce_only else module.set_requires_gradient_sync
                    change(microbatch == 2, recurse=mode != "root")
                model(batch(10 * step + microbatch, dist.get_rank(), 2, 9)).square().mean().backward()
                for rank in range(size):
                    (reference(batch(10 * step + microbatch, rank, 2, 9)).square().mean() / size).backward()
            expect_alike(model, reference)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 2 == 1)


@case
def microbatches_of_a_pipeline(api: Interface) -> None:
    size = dist.get_world_size()
    for unshards, keeps in itertools.product((False, True), (False, True)):
        model, reference = seeded(mlps), seeded(mlps)
        for module in (*model, model):
            api.shard(module, reshard_after_forward=False)
        if unshards:
            for module in (model, *model):
                module.unshard(async_op=True)
        for microbatch in range(3):
            last = microbatch == 2
            model.set_requires_gradient_sync(last)
            model.set_is_last_backward(last)
            if keeps:
                model.set_reshard_after_backward(last)
            model(batch(microbatch, dist.get_rank(), 2, 9)).square().mean().backward()
            for rank in range(size):
                (reference(batch(microbatch, rank, 2, 9)).square().mean() / size).backward()
        expect_alike(model, reference)


@case
def outputs_may_be_unused(api: Interface) -> None:
    class TwoOutputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.second = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.tanh(self.first(x)), torch.tanh(self.second(x))

    def loss_of(module: nn.Module, step: int, rank: int) -> Tensor:
        first, second = module(batch(step, rank, 3, 6))
        return (first * second).sum() if step < 2 else first.sum()

    for reshard, parts in itertools.product((True, False), (("first",), ("first", "second"))):
        model, reference = seeded(TwoOutputs), seeded(TwoOutputs)
        for part in parts:
            api.shard(getattr(model, part), reshard_after_forward=reshard)
        api.shard(model, reshard_after_forward=reshard)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, reference)]
        for step in range(4):
            trains_as_unsharded(model, reference, lambda m, _, rank, step=step: loss_of(m, step, rank), steps=1, optimizers=False)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()


Pair = collections.namedtuple("Pair", "x y")


class Contained(nn.Module):
    """Takes and gives its activation within a container."""

    def __init__(self, wrap: Callable[[Tensor], Any], unwrap: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.mlp = Mlp(6)
        self.wrap, self.unwrap = wrap, unwrap

    def forward(self, x: Any) -> Any:
        return self.wrap(self.mlp(self.unwrap(x)))


@case
def activations_may_be_in_containers(api: Interface) -> None:
    containers: list[tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = [
        (lambda x: [x], lambda c: c[0]),
        (lambda x: (x,), lambda c: c[0]),
        (lambda x: Pair(x, torch.ones_like(x)), lambda c: c.x),
        (lambda x: {"x": x, "number": 3}, lambda c: c["x"]),
    ]
    for wrap, unwrap in containers:
        make = lambda: nn.ModuleList(Contained(wrap, unwrap) for _ in range(3))  # noqa: B023
        model, reference = seeded(make), seeded(make)
        for module in model:
            api.shard(module)

        def loss_of(modules: nn.Module, step: int, rank: int) -> Tensor:
            x = wrap(batch(step, rank, 3, 6))  # noqa: B023
            for module in modules:
                x = module(x)
            return unwrap(x).square().mean()  # noqa: B023

        trains_as_unsharded(model, reference, loss_of, steps=3)


@case
def hooks_on_parameters_see_whole_gradients_reduced(api: Interface) -> None:
    """A hook after accumulation sees the gradient that the optimizer will use."""
    model, reference = seeded(mlps), seeded(mlps)
    for module in (*model, model):
        api.shard(module)
    seen = []
    param = model[1].in_proj.weight
    param.register_post_accumulate_grad_hook(lambda tensor: seen.append(tensor.grad))
    trains_as_unsharded(model, reference, squares(4, 9), steps=1, optimizers=False)
    assert len(seen) == 1, seen
    expect_close(whole(seen[0]), reference[1].in_proj.weight.grad, "gradient in the hook")


def add_gradients(
    model: nn.Module,
    reference: nn.Module,
    step: int,
    between: Callable[[], object] = lambda: None,
    *,
    dim: int = 9,
    create_graph: bool = False,
) -> None:
    """A backward of both, and `between` it and the forward before. `create_graph`: of the sharded model's."""
    losses = [squares(4, dim)(model, step, dist.get_rank())]
    losses += [squares(4, dim)(reference, step, rank) / dist.get_world_size() for rank in range(dist.get_world_size())]
    between()
    losses[0].backward(create_graph=create_graph)
    for loss in losses[1:]:
        loss.backward()


@case
def hooks_on_parameters_may_remove_themselves(api: Interface) -> None:
    if api.name == "torch":
        return
    model, reference = seeded(mlps), seeded(mlps)
    api.shard(model)
    calls = []

    def once(param: Tensor) -> None:
        calls.append("once")
        handle.remove()

    weight = model[1].in_proj.weight
    handle = weight.register_post_accumulate_grad_hook(once)
    weight.register_post_accumulate_grad_hook(lambda param: calls.append("each"))
    for step in range(2):
        add_gradients(model, reference, step)
    assert calls == ["once", "each", "each"], calls


@case
def a_cleared_gradient_keeps_its_values_for_its_holders(api: Interface) -> None:
    """Other gradients of its group stay, and may be changed after the next forward."""
    model, reference = seeded(mlps), seeded(mlps)
    api.shard(model)
    add_gradients(model, reference, 0)
    held, expected = ([param.grad for param in m[0].parameters()] for m in (model, reference))
    pieces = [gradient.to_local() for gradient in held]
    values = [piece.clone() for piece in pieces]
    kept = [m[1].in_proj.weight.grad for m in (model, reference)]
    for m in (model, reference):
        m[0].zero_grad()

    def change() -> None:
        for gradient in kept:
            gradient.mul_(3)

    add_gradients(model, reference, 1, change)
    for gradient, piece, value, whole_value in zip(held, pieces, values, expected, strict=True):
        assert torch.equal(piece, value)
        expect_close(whole(gradient), whole_value, "gradient that is held")
    assert model[1].in_proj.weight.grad is kept[0]
    expect_alike(model, reference)


@case
def a_gradient_of_another_group_is_the_same_after_a_partial_clear(api: Interface) -> None:
    """Changes of it between a forward and its backward count."""
    model, reference = seeded(mlps), seeded(mlps)
    for module in (*model, model):
        api.shard(module)
    add_gradients(model, reference, 0)
    kept = [m[1].in_proj.weight.grad for m in (model, reference)]
    for m in (model, reference):
        m[0].in_proj.zero_grad()

    def change() -> None:
        for gradient in kept:
            gradient.mul_(3)

    add_gradients(model, reference, 1, change)
    if api.name == "weft":
        assert model[1].in_proj.weight.grad is kept[0]
    expect_alike(model, reference)


@case
def gradients_that_were_cleared_too_early_never_count(api: Interface) -> None:
    """Before the last backward: each forward raises an error, until the gradients are back."""
    if api.name == "torch":
        return
    model, reference = seeded(mlps), seeded(mlps)
    for module in (*model, model):
        api.shard(module)
    add_gradients(model, reference, 0)
    held = [param.grad for param in model.parameters()]
    model.set_is_last_backward(False)
    add_gradients(model, reference, 1)
    model.zero_grad()
    for is_last in (False, True, True):
        model.set_is_last_backward(is_last)
        with expect_error(RuntimeError, "reductions under way"):
            model(batch(2, dist.get_rank(), 4, 9))
        with expect_error(RuntimeError, "reductions under way"):
            weft.gradient_norm(model)
    for param, gradient in zip(model.parameters(), held, strict=True):
        param.grad = gradient
    add_gradients(model, reference, 2)
    expect_alike(model, reference)


@case
def a_partial_clear_may_come_before_an_evaluation_in_inference_mode(api: Interface) -> None:
    model, reference = seeded(mlps), seeded(mlps)
    api.shard(model)
    add_gradients(model, reference, 0)
    for m in (model, reference):
        m[0].zero_grad()
    with torch.inference_mode():
        model(batch(1, dist.get_rank(), 4, 9))
    add_gradients(model, reference, 2)
    for m in (model, reference):
        clip = weft.clip_grad_norm_ if api.name == "weft" and m is model else nn.utils.clip_grad_norm_
        clip(m if clip is weft.clip_grad_norm_ else m.parameters(), 0.01)
    expect_alike(model, reference)


class OwnZeroGrad(nn.Sequential):
    """Has a zero_grad that does not call that of nn.Module."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        torch.optim.SGD(self.parameters()).zero_grad(set_to_none)


@case
def gradients_are_cleared_between_forward_and_backward(api: Interface) -> None:
    """FSDP2 does not clear those of the root, whose modules have the gathered parameters then.

    The test clears all, those of sharded modules, those of a part of the root, and all from a module around the root.
    """
    if api.name == "torch":
        return
    for set_to_none, reshards, kind in itertools.product((False, True), (None, False), (nn.Sequential, OwnZeroGrad)):
        model, reference = (seeded(lambda: kind(*mlps())) for _ in range(2))  # noqa: B023
        api.shard([model[0], model[1]], reshard_after_forward=reshards)
        api.shard(model, reshard_after_forward=reshards)
        for step in range(5):
            cleared = [{2: m[1], 3: m[2].in_proj, 4: nn.Sequential(m)}.get(step, m) for m in (model, reference)]
            add_gradients(model, reference, step, lambda: [m.zero_grad(set_to_none) for m in cleared])  # noqa: B023
            expect_alike(model, reference)


class Residual(nn.Module):
    """Changes the output of a part in place. A linear layer gives a view for three dims."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.last = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x)
        y += x
        return self.last(y)


class Keeper(nn.Module):
    """Keeps its output, a view, and returns it twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.kept = self.linear(x)
        return self.kept, self.kept


@case
def losses_may_use_outputs_that_a_module_has_kept(api: Interface) -> None:
    """Of the root, and returned ones that occur twice."""
    if api.name == "torch":
        return

    def kept_loss(model: nn.Module, step: int, rank: int) -> Tensor:
        model(batch(step, rank, 2, 3, 6))
        return model.kept.square().mean()

    def both_losses(model: nn.Module, step: int, rank: int) -> Tensor:
        first, second = model(batch(step, rank, 2, 3, 6))
        assert first is second
        return (first * model.kept).mean()

    for loss_of in (kept_loss, both_losses):
        model, reference = seeded(Keeper), seeded(Keeper)
        api.shard(model)
        trains_as_unsharded(model, reference, loss_of, steps=2)


@case
def outputs_may_be_changed_in_place(api: Interface) -> None:
    """Of a part, and of the root. FSDP2 misses the backward of an output that is a view."""
    if api.name == "torch":
        return
    parts = [lambda: nn.Linear(6, 6), lambda: nn.Sequential(nn.Linear(6, 6), nn.Unflatten(2, (2, 3)), nn.Flatten(2))]

    def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
        y = model(batch(step, rank, 2, 3, 6))
        y += 1
        return y.square().mean()

    for part in parts:
        model, reference = (seeded(lambda: Residual(part())) for _ in range(2))  # noqa: B023
        api.shard(model.part)
        api.shard(model)
        trains_as_unsharded(model, reference, loss_of, steps=3)
