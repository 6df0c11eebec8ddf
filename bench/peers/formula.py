"""Values by formula, and checksums of results, as in bench/formula.h."""

import numpy as np
import torch
from torch import Tensor

RUN = 1024


def hash_of(key: int, count: int) -> np.ndarray:
    """splitmix64 of the indices below `count` in the sequence that starts at `key`."""
    z = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(name: str, shape: torch.Size | tuple[int, ...], deviation: float) -> Tensor:
    """Uniform with mean 0, from a hash of the array's name (FNV-1a) and the element's index."""
    key = 0xCBF29CE484222325
    for byte in name.encode():
        key = ((key ^ byte) * 0x100000001B3) % 2**64
    count = torch.Size(shape).numel()
    unit = (hash_of(key, count) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24) - np.float32(0.5)
    return torch.from_numpy(unit * np.float32(2 * deviation * 3**0.5)).view(shape)


def checksums(name: str, array: Tensor) -> dict[str, list[float]]:
    """For every run of 1,024 elements, the sum of the elements, each with a sign by a hash of its index, and of their squares."""
    values = array.detach().double().flatten().numpy()
    signed = np.where(hash_of(0, len(values)) >> np.uint64(63), -values, values)
    starts = np.arange(0, len(values), RUN)
    sums, squares = (np.add.reduceat(of, starts).tolist() for of in (signed, values * values))
    return {f"{name}.sums": sums, f"{name}.squares": squares}
