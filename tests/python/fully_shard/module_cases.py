"""Modules and parameters after fully_shard. For both interfaces, against unsharded models."""

from __future__ import annotations

import copy
import gc

import torch
import torch.distributed as dist
import weft
from sharded_support import Cases, expect_error, whole
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.utils.checkpoint import checkpoint
from unsharded_oracle import Interface, Mlp, batch, expect_close, mesh_1d, mlps, seeded, squares, trains_as_unsharded

case = Cases()


@case
def parameters_are_chunks_of_dim_0(api: Interface) -> None:
    model = seeded(lambda: mlps(dim=3, multiplier=3))
    originals = [param.detach().clone() for param in model.parameters()]
    mesh = mesh_1d()
    api.shard(model, mesh=mesh)
    for original, param in zip(originals, model.parameters(), strict=True):
        assert isinstance(param, DTensor) and isinstance(param, nn.Parameter)
        assert (param.device_mesh, param.placements) == (mesh, (Shard(0),))
        assert (param.size(), param.stride()) == (original.size(), original.stride())
        chunks = torch.chunk(original, mesh.size())
        expected = chunks[dist.get_rank()] if dist.get_rank() < len(chunks) else original[:0]
        assert torch.equal(param.to_local(), expected)


@case
def classes_of_sharded_modules(api: Interface) -> None:
    model = seeded(lambda: mlps())
    api.shard(model[0])
    assert isinstance(model[0], Mlp) and isinstance(model[0], api.module_class)
    assert type(model[0]).__name__ == "FSDPMlp"
    assert not any(isinstance(module, api.module_class) for module in (model[0].in_proj, model[1], model))
    api.shard(model)
    assert type(model).__name__ == "FSDPSequential"
    part = model[:2]
    assert isinstance(part, nn.Sequential) and not isinstance(part, api.module_class)


@case
def refuses_wrong_arguments(api: Interface) -> None:
    for container in (nn.ModuleList([Mlp(4)]), nn.ModuleDict({"a": Mlp(4)})):
        with expect_error(ValueError, "forward"):
            api.shard(container)
    twice = api.shard(Mlp(4))
    with expect_error((AssertionError, ValueError)):
        api.shard(twice)
    with expect_error(AssertionError):
        copy.deepcopy(twice)
    with expect_error(ValueError):
        api.shard(Mlp(4), mesh=init_device_mesh("cpu", (dist.get_world_size(), 1, 1)))
    scalar = Mlp(4)
    scalar.scale = nn.Parameter(torch.tensor(1.0))
    with expect_error(ValueError, "scale"):
        api.shard(scalar)
    make = lambda: nn.Sequential(nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last))
    if api.name == "torch":
        with expect_error(NotImplementedError, "contiguous"):
            api.shard(make())
    else:  # weft stores the elements in order.
        model, reference = seeded(make), seeded(make)
        api.shard(model)
        trains_as_unsharded(model, reference, squares(2, 8, 5, 5), steps=2)


@case
def parameters_are_registered_sharded_or_whole(api: Interface) -> None:
    def all_are(params: list[nn.Parameter], sharded: bool) -> None:
        assert params
        assert all(isinstance(param, DTensor) == sharded for param in params)

    for reshard in (True, False, None):
        model = seeded(lambda: nn.Sequential(Mlp(3), Mlp(3)))
        values = [param.detach().clone() for param in model.parameters()]
        for module in (model[0].in_proj, model[0].out_proj, model):
            api.shard(module, reshard_after_forward=reshard)
        inner = [*model[0].in_proj.parameters(), *model[0].out_proj.parameters()]
        inner_names = [f"0.{name}" for name, _ in model[0].named_parameters()]
        all_are(list(model.parameters()), True)
        model(torch.ones(2, 3))
        found = dict(model.named_parameters())
        all_are([found[name] for name in inner_names], reshard is not False)
        all_are([param for name, param in found.items() if name not in inner_names], bool(reshard))
        for param, value in zip(model.parameters(), values, strict=True):
            assert torch.equal(whole(param), value)
        for module in model.modules():
            if isinstance(module, api.module_class):
                module.reshard()
        all_are(list(model.parameters()), True)
        assert all(param is other for param, other in zip(inner, [dict(model.named_parameters())[n] for n in inner_names], strict=True))
        model(torch.ones(2, 3)).sum().backward()
        all_are(list(model.parameters()), True)


@case
def parameters_may_be_changed_between_forward_and_backward(api: Interface) -> None:
    def sharded() -> nn.Sequential:
        model = seeded(lambda: nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(4))))
        for module in (*model, model):
            api.shard(module)
        return model

    def loss_of(model: nn.Module) -> torch.Tensor:
        return model(torch.ones(2, 4)).square().sum()

    model = sharded()
    gradients = []
    for _ in range(3):
        loss = loss_of(model)
        model.zero_grad()
        loss.backward()
        gradients.append([whole(param.grad).clone() for param in model.parameters()])
    for later in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(later, gradients[0], strict=True))

    loss_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1e9)
    expect_close(whole(total), torch.stack([gradient.norm() for gradient in gradients[0]]).norm(), "norm")
    before = [whole(param).clone() for param in model.parameters()]
    loss_of(model).backward()
    optimizer.step()
    assert all(not torch.equal(whole(param), old) for param, old in zip(model.parameters(), before, strict=True))

    model = sharded()
    loss_of(model)
    model[-1].requires_grad_(False)
    loss_of(model).backward()
    assert [param.grad is None for param in model.parameters()] == [False, False, False, True]


