"""Forward and backward in other orders than those of a training step."""

from __future__ import annotations

import contextlib
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
import weft
from fsdp2_comparison import (
    BOTH,
    Shards,
    expect_equal,
    expect_same_gradients,
    expect_same_state,
    loss_of,
    make_llama,
    shard_all,
    tokens_of,
    train,
)
from sharded_support import Cases, expect_error, whole
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp import register_fsdp_forward_method as torch_register_forward_method
from torch.distributed.tensor import DTensor

case = Cases()


@case
def evaluates_without_gradients() -> None:
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=1e-2) for name, model in models.items()}
    losses: dict[str, list[Tensor]] = {name: [] for name in models}
    for step in range(3):
        for name, model in models.items():
            model.eval()
            with torch.no_grad():
                losses[name].append(loss_of(model, tokens_of(step)))
            model.train()
            train(model, steps=1, optimizer=optimizers[name])
            with torch.inference_mode():
                losses[name].append(loss_of(model, tokens_of(step)))
    for ours, theirs in zip(losses["weft"], losses["torch"], strict=True):
        expect_equal(ours.clone(), theirs.clone(), "loss")


@case
def the_first_forward_may_be_an_inference() -> None:
    models = []
    for evaluates in (False, True):
        model = shard_all(make_llama(), weft.fully_shard)
        if evaluates:
            with torch.inference_mode():
                loss_of(model, tokens_of(0))
        train(model)
        models.append(model)
    expect_same_state(*models, exact=True)


@case
def a_forward_may_have_no_backward() -> None:
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=1e-2) for name, model in models.items()}
    for name, model in models.items():
        loss_of(model, tokens_of(50))
        train(model, steps=1, optimizer=optimizers[name])
        loss_of(model, tokens_of(51))
        state = model.state_dict()
        model.load_state_dict({key: value.clone() for key, value in state.items()})
        train(model, steps=2, optimizer=optimizers[name])
    expect_same_state(models["weft"], models["torch"])


@case
def several_passes_and_one_backward() -> None:
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    for model in models.values():
        (loss_of(model, tokens_of(0)) + loss_of(model, tokens_of(1))).backward()
    expect_same_gradients(models["weft"], models["torch"], exact=False)
    for model in models.values():
        model.zero_grad()
        first, second = loss_of(model, tokens_of(2)), loss_of(model, tokens_of(3))
        first.backward()
        second.backward()
    expect_same_gradients(models["weft"], models["torch"], exact=False)


@case
def a_backward_may_be_repeated() -> None:
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    for model in models.values():
        loss = loss_of(model, tokens_of(0))
        loss.backward(retain_graph=True)
        loss.backward()
    expect_same_gradients(models["weft"], models["torch"])


@case
def shards_may_be_used_outside_of_the_model() -> None:
    """A penalty on the shards adds to the gradients of the same backward."""

    def loss_with_penalty(model: nn.Module, step: int) -> Tensor:
        penalty = sum(param.to_local().square().sum() for param in model.parameters())
        return loss_of(model, tokens_of(step)) + 0.1 * penalty

    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    for model in models.values():
        for step in range(2):  # The second adds to gradients that the first has left.
            loss_with_penalty(model, step).backward()
    expect_same_gradients(models["weft"], models["torch"], exact=False)


