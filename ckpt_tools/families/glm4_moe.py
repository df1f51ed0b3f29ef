"""GLM-4.5, 4.5-Air, 4.6, 4.7: grouped attention with biases, sigmoid router with bias, MTP layer at N."""

from __future__ import annotations

from dataclasses import replace

from ..mapping.rules import Table
from . import blocks, moe, nextn
from .base import MTP_LOGITS, Family, Variants
from .config import Fields
from .dims import SIGMOID, Dims, Moe
from .reading import read_dims, read_layers, read_rotary_percent, require


def read_moe(fields: Fields) -> Moe:
    """The routed experts of the DeepSeek and GLM families: sigmoid scores, a selection bias, shared experts."""
    require(fields, scoring_func=SIGMOID, topk_method="noaux_tc")
    size = fields.size("moe_intermediate_size")
    shared = fields.value("n_shared_experts") or 0
    return Moe(
        layers=read_layers(fields),
        num_experts=fields.size("n_routed_experts"),
        intermediate_size=size,
        top_k=fields.size("num_experts_per_tok"),
        shared_size=shared * size,
        router_bias=True,
        score=SIGMOID,
        scaling=fields.number("routed_scaling_factor"),
        groups=fields.size("n_group"),
        top_groups=fields.size("topk_group"),
        norm_topk=fields.flag("norm_topk_prob"),
    )


def dims(fields: Fields) -> Dims:
    """`attention_bias` puts a bias on q, k and v only (transformers Glm4MoeAttention: o_proj has none)."""
    read = read_dims(fields, qkv_bias=fields.flag("attention_bias"), qk_norm=fields.flag("use_qk_norm"))
    return replace(read, moe=read_moe(fields), rotary_percent=read_rotary_percent(fields))


def table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants) -> Table:
    assert d.moe is not None
    at, sparse = blocks.decoder_place(d), blocks.decoder_place(d, layers=d.moe.layers)
    plain = blocks.decoder_place(d, layers=blocks.other_layers(d, d.moe.layers))
    head = nextn.place(d, mtp)
    return Table(
        rules=blocks.joined(
            blocks.outer(d, padded_vocab),
            blocks.attention(d, at),
            blocks.dense_mlp(d, plain),
            moe.moe_mlp(d, sparse, chosen["experts"]),
            nextn.frame(d, head),
            blocks.attention(d, head),
            moe.moe_mlp(d, head, chosen["mtp_experts"]),
        ),
        states=(
            *blocks.outer_states(),
            *blocks.dense_layer_states(d, at),
            *moe.moe_states(d, sparse),
            *nextn.frame_states(head),
            *blocks.dense_layer_states(d, head),
            *moe.moe_states(d, head),
        ),
        duplicates=(*blocks.tied_head(d), *nextn.copies(d, mtp)),
    )


FAMILY = Family(
    "glm4_moe",
    "GLM-4.5, 4.5-Air, 4.6, 4.7",
    ("glm4_moe",),
    dims,
    table,
    mtp_field="num_nextn_predict_layers",
    draft_class="Glm4MoeForCausalLMNextN",
    proof=MTP_LOGITS,
    variants=(
        moe.packing_variant("experts", ("model.layers.{layer}.",)),
        moe.packing_variant("mtp_experts", ("model.layers.{nextn}.",)),
    ),
)
