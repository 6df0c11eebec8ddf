"""Collectives of the caller's in place of weft's, as FSDP2 takes them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import torch
import torch.distributed as dist
import weft
from fsdp2_comparison import Shards, compare, expect_same_state, loss_of, make_llama, shard_all, tokens_of, train
from sharded_support import Cases, expect_error, mesh_2d
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy

case = Cases()


class Comm:
    """Counts calls."""

    def __init__(self) -> None:
        self.calls = 0

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class AllGather(Comm):
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False) -> dist.Work | None:
        self.calls += 1
        return dist.all_gather_into_tensor(output_tensor, input_tensor, group=group, async_op=async_op)


class ReduceScatter(Comm):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: dist.ReduceOp, async_op: bool = False
    ) -> dist.Work | None:
        self.calls += 1
        dist.reduce_scatter_tensor(output_tensor, input_tensor, op=op, group=group)


def shard_with(shard: Shards, gather: AllGather, scatter: ReduceScatter, **options: object) -> nn.Module:
    model = shard_all(make_llama(), shard, **options)
    model.layers[0].set_custom_all_gather(gather)
    model.layers[0].set_custom_reduce_scatter(scatter)
    model.layers[2].set_custom_all_gather(gather)
    return model


def compare_custom(mesh: DeviceMesh | None = None, **options: object) -> None:
    counts = {}

    def make(shard: Shards, name: str) -> nn.Module:
        gather, scatter = counts[name] = (AllGather(), ReduceScatter())
        return shard_with(shard, gather, scatter, mesh=mesh, **options)

    compare(make, steps=2)
    ranks = dist.get_world_size() if mesh is None else mesh.size(mesh.ndim - 1)
    gather, scatter = counts["weft"]
    # In each of two steps: of the first block for forward and backward, of the last, which stays for backward; of the first.
    assert (gather.calls, scatter.calls) == ((6, 2) if ranks > 1 else (0, 0)), (gather.calls, scatter.calls)


@case
def custom_collectives_replace_wefts() -> None:
    compare_custom()


@case
def custom_collectives_work_with_hsdp() -> None:
    mesh = mesh_2d()
    if mesh is not None:
        compare_custom(mesh)


@case
def custom_collectives_get_the_dtypes_of_the_policy() -> None:
    seen = set()

    class Seeing(AllGather):
        def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **options: object) -> dist.Work | None:
            seen.add((output_tensor.dtype, input_tensor.dtype))
            return super().__call__(output_tensor, input_tensor, **options)

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    custom = shard_with(weft.fully_shard, Seeing(), ReduceScatter(), mp_policy=policy)
    other = shard_all(make_llama(), weft.fully_shard, mp_policy=policy)
    for model in (custom, other):
        train(model, steps=2)
    assert seen == ({(torch.bfloat16, torch.bfloat16)} if dist.get_world_size() > 1 else set()), seen
    expect_same_state(custom, other)


class Failing(Exception):
    pass


@case
def recovers_from_failures_of_custom_collectives() -> None:
    if dist.get_world_size() == 1:
        return

    class FailingOnce(AllGather):
        def __call__(self, *args: Tensor, **options: object) -> dist.Work | None:
            work = super().__call__(*args, **options)
            if self.calls == 1:
                work.wait()
                raise Failing("on purpose")
            return work

    model = shard_with(weft.fully_shard, FailingOnce(), ReduceScatter())
    with expect_error((Failing, RuntimeError), "on purpose"):  # An error of a peer may be the first.
        loss_of(model, tokens_of(0))
    weft.reset(model)
    other = shard_all(make_llama(), weft.fully_shard)
    for each in (model, other):
        train(each, steps=1)
    expect_same_state(model, other)


@case
def models_whose_functions_refer_to_them_go_away() -> None:
    model = shard_with(weft.fully_shard, gather := AllGather(), scatter := ReduceScatter())
    model.layers[1].set_all_reduce_hook(lambda gradient, model=model: None)
    gather.model = scatter.model = model
    train(model, steps=1)
    alive = weakref.ref(model)
    del model, gather, scatter
    gc.collect()
    assert alive() is None


@case
def custom_collectives_that_cannot_work_are_refused() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    for setter in (model.set_custom_all_gather, model.set_custom_reduce_scatter):
        with expect_error(TypeError, "that can be called"):
            setter(None)
    model(tokens_of(0))
    with expect_error(RuntimeError, "before the model's first forward"):
        model.set_custom_all_gather(AllGather())
    if dist.get_world_size() == 4:
        model = shard_all(make_llama(), weft.fully_shard, reshard_after_forward=2)
        model.layers[0].set_custom_all_gather(AllGather())
        with expect_error(ValueError, "use True or False"):
            model(tokens_of(0))
