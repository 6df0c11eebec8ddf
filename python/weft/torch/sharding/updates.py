"""Updates: steps of optimizers, before which no rank may read the shards, and their comparison between ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from weft.torch._session import counts_of_ranks
from weft.torch.sharding.root import Root, all_roots


def compare_updates(roots: list[Root]) -> None:
    """Raises RuntimeError if a rank lacks a step of an optimizer that another has made, or if ranks give different numbers of roots.
    Collective.

    An exception of a rank that is ahead ends the backward of its peers. They drop the gradients of a step that it has made.
    """
    numbers = [of_rank[0] for of_rank in counts_of_ranks([len(roots)])]
    for rank, number in enumerate(numbers):
        if number != numbers[0]:
            raise RuntimeError(
                f"the ranks have reset different models: that of rank 0 has {numbers[0]} roots that have run a forward, and that of rank {rank} "
                f"has {number}: call weft.reset with the same model on all ranks, or with none"
            )
    if not roots:
        return
    counts = counts_of_ranks([root.updates for root in roots])
    late: set[int] = set()
    for number, root in enumerate(roots):
        root.updates = max(of_rank[number] for of_rank in counts)  # A checkpoint makes the ranks equal.
        late.update(rank for rank, of_rank in enumerate(counts) if of_rank[number] < root.updates)
    if late:
        raise RuntimeError(
            f"ranks without the last update of '{roots[0].group.name}': {', '.join(map(str, sorted(late)))}. An exception of a rank that was "
            "ahead ended their backward, so the weights of the ranks differ: load a checkpoint on all ranks, then go on"
        )


def _roots_of(optimizer: torch.optim.Optimizer) -> list[Root]:
    stepped = {id(param) for entry in optimizer.param_groups for param in entry["params"]}
    return [root for root in all_roots() if any(id(p.sharded) in stepped for g in root.all_groups for p in g.parameters)]


def _check_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Raises RuntimeError if the optimizer has a parameter that is to be trained and that it would never train: one that fully_shard
    or an assignment has replaced, or an unsharded one."""
    for param in (param for entry in optimizer.param_groups for param in entry["params"]):
        # Another module may train a whole parameter.
        if param.requires_grad and hasattr(param, "_weft_replaced") and (param.grad is None or isinstance(param, DTensor)):
            name, group, cause = param._weft_replaced
            raise RuntimeError(
                f"the optimizer has the parameter '{name}' of '{group}' from before {cause}, which replaced it in the model, so that a step "
                f"would train nothing: make the optimizer after {cause}"
            )
        if param.requires_grad and hasattr(param, "_weft_parameter"):
            raise RuntimeError(
                f"the optimizer has the unsharded parameter '{param._weft_parameter.name}', which gets no gradients: make the optimizer before "
                "the forward or after the backward; after unshard(), call reshard() first"
            )


def _prepare_optimizer_step(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
    """Before a step of any optimizer: shards that were read since must not be overwritten under a reader.

    Those that a closure reads may be written after it, and the update begins when it has returned.
    Errors: those of _check_parameters.
    """
    _check_parameters(optimizer)
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # The first of `args` is the optimizer.
    for root in _roots_of(optimizer):
        root.prepare_writes()
        if not callable(closure):
            root.updates += 1
    if not callable(closure):
        return None
    prepared = _prepare_after(closure, optimizer)
    return (args, {**kwargs, "closure": prepared}) if "closure" in kwargs else ((args[0], prepared, *args[2:]), kwargs)


def _prepare_after(closure: Callable[..., object], optimizer: torch.optim.Optimizer) -> Callable[..., object]:
    """The closure of a step, after each call of which shards may be written. Its first return counts as an update."""
    is_counted = False

    @functools.wraps(closure)
    def evaluate(*args: object, **kwargs: object) -> object:
        nonlocal is_counted
        result = closure(*args, **kwargs)
        for root in _roots_of(optimizer):  # The closure may have made them.
            root.prepare_writes()
            if not is_counted:
                root.updates += 1
        is_counted = True
        return result

    return evaluate


register_optimizer_step_pre_hook(_prepare_optimizer_step)
