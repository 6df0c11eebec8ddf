"""AdamW in one pass over memory, for the shards of weft.fully_shard and for ordinary parameters."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from weft._core import adamw_step_f32, adamw_step_f64

_STEPS = {torch.float32: adamw_step_f32, torch.float64: adamw_step_f64}

_ALIGNMENT = 64  # Bytes of a cache line.


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW with weft's kernel: the same update within rounding, the same state_dict.

    Parameters, gradients and moments are read and written once a step. Parameters are DTensors or tensors in
    float32 or float64 on the CPU, with gradients and moments in the same dtype and placements. `step(gradient_scale=...)`
    multiplies the gradients, for example by a clipping factor.

    Errors: ValueError (an option out of range, or NaN at a step; a gradient_scale that is not finite), RuntimeError (a
    parameter or gradient of another dtype, layout or placement). Nothing has changed then.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ):
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            # Entries of torch.optim.AdamW, so that a state_dict of one fits the other.
            "amsgrad": False,
            "maximize": False,
            "foreach": None,
            "capturable": False,
            "differentiable": False,
            "fused": True,
            "decoupled_weight_decay": True,
        }
        _check_options(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters with options of their own. Errors: ValueError (an option out of range), those of torch.optim.Optimizer."""
        if isinstance(param_group, dict):
            _check_options(self.defaults | param_group)
        super().add_param_group(param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for loaded in self.state.values():
            # Older versions of PyTorch saved a number.
            if "step" in loaded and not isinstance(loaded["step"], Tensor):
                loaded["step"] = torch.tensor(float(loaded["step"]))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None, *, gradient_scale: float = 1.0) -> float | None:
        """Updates the parameters that have gradients. Returns what `closure` returns, which runs first.

        `gradient_scale` multiplies all gradients. Options that were set in `param_groups` may be out of range, but not NaN.
        Errors: those of the class.
        """
        if not math.isfinite(gradient_scale):
            raise ValueError(f"gradient_scale is {gradient_scale}: skip the step if the norm of the gradients is not finite")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        updates = []
        for group in self.param_groups:
            if group["amsgrad"] or group["maximize"]:
                raise RuntimeError("weft.AdamW has neither amsgrad nor maximize: use torch.optim.AdamW")
            _check_numbers(group)
            updates.append((group, [param for param in group["params"] if param.grad is not None]))
        written = [param for _, params in updates for param in params]
        for param in written:
            self._check(param)
        self._create_states([param for param in written if not self.state.get(param)])
        updates = [(group, [self._slice(param) for param in params]) for group, params in updates]
        for group, slices in updates:
            by_step: dict[tuple[int, torch.dtype], list] = {}
            for step, dtype, addresses in slices:
                step += 1
                by_step.setdefault((int(step), dtype), []).append(addresses)
            for (number, dtype), addresses in by_step.items():
                _STEPS[dtype](
                    addresses,
                    lr=float(group["lr"]),
                    beta1=group["betas"][0],
                    beta2=group["betas"][1],
                    eps=group["eps"],
                    weight_decay=group["weight_decay"],
                    step=number,
                    gradient_scale=gradient_scale,
                    threads=torch.get_num_threads(),
                )
        # Autograd then refuses a backward that would need the values from before the step.
        torch.autograd.graph.increment_version([*written, *map(_local, written)])
        return loss

    def _slice(self, param: Tensor) -> tuple[Tensor, torch.dtype, tuple[int, int, int, int, int]]:
        """The step count of a parameter, its dtype, and the addresses that a step reads and writes."""
        state = self.state[param]
        tensors = [_local(t) for t in (param, param.grad, state["exp_avg"], state["exp_avg_sq"])]
        return state["step"], tensors[0].dtype, (*(tensor.data_ptr() for tensor in tensors), tensors[0].numel())

    def _check(self, param: Tensor) -> None:
        """Raises RuntimeError if a step cannot update the parameter with its gradient, and its moments if it has any."""
        state = self.state.get(param) or {}
        wholes = {"gradient": param.grad, **{name: state[name] for name in ("exp_avg", "exp_avg_sq") if state}}
        for name, tensor in wholes.items():
            if _placed(tensor) != _placed(param):
                raise RuntimeError(
                    f"the {name} of a parameter of shape {tuple(param.shape)} with placements {_placements(param)} has "
                    f"{_placements(tensor)}: call redistribute(placements=parameter.placements), or use torch.optim.AdamW"
                )
        tensors = [_local(t) for t in (param, *wholes.values())]
        count, dtype = tensors[0].numel(), tensors[0].dtype
        for tensor in tensors:
            is_alike = tensor.dtype == dtype and tensor.numel() == count
            if dtype not in _STEPS or not is_alike or tensor.device.type != "cpu" or not tensor.is_contiguous():
                raise RuntimeError(
                    f"weft.AdamW updates contiguous tensors on the CPU, all in float32 or all in float64, but one of a {dtype} parameter "
                    f"of shape {tuple(param.shape)} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, "
                    f"strides {tensor.stride()}"
                )

    def _create_states(self, params: list[Tensor]) -> None:
        """Creates the states of parameters that have none, with moments of zero."""
        moments = iter(_zeros_like([_local(param) for param in params for _ in range(2)]))
        for param in params:
            first, second = (_like(param, next(moments)) for _ in range(2))
            self.state[param].update(step=torch.tensor(0.0), exp_avg=first, exp_avg_sq=second)


