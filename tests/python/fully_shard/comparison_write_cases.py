"""Writes of shards between forward and backward. A backward through old activations and new weights is an error."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import weft
from fsdp2_comparison import BOTH, expect_equal, expect_same_gradients, loss_of, make_llama, shard_all, tokens_of, train, whole_state
from sharded_support import Cases, expect_error, whole
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Shard

case = Cases()


def whole_model() -> nn.Module:
    """A model of one group."""
    return weft.fully_shard(make_llama())


def layered_model() -> nn.Module:
    return shard_all(make_llama(), weft.fully_shard)


def writes_of(model: nn.Module) -> list[Callable[[], object]]:
    """Ways to write the shards of a model whose forward has not run."""

    def load() -> None:
        model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})

    return [torch.optim.SGD(model.parameters(), lr=0.1).step, load]


def expect_no_backward(model: nn.Module, loss: Tensor) -> None:
    """The backward fails, and the model can be trained after a reset."""
    dist.barrier()  # A rank that fails stops those that have not come as far.
    with expect_error(RuntimeError, "after its shards were written"):
        loss.backward()
    dist.barrier()
    weft.reset(model)
    train(model, steps=1)
    dist.barrier()


def in_every_way(body: Callable[[nn.Module, Callable[[], object]], None]) -> None:
    for make in (whole_model, layered_model):
        for number in range(2):
            model = make()
            body(model, writes_of(model)[number])


@case
def a_second_backward_after_a_write_is_an_error() -> None:
    def body(model: nn.Module, write: Callable[[], object]) -> None:
        loss = loss_of(model, tokens_of(0))
        loss.backward(retain_graph=True)
        write()
        expect_no_backward(model, loss)

    in_every_way(body)


@case
def the_backward_of_another_forward_after_a_write_is_an_error() -> None:
    def body(model: nn.Module, write: Callable[[], object]) -> None:
        first, second = (loss_of(model, tokens_of(step)) for step in range(2))
        first.backward()
        write()
        expect_no_backward(model, second)

    in_every_way(body)


@case
def a_backward_after_an_evaluation_and_a_write_is_an_error() -> None:
    def body(model: nn.Module, write: Callable[[], object]) -> None:
        loss_of(model, tokens_of(0)).backward()  # A step needs gradients.
        loss = loss_of(model, tokens_of(1))
        with torch.no_grad():
            loss_of(model, tokens_of(2))
        write()
        expect_no_backward(model, loss)

    in_every_way(body)


@case
def a_backward_of_forwards_before_and_after_a_write_is_an_error() -> None:
    def body(model: nn.Module, write: Callable[[], object]) -> None:
        for old_is_first in (False, True):
            loss_of(model, tokens_of(0)).backward()
            old = loss_of(model, tokens_of(1))
            write()
            new = loss_of(model, tokens_of(2))
            expect_no_backward(model, old + new if old_is_first else new + old)

    in_every_way(body)


@case
def backwards_before_a_write_are_right() -> None:
    """Twice through one graph, of several forwards, of both in one call, and around an evaluation."""
    models = {name: shard_all(make_llama(), shard) for name, shard in BOTH.items()}
    for model in models.values():
        step_of_model, _ = writes_of(model)
        for step in range(2):
            first, second = (loss_of(model, tokens_of(10 * step + number)) for number in range(2))
            second.backward()
            first.backward(retain_graph=True)
            first.backward()
            waiting = loss_of(model, tokens_of(10 * step + 3))
            with torch.no_grad():
                loss_of(model, tokens_of(10 * step + 4))
            waiting.backward()
            if step == 0:
                step_of_model()
                model.zero_grad()
    expect_same_gradients(models["weft"], models["torch"], exact=False, tolerance=1e-5)


@case
def modules_have_sharded_parameters_after_a_backward_that_keeps_the_gathered_ones() -> None:
    """The gradients of all backwards are clipped, and a second backward reads what the first has kept."""
    norms = []
    for keeps in (False, True):
        model = layered_model()
        model.set_reshard_after_backward(not keeps)
        for step in range(2):
            loss = loss_of(model, tokens_of(step))
            loss.backward(retain_graph=True)
            assert all(isinstance(param, DTensor) and param.grad is not None for param in model.parameters())
            groups = model._weft_group.root.groups
            assert groups.is_unsharded(0) == groups.is_unsharded(1) == keeps
            loss.backward()
            norms.append(whole(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
            norms.append(whole(nn.utils.get_total_norm([param.grad for param in model.parameters()])))
    expect_equal(norms[1], torch.tensor(0.1), "clipped norm", exact=False, tolerance=1e-4)
    for number in range(4):
        expect_equal(norms[4 + number], norms[number], f"norm {number}", exact=True)


@case
def a_write_reshards_what_the_last_backward_kept() -> None:
    for number in range(2):
        model = layered_model()
        write = writes_of(model)[number]
        model.set_reshard_after_backward(False)
        loss_of(model, tokens_of(0)).backward()
        before = whole(model.lm_head.weight)
        write()
        expected = make_llama()
        with torch.no_grad():
            for name, value in whole_state(model).items():
                expected.get_parameter(name).copy_(value)
            assert not torch.equal(before, expected.lm_head.weight)
            expect_equal(loss_of(model, tokens_of(1)), loss_of(expected, tokens_of(1)), "loss")


@case
def a_write_drops_the_parts_of_images_that_backward_did_not_gather() -> None:
    """Those of the embedding, whose backward reads no parameter. They are proper parts on four ranks."""
    if dist.get_world_size() % 2 != 0:
        return

    def losses(keeps: bool) -> list[Tensor]:
        model = make_llama()
        weft.fully_shard(model.embed_tokens, reshard_after_forward=2).set_unshard_in_backward(False)
        shard_all(model, weft.fully_shard, reshard_after_forward=2)
        model.set_reshard_after_backward(not keeps)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        seen = []
        for step in range(3):
            loss = loss_of(model, tokens_of(step))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(loss.detach())
        return seen

    for step, (kept, resharded) in enumerate(zip(losses(True), losses(False), strict=True)):
        expect_equal(kept, resharded, f"loss {step}", exact=True)


class StepsTwice(torch.optim.SGD):
    """Calls its closure twice, and writes the parameters after each call."""

    def step(self, closure: Callable[[], Tensor]) -> Tensor:
        for _ in range(2):
            with torch.enable_grad():
                loss = closure()
            with torch.no_grad():
                for param in self.param_groups[0]["params"]:
                    param.add_(param.grad, alpha=-0.1)
        return loss


@case
def forwards_read_what_a_step_with_a_closure_has_written() -> None:
    """Also if the closure's backward keeps the gathered parameters."""
    on_last_dim = lambda param: Shard(1) if param.ndim == 2 and param.shape[1] % 4 == 0 else None
    shardings = [{}, {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}, {"shard_placement_fn": on_last_dim}]
    optimizers = [lambda params: torch.optim.SGD(params, lr=0.1), lambda params: weft.AdamW(params, lr=1e-2), lambda params: StepsTwice(params)]

    def losses(options: dict, make: Callable, keeps: bool, name: str) -> list[Tensor]:
        model = shard_all(make_llama(dim=36, hidden=48), weft.fully_shard, **options)
        model.set_reshard_after_backward(not keeps)
        optimizer = make(model.parameters())
        seen = []

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, tokens_of(len(seen)))
            loss.backward()
            return loss

        for _ in range(2):
            seen.append(optimizer.step(**{name: closure}) if name else optimizer.step(closure))
            with torch.no_grad():
                seen.append(loss_of(model, tokens_of(9)))
        assert model._weft_group.root.updates == 2
        return seen

    for options in shardings:
        for make in optimizers:
            expected = losses(options, make, False, "")
            for name in ("", "closure"):
                for number, (ours, theirs) in enumerate(zip(losses(options, make, True, name), expected, strict=True)):
                    expect_equal(ours, theirs, f"loss {number}", exact=True)
