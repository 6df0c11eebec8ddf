"""Groups of several modules, of which a forward runs some, and shared parameters. For both interfaces, against unsharded models."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sharded_support import Cases, expect_error, whole
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from unsharded_oracle import Interface, expect_alike, expect_close, seeded, trains_as_unsharded

case = Cases()


class ChunkedHead(nn.Module):
    """A language model whose head also runs alone, on a chunk of the tokens at a time."""

    def __init__(self, tied: bool = False, dim: int = 12, vocab: int = 21) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.body = nn.Linear(dim, dim, bias=False)
        self.norm = nn.RMSNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, skip_head: bool = False) -> Tensor:
        hidden = self.norm(self.body(self.embed(tokens)))
        return hidden if skip_head else self.head(hidden)


def tokens_of(step: int, rank: int, vocab: int = 21) -> Tensor:
    return torch.randint(0, vocab, (2, 16), generator=torch.Generator().manual_seed(100 * step + rank))


def run_in_chunks(model: nn.Module, tokens: Tensor, scale: float = 1.0, chunks: int = 4) -> Tensor:
    """Forward without the head, backward of the head chunk by chunk, then of the rest. Returns the loss."""
    hidden = model(tokens, skip_head=True)
    gradients, total = [], torch.zeros(())
    for part in hidden.detach().chunk(chunks, dim=1):
        part = part.contiguous().requires_grad_()
        loss = scale * model.head(part).square().sum() / tokens.numel()
        loss.backward()
        gradients.append(part.grad)
        total += loss.detach()
    hidden.backward(torch.cat(gradients, dim=1))
    return total


@case
def a_head_of_a_group_runs_alone_in_chunks(api: Interface) -> None:
    size = dist.get_world_size()
    for tied, reshard in itertools.product((False, True), (True, False)):
        make = lambda: ChunkedHead(tied)  # noqa: B023
        model, reference = seeded(make), seeded(make)
        options = {"reshard_after_forward": reshard}
        api.shard(model.body, **options)
        if tied:
            api.shard([model.embed, model.norm, model.head], **options)
        else:
            api.shard(model.embed, **options)
            api.shard([model.norm, model.head], **options)
        api.shard(model, **options)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, reference)]
        for step in range(3):
            loss = run_in_chunks(model, tokens_of(step, dist.get_rank()))
            for rank in range(size):
                expected = run_in_chunks(reference, tokens_of(step, rank), 1 / size)
                if rank == dist.get_rank():
                    expect_close(loss / size, expected, f"loss of step {step}, tied {tied}, reshard {reshard}")
            expect_alike(model, reference)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 2 == 0)


@case
def chunks_accumulate_without_sync(api: Interface) -> None:
    size = dist.get_world_size()
    model, reference = seeded(ChunkedHead), seeded(ChunkedHead)
    for part in (model.embed, model.body, [model.norm, model.head], model):
        api.shard(part)
    for step in range(3):
        model.set_requires_gradient_sync(step == 2)
        model.set_is_last_backward(step == 2)
        run_in_chunks(model, tokens_of(step, dist.get_rank()), chunks=2)
        for rank in range(size):
            run_in_chunks(reference, tokens_of(step, rank), 1 / size, chunks=2)
    expect_alike(model, reference)


@case
def two_partial_forwards_and_one_backward(api: Interface) -> None:
    model, reference = seeded(ChunkedHead), seeded(ChunkedHead)
    api.shard([model.norm, model.head])
    api.shard(model)

    def loss_of(module: nn.Module, step: int, rank: int) -> Tensor:
        first, second = (module(tokens_of(2 * step + number, rank), skip_head=True) for number in range(2))
        return first.square().mean() + (second * 3).square().mean()

    trains_as_unsharded(model, reference, loss_of, steps=1, optimizers=False)
    assert model.head.weight.grad is None


@case
def a_group_casts_the_inputs_of_every_module(api: Interface) -> None:
    class FloatBetween(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8, bias=False)
            self.second = nn.Linear(8, 8, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).float())

    model = seeded(FloatBetween)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=True)
    api.shard([model.first, model.second], mp_policy=policy)
    api.shard(model, mp_policy=policy)
    output = model(torch.randn(2, 8))
    assert output.dtype == torch.bfloat16
    output.sum().backward()
    assert all(param.grad is not None and param.grad.dtype == torch.float32 for param in model.parameters())


@case
def tied_parameters_of_uneven_size_are_updated_in_every_row(api: Interface) -> None:
    vocab = 4 * dist.get_world_size() + 1

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocab, 16)
            self.output = nn.Linear(16, vocab, bias=False)
            self.output.weight = self.embed.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.output(self.embed(ids))

    def loss_of(module: nn.Module, step: int, rank: int) -> Tensor:
        ids = tokens_of(step, rank, vocab)
        return F.cross_entropy(module(ids).flatten(0, 1), ids.flatten())

    for reshard in (True, False):
        model, reference = seeded(Tied), seeded(Tied)
        before = reference.embed.weight.detach().clone()
        api.shard([model.embed, model.output], reshard_after_forward=reshard)
        api.shard(model, reshard_after_forward=reshard)
        trains_as_unsharded(model, reference, loss_of)
        assert model.embed.weight is model.output.weight
        after = whole(model.embed.weight)
        assert all(not torch.equal(row, other) for row, other in zip(before, after, strict=True))


@case
def refuses_a_parameter_of_two_groups(api: Interface) -> None:
    model = ChunkedHead(tied=True)
    with expect_error(ValueError):
        for part in (model.embed, model.head, model):
            api.shard(part)
        model(tokens_of(0, 0))
