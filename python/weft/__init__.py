"""weft for Python: node memory, collectives from numpy, and PyTorch on weft's engine.

`import weft.torch` registers the c10d backend "weft". This package itself does not import torch, unless one of the names
of `weft.torch` is used: `weft.fully_shard`, `weft.context_parallel`, `weft.AdamW` and others.
"""

import atexit
import importlib
from typing import TYPE_CHECKING

from weft import _core
from weft._core import Group, Operation, Session

if TYPE_CHECKING:
    from weft.torch import (
        AdamW,
        FSDPModule,
        UnshardHandle,
        clip_grad_norm_,
        fully_shard,
        gradient_norm,
        prepare_writes,
        register_fsdp_forward_method,
        reset,
        write_gradients_directly,
    )
    from weft.torch.context_parallel import context_parallel, context_parallel_unshard

__all__ = [
    "AdamW",
    "FSDPModule",
    "Group",
    "Operation",
    "Session",
    "UnshardHandle",
    "clip_grad_norm_",
    "context_parallel",
    "context_parallel_unshard",
    "fully_shard",
    "gradient_norm",
    "prepare_writes",
    "register_fsdp_forward_method",
    "reset",
    "write_gradients_directly",
]
__version__ = "0.1.0"

_MODULE_OF = {
    "AdamW": "weft.torch",
    "FSDPModule": "weft.torch",
    "UnshardHandle": "weft.torch",
    "clip_grad_norm_": "weft.torch",
    "context_parallel": "weft.torch.context_parallel",
    "context_parallel_unshard": "weft.torch.context_parallel",
    "fully_shard": "weft.torch",
    "gradient_norm": "weft.torch",
    "prepare_writes": "weft.torch",
    "register_fsdp_forward_method": "weft.torch",
    "reset": "weft.torch",
    "write_gradients_directly": "weft.torch",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'weft' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


# Threads of the engine must not outlive the interpreter.
atexit.register(_core.close_all)
