"""AdamW in one pass over memory, for the shards of weft.fully_shard and for ordinary float32 parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from weft._core import adamw_step


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW with weft's kernel: the same update within rounding, the same state_dict.

    Parameters, gradients and moments are read and written once a step. Parameters are DTensors or tensors in
    float32 on the CPU. `step(gradient_scale=...)` multiplies the gradients, for example by a clipping factor.

    Errors: ValueError (an option out of range), RuntimeError (a parameter or gradient of another dtype or layout;
    then nothing has changed).
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ):
        if float(lr) < 0 or eps < 0 or weight_decay < 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"AdamW takes lr, eps, weight_decay >= 0 and betas in [0, 1), but got {lr}, {eps}, {weight_decay}, {betas}")
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
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None, *, gradient_scale: float = 1.0) -> float | None:
        """Updates the parameters that have gradients. Returns what `closure` returns, which runs first.

        `gradient_scale` multiplies all gradients. Errors: those of the class.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        updates = []
        for group in self.param_groups:
            if group["amsgrad"] or group["maximize"]:
                raise RuntimeError("weft.AdamW has neither amsgrad nor maximize: use torch.optim.AdamW")
            slices = [self._slice(param) for param in group["params"] if param.grad is not None]
            updates.append((group, slices))
        for group, slices in updates:
            by_step: dict[int, list] = {}
            for step, addresses in slices:
                step += 1
                by_step.setdefault(int(step), []).append(addresses)
            for number, addresses in by_step.items():
                adamw_step(
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
        return loss

    def _slice(self, param: Tensor) -> tuple[Tensor, tuple[int, int, int, int, int]]:
        """The step count of a parameter, and the addresses that a step reads and writes."""
        state = self.state[param]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        tensors = [_local(t) for t in (param, param.grad, state["exp_avg"], state["exp_avg_sq"])]
        count = tensors[0].numel()
        for tensor in tensors:
            if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.numel() != count:
                raise RuntimeError(
                    f"weft.AdamW updates contiguous float32 tensors on the CPU, but one of a parameter of shape {tuple(param.shape)} "
                    f"is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}, strides {tensor.stride()}"
                )
        return state["step"], (*(tensor.data_ptr() for tensor in tensors), count)


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor
