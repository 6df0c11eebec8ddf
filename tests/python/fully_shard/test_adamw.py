"""Options of weft.AdamW: where torch.optim.AdamW refuses one, and where a step would make all weights NaN."""

import pytest
import torch
from torch import nn

import weft

NAN = float("nan")
WRONG = [
    ("lr", -1.0),
    ("lr", NAN),
    ("lr", torch.tensor(NAN)),
    ("betas", (0.9,)),
    ("betas", (0.9, 0.99, 0.999)),
    ("betas", (1.0, 0.9)),
    ("betas", (0.9, NAN)),
    ("eps", -1.0),
    ("eps", NAN),
    ("weight_decay", -1.0),
    ("weight_decay", NAN),
]


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("name, value", WRONG, ids=str)
def test_wrong_options_are_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"AdamW takes {name} .* but got"):
        weft.AdamW([parameter()], **{name: value})
    with pytest.raises(ValueError, match=f"AdamW takes {name} .* but got"):
        weft.AdamW([{"params": [parameter()], name: value}])
    optimizer = weft.AdamW([parameter()])
    with pytest.raises(ValueError, match=f"AdamW takes {name} .* but got"):
        optimizer.add_param_group({"params": [parameter()], name: value})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("name, value", [("lr", NAN), ("lr", torch.tensor(NAN)), ("betas", (NAN, 0.9)), ("eps", NAN), ("weight_decay", NAN)], ids=str)
def test_a_step_with_a_nan_option_changes_nothing(name: str, value: object) -> None:
    first, second = parameter(), parameter()
    optimizer = weft.AdamW([{"params": [first]}, {"params": [second]}])
    for param in (first, second):
        param.grad = torch.ones(3)
    optimizer.param_groups[1][name] = value
    with pytest.raises(ValueError, match=f"but {name} of a parameter group is"):
        optimizer.step()
    assert first.tolist() == second.tolist() == [1.0] * 3
    assert not optimizer.state


def test_a_learning_rate_that_a_scheduler_makes_nan_is_named() -> None:
    param = parameter()
    optimizer = weft.AdamW([param])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: NAN if step == 1 else 1.0)
    param.grad = torch.ones(3)
    optimizer.step()
    scheduler.step()
    with pytest.raises(ValueError, match="lr of a parameter group is nan: look at what sets it, such as a scheduler"):
        optimizer.step()


@pytest.mark.parametrize("scale", [NAN, float("inf")])
def test_refuses_a_gradient_scale_that_is_not_finite(scale: float) -> None:
    param = parameter()
    before = param.detach().clone()
    param.grad = torch.ones_like(param)
    with pytest.raises(ValueError, match="gradient_scale is .*: skip the step"):
        weft.AdamW([param]).step(gradient_scale=scale)
    assert torch.equal(param.detach(), before)
