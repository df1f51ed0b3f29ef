"""A head as a student: the losses of all draft steps over whole rows at once.

Serving, step s of a chain starts at some certain row and reads: the certain rows up to there, made from the target's
features, then the rows that steps 1 to s - 1 made from the head's own output. Here every row is such a start at the same
time (EAGLE-3, arXiv 2503.01840, "training-time test"). Step s runs over all T rows again: row t is fed what step s - 1
returned for row t - 1, and sees step 0's rows up to t - s, of the steps between the one row on its own chain each, and
itself. Input and label of a row are the same in every step, for a chain goes on only where the draft was the target's
token. A head of several layers drafts one token with each; there, layer k is trained as megatron-core does (`objective`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..speculate.head import Head, causal_mask
from .objective import Shifted, shifted


class Losses(NamedTuple):
    """`loss` is what is minimised; the others are per step [S], without gradient: summed cross-entropies (nats), how many
    rows they are over, and at how many of them the likeliest draft is the label."""

    loss: Tensor
    totals: Tensor
    counts: Tensor
    right: Tensor


class Student(nn.Module):
    """`steps` are trained, step s with the weight `decay ** s`; of several layers, at most as many as there are."""

    def __init__(self, head: Head, steps: int, decay: float = 1.0) -> None:
        super().__init__()
        self.head = head
        self.steps = steps if head.depth == 1 else min(steps, head.depth)
        self.decay = decay

    def forward(self, ids: Tensor, features: Tensor, generated: Tensor) -> Losses:
        """`ids` and `generated` are [B, T], `features` [B, T, F] the target's, without history; short rows end in padding
        that is not `generated`."""
        known = draft_ids(self.head)
        means, found = [], []
        for step, (row, read) in enumerate(self._reads(ids, features, generated)):
            labels = known[row.labels[row.mask]]
            logits = self.head.logits(read[row.mask][labels >= 0]).float()
            labels = labels[labels >= 0]
            total = functional.cross_entropy(logits, labels, reduction="sum")
            count = torch.tensor(len(labels), device=total.device)
            means.append(self.decay**step * total / count.clamp(min=1))
            found.append(torch.stack([total.detach(), count, (logits.argmax(-1) == labels).sum()]))
        return Losses(torch.stack(means).sum(), *torch.stack(found, 1))

    def _reads(self, ids: Tensor, features: Tensor, generated: Tensor) -> Iterator[tuple[Shifted, Tensor]]:
        """Per step: inputs, labels and mask [B, T], and what the lm_head reads [B, T, h]."""
        deep = self.head.depth > 1
        length, hidden, cache = ids.shape[1], features, None if deep else self.head.new_cache()
        positions = torch.arange(length, device=ids.device).expand_as(ids)
        for step in range(self.steps):
            row = shifted(ids, generated, depth=step if deep else 0)
            embeds = self.head.embed(row.inputs).to(features.dtype)
            mask = causal_mask(length, 0, embeds) if deep else chain_mask(length, step, embeds)
            out = self.head(hidden, embeds, positions, cache, mask, step if deep else 0)
            hidden = out.hidden if deep else functional.pad(out.hidden, (0, 0, 1, 0))[:, :-1]
            reached = row.mask if deep else row.mask & (positions >= step)
            yield row._replace(mask=reached), out.features


def chain_mask(length: int, step: int, like: Tensor) -> Tensor:
    """[1, 1, T, (step + 1) * T]: 0 where row t of `step` may look, among the rows of steps 0 to `step`, the lowest number
    elsewhere. Rows before `step` are nobody's; they see themselves, so that nothing becomes NaN."""
    row = torch.arange(length, device=like.device)
    certain = row[None] <= row[:, None] - step
    own = [row[None] == row[:, None] - (step - k) for k in range(1, step + 1)]
    seen = torch.cat([certain, *own], -1)
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill(
        ~seen, torch.finfo(like.dtype).min
    )[None, None]


def draft_ids(head: Head) -> Tensor:
    """[V]: the draft id of every target id, -1 where the head cannot draft it."""
    words, offsets = head.tables.output.shape[0], getattr(head, "d2t", None)
    drafts = torch.arange(words if offsets is None else len(offsets), device=head.device)
    known = torch.full((words,), -1, device=head.device)
    known[head.target_ids(drafts)] = drafts
    return known
