"""Rolling left by one token, where sequences lie packed in one row or are split over context-parallel ranks.

`x` is always [..., S] with the tokens along the last dimension. What has no successor gets 0, as in megatron-core's
`roll_tensor` (megatron/core/transformer/multi_token_prediction.py), which these functions equal.

`cu_seqlens` [n + 1] are the boundaries of n packed sequences: 0, the end of the first, ..., the end of the last; under
context parallelism those of the whole sequences, as in Megatron's `PackedSeqParams`. Context parallelism over `size`
ranks cuts every sequence into 2 * size equal chunks and gives rank r the chunks r (the front) and 2 * size - 1 - r (the
mirrored tail), so that every rank has as much to attend to as any other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, distributed

from ..errors import CkptError, error

Roll = Callable[[Tensor], Tensor]


def roll_left(x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
    """[..., S] -> [..., S]: position t gets what was at t + 1, the last position of every sequence gets 0."""
    rolled = x.roll(-1, -1)
    rolled[..., _lengths(cu_seqlens, x.shape[-1]).cumsum(0) - 1] = 0
    return rolled


def split(x: Tensor, rank: int, size: int, cu_seqlens: Tensor | None = None) -> Tensor:
    """The part [..., S / size] of rank `rank`: front and mirrored tail of every sequence, end to end."""
    lengths = _chunk_lengths(x.shape[-1], size, cu_seqlens)
    chunks = torch.split_with_sizes(x, lengths.repeat_interleave(2 * size).tolist(), -1)
    mine = (start + k for start in range(0, len(chunks), 2 * size) for k in (rank, 2 * size - 1 - rank))
    return torch.cat([chunks[k] for k in mine], -1)


def first_tokens(part: Tensor, size: int, cu_seqlens: Tensor | None = None) -> Tensor:
    """[..., n, 2]: the first entries of this part's front and tail chunk of every sequence, which neighbours need."""
    lengths = _chunk_lengths(part.shape[-1] * size, size, cu_seqlens)
    fronts = (lengths.cumsum(0) - lengths) * 2
    return part[..., torch.stack([fronts, fronts + lengths], -1)]


def roll_part(part: Tensor, firsts: Tensor, rank: int, cu_seqlens: Tensor | None = None) -> Tensor:
    """Roll one rank's part [..., S / size], given every rank's `first_tokens` as [size, ..., n, 2].

    A front is followed by the next rank's front (on the last rank by its own tail), a tail by the previous rank's tail
    (on rank 0 by nothing).
    """
    size = firsts.shape[0]
    lengths = _chunk_lengths(part.shape[-1] * size, size, cu_seqlens)
    tails = lengths.cumsum(0) * 2
    rolled = part.roll(-1, -1)
    rolled[..., tails - lengths - 1] = firsts[rank + 1, ..., 0] if rank + 1 < size else firsts[rank, ..., 1]
    rolled[..., tails - 1] = firsts[rank - 1, ..., 1] if rank else torch.zeros_like(firsts[rank, ..., 1])
    return rolled


def roll_in_context(part: Tensor, group: distributed.ProcessGroup, cu_seqlens: Tensor | None = None) -> Tensor:
    """`roll_part` of this rank, the neighbours' boundary tokens fetched over `group`; every rank of it must call this."""
    size = distributed.get_world_size(group)
    mine = first_tokens(part, size, cu_seqlens).contiguous()
    firsts = [torch.empty_like(mine) for _ in range(size)]
    distributed.all_gather(firsts, mine, group=group)
    return roll_part(part, torch.stack(firsts), distributed.get_rank(group), cu_seqlens)


def _lengths(cu_seqlens: Tensor | None, total: int) -> Tensor:
    """The length of every sequence that has any tokens; raises CkptError if they do not make up a row of `total`."""
    if cu_seqlens is None:
        return torch.tensor([total])
    lengths = cu_seqlens.long().diff().cpu()
    if not len(lengths) or int(cu_seqlens[0]) or int(cu_seqlens[-1]) != total or bool((lengths < 0).any()):
        raise error(
            CkptError,
            "cu-seqlens",
            "the boundaries of the packed sequences do not cover the row",
            where="cu_seqlens",
            expected=f"0, then ascending ends, the last of them {total}",
            actual=str(cu_seqlens.tolist()),
            fix="give the cumulative lengths of the whole sequences, padding included",
        )
    return lengths[lengths > 0]


def _chunk_lengths(total: int, size: int, cu_seqlens: Tensor | None) -> Tensor:
    """The length of one of the 2 * size chunks of every sequence of a row of `total` before it is split."""
    lengths = _lengths(cu_seqlens, total)
    if bool((lengths % (2 * size)).any()):
        raise error(
            CkptError,
            "context-parallel-length",
            f"a sequence does not divide into {2 * size} equal chunks",
            where="cu_seqlens",
            expected=f"lengths that are multiples of {2 * size}, twice the context-parallel size",
            actual=str(lengths.tolist()),
            fix="pad every sequence before it is split",
        )
    return lengths // (2 * size)
