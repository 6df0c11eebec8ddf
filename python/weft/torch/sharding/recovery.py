"""Recovery of models and of their session from failures."""

from __future__ import annotations

from torch import nn

from weft.torch._session import reset_session
from weft.torch.sharding.group import Group
from weft.torch.sharding.root import Root
from weft.torch.sharding.updates import compare_updates


def reset(model: nn.Module | None = None) -> None:
    """Recovers from an exception in a forward, backward or wait of `model`, or of a model that is gone.

    All groups of `model` are sharded again, without gradients, and the engine works again; shards keep their values. The forward
    of `model` need not have run. Without a model, the engine alone is reset, for collectives: sharded models stay failed until
    each is reset.
    Collective: all ranks, in one order if several models are reset. Peers that wait get an exception first.
    Errors: ValueError (a model without sharded modules), TimeoutError (names the ranks that did not call it), RuntimeError (a rank
    lacks an update that others have made; the models of ranks have different numbers of roots).
    """
    groups = [] if model is None else groups_of(model, "reset")
    roots = roots_of(groups)
    if not roots:
        reset_session("weft.reset()" if model is None else f"reset of '{type(model).__name__}'")
    for root in roots:
        root.reset()
    for group in groups:
        if group.root is None:
            for parameter in group.parameters:
                parameter.forget_gradient()
    compare_updates(roots)


def groups_of(model: nn.Module, caller: str) -> list[Group]:
    groups = [module._weft_group for module in model.modules() if hasattr(module, "_weft_group")]
    if not groups:
        raise ValueError(f"{caller} takes a model sharded by weft.fully_shard, not a {type(model).__name__} without sharded modules")
    return groups


def roots_of(groups: list[Group]) -> list[Root]:
    """The roots of a model, as far as its forward has run."""
    return list(dict.fromkeys(group.root for group in groups if group.root is not None))
