"""Precision of values, and states that are saved, made real and broadcast. For both interfaces, against unsharded models."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from sharded_support import Cases, expect_error, mesh_2d
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, distribute_tensor
from unsharded_oracle import Interface, Mlp, mesh_1d, mlps, seeded, squares, trains_as_unsharded

case = Cases()


@case
def modules_have_their_own_precision(api: Interface) -> None:
    seen = {}

    class Precise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = Mlp(8)
            self.norm = nn.LayerNorm(8)

        def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
            seen["inputs"] = (x.dtype, scale.dtype)
            return self.norm(self.mlp(x * scale))

    model = seeded(Precise)
    api.shard(model.norm, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=torch.float32))
    api.shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))

    def note(module: nn.Module, args: tuple) -> None:
        seen[type(module).__name__] = (module.weight.dtype, args[0].dtype)

    model.norm.register_forward_pre_hook(note)
    model.mlp.in_proj.register_forward_pre_hook(note)
    output = model(torch.randn(3, 8), scale=torch.ones(1))
    assert seen["inputs"] == (torch.bfloat16, torch.bfloat16), seen
    assert seen["Linear"] == (torch.bfloat16, torch.bfloat16), seen
    assert seen["FSDPLayerNorm"][0] == torch.float32, seen
    assert output.dtype == torch.float32
    output.square().sum().backward()
    for param in model.parameters():
        assert (param.dtype, param.grad.dtype) == (torch.float32, torch.float32)


@case
def bf16_trains_near_float32(api: Interface) -> None:
    for reshard, reduce_dtype in itertools.product((True, False), (torch.float32, None)):
        model, reference = seeded(mlps), seeded(mlps)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
        for module in (*model, model):
            api.shard(module, reshard_after_forward=reshard, mp_policy=policy)
        trains_as_unsharded(model, reference, lambda m, step, rank: squares(4, 9)(m, step, rank).float(), steps=3, tolerance=5e-2)


@case
def modules_may_be_cast_after_sharding(api: Interface) -> None:
    model, reference = seeded(mlps), seeded(mlps).double()
    for module in (*model, model):
        api.shard(module)
    model.double()
    assert all(param.dtype == param.to_local().dtype == torch.float64 for param in model.parameters())
    trains_as_unsharded(model, reference, lambda m, step, rank: squares(4, 9)(lambda x: m(x.double()), step, rank))


@case
def state_dicts_alias_the_shards(api: Interface) -> None:
    for mesh, used in itertools.product((mesh_1d(), mesh_2d()), (False, True)):
        if mesh is None:
            continue
        for dim in (2, 3, 5, 16):
            model = seeded(lambda: mlps(2, dim))  # noqa: B023
            for module in (*model, model):
                api.shard(module, mesh=mesh, reshard_after_forward=False)
            if used:
                model(torch.ones(2, dim))
                model.state_dict()  # Reshards.
            assert all(isinstance(param, DTensor) for param in model.parameters())
            with torch.no_grad():
                for param in model.parameters():
                    param.fill_(1)
            pointers = {name: param.to_local().data_ptr() for name, param in model.named_parameters()}
            state = model.state_dict()
            assert state.keys() == pointers.keys()
            for name, value in state.items():
                assert isinstance(value, DTensor)
                assert value.to_local().numel() == 0 or value.to_local().data_ptr() == pointers[name], name
            model.load_state_dict({name: value.detach().clone().fill_(7 + dist.get_rank()) for name, value in state.items()})
            for name, param in model.named_parameters():
                local = param.to_local()
                assert torch.equal(local, torch.full_like(local, 7 + dist.get_rank())), name
                if local.size(0) * mesh.size(-1) == param.size(0):
                    assert local.data_ptr() == pointers[name], name


@case
def meta_modules_are_made_real_part_by_part(api: Interface) -> None:
    with torch.device("meta"):
        model = mlps(2, 5)
    for module in (*model, model):
        api.shard(module)
    reference = seeded(lambda: mlps(2, 5))
    for name, param in list(model.named_parameters()):
        value = distribute_tensor(reference.get_parameter(name).detach(), param.device_mesh, param.placements)
        model.load_state_dict({name: value}, assign=True, strict=False)
    trains_as_unsharded(model, reference, squares(3, 5), steps=3)


@case
def meta_modules_reset_their_parameters(api: Interface) -> None:
    for dim in (8, 3, 1):
        with torch.device("meta"):
            model = mlps(2, dim, multiplier=1)
            for module in (*model, model):
                api.shard(module)
        assert all(param.device.type == "meta" for param in model.parameters())
        with expect_error(RuntimeError):
            model(torch.ones(2, dim))
        with torch.device("meta"):
            model = mlps(2, dim, multiplier=1)
            for module in (*model, model):
                api.shard(module)
        model.to_empty(device="cpu")
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for param in model.parameters():
            param.detach().fill_(1337)
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        for param in model.parameters():
            assert not (param.to_local() == 1337).any()
        model(torch.randn(4, dim)).sum().backward()
        optimizer.step()


@case
def rank_0_broadcasts_the_weights(api: Interface) -> None:
    reference = seeded(lambda: mlps(), seed=5 + dist.get_rank())
    with torch.device("meta"):
        model = mlps()
    for module in (*model, model):
        api.shard(module)
    state = {}
    for (name, sharded), full in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        dist.broadcast(full, 0)
        state[name] = nn.Parameter(distribute_tensor(full, sharded.device_mesh, sharded.placements))
    model.load_state_dict(state, assign=True)
    trains_as_unsharded(model, reference, squares(4, 9), steps=2)


@case
def replicas_are_broadcast(api: Interface) -> None:
    mesh = mesh_2d()
    if mesh is None:
        return
    model, reference = seeded(mlps), seeded(mlps)
    for module in (*model, model):
        api.shard(module, mesh=mesh)
    if mesh.get_local_rank("replicate") > 0:
        for param in model.parameters():
            param.detach().fill_(1337)
    group = mesh.get_group("replicate")
    for param in model.parameters():
        dist.broadcast(param.to_local().detach(), dist.get_process_group_ranks(group)[0], group=group)
    trains_as_unsharded(model, reference, squares(4, 9), steps=2)
