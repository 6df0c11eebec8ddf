"""Causal ring attention over contiguous parts as it is usually written: blocks are sent after they were used, and outputs are merged by
their log-sum-exps. Sums over blocks are f32 for every dtype."""

import torch
import torch.distributed as dist
from torch import Tensor

attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def plain_ring(query: Tensor, key: Tensor, value: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Queries, keys and values are those of this rank's part of the sequence, [batch, heads, tokens, head_dim]."""
    return Ring.apply(query, key, value, group)


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, group):
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        out, lse, block = None, None, (key.contiguous(), value.contiguous())
        for step in range(ranks):
            if step <= rank:
                block_out, block_lse = attend(query, *block, is_causal=step == 0)
                block_out, block_lse = block_out.float(), block_lse.unsqueeze(-1)
                if out is None:
                    out, lse = block_out, block_lse
                else:
                    weight = torch.sigmoid(block_lse - lse)
                    out = out - weight * (out - block_out)
                    lse = torch.logaddexp(lse, block_lse)
            if step + 1 < ranks:
                block = rotate(group, *block)
        out, lse = out.to(query.dtype), lse.squeeze(-1)
        ctx.group = group
        ctx.save_for_backward(query, key, value, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        query, key, value, out, lse = ctx.saved_tensors
        rank, ranks = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        block = (key.contiguous(), value.contiguous())
        gradients = [torch.zeros(tensor.shape) for tensor in (query, key, value)]
        for step in range(ranks):
            if step <= rank:
                parts = attend_backward(grad_out, query, *block, out, lse, 0.0, step == 0)
                for gradient, part in zip(gradients, parts, strict=True):
                    gradient += part
            *block, gradients[1], gradients[2] = rotate(ctx.group, *block, *gradients[1:])
        return *(gradient.to(query.dtype) for gradient in gradients), None


def rotate(group: dist.ProcessGroup | None, *tensors: Tensor) -> list[Tensor]:
    """Sends tensors to the next rank, and returns those of the previous one."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    received = [torch.empty_like(tensor) for tensor in tensors]
    works = [dist.isend(tensor, group=group, group_dst=(rank + 1) % ranks) for tensor in tensors]
    works += [dist.irecv(tensor, group=group, group_src=(rank - 1) % ranks) for tensor in received]
    for work in works:
        work.wait()
    return received
