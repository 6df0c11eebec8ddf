"""Training steps of PyTorch on weft against FSDP2 over gloo: one process for each rank, steps interleaved, medians.

    torchrun --nproc-per-node 2 bench/peers/torch_sharding.py [--length 128] [--rounds 15]

Prints for each way the median time of a step and its ratio to FSDP2 over gloo, both with fused AdamW. `alone` is torch
without communication: whole weights on each rank, gradients in place, and AdamW over the rank's part of them.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import weft
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from llama import Llama, Shape, initial_values, rope_table, tokens_of

SHAPE = Shape()
OPTIONS = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
Clip = Callable[[nn.Module], Tensor]


@torch.no_grad()
def fill(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        values = initial_values(name, parameter.shape)
        if isinstance(parameter, DTensor):
            values = distribute_tensor(values, parameter.device_mesh, parameter.placements)
        parameter.copy_(values)


def sharded(shard: Callable[..., nn.Module], replicas: int, direct: bool = False) -> nn.Module:
    ranks = dist.get_world_size() // replicas
    mesh = init_device_mesh("cpu", (replicas, ranks), mesh_dim_names=("replicate", "shard")) if replicas > 1 else None
    with torch.device("meta"):
        model = Llama(SHAPE)
    if direct:
        weft.write_gradients_directly(model)
    for layer in model.model.layers:
        shard(layer, mesh=mesh)
    shard(model.lm_head, mesh=mesh, reshard_after_forward=False)
    shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    fill(model)
    return model


class Alone:
    """A whole model on each rank, and the optimizer's work of one rank."""

    def __init__(self) -> None:
        self.model = Llama(SHAPE)
        fill(self.model)
        size = dist.get_world_size()
        self.parts = [nn.Parameter(p.detach().flatten()[: -(-p.numel() // size)]) for p in self.model.parameters()]
        self.optimizer = torch.optim.AdamW(self.parts, fused=True, **OPTIONS)

    def step(self, batch: tuple[Tensor, ...]) -> Tensor:
        loss = self.model(*batch)
        loss.backward()
        for part, p in zip(self.parts, self.model.parameters(), strict=True):
            part.grad = p.grad.flatten()[: part.numel()]
        nn.utils.clip_grad_norm_(self.parts, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for p in self.model.parameters():
            p.grad = None
        return loss.detach()


class Trainer:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, clip: Clip) -> None:
        self.model, self.optimizer, self.clip = model, optimizer, clip

    def step(self, batch: tuple[Tensor, ...]) -> Tensor:
        loss = self.model(*batch)
        loss.backward()
        self.clip(self.model)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def clip_by_torch(model: nn.Module) -> Tensor:
    return nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def clip_by_weft(model: nn.Module) -> Tensor:
    return weft.clip_grad_norm_(model, 1.0)


def trainers(replicas: int) -> dict[str, Trainer | Alone]:
    def of_weft(direct: bool = False) -> Trainer:
        model = sharded(weft.fully_shard, replicas, direct)
        return Trainer(model, weft.AdamW(model.parameters(), **OPTIONS), clip_by_weft)

    fsdp2 = sharded(fully_shard, replicas)
    plain = sharded(weft.fully_shard, replicas)
    return {
        "FSDP2 over gloo": Trainer(fsdp2, torch.optim.AdamW(fsdp2.parameters(), fused=True, **OPTIONS), clip_by_torch),
        "weft.fully_shard": of_weft(),
        "weft.fully_shard, direct gradients": of_weft(direct=True),
        "weft.fully_shard, torch's AdamW and clipping": Trainer(
            plain, torch.optim.AdamW(plain.parameters(), fused=True, **OPTIONS), clip_by_torch
        ),
        "alone": Alone(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=128, help="tokens of a rank in each step")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--replicas", type=int, default=1, help="sizes of the replicate dim of the mesh")
    options = parser.parse_args()
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    torch.set_num_threads(1)
    batch = (*tokens_of(SHAPE, dist.get_rank(), options.length), *rope_table(SHAPE, options.length))
    ways = trainers(options.replicas)
    times: dict[str, list[float]] = {name: [] for name in ways}
    losses: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds + 1):
        for name, trainer in ways.items():
            losses[name].append(trainer.step(batch).item())  # Not timed: brings its data into the caches.
            dist.barrier()
            start = time.perf_counter()
            losses[name].append(trainer.step(batch).item())
            dist.barrier()
            if number > 0:
                times[name].append(time.perf_counter() - start)
    if dist.get_rank() == 0:
        base = statistics.median(times["FSDP2 over gloo"])
        for name, values in times.items():
            median = statistics.median(values)
            print(f"{1000 * median:8.1f} ms  {base / median:5.2f}x  loss {losses[name][0]:.6f} .. {losses[name][-1]:.6f}  {name}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
