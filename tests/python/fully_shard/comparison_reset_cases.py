"""Resets after exceptions."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable

import torch
import torch.distributed as dist
import weft
from comparison_failure_cases import Failing, raise_failing
from fsdp2_comparison import Shards, compare, loss_of, make_llama, shard_all, tokens_of, train
from sharded_support import Cases, expect_error
from torch import Tensor, nn

case = Cases()


@case
def forwards_after_a_failed_one_raise_until_a_reset() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    train(model, steps=1)
    handle = model.layers[1].mlp.register_forward_hook(raise_failing)
    with contextlib.suppress(RuntimeError), expect_error(Failing, ""):
        model(tokens_of(7))
    handle.remove()
    for _ in range(3):
        with expect_error(RuntimeError, "call weft.reset(model) on all ranks"):
            model(tokens_of(7))
    weft.reset(model)
    train(model, steps=1)


@case
def a_reset_names_ranks_that_lack_an_update() -> None:
    """Rank 0 raises after a step, while its peers have not made it."""
    model = shard_all(make_llama(), weft.fully_shard)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, steps=1, optimizer=optimizer)
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    size, is_ahead = dist.get_world_size(), dist.get_rank() == 0
    loss_of(model, tokens_of(7)).backward()
    if is_ahead:
        optimizer.step()
    dist.barrier()
    if size == 1:
        weft.reset(model)
        return
    with expect_error(RuntimeError, f"without the last update of 'FSDPLlama': {', '.join(map(str, range(1, size)))}. "):
        weft.reset(model)
    model.load_state_dict(saved)
    dist.barrier()  # A reset stops ranks that have not come as far.
    weft.reset(model)  # The ranks agree again.
    train(model, steps=1, optimizer=optimizer)


@case
def a_reset_that_raises_has_reset_all_roots() -> None:
    """All ranks raise in the second of two roots, after a step of the first that only rank 0 has made."""
    if dist.get_world_size() == 1:
        return
    model = nn.ModuleList([weft.fully_shard(nn.Linear(4, 4)), weft.fully_shard(nn.Linear(4, 4))])
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    x = torch.ones(2, 4)
    for part in model:
        part(x).sum().backward()
    if dist.get_rank() == 0:
        first.step()
    handle = model[1].register_forward_hook(raise_failing, prepend=True)
    with contextlib.suppress(Failing, RuntimeError):
        model[1](x)
    handle.remove()
    dist.barrier()  # A reset stops ranks that have not come as far.
    with expect_error(RuntimeError, "load a checkpoint"):
        weft.reset(model)
    for part in model:
        part.zero_grad()
        part(x).sum().backward()
        assert part.weight.grad is not None


@case
def a_step_whose_closure_fails_makes_no_update() -> None:
    model = weft.fully_shard(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> Tensor:
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    handle = model.register_forward_hook(raise_failing, prepend=True)
    with contextlib.suppress(RuntimeError), expect_error(Failing):  # That of a peer may come first.
        optimizer.step(closure) if dist.get_rank() == 0 else closure()
    handle.remove()
    dist.barrier()  # A reset stops ranks that have not come as far.
    weft.reset(model)
    optimizer.step(closure)


@case
def a_reset_of_a_new_model_recovers_from_one_that_is_gone() -> None:
    """All ranks, or the last one, raise in the forward of a model that they drop. FSDP2 trains the model that follows alike."""
    for failing in (range(dist.get_world_size()), [dist.get_world_size() - 1]):
        model = shard_all(make_llama(), weft.fully_shard)
        train(model, steps=1)
        dist.barrier()  # A failure stops ranks that have not come as far.
        if dist.get_rank() in failing:
            model.layers[1].mlp.register_forward_hook(raise_failing)
        with contextlib.suppress(Failing, RuntimeError):
            loss_of(model, tokens_of(7)).backward()
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None

        def make(shard: Shards, name: str) -> nn.Module:
            new = shard_all(make_llama(), shard)
            if name == "weft":
                new.norm.weight.grad = torch.ones_like(new.norm.weight)  # That of a penalty.
                weft.reset(new)
            return new

        compare(make)


@case
def a_reset_before_the_first_forward_of_one_rank_recovers_all() -> None:
    """Rank 0 raises before the first forward, in which its peers wait for it."""
    model = shard_all(make_llama(), weft.fully_shard)
    if dist.get_rank() > 0:
        with expect_error(RuntimeError, "all ranks must call the same collectives"):
            model(tokens_of(0))
    weft.reset(model)
    train(model, steps=1)


@case
def a_reset_names_ranks_that_give_another_model() -> None:
    if dist.get_world_size() == 1:
        return
    model = shard_all(make_llama(), weft.fully_shard)
    train(model, steps=1)
    dist.barrier()  # A reset stops ranks that have not come as far.
    with expect_error(RuntimeError, "rank 0 has 0 roots that have run a forward, and that of rank 1 has 1: call weft.reset with the same model"):
        weft.reset(None if dist.get_rank() == 0 else model)
    dist.barrier()
    weft.reset(model)
    train(model, steps=1)


def collectives_work_again_after_a_reset() -> None:
    """Those of the default group, which has the backend weft, and of another group. Rank 0 aborts them."""
    pair = dist.new_group([0, dist.get_world_size() - 1]) if dist.get_world_size() > 1 else None
    apart = dist.new_group(backend="gloo")
    for _ in range(2):
        dist.barrier(apart)  # An abort stops ranks that have not come as far.
        if dist.get_rank() == 0:
            dist.group.WORLD._get_backend(torch.device("cpu")).abort()
        with expect_error(RuntimeError, "weft: "):
            dist.barrier()
        weft.reset()
        for group in (None, pair):
            if group is None or dist.get_rank() in dist.get_process_group_ranks(group):
                ones = torch.ones(3)
                dist.all_reduce(ones, group=group)
                assert ones.tolist() == [dist.get_world_size(group)] * 3


class Interrupting(nn.Linear):
    """Raises KeyboardInterrupt, as Ctrl-C does in code of the module's own."""

    is_armed = False

    def forward(self, x: Tensor) -> Tensor:
        if self.is_armed:
            raise KeyboardInterrupt
        return super().forward(x)

    def generate(self, x: Tensor) -> Tensor:
        return Interrupting.forward(self, x)


