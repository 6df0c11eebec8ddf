"""Training of one model in one process with torch's fully_shard over gloo and with weft's, for comparison. Where both add in one order
(two ranks, float32), losses, gradients and parameters must have the same bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
import weft
from sharded_support import whole
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=True)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = (p(x).view(batch, length, self.heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, dim))


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, dim: int, hidden: int, heads: int):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(dim)
        self.self_attn = Attention(dim, heads)
        self.post_attention_layernorm = nn.RMSNorm(dim)
        self.mlp = FeedForward(dim, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, layers: int = 3, dim: int = 30, hidden: int = 47, heads: int = 3, vocab: int = 61, checkpoints: str = ""):
        super().__init__()
        self.checkpoints = checkpoints
        self.skipped: set[int] = set()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Block(dim, hidden, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for number, layer in enumerate(self.layers):
            if number in self.skipped:
                continue
            if self.checkpoints and torch.is_grad_enabled():
                x = checkpoint(layer, x, use_reentrant=self.checkpoints == "reentrant")
            else:
                x = layer(x)
        return self.lm_head(self.norm(x))


def make_llama(seed: int = 3, **options: object) -> Llama:
    torch.manual_seed(seed)
    return Llama(**options)


def tokens_of(step: int, rank: int | None = None, length: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + (dist.get_rank() if rank is None else rank))
    return torch.randint(0, 61, (2, length + 1), generator=generator)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    logits = model(tokens[:, :-1])
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


Shards = Callable[..., nn.Module]
BOTH = {"torch": torch_fully_shard, "weft": weft.fully_shard}


def shard_all(model: Llama, shard: Shards, **options: object) -> Llama:
    for layer in model.layers:
        shard(layer, **options)
    shard(model, **options)
    return model


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(param) for name, param in model.named_parameters()}


def is_exact() -> bool:
    """Whether gloo and weft add in one order."""
    return dist.get_world_size() <= 2


def expect_equal(ours: Tensor, theirs: Tensor, what: str, exact: bool | None = None, tolerance: float = 1e-6) -> None:
    assert ours.shape == theirs.shape, f"{what}: shapes {tuple(ours.shape)} and {tuple(theirs.shape)}"
    if is_exact() if exact is None else exact:
        assert torch.equal(ours, theirs), f"{what}: differ by up to {(ours - theirs).abs().max().item()}"
    else:
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


def expect_same_state(ours: nn.Module, theirs: nn.Module, **options: object) -> None:
    left, right = whole_state(ours), whole_state(theirs)
    assert left.keys() == right.keys()
    for name, value in left.items():
        expect_equal(value, right[name], name, **options)


def expect_same_gradients(ours: nn.Module, theirs: nn.Module, **options: object) -> None:
    for (name, left), (_, right) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert (left.grad is None) == (right.grad is None), f"{name}: gradients {left.grad is not None}, {right.grad is not None}"
        if left.grad is not None:
            assert left.grad.placements == right.grad.placements
            expect_equal(whole(left.grad), whole(right.grad), f"gradient of {name}", **options)


def train(
    model: nn.Module,
    steps: int = 3,
    microbatches: int = 1,
    before: Callable[[nn.Module, int, int], None] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    clip: Callable[[nn.Module], Tensor] | None = None,
    seen: list[Tensor] | None = None,
) -> list[Tensor]:
    """Trains, and returns losses and norms."""
    if optimizer is None:
        # AdamW divides by the size of a gradient, so that rounding errors of small ones become large.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2) if is_exact() else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    results = []
    for step in range(steps):
        for microbatch in range(microbatches):
            if before is not None:
                before(model, microbatch, microbatches)
            loss = loss_of(model, tokens_of(10 * step + microbatch)) / microbatches
            loss.backward()
            results.append(loss.detach())
        if clip is not None:
            results.append(clip(model))
        optimizer.step()
        optimizer.zero_grad()
    return results


def compare(make: Callable[[Shards, str], nn.Module], *, exact: bool | None = None, tolerance: float = 1e-6, **options: object) -> nn.Module:
    """Trains a model with torch's fully_shard and with weft's, and expects the same results. Returns weft's."""
    models, results = {}, {}
    for name, shard in BOTH.items():
        models[name] = make(shard, name)
        results[name] = train(models[name], **options)
    for number, (ours, theirs) in enumerate(zip(results["weft"], results["torch"], strict=True)):
        expect_equal(ours, theirs, f"result {number}", exact, tolerance)
    expect_same_state(models["weft"], models["torch"], exact=exact, tolerance=tolerance)
    return models["weft"]


def plain(shard: Shards, name: str) -> nn.Module:
    return shard_all(make_llama(), shard)
