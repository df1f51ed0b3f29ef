"""The table of a plain dense decoder: what llama, qwen2, qwen3 and the body of mimo have in common."""

from __future__ import annotations

from ..mapping.rules import Table
from . import blocks
from .base import NONE, Variants
from .config import Fields
from .dims import Dims


def table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants = NONE) -> Table:
    """Embedding, decoder layers, final norm, head; no MTP layers (`mtp` must be 0)."""
    if mtp:
        raise ValueError("this family has no MTP layers")
    at = blocks.decoder_place(d)
    return Table(
        rules=blocks.joined(blocks.outer(d, padded_vocab), blocks.dense_layer(d, at)),
        states=(*blocks.outer_states(), *blocks.dense_layer_states(d, at)),
        duplicates=blocks.tied_head(d),
        recomputed=blocks.rotary_buffers(d),
    )


def refuse_partial_bias(fields: Fields, attention: bool, mlp: bool) -> None:
    """Megatron knows biases on qkv alone (--add-qkv-bias) or on every projection; nothing between."""
    if attention != mlp:
        fields.report.error(
            "bias-not-expressible",
            "the output projection has a bias and the MLP has none, or the reverse; Megatron has no such model",
            where=fields.where,
            expected="attention_bias and mlp_bias both true or both false",
            actual=f"attention_bias {attention}, mlp_bias {mlp}",
            fix="no conversion exists for this model",
        )
