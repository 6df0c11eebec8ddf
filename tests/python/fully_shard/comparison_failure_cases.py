"""Errors, recovery and signals; models that go away; compiled blocks."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import weft
from fsdp2_comparison import Shards, compare, expect_same_state, loss_of, make_llama, shard_all, tokens_of, train
from sharded_support import Cases, expect_error, whole
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

case = Cases()


class Failing(Exception):
    pass


@case
def recovers_from_exceptions() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    other = shard_all(make_llama(), weft.fully_shard)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]
    train(model, steps=1, optimizer=optimizers[0])
    last = dist.get_world_size() - 1

    def fail(*_: object) -> None:
        if dist.get_rank() == last:
            raise Failing("on purpose")

    for place in ("forward", "backward"):
        if place == "forward":
            handle = model.layers[1].mlp.register_forward_hook(fail)
        else:
            handle = model.layers[1].mlp.register_full_backward_hook(fail)
        try:
            loss_of(model, tokens_of(7)).backward()
        except Failing:
            assert dist.get_rank() == last
        except RuntimeError as error:
            assert dist.get_rank() != last, error
        else:
            assert dist.get_rank() != last
        handle.remove()
        weft.reset(model)
        train(model, steps=1, optimizer=optimizers[0])
    for _ in range(3):
        train(other, steps=1, optimizer=optimizers[1])
    expect_same_state(model, other, exact=True)


@case
def each_model_is_reset_after_a_failure_of_one() -> None:
    models = [shard_all(make_llama(), weft.fully_shard) for _ in range(2)]
    for model in models:
        train(model, steps=1)
    with expect_error((IndexError, RuntimeError)):  # Its own, or that of a peer.
        loss_of(models[0], tokens_of(7) + 10**6)
    with expect_error(RuntimeError, "call weft.reset(model)"):
        train(models[1], steps=1)
    weft.reset(models[0])
    train(models[0], steps=1)
    dist.barrier()  # A reset stops ranks that have not come as far.
    with expect_error(RuntimeError, "call weft.reset(model)"):
        train(models[1], steps=1)
    weft.reset(models[1])
    train(models[1], steps=1)


def step_with_failing_hook(model: nn.Module, purpose: str, register: Callable[[Callable], RemovableHandle], message: str) -> None:
    """A step whose hook raises an exception on the last rank. Its peers have an error with `message` before that rank does anything else."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    store = dist.PrefixStore(f"{purpose}-{last}", dist.distributed_c10d._get_default_store())

    def fail(*_: object) -> None:
        if rank == last:
            raise Failing("on purpose")

    handle = register(fail)
    expected = (Failing, "on purpose") if rank == last else (RuntimeError, f"rank {last}: {message}")
    with expect_error(*expected):
        loss_of(model, tokens_of(7)).backward()
    if rank != last:
        store.set(str(rank), "yes")
    elif last > 0:
        store.wait([str(peer) for peer in range(last)], timedelta(seconds=60))
    handle.remove()


@case
def tells_peers_of_an_exception_in_backward() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    train(model, steps=1)
    step_with_failing_hook(model, "told", model.layers[1].mlp.register_full_backward_hook, "exception in the backward of")
    weft.reset(model)
    train(model, steps=1)


@case
def tells_peers_of_an_exception_in_a_later_hook_of_the_root() -> None:
    """One that is registered after fully_shard. A forward in the handler of another exception fails nothing."""
    model = shard_all(make_llama(), weft.fully_shard)
    train(model, steps=1)
    step_with_failing_hook(model, "told-of-hook", model.register_forward_hook, "Failing in a hook after the forward of")
    if dist.get_rank() == dist.get_world_size() - 1:
        with expect_error(RuntimeError, "call weft.reset(model) on all ranks"):
            model(tokens_of(7))
    weft.reset(model)
    try:
        raise Failing("handled")
    except Failing:
        train(model, steps=1)


@case
def all_ranks_refuse_groups_that_one_of_them_describes_differently() -> None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if last == 0:
        return
    model = shard_all(make_llama(), weft.fully_shard)
    if rank == last:
        model.layers[1].mlp.down_proj.weight.requires_grad_(False)
    with expect_error(ValueError, "parameter group 'layers.1': ranks 0 and"):
        model(tokens_of(0))
    model.layers[1].mlp.down_proj.weight.requires_grad_(True)
    train(model, steps=1)


