"""Training of small Llamas over ranks that share sequences, and on one rank. Runs on ranks of a RankPool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from weft.torch.context_parallel import context_parallel

import weft

VOCABULARY, WIDTH, HEADS, KV_HEADS, LAYERS = 61, 32, 4, 2, 2
ROWS, STEPS = 4, 5


def _rotate(tensor: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """`table`: cosines and sines, [tokens, 2, head_dim / 2]."""
    first, second = tensor.chunk(2, dim=-1)
    cosine, sine = table.unbind(dim=1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        head_dim = WIDTH // HEADS
        self.norms = nn.ModuleList([nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)])
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * head_dim, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = hidden.shape
        qkv = self.qkv(self.norms[0](hidden)).view(batch, tokens, -1, WIDTH // HEADS).transpose(1, 2)
        query, key, value = qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        out = F.scaled_dot_product_attention(
            _rotate(query, table), _rotate(key, table), value, is_causal=True, enable_gqa=True
        )
        hidden = hidden + self.out(out.transpose(1, 2).reshape(batch, tokens, WIDTH))
        gate, up = self.up(self.norms[1](hidden)).chunk(2, dim=-1)
        return hidden + self.down(F.silu(gate) * up)


class OwnLlama(nn.Module):
    def __init__(self, uses_checkpoints: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self._uses_checkpoints = uses_checkpoints

    def forward(self, ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids)
        for block in self.blocks:
            if self._uses_checkpoints:
                hidden = checkpoint(block, hidden, table, use_reentrant=False)
            else:
                hidden = block(hidden, table)
        return self.head(hidden)


@dataclass(frozen=True)
class Training:
    """model: "own" or "transformers". wrapper: "sum", "ddp", "fsdp2" or "weft", see _wrap. dp: ranks with rows of
    their own."""

    model: str = "own"
    wrapper: str = "sum"
    dp: int = 1
    tokens: int = 24
    documents: tuple[int, ...] | None = None
    uses_checkpoints: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and the ids that follow them, [rows, tokens]."""
        generator = torch.Generator().manual_seed(100)
        ids = torch.randint(VOCABULARY, (ROWS, self.tokens + 1), generator=generator)
        return ids[:, :-1].clone(), ids[:, 1:].clone()

    def position_ids(self) -> torch.Tensor:
        """[tokens]."""
        offsets = self.documents or (0, self.tokens)
        return torch.cat([torch.arange(end - begin) for begin, end in zip(offsets, offsets[1:], strict=False)])


def _make_model(training: Training) -> nn.Module:
    torch.manual_seed(0)
    if training.model == "own":
        return OwnLlama(training.uses_checkpoints)
    from transformers import LlamaConfig, LlamaForCausalLM

    configuration = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(configuration)
    if training.uses_checkpoints:
        model.gradient_checkpointing_enable()
    return model.train()


def _loss_of(training: Training, model: nn.Module, ids, targets, positions) -> torch.Tensor:
    """Sum over the tokens at hand, divided by the number of tokens of the whole batch."""
    global_tokens = ROWS * training.tokens
    if training.model == "transformers":
        return model(
            input_ids=ids,
            position_ids=positions.expand(ids.shape),
            attention_mask=torch.ones_like(ids),
            labels=targets,
            shift_labels=targets,
            num_items_in_batch=global_tokens,
        ).loss
    frequencies = 100.0 ** -torch.arange(0, 1, 2 * HEADS / WIDTH)
    angles = positions.unsqueeze(-1) * frequencies
    logits = model(ids, torch.stack([angles.cos(), angles.sin()], dim=1))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / global_tokens


def losses_of_one_rank(training: Training) -> list[float]:
    from weft.torch.context_parallel.layouts.documents import document_lengths

    model = _make_model(training)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        ids, targets = training.batch()
        positions, loss = training.position_ids(), torch.zeros(())
        lengths = document_lengths(training.documents or (0, training.tokens))
        # A document alone has no other tokens to attend to.
        for parts in zip(*(tensor.split(lengths, dim=-1) for tensor in (ids, targets, positions)), strict=True):
            loss = loss + _loss_of(training, model, *(part.contiguous() for part in parts))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _wrap(training: Training, model: nn.Module, mesh: DeviceMesh) -> tuple[nn.Module, float, Callable[[], None]]:
    """The model, the factor of the loss, and what to do between backward and the update. DDP, FSDP2 and
    weft.fully_shard average over all ranks, so the loss of a rank is multiplied by their number. "sum" adds the gradients
    in the loop."""
    ranks = mesh["dp", "cp"]._flatten("dp_cp")
    if training.wrapper == "ddp":
        return DistributedDataParallel(model, process_group=ranks.get_group()), float(ranks.size()), lambda: None
    if training.wrapper in ("fsdp2", "weft"):
        shard = fully_shard if training.wrapper == "fsdp2" else weft.fully_shard
        blocks = model.blocks if training.model == "own" else model.model.layers
        for block in blocks:
            shard(block, mesh=ranks)
        return shard(model, mesh=ranks), float(ranks.size()), lambda: None

    def add_gradients() -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=ranks.get_group())

    return model, 1.0, add_gradients


def losses_of_all_ranks(training: Training) -> tuple[list[float], str]:
    """Losses of the steps, summed over ranks, and the scheme."""
    shape = (training.dp, dist.get_world_size() // training.dp)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "cp"))
    model, factor, finish_backward = _wrap(training, _make_model(training), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        ids, targets = (rows.chunk(training.dp)[mesh["dp"].get_local_rank()].clone() for rows in training.batch())
        positions = training.position_ids()
        with context_parallel(
            mesh["cp"],
            buffers=[ids, targets, positions],
            buffer_seq_dims=[1, 1, 0],
            documents=training.documents,
            **training.options,
        ) as scope:
            loss = _loss_of(training, model, ids, targets, positions)
            (loss * factor).backward()
        finish_backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item())
    return losses, scope.choices[0].scheme.describe(shape[1])


def check_a_mask_of_the_ranks_tokens_is_refused() -> None:
    """transformers takes a head-tail part for two documents, unless it is given a mask. The middle ranks have one
    chunk, so they only learn of it from the others."""
    training = Training(model="transformers")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    (ids, _), positions = training.batch(), training.position_ids().unsqueeze(0)
    with context_parallel(mesh, buffers=[ids, positions], buffer_seq_dims=[1, 1], scheme="gather") as scope:
        has_one_chunk = len(scope.layout.ranges[scope.rank]) == 1
        try:
            _make_model(training)(input_ids=ids, position_ids=positions.expand(ids.shape))
        except ValueError as error:
            assert ("refused this attention" if has_one_chunk else "attention_mask of ones") in str(error)
            return
    raise AssertionError("no error")
