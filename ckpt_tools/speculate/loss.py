"""How well a head predicts a text of the target, without decoding: its rows over the text, teacher-forced."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .head import Head, HeadOutput, causal_mask
from .results import HeadLoss
from .target import Run, Target

CHUNK = 64  # rows whose logits are held at once


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one text: features `[1, T, F]`, the token after each, the one that the head is to predict. Rows before
    `first` belong to the prompt and are not judged."""

    features: Tensor
    tokens: Tensor
    wanted: Tensor
    first: int


@dataclass(frozen=True, eq=False)
class Judged:
    """Per judged position: `nats` of the right token (nan where the draft vocabulary lacks it), entropy, whether right."""

    nats: Tensor
    entropy: Tensor
    right: Tensor

    def summary(self, vocabulary: int) -> HeadLoss:
        known = ~self.nats.isnan()
        return HeadLoss(
            cross_entropy=float(self.nats[known].mean()) if bool(known.any()) else None,
            uniform=math.log(vocabulary),
            entropy=float(self.entropy.mean()),
            accuracy=float(self.right.float().mean()),
            coverage=float(known.float().mean()),
            tokens=len(self.nats),
        )


@torch.inference_mode()
def rows_of(target: Target, boundaries: tuple[int, ...], prompt: Sequence[int], text: Sequence[int]) -> Rows | None:
    """None for a text too short to judge."""
    ids = [*prompt, *text]
    if len(text) < 2:
        return None
    _, features = Run(target, boundaries).feed(ids[:-2])
    whole = torch.tensor([ids], device=target.device)
    return Rows(features, whole[:, 1:-1], whole[0, 2:], max(len(prompt) - 1, 0))


@torch.inference_mode()
def judge(head: Head, every: Iterable[Rows], most: int | None = None) -> Judged:
    """Judge the head on at most `most` positions."""
    ids = head.target_ids(torch.arange(vocabulary(head), device=head.device))
    numbers = torch.arange(len(ids), device=head.device)
    place = torch.full((int(ids.max()) + 1,), -1, device=head.device).scatter(0, ids, numbers)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    left = most
    for rows in every:
        features = _features(head, rows)[rows.first :]
        wanted = rows.wanted[rows.first :]
        stop = len(wanted) if left is None else min(len(wanted), left)
        for start in range(0, stop, CHUNK):
            inside = slice(start, min(start + CHUNK, stop))
            parts.append(_judge(head.logits(features[inside]).float(), wanted[inside], place, ids))
        left = None if left is None else left - stop
    nats, entropy, right = (torch.cat(column) for column in zip(*parts, strict=True))
    return Judged(nats, entropy, right)


def vocabulary(head: Head) -> int:
    """Rows of the head's output."""
    return int(head.logits(torch.zeros(1, head.hidden_size, device=head.device, dtype=head.dtype)).shape[-1])


def _features(head: Head, rows: Rows) -> Tensor:
    count = rows.tokens.shape[1]
    embeds = head.embed(rows.tokens)
    positions = torch.arange(count, device=embeds.device)[None]
    out: HeadOutput = head(rows.features, embeds, positions, head.new_cache(), causal_mask(count, 0, embeds))
    return out.features[0]


def _judge(logits: Tensor, wanted: Tensor, place: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    log = functional.log_softmax(logits, -1)
    at = torch.where(wanted < len(place), place[wanted.clamp(max=len(place) - 1)], -1)
    nats = -log.gather(-1, at.clamp(min=0)[:, None])[:, 0]
    nats = nats.masked_fill(at < 0, float("nan"))
    return nats.cpu(), -(log.exp() * log).sum(-1).cpu(), (ids[logits.argmax(-1)] == wanted).cpu()