@case
def hooks_that_see_no_gradient_are_an_error_or_warned_of() -> None:
    """Those before fully_shard are an error. Later ones may be on one rank alone, with one warning for each trained parameter."""
    model, other = make_llama(), make_llama()
    for register in (nn.Parameter.register_hook, nn.Parameter.register_post_accumulate_grad_hook):
        handle = register(model.norm.weight, print)
        with expect_error(ValueError, "parameter 'norm.weight' of 'Llama' has a gradient hook"):
            weft.fully_shard(model)
        handle.remove()
    for each in (model, other):
        weft.fully_shard(each)
    if dist.get_rank() == 0:
        for param in (model.norm.weight, model.lm_head.weight):
            param.register_hook(print)
    for each in (model, other):
        each.lm_head.weight.requires_grad_(False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(2):
            for each in (model, other):
                loss_of(each, tokens_of(step)).backward()
    messages = [str(warning.message) for warning in caught if "register_hook" in str(warning.message)]
    assert len(messages) == (dist.get_rank() == 0) and all("'norm.weight'" in message for message in messages), messages
    expect_same_gradients(model, other, exact=True)


@case
def gradients_of_inputs_in_a_forward() -> None:
    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.inner = nn.Sequential(nn.Linear(7, 13), nn.Tanh())
            self.outer = nn.Linear(13, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            energy = self.outer(self.inner(x)).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
            return energy + force.square().sum()

    model, expected = Energy(), Energy()
    weft.fully_shard(model.inner)
    weft.fully_shard(model.outer)
    weft.fully_shard(model)
    for step in range(2):
        inputs = [torch.randn(4, 7, generator=torch.Generator().manual_seed(10 * step + rank)) for rank in range(dist.get_world_size())]
        model(inputs[dist.get_rank()].clone()).backward()
        for part in inputs:
            (expected(part) / dist.get_world_size()).backward()
    for (name, ours), (_, theirs) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
        expect_equal(whole(ours.grad), theirs.grad, name, exact=False, tolerance=1e-5)


@case
def two_models_train_side_by_side() -> None:
    pairs = {}
    for name, shard in BOTH.items():
        first, second = shard_all(make_llama(seed=1), shard), shard_all(make_llama(seed=2), shard)
        pairs[name] = (first, second)
        optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-2)
        for step in range(3):
            tokens = tokens_of(step)
            with torch.no_grad():
                target = second(tokens[:, :-1]).softmax(-1)
            loss = F.cross_entropy(first(tokens[:, :-1]).flatten(0, 1), target.flatten(0, 1)) + loss_of(second, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for ours, theirs in zip(pairs["weft"], pairs["torch"], strict=True):
        expect_same_state(ours, theirs)


@case
def unshards_by_hand() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = make_llama()
    model.layers[1].unshard()
    weight = model.layers[1].mlp.up_proj.weight
    assert not isinstance(weight, DTensor)
    expect_equal(weight.detach(), expected.layers[1].mlp.up_proj.weight.detach(), "weight", exact=True)
    handle = model.layers[2].unshard(async_op=True)
    handle.wait()
    handle.wait()
    model.layers[1].reshard()
    assert isinstance(model.layers[1].mlp.up_proj.weight, DTensor)
    train(model, steps=2, optimizer=optimizer)
    other = shard_all(make_llama(), weft.fully_shard)
    train(other, steps=2, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    expect_same_state(model, other, exact=True)


@case
def the_first_of_equal_modules_around_an_unsharded_one_is_the_root() -> None:
    """Ranks with different roots would wait for each other. The calls of fully_shard have one order on all ranks, addresses have not."""
    shared = weft.fully_shard(nn.Linear(4, 4))
    wrappers = [weft.fully_shard(nn.Sequential(shared, nn.Linear(4, 4))) for _ in range(20)]
    shared.unshard()
    assert [wrapper._weft_group.root is not None for wrapper in wrappers] == [True] + [False] * 19
    shared.reshard()


@case
def the_forward_may_call_a_registered_method() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.first, self.second = nn.Linear(7, 9), nn.Linear(9, 7)

        def encode(self, x: Tensor) -> Tensor:
            return self.second(torch.tanh(self.first(x)))

        def forward(self, x: Tensor, fails: bool = False) -> Tensor:
            if fails:
                raise ArithmeticError("on purpose")
            return self.encode(x) * self.encode(2 * x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.fails = Encoder(), False

        def forward(self, x: Tensor) -> Tensor:
            with contextlib.suppress(ArithmeticError):
                x = self.encoder(x, self.fails)
            return self.encoder.encode(x)

    def make(shard: Shards, name: str) -> nn.Module:
        model = Outer()
        shard(model.encoder)
        shard(model)
        {"torch": torch_register_forward_method, "weft": weft.register_fsdp_forward_method}[name](model.encoder, "encode")
        return model

    models = {name: make(shard, name) for name, shard in BOTH.items()}
    x = torch.randn(3, 7, generator=torch.Generator().manual_seed(dist.get_rank()))
    for model in models.values():
        model(x).square().sum().backward()
    expect_same_gradients(models["weft"], models["torch"])
    model = models["weft"]
    model.zero_grad()
    model.fails = True
    model(x).square().sum().backward()  # The method gathers after a forward that has failed.
    assert model.encoder.first.weight.grad is not None


@case
def a_registered_method_casts_inside_the_forward() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.linear = nn.Linear(7, 7)

        def encode(self, x: Tensor) -> Tensor:
            assert x.dtype == torch.bfloat16
            return self.linear(x)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.encode(x.float())
            assert hidden.dtype == torch.float32
            return self.encode(hidden)

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    register = {"torch": torch_register_forward_method, "weft": weft.register_fsdp_forward_method}
    models = {name: shard(Encoder(), mp_policy=policy) for name, shard in BOTH.items()}
    for name, model in models.items():
        register[name](model, "encode")
        model(torch.ones(3, 7)).square().sum().backward()
    expect_same_gradients(models["weft"], models["torch"])


class _Shortcut(nn.Module):
    """A block whose weight may also be used before the block, as that of an encoder which only some batches need."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.block = nn.Linear(8, 8, bias=False)

    def forward(self, x: Tensor, uses_early: bool) -> Tensor:
        if isinstance(self.block, weft.FSDPModule):
            self.block.unshard()
        early = F.linear(x, self.block.weight).tanh() if uses_early else x
        return self.block(self.first(early))


@case
def a_weight_may_be_used_outside_of_its_block_on_one_rank() -> None:
    """Its gradient comes after the block's gradients were reduced, and on the last rank only."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model, reference = _Shortcut(), _Shortcut()
    reference.load_state_dict(model.state_dict())
    weft.fully_shard(model.block)
    weft.fully_shard(model)
    for step in range(3):
        inputs = torch.randn(size, 5, 8)
        model(inputs[rank], rank == size - 1).square().sum().backward()
        for other in range(size):
            (reference(inputs[other], other == size - 1).square().sum() / size).backward()
        for (name, param), expected in zip(model.named_parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(whole(param.grad), expected.grad, msg=f"{name} in step {step}")
        model.zero_grad()
        reference.zero_grad()


def chain() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def sharded_chain() -> nn.Module:
    model = chain()
    for part in (*model, model):
        weft.fully_shard(part)
    return model


@case
def derivatives_in_forward_mode_are_right() -> None:
    values = []
    for model in (sharded_chain(), chain()):
        x = torch.ones(2, 4)
        for _ in range(2):
            with torch.autograd.forward_ad.dual_level():
                output = model(torch.autograd.forward_ad.make_dual(x, 2 * x))
                values.append(torch.autograd.forward_ad.unpack_dual(output).tangent.clone())
                output.square().sum().backward()
            values.append(whole(model[0].weight.grad))
    for ours, theirs in zip(values[:4], values[4:], strict=True):
        expect_equal(ours, theirs, "derivative", exact=False)


@case
def transforms_of_torch_func_are_right_or_refused() -> None:
    """Refused where they differentiate backward."""
    model, expected = sharded_chain(), chain()
    x = torch.ones(2, 4)
    model(x).sum().backward()
    for ours, theirs in zip(*(torch.func.jvp(module, (x,), (2 * x,)) for module in (model, expected)), strict=True):
        expect_equal(ours, theirs, "jvp", exact=False)
    expect_equal(torch.func.vmap(model)(x), torch.func.vmap(expected)(x), "vmap", exact=False)
    for transform in (lambda loss: torch.func.grad(loss)(x), lambda loss: torch.func.vjp(loss, x)):
        dist.barrier()  # A rank that fails stops those that have not come as far.
        with expect_error(RuntimeError, "a transform of torch.func runs through '0'"):
            transform(lambda x: model(x).sum())
        dist.barrier()
        weft.reset(model)


class Views(nn.Linear):
    """Gives views of values that its backward needs, of its weight, or of memory of another output."""

    kind = "saved"

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        y = torch.tanh(super().forward(x))
        if self.kind == "saved":
            return y.view(-1)
        return self.weight[:2] if self.kind == "parameter" else (y.view(-1), y)


@case
def autograd_sees_changes_of_outputs_in_place() -> None:
    for kind, text in (("saved", "modified by an inplace operation"), ("parameter", "leaf Variable")):
        model = weft.fully_shard(Views(6, 6))
        model.kind = kind
        with expect_error(RuntimeError, text):
            output = model(torch.ones(2, 6))
            output.mul_(2)
            dist.barrier()  # A rank that fails stops those that have not come as far.
            output.sum().backward()
        dist.barrier()
        weft.reset(model)
    model = weft.fully_shard(Views(6, 6))
    model.kind = "shared"
    flat, y = model(torch.ones(2, 6))
    before = y.grad_fn
    flat.mul_(2)
    assert torch.equal(flat, y.flatten()) and y.grad_fn is not before
