"""weft under PyTorch: importing this package registers the c10d backend "weft".

    import torch.distributed as dist
    import weft.torch

    dist.init_process_group("weft")  # Under torchrun. An unmodified script then runs on weft's engine.
"""

import torch
import torch.distributed

from weft._torch_version import BUILT_AGAINST

if torch.__version__.split("+")[0] != BUILT_AGAINST.split("+")[0]:
    raise ImportError(
        f"weft was built against PyTorch {BUILT_AGAINST}, and this is PyTorch {torch.__version__}. Either install that "
        f"version (pip install torch=={BUILT_AGAINST.split('+')[0]}), or build weft against this one, in weft's source "
        "folder: pip install --no-build-isolation ."
    )

from weft.torch._backend import current_session, register_backend  # noqa: E402
from weft.torch._ddp_buckets import place_buckets_in_node_memory  # noqa: E402
from weft.torch._fsdp2_buffers import place_buffers_in_node_memory  # noqa: E402
from weft.torch._monitored_barrier import extend_monitored_barrier  # noqa: E402
from weft.torch._hugging_face import register_name  # noqa: E402
from weft.torch._node_memory import node_memory  # noqa: E402
from weft.torch.optim import AdamW  # noqa: E402
from weft.torch.sharding import (  # noqa: E402
    FSDPModule,
    UnshardHandle,
    clip_grad_norm_,
    extend_conversions,
    extend_zero_grad,
    fully_shard,
    gradient_norm,
    prepare_writes,
    refuse_ddp,
    register_fsdp_forward_method,
    reset,
    write_gradients_directly,
)

register_backend()
place_buffers_in_node_memory()
place_buckets_in_node_memory()
extend_monitored_barrier()
extend_zero_grad()
extend_conversions()
refuse_ddp()
register_name()

__all__ = [
    "AdamW",
    "FSDPModule",
    "UnshardHandle",
    "clip_grad_norm_",
    "current_session",
    "fully_shard",
    "gradient_norm",
    "node_memory",
    "prepare_writes",
    "register_fsdp_forward_method",
    "reset",
    "write_gradients_directly",
]
