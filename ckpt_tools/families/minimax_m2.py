"""MiniMax-M2: norms over the full width of q and k, sigmoid router with bias, experts named w1, w2, w3.

Releases declare MTP modules (`num_mtp_modules`) and store none.
"""

from __future__ import annotations

from dataclasses import replace

from ..mapping.rules import Table
from . import blocks, moe
from .base import Family, Variants
from .config import Fields
from .dims import SIGMOID, Dims, Moe
from .reading import read_dims, read_rotary_percent, require

NAMES = moe.MoeNames(
    router="block_sparse_moe.gate.weight",
    bias="block_sparse_moe.e_score_correction_bias",
    experts="block_sparse_moe.experts",
    gate="w1",
    up="w3",
    down="w2",
)


def dims(fields: Fields) -> Dims:
    """`intermediate_size` is an expert's. `rotary_dim` rows of each head rotate, or a `partial_rotary_factor` of them."""
    require(fields, shared_intermediate_size=0, scoring_func=SIGMOID, qk_norm_type="per_layer")
    require(fields, attn_type_list=[1] * fields.size("num_hidden_layers"))
    fields.size("head_dim")
    read = read_dims(fields)
    experts = Moe(
        layers=tuple(range(read.num_hidden_layers)),
        num_experts=fields.size("num_local_experts"),
        intermediate_size=read.intermediate_size,
        top_k=fields.size("num_experts_per_tok"),
        router_bias=fields.flag("use_routing_bias"),
        score=SIGMOID,
        balancing="none",
    )
    stated = fields.has("rotary_dim")
    percent = fields.size("rotary_dim") / read.head_dim if stated else read_rotary_percent(fields)
    return replace(read, moe=experts, wide_qk_norm=fields.flag("use_qk_norm"), rotary_percent=percent)


def table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants) -> Table:
    if mtp:
        raise ValueError("no release of this family has MTP layers")
    at = blocks.decoder_place(d)
    widths = (d.num_attention_heads * d.head_dim, d.num_key_value_heads * d.head_dim)
    return Table(
        rules=blocks.joined(
            blocks.outer(d, padded_vocab),
            blocks.attention(d, at),
            blocks.qk_norms(at, *widths) if d.wide_qk_norm else (),
            moe.moe_mlp(d, at, chosen["experts"], NAMES),
        ),
        states=(*blocks.outer_states(), *blocks.dense_layer_states(d, at), *moe.moe_states(d, at)),
        duplicates=blocks.tied_head(d),
    )


FAMILY = Family(
    "minimax_m2",
    "MiniMax-M2, M2.7",
    ("minimax_m2",),
    dims,
    table,
    variants=(moe.packing_variant("experts", ("model.layers.{layer}.",), NAMES),),
    slime_spec=("slime_plugins.models.minimax_m2", "get_minimax_m2_layer_spec"),
)
