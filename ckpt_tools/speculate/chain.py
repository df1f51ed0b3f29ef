"""Drafting a chain: one head, its key-value cache, and the rows that are certain.

A single layer serves every step (SGLang eagle_worker_v2.py): its last certain row gives the first draft; step i appends the
row (own output of the row before, embedding of draft i). Rows made from drafts are dropped before the next certain ones
come. Several layers draft one token each (transformers MtpModel): layer k reads the rows of layer k-1, shifted by one token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .head import Head, HeadOutput, causal_mask

Choose = Callable[[Tensor], tuple[int, Tensor | None]]


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """`tokens` are target ids; `probs [k, V]` the distributions they were drawn from, None where they are the likeliest."""

    tokens: list[int]
    probs: Tensor | None = None


def likeliest(head: Head) -> Choose:
    """The argmax of the draft vocabulary."""

    def choose(logits: Tensor) -> tuple[int, Tensor | None]:
        return int(head.target_ids(logits.argmax(-1))), None

    return choose


@dataclass(eq=False)
class Chain:
    """The head's side of one sequence. `certain` counts rows whose tokens are settled (of every layer)."""

    head: Head
    certain: int = 0
    cache: Any = field(init=False)
    last: HeadOutput | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        from transformers import DynamicCache

        self.cache = DynamicCache()

    def extend(self, features: Tensor, tokens: Sequence[int]) -> None:
        """Certain rows: `features [1, T, F]` of the target and the token after each."""
        self._drop_drafted()
        self.last = self._rows(features, tokens, self.certain)
        self.certain += len(tokens)

    def _rows(self, hidden: Tensor, tokens: Sequence[int], start: int) -> HeadOutput:
        ids = torch.tensor([list(tokens)], device=hidden.device)
        positions = torch.arange(start, start + len(tokens), device=hidden.device)[None]
        embeds = self.head.embed(ids)
        mask = causal_mask(len(tokens), start, embeds)
        row: HeadOutput = self.head(hidden, embeds, positions, self.cache, mask)
        return row

    def _drop_drafted(self) -> None:
        if (drafted := self.cache.get_seq_length() - self.certain) > 0:
            self.cache.crop(-drafted)

    @torch.inference_mode()
    def draft(self, steps: int, choose: Choose) -> Draft:
        """`steps` tokens after the last certain row; costs steps - 1 rows."""
        assert self.last is not None, "no certain row yet"
        row, tokens, probs = self.last, list[int](), list[Tensor]()
        for step in range(steps):
            if step:
                row = self._rows(row.hidden[:, -1:], tokens[-1:], self.certain + step - 1)
            token, distribution = choose(self.head.logits(row.features[:, -1])[0])
            tokens.append(token)
            if distribution is not None:
                probs.append(distribution)
        return Draft(tokens, torch.stack(probs) if probs else None)
