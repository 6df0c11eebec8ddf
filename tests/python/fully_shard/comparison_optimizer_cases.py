"""Optimizers, clipping, and gradients of direct linears."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import weft
from fsdp2_comparison import (
    BOTH,
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
from sharded_support import Cases, expect_error, whole
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from weft.torch.sharding.direct import DirectEmbedding, DirectLinear

case = Cases()


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
def a_step_that_is_loaded_as_a_number_counts() -> None:
    params = []
    for make in (torch.optim.AdamW, weft.AdamW):
        param = torch.ones(4, requires_grad=True)
        optimizer = make([param], lr=0.1)
        state = {"step": 1, "exp_avg": torch.full((4,), 0.5), "exp_avg_sq": torch.full((4,), 0.25)}
        optimizer.load_state_dict({"state": {0: state}, "param_groups": optimizer.state_dict()["param_groups"]})
        for _ in range(4):
            param.grad = torch.full((4,), 0.1)
            optimizer.step()
        assert optimizer.state_dict()["state"][0]["step"] == 5
        params.append(param.detach())
    expect_equal(params[1], params[0], "parameter", exact=False, tolerance=1e-6)


@case
def a_gradient_of_another_placement_is_an_error() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    param = nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Replicate()]))
    optimizer = weft.AdamW([param], lr=0.1)
    param.grad = DTensor.from_local(torch.ones(4), mesh, [Partial()], run_check=False)
    with expect_error(RuntimeError, "redistribute"):
        optimizer.step()
    assert not optimizer.state
    param.grad = param.grad.redistribute(placements=param.placements)
    optimizer.step()
    assert (param.to_local() < 1).all()


@case
def autograd_sees_that_a_step_has_written_the_parameters() -> None:
    for model in (make_llama(), shard_all(make_llama(), weft.fully_shard)):
        optimizer = weft.AdamW(model.parameters(), lr=1e-2)
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        loss = sum(param.square().sum() for param in model.parameters())
        optimizer.step()
        with expect_error(RuntimeError, "modified by an inplace operation"):
            loss.backward()


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
def norms_name_what_they_take_instead() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    for norm_of in (weft.gradient_norm, weft.clip_grad_norm_):
        with expect_error(ValueError, "model is a generator, but must be a model sharded by weft.fully_shard: give the model itself"):
            norm_of(model.parameters(), 1.0)
        with expect_error(ValueError, "call this after a backward"):
            norm_of(model, 1.0)
    loss_of(model, tokens_of(0)).backward()
    for norm_of in (weft.gradient_norm, weft.clip_grad_norm_):
        for limit, name in ((float("nan"), "nan"), (-1.0, "-1")):
            with expect_error(ValueError, f"max_norm is {name}: give the largest norm"):
                norm_of(model, limit)
    with expect_error(ValueError, "below the root of a sharded model: give the root"):
        weft.gradient_norm(model.layers[0])


@case
def clips_on_ranks_that_own_nothing() -> None:
    """One rank has all rows of the weight."""
    model = weft.fully_shard(nn.Linear(8, 1, bias=False))
    model(torch.ones(2, 8)).sum().backward()
    norm = weft.clip_grad_norm_(model, 0.01)
    expect_equal(norm, torch.full((8,), 2.0).norm(), "norm", exact=False, tolerance=1e-6)
    expect_equal(whole(model.weight.grad).norm(), torch.tensor(0.01), "clipped", exact=False, tolerance=1e-4)


@case
def norms_count_gradients_from_elsewhere() -> None:
    """A penalty gives a gradient to a parameter that the model does not use, and the caller replaces another."""

    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = weft.fully_shard(Unused())
    loss = model(torch.ones(2, 4)).sum()
    model.reshard()
    (loss + model.unused.weight.square().sum().full_tensor()).backward()
    assert model.unused.weight.grad is not None
    reduced = model.used.weight.grad
    before = whole(reduced)
    model.used.weight.grad = 3 * reduced
    norms = [weft.gradient_norm(model)[0], weft.clip_grad_norm_(model, 1e9), whole(nn.utils.clip_grad_norm_(model.parameters(), 0.1))]
    for norm in norms[:2]:
        expect_equal(norm, norms[2], "norm", exact=False, tolerance=1e-5)
    assert torch.equal(whole(reduced), before)
    expect_equal(weft.clip_grad_norm_(model, 0.01), torch.tensor(0.1), "norm", exact=False, tolerance=1e-4)
    expect_equal(weft.gradient_norm(model)[0], torch.tensor(0.01), "norm", exact=False, tolerance=1e-4)
    model.unused.weight.grad = DTensor.from_local(torch.ones(4, 4), reduced.device_mesh, [Partial()], run_check=False)
    with expect_error(RuntimeError, "'unused.weight'"):
        weft.gradient_norm(model)


@case
def clips_without_the_gradients_of_a_group() -> None:
    model = shard_all(make_llama(), weft.fully_shard)
    loss_of(model, tokens_of(0)).backward()
    for param in model.layers[1].parameters():
        param.grad = None
    rest = [whole(param.grad) for param in model.parameters() if param.grad is not None]
    norm = weft.clip_grad_norm_(model, 0.1)
    expect_equal(norm, torch.stack([gradient.norm() for gradient in rest]).norm(), "norm", exact=False, tolerance=1e-5)
    for param, before in zip((p for p in model.parameters() if p.grad is not None), rest, strict=True):
        expect_equal(whole(param.grad), before * (0.1 / (norm + 1e-6)), "clipped", exact=False, tolerance=1e-5)
    model.zero_grad()
    assert weft.clip_grad_norm_(model, 0.1) == 0
    loss_of(model, tokens_of(1)).backward()
    assert weft.clip_grad_norm_(model, 0.1) > 0


@case
def a_factor_clips_in_the_update() -> None:
    for max_norm in (0.3, 0.0):
        expect_the_same_update(max_norm)


def expect_the_same_update(max_norm: float) -> None:
    """Of a factor that AdamW applies, and of gradients that were clipped before."""
    states = []
    for clips_in_update in (False, True):
        model = shard_all(make_llama(), weft.fully_shard)
        optimizer = weft.AdamW(model.parameters(), lr=1e-2)
        norms = []
        for step in range(2):
            loss_of(model, tokens_of(step)).backward()
            if clips_in_update:
                norm, factor = weft.gradient_norm(torch.compile(model), max_norm)  # The wrapper of torch.compile stands for the model.
                assert factor < 1
                optimizer.step(gradient_scale=factor)
            else:
                norm = weft.clip_grad_norm_(model, max_norm)
                optimizer.step()
            norms.append(norm)
            optimizer.zero_grad()
        states.append(norms + list(whole_state(model).values()))
    for in_update, before in zip(*states, strict=True):
        expect_equal(in_update, before, "clipped", exact=True)


@case
def norms_take_compiled_modules_that_are_sharded() -> None:
    with torch.compiler.set_stance("force_eager"):
        model = weft.fully_shard(torch.compile(nn.Linear(4, 4)))
        model(torch.ones(2, 4)).sum().backward()
    theirs = whole(nn.utils.get_total_norm([param.grad for param in model.parameters()]))
    expect_equal(weft.gradient_norm(model)[0], theirs, "norm", exact=False)


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
def an_optimizer_of_unsharded_parameters_is_an_error() -> None:
    for make in (torch.optim.SGD, weft.AdamW):
        model = shard_all(make_llama(), weft.fully_shard)
        loss = loss_of(model, tokens_of(0))
        optimizer = make(model.parameters(), lr=0.1)
        loss.backward()
        with expect_error(RuntimeError, "the unsharded parameter 'embed_tokens.weight'"):
            optimizer.step()
        expect_same_state(model, make_llama(), exact=True)
        make(model.parameters(), lr=0.1).step()
        assert not torch.equal(whole(model.lm_head.weight), make_llama().lm_head.weight)


@case
def an_optimizer_may_have_unsharded_parameters_that_are_frozen() -> None:
    """As those of a root around the layers that are trained."""
    for make in (torch.optim.SGD, weft.AdamW):
        model = make_llama().requires_grad_(False)
        model.layers.requires_grad_(True)
        shard_all(model, weft.fully_shard)
        loss = loss_of(model, tokens_of(0))
        optimizer = make(model.parameters(), lr=0.1)
        loss.backward()
        optimizer.step()
        changed = [name for name, value in make_llama().named_parameters() if not torch.equal(whole(model.get_parameter(name)), value)]
        assert changed and all(name.startswith("layers.") for name in changed), changed


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


@case
def direct_linears_may_be_followed_by_changes_in_place() -> None:
    """Of an input with three dims, whose product is a view of rows. Also in a backward that makes a graph."""
    for create_graph in (False, True):
        models = []
        for direct in (False, True):
            torch.manual_seed(3)
            model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8, bias=False), nn.ReLU(inplace=True))
            if direct:
                weft.write_gradients_directly(model)
            weft.fully_shard(model)
            model(torch.ones(2, 3, 8)).square().sum().backward(create_graph=create_graph)
            models.append(model)
        expect_same_gradients(models[1], models[0], exact=False)


@case
def a_step_prepares_models_in_the_order_of_their_first_forwards() -> None:
    """It is collective, so all ranks must have one order."""
    models = [weft.fully_shard(nn.Linear(4, 4)) for _ in range(12)]
    prepared = []
    for number, model in enumerate(models):
        model(torch.ones(2, 4)).sum().backward()
        root = model._weft_group.root

        def prepare(original: Callable = root.prepare_writes, number: int = number) -> None:
            prepared.append(number)
            original()

        root.prepare_writes = prepare
    torch.optim.SGD([param for model in models for param in model.parameters()], lr=0.1).step()
    assert prepared == list(range(12)), prepared
