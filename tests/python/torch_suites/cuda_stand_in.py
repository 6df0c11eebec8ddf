"""CPU tensors in place of CUDA tensors, so that a test which is written for GPUs runs on a machine without them.

    with cuda_on_cpu(ranks):
        torch.ones(3).cuda(0)  # A CPU tensor.

Streams, events and device memory have no stand-in: tests of these are not applicable.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

_MOVES = (torch.Tensor.cuda,)


def _is_gpu(value: Any) -> bool:
    return (isinstance(value, torch.device) and value.type == "cuda") or (isinstance(value, str) and value.startswith("cuda"))


def _on_cpu(value: Any) -> Any:
    return torch.device("cpu") if _is_gpu(value) else value


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class _CpuDevices(TorchFunctionMode):
    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if function in _MOVES:
            return args[0]
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu") if _is_index(kwargs["device"]) else _on_cpu(kwargs["device"])
        args = tuple(map(_on_cpu, args))
        if function is torch.Tensor.to and len(args) > 1 and _is_index(args[1]):
            args = (args[0], torch.device("cpu"), *args[2:])
        return function(*args, **kwargs)


def _module_to(original: Callable) -> Callable:
    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        args = tuple(torch.device("cpu") if _is_index(arg) else _on_cpu(arg) for arg in args)
        return original(self, *args, **{name: _on_cpu(value) for name, value in kwargs.items()})

    return to


def _replica_init(original: Callable) -> Callable:
    def init(self: nn.Module, module: nn.Module, device_ids: Any = None, output_device: Any = None, **kwargs: Any) -> None:
        original(self, module, **kwargs)

    return init


@contextlib.contextmanager
def cuda_on_cpu(devices: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for target, name, stand_in in (
            (nn.Module, "cuda", lambda self, device=None: self),
            (nn.Module, "to", _module_to(nn.Module.to)),
            (DistributedDataParallel, "__init__", _replica_init(DistributedDataParallel.__init__)),
            (torch.cuda, "device", lambda device: contextlib.nullcontext()),
            (torch.cuda, "device_count", lambda: devices),
            (torch.cuda, "set_device", lambda device: None),
            (torch.cuda, "current_device", lambda: torch.device("cpu")),
            (torch.cuda, "synchronize", lambda device=None: None),
        ):
            stack.enter_context(mock.patch.object(target, name, stand_in))
        stack.enter_context(_CpuDevices())
        yield
