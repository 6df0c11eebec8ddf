"""Values of ranks, tensors in the backend's memory, and a comparison, for the functions that the ranks run."""

import torch
import torch.distributed as dist
from torch import Tensor


def rank() -> int:
    return dist.get_rank()


def ranks() -> int:
    return dist.get_world_size()


def values(numel: int, dtype: torch.dtype, of_rank: int) -> Tensor:
    """Values from which rank and position can be read back, small enough that no sum rounds or wraps."""
    position = torch.arange(numel)
    if dtype == torch.bool:
        return (position + of_rank) % 3 == 0
    small = (position % 5 + of_rank % 3).to(torch.float32)
    if dtype.is_complex:
        return torch.complex(small, small + 1).to(dtype)
    return small.to(dtype)


def placed(tensor: Tensor, from_backend: bool) -> Tensor:
    """The tensor, or its copy in the backend's memory."""
    if not from_backend:
        return tensor
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    memory = backend.allocate_tensor(tensor.numel(), dtype=tensor.dtype, device=torch.device("cpu"))
    return memory.view(tensor.shape).copy_(tensor)


def check(actual: Tensor, expected: Tensor, what: str) -> None:
    same = torch.equal(actual.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)) if actual.numel() else True
    assert actual.shape == expected.shape and same, f"{what} on rank {rank()}: got {actual}, expected {expected}"
