"""Stand-ins for the skip decorators of torch.testing: they note a test's conditions instead of deciding about them.

    with noting_conditions("weft"):
        from torch.testing._internal.distributed import distributed_test

PyTorch's tests name the backends that may run them: gloo, nccl, ucc, mpi. Each test then has the attributes `skip_reasons`,
for the conditions that do not hold for this backend, and `needs_gpu`.
"""

import contextlib
import unittest
from collections.abc import Callable, Iterator
from unittest import mock

import torch.testing._internal.common_distributed as common_distributed
import torch.testing._internal.common_utils as common_utils

Decorator = Callable[[Callable], Callable]


def _skip(reason: str) -> Decorator:
    def note(function: Callable) -> Callable:
        function.skip_reasons = (*getattr(function, "skip_reasons", ()), reason)
        return function

    return note


def _skip_if(condition: bool, reason: str) -> Decorator:
    return _skip(reason) if condition else lambda function: function


def _needs_gpu(function: Callable) -> Callable:
    function.needs_gpu = True
    return function


@contextlib.contextmanager
def noting_conditions(backend: str) -> Iterator[None]:
    for features in common_distributed.DistTestCases.backend_feature.values():
        features.add(backend)
    stand_ins = {
        "skip_but_pass_in_sandcastle": _skip,
        "skip_but_pass_in_sandcastle_if": _skip_if,
        "skip_if_no_gpu": _needs_gpu,
        "skip_if_lt_x_gpu": lambda count, **_: _needs_gpu,
        "nccl_skip_if_lt_x_gpu": lambda backend, count: _needs_gpu,
        # "Small" is below eight ranks. The tests themselves need three.
        "skip_if_small_worldsize": lambda function: function,
    }
    with contextlib.ExitStack() as stack:
        for module in (common_utils, common_distributed):
            for name, stand_in in stand_ins.items():
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, stand_in))
        stack.enter_context(mock.patch.object(unittest, "skip", _skip))
        stack.enter_context(mock.patch.object(unittest, "skipIf", _skip_if))
        yield
