"""The private heap, where activations and gradients lie close together."""

import os
import warnings

from weft import _c10d, _core

_VARIABLE = "WEFT_PRIVATE_HEAP"
_SETTINGS = ("on", "off")


def is_heap_wanted() -> bool:
    """Returns whether WEFT_PRIVATE_HEAP is on. Raises ValueError if it is neither on nor off."""
    setting = os.environ.get(_VARIABLE, "on")
    if setting not in _SETTINGS:
        raise ValueError(f"{_VARIABLE} is '{setting}', but must be {' or '.join(_SETTINGS)}")
    return setting == "on"


def use_private_heap() -> None:
    """Makes PyTorch allocate CPU tensors of 64 KiB to 32 MiB in the private heap from now on. Idempotent.

    WEFT_PRIVATE_HEAP=off: no effect. Warns if the heap cannot be made; tensors then stay in malloc's heap.
    """
    if not is_heap_wanted():
        return
    try:
        memory = _core.private_memory()
    except MemoryError as error:
        warnings.warn(f"weft: tensors stay in malloc's heap, which takes more memory: {error}. {_VARIABLE}=off stops this.", stacklevel=2)
        return
    _c10d.use_private_memory(memory)
