"""Cases of weft.fully_shard, each run by all ranks of a pool; test_fully_shard.py starts them.

Most cases train the same model twice in one process, with torch's fully_shard over gloo and with weft's, and compare
losses, gradients and parameters. Where both add in one order (two ranks, float32), they must have the same bits.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule as TorchFSDPModule
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.distributed.fsdp import register_fsdp_forward_method as torch_register_forward_method
from torch.distributed.tensor import DTensor, Shard
from torch.utils.checkpoint import checkpoint

import weft
from weft.torch.sharding.direct import DirectEmbedding, DirectLinear

CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


# The model: a Llama in small, with sizes that do not divide evenly.


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


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


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


# Training.


@case
def trains_as_fsdp2() -> None:
    compare(plain)


@case
def gradients_equal_fsdp2s() -> None:
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    for step in range(3):  # Gradients add up.
        for model in models.values():
            loss_of(model, tokens_of(step)).backward()
        expect_same_gradients(models["weft"], models["torch"])
    for model in models.values():
        model.zero_grad(set_to_none=False)
        loss_of(model, tokens_of(7)).backward()
    expect_same_gradients(models["weft"], models["torch"])
    for model in models.values():
        model.layers[1].zero_grad()
        loss_of(model, tokens_of(8)).backward()
    expect_same_gradients(models["weft"], models["torch"])


@case
def trains_with_hsdp() -> None:
    if dist.get_world_size() % 2:
        return
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    compare(lambda shard, _: shard_all(make_llama(), shard, mesh=mesh))


@case
def no_schedule_knob_changes_a_bit() -> None:
    def run(change: Callable[[nn.Module], None] | None = None, **options: object) -> list[Tensor]:
        model = shard_all(make_llama(), weft.fully_shard, **options)
        if change is not None:
            change(model)
        return train(model) + list(whole_state(model).values())

    def prefetch(model: nn.Module) -> None:
        model.layers[0].set_modules_to_forward_prefetch([model.layers[2], model.layers[1]])
        model.layers[2].set_modules_to_backward_prefetch([model.layers[0]])

    expected = run()
    changes = [
        (None, {"reshard_after_forward": True}),
        (None, {"reshard_after_forward": False}),
        (prefetch, {}),
        (lambda model: model.set_reshard_after_forward(True), {}),
        (lambda model: model.set_unshard_in_backward(True), {}),
        (lambda model: [layer.unshard(async_op=True) for layer in model.layers] and None, {}),
    ]
    if dist.get_world_size() == 4:
        changes.append((None, {"reshard_after_forward": 2}))
    for number, (change, options) in enumerate(changes):
        for ours, theirs in zip(run(change, **options), expected, strict=True):
            expect_equal(ours, theirs, f"change {number}", exact=True)


@case
def accumulates_gradients() -> None:
    def without_sync(model: nn.Module, microbatch: int, count: int) -> None:
        model.set_requires_gradient_sync(microbatch + 1 == count)

    def late(model: nn.Module, microbatch: int, count: int) -> None:
        model.set_is_last_backward(microbatch + 1 == count)
        model.set_reshard_after_backward(microbatch + 1 == count)

    for before in (None, without_sync, late):
        compare(plain, microbatches=3, before=before, exact=False)


@case
def accumulates_over_replicas() -> None:
    if dist.get_world_size() % 2:
        return
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))

    def before(model: nn.Module, microbatch: int, count: int) -> None:
        model.set_requires_all_reduce(microbatch + 1 == count)

    compare(lambda shard, _: shard_all(make_llama(), shard, mesh=mesh), microbatches=3, before=before, exact=False)


@case
def trains_in_bf16() -> None:
    for policy in (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16),
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False),
        MixedPrecisionPolicy(reduce_dtype=torch.bfloat16),
    ):
        compare(lambda shard, _, policy=policy: shard_all(make_llama(), shard, mp_policy=policy), tolerance=2e-2)

    def make(shard: Shards, _: str) -> nn.Module:
        model = make_llama()
        for layer in model.layers:
            shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
        return shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32))

    model = compare(make, tolerance=2e-2)
    assert model(tokens_of(0)).dtype == torch.float32


@case
def accumulates_in_bf16() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def before(model: nn.Module, microbatch: int, count: int) -> None:
        model.set_requires_gradient_sync(microbatch + 1 == count)

    compare(lambda shard, _: shard_all(make_llama(), shard, mp_policy=policy), microbatches=2, before=before, exact=False, tolerance=1e-3)


@case
def trains_in_float64() -> None:
    def make(shard: Shards, _: str, policy: MixedPrecisionPolicy) -> nn.Module:
        return shard_all(make_llama().double(), shard, mp_policy=policy)

    for policy in (
        MixedPrecisionPolicy(),
        MixedPrecisionPolicy(param_dtype=torch.float32),
        MixedPrecisionPolicy(reduce_dtype=torch.float32),
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    ):
        tolerance = 1e-12 if policy == MixedPrecisionPolicy() else 2e-2
        exact = None if policy.param_dtype is None else False
        model = compare(partial(make, policy=policy), microbatches=2, exact=exact, tolerance=tolerance)
        assert all(value.dtype == torch.float64 for value in model.state_dict().values())
    compare(lambda shard, _: shard_all(make_llama(), shard, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float64)))
    converted = shard_all(make_llama(), weft.fully_shard).double()  # After sharding, before the first forward.
    train(converted)
    direct = shard_all(make_llama().double(), weft.fully_shard)
    train(direct)
    expect_same_state(converted, direct, exact=True)
    loss_of(direct, tokens_of(0)).backward()
    assert all(p.grad.dtype == p.grad.to_local().dtype == torch.float64 for p in direct.parameters())
    with expect_error(ValueError, "before the first forward"):
        direct.float()


def with_a_layer_in_float64(shard: Shards, _: str = "") -> nn.Module:
    model = make_llama()
    model.layers[1].double()
    shard(model.layers[1], mp_policy=MixedPrecisionPolicy(param_dtype=torch.float64, output_dtype=torch.float32))
    shard(model.layers[0])
    return shard(model)


@case
def trains_float32_and_float64_side_by_side() -> None:
    model = compare(with_a_layer_in_float64, tolerance=1e-5)
    assert {p.dtype for p in model.layers[1].parameters()} == {torch.float64}
    seen = []
    for layer in model.layers[:2]:
        layer.set_all_reduce_hook(lambda gradient: seen.append(gradient.dtype))
    loss_of(model, tokens_of(9)).backward()
    assert set(seen) <= {torch.float32, torch.float64} and len(seen) == 2 and seen[0] != seen[1], seen
    norm, factor = weft.gradient_norm(model, 0.3)
    theirs = whole(nn.utils.clip_grad_norm_(model.parameters(), 0.3))
    assert norm.dtype == theirs.dtype == torch.float64
    torch.testing.assert_close(norm, theirs, rtol=1e-6, atol=0)
    assert factor == min(1.0, 0.3 / (norm.item() + 1e-6))


@case
def float64_has_the_same_bits_on_every_mesh() -> None:
    results = []
    for replicas in (1, 2) if dist.get_world_size() > 1 else (1,):
        mesh = init_device_mesh("cpu", (replicas, dist.get_world_size() // replicas), mesh_dim_names=("replicate", "shard"))
        model = shard_all(make_llama().double(), weft.fully_shard, mesh=mesh)
        optimizer = weft.AdamW(model.parameters(), lr=1e-2)
        clip = partial(weft.clip_grad_norm_, max_norm=0.3)
        results.append(train(model, optimizer=optimizer, clip=clip) + list(whole_state(model).values()))
    for number, values in enumerate(zip(*results, strict=True)):
        for value in values[1:]:
            expect_equal(value, values[0], f"result {number}", exact=True)


@case
def weft_adamw_updates_float64_as_torchs() -> None:
    results = []
    for make in (torch.optim.AdamW, weft.AdamW):
        model = with_a_layer_in_float64(weft.fully_shard)
        optimizer = make(model.parameters(), lr=1e-2)
        train(model, optimizer=optimizer)
        results.append((model, optimizer))
    (theirs, their_optimizer), (ours, our_optimizer) = results
    expect_same_state(ours, theirs, exact=False, tolerance=1e-5)
    for number, state in our_optimizer.state_dict()["state"].items():
        assert state["exp_avg"].dtype == their_optimizer.state_dict()["state"][number]["exp_avg"].dtype
    param = nn.Parameter(torch.ones(3, dtype=torch.float64))
    param.grad = torch.full((3,), 0.1, dtype=torch.float64)
    copied = nn.Parameter(param.detach().clone())
    copied.grad = param.grad.clone()
    for update in (weft.AdamW([param]), torch.optim.AdamW([copied])):
        update.step()
    torch.testing.assert_close(param, copied, rtol=1e-15, atol=0)
    param.grad_dtype = None
    param.grad = torch.ones(3)
    with expect_error(RuntimeError, "torch.float64 parameter"):
        weft.AdamW([param]).step()


@case
def checkpoints_activations() -> None:
    for kind in ("reentrant", "saved tensors"):
        compare(lambda shard, _, kind=kind: shard_all(make_llama(checkpoints=kind), shard))


@case
def checkpoints_around_nested_groups() -> None:
    def make(shard: Shards, _: str, kind: str) -> nn.Module:
        model = make_llama(checkpoints=kind)
        for layer in model.layers:
            shard(layer.self_attn)
            shard(layer.mlp)
            shard(layer)
        return shard(model)

    for kind in ("reentrant", "saved tensors"):
        compare(partial(make, kind=kind))


@case
def a_root_without_blocks_and_blocks_without_a_root() -> None:
    compare(lambda shard, _: shard(make_llama()))

    def blocks(shard: Shards, _: str) -> nn.Module:
        model = make_llama()
        for layer in model.layers:
            shard(layer)
        return model

    # The rest of the model is not sharded, so each rank trains its own.
    models, results = {}, {}
    for name, shard in BOTH.items():
        models[name] = blocks(shard, name)
        params = [p for p in models[name].layers.parameters()]
        results[name] = train(models[name], optimizer=torch.optim.SGD(params, lr=0.1))
    for ours, theirs in zip(results["weft"], results["torch"], strict=True):
        expect_equal(ours, theirs, "loss")


@case
def modules_form_one_group() -> None:
    def make(shard: Shards, _: str) -> nn.Module:
        model = make_llama()
        for layer in model.layers:
            shard(layer)
        shard([model.norm, model.lm_head])
        return shard(model)

    compare(make)


@case
def modules_share_parameters() -> None:
    def make(shard: Shards, _: str) -> nn.Module:
        model = make_llama()
        model.lm_head.weight = model.embed_tokens.weight
        return shard_all(model, shard)

    model = compare(make)
    assert model.lm_head.weight is model.embed_tokens.weight
    tied = make_llama()
    tied.layers[1].mlp.up_proj.weight = tied.layers[0].mlp.up_proj.weight
    weft.fully_shard(tied.layers[0])
    with expect_error(ValueError, "shared with 'Block'"):
        weft.fully_shard(tied.layers[1])


@case
def frozen_parameters_get_no_gradient() -> None:
    def make(shard: Shards, _: str) -> nn.Module:
        model = make_llama()
        model.embed_tokens.requires_grad_(False)
        model.layers[0].requires_grad_(False)
        model.layers[1].self_attn.q_proj.requires_grad_(False)
        return shard_all(model, shard)

    model = compare(make)
    assert model.layers[0].mlp.up_proj.weight.grad is None


@case
def ignored_parameters_stay_whole() -> None:
    def make(shard: Shards, _: str) -> nn.Module:
        model = make_llama()
        ignored = set(model.layers[1].mlp.parameters())
        for layer in model.layers:
            shard(layer, ignored_params=ignored)
        shard(model, ignored_params=ignored)
        assert not isinstance(model.layers[1].mlp.up_proj.weight, DTensor)
        return model

    models = {name: make(shard, name) for name, shard in BOTH.items()}
    for model in models.values():
        loss_of(model, tokens_of(0)).backward()
    for (name, ours), (_, theirs) in zip(models["weft"].named_parameters(), models["torch"].named_parameters(), strict=True):
        expect_equal(whole(ours.grad), whole(theirs.grad), name)


@case
def unused_parameters_have_no_gradient() -> None:
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    for model in models.values():
        model.skipped = {1}
        loss_of(model, tokens_of(0)).backward()
    expect_same_gradients(models["weft"], models["torch"])
    assert models["weft"].layers[1].mlp.up_proj.weight.grad is None
    for model in models.values():
        model.skipped = set()
        loss_of(model, tokens_of(1)).backward()
    expect_same_gradients(models["weft"], models["torch"])


@case
def ranks_may_use_different_parameters() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    loss_of(model, tokens_of(0)).backward()
    model.zero_grad()
    model.skipped = {1} if dist.get_rank() == 0 else set()
    loss_of(model, tokens_of(1)).backward()
    gradient = model.layers[1].mlp.up_proj.weight.grad
    if dist.get_world_size() == 1:
        assert gradient is None
        return
    expected = make_llama()
    for rank in range(1, dist.get_world_size()):
        (loss_of(expected, tokens_of(1, rank)) / dist.get_world_size()).backward()
    expect_equal(whole(gradient), expected.layers[1].mlp.up_proj.weight.grad, "gradient", exact=False)


@case
def shards_on_other_dims() -> None:
    def on_last_dim(param: nn.Parameter) -> Shard | None:
        return Shard(-1) if param.ndim == 2 and param.shape[-1] % 4 == 0 else None

    compare(lambda shard, _: shard_all(make_llama(dim=36, hidden=48), shard, shard_placement_fn=on_last_dim))


@case
def divides_gradients_by_a_factor() -> None:
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    factor = float(dist.get_world_size())
    for model in models.values():
        for module in model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(factor)
        loss_of(model, tokens_of(0)).backward()
    expect_same_gradients(models["weft"], models["torch"])
    models["weft"].zero_grad()
    models["weft"].layers[0].set_gradient_divide_factor(2 * factor)
    loss_of(models["weft"], tokens_of(0)).backward()
    halved = models["weft"].layers[0].mlp.up_proj.weight.grad
    expect_equal(2 * whole(halved), whole(models["torch"].layers[0].mlp.up_proj.weight.grad), "gradient")


@case
def hooks_see_reduced_gradients() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    seen = []
    model.layers[0].set_all_reduce_hook(lambda gradient: seen.append(gradient.clone()) or gradient.mul_(2))
    loss_of(model, tokens_of(0)).backward()
    other = shard_all(make_llama(), weft.fully_shard)
    loss_of(other, tokens_of(0)).backward()
    assert len(seen) == 1
    doubled, once = (m.layers[0].mlp.up_proj.weight.grad for m in (model, other))
    expect_equal(whole(doubled), 2 * whole(once), "gradient", exact=True)


@case
def registers_forward_methods() -> None:
    registers = {"torch": torch_register_forward_method, "weft": weft.register_fsdp_forward_method}
    results = {}
    for name, shard in BOTH.items():
        model = make_llama()
        model.__class__.score = lambda self, tokens: self.lm_head(self.embed_tokens(tokens)).sum()
        shard_all(model, shard)
        registers[name](model, "score")
        score = model.score(tokens_of(0))
        score.backward()
        results[name] = (score, model)
    expect_equal(results["weft"][0].detach(), results["torch"][0].detach(), "score")
    expect_same_gradients(results["weft"][1], results["torch"][1])


@case
def a_registered_method_may_call_the_forward() -> None:
    class Generator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.first, self.second = nn.Linear(7, 9), nn.Linear(9, 7)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.tanh(self.first(x)))

        def generate(self, x: Tensor) -> Tensor:
            return self(self(x))

    def make(shard: Shards, name: str) -> nn.Module:
        model = Generator()
        shard(model.first)
        shard(model)
        {"torch": torch_register_forward_method, "weft": weft.register_fsdp_forward_method}[name](model, "generate")
        return model

    models = {name: make(shard, name) for name, shard in BOTH.items()}
    x = torch.randn(3, 7, generator=torch.Generator().manual_seed(dist.get_rank()))
    for model in models.values():
        with torch.no_grad():
            model.generate(x)
        model.generate(x).square().sum().backward()
    expect_same_gradients(models["weft"], models["torch"])


# Passes.


@case
def evaluates_without_gradients() -> None:
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=1e-2) for name, model in models.items()}
    losses: dict[str, list[Tensor]] = {name: [] for name in models}
    for step in range(3):
        for name, model in models.items():
            model.eval()
            with torch.no_grad():
                losses[name].append(loss_of(model, tokens_of(step)))
            model.train()
            train(model, steps=1, optimizer=optimizers[name])
            with torch.inference_mode():
                losses[name].append(loss_of(model, tokens_of(step)))
    for ours, theirs in zip(losses["weft"], losses["torch"], strict=True):
        expect_equal(ours.clone(), theirs.clone(), "loss")


@case
def the_first_forward_may_be_an_inference() -> None:
    models = []
    for evaluates in (False, True):
        model = shard_all(make_llama(), weft.fully_shard)
        if evaluates:
            with torch.inference_mode():
                loss_of(model, tokens_of(0))
        train(model)
        models.append(model)
    expect_same_state(*models, exact=True)


@case
def a_forward_may_have_no_backward() -> None:
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=1e-2) for name, model in models.items()}
    for name, model in models.items():
        loss_of(model, tokens_of(50))
        train(model, steps=1, optimizer=optimizers[name])
        loss_of(model, tokens_of(51))
        state = model.state_dict()
        model.load_state_dict({key: value.clone() for key, value in state.items()})
        train(model, steps=2, optimizer=optimizers[name])
    expect_same_state(models["weft"], models["torch"])


@case
def several_passes_and_one_backward() -> None:
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    for model in models.values():
        (loss_of(model, tokens_of(0)) + loss_of(model, tokens_of(1))).backward()
    expect_same_gradients(models["weft"], models["torch"], exact=False)
    for model in models.values():
        model.zero_grad()
        first, second = loss_of(model, tokens_of(2)), loss_of(model, tokens_of(3))
        first.backward()
        second.backward()
    expect_same_gradients(models["weft"], models["torch"], exact=False)


@case
def a_backward_may_be_repeated() -> None:
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    for model in models.values():
        loss = loss_of(model, tokens_of(0))
        loss.backward(retain_graph=True)
        loss.backward()
    expect_same_gradients(models["weft"], models["torch"])


@case
def shards_may_be_used_outside_of_the_model() -> None:
    """A penalty on the shards adds to the gradients of the same backward."""

    def loss_with_penalty(model: nn.Module, step: int) -> Tensor:
        penalty = sum(param.to_local().square().sum() for param in model.parameters())
        return loss_of(model, tokens_of(step)) + 0.1 * penalty

    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    for model in models.values():
        for step in range(2):  # The second adds to gradients that the first has left.
            loss_with_penalty(model, step).backward()
    expect_same_gradients(models["weft"], models["torch"], exact=False)


@case
def hooks_on_shards_may_step_an_optimizer() -> None:
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    for model in models.values():
        optimizers = {param: torch.optim.SGD([param], lr=0.1) for param in model.parameters()}

        def step_and_clear(param: Tensor, optimizers: dict[Tensor, torch.optim.Optimizer] = optimizers) -> None:
            optimizers[param].step()
            optimizers[param].zero_grad()

        for param in optimizers:
            param.register_post_accumulate_grad_hook(step_and_clear)
        for step in range(2):
            loss_of(model, tokens_of(step)).backward()
    expect_same_state(models["weft"], models["torch"])


@case
def gradients_of_inputs_in_a_forward() -> None:
    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.inner = nn.Sequential(nn.Linear(7, 13), nn.Tanh())
            self.outer = nn.Linear(13, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            energy = self.outer(self.inner(x)).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
            return energy + force.square().sum()

    model, expected = Energy(), Energy()
    weft.fully_shard(model.inner)
    weft.fully_shard(model.outer)
    weft.fully_shard(model)
    for step in range(2):
        inputs = [torch.randn(4, 7, generator=torch.Generator().manual_seed(10 * step + rank)) for rank in range(dist.get_world_size())]
        model(inputs[dist.get_rank()].clone()).backward()
        for part in inputs:
            (expected(part) / dist.get_world_size()).backward()
    for (name, ours), (_, theirs) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
        expect_equal(whole(ours.grad), theirs.grad, name, exact=False, tolerance=1e-5)


@case
def two_models_train_side_by_side() -> None:
    pairs = {}
    for name, shard in BOTH.items():
        first, second = shard_all(make_llama(seed=1), shard), shard_all(make_llama(seed=2), shard)
        pairs[name] = (first, second)
        optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-2)
        for step in range(3):
            tokens = tokens_of(step)
            with torch.no_grad():
                target = second(tokens[:, :-1]).softmax(-1)
            loss = F.cross_entropy(first(tokens[:, :-1]).flatten(0, 1), target.flatten(0, 1)) + loss_of(second, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for ours, theirs in zip(pairs["weft"], pairs["torch"], strict=True):
        expect_same_state(ours, theirs)


@case
def unshards_by_hand() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = make_llama()
    model.layers[1].unshard()
    weight = model.layers[1].mlp.up_proj.weight
    assert not isinstance(weight, DTensor)
    expect_equal(weight.detach(), expected.layers[1].mlp.up_proj.weight.detach(), "weight", exact=True)
    handle = model.layers[2].unshard(async_op=True)
    handle.wait()
    handle.wait()
    model.layers[1].reshard()
    assert isinstance(model.layers[1].mlp.up_proj.weight, DTensor)
    train(model, steps=2, optimizer=optimizer)
    other = shard_all(make_llama(), weft.fully_shard)
    train(other, steps=2, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    expect_same_state(model, other, exact=True)


# Optimizers and clipping.


@case
def weft_adamw_equals_torchs() -> None:
    results = []
    for make in (torch.optim.AdamW, weft.AdamW):
        model = shard_all(make_llama(), weft.fully_shard)
        decayed = [p for p in model.parameters() if p.ndim > 1]
        rest = [p for p in model.parameters() if p.ndim <= 1]
        optimizer = make([{"params": decayed}, {"params": rest, "weight_decay": 0.0}], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
        train(model, steps=5, optimizer=optimizer)
        results.append((model, optimizer))
    (theirs, their_optimizer), (ours, our_optimizer) = results
    expect_same_state(ours, theirs, exact=False, tolerance=1e-5)
    left, right = our_optimizer.state_dict(), their_optimizer.state_dict()
    assert left["state"].keys() == right["state"].keys()
    for number, state in left["state"].items():
        assert state.keys() == right["state"][number].keys()
        assert state["step"] == right["state"][number]["step"]
        expect_equal(whole(state["exp_avg"]), whole(right["state"][number]["exp_avg"]), "exp_avg", exact=False, tolerance=1e-5)
    # The state of one fits the other.
    our_optimizer.load_state_dict(right)
    their_optimizer.load_state_dict(left)
    for model, optimizer in results:
        train(model, steps=1, optimizer=optimizer)
    expect_same_state(ours, theirs, exact=False, tolerance=1e-5)


@case
def moments_have_storages_of_their_own() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    optimizer = weft.AdamW(model.parameters(), lr=1e-2)
    train(model, steps=1, optimizer=optimizer)
    moments = [state[name]._local_tensor for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    held = [moment for moment in moments if moment.numel()]  # A rank may own nothing of a parameter.
    assert len(moments) == 2 * len(list(model.parameters()))
    assert all(moment.untyped_storage().nbytes() == moment.nbytes for moment in held)
    assert all(moment.data_ptr() % 64 == 0 for moment in held)
    assert len({moment.data_ptr() for moment in held}) == len(held)


@case
def a_step_registers_each_form_once_if_forward_does_not_reshard() -> None:
    model = shard_all(make_llama(), weft.fully_shard, reshard_after_forward=False)
    train(model, steps=1)
    counts: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._weft_group.parameters if hasattr(module, "_weft_group") else ():
            def register(param: nn.Parameter, original: Callable = parameter._register, key: int = id(parameter)) -> None:
                counts[key] = counts.get(key, 0) + 1
                original(param)

            parameter._register = register
    train(model, steps=3)
    assert len(counts) == len(list(model.parameters()))
    assert set(counts.values()) == {2 * 3}, counts


@case
def clips_as_torch_does() -> None:
    clip = lambda model: whole(nn.utils.clip_grad_norm_(model.parameters(), 0.3))
    compare(plain, clip=clip, exact=False, tolerance=1e-5)
    results = {}
    for name, clipper in {"torch": clip, "weft": lambda model: weft.clip_grad_norm_(model, 0.3)}.items():
        model = shard_all(make_llama(), weft.fully_shard)
        results[name] = train(model, clip=clipper) + list(whole_state(model).values())
    for ours, theirs in zip(results["weft"], results["torch"], strict=True):
        expect_equal(ours.float(), theirs, "clipped", exact=False, tolerance=1e-5)


@case
def a_factor_clips_in_the_update() -> None:
    states = []
    for clips_in_update in (False, True):
        model = shard_all(make_llama(), weft.fully_shard)
        optimizer = weft.AdamW(model.parameters(), lr=1e-2)
        norms = []
        for step in range(2):
            loss_of(model, tokens_of(step)).backward()
            if clips_in_update:
                norm, factor = weft.gradient_norm(torch.compile(model), 0.3)  # The wrapper of torch.compile stands for the model.
                assert factor < 1
                optimizer.step(gradient_scale=factor)
            else:
                norm = weft.clip_grad_norm_(model, 0.3)
                optimizer.step()
            norms.append(norm)
            optimizer.zero_grad()
        states.append(norms + list(whole_state(model).values()))
    for in_update, before in zip(*states, strict=True):
        expect_equal(in_update, before, "clipped", exact=True)


@case
def an_optimizer_made_before_the_first_forward_stays_right() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    before = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, steps=1, optimizer=optimizer)
    for name, param in model.named_parameters():
        assert param is before[name], name
    assert not torch.equal(whole(before["lm_head.weight"]), make_llama().lm_head.weight)


@case
def direct_linears_have_the_same_gradients() -> None:
    models = []
    for direct in (False, True):
        model = make_llama()
        if direct:
            weft.write_gradients_directly(model)
        shard_all(model, weft.fully_shard)
        for step in range(2):
            model.set_requires_gradient_sync(step == 1)
            loss_of(model, tokens_of(step)).backward()
        models.append(model)
    expect_same_gradients(models[1], models[0], exact=False)


@case
def direct_layers_may_be_groups_of_their_own() -> None:
    models = []
    for direct in (False, True):
        model = make_llama()
        for layer in (model.embed_tokens, model.lm_head):
            weft.fully_shard(layer)
        shard_all(model, weft.fully_shard)
        if direct:
            weft.write_gradients_directly(model)
            assert all(type(layer).__mro__[2] in (DirectEmbedding, DirectLinear) for layer in (model.embed_tokens, model.lm_head))
        loss_of(model, tokens_of(0)).backward()
        models.append(model)
    expect_same_gradients(models[1], models[0], exact=True)


@case
def direct_linears_write_only_gradients_that_are_asked_for() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    weft.write_gradients_directly(model)
    weft.fully_shard(model)
    x = torch.ones(2, 8, requires_grad=True)
    model(x)
    before = model(x).sum()
    (to_x,) = torch.autograd.grad(before, x)
    assert to_x.abs().sum() > 0
    assert all(p.grad is None for p in model.parameters())
    model(x).sum().backward()
    reference = [whole(p.grad) for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    model(x).sum().backward()
    for p, expected in zip(model.parameters(), reference, strict=True):
        expect_equal(whole(p.grad), expected, "gradient", exact=True)


# State.


@case
def state_dicts_fit_fsdp2s() -> None:
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    for model in models.values():
        train(model, steps=2)
    ours, theirs = (models[name].state_dict() for name in ("weft", "torch"))
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert isinstance(value, DTensor)
        assert value.placements == theirs[key].placements
        expect_equal(value.to_local(), theirs[key].to_local(), key)
    fresh = shard_all(make_llama(seed=9), weft.fully_shard)
    fresh.load_state_dict(theirs)
    expect_same_state(fresh, models["torch"], exact=True)
    train(fresh, steps=1)
    assigned = shard_all(make_llama(seed=9), weft.fully_shard)
    train(assigned, steps=1)
    assigned.load_state_dict({key: value.clone() for key, value in ours.items()}, assign=True)
    expect_same_state(assigned, models["weft"], exact=True)
    expect_equal(loss_of(assigned, tokens_of(0)).detach(), loss_of(models["weft"], tokens_of(0)).detach(), "loss", exact=True)


def shared_folder() -> str:
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    return folder[0]


@case
def checkpoints_go_from_fsdp2_to_weft_and_back() -> None:
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    optimizers = {name: torch.optim.AdamW(model.parameters(), lr=1e-2) for name, model in models.items()}
    for name, model in models.items():
        train(model, steps=2, optimizer=optimizers[name])
    folder = shared_folder()
    for source, target in (("torch", "weft"), ("weft", "torch")):
        place = Path(folder) / source
        dcp.save({"model": get_model_state_dict(models[source])}, checkpoint_id=place)
        fresh = shard_all(make_llama(seed=8), BOTH[target])
        if target == "weft":
            train(fresh, steps=1)  # Its shards lie in weft's memory.
        state = {"model": get_model_state_dict(fresh)}
        dcp.load(state, checkpoint_id=place)
        set_model_state_dict(fresh, state["model"])
        expect_same_state(fresh, models[source], exact=True)
        losses = [loss_of(model, tokens_of(5)).detach() for model in (fresh, models[source])]
        expect_equal(*losses, "loss")


@case
def checkpoints_keep_float64() -> None:
    folder = shared_folder()
    source = shard_all(make_llama().double(), weft.fully_shard)
    train(source, steps=1)
    dcp.save({"model": get_model_state_dict(source)}, checkpoint_id=folder)
    for shard in BOTH.values():
        fresh = shard_all(make_llama(seed=8).double(), shard)
        train(fresh, steps=1)
        state = {"model": get_model_state_dict(fresh)}
        dcp.load(state, checkpoint_id=folder)
        set_model_state_dict(fresh, state["model"])
        expect_same_state(fresh, source, exact=True)
        assert whole(fresh.lm_head.weight).dtype == torch.float64


@case
def meta_models_get_their_memory_later() -> None:
    with torch.device("meta"):
        model = Llama()
    shard_all(model, weft.fully_shard)
    with expect_error(RuntimeError, "to_empty"):
        loss_of(model, tokens_of(0))
    with torch.device("meta"):
        model = Llama()
    shard_all(model, weft.fully_shard)
    model.to_empty(device="cpu")
    model.load_state_dict(shard_all(make_llama(), torch_fully_shard).state_dict())
    expect_same_state(model, make_llama(), exact=True)
    train(model, steps=2)
    other = shard_all(make_llama(), weft.fully_shard)
    train(other, steps=2)
    expect_same_state(model, other, exact=True)


@case
def gradients_outlive_their_step() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    loss_of(model, tokens_of(0)).backward()
    held = model.lm_head.weight.grad
    copy_of = held.to_local().clone()
    model.zero_grad()
    for step in range(3):
        loss_of(model, tokens_of(step + 1)).backward()
        model.zero_grad()
    assert torch.equal(held.to_local(), copy_of)


# Failures.


@contextlib.contextmanager
def expect_error(kind: type[Exception], text: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert text in str(error), f"{text!r} is not in {error}"
    else:
        raise AssertionError(f"no {kind.__name__}")


@case
def refuses_what_it_cannot_do() -> None:
    with expect_error(ValueError, "model.float()"):
        weft.fully_shard(make_llama().to(torch.bfloat16))
    mixed = make_llama()
    mixed.norm.double()
    mixed = weft.fully_shard(mixed)
    with expect_error(ValueError, "'embed_tokens.weight' is torch.float32 and 'norm.weight' is torch.float64: convert one"):
        mixed(tokens_of(0))
    with expect_error(ValueError, "sharded already"):
        weft.fully_shard(weft.fully_shard(make_llama()))
    with expect_error(ValueError, "with a forward"):
        weft.fully_shard(make_llama().layers)
    with expect_error(ValueError, "empty list of modules"):
        weft.fully_shard([])
    with expect_error(ValueError, "torch's fully_shard"):
        weft.fully_shard(torch_fully_shard(make_llama()))
    from torch.distributed.fsdp import CPUOffloadPolicy

    with expect_error(ValueError, "offload"):
        weft.fully_shard(make_llama(), offload_policy=CPUOffloadPolicy())
    with expect_error(AssertionError, "state_dict"):
        copy.deepcopy(weft.fully_shard(make_llama()))
    model = weft.fully_shard(make_llama())
    for setter in (model.set_custom_all_gather, model.set_custom_reduce_scatter):
        with expect_error(NotImplementedError, "backend 'weft'"):
            setter(None)
    with expect_error(NotImplementedError, "remove the call"):
        model.set_symm_mem_for_comm()
    with expect_error(NotImplementedError, "weft.FSDPModule"):
        model._get_fsdp_state()
    with expect_error(ValueError, "leave it out"):
        model.set_all_reduce_hook(print, stream=1)
    with expect_error(ValueError, "must be positive"):
        model.set_reduce_scatter_max_input_buffers(0)
    with expect_error(TypeError, "must be an int"):
        model.set_reduce_scatter_max_input_buffers(True)
    with expect_error(ValueError, "whose forward has run"):
        weft.reset(weft.fully_shard(make_llama()))


class Failing(Exception):
    pass


@case
def recovers_from_exceptions() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    other = shard_all(make_llama(), weft.fully_shard)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]
    train(model, steps=1, optimizer=optimizers[0])
    last = dist.get_world_size() - 1

    def fail(*_: object) -> None:
        if dist.get_rank() == last:
            raise Failing("on purpose")

    for place in ("forward", "backward"):
        if place == "forward":
            handle = model.layers[1].mlp.register_forward_hook(fail)
        else:
            handle = model.layers[1].mlp.register_full_backward_hook(fail)
        try:
            loss_of(model, tokens_of(7)).backward()
        except Failing:
            assert dist.get_rank() == last
        except RuntimeError as error:
            assert dist.get_rank() != last, error
        else:
            assert dist.get_rank() != last
        handle.remove()
        weft.reset(model)
        train(model, steps=1, optimizer=optimizers[0])
    for _ in range(3):
        train(other, steps=1, optimizer=optimizers[1])
    expect_same_state(model, other, exact=True)


@case
def forwards_after_a_failed_one_raise_until_a_reset() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    train(model, steps=1)
    handle = model.layers[1].mlp.register_forward_hook(raise_failing)
    with contextlib.suppress(RuntimeError), expect_error(Failing, ""):
        model(tokens_of(7))
    handle.remove()
    for _ in range(3):
        with expect_error(RuntimeError, "call weft.reset(model) on all ranks"):
            model(tokens_of(7))
    weft.reset(model)
    train(model, steps=1)


@case
def tells_peers_of_an_exception_in_backward() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    train(model, steps=1)
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    store = dist.PrefixStore(f"told-{last}", dist.distributed_c10d._get_default_store())

    def fail(*_: object) -> None:
        if rank == last:
            raise Failing("on purpose")

    handle = model.layers[1].mlp.register_full_backward_hook(fail)
    if rank == last:
        with expect_error(Failing, "on purpose"):
            loss_of(model, tokens_of(7)).backward()
        if last > 0:  # The peers have their errors before this rank does anything else.
            store.wait([str(peer) for peer in range(last)], timedelta(seconds=20))
    else:
        with expect_error(RuntimeError, f"rank {last}: exception in the backward of"):
            loss_of(model, tokens_of(7)).backward()
        store.set(str(rank), "yes")
    handle.remove()
    weft.reset(model)
    train(model, steps=1)


def interrupted_reset() -> None:
    """A signal ends the reset of rank 1, which waits for rank 0. Afterwards the ranks do not agree."""
    model = shard_all(make_llama(), weft.fully_shard)
    train(model, steps=1)
    if dist.get_rank() == 1:
        before = signal.signal(signal.SIGALRM, raise_failing)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with expect_error(Failing, "interrupted"):
            weft.reset(model)
        signal.signal(signal.SIGALRM, before)
    dist.barrier()


def raise_failing(*_: object) -> None:
    raise Failing("interrupted")


@case
def signals_end_a_wait() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    train(model, steps=1)

    if dist.get_world_size() > 1:
        if dist.get_rank() == 1:  # Waits for rank 0, which does not come.
            before = signal.signal(signal.SIGALRM, raise_failing)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with expect_error(Failing, "interrupted"):
                loss_of(model, tokens_of(0)).backward()
            signal.signal(signal.SIGALRM, before)
        dist.barrier()
        weft.reset(model)
    train(model, steps=1)


@case
def models_go_away() -> None:
    for _ in range(3):
        model = shard_all(make_llama(), weft.fully_shard)
        train(model, steps=1)
        kept = model.lm_head.weight.to_local()
        value = kept.clone()
        del model
        gc.collect()
        assert torch.equal(kept, value)


@case
def compiles_blocks() -> None:
    def inside(shard: Shards, _: str) -> nn.Module:
        model = make_llama()
        for number, layer in enumerate(model.layers):
            model.layers[number] = shard(torch.compile(layer, backend="aot_eager"))
        return shard(model)

    def in_place(shard: Shards, _: str) -> nn.Module:
        model = shard_all(make_llama(), shard)
        for layer in model.layers:
            layer.compile(backend="aot_eager")
        return model

    for make in (inside, in_place):
        torch._dynamo.reset()
        compare(make, exact=False, tolerance=1e-5)


def name_node(nodes: list[str]) -> None:
    """Places the ranks on nodes, for sessions that are made later."""
    os.environ["WEFT_NODE_ID"] = nodes[dist.get_rank()]
