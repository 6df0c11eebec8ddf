"""Functions that the ranks run: where PyTorch's tensors lie once a model is sharded."""

from __future__ import annotations

import gc
import os

import torch
import torch.distributed as dist
import weft.torch as weft
from rank_worker import init_group
from sharded_support import expect_error
from torch import Tensor, nn
from weft._core import private_memory_in_use

SMALLEST = 64 << 10
LARGEST = 32 << 20


def _run_a_model() -> None:
    model = weft.fully_shard(nn.Linear(4, 4))
    model(torch.ones(1, 4)).sum().backward()
    del model
    gc.collect()


def _bytes_of(count: int) -> Tensor:
    return torch.full((count,), 7, dtype=torch.uint8)


def tensors_lie_in_the_private_heap() -> None:
    _run_a_model()
    before = private_memory_in_use()
    tensors = [_bytes_of(SMALLEST), _bytes_of(LARGEST)]
    assert private_memory_in_use() == before + SMALLEST + LARGEST
    others = [_bytes_of(SMALLEST - 1), _bytes_of(LARGEST + 1)]
    assert private_memory_in_use() == before + SMALLEST + LARGEST, others
    del tensors[1]
    assert private_memory_in_use() == before + SMALLEST
    tensors[0].untyped_storage().resize_(2 * SMALLEST)
    assert private_memory_in_use() == before + 2 * SMALLEST
    assert tensors[0].eq(7).all()
    copied = torch._lazy_clone(tensors[0]).fill_(8)
    assert tensors[0].eq(7).all() and copied.eq(8).all()
    del tensors, copied
    assert private_memory_in_use() == before


def a_forked_child_uses_tensors_of_the_private_heap() -> None:
    _run_a_model()
    tensor = _bytes_of(SMALLEST)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if (tensor + _bytes_of(SMALLEST)).eq(14).all() else 2
            del tensor
        finally:
            os._exit(code)
    assert os.waitpid(child, 0) == (child, 0)
    assert tensor.eq(7).all()


def the_private_heap_is_off() -> None:
    _run_a_model()
    tensor = _bytes_of(SMALLEST)
    assert private_memory_in_use() == 0, tensor
    dist.destroy_process_group()
    init_group("-again")
    os.environ["WEFT_PRIVATE_HEAP"] = "no"
    with expect_error(ValueError, "WEFT_PRIVATE_HEAP is 'no', but must be on or off"):
        _run_a_model()
