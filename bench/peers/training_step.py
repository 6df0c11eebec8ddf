"""One rank of PyTorch's training step over gloo or weft. The mesh selects FSDP2, HSDP or DDP. contestant.py has the protocol.

    WEFT_BENCH_SOCKET=... RANK=0 WORLD_SIZE=2 INIT_FILE=/tmp/store [BACKEND=weft] python training_step.py

BACKEND is gloo (the default), weft, or fake: collectives that do nothing, so that a step takes the time that FSDP2 itself needs.

A request's `api` selects who shards: `fsdp2`, PyTorch (the default); `weft`, weft.fully_shard with weft.AdamW, which clips in its
update; `weft_direct`, the same with weft.write_gradients_directly; or `alone`, nobody: each rank computes with a whole model, does not
communicate, and updates as many elements as a shard has.

In bf16, FSDP2 gathers weights and computes in bf16, and reduces gradients in f32, as weft's policy of bench/training_step.cc does. It
casts the floating-point inputs to bf16, which are the tables of the rotary embedding. Shards and their update are f32.
"""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from contestant import Reply, serve
from llama import MODELS, Llama, Shape, initial_values, rope_table, tokens_of

BACKEND = os.environ.get("BACKEND", "gloo")
if BACKEND == "weft":
    import weft.torch
elif BACKEND == "fake":
    from torch.testing._internal.distributed.fake_pg import FakeStore

MAX_NORM = 1.0
ADAMW = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


@dataclass(frozen=True)
class Case:
    """A mesh, a number of tokens per rank, and a model of llama.MODELS that computes in f32 or bf16."""

    replicate: int
    shard: int
    length: int
    model: str
    dtype: str

    @property
    def shape(self) -> Shape:
        return MODELS[self.model]

    @property
    def policy(self) -> MixedPrecisionPolicy:
        return {"f32": MixedPrecisionPolicy(), "bf16": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}[self.dtype]


class Trainer:
    def __init__(self, case: Case, fused: bool, compiled: bool) -> None:
        self.model = ddp(case) if case.shard == 1 < case.replicate else fsdp(case, compiled)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **ADAMW, fused=fused, foreach=not fused)
        self.set_data(case)

    def set_data(self, case: Case) -> None:
        self.tokens, self.targets = tokens_of(case.shape, dist.get_rank(), case.length)
        self.rope = rope_table(case.shape, case.length)

    def step(self) -> Tensor:
        loss = self.model(self.tokens, self.targets, *self.rope)
        loss.backward()
        self.update()
        self.optimizer.zero_grad()
        return loss.detach()

    def update(self) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.optimizer.step()


class WeftTrainer(Trainer):
    """weft.fully_shard in place of PyTorch's, and weft's AdamW. `direct`: linear layers write gradients into the image."""

    def __init__(self, case: Case, direct: bool) -> None:
        self.model = fsdp(case, compiled=False, shard_module=weft.fully_shard)
        if direct:
            weft.write_gradients_directly(self.model)
        self.optimizer = weft.AdamW(self.model.parameters(), **ADAMW)
        self.set_data(case)

    def update(self) -> None:
        _, factor = weft.gradient_norm(self.model, MAX_NORM)
        self.optimizer.step(gradient_scale=factor)


class LocalTrainer(Trainer):
    """No communication: a whole model on each rank in f32, clipped and updated in one of `shard` parts."""

    def __init__(self, case: Case) -> None:
        self.model = whole(case)
        parts = [parameter.detach().flatten().chunk(case.shard)[0] for parameter in self.model.parameters()]
        self.parts = [nn.Parameter(part) for part in parts]
        self.optimizer = torch.optim.AdamW(self.parts, **ADAMW, fused=True)
        self.set_data(case)

    def update(self) -> None:
        for part, parameter in zip(self.parts, self.model.parameters(), strict=True):
            part.grad = parameter.grad.flatten()[: part.numel()]
            parameter.grad = None
        nn.utils.clip_grad_norm_(self.parts, MAX_NORM)
        self.optimizer.step()


def fsdp(case: Case, compiled: bool, shard_module: Callable[..., nn.Module] = fully_shard) -> nn.Module:
    """Creates the model on the meta device, shards it, then fills the shards. No rank ever holds the whole model."""
    options = {"mesh": mesh_of(case.replicate, case.shard), "mp_policy": case.policy}
    with torch.device("meta"):
        model = Llama(case.shape)
    for layer in model.model.layers:
        if compiled:
            layer.compile()
        shard_module(layer, **options)
    # Backward begins with the head and would gather it again at once.
    shard_module(model.lm_head, **options, reshard_after_forward=False)
    shard_module(model, **options)
    model.to_empty(device="cpu")
    fill(model)
    return model


def ddp(case: Case) -> nn.Module:
    group = mesh_of(case.replicate, 1).get_group(0)
    return DistributedDataParallel(whole(case), process_group=group, gradient_as_bucket_view=True)


def whole(case: Case) -> nn.Module:
    if case.dtype != "f32":
        raise ValueError(f"only FSDP and HSDP compute in another dtype than f32; got {case}")
    model = Llama(case.shape)
    fill(model)
    return model


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


_trainers: dict[tuple[Case, str, int, int], Trainer] = {}


def trainer_of(request: dict[str, str]) -> Trainer:
    mesh_and_length = (int(request[key]) for key in ("replicate", "shard", "length"))
    case = Case(*mesh_and_length, request["model"], request["dtype"])
    config = (case, request.get("api", "fsdp2"), int(request["fused"]), int(request["compiled"]))
    if config not in _trainers:
        for other in [other for other in _trainers if other[0] != case]:  # Models are large: keep one case only.
            del _trainers[other]
        _trainers[config] = make_trainer(*config)
    return _trainers[config]


def make_trainer(case: Case, api: str, fused: int, compiled: int) -> Trainer:
    if api in ("weft", "weft_direct"):
        return WeftTrainer(case, direct=api == "weft_direct")
    if api == "alone":
        return LocalTrainer(case)
    return Trainer(case, bool(fused), bool(compiled))


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
    size = int(os.environ["WORLD_SIZE"])
    store = FakeStore() if BACKEND == "fake" else dist.FileStore(os.environ["INIT_FILE"], size)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=size)
    serve(rank, {"train": train, "save": save, "load": load})


if __name__ == "__main__":
    main()