@case
def meshes_made_of_groups(api: Interface) -> None:
    # weft.fully_shard takes meshes of all ranks.
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu", mesh_dim_names=("shard",))
    model, reference = seeded(mlps), seeded(mlps)
    for module in (*model, model):
        api.shard(module, mesh=mesh)
    trains_as_unsharded(model, reference, squares(4, 9), steps=2)


@case
def layers_may_be_made_and_sharded_one_by_one(api: Interface) -> None:
    model = nn.Sequential()
    torch.manual_seed(5)
    reference = nn.Sequential()
    for _ in range(5):
        layer = Mlp(6)
        reference.append(copy.deepcopy(layer))
        model.append(layer)
        api.shard(layer)
        gc.collect()
    api.shard(model)
    trains_as_unsharded(model, reference, squares(3, 6), steps=2)


@case
def other_parameters_for_a_forward_are_an_error(api: Interface) -> None:
    """FSDP2 takes them in some models, and raises in others."""
    if api.name == "torch":
        return
    model = seeded(mlps)
    for module in (*model, model):
        api.shard(module)
    x = batch(0, 0, 4, 9)
    expected = model(x)
    weights = {"0.in_proj.weight": torch.zeros(36, 9)}
    with expect_error(RuntimeError, "parameter '0.in_proj.weight' of '0' was replaced"):
        torch.func.functional_call(model, weights, (x,))
    weft.reset(model)
    torch.testing.assert_close(model(x), expected)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(9, 9), nn.Linear(9, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


@case
def a_refused_module_stays_as_it_was(api: Interface) -> None:
    """fully_shard may be called again once what it refused is mended."""
    if api.name == "torch":
        return
    model, reference = seeded(TwoLayers), seeded(TwoLayers)
    model.second.half()
    before = dict(model.named_parameters())
    with expect_error(ValueError, "parameter 'second.weight' of 'TwoLayers' is torch.float16"):
        api.shard(model)
    after = dict(model.named_parameters())
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)
    model.second.float()
    with expect_error(ValueError, "for parameter 'second.weight' of shape"):
        api.shard(model, shard_placement_fn=lambda param: Shard(5) if param is model.second.weight else None)
    with expect_error(ValueError, "give each module once"):
        api.shard([model.first, model.first])
    with expect_error(ValueError, "from which torch.jit made it"):
        api.shard(torch.jit.script(nn.Linear(9, 9)))
    model.load_state_dict(reference.state_dict())
    api.shard(model)
    trains_as_unsharded(model, reference, squares(4, 9), steps=2)


class RefusesTheSecond(nn.Linear):
    """A module that lets only some of its parameters be replaced."""

    is_closed = False

    def __setattr__(self, name: str, value: object) -> None:
        if self.is_closed and name == "bias":
            raise RuntimeError("the bias cannot be replaced")
        super().__setattr__(name, value)


@case
def a_module_that_refuses_a_parameter_stays_as_it_was(api: Interface) -> None:
    if api.name == "torch":
        return
    model, reference = (seeded(lambda: RefusesTheSecond(9, 9)) for _ in range(2))
    before = dict(model.named_parameters())
    RefusesTheSecond.is_closed = True
    try:
        with expect_error(RuntimeError, "cannot be replaced"):
            api.shard(model)
    finally:
        RefusesTheSecond.is_closed = False
    assert type(model) is RefusesTheSecond and not hasattr(model, "_is_fsdp_managed_module")
    assert all(before[name] is param for name, param in model.named_parameters())
    api.shard(model)
    trains_as_unsharded(model, reference, squares(4, 9), steps=2)


class Tree(nn.Module):
    """Calls itself for both halves of its input, and again after an inner call that has failed."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf, self.join = nn.Linear(6, 6), nn.Linear(12, 6)

    def forward(self, x: Tensor, is_inner: bool = False) -> Tensor:
        if x.size(0) == 1:
            return torch.tanh(self.leaf(x))
        if is_inner and x.size(0) == 3:
            raise ArithmeticError("on purpose")
        parts = []
        for part in x.chunk(2):
            try:
                parts.append(self(part, is_inner=True))
            except ArithmeticError:
                parts.append(self(part[:2], is_inner=True))
        return self.join(torch.cat(parts, dim=1)).relu()


@case
def modules_may_call_themselves(api: Interface) -> None:
    """As a root, and as a part with a part that is a group, too. FSDP2 reshards a module after the inner calls."""
    if api.name == "torch":
        return
    model, reference = seeded(Tree), seeded(Tree)
    api.shard(model)
    trains_as_unsharded(model, reference, squares(6, 6))
    chain = lambda: nn.Sequential(nn.Linear(6, 6), Tree(), nn.Linear(6, 6))
    for checkpoints in (False, True):

        def loss_of_chain(model: nn.Module, step: int, rank: int, checkpoints: bool = checkpoints) -> Tensor:
            x = batch(step, rank, 6, 6)
            if not checkpoints:
                return model(x).square().mean()
            for part in model:
                x = checkpoint(part, x, use_reentrant=False)
            return x.square().mean()

        model, reference = seeded(chain), seeded(chain)
        api.shard(model[1].leaf)
        for part in (*model, model):
            api.shard(part)
        trains_as_unsharded(model, reference, loss_of_chain)
