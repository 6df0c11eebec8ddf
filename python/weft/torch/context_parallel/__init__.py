"""Context parallelism for PyTorch on CPU: sequences over several ranks.

Read `scope.py` first, then `layouts/sequence_layout.py` and `layouts/context_scheme.py`. docs/torch_context_parallel.md has
examples.
"""

from weft.torch.context_parallel.layouts.byte_formulas import AttentionShape, ContextCosts, costs_of
from weft.torch.context_parallel.layouts.choose_scheme import SchemeChoice, choose_among
from weft.torch.context_parallel.layouts.context_scheme import ContextScheme
from weft.torch.context_parallel.layouts.sequence_layout import SequenceLayout
from weft.torch.context_parallel.scope import ContextParallelScope, context_parallel, context_parallel_unshard

__all__ = [
    "AttentionShape",
    "ContextCosts",
    "ContextParallelScope",
    "ContextScheme",
    "SchemeChoice",
    "SequenceLayout",
    "choose_among",
    "context_parallel",
    "context_parallel_unshard",
    "costs_of",
]
