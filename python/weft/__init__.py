"""weft for Python: node memory, collectives from numpy, and PyTorch on weft's engine.

`import weft.torch` registers the c10d backend "weft". This package itself does not import torch.
"""

import atexit

from weft import _core
from weft._core import Group, Operation, Session

__all__ = ["Group", "Operation", "Session"]
__version__ = "0.1.0"

# Threads of the engine must not outlive the interpreter.
atexit.register(_core.close_all)
