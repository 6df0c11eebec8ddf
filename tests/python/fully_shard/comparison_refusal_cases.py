"""Arguments and calls that weft.fully_shard refuses, with the remedy."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import pickle
import weakref

import torch
import torch.distributed as dist
import weft
from fsdp2_comparison import expect_same_state, loss_of, make_llama, shard_all, tokens_of
from sharded_support import Cases, expect_error
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, DataParallelMeshDims
from torch.distributed.fsdp import fully_shard as torch_fully_shard

case = Cases()


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
    with expect_error(ValueError, "leave offload_policy out"):
        weft.fully_shard(make_llama(), offload_policy=CPUOffloadPolicy())
    for policy in (None, torch.bfloat16):
        with expect_error(TypeError, f"mp_policy must be a MixedPrecisionPolicy, but is {policy}"):
            weft.fully_shard(make_llama(), mp_policy=policy)
    with expect_error(AssertionError, "state_dict"):
        copy.deepcopy(weft.fully_shard(make_llama()))
    for save in (pickle.dumps, lambda module: torch.save(module, io.BytesIO())):
        with expect_error(pickle.PicklingError, "cannot be pickled: save its state_dict"):
            save(weft.fully_shard(make_llama()))
    layers = weft.fully_shard(nn.Sequential(nn.Linear(4, 4)))
    assert copy.copy(layers)[0] is layers[0]
    for _ in range(2):
        with expect_error(AssertionError, "a part of a sharded module cannot be copied: save the module's state_dict"):
            copy.deepcopy(layers[0])
        for save in (pickle.dumps, lambda module: torch.save(module, io.BytesIO())):
            with expect_error(pickle.PicklingError, "a part of a sharded module cannot be pickled: save the module's state_dict"):
                save(layers[0])
        layers(torch.ones(1, 4))  # They then have their whole parameters.
    model = weft.fully_shard(make_llama())
    with expect_error(NotImplementedError, "remove the call"):
        model.set_symm_mem_for_comm()
    with expect_error(NotImplementedError, "weft.FSDPModule"):
        model._get_fsdp_state()
    for factor in (0.0, -1.0, float("inf"), float("nan")):
        with expect_error(ValueError, f"must be positive and finite, but is {factor}"):
            model.set_gradient_divide_factor(factor)
    with expect_error(ValueError, "leave it out"):
        model.set_all_reduce_hook(print, stream=1)
    with expect_error(ValueError, "must be positive"):
        model.set_reduce_scatter_max_input_buffers(0)
    with expect_error(TypeError, "must be an int"):
        model.set_reduce_scatter_max_input_buffers(True)
    with expect_error(ValueError, "whose forward has run"):
        weft.prepare_writes(weft.fully_shard(make_llama()))
    for collective in (weft.reset, weft.prepare_writes):
        with expect_error(ValueError, "not a Llama without sharded modules"):
            collective(make_llama())
    for kind in (nn.Embedding, nn.EmbeddingBag):
        embedding = kind(20, 4, max_norm=1.0)
        with expect_error(ValueError, f"the {kind.__name__} of '0.weight' has max_norm=1.0"):
            weft.fully_shard(nn.Sequential(embedding))
        weft.fully_shard(nn.Sequential(embedding), ignored_params={embedding.weight})
    with expect_error(ValueError, "give it the submesh"):
        weft.fully_shard(make_llama(), dp_mesh_dims=DataParallelMeshDims(shard="shard"))


@case
def an_optimizer_of_parameters_from_before_fully_shard_is_an_error() -> None:
    """It would train nothing. One of whole parameters beside the sharded ones, or of frozen ones, is right."""
    for make in (torch.optim.SGD, torch.optim.AdamW, weft.AdamW):
        model = make_llama()
        optimizer = make(model.parameters(), lr=0.1)
        shard_all(model, weft.fully_shard)
        loss_of(model, tokens_of(0)).backward()
        for step in (optimizer.step, lambda: optimizer.step(lambda: 0.0)):
            with expect_error(RuntimeError, "the parameter 'embed_tokens.weight' of 'Llama' from before fully_shard"):
                step()
        expect_same_state(model, make_llama(), exact=True)
        make(model.parameters(), lr=0.1).step()
        layers, head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)
        optimizer = make([*layers.parameters(), *head.parameters()], lr=0.1)
        weft.fully_shard(layers)
        head(layers(torch.ones(1, 4))).sum().backward()
        optimizer.step()


@case
def replaced_parameters_are_freed() -> None:
    model = make_llama()
    replaced = [weakref.ref(param) for param in model.parameters()]
    shard_all(model, weft.fully_shard)
    gc.collect()
    assert not any(param() is not None for param in replaced)


@case
def refuses_ddp_around_sharded_modules() -> None:
    for gathers in (False, True):
        model = shard_all(make_llama(), weft.fully_shard)
        if gathers:
            model.unshard()
        owner = "FSDPLlama" if gathers else "Llama"
        for wrapped, prefix in ((model, ""), (nn.Sequential(model), "0.")):
            with expect_error(ValueError, f"'{prefix}embed_tokens.weight', which weft.fully_shard has sharded in '{owner}'"):
                nn.parallel.DistributedDataParallel(wrapped)


@case
def takes_ddp_beside_sharded_modules() -> None:
    """Those that it is told to ignore, and other models."""
    sharded = weft.fully_shard(nn.Linear(4, 4))
    model = nn.Sequential(sharded, nn.Linear(4, 4))
    model._ddp_params_and_buffers_to_ignore = ["0.weight", "0.bias"]
    wrapped = nn.parallel.DistributedDataParallel(module=model)
    wrapped(torch.ones(1, 4)).sum().backward()
    assert model[1].weight.grad is not None and sharded.weight.grad is not None


@case
def refuses_a_module_inside_one_that_is_sharded() -> None:
    """Before the first forward, and while the outer module has its unsharded parameters."""
    for gathers in (True, False):
        model = weft.fully_shard(make_llama())
        if gathers:
            model.unshard()
        owner = "FSDPLlama" if gathers else "Llama"
        with expect_error(ValueError, f"'input_layernorm.weight' of 'Block' belongs to '{owner}', which is sharded already: call fully_shard for inner"):
            weft.fully_shard(model.layers[0])


@case
def a_parameter_that_is_removed_after_fully_shard_is_an_error() -> None:
    """Before the first forward, and while the model has its sharded or its whole parameters. It does not come back."""
    for is_used, is_read, sets_none in itertools.product((False, True), repeat=3):
        model = weft.fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
        state = {name: value.clone() for name, value in model.state_dict().items()}
        if is_used:
            model(torch.ones(1, 4))
        if is_read:
            model.state_dict()
        if sets_none:
            model[1].bias = None
        else:
            del model[1].bias
        for use in (lambda: model.load_state_dict(state), lambda: model(torch.ones(1, 4)), lambda: model.load_state_dict(state)):
            with expect_error(RuntimeError, "was removed, but weft gathers and trains it"):
                use()
            assert "1.bias" not in model.state_dict()
        dist.barrier()  # A reset stops ranks that have not come as far.
        weft.reset(model)


@case
def a_part_of_two_roots_names_the_root_that_has_it() -> None:
    shared = weft.fully_shard(nn.Linear(4, 4))
    first, second = (weft.fully_shard(nn.Sequential(nn.Linear(4, 4), shared)) for _ in range(2))
    first(torch.ones(1, 4))
    with expect_error((RuntimeError, ValueError), "'1' belongs to the root 'FSDPSequential', whose forward ran first: two"):
        second(torch.ones(1, 4))
    alone = weft.fully_shard(nn.Linear(4, 4))
    around = weft.fully_shard(nn.Sequential(nn.Linear(4, 4), alone))
    alone(torch.ones(1, 4))
    with expect_error((RuntimeError, ValueError), "'FSDPLinear' is a root already, because its forward ran first: run the"):
        around(torch.ones(1, 4))
