"""Training as FSDP2 does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
import weft
from fsdp2_comparison import (
    BOTH,
    Shards,
    compare,
    expect_equal,
    expect_same_gradients,
    expect_same_state,
    loss_of,
    make_llama,
    plain,
    shard_all,
    tokens_of,
    train,
    whole_state,
)
from sharded_support import Cases, expect_error, mesh_2d, whole
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp import register_fsdp_forward_method as torch_register_forward_method
from torch.distributed.tensor import DTensor, Shard

case = Cases()


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
    mesh = mesh_2d()
    if mesh is None:
        return
    compare(lambda shard, _: shard_all(make_llama(), shard, mesh=mesh))


@case
def no_schedule_knob_changes_a_bit() -> None:
    def run(change: Callable[[nn.Module], None] | None = None, skips_gather: bool = False, **options: object) -> list[Tensor]:
        model = make_llama()
        if skips_gather:  # The backward of an embedding reads no parameter.
            weft.fully_shard(model.embed_tokens).set_unshard_in_backward(False)
        shard_all(model, weft.fully_shard, **options)
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
        (lambda model: model.set_reshard_after_forward(False), {}),
        (None, {"skips_gather": True}),
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
    mesh = mesh_2d()
    if mesh is None:
        return

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


def train_scaled(model: nn.Module, scaler: torch.amp.GradScaler) -> list[Tensor]:
    """Trains with a loss scale. In the third step the gradients of rank 0 overflow. Returns losses, norms and scales."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    results = []
    for step in range(6):
        loss = loss_of(model, tokens_of(step)) * (1e6 if step == 2 and dist.get_rank() == 0 else 1)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before = whole_state(model)
        scaler.step(optimizer)
        is_unchanged = all(torch.equal(before[name], value) for name, value in whole_state(model).items())
        assert is_unchanged == (step == 2), f"step {step}: parameters are {'the same' if is_unchanged else 'updated'}"
        scaler.update()
        optimizer.zero_grad()
        results += [loss.detach(), whole(norm), torch.tensor(scaler.get_scale())]
    return results


@case
def trains_in_f16_with_a_grad_scaler() -> None:
    for reduce_dtype in (torch.float16, torch.float32):
        policy = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=reduce_dtype)
        models = {name: shard_all(make_llama(), shard, mp_policy=policy) for name, shard in BOTH.items()}
        ours, theirs = (train_scaled(models[name], torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)) for name in ("weft", "torch"))
        assert [float(scale) for scale in ours[2::3]] == [2.0**exponent for exponent in (10, 11, 10, 10, 11, 11)]
        for number, (left, right) in enumerate(zip(ours, theirs, strict=True)):
            torch.testing.assert_close(left, right, rtol=2e-3, atol=2e-3, equal_nan=True, msg=lambda text, number=number: f"result {number}: {text}")
        expect_same_state(models["weft"], models["torch"], exact=False, tolerance=2e-3)


@case
def accumulates_in_bf16() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

    def before(model: nn.Module, microbatch: int, count: int) -> None:
        model.set_requires_gradient_sync(microbatch + 1 == count)

    compare(lambda shard, _: shard_all(make_llama(), shard, mp_policy=policy), microbatches=2, before=before, exact=False, tolerance=1e-3)


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
    model.layers[0].set_all_reduce_hook(lambda gradient: seen.append((gradient.clone(), gradient.mul_(2))))
    other = shard_all(make_llama(), weft.fully_shard)
    for step in range(3):  # Gradients add up.
        for each in (model, other):
            loss_of(each, tokens_of(step)).backward()
        doubled, once = (m.layers[0].mlp.up_proj.weight.grad for m in (model, other))
        expect_equal(whole(doubled), 2 * whole(once), "gradient", exact=False)
    assert len(seen) == 3
    for before, kept in seen:
        expect_equal(kept, 2 * before, "gradient that the caller has kept", exact=True)


@case
def registers_forward_methods() -> None:
    registers = {"torch": torch_register_forward_method, "weft": weft.register_fsdp_forward_method}
    results = {}
    for name, shard in BOTH.items():
        model = make_llama()
        model.__class__.score = lambda self, tokens: self.lm_head(self.embed_tokens(tokens)).sum()
        shard_all(model, shard)
        registers[name](torch.compile(model) if name == "weft" else model, "score")  # The wrapper stands for the model.
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
