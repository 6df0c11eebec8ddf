"""One rank of PyTorch's training step over gloo. The mesh selects FSDP2, HSDP or DDP. contestant.py has the protocol.

    WEFT_BENCH_SOCKET=... RANK=0 WORLD_SIZE=2 INIT_FILE=/tmp/store python training_step.py
"""

import os
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from contestant import Reply, serve
from llama import Llama, Shape, initial_values, rope_table, tokens_of

SHAPE = Shape()
MAX_NORM = 1.0


class Trainer:
    def __init__(self, replicate: int, shard: int, length: int, fused: bool, compiled: bool) -> None:
        self.model = ddp(replicate) if shard == 1 < replicate else fsdp(replicate, shard, compiled)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=fused, foreach=not fused
        )
        self.tokens, self.targets = tokens_of(SHAPE, dist.get_rank(), length)
        self.rope = rope_table(SHAPE, length)

    def step(self) -> Tensor:
        loss = self.model(self.tokens, self.targets, *self.rope)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def fsdp(replicate: int, shard: int, compiled: bool) -> nn.Module:
    """Creates the model on the meta device, shards it, then fills the shards. No rank ever holds the whole model."""
    with torch.device("meta"):
        model = Llama(SHAPE)
    for layer in model.model.layers:
        if compiled:
            layer.compile()
        fully_shard(layer, mesh=mesh_of(replicate, shard))
    # Backward begins with the head and would gather it again at once.
    fully_shard(model.lm_head, mesh=mesh_of(replicate, shard), reshard_after_forward=False)
    fully_shard(model, mesh=mesh_of(replicate, shard))
    model.to_empty(device="cpu")
    fill(model)
    return model


def ddp(replicate: int) -> nn.Module:
    model = Llama(SHAPE)
    fill(model)
    return DistributedDataParallel(model, process_group=mesh_of(replicate, 1).get_group(0), gradient_as_bucket_view=True)


_meshes: dict[tuple[int, int], DeviceMesh] = {}


def mesh_of(replicate: int, shard: int) -> DeviceMesh:
    if (replicate, shard) not in _meshes:
        axes = {"replicate": replicate, "shard": shard}
        axes = {name: size for name, size in axes.items() if size > 1} or {"shard": 1}
        _meshes[replicate, shard] = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    return _meshes[replicate, shard]


@torch.no_grad()
def fill(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        values = initial_values(name, parameter.shape)
        if isinstance(parameter, DTensor):
            values = distribute_tensor(values, parameter.device_mesh, parameter.placements)
        parameter.copy_(values)


_trainers: dict[tuple[int, ...], Trainer] = {}


def trainer_of(request: dict[str, str]) -> Trainer:
    case = tuple(int(request[key]) for key in ("replicate", "shard", "length"))
    config = (*case, int(request["fused"]), int(request["compiled"]))
    if config not in _trainers:
        for other in [other for other in _trainers if other[:3] != case]:  # Models are large: keep one case only.
            del _trainers[other]
        _trainers[config] = Trainer(*config)
    return _trainers[config]


def train(request: dict[str, str]) -> Reply:
    """Runs one step that is not timed, because other contestants have used the caches, then `steps` timed steps."""
    steps = int(request["steps"])
    trainer = trainer_of(request)
    losses = [trainer.step()]
    start = time.perf_counter()
    losses += [trainer.step() for _ in range(steps)]
    return {"seconds": [(time.perf_counter() - start) / steps], "losses": [loss.item() for loss in losses]}


def save(request: dict[str, str]) -> Reply:
    """Saves weights and moments by torch.distributed.checkpoint, which flushes its files to the device."""
    trainer, folder = trainer_of(request), request["folder"]
    if not trainer.optimizer.state:
        trainer.step()
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    dist.barrier()
    start = time.perf_counter()
    model, optimizer = get_state_dict(trainer.model, trainer.optimizer)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)
    return {"seconds": [time.perf_counter() - start]}


def load(request: dict[str, str]) -> Reply:
    """Loads what `save` has saved into the tensors of model and optimizer."""
    trainer = trainer_of(request)
    start = time.perf_counter()
    model, optimizer = get_state_dict(trainer.model, trainer.optimizer)
    dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=request["folder"])
    return {"seconds": [time.perf_counter() - start]}


def main() -> None:
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    store = f"file://{os.environ['INIT_FILE']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
    serve(rank, {"train": train, "save": save, "load": load})


if __name__ == "__main__":
    main()