@case
def all_ranks_refuse_a_model_that_one_of_them_cannot_shard() -> None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    model = shard_all(make_llama(), weft.fully_shard)
    if rank == last:
        model.layers[1].to(torch.bfloat16)
    with expect_error(ValueError, "model.float()" if rank == last else f"rank {last}: "):
        model(tokens_of(0))
    model.layers[1].float()
    train(model, steps=1)


def interrupted_reset(has_forward: bool) -> None:
    """A signal ends the reset of rank 1, which waits for rank 0. Afterwards the ranks do not agree."""
    model = shard_all(make_llama(), weft.fully_shard)
    if has_forward:
        train(model, steps=1)
    else:
        weft.reset(model)  # Makes the session.
    dist.barrier()  # A reset stops ranks that have not come as far.
    if dist.get_rank() == 1:
        before = signal.signal(signal.SIGALRM, raise_failing)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with expect_error(Failing, "interrupted"):
            weft.reset(model)
        signal.signal(signal.SIGALRM, before)
    dist.barrier()


def a_late_rank_is_named() -> None:
    """Rank 1 begins its forward when that of rank 0 has missed its deadline. The ranks have nodes of their own: see name_node."""
    model = shard_all(make_llama(), weft.fully_shard)
    train(model, steps=1)
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["missed"], timedelta(seconds=60))
    with expect_error((TimeoutError, RuntimeError), "rank(s) 1 have not submitted what others wait for"):
        model(tokens_of(0))
    store.set("missed", "")
    weft.reset(model)
    train(model, steps=1)


def raise_failing(*_: object) -> None:
    raise Failing("interrupted")


@case
def signals_end_a_wait() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    train(model, steps=1)

    if dist.get_world_size() > 1:
        if dist.get_rank() == 1:  # Waits for rank 0, which does not come.
            before = signal.signal(signal.SIGALRM, raise_failing)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with expect_error(Failing, "interrupted"):
                loss_of(model, tokens_of(0)).backward()
            signal.signal(signal.SIGALRM, before)
        dist.barrier()
        weft.reset(model)
    train(model, steps=1)


@case
def models_go_away() -> None:
    for _ in range(3):
        model = shard_all(make_llama(), weft.fully_shard)
        train(model, steps=1)
        kept = model.lm_head.weight.to_local()
        value = kept.clone()
        alive = weakref.ref(model)
        del model
        gc.collect()
        assert alive() is None and torch.equal(kept, value)


@case
def compiles_blocks() -> None:
    def inside(shard: Shards, _: str) -> nn.Module:
        model = make_llama()
        for number, layer in enumerate(model.layers):
            model.layers[number] = shard(torch.compile(layer, backend="aot_eager"))
        return shard(model)

    def in_place(shard: Shards, _: str) -> nn.Module:
        model = shard_all(make_llama(), shard)
        for layer in model.layers:
            layer.compile(backend="aot_eager")
        return model

    for make in (inside, in_place):
        torch._dynamo.reset()
        compare(make, exact=False, tolerance=1e-5)


def name_node(nodes: list[str]) -> None:
    """Places the ranks on nodes, for sessions that are made later."""
    os.environ["WEFT_NODE_ID"] = nodes[dist.get_rank()]


def groups_in_another_order() -> None:
    """A model of a later process group, whose ranks are others. That of the earlier group is closed. The pool must be closed after this."""
    rank, size = dist.get_rank(), dist.get_world_size()
    earlier = weft.fully_shard(make_llama())
    earlier(tokens_of(0))
    dist.destroy_process_group()
    store = dist.FileStore(os.environ["TEST_STORE"] + "-other-order", size)
    dist.init_process_group(os.environ["TEST_BACKEND"], store=store, rank=size - 1 - rank, world_size=size)
    model, whole = make_llama(), make_llama()
    weft.fully_shard(model)
    with torch.no_grad():
        assert torch.equal(model(tokens_of(0)), whole(tokens_of(0)))
    with expect_error(RuntimeError, "its process group has ended"):
        earlier(tokens_of(0))


