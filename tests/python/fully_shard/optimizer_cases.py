"""Norms, scaled losses, optimizers, and recovery of an iteration. For both interfaces, against unsharded models."""

from __future__ import annotations

import collections
import itertools

import torch
import torch.distributed as dist
import weft
from grouped_module_cases import ChunkedHead, tokens_of
from sharded_support import Cases, expect_error, mesh_2d, whole
from torch import Tensor, nn
from unsharded_oracle import Interface, expect_alike, expect_close, mesh_1d, mlps, seeded, squares, trains_as_unsharded

case = Cases()


@case
def clips_by_every_norm(api: Interface) -> None:
    size = dist.get_world_size()
    clips = [lambda model, **options: nn.utils.clip_grad_norm_(model.parameters(), foreach=True, **options)]
    if api.name == "weft":
        clips.append(weft.clip_grad_norm_)
    for mesh, kind, clip in itertools.product((mesh_1d(), mesh_2d()), (1, 2, 3, float("inf")), clips):
        if mesh is None:
            continue
        # torch has no infinity norm of an empty shard.
        model, reference = seeded(lambda: mlps(3, 8)), seeded(lambda: mlps(3, 8))
        for module in (*model, model):
            api.shard(module, mesh=mesh)
        squares(4, 8)(model, 0, dist.get_rank()).backward()
        for rank in range(size):
            (squares(4, 8)(reference, 0, rank) / size).backward()
        if clip is weft.clip_grad_norm_ and kind == 3:
            with expect_error(ValueError, "norm_type"):
                clip(model, max_norm=0.01, norm_type=kind)
            continue
        for max_norm in (0.01, 0.0):
            total = clip(model, max_norm=max_norm, norm_type=kind)
            expected = nn.utils.clip_grad_norm_(reference.parameters(), max_norm=max_norm, norm_type=kind)
            expect_close(whole(total), expected, f"norm {kind}, at most {max_norm}")
            expect_alike(model, reference, tolerance=1e-6)


@case
def a_scaler_skips_steps_with_infinities(api: Interface) -> None:
    for has_infinity in (False, True):
        model = seeded(lambda: nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)))
        for module in (*model, model):
            api.shard(module)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        scaler.scale(model(torch.ones(4, 4)).sum()).backward()
        if has_infinity and model[0].weight.grad.to_local().numel() and dist.get_rank() == 0:
            model[0].weight.grad.to_local()[0, 0] = float("inf")
        before = whole(model[0].weight)
        gradient = whole(model[1].weight.grad)
        scaler.unscale_(optimizer)
        expect_close(whole(model[1].weight.grad), gradient / 2, "gradient")
        scaler.step(optimizer)
        scaler.update()
        changed = not torch.equal(whole(model[0].weight), before)
        # Found on every rank: torch reduces the flag over the mesh.
        assert changed != has_infinity, (changed, has_infinity)
        assert scaler.get_scale() == (1.0 if has_infinity else 2.0)


@case
def optimizers_of_torch_work(api: Interface) -> None:
    for kind, options in (
        (torch.optim.Adam, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.AdamW, {"foreach": False}),
        (torch.optim.Adagrad, {}),
        (torch.optim.RMSprop, {}),
    ):
        model, reference = seeded(mlps), seeded(mlps)
        for module in (*model, model):
            api.shard(module)
        optimizers = [kind(m.parameters(), lr=1e-3, **options) for m in (model, reference)]
        schedulers = [torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3) for optimizer in optimizers]
        for step in range(3):
            # Rounding of small gradients grows when it is divided by their size.
            trains_as_unsharded(
                model, reference, lambda m, _, rank, step=step: squares(4, 9)(m, step, rank), steps=1, tolerance=1e-3, optimizers=False
            )
            for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()


@case
def an_iteration_can_be_reset(api: Interface) -> None:
    """After an exception in forward on all ranks."""

    class Raising(nn.Module):
        armed = False

        def forward(self, x: Tensor) -> Tensor:
            if self.armed:
                raise ArithmeticError("on purpose")
            return x

    model, reference = seeded(ChunkedHead), seeded(ChunkedHead)
    raising = Raising()
    model.body = nn.Sequential(collections.OrderedDict(inner=model.body, raising=raising))
    reference.body = nn.Sequential(collections.OrderedDict(inner=reference.body, raising=Raising()))
    api.shard([model.norm, model.head])
    api.shard(model)
    raising.armed = True
    with expect_error((ArithmeticError, RuntimeError)):
        model(tokens_of(0, 0))
    raising.armed = False
    if api.name == "torch":
        model.reset_iter_state()
    else:
        weft.reset(model)
    trains_as_unsharded(model, reference, lambda m, step, rank: m(tokens_of(step, rank)).square().mean(), steps=2)
