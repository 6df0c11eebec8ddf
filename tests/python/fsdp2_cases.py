"""Behavior of FSDP2 that PyTorch's own suite checks, for two interfaces: torch's fully_shard over the backend "weft", and
weft.fully_shard. All ranks of a pool run a case together; test_fsdp2.py starts them.

The oracle is the same model without sharding, which takes the batches of all ranks: losses, gradients and parameters must be
equal up to rounding after every step. What both interfaces are compared in with each other is in sharding_cases.py.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import gc
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed._composable import checkpoint as composable_checkpoint
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule as TorchFSDPModule
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import weft
import weft.torch


@dataclass(frozen=True)
class Interface:
    name: str
    shard: Callable[..., nn.Module]
    module_class: type


INTERFACES = {
    "torch": Interface("torch", torch_fully_shard, TorchFSDPModule),
    "weft": Interface("weft", weft.fully_shard, weft.torch.FSDPModule),
}
CASES: dict[str, Callable[[Interface], None]] = {}


def case(function: Callable[[Interface], None]) -> Callable[[Interface], None]:
    CASES[function.__name__] = function
    return function


def run(name: str, interface: str) -> None:
    CASES[name](INTERFACES[interface])


# Models and oracle.


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


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def mesh_1d() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def mesh_2d() -> DeviceMesh | None:
    size = dist.get_world_size()
    return init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard")) if size % 2 == 0 else None


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


@contextlib.contextmanager
def expect_error(kinds: type[Exception] | tuple[type[Exception], ...], text: str = "") -> Iterator[None]:
    try:
        yield
    except kinds as error:
        assert text in str(error), f"{text!r} is not in {error}"
    else:
        raise AssertionError(f"no {kinds}")


# Modules after fully_shard.


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
        if api.name == "torch":  # weft keeps whole parameters that cost nothing.
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


# Training.


@case
def trains_shapes_that_do_not_divide(api: Interface) -> None:
    for first, second in (((16, 15), (15, 8)), ((7, 15), (15, 3)), ((16, 17), (17, 8)), ((1, 1), (1, 1))):
        make = lambda: nn.Sequential(nn.Linear(*first), nn.ReLU(), nn.Linear(*second))  # noqa: B023
        model, reference = seeded(make), seeded(make)
        api.shard(model)
        trains_as_unsharded(model, reference, squares(4, first[0]))


@case
def trains_with_every_reshard(api: Interface) -> None:
    options = [True, False, None] + ([2] if dist.get_world_size() == 4 else [])
    for reshard, mesh in itertools.product(options, (mesh_1d(), mesh_2d())):
        if mesh is None or (mesh.ndim == 2 and reshard == 2):
            continue
        model, reference = seeded(mlps), seeded(mlps)
        for module in (*model, model):
            api.shard(module, mesh=mesh, reshard_after_forward=reshard)
        trains_as_unsharded(model, reference, squares(4, 9), steps=3)


@case
def runs_the_root_and_then_a_part(api: Interface) -> None:
    model, reference = seeded(mlps), seeded(mlps)
    for module in (*model, model):
        api.shard(module)

    def loss_of(module: nn.Module, step: int, rank: int) -> Tensor:
        return (module if step % 2 == 0 else module[0])(batch(step, rank, 4, 9)).square().mean()

    model_optimizer, reference_optimizer = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, reference))
    for step in range(4):
        trains_as_unsharded(model, reference, lambda m, _, rank, step=step: loss_of(m, step, rank), steps=1, optimizers=False)
        for optimizer in (model_optimizer, reference_optimizer):
            optimizer.step()
            optimizer.zero_grad()


@case
def a_module_may_run_twice_in_a_forward(api: Interface) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.outer = nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(self.inner(x) + self.inner(2 * x))

    for reshard in (True, False):
        model, reference = seeded(Twice), seeded(Twice)
        api.shard(model.inner, reshard_after_forward=reshard)
        api.shard(model, reshard_after_forward=reshard)
        trains_as_unsharded(model, reference, squares(8, 4))


@case
def a_root_may_have_no_inputs(api: Interface) -> None:
    class OfParameters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 5))

        def forward(self) -> Tensor:
            return self.weight @ self.weight

    model, reference = seeded(OfParameters), seeded(OfParameters)
    api.shard(model)
    trains_as_unsharded(model, reference, lambda m, step, rank: (rank + 1) * m().square().mean())


@case
def every_kind_of_activation_checkpoint_works(api: Interface) -> None:
    class Checkpointed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            for module in self:
                x = checkpoint(module, x, use_reentrant=False)
            return x

    for kind, reshard in itertools.product(("wrapper", "composable", "function"), (True, False)):
        model, reference = seeded(mlps), seeded(mlps)
        if kind == "wrapper":
            apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Mlp))
        elif kind == "composable":
            for module in model:
                composable_checkpoint(module)
        else:
            model = Checkpointed(*model)
        for module in (*model, model):
            api.shard(module, reshard_after_forward=reshard)
        trains_as_unsharded(model, reference, squares(4, 9), steps=3)


@case
def two_forwards_and_a_loss_of_both(api: Interface) -> None:
    """As in preference training: nested groups, activation checkpoints, one backward."""
    for kind in (None, "composable"):
        model, reference = seeded(mlps), seeded(mlps)
        for module in model:
            if kind is not None:
                composable_checkpoint(module)
            for part in (module.in_proj, module.out_proj, module):
                api.shard(part)
        api.shard(model)

        def loss_of(module: nn.Module, step: int, rank: int) -> Tensor:
            chosen, rejected = (module(batch(2 * step + number, rank, 4, 9)) for number in range(2))
            return (chosen.mean() - rejected.mean()).square() + chosen.square().mean()

        trains_as_unsharded(model, reference, loss_of, steps=3)


@case
def prefetches_that_are_named(api: Interface) -> None:
    make = lambda: mlps(6)
    model, reference = seeded(make), seeded(make)
    for module in (*model, model):
        api.shard(module)
    for number in range(6):
        if number < 4:
            model[number].set_modules_to_forward_prefetch([model[number + 1], model[number + 2]])
        if number > 1:
            model[number].set_modules_to_backward_prefetch([model[number - 1], model[number - 2]])
    trains_as_unsharded(model, reference, squares(4, 9))


# Groups of several modules, of which a forward runs some.


class ChunkedHead(nn.Module):
    """A language model whose head also runs alone, on a chunk of the tokens at a time."""

    def __init__(self, tied: bool = False, dim: int = 12, vocab: int = 21) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.body = nn.Linear(dim, dim, bias=False)
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, skip_head: bool = False) -> Tensor:
        hidden = self.norm(self.body(self.embed(tokens)))
        return hidden if skip_head else self.head(hidden)


def tokens_of(step: int, rank: int, vocab: int = 21) -> Tensor:
    return torch.randint(0, vocab, (2, 16), generator=torch.Generator().manual_seed(100 * step + rank))


def run_in_chunks(model: nn.Module, tokens: Tensor, scale: float = 1.0, chunks: int = 4) -> Tensor:
    """Forward without the head, backward of the head chunk by chunk, then of the rest. Returns the loss."""
    hidden = model(tokens, skip_head=True)
    gradients, total = [], torch.zeros(())
    for part in hidden.detach().chunk(chunks, dim=1):
        part = part.contiguous().requires_grad_()
        loss = scale * model.head(part).square().sum() / tokens.numel()
        loss.backward()
        gradients.append(part.grad)
        total += loss.detach()
    hidden.backward(torch.cat(gradients, dim=1))
    return total


@case
def a_head_of_a_group_runs_alone_in_chunks(api: Interface) -> None:
    size = dist.get_world_size()
    for tied, reshard in itertools.product((False, True), (True, False)):
        make = lambda: ChunkedHead(tied)  # noqa: B023
        model, reference = seeded(make), seeded(make)
        options = {"reshard_after_forward": reshard}
        api.shard(model.body, **options)
        if tied:
            api.shard([model.embed, model.norm, model.head], **options)
        else:
            api.shard(model.embed, **options)
            api.shard([model.norm, model.head], **options)
        api.shard(model, **options)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, reference)]
        for step in range(3):
            loss = run_in_chunks(model, tokens_of(step, dist.get_rank()))
            for rank in range(size):
                expected = run_in_chunks(reference, tokens_of(step, rank), 1 / size)
                if rank == dist.get_rank():
                    expect_close(loss / size, expected, f"loss of step {step}, tied {tied}, reshard {reshard}")
            expect_alike(model, reference)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 2 == 0)


@case
def chunks_accumulate_without_sync(api: Interface) -> None:
    size = dist.get_world_size()
    model, reference = seeded(ChunkedHead), seeded(ChunkedHead)
    for part in (model.embed, model.body, [model.norm, model.head], model):
        api.shard(part)
    for step in range(3):
        model.set_requires_gradient_sync(step == 2)
        model.set_is_last_backward(step == 2)
        run_in_chunks(model, tokens_of(step, dist.get_rank()), chunks=2)
        for rank in range(size):
            run_in_chunks(reference, tokens_of(step, rank), 1 / size, chunks=2)
    expect_alike(model, reference)


@case
def two_partial_forwards_and_one_backward(api: Interface) -> None:
    model, reference = seeded(ChunkedHead), seeded(ChunkedHead)
    api.shard([model.norm, model.head])
    api.shard(model)

    def loss_of(module: nn.Module, step: int, rank: int) -> Tensor:
        first, second = (module(tokens_of(2 * step + number, rank), skip_head=True) for number in range(2))
        return first.square().mean() + (second * 3).square().mean()

    trains_as_unsharded(model, reference, loss_of, steps=1, optimizers=False)
    assert model.head.weight.grad is None


@case
def a_group_casts_the_inputs_of_every_module(api: Interface) -> None:
    class FloatBetween(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8, bias=False)
            self.second = nn.Linear(8, 8, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).float())

    model = seeded(FloatBetween)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=True)
    api.shard([model.first, model.second], mp_policy=policy)
    api.shard(model, mp_policy=policy)
    output = model(torch.randn(2, 8))
    assert output.dtype == torch.bfloat16
    output.sum().backward()
    assert all(param.grad is not None and param.grad.dtype == torch.float32 for param in model.parameters())


# Shared parameters.


@case
def tied_parameters_of_uneven_size_are_updated_in_every_row(api: Interface) -> None:
    vocab = 4 * dist.get_world_size() + 1

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocab, 16)
            self.output = nn.Linear(16, vocab, bias=False)
            self.output.weight = self.embed.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.output(self.embed(ids))

    def loss_of(module: nn.Module, step: int, rank: int) -> Tensor:
        ids = tokens_of(step, rank, vocab)
        return F.cross_entropy(module(ids).flatten(0, 1), ids.flatten())

    for reshard in (True, False):
        model, reference = seeded(Tied), seeded(Tied)
        before = reference.embed.weight.detach().clone()
        api.shard([model.embed, model.output], reshard_after_forward=reshard)
        api.shard(model, reshard_after_forward=reshard)
        trains_as_unsharded(model, reference, loss_of)
        assert model.embed.weight is model.output.weight
        after = whole(model.embed.weight)
        assert all(not torch.equal(row, other) for row, other in zip(before, after, strict=True))


@case
def refuses_a_parameter_of_two_groups(api: Interface) -> None:
    model = ChunkedHead(tied=True)
    with expect_error(ValueError):
        for part in (model.embed, model.head, model):
            api.shard(part)
        model(tokens_of(0, 0))


# Accumulation.


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


# Autograd.


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


# Frozen parameters.


@case
def trains_biases_only(api: Interface) -> None:
    def freeze(module: nn.Module) -> None:
        for name, param in module.named_parameters():
            param.requires_grad_("bias" in name)

    for after, checkpointed in itertools.product((False, True), (False, True)):
        model, reference = seeded(mlps), seeded(mlps)
        freeze(reference)
        if not after:
            freeze(model)
        for module in model:
            if checkpointed:
                composable_checkpoint(module)
            api.shard(module)
        api.shard(model)
        if after:
            freeze(model)
        trains_as_unsharded(model, reference, squares(4, 9), steps=3)


@case
def freezes_and_unfreezes_modules_between_steps(api: Interface) -> None:
    make = lambda: nn.Sequential(*itertools.chain.from_iterable((nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))
    model, reference = seeded(make), seeded(make)
    for module in model:
        if isinstance(module, nn.Linear):
            api.shard(module)
    api.shard(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, reference)]
    for step in range(5):
        for module in (model, reference):
            for number in (0, 4):
                module[number].requires_grad_(step not in (1, 2))
        if step == 2:
            with torch.no_grad():
                expect_close(model(batch(9, 0, 2, 8)), reference(batch(9, 0, 2, 8)), "output")
        trains_as_unsharded(model, reference, lambda m, _, rank, step=step: squares(3, 8)(m, step, rank), steps=1, optimizers=False)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@case
def trains_modules_that_were_frozen_at_first(api: Interface) -> None:
    """weft.fully_shard has no place for their gradients, and says so."""
    model, reference = seeded(mlps), seeded(mlps)
    for module in (model, reference):
        module[1].requires_grad_(False)
    for module in (*model, model):
        api.shard(module)
    trains_as_unsharded(model, reference, squares(4, 9), steps=1, optimizers=False)
    for module in (model, reference):
        module.zero_grad()
        module[1].requires_grad_()
    if api.name == "weft":
        with expect_error(RuntimeError, "before the first forward"):
            model(batch(9, 0, 4, 9))
        weft.reset(model)
        return
    trains_as_unsharded(model, reference, squares(4, 9), steps=2)


@case
def frozen_and_trained_modules_run_several_times(api: Interface) -> None:
    class Repeated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.entry = nn.Linear(5, 5)
            self.frozen = nn.Linear(5, 5).requires_grad_(False)
            self.trained = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = self.entry(x)
            for _ in range(3):
                x = self.frozen(torch.tanh(self.trained(x)))
                with torch.no_grad():
                    offset = torch.tanh(self.trained(x))
                x = x + offset
            return x

    for reshard in (True, False):
        model, reference = seeded(Repeated), seeded(Repeated)
        for module in (model.entry, model.frozen, model.trained, model):
            api.shard(module, reshard_after_forward=reshard)
        trains_as_unsharded(model, reference, squares(8, 5))


# Ignored parameters.


@case
def ddp_may_contain_sharded_modules(api: Interface) -> None:
    """DDP around the model, sharding of one part of it, and DDP again of a part of that."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(6, 6)
            self.inner = Mlp(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(torch.tanh(self.before(x)))

    model, reference = seeded(Outer), seeded(Outer)
    ignored = set(model.inner.out_proj.parameters())
    api.shard(model.inner.in_proj, ignored_params=ignored)
    api.shard(model.inner, ignored_params=ignored)
    sharded = [name for name, param in model.named_parameters() if isinstance(param, DTensor)]
    assert sharded == ["inner.in_proj.weight", "inner.in_proj.bias"], sharded
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, sharded)
    replica = DistributedDataParallel(model, broadcast_buffers=False)
    size = dist.get_world_size()
    for step in range(3):
        squares(4, 6)(replica, step, dist.get_rank()).backward()
        for rank in range(size):
            (squares(4, 6)(reference, step, rank) / size).backward()
        expect_alike(model, reference)
        for param in (*model.parameters(), *reference.parameters()):
            local = param.to_local() if isinstance(param, DTensor) else param
            gradient = param.grad.to_local() if isinstance(param, DTensor) else param.grad
            with torch.no_grad():
                local.sub_(gradient, alpha=0.05)
            param.grad = None