class Repeating(Interrupting):
    """Calls itself."""

    def forward(self, x: Tensor, calls: int = 2) -> Tensor:
        return self(x, calls - 1) if calls else super().forward(x)


def chain_of(inner: nn.Module) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), inner)
    for part in (*model, model):
        weft.fully_shard(part)
    return model


def run_interrupted(run: Callable[[], object], is_interrupted: bool) -> None:
    if is_interrupted:
        with expect_error(KeyboardInterrupt):
            run()
        return
    with contextlib.suppress(RuntimeError):  # It may come later than the interrupt of the peer.
        run()


@case
def an_interrupted_method_fails_the_model_on_all_ranks() -> None:
    model = weft.fully_shard(Interrupting(4, 4))
    weft.register_fsdp_forward_method(model, "generate")
    x = torch.ones(2, 4)
    model.generate(x).sum().backward()
    last = dist.get_world_size() - 1
    model.is_armed = dist.get_rank() == last
    run_interrupted(lambda: model.generate(x), model.is_armed)
    model.is_armed = False
    dist.barrier()
    with expect_error(RuntimeError, "KeyboardInterrupt in the forward of"):
        model.generate(x)
    dist.barrier()
    weft.reset(model)
    model.generate(x).sum().backward()


@case
def a_forward_after_an_interrupted_one_names_the_remedy() -> None:
    """The hooks of PyTorch learn nothing of a KeyboardInterrupt."""
    for inner in (Interrupting(4, 4), nn.Sequential(Interrupting(4, 4)), Repeating(4, 4)):
        model = chain_of(inner)
        x = torch.ones(2, 4)
        model(x).sum().backward()
        last = dist.get_world_size() - 1
        Interrupting.is_armed = dist.get_rank() == last
        run_interrupted(lambda: model(x), Interrupting.is_armed)  # noqa: B023
        Interrupting.is_armed = False
        if dist.get_rank() == last:
            with expect_error(RuntimeError, "was interrupted; call weft.reset(model) on all ranks"):
                model(x)
        dist.barrier()
        with expect_error(RuntimeError, "was interrupted"):
            model(x).sum().backward()
        dist.barrier()
        weft.reset(model)
        model(x).sum().backward()
        dist.barrier()
