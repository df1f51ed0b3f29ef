"""Qwen3 MoE (30B-A3B, 235B-A22B, Coder): Qwen3 attention, softmax router, no shared expert."""

from __future__ import annotations

from dataclasses import replace

from ..mapping.rules import Table
from . import blocks, dense, moe
from .base import LOGITS, Family, Variants
from .config import Fields
from .dims import Dims, Moe
from .reading import read_dims


def sparse_layers(fields: Fields) -> tuple[int, ...]:
    """Layer i is sparse unless listed in mlp_only_layers or skipped by decoder_sparse_step (transformers Qwen3MoeModel)."""
    only = fields.value("mlp_only_layers") or []
    step = fields.value("decoder_sparse_step") or 1
    return tuple(i for i in range(fields.size("num_hidden_layers")) if i not in only and (i + 1) % step == 0)


def read_moe(fields: Fields) -> Moe:
    return Moe(
        layers=sparse_layers(fields),
        num_experts=fields.size(fields.first("num_experts", "num_local_experts")),
        intermediate_size=fields.size("moe_intermediate_size"),
        top_k=fields.size("num_experts_per_tok"),
        norm_topk=fields.flag("norm_topk_prob"),
    )


def dims(fields: Fields) -> Dims:
    dense.refuse_partial_bias(fields, fields.flag("attention_bias"), mlp=False)
    fields.size("head_dim")
    return replace(read_dims(fields, qk_norm=True), moe=read_moe(fields))


def table(d: Dims, mtp: int, padded_vocab: int, chosen: Variants) -> Table:
    if mtp:
        raise ValueError("this family has no MTP layers")
    assert d.moe is not None
    at, sparse = blocks.decoder_place(d), blocks.decoder_place(d, layers=d.moe.layers)
    plain = blocks.decoder_place(d, layers=blocks.other_layers(d, d.moe.layers))
    return Table(
        rules=blocks.joined(
            blocks.outer(d, padded_vocab),
            blocks.attention(d, at),
            blocks.dense_mlp(d, plain),
            moe.moe_mlp(d, sparse, chosen["experts"]),
        ),
        states=(*blocks.outer_states(), *blocks.dense_layer_states(d, at), *moe.moe_states(d, sparse)),
        duplicates=blocks.tied_head(d),
    )


FAMILY = Family(
    "qwen3_moe",
    "Qwen3 MoE (30B-A3B, 235B-A22B, Coder)",
    ("qwen3_moe",),
    dims,
    table,
    proof=LOGITS,
    variants=(moe.packing_variant("experts", ("model.layers.{layer}.",)),),
)