# Mixed precision.


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


# States.


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


# Norms, scaled losses, optimizers.


@case
def clips_by_every_norm(api: Interface) -> None:
    size = dist.get_world_size()
    for mesh, kind in itertools.product((mesh_1d(), mesh_2d()), (1, 2, 3, float("inf"))):
        if mesh is None:
            continue
        # torch has no infinity norm of an empty shard.
        model, reference = seeded(lambda: mlps(3, 8)), seeded(lambda: mlps(3, 8))
        for module in (*model, model):
            api.shard(module, mesh=mesh)
        squares(4, 8)(model, 0, dist.get_rank()).backward()
        for rank in range(size):
            (squares(4, 8)(reference, 0, rank) / size).backward()
        options = {"max_norm": 0.01, "norm_type": kind}
        total = nn.utils.clip_grad_norm_(model.parameters(), foreach=True, **options)
        expect_close(whole(total), nn.utils.clip_grad_norm_(reference.parameters(), **options), f"norm {kind}")
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


# Recovery.


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


# Parts that only one interface has.


def torch_only(function: Callable[[], None]) -> Callable[[Interface], None]:
    """A case that weft.fully_shard refuses, as docs/torch_fully_shard.md says."""

    def check(api: Interface) -> None:
        if api.name == "torch":
            function()

    CASES[function.__name__] = check
    return check


