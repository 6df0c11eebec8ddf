"""weft's Llama in PyTorch, with the names, shapes, initial values and tokens of bench/training_step.cc."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from formula import uniform


@dataclass(frozen=True)
class Shape:
    vocab_size: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn_dim: int
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


# The models of bench/step_model.h, by the number of their parameters.
MODELS = {
    "29M": Shape(vocab_size=4096, dim=512, layers=8, heads=8, kv_heads=4, ffn_dim=1536),
    "110M": Shape(vocab_size=16384, dim=768, layers=12, heads=12, kv_heads=12, ffn_dim=2048),
}


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class Attention(nn.Module):
    def __init__(self, shape: Shape, attend: Callable[[Tensor, Tensor, Tensor], Tensor] = causal_attention) -> None:
        super().__init__()
        self.attend = attend
        self.head_dim = shape.head_dim
        kv_dim = shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.dim, shape.dim, bias=False)
        self.k_proj = nn.Linear(shape.dim, kv_dim, bias=False)
        self.v_proj = nn.Linear(shape.dim, kv_dim, bias=False)
        self.o_proj = nn.Linear(shape.dim, shape.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (self._heads(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj))
        q, k = (rotate(t, cos, sin) for t in (q, k))
        return self.o_proj(self.attend(q, k, v).transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding in the rotate-half layout; cos and sin are [seq, head_dim / 2]."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.up_proj = nn.Linear(shape.dim, shape.ffn_dim, bias=False)
        self.down_proj = nn.Linear(shape.ffn_dim, shape.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.dim)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim, eps=shape.norm_eps)

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Llama(nn.Module):
    """A decoder with head. `forward` returns the mean loss over the targets, in f32 for every dtype of the logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.model = Decoder(shape)
        self.lm_head = nn.Linear(shape.dim, shape.vocab_size, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        logits = self.lm_head(self.model(tokens, cos, sin))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def rope_table(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    frequencies = 1.0 / shape.rope_theta ** (torch.arange(0, shape.head_dim, 2) / shape.head_dim)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return angles.cos(), angles.sin()


def tokens_of(shape: Shape, rank: int, length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a rank, [1, length] each: a sequence, and the same sequence shifted by one token."""
    i = torch.arange(length + 1)
    tokens = (7 * i * i + 37 * i + 101 * rank) % shape.vocab_size
    return tokens[None, :-1], tokens[None, 1:]


def initial_values(name: str, shape: torch.Size) -> Tensor:
    """Uniform with standard deviation 0.02; norms are 1."""
    if len(shape) == 1:
        return torch.ones(shape)
    return uniform(name, shape, 0.02)
