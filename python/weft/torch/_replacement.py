"""Replacement of functions of other packages by functions that call them."""

import functools
from collections.abc import Callable


def replace_once(owner: object, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replaces `name`, a function of a module or a method of a class, by make(original).

    Does nothing after the first call for it, also if another library has wrapped the replacement by functools.wraps since.
    """
    original = getattr(owner, name)
    if hasattr(original, "_weft_replaces"):
        return
    replacement = functools.wraps(original)(make(original))
    replacement._weft_replaces = original
    setattr(owner, name, replacement)