@torch_only
def sharding_and_tensor_parallelism_compose() -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    size = dist.get_world_size()
    if size % 2:
        return
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    model, reference = seeded(lambda: mlps(3, 8)), seeded(lambda: mlps(3, 8))
    plan = {f"{n}.{part}": kind() for n in range(3) for part, kind in (("in_proj", ColwiseParallel), ("out_proj", RowwiseParallel))}
    parallelize_module(model, mesh["tp"], plan)
    for module in (*model, model):
        torch_fully_shard(module, mesh=mesh["dp"])
    data_rank = mesh.get_local_rank("dp")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, reference)]
    for step in range(3):
        squares(4, 8)(model, step, data_rank).backward()
        for rank in range(size // 2):
            (squares(4, 8)(reference, step, rank) / (size // 2)).backward()
        expect_alike(model, reference)
        total = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        expect_close(whole(total), nn.utils.clip_grad_norm_(reference.parameters(), 0.1), "norm")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@torch_only
def local_tensors_may_extend_the_gather() -> None:
    """fsdp_pre_all_gather and fsdp_post_all_gather, which gather in bfloat16."""
    model, reference = seeded(lambda: mlps(3, 8)), seeded(lambda: mlps(3, 8))
    for module in (*model, model):
        torch_fully_shard(module)

    def pre(self: Tensor, mesh: DeviceMesh) -> tuple:
        return (self.to(torch.bfloat16),), None

    def post(self: Tensor, outputs: tuple, metadata: Any, dtype: torch.dtype, *, out: Tensor | None = None) -> tuple | None:
        value = outputs[0].to(dtype)
        if out is not None:
            with torch.autograd._unsafe_preserve_version_counter(out):
                out.copy_(value)
            return None
        return value, (outputs[0], value)

    for name, param in model.named_parameters():
        if "weight" in name:
            local = param._local_tensor
            local.fsdp_pre_all_gather, local.fsdp_post_all_gather = pre.__get__(local), torch.no_grad()(post).__get__(local)
    trains_as_unsharded(model, reference, squares(4, 8), steps=1, tolerance=2e-2, optimizers=False)


@torch_only
def cpu_offload_policies_are_accepted() -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy

    model, reference = seeded(mlps), seeded(mlps)
    for module in (*model, model):
        torch_fully_shard(module, offload_policy=CPUOffloadPolicy(pin_memory=False))
    trains_as_unsharded(model, reference, squares(4, 9), steps=2)


@torch_only
def replicate_over_the_backend() -> None:
    """torch's composable replicate, and meshes of a replicate axis alone."""
    from torch.distributed._composable import replicate

    model, reference = seeded(mlps), seeded(mlps)
    replicate(model)
    trains_as_unsharded(model, reference, squares(4, 9), steps=3)
    assert Replicate() == Replicate()
