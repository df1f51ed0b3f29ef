"""MTP layers that continue the decoder's numbering, `model.layers.{N}`: DeepSeek, GLM and their relatives."""

from __future__ import annotations

from ..mapping.rules import Duplicate, Rule, State
from . import blocks
from .blocks import Place
from .dims import Dims

NAMES = {
    "enorm": "enorm.weight",
    "hnorm": "hnorm.weight",
    "eh_proj": "eh_proj.weight",
    "final_layernorm": "shared_head.norm.weight",
}


def place(d: Dims, count: int) -> Place:
    """The inner layer of MTP layers 0..count-1, which Hugging Face numbers N, N+1, ..."""
    n = d.num_hidden_layers
    return blocks.mtp_place("model.layers.{mtp}.", count, range(n, n + count))


def frame(d: Dims, at: Place) -> tuple[Rule, ...]:
    """[embedding, hidden] on both sides (SGLang deepseek_nextn.py, mcore multi_token_prediction.py)."""
    return blocks.mtp_frame(d, at, NAMES, swapped=False)


def frame_states(at: Place) -> tuple[State, ...]:
    return blocks.mtp_frame_states(at)


def copies(d: Dims, count: int) -> tuple[Duplicate, ...]:
    """Some releases repeat embedding and head inside the MTP layer; servers use the main ones."""
    n = d.num_hidden_layers
    embedding = "model.embed_tokens.weight"
    original = "lm_head.weight" if not d.tied else embedding
    return tuple(
        duplicate
        for layer in range(n, n + count)
        for duplicate in (
            Duplicate(f"model.layers.{layer}.embed_tokens.weight", embedding),
            Duplicate(f"model.layers.{layer}.shared_head.head.weight", original),
        )
    )
