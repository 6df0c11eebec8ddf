"""State dicts, checkpoints and memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import weft
from fsdp2_comparison import BOTH, Llama, expect_equal, expect_same_state, loss_of, make_llama, shard_all, tokens_of, train, whole_state
from sharded_support import Cases, expect_error, whole
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard as torch_fully_shard
from torch.distributed.tensor import DTensor

case = Cases()


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
def a_refused_conversion_changes_nothing() -> None:
    models = [shard_all(make_llama(), weft.fully_shard) for _ in range(2)]
    model = models[0]
    for each in models:
        train(each, steps=1)
    loss_of(model, tokens_of(0)).backward()
    gradient = model.lm_head.weight.grad
    with expect_error(ValueError, "after the first forward, but its master is torch.float32"):
        model.half()
    with expect_error(RuntimeError, "is on the meta device"):
        model.to("meta")
    expect_same_state(model, models[1], exact=True)
    assert model.lm_head.weight.grad is gradient and gradient.dtype == torch.float32
    with torch.device("meta"):
        model.float()  # Is none to that device.
    model.zero_grad()
    for each in models:
        train(each, steps=1)
    expect_same_state(model, models[1], exact=True)


@case
def a_refused_load_changes_nothing_in_the_group_that_refuses_it() -> None:
    model, other = (weft.fully_shard(make_llama()) for _ in range(2))
    for each in (model, other):
        train(each, steps=1)
    halves = {name: value.half() for name, value in model.state_dict().items()}
    with expect_error(ValueError, "after the first forward, but its master is torch.float32"):
        model.load_state_dict(halves, assign=True)
    expect_same_state(model, other, exact=True)
    for each in (model, other):
        train(each, steps=1)
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


@case
def shards_may_be_written_once_no_rank_reads_them() -> None:
    """After a forward with gradients that gets no backward."""
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    for name, model in models.items():
        for step in range(3):
            loss_of(model, tokens_of(step))
            if name == "weft":
                weft.prepare_writes(model)
            model.reshard()
            with torch.no_grad():
                for param in model.parameters():
                    param.to_local().mul_(0.5)
    expect_same_state(models["weft"], models["torch"], exact=True)
    with torch.no_grad():
        losses = {name: loss_of(model, tokens_of(0)) for name, model in models.items()}
    expect_equal(losses["weft"], losses["torch"], "loss")


@case
def an_assignment_changes_no_weights_that_others_hold() -> None:
    """Those of an earlier state_dict and of the parameters that it replaces."""
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    for model in models.values():
        train(model, steps=1)
        own, held = model.state_dict(), dict(model.named_parameters())
        before = {name: whole(value) for name, value in own.items()}
        model.load_state_dict({name: value + 1 for name, value in own.items()}, assign=True)
        for name, value in before.items():
            for kept in (own[name], held[name]):
                expect_equal(whole(kept), value, name, exact=True)
            expect_equal(whole(model.get_parameter(name)), value + 1, name, exact=True)
        with torch.no_grad():
            loss_of(model, tokens_of(0))
        model.load_state_dict(own, assign=True)
        train(model, steps=1)
    expect_same_state(models["weft"], models["torch"])


@case
def an_optimizer_from_before_an_assignment_is_an_error() -> None:
    """It would train nothing, until its parameters are assigned again."""
    for is_used in (False, True):
        model = shard_all(make_llama(), weft.fully_shard)
        if is_used:
            train(model, steps=1)
        held = dict(model.named_parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()}, assign=True)
        loss_of(model, tokens_of(0)).backward()
        expected = whole_state(model)
        for param in (None, held["norm.weight"]):
            if param is not None:
                param.grad = torch.ones_like(param)
            with expect_error(RuntimeError, "from before load_state_dict(assign=True), which replaced"):
                optimizer.step()
        for name, value in whole_state(model).items():
            expect_equal(value, expected[name], name, exact=True)
        train(model, steps=1)
        model.load_state_dict(held, assign=True)
        train(model, steps=1, optimizer=optimizer)


@case
def a_later_name_of_a_tied_parameter_may_be_assigned() -> None:
    for is_used in (False, True):
        model = make_llama()
        model.lm_head.weight = model.embed_tokens.weight
        shard_all(model, weft.fully_shard)
        if is_used:
            train(model, steps=1)
        value = model.state_dict()["lm_head.weight"] + 1
        model.load_state_dict({"lm_head.weight": value}, assign=True, strict=False)
        assert model.lm_head.weight is model.embed_tokens.weight
        expect_equal(whole(model.lm_head.weight), whole(value), "weight", exact=True)
        train(model, steps=1)


def convolutions() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), nn.Flatten(), nn.Linear(144, 2))


@case
def a_part_may_be_converted_between_steps() -> None:
    """With its sharded parameters, and with the whole ones that the root keeps after a forward."""
    model, other = weft.fully_shard(convolutions()), weft.fully_shard(convolutions())
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, other)]
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
    for step in range(4):
        if step >= 2:
            for each in (model, other):
                each(x)
        model[0][0].to(memory_format=torch.channels_last)
        for each, optimizer in zip((model, other), optimizers, strict=True):
            for _ in range(2):
                each(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        expect_same_state(model, other, exact=True)
        expect_equal(model(x), other(x), "output", exact=True)


@case
def a_refused_conversion_of_a_part_changes_nothing() -> None:
    model, other = shard_all(make_llama(), weft.fully_shard), shard_all(make_llama(), weft.fully_shard)
    for each in (model, other):
        train(each, steps=1)
    for part in (model.norm, model.layers, model.layers[0].mlp):
        with expect_error(ValueError, "after the first forward, but its master is torch.float32"):
            part.half()
        with expect_error(RuntimeError, "is on the meta device"):
            part.to("meta")
        expect_same_state(model, other, exact=True)
    for each in (model, other):
        train(each, steps=1)
    expect_same_state(model, other, exact=True)
