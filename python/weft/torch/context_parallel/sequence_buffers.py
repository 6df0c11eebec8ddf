"""Temporary parts of tensors that follow a sequence (inputs, labels, positional tables), and whole tensors from the
parts of all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from weft.torch.context_parallel.agreement import announce_refusal, check_refusals, describe_digests, digest, gather_numbers
from weft.torch.context_parallel.exchanges.level_exchange import LevelExchange
from weft.torch.context_parallel.layouts.sequence_layout import SequenceLayout


def extract_tokens(whole: torch.Tensor, seq_dim: int, layout: SequenceLayout, rank: int) -> torch.Tensor:
    """A copy of the tokens of `rank`, in its order."""
    parts = [whole.narrow(seq_dim, part.begin, part.count) for part in layout.ranges[rank]]
    return torch.cat(parts, dim=seq_dim)


def check_buffers(
    buffers: Sequence[torch.Tensor], seq_dims: Sequence[int], unrestored: Iterable[torch.Tensor]
) -> list[int]:
    """Returns the seq dims counted from the front. Errors: ValueError, by number of the buffer."""
    if len(buffers) != len(seq_dims):
        raise ValueError(
            f"there are {len(buffers)} buffers, but {len(seq_dims)} buffer_seq_dims: give one dim for each buffer"
        )
    dims = []
    for index, (buffer, dim) in enumerate(zip(buffers, seq_dims)):
        if isinstance(buffer, torch.nn.Parameter) or buffer.requires_grad:
            raise ValueError(
                f"buffer {index} requires a gradient, so it cannot be split in place: leave it out, or detach it"
            )
        if any(buffer is other for other in buffers[:index]):
            raise ValueError(f"buffer {index} is listed twice: list it once")
        if not -buffer.dim() <= dim < buffer.dim():
            raise ValueError(
                f"buffer {index} has {buffer.dim()} dims and no dim {dim}: correct its entry of buffer_seq_dims"
            )
        dims.append(dim % buffer.dim())
    for buffer in unrestored:
        if not any(buffer is other for other in buffers):
            raise ValueError("a tensor of no_restore_buffers is not among the buffers: list it in both, or in neither")
    return dims


def common_length(buffers: Sequence[torch.Tensor], seq_dims: Sequence[int]) -> int | None:
    """Tokens of the sequence; None without buffers. Errors: ValueError (buffers differ)."""
    lengths = [buffer.shape[dim] for buffer, dim in zip(buffers, seq_dims)]
    for index, length in enumerate(lengths):
        if length != lengths[0]:
            raise ValueError(
                f"buffer {index} has {length} tokens along dim {seq_dims[index]}, but buffer 0 has {lengths[0]}: "
                "slice it to the length of "
                "the sequence"
            )
    return lengths[0] if lengths else None


@contextlib.contextmanager
def split_buffers(
    buffers: Sequence[torch.Tensor],
    seq_dims: Sequence[int],
    unrestored: Iterable[torch.Tensor],
    layout: SequenceLayout | None,
    rank: int,
) -> Iterator[None]:
    """Scope in which each buffer holds the tokens of `rank`. Its end gives the whole tensors back, without a copy,
    except the `unrestored` ones. Other tensors that share memory with a buffer stay whole. Writes to the parts are
    lost."""
    unrestored = list(unrestored)
    saved: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        for buffer, dim in zip(buffers, seq_dims):
            assert layout is not None
            part = extract_tokens(buffer.detach(), dim, layout, rank)
            if not any(buffer is other for other in unrestored):
                saved.append((buffer, buffer.data))
            _replace(buffer, part)
        yield
    finally:
        for buffer, whole in saved:
            _replace(buffer, whole)


def _replace(buffer: torch.Tensor, data: torch.Tensor) -> None:
    buffer.data = data
    # Autograd refuses a backward that would read the other contents.
    if not buffer.is_inference():
        torch.autograd.graph.increment_version(buffer)


@torch.no_grad()
def unshard(
    group: dist.ProcessGroup, buffers: Sequence[torch.Tensor], seq_dims: Sequence[int], layout: SequenceLayout
) -> list[torch.Tensor]:
    """Whole tensors in the order of the sequence, on every rank. Collective. Errors, on all ranks: ValueError (those of
    check_parts; ranks differ), those of arguments of a wrong type."""
    level = LevelExchange(group, range(layout.ranks))
    try:
        dims = check_parts(buffers, seq_dims, layout, level.own)
        forms = [_form_of(buffer, dim) for buffer, dim in zip(buffers, dims)]
    except Exception as error:  # Also those of arguments of a wrong type.
        announce_refusal(level, 3, error)
        raise
    _agree_on_parts(level, forms, layout)
    return [_unshard(level, buffer, dim, layout) for buffer, dim in zip(buffers, dims)]


def check_parts(
    buffers: Sequence[torch.Tensor], seq_dims: Sequence[int], layout: SequenceLayout, rank: int
) -> list[int]:
    if len(buffers) != len(seq_dims):
        raise ValueError(
            f"there are {len(buffers)} buffers, but {len(seq_dims)} seq_dims: give one dim for each buffer"
        )
    dims = []
    for index, (buffer, dim) in enumerate(zip(buffers, seq_dims)):
        if not -buffer.dim() <= dim < buffer.dim():
            raise ValueError(f"buffer {index} has {buffer.dim()} dims and no dim {dim}: correct its entry of seq_dims")
        if buffer.shape[dim] != layout.counts[rank]:
            raise ValueError(
                f"buffer {index} has {buffer.shape[dim]} tokens along dim {dim}, but rank {rank} of the group has "
                f"{layout.counts[rank]} of "
                f"the {layout.tokens} tokens: give the part that this rank computed"
            )
        dims.append(dim % buffer.dim())
    return dims


def _form_of(part: torch.Tensor, dim: int) -> tuple:
    """Properties that are the same on all ranks."""
    return part.dtype, (*part.shape[:dim], *part.shape[dim + 1 :]), dim


def _agree_on_parts(level: LevelExchange, forms: Sequence[tuple], layout: SequenceLayout) -> None:
    """Compares the parts of all ranks: a difference would mix up their messages."""
    rows = gather_numbers(level, [0, digest(forms), digest(layout)])
    check_refusals(level, rows, "their buffers")
    for column, name in ((1, "dtypes, dims or number of the buffers"), (2, "layouts")):
        values = [row[column] for row in rows]
        if len(set(values)) > 1:
            raise ValueError(
                f"the {name} differ between the ranks of the context group, {describe_digests(values)}: give all "
                "ranks the same"
            )


def _unshard(level: LevelExchange, part: torch.Tensor, dim: int, layout: SequenceLayout) -> torch.Tensor:
    flat = part.contiguous().flatten().view(torch.uint8)
    shapes = [(*part.shape[:dim], count, *part.shape[dim + 1 :]) for count in layout.counts]
    per_token = flat.numel() // max(1, layout.counts[level.own])
    blocks = level.gather(flat, [per_token * count for count in layout.counts]).wait()
    whole = part.new_empty((*part.shape[:dim], layout.tokens, *part.shape[dim + 1 :]))
    for rank, block in enumerate(blocks):
        values = block.clone().view(part.dtype).view(shapes[rank])
        begin = 0
        for tokens in layout.ranges[rank]:
            whole.narrow(dim, tokens.begin, tokens.count).copy_(values.narrow(dim, begin, tokens.count))
            begin += tokens.count
    return whole
