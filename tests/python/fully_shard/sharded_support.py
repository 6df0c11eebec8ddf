"""What all cases of fully_shard share: a table of cases, whole values, meshes, expected errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor


class Cases(dict[str, Callable]):
    """Cases by name. An object of this class is the decorator that adds one."""

    def __call__(self, function: Callable) -> Callable:
        assert function.__name__ not in self, function.__name__
        self[function.__name__] = function
        return function


def cases_of(modules: list[ModuleType]) -> Cases:
    """All cases of modules that each have a table `case`."""
    cases = Cases()
    for module in modules:
        for function in module.case.values():
            cases(function)
    return cases


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def mesh_2d() -> DeviceMesh | None:
    size = dist.get_world_size()
    return init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard")) if size % 2 == 0 else None


@contextlib.contextmanager
def expect_error(kinds: type[Exception] | tuple[type[Exception], ...], text: str = "") -> Iterator[None]:
    try:
        yield
    except kinds as error:
        assert text in str(error), f"{text!r} is not in {error}"
    else:
        raise AssertionError(f"no {kinds}")
