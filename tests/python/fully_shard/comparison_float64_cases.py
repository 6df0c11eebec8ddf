"""Masters in float64, alone and beside float32."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
import weft
from fsdp2_comparison import (
    Shards,
    compare,
    expect_equal,
    expect_same_state,
    loss_of,
    make_llama,
    shard_all,
    tokens_of,
    train,
    whole_state,
)
from sharded_support import Cases, expect_error, whole
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

case = Cases()


@case
def trains_in_float64() -> None:
    def make(shard: Shards, _: str, policy: MixedPrecisionPolicy) -> nn.Module:
        return shard_all(make_llama().double(), shard, mp_policy=policy)

    for policy in (
        MixedPrecisionPolicy(),
        MixedPrecisionPolicy(param_dtype=torch.float32),
        MixedPrecisionPolicy(reduce_dtype=torch.float32),
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    ):
        tolerance = 1e-12 if policy == MixedPrecisionPolicy() else 2e-2
        exact = None if policy.param_dtype is None else False
        model = compare(partial(make, policy=policy), microbatches=2, exact=exact, tolerance=tolerance)
        assert all(value.dtype == torch.float64 for value in model.state_dict().values())
    compare(lambda shard, _: shard_all(make_llama(), shard, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float64)))
    converted = shard_all(make_llama(), weft.fully_shard).double()  # After sharding, before the first forward.
    train(converted)
    direct = shard_all(make_llama().double(), weft.fully_shard)
    train(direct)
    expect_same_state(converted, direct, exact=True)
    loss_of(direct, tokens_of(0)).backward()
    assert all(p.grad.dtype == p.grad.to_local().dtype == torch.float64 for p in direct.parameters())
    with expect_error(ValueError, "before the first forward"):
        direct.float()


def with_a_layer_in_float64(shard: Shards, _: str = "") -> nn.Module:
    model = make_llama()
    model.layers[1].double()
    shard(model.layers[1], mp_policy=MixedPrecisionPolicy(param_dtype=torch.float64, output_dtype=torch.float32))
    shard(model.layers[0])
    return shard(model)


@case
def trains_float32_and_float64_side_by_side() -> None:
    model = compare(with_a_layer_in_float64, tolerance=1e-5)
    assert {p.dtype for p in model.layers[1].parameters()} == {torch.float64}
    seen = []
    for layer in model.layers[:2]:
        layer.set_all_reduce_hook(lambda gradient: seen.append(gradient.dtype))
    loss_of(model, tokens_of(9)).backward()
    assert set(seen) <= {torch.float32, torch.float64} and len(seen) == 2 and seen[0] != seen[1], seen
    norm, factor = weft.gradient_norm(model, 0.3)
    theirs = whole(nn.utils.clip_grad_norm_(model.parameters(), 0.3))
    assert norm.dtype == theirs.dtype == torch.float64
    torch.testing.assert_close(norm, theirs, rtol=1e-6, atol=0)
    assert factor == min(1.0, 0.3 / (norm.item() + 1e-6))


@case
def a_conversion_that_one_group_refuses_changes_no_other() -> None:
    model = with_a_layer_in_float64(weft.fully_shard)
    model.embed_tokens.register_buffer("unused", torch.ones(1, dtype=torch.float64))
    train(model, steps=1)
    with expect_error(ValueError, "its master is torch.float64"):
        model.float()
    assert model.embed_tokens.unused.dtype == torch.float64
    train(model, steps=1)


@case
def float64_has_the_same_bits_on_every_mesh() -> None:
    results = []
    for replicas in (1, 2) if dist.get_world_size() > 1 else (1,):
        mesh = init_device_mesh("cpu", (replicas, dist.get_world_size() // replicas), mesh_dim_names=("replicate", "shard"))
        model = shard_all(make_llama().double(), weft.fully_shard, mesh=mesh)
        optimizer = weft.AdamW(model.parameters(), lr=1e-2)
        clip = partial(weft.clip_grad_norm_, max_norm=0.3)
        results.append(train(model, optimizer=optimizer, clip=clip) + list(whole_state(model).values()))
    for number, values in enumerate(zip(*results, strict=True)):
        for value in values[1:]:
            expect_equal(value, values[0], f"result {number}", exact=True)


@case
def weft_adamw_updates_float64_as_torchs() -> None:
    results = []
    for make in (torch.optim.AdamW, weft.AdamW):
        model = with_a_layer_in_float64(weft.fully_shard)
        optimizer = make(model.parameters(), lr=1e-2)
        train(model, optimizer=optimizer)
        results.append((model, optimizer))
    (theirs, their_optimizer), (ours, our_optimizer) = results
    expect_same_state(ours, theirs, exact=False, tolerance=1e-5)
    for number, state in our_optimizer.state_dict()["state"].items():
        assert state["exp_avg"].dtype == their_optimizer.state_dict()["state"][number]["exp_avg"].dtype
    param = nn.Parameter(torch.ones(3, dtype=torch.float64))
    param.grad = torch.full((3,), 0.1, dtype=torch.float64)
    copied = nn.Parameter(param.detach().clone())
    copied.grad = param.grad.clone()
    for update in (weft.AdamW([param]), torch.optim.AdamW([copied])):
        update.step()
    torch.testing.assert_close(param, copied, rtol=1e-15, atol=0)
    param.grad_dtype = None
    param.grad = torch.ones(3)
    with expect_error(RuntimeError, "torch.float64 parameter"):
        weft.AdamW([param]).step()


@case
def weft_adamw_changes_nothing_if_it_refuses_a_parameter() -> None:
    accepted, refused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, dtype=torch.float64))
    refused.grad_dtype = None
    accepted.grad, refused.grad = torch.ones(3), torch.ones(3)
    optimizer = weft.AdamW([accepted, refused])
    with expect_error(RuntimeError, "torch.float64 parameter"):
        optimizer.step()
    assert not optimizer.state
    assert torch.equal(accepted, torch.ones(3))
