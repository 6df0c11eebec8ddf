"""weft for Python: node memory, collectives from numpy, and PyTorch on weft's engine.

`import weft.torch` registers the c10d backend "weft". This package itself does not import torch, unless one of the names
of `weft.torch` is used: `weft.fully_shard`, `weft.AdamW` and others.
"""

import atexit
import importlib

from weft import _core
from weft._core import Group, Operation, Session

__all__ = ["Group", "Operation", "Session"]
__version__ = "0.1.0"

_OF_TORCH = {
    "AdamW",
    "FSDPModule",
    "UnshardHandle",
    "clip_grad_norm_",
    "fully_shard",
    "register_fsdp_forward_method",
    "reset",
    "write_gradients_directly",
}


def __getattr__(name: str) -> object:
    if name not in _OF_TORCH:
        raise AttributeError(f"module 'weft' has no attribute '{name}'")
    return getattr(importlib.import_module("weft.torch"), name)


# Threads of the engine must not outlive the interpreter.
atexit.register(_core.close_all)
