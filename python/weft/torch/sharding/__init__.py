"""Parameters sharded over ranks: `fully_shard` with the interface of FSDP2.

    placement    where a parameter's shards lie: DTensors, meshes, tensors over weft's memory
    arguments    modules and parameters that fully_shard takes
    parameter    one parameter: its sharded and its unsharded form, its gradient
    group        the parameters of one fully_shard call, which are gathered and reduced together
    group_tree   the groups below a root and their names
    root         the groups of a model, the forward and backward under way, and the calls of the schedule
    updates      comparison of the updates that ranks have made
    recovery     reset, after failures
    conversion   Module.to and the like, of sharded modules and of their parts
    zero_grad    zero_grad of modules, which clears the gradients of shards, too
    ddp          refusal of DistributedDataParallel around sharded modules
    containers   tensors in the arguments and results of modules
    hooks        hooks on modules and tensors, which call the root
    norm         norm of the gradients, and clipping
    direct       linear layers that write their weights' gradients into the gradient image
    api          fully_shard, FSDPModule
"""

from weft.torch.sharding.api import (
    FSDPModule,
    UnshardHandle,
    fully_shard,
    prepare_writes,
    register_fsdp_forward_method,
)
from weft.torch.sharding.conversion import extend_conversions
from weft.torch.sharding.ddp import refuse_ddp
from weft.torch.sharding.direct import write_gradients_directly
from weft.torch.sharding.norm import clip_grad_norm_, gradient_norm
from weft.torch.sharding.recovery import reset
from weft.torch.sharding.zero_grad import extend_zero_grad

__all__ = [
    "FSDPModule",
    "UnshardHandle",
    "clip_grad_norm_",
    "extend_conversions",
    "extend_zero_grad",
    "fully_shard",
    "gradient_norm",
    "prepare_writes",
    "refuse_ddp",
    "register_fsdp_forward_method",
    "reset",
    "write_gradients_directly",
]
