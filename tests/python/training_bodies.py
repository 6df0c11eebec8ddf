"""Functions that the ranks run: training of a small model under PyTorch's own wrappers, and checkpoints of it."""

import importlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

DIM = 31  # Does not divide among the ranks.
STEPS = 4


class Model(nn.Module):
    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(3)
        )
        self.head = nn.Linear(dim, 5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def mesh_of(*sizes: int) -> DeviceMesh:
    return init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard")[-len(sizes) :])


def fsdp_model(mesh: DeviceMesh, allocate: bool = False) -> nn.Module:
    model = Model()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if allocate:
        for module in [*model.blocks, model]:
            module.set_allocate_memory_from_process_group_for_comm(True)
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, steps: int = STEPS) -> list[float]:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(8, DIM, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def whole(model: nn.Module) -> dict[str, list[float]]:
    state = model.module.state_dict() if isinstance(model, DistributedDataParallel) else model.state_dict()
    return {n: (t.full_tensor() if isinstance(t, DTensor) else t).flatten().tolist() for n, t in state.items()}


def fsdp(allocate: bool = False) -> tuple:
    model = fsdp_model(mesh_of(dist.get_world_size()), allocate)
    return train(model), whole(model)


def hsdp() -> tuple:
    model = fsdp_model(mesh_of(2, dist.get_world_size() // 2))
    return train(model), whole(model)


def ddp() -> tuple:
    model = DistributedDataParallel(Model(), bucket_cap_mb=0.02)
    return train(model), whole(model)


def ddp_buckets(as_views: bool) -> tuple:
    """DDP with buckets of more than 64 KiB. Over weft they lie in node memory, so that reducing gradients copies nothing."""
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(DIM, 4096), nn.GELU(), nn.Linear(4096, 5))
    model = DistributedDataParallel(plain, bucket_cap_mb=0.3, gradient_as_bucket_view=as_views)
    if dist.get_backend() != "weft":
        return train(model), whole(model)
    counters = importlib.import_module("weft.torch").current_session().counters
    copied = counters()["copied_bytes"]
    losses = train(model)  # The second forward rebuilds the buckets.
    assert counters()["copied_bytes"] - copied < 4096, "the buckets are copied"
    return losses, whole(model)


def compiled_ddp() -> None:
    """A compiled model, and code in the context of node_memory that is compiled, compute what they do without torch.compile."""
    node_memory = importlib.import_module("weft.torch").node_memory
    model, other = DistributedDataParallel(Model()), DistributedDataParallel(Model())
    compiled = torch.compile(model, backend="eager")
    assert (train(compiled, torch.optim.AdamW(model.parameters(), lr=0.01)), whole(model)) == (train(other), whole(other))

    @torch.compile(backend="eager")
    def doubled(tensor: Tensor) -> Tensor:
        with node_memory():
            return 2 * tensor

    assert torch.equal(doubled(torch.ones(1 << 14)), torch.full((1 << 14,), 2.0))


def zero_redundancy() -> tuple:
    model = DistributedDataParallel(Model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    return train(model, optimizer), whole(model)


def tensor_parallel() -> list[float]:
    """The difference from the model of one rank."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plain, parallel = Model(32), Model(32)
    for block in parallel.blocks:
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(3))
    plain(x).square().mean().backward()
    parallel(x).square().mean().backward()
    differences = []
    for own, other in zip(plain.parameters(), parallel.parameters(), strict=True):
        gradient = other.grad.full_tensor() if isinstance(other.grad, DTensor) else other.grad
        differences.append((own.grad - gradient).abs().max().item())
    return differences


def redistributed() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    full = torch.arange(35.0).view(7, 5)
    sharded = distribute_tensor(full, mesh, [Shard(0)])
    for placement in (Shard(1), Replicate(), Shard(0)):
        sharded = sharded.redistribute(mesh, [placement])
        assert torch.equal(sharded.full_tensor(), full), placement
    assert torch.equal((sharded @ sharded.t()).full_tensor(), full @ full.t())


def checkpoint(folder: str) -> None:
    """Saved by FSDP2, loaded into a model with other values, trained on alike."""
    mesh = mesh_of(dist.get_world_size())
    model = fsdp_model(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer)
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(states, checkpoint_id=folder)
    expected = train(model, optimizer), whole(model)

    other = fsdp_model(mesh)
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=0.01)
    train(other, other_optimizer, steps=1)
    states = dict(zip(("model", "optimizer"), get_state_dict(other, other_optimizer), strict=True))
    dcp.load(states, checkpoint_id=folder)
    set_state_dict(other, other_optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    assert (train(other, other_optimizer), whole(other)) == expected
