"""What every draft head can do, as a torch module.

A head reads rows. Row t joins the feature of the target at position t with the embedding of token t+1, is rotated as
position t, and predicts token t+2 (SGLang eagle_worker_v2.py). What it returns is fed back as the next row's feature.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """The target's embedding `[V, H]` and output layer `[V, H]`, which heads share. Never trained through a head."""

    embedding: Tensor
    output: Tensor


class HeadOutput(NamedTuple):
    """Per row: `hidden [B, T, h]` is what the next row is fed, `features [B, T, h]` what the lm_head reads."""

    hidden: Tensor
    features: Tensor


class Head(nn.Module, ABC):
    """A head of any kind.

    `hidden_size` is its own width h, `feature_size` the width F of what the target gives it (three hidden states of EAGLE-3
    side by side). `depth` is the number of layers of which each drafts one token: 1 where one layer serves every step.
    `boundaries` are the target's states that it is fed: k is the input of layer k; empty means the state after the final
    norm.
    """

    hidden_size: int
    feature_size: int
    depth: int = 1
    boundaries: tuple[int, ...] = ()

    def __init__(self, tables: Tables) -> None:
        super().__init__()
        self.tables = tables  # a plain object: neither parameters of the head nor part of its state

    @abstractmethod
    def forward(
        self,
        hidden: Tensor,
        embeds: Tensor,
        positions: Tensor,
        cache: Any = None,
        mask: Tensor | None = None,
        layer: int = 0,
    ) -> HeadOutput:
        """Rows through the head; differentiable in everything floating.

        `hidden [B, T, F or h]` are features of the target, or what the head returned for the row before. `embeds
        [B, T, h]` belong to the token after each row (`embed`), `positions [B, T]` are the rows' own. `cache` is a
        transformers Cache and grows by T; `mask [B or 1, 1, T, S]` is added to the scores over S cached and new rows (see
        `causal_mask`); None lets every row see those before it, and only that of the T rows. `layer` < `depth`.
        """

    def embed(self, ids: Tensor) -> Tensor:
        """`[..., h]`: embeddings of target ids, from the target's table, without gradient."""
        return functional.embedding(ids, self.tables.embedding.detach())

    def logits(self, features: Tensor) -> Tensor:
        """`[..., draft vocabulary]`; the target's output layer takes no gradient."""
        return functional.linear(features, self.tables.output.detach())

    def target_ids(self, ids: Tensor) -> Tensor:
        """Target ids of draft ids."""
        return ids

    @abstractmethod
    def canonical_state(self) -> dict[str, Tensor]:
        """The head's tensors under the names of its DraftSpec: what was loaded, as it is now."""

    def new_cache(self) -> Any:
        """An empty transformers cache for one sequence, every layer of which can be rolled back."""
        from transformers import DynamicCache

        return DynamicCache()

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(parameter.dtype for parameter in self.parameters() if parameter.is_floating_point())


def causal_mask(rows: int, cached: int, like: Tensor) -> Tensor:
    """`[1, 1, rows, cached + rows]` with 0 where a row may look and the lowest number elsewhere."""
    total = cached + rows
    return additive(torch.ones(rows, total, dtype=torch.bool, device=like.device).tril(cached), like)


def additive(seen: Tensor, like: Tensor) -> Tensor:
    """`[1, 1, rows, columns]` to be added to scores: 0 where `seen [rows, columns]`, the lowest number elsewhere."""
    mask = torch.zeros(seen.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill(~seen, torch.finfo(like.dtype).min)[None, None]
