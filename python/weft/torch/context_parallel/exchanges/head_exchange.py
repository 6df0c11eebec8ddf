"""Exchange of heads for tokens within the inner group of a scheme (Ulysses), by one all-to-all each way.

*Scattering* heads takes q, k and v with all heads and this rank's tokens, and returns some heads with all tokens of
the inner group, in the order of the sequence. *Gathering* heads is the inverse, for outputs and gradients. A KV head
that several ranks have is sent to each of them, and its gradients are added in the order of ranks.

Collective: every method, by all ranks of the inner group in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from weft.torch.context_parallel.exchanges.level_exchange import LevelExchange
from weft.torch.context_parallel.exchanges.token_blocks import (
    BlockShape,
    Placement,
    block_bytes,
    extract_part,
    insert_part,
    split_block,
)
from weft.torch.context_parallel.layouts.head_split import HeadRange, HeadSplit


@dataclass(frozen=True)
class HeadTensor:
    """A tensor [batch, heads, tokens, dim] of the exchange, and the heads that each rank has of it."""

    tensor: torch.Tensor
    ranges: Sequence[HeadRange]
    heads: int  # In the whole model.

    @property
    def _fixed(self) -> tuple[int, int]:
        return self.tensor.shape[0], self.tensor.shape[3]

    def shape(self, heads: int, tokens: int) -> tuple[int, ...]:
        batch, dim = self._fixed
        return batch, heads, tokens, dim

    def block(self, rank: int, tokens: int) -> BlockShape:
        """The part with the heads of `rank` and `tokens` tokens."""
        return BlockShape(self.shape(self.ranges[rank].count, tokens), self.tensor.dtype)


@dataclass(frozen=True)
class HeadExchange:
    """tokens: of each rank of the inner group. placements: of each rank's tokens among those of the inner group."""

    level: LevelExchange
    split: HeadSplit
    tokens: Sequence[int]
    placements: Sequence[Sequence[Placement]]

    def scatter(self, *tensors: HeadTensor) -> list[torch.Tensor]:
        """Returns this rank's heads of all tokens of the inner group."""
        own = self.level.own
        sent_shapes = [[tensor.block(rank, self.tokens[own]) for tensor in tensors] for rank in range(self.level.size)]
        sent, sizes = self._new_blocks(tensors, sent_shapes)
        for rank, block in enumerate(sent.split(sizes)):
            for view, tensor in zip(split_block(block, sent_shapes[rank]), tensors):
                heads = tensor.ranges[rank]
                view.copy_(tensor.tensor[:, heads.begin : heads.end])
        shapes = [[tensor.block(own, self.tokens[rank]) for tensor in tensors] for rank in range(self.level.size)]
        received = self.level.all_to_all(sent, sizes, [block_bytes(blocks) for blocks in shapes]).wait()
        results = [
            tensor.tensor.new_empty(tensor.shape(tensor.ranges[own].count, sum(self.tokens))) for tensor in tensors
        ]
        for rank, block in enumerate(received):
            for view, result in zip(split_block(block, shapes[rank]), results):
                insert_part(view, result, self.placements[rank])
        return results

    def gather(self, *tensors: HeadTensor) -> list[torch.Tensor]:
        """Returns all heads of this rank's tokens; heads that several ranks have are added."""
        own = self.level.own
        sent_shapes = [[tensor.block(own, self.tokens[rank]) for tensor in tensors] for rank in range(self.level.size)]
        sent, sizes = self._new_blocks(tensors, sent_shapes)
        for rank, block in enumerate(sent.split(sizes)):
            for view, tensor in zip(split_block(block, sent_shapes[rank]), tensors):
                extract_part(tensor.tensor, view, self.placements[rank])
        shapes = [[tensor.block(rank, self.tokens[own]) for tensor in tensors] for rank in range(self.level.size)]
        received = self.level.all_to_all(sent, sizes, [block_bytes(blocks) for blocks in shapes]).wait()
        results = [tensor.tensor.new_zeros(tensor.shape(tensor.heads, self.tokens[own])) for tensor in tensors]
        for rank, block in enumerate(received):
            for view, result, tensor in zip(split_block(block, shapes[rank]), results, tensors):
                heads = tensor.ranges[rank]
                result[:, heads.begin : heads.end].add_(view)
        return results

    def gather_rows(self, mask: torch.Tensor) -> torch.Tensor:
        """Rows of a mask, [rows, heads, tokens of this rank, keys], of all tokens of the inner group."""
        sizes = [mask.shape[0] * mask.shape[1] * tokens * mask.shape[3] for tokens in self.tokens]
        whole = mask.new_empty((mask.shape[0], mask.shape[1], sum(self.tokens), mask.shape[3]))
        for rank, block in enumerate(self.level.gather(mask.contiguous().flatten(), sizes).wait()):
            view = block.view((mask.shape[0], mask.shape[1], self.tokens[rank], mask.shape[3]))
            insert_part(view, whole, self.placements[rank])
        return whole

    def _new_blocks(self, tensors: Sequence[HeadTensor], shapes: Sequence[Sequence[BlockShape]]):
        sizes = [block_bytes(blocks) for blocks in shapes]
        return torch.empty(sum(sizes), dtype=torch.uint8, device=tensors[0].tensor.device), sizes
