"""Functions that the ranks run: models of transformers, trained with weft.fully_shard, saved, resumed and exported.

A step's batch is the same on every mesh: each rank takes its rows of it.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

import weft

VOCABULARY = 97
ROWS = 4  # Of a batch.
LEARNING_RATE = 1e-2
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 40,
    "intermediate_size": 75,  # Does not divide among the ranks.
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "use_cache": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def make_model(kind: str, seed: int = 0) -> PreTrainedModel:
    """A model with random weights. kind: "llama", or "qwen3", whose head is tied to its embedding."""
    torch.manual_seed(seed)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**_SIZES, tie_word_embeddings=False))
    return Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=16, tie_word_embeddings=True))


def shard(model: PreTrainedModel, replicas: int = 1, **options: Any) -> PreTrainedModel:
    ranks = dist.get_world_size()
    sizes = (ranks,) if replicas == 1 else (replicas, ranks // replicas)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard")[-len(sizes) :])
    for layer in model.model.layers:
        weft.fully_shard(layer, mesh=mesh, **options)
    return weft.fully_shard(model, mesh=mesh, **options)


def sequence(number: int) -> Tensor:
    """Tokens [17] of an arithmetic sequence."""
    return (number + torch.arange(17) * (1 + number % 5)) % VOCABULARY


def batch_of(step: int) -> Tensor:
    """Tokens [ROWS, 17]."""
    return torch.stack([sequence(ROWS * step + row) for row in range(ROWS)])


def rows_of_rank(batch: Tensor) -> Tensor:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return batch[rank * ROWS // ranks : (rank + 1) * ROWS // ranks]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    """Returns the losses of the whole batches."""
    losses = []
    for step in steps:
        tokens = rows_of_rank(batch_of(step))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses


def train_plain(kind: str, steps: range) -> list[float]:
    """The losses of one rank with transformers and torch alone."""
    model = make_model(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for step in steps:
        batch = batch_of(step)
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def make_sharded(kind: str, replicas: int, seed: int = 0) -> tuple[PreTrainedModel, torch.optim.Optimizer]:
    model = shard(make_model(kind, seed), replicas)
    return model, weft.AdamW(model.parameters(), lr=LEARNING_RATE)


def run_part(kind: str, replicas: int, steps: range, load: Path | None, save: Path) -> list[float]:
    """Trains from a checkpoint, or from the start, to a checkpoint."""
    model, optimizer = make_sharded(kind, replicas, seed=0 if load is None else 1)
    if load is not None:
        load_checkpoint(model, optimizer, load)
    losses = train(model, optimizer, steps)
    save_checkpoint(model, optimizer, save)
    return losses


def resume_on_the_same_mesh(kind: str, replicas: int, folder: Path) -> None:
    """A resumed run has the bits of one that was not interrupted."""
    model, optimizer = make_sharded(kind, replicas)
    train(model, optimizer, range(2))
    save_checkpoint(model, optimizer, folder)
    resumed, its_optimizer = make_sharded(kind, replicas, seed=1)
    train(resumed, its_optimizer, range(5, 6))  # Its shards lie in node memory, and its moments have values.
    load_checkpoint(resumed, its_optimizer, folder)
    assert train(resumed, its_optimizer, range(2, 5)) == train(model, optimizer, range(2, 5))
    for (name, ours), theirs in zip(resumed.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(ours.to_local(), theirs.to_local()), name


def save_checkpoint(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(states, checkpoint_id=folder)


def load_checkpoint(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(states, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])


def logits_of(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(input_ids=batch_of(100)).logits.clone()


def export(kind: str, replicas: int, load: Path, folder: Path) -> None:
    """Exports a checkpoint as a folder of transformers. Its logits equal those of the sharded model."""
    model, optimizer = make_sharded(kind, replicas, seed=1)
    load_checkpoint(model, optimizer, load)
    expected = logits_of(model)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        model.save_pretrained(folder, state_dict=state)
    dist.barrier()
    loaded = type(make_model(kind)).from_pretrained(folder)
    assert loaded.config.architectures == [type(loaded).__name__]
    assert torch.equal(logits_of(loaded), expected)
