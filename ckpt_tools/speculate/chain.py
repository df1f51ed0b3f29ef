"""Drafting a chain: one head, its key-value cache, and the rows that are certain.

A single layer serves every step (SGLang eagle_worker_v2.py): its last certain row gives the first draft; step i appends the
row (own output of the row before, embedding of draft i). Rows made from drafts are dropped before the next certain ones
come. Several layers draft one token each (transformers MtpModel): layer k reads the rows of layer k-1 and the tokens one
further on, so that its last k rows hang on drafts and are made again every time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .draft import Choose, Draft
from .head import Head, HeadOutput, additive, causal_mask


class Chain:
    """The head's side of one sequence."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self._cache = head.new_cache()
        self._rows = 0  # rows whose feature and token are certain
        self._tokens: list[int] = []  # the token after each row
        self._cached = [0] * head.depth  # certain rows of each layer in the cache
        self._waiting: list[Tensor | None] = [None] * head.depth  # input rows that a layer has not settled
        self._last: HeadOutput | None = None

    def extend(self, features: Tensor, tokens: Sequence[int]) -> None:
        """Certain rows: `features [1, T, F]` of the target and the token after each."""
        self._rows += len(tokens)
        self._tokens += tokens
        waiting = self._waiting[0]
        self._waiting[0] = features if waiting is None else torch.cat([waiting, features], dim=1)
        if self.head.depth == 1:
            self._last = self._settle(0, [])

    def draft(self, steps: int, choose: Choose) -> Draft:
        """`steps` tokens after the last certain row. Raises ValueError for more steps than several layers can draft."""
        if self.head.depth > 1 and steps > self.head.depth:
            raise ValueError(f"{self.head.depth} layers draft one token each, not {steps}")
        tokens, probs = list[int](), list[Tensor]()
        row = self.last if self.head.depth == 1 else None
        for step in range(steps):
            if row is None or self.head.depth > 1:
                row = self._settle(step, tokens)
            elif step:
                row = self.lanes(row.hidden[:, -1:], tokens[-1:], step)
            token, distribution = choose(self.head.logits(row.features[:, -1])[0])
            tokens.append(token)
            if distribution is not None:
                probs.append(distribution)
        return Draft(tokens, torch.stack(probs) if probs else None)

    @property
    def last(self) -> HeadOutput:
        """The rows that the last certain tokens gave; the last one drafts."""
        assert self._last is not None, "no certain row yet"
        return self._last

    def lanes(self, hidden: Tensor, tokens: Sequence[int], step: int) -> HeadOutput:
        """One row for each of `tokens`, all at the place of draft step `step` (from 1); `hidden [1, lanes, h]` is fed to them.

        A row sees the certain rows, those of its own lane in the steps before, and itself.
        """
        count = len(tokens)
        position = torch.full((1, count), self._rows + step - 1, device=hidden.device)
        ids = torch.tensor([list(tokens)], device=hidden.device)
        embeds = self.head.embed(ids)
        made: HeadOutput = self.head(hidden, embeds, position, self._cache, lane_mask(self._cached[0], step, embeds), 0)
        return made

    def _settle(self, layer: int, drafted: Sequence[int]) -> HeadOutput:
        """Layer `layer` over every row that it has not settled; its last `layer` rows have drafts for tokens."""
        start, waiting = self._cached[layer], self._waiting[layer]
        assert waiting is not None, "no certain row yet"
        self._forget(layer)
        tokens = [*self._tokens, *drafted][start + layer : self._rows + layer]
        out = self._run(layer, waiting, tokens, start)
        self._cached[layer] = settled = max(self._rows - layer, 0)
        self._waiting[layer] = waiting[:, settled - start :]
        if layer + 1 < self.head.depth:
            self._hand_on(layer + 1, out.hidden, start)
        return out

    def _hand_on(self, layer: int, rows: Tensor, start: int) -> None:
        """Rows from `start` on come new; of what waits, only rows before that are still right."""
        waiting, right = self._waiting[layer], start - self._cached[layer]
        self._waiting[layer] = rows if waiting is None else torch.cat([waiting[:, :right], rows], dim=1)

    def _forget(self, layer: int) -> None:
        """Drop rows that hung on drafts."""
        if layer < len(self._cache.layers):
            drafted = self._cache.get_seq_length(layer) - self._cached[layer]
            if drafted > 0:
                self._cache.layers[layer].crop(-drafted)

    def _run(self, layer: int, hidden: Tensor, tokens: Sequence[int], start: int) -> HeadOutput:
        ids = torch.tensor([list(tokens)], device=hidden.device)
        positions = torch.arange(start, start + len(tokens), device=hidden.device)[None]
        embeds = self.head.embed(ids)
        mask = causal_mask(len(tokens), start, embeds)
        row: HeadOutput = self.head(hidden, embeds, positions, self._cache, mask, layer)
        return row


def lane_mask(certain: int, step: int, like: Tensor) -> Tensor:
    """`[1, 1, lanes, certain + step * lanes]`: 0 for certain rows and those of the same lane, the lowest number elsewhere;
    `like [1, lanes, h]`."""
    lanes = like.shape[1]
    own = torch.eye(lanes, dtype=torch.bool, device=like.device).repeat(1, step)
    return additive(torch.cat([own.new_ones(lanes, certain), own], dim=1), like)
