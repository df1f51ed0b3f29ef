"""ERNIE 4.5 MoE (21B-A3B): softmax router in fp32 with a selection bias stored as [1, E], tied embeddings."""

from __future__ import annotations

from dataclasses import replace

from ..mapping.arrangement import copy
from ..mapping.rules import Axis, Rule, Table
from . import blocks, moe
from .base import Family, Variants
from .blocks import Place
from .config import Fields
from .dims import Dims, Moe
from .reading import read_dims, require

BIAS = "mlp.moe_statics.e_score_correction_bias"


def dims(fields: Fields) -> Dims:
    """MoE layers from `moe_layer_start_index` on, every `moe_layer_interval`-th; no biases (the head would have one)."""
    require(fields, use_bias=False)
    first, step = fields.value("moe_layer_start_index"), fields.size("moe_layer_interval")
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        fields.wrong("moe_layer_start_index", "the first MoE layer, 0 or more", first)
        first = 0
    last = fields.value("moe_layer_end_index")
    read = read_dims(fields)
    count = read.num_hidden_layers
    end = count if last in (None, -1) else int(last) + 1
    size = fields.size("moe_intermediate_size")
    experts = Moe(
        layers=tuple(i for i in range(first, end) if (i + 1) % step == 0),
        num_experts=fields.size("moe_num_experts"),
        intermediate_size=size,
        top_k=fields.size("moe_k"),
        shared_size=(fields.value("moe_num_shared_experts") or 0) * size,
        router_bias=True,
    )
    return replace(read, moe=experts, rotary_interleaved=True)


def _bias(d: Dims, at: Place) -> Rule:
    """[1, E] against [E]: the same bytes."""
    assert d.moe is not None
    one = replace(at, axes=(*at.axes, Axis("one", range(1), silent="megatron")))
    made = blocks.rule(one, "mlp.router.expert_bias", {BIAS: (d.moe.num_experts,)}, copy(d.moe.num_experts))
    return replace(made, keep_dtype=True)


def table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants) -> Table:
    if mtp:
        raise ValueError("the MTP layers of this family have no counterpart in Megatron")
    assert d.moe is not None
    at, sparse = blocks.decoder_place(d), blocks.decoder_place(d, layers=d.moe.layers)
    plain = blocks.decoder_place(d, layers=blocks.other_layers(d, d.moe.layers))
    unbiased = replace(d, moe=replace(d.moe, router_bias=False))
    return Table(
        rules=blocks.joined(
            blocks.outer(d, padded_vocab),
            blocks.attention(d, at),
            blocks.dense_mlp(d, plain),
            moe.moe_mlp(unbiased, sparse, chosen["experts"]),
            (_bias(d, sparse),),
        ),
        states=(*blocks.outer_states(), *blocks.dense_layer_states(d, at), *moe.moe_states(d, sparse)),
        duplicates=blocks.tied_head(d),
    )


FAMILY = Family(
    "ernie4_5_moe",
    "ERNIE 4.5 MoE (21B-A3B)",
    ("ernie4_5_moe",),
    dims,
    table,
    variants=(moe.packing_variant("experts", ("model.layers.{layer}.",)),),
)
