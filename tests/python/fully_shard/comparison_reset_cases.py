"""Resets after exceptions."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
import weft
from comparison_failure_cases import Failing, raise_failing
from fsdp2_comparison import loss_of, make_llama, shard_all, tokens_of, train
from sharded_support import Cases, expect_error
from torch import nn

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