class Box:
    """A type that torch.utils._pytree does not know."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@case
def a_part_that_hides_its_outputs_has_its_gradients_or_an_error() -> None:
    """An error where its parameters are given back between forward and backward."""

    class Boxing(nn.Linear):
        def forward(self, x: Tensor) -> Box:
            return Box(torch.tanh(super().forward(x)))

    class Chain(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self[:-1]:
                x = layer(x).tensor
            return self[-1](x)

    def make() -> Chain:
        torch.manual_seed(3)
        return Chain(*[Boxing(4, 4) for _ in range(6)], nn.Linear(4, 4))

    model, expected = make(), make()
    for layer in model[:-1]:
        weft.fully_shard(layer)
    weft.fully_shard(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, expected)]
    for _ in range(3):
        expected(torch.ones(2, 4)).square().sum().backward()
        try:
            model(torch.ones(2, 4)).square().sum().backward()
        except RuntimeError as error:
            texts = ("torch.utils._pytree", "stopped", "modified by an inplace operation")
            assert any(text in str(error) for text in texts), error
            weft.reset(model)
            return
        for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(whole(ours.grad), theirs.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@case
def a_backward_that_begins_inside_a_frozen_module_is_right_or_an_error() -> None:
    """A loss on an activation inside a module whose parameters were given back. They get no gradient that would tell of it."""

    def make() -> nn.Sequential:
        torch.manual_seed(3)
        parts = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()) for _ in range(8)]
        parts[1].requires_grad_(False)
        return nn.Sequential(*parts)

    model, expected = make(), make()
    for part in model:
        weft.fully_shard(part)
    weft.fully_shard(model)
    gradients = []
    try:
        for each in (expected, model):
            activations: list[Tensor] = []
            x = torch.full((2, 8), 0.5, requires_grad=True)
            handle = each[1][1].register_forward_hook(lambda module, inputs, output, kept=activations: kept.append(output))
            each(x)
            handle.remove()
            activations[0].square().sum().backward()
            gradients.append(x.grad)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error), error
        dist.barrier()  # A reset stops ranks that have not come as far.
        weft.reset(model)
        return
    torch.testing.assert_close(gradients[1], gradients[0])


@case
def a_backward_that_no_output_tells_of_is_an_error() -> None:
    class Boxing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Box:
            return Box(self.last(self.inner(x)))

    model = weft.fully_shard(Boxing())
    model(torch.ones(2, 4)).tensor.sum().backward()
    assert all(param.grad is None for param in model.parameters())
    for _ in range(2):
        with expect_error(RuntimeError, "torch.utils._pytree"):
            model(torch.ones(2, 4))
    dist.barrier()  # A reset stops ranks that have not come as far.
    weft.reset(model)
    model(torch.ones(2, 4))
    # The outputs of a part may tell of it.
    model = Boxing()
    weft.fully_shard(model.inner)
    weft.fully_shard(model)
    for _ in range(2):
        model(torch.ones(2, 4)).tensor.sum().backward()
    assert all(param.grad is not None for param in model.parameters())


@case
def a_wrong_list_to_prefetch_changes_nothing() -> None:
    """Before the first forward, which then makes no root, and after it."""
    other = weft.fully_shard(nn.Linear(4, 4))
    for is_forward in (True, False):
        model = shard_all(make_llama(), weft.fully_shard)
        name = f"set_modules_to_{'forward' if is_forward else 'backward'}_prefetch"
        model.layers[1].set_requires_gradient_sync(False)
        getattr(model.layers[0], name)([other])
        with expect_error(ValueError, "'layers.0' cannot prefetch 'Linear', which is not below the same root"):
            model(tokens_of(0))
        getattr(model.layers[0], name)([model.layers[1]])
        loss_of(model, tokens_of(0)).backward()
        assert all(param.grad is None for param in model.layers[1].parameters())
        with expect_error(ValueError, "cannot prefetch 'Linear'"):
            getattr(model.layers[0], name)([other])
        model.layers[0].set_requires_gradient_sync(True)  # Hands all settings to the schedule.
        train(model, steps=1)