def _check_options(options: dict[str, Any]) -> None:
    """Raises ValueError if an option is out of range."""
    betas = options["betas"]
    if len(betas) != 2 or not all(0 <= float(beta) < 1 for beta in betas):
        raise ValueError(f"AdamW takes betas of two numbers in [0, 1), but got {betas}")
    for name in ("lr", "eps", "weight_decay"):
        if not float(options[name]) >= 0:  # Also true for NaN.
            raise ValueError(f"AdamW takes {name} >= 0, but got {options[name]}")


def _check_numbers(options: dict[str, Any]) -> None:
    """Raises ValueError if an option is NaN, as one that a scheduler has set: a step would make all weights NaN."""
    for name in ("lr", "betas", "eps", "weight_decay"):
        values = options[name] if name == "betas" else (options[name],)
        if any(math.isnan(value) for value in values):
            raise ValueError(f"AdamW takes numbers, but {name} of a parameter group is {options[name]}: look at what sets it, such as a scheduler")


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _placed(tensor: Tensor) -> tuple[Any, ...] | None:
    """The mesh and the placements of a DTensor."""
    return (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else None


def _placements(tensor: Tensor) -> str:
    return str(tensor.placements) if isinstance(tensor, DTensor) else "none"


def _like(param: Tensor, local: Tensor) -> Tensor:
    return DTensor(local, param._spec, requires_grad=False) if isinstance(param, DTensor) else local


def _zeros_like(likes: list[Tensor]) -> list[Tensor]:
    """Contiguous tensors of zeros, each with a storage of its own, in one mapping.

    They live as long as the model. In malloc's heap they would lie between activations, and fragment the memory that those
    reuse. A mapping can also have huge pages.
    """
    offsets, size = [], 0
    for like in likes:
        offsets.append(size)
        size += -(-like.numel() * like.itemsize // _ALIGNMENT) * _ALIGNMENT
    if size == 0:
        return [torch.zeros(like.shape, dtype=like.dtype) for like in likes]
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # A kernel without huge pages.
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return [_view(mapping, offset, like) for offset, like in zip(offsets, likes, strict=True)]


def _view(mapping: mmap.mmap, offset: int, like: Tensor) -> Tensor:
    if like.numel() == 0:
        return torch.zeros(like.shape, dtype=like.dtype)
    return torch.frombuffer(mapping, dtype=like.dtype, count=like.numel(), offset=offset).view(like.shape)
